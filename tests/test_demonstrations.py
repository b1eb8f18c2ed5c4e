"""The internal type: structure, selection, subsampling, saving, conversion."""

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_episodes import trajectory

from sb3_dualqdm import Demonstrations, load_demonstrations

pytestmark = pytest.mark.both
FIELDS = [field.name for field in dataclasses.fields(Demonstrations)]


def assert_same(left: Demonstrations, right: Demonstrations, but: tuple[str, ...] = ("source", "spec", "sha256")) -> None:
    """Every field bit for bit, dtypes included, apart from those in ``but``."""
    for name in set(FIELDS) - set(but):
        a, b = getattr(left, name), getattr(right, name)
        pairs = [(a[key], b[key]) for key in a | b] if isinstance(a, dict) else [(a, b)]
        for x, y in pairs:
            if x is not None and hasattr(x, "__array__"):
                x, y = np.asarray(x), np.asarray(y)
                assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes(), name
            else:
                assert x == y, name


@pytest.fixture
def demos() -> Demonstrations:
    return load_demonstrations([trajectory(0, 3), trajectory(1, 5, terminal=False), trajectory(2, 1)])


def test_flat_arrays_of_three_episodes(demos):
    assert len(demos) == 9 and demos.n_episodes == 3
    assert demos.obs[:, 0].tolist() == [0, 1, 2, 100, 101, 102, 103, 104, 200]
    assert demos.next_obs[:, 0].tolist() == [1, 2, 3, 101, 102, 103, 104, 105, 201]
    assert demos.episode.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 2]
    assert demos.step.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0]
    assert demos.terminated.tolist() == [False, False, True] + 5 * [False] + [True]
    assert demos.truncated.tolist() == 7 * [False] + [True, False]
    assert demos.initial_obs[:, 0].tolist() == [0, 100, 200]
    assert demos.episode_returns.tolist() == [6.0, 15.0, 1.0] and demos.episode_lengths.tolist() == [3, 5, 1]
    assert demos.rewards.dtype == np.float32 and demos.rewards.tolist() == [1, 2, 3, 1, 2, 3, 4, 5, 1]
    assert "3 episodes, 9 transitions, 2 terminated, 1 truncated, return 7.3 (from 1.0 to 15.0)" in demos.summary()


def test_arrays_are_read_only_and_the_users_stay_writeable():
    source = trajectory(0, 4)
    demos = load_demonstrations(source)
    for array in (demos.obs, demos.next_obs, demos.actions, demos.terminated, demos.rewards, demos.episode_lengths):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    source.obs[0] = 77.0
    assert demos.obs[0, 0] == 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        demos.obs = source.obs


def test_select_first_and_by_index(demos):
    first = demos.select(2)
    assert first.n_episodes == 2 and len(first) == 8 and first.episode_indices.tolist() == [0, 1]
    some = demos.select([2, 0])
    assert some.obs[:, 0].tolist() == [200, 0, 1, 2] and some.episode.tolist() == [0, 1, 1, 1]
    assert some.episode_indices.tolist() == [2, 0] and some.episode_returns.tolist() == [1.0, 6.0]
    assert some.select([1]).episode_indices.tolist() == [0]
    assert load_demonstrations(demos, n_demonstrations=np.int64(1)).episode_lengths.tolist() == [3]


@pytest.mark.parametrize("wrong", [0, 4, -1, [], [0, 0], [3], [-1]])
def test_select_refuses_what_is_not_there(demos, wrong):
    with pytest.raises(ValueError, match="has 3 episodes: pass"):
        demos.select(wrong)


@pytest.mark.parametrize("wrong", [True, 1.0, "2", [0.5], None])
def test_select_refuses_other_types(demos, wrong):
    with pytest.raises(ValueError, match="must be an integer"):
        demos.select(wrong)


def test_subsample_keeps_true_successors_and_original_steps(demos):
    sub = demos.subsample(2)
    assert sub.obs[:, 0].tolist() == [0, 2, 100, 102, 104, 200]
    assert sub.next_obs[:, 0].tolist() == [1, 3, 101, 103, 105, 201]
    assert sub.step.tolist() == [0, 2, 0, 2, 4, 0]
    assert (
        sub.subsampling == 2 and sub.episode_lengths.tolist() == [3, 5, 1] and sub.episode_returns.tolist() == [6.0, 15.0, 1.0]
    )
    assert sub.initial_obs[:, 0].tolist() == [0, 100, 200]
    assert "subsampled by 2 from 9" in sub.summary()


def test_subsample_keep_terminal_adds_terminated_steps_only(demos):
    assert demos.subsample(4).step.tolist() == [0, 0, 4, 0]
    kept = demos.subsample(3, keep_terminal=True)
    assert kept.step.tolist() == [0, 2, 0, 3, 0]  # episode 0 ends terminated at step 2, episode 1 truncated at step 4
    assert kept.terminated.tolist() == [False, True, False, False, True]
    assert "1 end not kept by subsampling" in kept.summary()


def test_subsample_twice_counts_kept_steps():
    demos = load_demonstrations(trajectory(0, 13))
    assert demos.subsample(2).subsample(3).step.tolist() == [0, 6, 12]
    assert_same(demos.subsample(2).subsample(3), demos.subsample(6))


@pytest.mark.parametrize("wrong", [0, -2, 1.5, "3", True])
def test_subsample_refuses(demos, wrong):
    with pytest.raises(ValueError, match=r"subsample is .* must be"):
        demos.subsample(wrong)


def test_one_transition_is_enough():
    demos = load_demonstrations(trajectory(0, 50), subsample=50)
    assert len(demos) == 1 and demos.step.tolist() == [0]


@pytest.mark.parametrize("as_type", [str, Path])
@pytest.mark.parametrize("name", ["demos.npz", "no_suffix", "new folder/d.npz"])
def test_save_and_load_bit_exact(demos, tmp_path, monkeypatch, as_type, name):
    monkeypatch.chdir(tmp_path)
    thinned = demos.subsample(2)
    assert thinned.save(as_type(name)) == Path(name)
    for again in (
        Demonstrations.load(as_type(name)),
        load_demonstrations(as_type(tmp_path / name)),
        load_demonstrations(as_type(name)),
    ):
        assert_same(again, thinned, but=("spec", "sha256"))
    assert again.spec == name and len(again.sha256) == 64
    assert not list(Path(tmp_path).rglob("*.npz.npz"))


def test_save_and_load_without_rewards_and_with_dict_and_odd_dtypes(tmp_path):
    obs = {
        "image": np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3),
        "a/b": np.array([0.1, -0.0, 1e300, np.pi]),
        "flag": np.array([1, 0, 1, 1], dtype=np.int8),
    }
    item = {"obs": obs, "acts": np.array([3, 1, 2], dtype=np.int16), "terminal": True}
    demos = load_demonstrations([item, item])
    demos.save(tmp_path / "d.npz")
    again = Demonstrations.load(tmp_path / "d.npz")
    assert_same(again, demos)
    assert again.rewards is None and again.episode_returns is None and again.obs["a/b"].dtype == np.float64
    assert "return" not in again.summary()


def test_saved_file_has_no_objects(demos, tmp_path):
    with np.load(demos.save(tmp_path / "d.npz"), allow_pickle=False) as archive:
        assert all(archive[key].dtype != object for key in archive.files)


def test_load_refuses_other_files(tmp_path, demos):
    with pytest.raises(FileNotFoundError, match=r"no demonstration file .*missing.npz"):
        Demonstrations.load(tmp_path / "missing.npz")
    np.savez(tmp_path / "other.npz", obs=np.zeros(3))
    with pytest.raises(ValueError, match=r"has the keys \['obs'\].*use load_demonstrations"):
        Demonstrations.load(tmp_path / "other.npz")
    arrays = dict(np.load(demos.save(tmp_path / "d.npz")))
    np.savez(tmp_path / "newer.npz", **(arrays | {"sb3_dualqdm_format": 99}))
    with pytest.raises(ValueError, match="format version 99 but 2 is read"):
        load_demonstrations(tmp_path / "newer.npz")
    del arrays["step"]
    np.savez(tmp_path / "short.npz", **arrays)
    with pytest.raises(ValueError, match="is incomplete"):
        load_demonstrations(tmp_path / "short.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.zeros((8, 1))}, "arrays of different lengths"),
        ({"obs": np.array([object()] * 9)}, "dtype object"),
        ({"actions": np.array(["left"] * 9)}, "only bool, integer and float"),
        ({"next_obs": np.zeros((9, 3))}, r"shape \(9, 2\) but next_obs \(9, 3\)"),
        ({"next_obs": {"x": np.zeros((9, 2))}}, "store the same keys in both"),
        ({"episode": np.array([0, 0, 0, 2, 2, 2, 2, 2, 2])}, "must count 0, 1, ..., 2"),
        ({"episode": np.array([0, 1, 0, 1, 1, 1, 1, 1, 2])}, "sort the rows by episode"),
        ({"episode_indices": np.arange(2)}, "need one value each"),
    ],
)
def test_structure_is_checked(demos, changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(demos, **changes)


def test_dicts_round_trip_and_refuse_gaps(demos):
    dicts = demos.to_dicts()
    assert (
        dicts[1]["obs"][:, 0].tolist() == [100, 101, 102, 103, 104, 105] and dicts[1]["truncated"] and not dicts[1]["terminal"]
    )
    assert_same(load_demonstrations(dicts), demos, but=("source", "spec", "sha256", "single_flag"))  # both flags are there
    with pytest.raises(ValueError, match="only some steps are kept"):
        demos.subsample(2).to_dicts()
    dicts[0]["acts"][0] = 5.0  # the caller's own copy
    # successors in an array of their own, NaN among them, are as good
    obs, following = np.array(demos.obs), np.array(demos.next_obs)
    obs[1, 0] = following[0, 0] = np.nan
    assert np.isnan(demos._replace(obs=obs, next_obs=following).to_dicts()[0]["obs"][1, 0])
    following[0, 1] += 1
    with pytest.raises(ValueError, match="next_obs are not the obs of the next step"):
        demos._replace(obs=obs, next_obs=following).to_dicts()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), min_size=1, max_size=5),
    st.integers(1, 4),
    st.booleans(),
)
def test_flatten_and_split_are_inverse(episodes, k, as_dict):
    items = []
    for i, (length, terminal, truncated) in enumerate(episodes):
        item = vars(trajectory(i, length, terminal)) | {"truncated": truncated}
        items.append(item | {"obs": {"x": item["obs"], "y": item["obs"][:, 0]}} if as_dict else item)
    demos = load_demonstrations(items)
    assert_same(load_demonstrations(demos.to_dicts()), demos)
    for original, again in zip(items, demos.to_dicts()):
        key = (lambda obs: obs["x"]) if as_dict else (lambda obs: obs)
        assert np.array_equal(key(again["obs"]), key(original["obs"])) and np.array_equal(again["acts"], original["acts"])
        assert again["terminal"] == original["terminal"]
        assert again["truncated"] == (original["truncated"] or not original["terminal"])
    lengths = [length for length, _, _ in episodes]
    assert len(demos.subsample(k)) == sum(-(-length // k) for length in lengths)
    assert np.array_equal(np.bincount(demos.episode), lengths)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_selection_is_the_same_as_loading_fewer(lengths, random):
    items = [trajectory(i, length) for i, length in enumerate(lengths)]
    chosen = random.sample(range(len(items)), random.randint(1, len(items)))
    selected = load_demonstrations(items, n_demonstrations=chosen)
    of_a_part = ("source", "spec", "sha256", "episode_indices", "notes")
    assert_same(selected, load_demonstrations([items[i] for i in chosen]), but=of_a_part)
    assert selected.episode_indices.tolist() == chosen
    everything = chosen == list(range(len(items)))
    assert selected.notes == (() if everything else (f"{len(chosen)} of {len(items)} episodes selected",))


def test_to_imitation_round_trip():
    types = pytest.importorskip("imitation.data.types")
    items = [
        vars(trajectory(0, 4)) | {"truncated": False},
        vars(trajectory(1, 4, False)),
        vars(trajectory(2, 3)) | {"truncated": True},
    ]
    demos = load_demonstrations(items)
    exported = demos.to_imitation()
    assert all(isinstance(item, types.TrajectoryWithRew) for item in exported)
    assert [item.terminal for item in exported] == [True, False, True]
    # 4 steps is the limit: episode 0 says in its infos that it ended for real
    again = load_demonstrations(exported, max_episode_steps=4)
    assert again.terminated[[3, 7, 10]].tolist() == [True, False, True]
    assert again.truncated[[3, 7, 10]].tolist() == [False, True, False]
    assert np.array_equal(again.obs, demos.obs) and np.array_equal(again.rewards, demos.rewards)
    plain = load_demonstrations({key: value for key, value in items[0].items() if key != "rews"}).to_imitation()
    assert type(plain[0]) is types.Trajectory
    dicts = load_demonstrations(items[0] | {"obs": {"x": items[0]["obs"]}})
    assert np.array_equal(load_demonstrations(dicts.to_imitation()).obs["x"], dicts.obs["x"])


@pytest.mark.skipif(importlib.util.find_spec("imitation") is not None, reason="imitation is installed")
def test_to_imitation_names_the_extra(demos):
    with pytest.raises(ImportError, match=r"sb3-dualqdm\[imitation\]"):
        demos.to_imitation()


def test_importing_demonstrations_does_not_import_torch():
    code = "import sys, sb3_dualqdm.demonstrations; print('torch' in sys.modules or 'stable_baselines3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"

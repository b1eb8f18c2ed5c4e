"""Readers: trajectories, flat arrays under their aliases, npz files and folders as imitation writes them."""

import hashlib
import importlib.util
import json
import pickle
import sys
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from small_episodes import ends, flat, last_flags, trajectory

from sb3_dualqdm import DualQDM, load_demonstrations
from sb3_dualqdm.demonstrations.files import file_sha256

pytestmark = pytest.mark.both


class Unpickled(Exception):
    """Raised by the payload below."""


def _boom():
    raise Unpickled


class Payload:
    """Executes code when unpickled."""

    def __reduce__(self):
        return _boom, ()


# --- trajectories ----------------------------------------------------------------------------------------------------------


def test_one_trajectory_or_many_objects_or_dicts():
    one = load_demonstrations(trajectory(0, 4))
    assert one.n_episodes == 1 and one.obs[:, 0].tolist() == [0, 1, 2, 3]
    as_dict = load_demonstrations(vars(trajectory(0, 4)))
    assert np.array_equal(as_dict.next_obs, one.next_obs) and last_flags(as_dict) == [(True, False)]
    for many in ((trajectory(i, 2) for i in range(3)), tuple(trajectory(i, 2) for i in range(3))):
        assert load_demonstrations(many).obs[:, 0].tolist() == [0, 1, 100, 101, 200, 201]


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("truncated", [False, True])
def test_all_four_flag_pairs(terminated, truncated):
    # a recording that stops without any flag was cut
    expected = [(terminated, truncated or not terminated)]
    item = trajectory(0, 3, terminated, truncated=truncated)
    assert last_flags(load_demonstrations([item])) == expected
    one = {"obs": item.obs, "acts": item.acts, "terminated": terminated, "truncated": truncated}
    assert last_flags(load_demonstrations(one, max_episode_steps=3)) == expected
    arrays = flat([3]) | {"terminated": ends([3], [terminated]), "truncated": ends([3], [truncated])}
    assert last_flags(load_demonstrations(arrays)) == expected
    assert last_flags(load_demonstrations(arrays, max_episode_steps=3)) == expected  # two flags are trusted


@pytest.mark.parametrize("form", [bool, np.bool_, lambda flag: np.array([flag])])
@pytest.mark.parametrize("following", [False, True])
@pytest.mark.parametrize("in_list", [False, True])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"terminated": True, "truncated": False}, (True, False)),
        ({"terminated": False, "truncated": True}, (False, True)),
        ({"terminated": True}, (True, False)),
        ({"terminal": True}, (True, False)),
        ({"done": True, "truncated": False}, (True, False)),
        ({"done": True, "terminated": False}, (False, True)),
        ({"truncated": True}, (False, True)),
        ({"truncated": False}, (False, True)),
    ],
)
def test_flags_of_a_whole_trajectory(flags, expected, in_list, following, form):
    item = vars(trajectory(0, 3)) | {"terminal": None}
    item = {key: value for key, value in item.items() if value is not None} | {key: form(flag) for key, flag in flags.items()}
    if following:
        item |= {"obs": item["obs"][:-1], "next_obs": item["obs"][1:]}
    demos = load_demonstrations([item, item] if in_list else item)
    assert last_flags(demos) == [expected] * (2 if in_list else 1) and demos.obs[:3, 0].tolist() == [0, 1, 2]
    assert np.asarray(demos.next_obs)[:3, 0].tolist() == [1, 2, 3]


def test_trajectories_among_batches_are_refused():
    batch, item = flat([2]) | {"dones": np.array([False, True])}, flat([2]) | {"terminated": True}
    for items in ([batch, item], [item, batch]):
        with pytest.raises(ValueError, match=r"terminal of trajectory . has 2 values, but it is one flag per trajectory"):
            load_demonstrations(items)


def test_time_limit_reinterpretation():
    items = [trajectory(0, 5), trajectory(1, 3), trajectory(2, 5, terminal=False), trajectory(3, 6)]
    assert last_flags(load_demonstrations(items)) == [(True, False), (True, False), (False, True), (True, False)]
    demos = load_demonstrations(items, max_episode_steps=5)
    assert last_flags(demos) == [(False, True), (True, False), (False, True), (True, False)]
    assert demos.reinterpreted.tolist() == [True, False, False, False]
    assert "1 terminal flag at the time limit read as truncation" in demos.summary()
    assert "read as truncation" not in demos.select([1]).summary()
    for limit in ("5", 0, float("nan")):
        with pytest.raises(ValueError, match=f"max_episode_steps is {limit!r} but a number of steps"):
            load_demonstrations(items, max_episode_steps=limit)


def test_a_limit_that_is_given_later_still_counts(tmp_path):
    """What was read, selected, subsampled and saved without it knows which of its flags are single ones."""
    items = [trajectory(0, 3), trajectory(1, 5), trajectory(2, 5, truncated=False), trajectory(3, 5)]
    first = load_demonstrations(items)
    assert last_flags(first) == [(True, False)] * 4 and first.single_flag.tolist() == [True, True, False, True]
    path = first.select([1, 2, 0]).subsample(2).save(tmp_path / "d.npz")
    for source in (path, load_demonstrations(path)):
        demos = load_demonstrations(source, max_episode_steps=5)
        assert last_flags(demos) == [(False, True), (True, False), (True, False)]
        assert demos.reinterpreted.tolist() == [True, False, False]
    env = TimeLimit(gym.make("Pendulum-v1").unwrapped, 5)
    episodes = [SimpleNamespace(obs=np.zeros((6, 3)), acts=np.zeros((5, 1)), terminal=True, infos=None)]
    model = DualQDM("MlpPolicy", env, demonstrations=load_demonstrations(episodes), device="cpu")
    assert last_flags(model.demo_buffer.demonstrations) == [(False, True)]


@pytest.mark.parametrize("container", [list, tuple, np.array])
def test_infos_decide_over_the_time_limit(container):
    def infos(flag):
        return container([{}, {}, {} if flag is None else {"TimeLimit.truncated": flag}])

    items = [trajectory(i, 3) for i in range(3)]
    for item, flag in zip(items, (True, False, None)):
        item.infos = infos(flag)
    demos = load_demonstrations(items, max_episode_steps=3)
    assert last_flags(demos) == [(False, True), (True, False), (False, True)]
    assert demos.reinterpreted.tolist() == [False, False, True]
    # without a limit too, what the infos say counts
    assert last_flags(load_demonstrations(items)) == [(False, True), (True, False), (True, False)]


def test_other_infos_are_never_looked_into():
    class Lazy:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise Unpickled

    item = trajectory(0, 3)
    item.infos = Lazy()
    assert last_flags(load_demonstrations([item], max_episode_steps=3)) == [(False, True)]


def test_dict_observations_by_mapping_by_list_of_dicts_and_by_unwrap():
    x, y = np.arange(4.0), np.arange(8, dtype=np.uint8).reshape(4, 2)
    as_mapping = {"x": x, "y": y}
    as_list = [{"x": x[i], "y": y[i]} for i in range(4)]
    like_imitation = SimpleNamespace(unwrap=lambda: as_mapping)
    for obs in (as_mapping, as_list, like_imitation):
        demos = load_demonstrations([{"obs": obs, "acts": np.zeros(3), "terminal": True}])
        assert demos.obs["x"].tolist() == [0, 1, 2] and demos.next_obs["y"].tolist() == [[2, 3], [4, 5], [6, 7]]
        assert demos.obs["y"].dtype == np.uint8
    with pytest.raises(ValueError, match=r"arrays of the shapes .*: store one row per step"):
        load_demonstrations([{"obs": {"x": x, "y": y[:2]}, "acts": np.zeros(3), "terminal": True}])
    with pytest.raises(ValueError, match="different observation keys"):
        load_demonstrations([{"obs": obs, "acts": np.zeros(3), "terminal": True} for obs in ({"x": x}, {"z": x})])


def test_equal_lengths_need_an_explicit_choice():
    items = [trajectory(0, 3), trajectory(1, 1), trajectory(2, 4, terminal=False)]
    for item in items:
        item.obs = item.obs[:-1]
    with pytest.raises(ValueError, match=r"episode 0 of .* has 3 obs and 3 acts.*drop_last=True"):
        load_demonstrations(items)
    demos = load_demonstrations(items, drop_last=True, max_episode_steps=3)
    assert demos.obs[:, 0].tolist() == [0, 1, 200, 201, 202] and demos.next_obs[:, 0].tolist() == [1, 2, 201, 202, 203]
    # the step that ended the episode is gone, and the 1-step episode with it
    assert last_flags(demos) == [(False, True), (False, True)] and not demos.reinterpreted.any()
    assert demos.episode_indices.tolist() == [0, 2] and demos.episode_lengths.tolist() == [3, 4]
    assert demos.episode_returns.tolist() == [6.0, 10.0] and demos.step.tolist() == [0, 1, 0, 1, 2]
    with pytest.raises(ValueError, match="only 1-step episodes"):
        load_demonstrations([items[1]], drop_last=True)


def test_drop_last_leaves_complete_episodes_alone():
    short = trajectory(0, 3)
    short.obs = short.obs[:-1]
    demos = load_demonstrations([trajectory(1, 2), short], drop_last=True)
    assert demos.next_obs[:, 0].tolist() == [101, 102, 1, 2] and last_flags(demos) == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((7, 2))}, r"episode 0 of .* has 7 obs and 3 acts"),
        ({"acts": np.zeros((0, 1))}, "episode 0 of .* has no action, but at least 1 step is needed"),
        ({"acts": np.array(["a", "b", "c"])}, "acts of trajectory 0 is not an array of numbers"),
        ({"obs": [[1.0], [1.0, 2.0], [1.0], [2.0]]}, "obs of trajectory 0 is not an array of numbers"),
        ({"rews": np.zeros(2)}, r"acts of the shape \(3, 1\) and rews of \(2,\)"),
        ({"terminal": np.zeros(3)}, "terminal of trajectory 0 has 3 values"),
        ({"truncated": np.array([False, True, False])}, "truncated of trajectory 0 has 3 values"),
        ({"terminal": None}, "is a SimpleNamespace without terminal"),
        ({"obs": None, "acts": None}, "without obs and acts"),
        ({"observations": np.zeros((4, 2))}, "both 'obs' and 'observations'"),
    ],
)
def test_wrong_trajectories(change, message):
    item = trajectory(0, 3)
    vars(item).update(change)
    with pytest.raises(ValueError, match=message):
        load_demonstrations([item])


@pytest.mark.parametrize("wrong", [[], None, 3, object()])
def test_wrong_sources(wrong):
    with pytest.raises(ValueError, match=f"of the type {type(wrong).__name__} hold no trajectory"):
        load_demonstrations(wrong)


def test_several_sources_are_loaded_one_by_one(tmp_path):
    parts = [load_demonstrations(trajectory(i, 2)) for i in range(2)]
    paths = [part.save(tmp_path / f"{i}.npz") for i, part in enumerate(parts)]
    for items, found in ((parts, "Demonstrations"), (paths, type(paths[0]).__name__), ([str(path) for path in paths], "str")):
        with pytest.raises(ValueError, match=rf"the demonstrations are 2 x {found}, but one source is loaded at a time"):
            load_demonstrations(items)
    together = load_demonstrations([episode for path in paths for episode in load_demonstrations(path).to_dicts()])
    assert together.obs[:, 0].tolist() == [0, 1, 100, 101]


def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"the path of the demonstrations is empty: pass an \.npz"):
        load_demonstrations("")


def test_tensors_with_gradients():
    torch = pytest.importorskip("torch")
    obs = torch.arange(3.0)[:, None].requires_grad_()
    for form in (obs, obs.to(torch.float16)):
        assert load_demonstrations({"obs": form, "acts": torch.zeros(2), "terminal": True}).next_obs.tolist() == [[1], [2]]
    for form, reason in ((list(obs), "requires grad"), (obs.to(torch.bfloat16), "BFloat16")):
        with pytest.raises(ValueError, match=rf"^obs of dict cannot be read as an array \([^.]*{reason}\): pass NumPy"):
            load_demonstrations({"obs": form, "acts": np.zeros(2), "terminal": True})


@pytest.mark.parametrize("key", ["obs", "acts", "rews", "next_obs"])
@pytest.mark.parametrize("rows", [False, True])
def test_masked_values_are_refused(key, rows):
    arrays = flat([3]) | {"rews": np.ones(3), "dones": ends([3], [True])}
    array = np.ma.masked_array(arrays[key])
    assert len(load_demonstrations(arrays | {key: array})) == 3  # nothing is masked
    array[1] = np.ma.masked
    with pytest.raises(ValueError, match=rf"^{key} of .* has {array[1].size} masked values?, but every step needs one"):
        load_demonstrations(arrays | {key: list(array) if rows else array})


def test_different_shapes_between_trajectories():
    other = trajectory(1, 3)
    other.obs = np.zeros((4, 3), dtype=np.float32)
    with pytest.raises(ValueError, match=r"obs has the shapes \(2,\) and \(3,\) per step"):
        load_demonstrations([trajectory(0, 3), other])


# --- flat arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("obs", ["obs", "observations", "states"])
@pytest.mark.parametrize("acts", ["acts", "actions"])
@pytest.mark.parametrize("following", ["next_obs", "next_observations", "next_states"])
@pytest.mark.parametrize("done", ["dones", "done", "terminals", "terminated"])
def test_aliases_of_flat_arrays(tmp_path, obs, acts, following, done):
    arrays = flat([2, 3])
    arrays = {obs: arrays["obs"], acts: arrays["acts"], following: arrays["next_obs"], done: ends([2, 3], [True, True])}
    np.savez(tmp_path / "d.npz", **arrays)
    for source in (arrays, tmp_path / "d.npz"):
        demos = load_demonstrations(source, max_episode_steps=2)
        assert demos.next_obs[:, 0].tolist() == [1, 2, 101, 102, 103] and demos.episode.tolist() == [0, 0, 1, 1, 1]
        # a lone flag may mean the limit, unless it has gymnasium's name
        assert last_flags(demos) == [(True, False) if done == "terminated" else (False, True), (True, False)]


def test_dones_with_truncated_and_terminals_with_timeouts():
    lengths, done, cut = [2, 1, 3], [True, True, True], [False, True, True]
    demos = load_demonstrations(flat(lengths) | {"dones": ends(lengths, done), "truncated": ends(lengths, cut)})
    assert last_flags(demos) == [(True, False), (False, True), (False, True)]  # dones says "either"
    both = load_demonstrations(
        flat(lengths) | {"terminals": ends(lengths, [True, False, True]), "timeouts": ends(lengths, cut)}
    )
    assert last_flags(both) == [(True, False), (False, True), (True, True)]


def test_time_limits_without_next_obs_and_rewards():
    lengths = [2, 3]
    chained = np.concatenate([trajectory(i, n).obs for i, n in enumerate(lengths)])
    arrays = {"obs": chained, "acts": flat(lengths)["acts"], "dones": ends(lengths, [True, True]), "rewards": np.ones((5, 1))}
    demos = load_demonstrations(arrays, max_episode_steps=3)
    assert demos.next_obs[:, 0].tolist() == [1, 2, 101, 102, 103] and last_flags(demos) == [(True, False), (False, True)]
    assert demos.episode_returns.tolist() == [2.0, 3.0] and demos.rewards.shape == (5,)


def test_sb3_recordings_with_episode_starts(tmp_path):
    lengths = [2, 3]
    arrays = flat(lengths)
    starts = np.array([True, False, True, False, False])
    np.savez(tmp_path / "sb3.npz", obs=arrays["obs"], actions=arrays["acts"], episode_starts=starts)
    with (
        pytest.warns(UserWarning, match="no dones, terminated or truncated"),
        pytest.raises(ValueError, match="drop_last=True"),
    ):
        load_demonstrations(tmp_path / "sb3.npz")
    with pytest.warns(UserWarning, match="read as cut off"):
        demos = load_demonstrations(tmp_path / "sb3.npz", drop_last=True)
    assert demos.obs[:, 0].tolist() == [0, 100, 101] and demos.next_obs[:, 0].tolist() == [1, 101, 102]
    assert last_flags(demos) == [(False, True), (False, True)]


def test_one_episode_without_any_flag():
    one = trajectory(0, 3)
    with pytest.warns(UserWarning, match="read as cut off"):
        demos = load_demonstrations({"obs": one.obs, "acts": one.acts})
    assert demos.n_episodes == 1 and last_flags(demos) == [(False, True)]


def test_unmarked_cut_is_found_where_successors_do_not_chain():
    lengths = [3, 2, 4]
    arrays = flat(lengths) | {"dones": ends(lengths, [False, True, False])}
    demos = load_demonstrations(arrays)
    assert demos.episode_lengths.tolist() == lengths and last_flags(demos) == [(False, True), (True, False), (False, True)]


def test_shuffled_transitions_are_single_steps_and_say_so():
    order = np.array([4, 1, 7, 2, 0, 6, 3, 5])
    arrays = {key: value[order] for key, value in flat([8]).items()} | {"dones": np.zeros(8)}
    with pytest.warns(UserWarning, match=r"7 of 8 transitions are not followed by their successor"):
        demos = load_demonstrations(arrays)
    assert demos.n_episodes == 8 and demos.next_obs[:, 0].tolist() == (order + 1).tolist()
    with pytest.warns(UserWarning, match=r"7 of 8 transitions are not followed by their successor"):
        demos = load_demonstrations(arrays | {"truncated": np.zeros(8)})
    assert demos.next_obs[:, 0].tolist() == (order + 1).tolist() and "7 rows not followed" in demos.notes[0]
    for convert in (demos.to_dicts, demos.to_imitation):
        if convert == demos.to_dicts or importlib.util.find_spec("imitation"):
            with pytest.raises(ValueError, match="next_obs are not the obs of the next step"):
                convert()


@pytest.mark.parametrize("key", ["obs", "next_obs", "acts", "dones", "terminated", "truncated", "rews"])
def test_rows_of_different_shapes_are_named(key):
    arrays = flat([3]) | {"dones": ends([3], [True]), key: [[1.0], [1.0, 0.0], [1.0]]}
    if key == "terminated":
        del arrays["dones"]
    with pytest.raises(ValueError, match=f"^{key.removesuffix('s') if key == 'dones' else key} of .* rows of one shape"):
        load_demonstrations(arrays)
    if key not in ("obs", "next_obs"):  # a data loader's batches
        with pytest.raises(ValueError, match="rows of one shape"):
            load_demonstrations([arrays, arrays])


def test_scalar_terminal_with_one_transition():
    arrays = {"obs": np.array([[0.0], [1.0]]), "acts": np.array([[0.5]]), "terminal": np.array(True)}
    assert last_flags(load_demonstrations(arrays)) == [(True, False)]
    with_both = flat([1]) | {"dones": np.array([True]), "truncated": np.array([True])}
    assert last_flags(load_demonstrations(with_both)) == [(False, True)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": None}, r"dict has .*'picture': \(5, 2\).* but obs or observations or states and acts or actions are needed"),
        ({"next_obs": np.zeros((4, 2))}, "5 obs, 4 next_obs and 5 acts"),
        ({"rewards": np.zeros(3)}, r"rewards of the shape \(3,\) but 5 actions"),
        ({"dones": np.full(5, 0.5)}, r"done of dict has the shape \(5,\), but 5 flags, each 0 or 1"),
        ({"dones": np.zeros(4)}, r"done of dict has the shape \(4,\), but 5 flags"),
        ({"acts": np.zeros((0, 1))}, "has no action"),
        ({"next_obs": None, "obs": np.zeros((9, 2))}, r"9 obs and 5 acts in 2 episodes, but 7 obs"),
    ],
)
def test_wrong_flat_arrays(change, message):
    arrays = flat([2, 3]) | {"dones": ends([2, 3], [True, True]), "picture": np.zeros((5, 2))} | change
    with pytest.raises(ValueError, match=message):
        load_demonstrations({key: value for key, value in arrays.items() if value is not None})


def test_transitions_by_attribute_with_infos():
    lengths = [2, 3]
    infos = np.array([{}, {"TimeLimit.truncated": True}, {}, {}, {"TimeLimit.truncated": False}])
    item = SimpleNamespace(**flat(lengths), dones=ends(lengths, [True, True]), infos=infos)
    assert last_flags(load_demonstrations(item, max_episode_steps=3)) == [(False, True), (True, False)]
    item.infos = np.array([{}] * 5)
    assert last_flags(load_demonstrations(item, max_episode_steps=3)) == [(True, False), (False, True)]


@pytest.mark.parametrize("container", [list, np.array])
def test_batches_keep_what_infos_say_about_the_time_limit(container):
    """Shuffled as by imitation's data loaders, whose batches hold a list of infos."""
    lengths = [3, 3]
    arrays = flat(lengths) | {"dones": ends(lengths, [True, True])}
    infos = np.array([{}, {}, {"TimeLimit.truncated": True}, {}, {}, {"TimeLimit.truncated": False}])
    parts = np.split(np.random.default_rng(0).permutation(6), [4])
    batches = [{key: value[rows] for key, value in arrays.items()} | {"infos": container(infos[rows])} for rows in parts]
    demos = load_demonstrations(batches, max_episode_steps=3)
    assert demos.terminated.sum() == 1 and demos.obs[demos.terminated].tolist() == [arrays["obs"][5].tolist()]


# --- npz files -------------------------------------------------------------------------------------------------------------


def legacy_npz(path: Path, items: list, infos: np.ndarray) -> None:
    """imitation's older format, written from its description."""
    np.savez(
        path,
        obs=np.concatenate([item.obs for item in items]),
        acts=np.concatenate([item.acts for item in items]),
        infos=infos,
        terminal=np.array([item.terminal for item in items]),
        rews=np.concatenate([item.rews for item in items]),
        indices=np.cumsum([len(item.acts) for item in items[:-1]]).astype(np.int64),
    )


def test_imitations_older_npz_without_touching_its_pickled_infos(tmp_path):
    items = [trajectory(0, 3), trajectory(1, 2, terminal=False), trajectory(2, 4)]
    legacy_npz(tmp_path / "old.npz", items, np.array([Payload()] * 9, dtype=object))
    with pytest.raises(Unpickled):
        np.load(tmp_path / "old.npz", allow_pickle=True)["infos"]
    demos = load_demonstrations(tmp_path / "old.npz", max_episode_steps=4)
    assert demos.obs[:, 0].tolist() == [0, 1, 2, 100, 101, 200, 201, 202, 203] and demos.next_obs[-1, 0] == 204
    assert last_flags(demos) == [(True, False), (False, True), (False, True)]
    assert demos.episode_returns.tolist() == [6.0, 3.0, 10.0]


def test_older_npz_with_one_trajectory(tmp_path):
    legacy_npz(tmp_path / "one.npz", [trajectory(0, 3)], np.array([{}] * 3))
    assert last_flags(load_demonstrations(tmp_path / "one.npz")) == [(True, False)]


@pytest.mark.parametrize("key", ["obs", "acts", "next_obs", "dones"])
def test_object_arrays_are_refused_not_executed(tmp_path, key):
    arrays = flat([2]) | {"dones": ends([2], [True])}
    arrays[key] = np.array([Payload()] * 2, dtype=object)
    np.savez(tmp_path / "evil.npz", **arrays)
    with pytest.raises(ValueError, match=rf"the array '{key}' of .*evil.npz holds pickled objects, which are never loaded"):
        load_demonstrations(tmp_path / "evil.npz")


def test_pickles_are_refused_not_executed(tmp_path):
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ValueError, match=r"evil.pkl is a pickle that .* asks for test_demonstrations_readers._boom"):
        load_demonstrations(tmp_path / "evil.pkl")


def test_a_declared_size_beyond_the_file_is_refused(tmp_path):
    arrays = flat([2]) | {"dones": ends([2], [True])}
    np.savez(tmp_path / "good.npz", **arrays)
    huge = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 4), }\n"
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(tmp_path / "bomb.npz", "w") as bomb:
        for info in good.infolist():
            content = good.read(info)
            if info.filename == "obs.npy":
                content = b"\x93NUMPY\x01\x00" + len(huge).to_bytes(2, "little") + huge
            bomb.writestr(info.filename, content)
    with pytest.raises(ValueError, match=r"the array 'obs' of .*bomb.npz declares 32000000000000 bytes, but at most"):
        load_demonstrations(tmp_path / "bomb.npz")


def test_the_largest_array_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr("sb3_dualqdm.demonstrations.files.MAX_MEMBER_BYTES", 100)
    np.savez(tmp_path / "d.npz", obs=np.zeros((11, 2)), acts=np.zeros(10), dones=np.zeros(10))
    with pytest.raises(ValueError, match=r"'obs' of .* declares 176 bytes, but at most 100 can be right"):
        load_demonstrations(tmp_path / "d.npz")


def test_damaged_npz_files(tmp_path):
    np.savez(tmp_path / "d.npz", obs=np.arange(2000.0), acts=np.zeros(1999), dones=np.zeros(1999))
    data = bytearray((tmp_path / "d.npz").read_bytes())
    data[1000:1010] = b"0123456789"
    (tmp_path / "d.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"the array 'obs' of .* cannot be read .*write the file again"):
        load_demonstrations(tmp_path / "d.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("obs.npy", "hello")
        archive.writestr("acts.npy", "hello")
    with pytest.raises(ValueError, match="cannot be read"):
        load_demonstrations(tmp_path / "text.npz")


def test_wrong_keys_in_a_file(tmp_path):
    np.savez(tmp_path / "d.npz", frames=np.zeros((3, 2)), keys=np.zeros(3))
    with pytest.raises(ValueError, match=r"d.npz has \['frames', 'keys'\], but obs or observations or states and acts"):
        load_demonstrations(tmp_path / "d.npz")


def test_dict_observations_in_npz(tmp_path):
    arrays = {"obs/x": np.arange(3.0), "obs/y": np.ones((3, 2)), "acts": np.zeros(2), "terminal": np.array(True)}
    np.savez(tmp_path / "d.npz", **arrays)
    demos = load_demonstrations(tmp_path / "d.npz")
    assert demos.obs["x"].tolist() == [0, 1] and demos.next_obs["x"].tolist() == [1, 2] and demos.obs["y"].shape == (2, 2)
    assert last_flags(demos) == [(True, False)] and demos.spec == str(tmp_path / "d.npz")


def test_missing_file_names_the_choices(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no demonstration file or folder 'nowhere.npz': pass an .npz, .*builtin:CartPole-v1"
    ):
        load_demonstrations("nowhere.npz")


def test_sha256_of_a_file(tmp_path):
    path = load_demonstrations(trajectory(0, 3)).save(tmp_path / "d.npz")
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_demonstrations(path).sha256 == file_sha256(str(path)) == expected


# --- imitation's folders ---------------------------------------------------------------------------------------------------


def write_folder(folder: Path, items: list, files: int = 1, obs_type=None, infos: str = "{}", **state) -> Path:
    """A folder in imitation's layout, written with pyarrow: one Arrow stream per file, infos as jsonpickle strings."""
    pa = pytest.importorskip("pyarrow")
    folder.mkdir()
    obs_type = obs_type or pa.list_(pa.list_(pa.float32()))
    names = []
    for i, part in enumerate(np.array_split(np.arange(len(items)), files)):
        chosen = [items[j] for j in part]
        columns = {
            "obs": pa.array([np.asarray(item.obs).tolist() for item in chosen], type=obs_type),
            "acts": pa.array([np.asarray(item.acts).tolist() for item in chosen]),
            "infos": pa.array([[infos] * len(item.acts) for item in chosen], type=pa.list_(pa.string())),
            "terminal": pa.array([item.terminal for item in chosen]),
            "rews": pa.array([item.rews.tolist() for item in chosen], type=pa.list_(pa.float64())),
        }
        table = pa.table(columns)
        names.append(f"data-{i:05d}-of-{files:05d}.arrow")
        with pa.OSFile(str(folder / names[-1]), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]} | state))
    return folder


EVIL_INFO = '{"py/reduce": [{"py/function": "os.abort"}, {"py/tuple": []}]}'


@pytest.mark.parametrize("files", [1, 2])
def test_imitation_folder(tmp_path, files):
    items = [trajectory(i, n, terminal=i != 1) for i, n in enumerate([3, 5, 1, 4, 2])]
    folder = write_folder(tmp_path / "demos", items, files, infos=EVIL_INFO)
    demos, expected = load_demonstrations(folder, max_episode_steps=4), load_demonstrations(items, max_episode_steps=4)
    for name in ("obs", "next_obs", "actions", "rewards", "terminated", "truncated", "episode", "step", "episode_returns"):
        assert np.array_equal(getattr(demos, name), getattr(expected, name)), name
    assert demos.reinterpreted.tolist() == [False, False, False, True, False] and demos.obs.dtype == np.float32
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.arrow")):
        digest.update(file.name.encode() + file.read_bytes())
    assert demos.sha256 == digest.hexdigest() == file_sha256(folder) and demos.spec == str(folder)


def test_imitation_folder_with_images_and_discrete_actions(tmp_path):
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    items = [
        SimpleNamespace(
            obs=rng.integers(0, 256, (n + 1, 2, 3, 1), dtype=np.uint8),
            acts=rng.integers(0, 4, n),
            rews=np.zeros(n),
            terminal=True,
        )
        for n in (2, 3)
    ]
    image = pa.list_(pa.list_(pa.list_(pa.list_(pa.uint8()))))
    demos = load_demonstrations(write_folder(tmp_path / "demos", items, obs_type=image))
    assert demos.obs.dtype == np.uint8 and demos.obs.shape == (5, 2, 3, 1) and demos.actions.shape == (5,)
    assert np.array_equal(demos.next_obs, np.concatenate([item.obs[1:] for item in items]))


def test_wrong_folders(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has no state.json \(imitation\), metadata.json \(Minari\) or meta/info.json"):
        load_demonstrations(tmp_path / "empty")
    folder = write_folder(tmp_path / "demos", [trajectory(0, 3), trajectory(1, 3)])
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../secret.arrow"}]}))
    (tmp_path / "secret.arrow").write_bytes((folder / "data-00000-of-00001.arrow").read_bytes())
    with pytest.raises(ValueError, match=r"has no state.json that lists its data files"):
        load_demonstrations(folder)
    broken = write_folder(tmp_path / "broken", [trajectory(0, 3)])
    (broken / "data-00000-of-00001.arrow").write_bytes(b"\x00" * 100 + b"not arrow")
    with pytest.raises(ValueError, match=r"data-00000-of-00001.arrow cannot be read"):
        load_demonstrations(broken)
    uneven = trajectory(0, 3)
    uneven.obs = np.array([[1.0], [2.0, 3.0], [4.0], [5.0]], dtype=object)
    with pytest.raises(ValueError, match="rows of different shapes"):
        load_demonstrations(write_folder(tmp_path / "uneven", [uneven]))


def test_folder_without_pyarrow(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "demos", [trajectory(0, 3)])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'needs pyarrow, which cannot be imported .*: pip install "sb3-dualqdm\[arrow\]"'):
        load_demonstrations(folder)


# --- imitation itself ------------------------------------------------------------------------------------------------------


def test_imitations_own_objects_and_folder(tmp_path):
    types = pytest.importorskip("imitation.data.types")
    from imitation.data import rollout, serialize

    items = [trajectory(0, 4), trajectory(1, 2, terminal=False), trajectory(2, 3)]
    real = [types.TrajectoryWithRew(obs=i.obs, acts=i.acts, infos=None, terminal=i.terminal, rews=i.rews) for i in items]
    serialize.save(tmp_path / "demos", real)
    expected = load_demonstrations(items, max_episode_steps=4)
    lazy = serialize.load(tmp_path / "demos")
    for source in (real, tmp_path / "demos", lazy):
        demos = load_demonstrations(source, max_episode_steps=4)
        for name in ("obs", "next_obs", "actions", "rewards", "terminated", "truncated", "step", "episode_returns"):
            assert np.array_equal(getattr(demos, name), getattr(expected, name)), name
    assert load_demonstrations(real[0]).n_episodes == 1
    transitions = load_demonstrations(rollout.flatten_trajectories(real), max_episode_steps=4)
    assert last_flags(transitions) == [(False, True), (False, True), (True, False)]
    assert np.array_equal(transitions.next_obs, expected.next_obs)
    minimal = types.TransitionsMinimal(obs=items[0].obs[:-1], acts=items[0].acts, infos=np.array([{}] * 4))
    with pytest.warns(UserWarning, match="read as cut off"), pytest.raises(ValueError, match="4 obs and 4 acts"):
        load_demonstrations(minimal)


def test_imitations_data_loader_keeps_time_limits():
    types = pytest.importorskip("imitation.data.types")
    from imitation.data import rollout
    from torch.utils.data import DataLoader

    limit = np.array([{}, {"TimeLimit.truncated": True}])
    items = [types.Trajectory(trajectory(i, 2).obs, trajectory(i, 2).acts, limit, terminal=True) for i in range(3)]
    transitions = rollout.flatten_trajectories(items)
    loader = DataLoader(transitions, 4, shuffle=True, collate_fn=types.transitions_collate_fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the order, which is chance
        assert not load_demonstrations(loader, max_episode_steps=2).terminated.any()


def test_imitations_lazy_infos_are_not_decoded():
    pytest.importorskip("imitation.data.types")
    from datasets import Dataset
    from imitation.data.huggingface_utils import TrajectoryDatasetSequence

    item = trajectory(0, 3)
    columns = {"obs": [item.obs.tolist()], "acts": [item.acts.tolist()], "terminal": [True], "rews": [item.rews.tolist()]}
    lazy = TrajectoryDatasetSequence(Dataset.from_dict(columns | {"infos": [[EVIL_INFO] * 3]}))  # decoding aborts the process
    assert last_flags(load_demonstrations(lazy, max_episode_steps=3)) == [(False, True)]


def test_imitations_dict_observations():
    types = pytest.importorskip("imitation.data.types")
    obs = types.DictObs({"x": np.arange(4.0), "y": np.ones((4, 2))})
    item = types.Trajectory(obs=obs, acts=np.zeros(3), infos=None, terminal=True)
    demos = load_demonstrations([item])
    assert demos.obs["x"].tolist() == [0, 1, 2] and demos.next_obs["x"].tolist() == [1, 2, 3]

"""The command line for demonstrations, the checks behind it, and the files it writes."""

import pickle
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from small_episodes import ends, flat, last_flags, trajectory
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_dualqdm import Demonstrations, collect_demonstrations, load_demonstrations
from sb3_dualqdm.demonstrations.checks import at_bounds, check_actions, check_demonstrations, replay
from sb3_dualqdm.demonstrations.writers import write_demonstrations
from sb3_dualqdm.demos import main

pytestmark = pytest.mark.both


def levels(demos: Demonstrations) -> dict[str, str]:
    return {finding.check: finding.level for finding in check_demonstrations(demos)}


def random_set(tmp_path, name: str = "d.npz", n: int = 3):
    path = tmp_path / name
    assert main(["collect", "random", "--env", "CartPole-v1", "-n", str(n), "--seed", "5", "-o", str(path)]) == 0
    return path


# --- checks ----------------------------------------------------------------------------------------------------------------


def test_good_demonstrations_pass():
    demos = load_demonstrations([trajectory(0, 30), trajectory(1, 40, terminal=False)])
    assert set(levels(demos).values()) == {"ok"}


def test_broken_successors():
    arrays = flat([4, 3]) | {"terminated": ends([4, 3], [True, False]), "truncated": ends([4, 3], [False, True])}
    arrays["next_obs"] = arrays["next_obs"].copy()
    arrays["next_obs"][1, 0] += 0.25
    demos = load_demonstrations(arrays)
    finding = next(f for f in check_demonstrations(demos) if f.check == "successors")
    assert finding.level == "problem" and finding.text.startswith("1 of 5 steps") and finding.text.endswith("up to 0.25")
    assert demos.notes == ("1 rows not followed by their successor inside an episode",)


def test_constant_rewards_suspicious_lengths_and_repetitions():
    items = [trajectory(0, 40), trajectory(1, 40), trajectory(2, 2), trajectory(3, 9), trajectory(0, 40)]
    for item in items:
        item.rews = np.ones(len(item.acts))
        item.obs = np.concatenate([item.obs, np.full((len(item.obs), 1), 3.0)], axis=1)
    found = {finding.check: finding for finding in check_demonstrations(load_demonstrations(items))}
    assert found["rewards"].level == "note" and "all 131 are 1" in found["rewards"].text
    assert found["lengths"].level == "note" and "episode 2 has 2 steps but the median is 40" in found["lengths"].text
    assert found["ends"].level == "note" and "3 episodes terminate at the same, longest length of 40" in found["ends"].text
    assert found["repeated episodes"] == ("repeated episodes", "problem", "episode 4 is the same as episode 0")
    assert found["constant numbers"].level == "note" and found["constant numbers"].text == "obs[2]"


def test_shuffled_transitions_are_a_problem():
    order = np.array([4, 1, 7, 2, 0, 6, 3, 5])
    with pytest.warns(UserWarning, match="7 of 8"):
        demos = load_demonstrations({key: value[order] for key, value in flat([8]).items()} | {"dones": np.zeros(8)})
    assert levels(demos)["lengths"] == "problem"


def test_actions_at_the_bounds():
    space = Box(np.array([-1, 0], dtype=np.float32), np.array([1, 10], dtype=np.float32))
    actions = np.array([[-1, 5], [1, 0], [0.5, 1], [0, 9.9999]], dtype=np.float32)
    assert at_bounds(actions, space).tolist() == [0.5, 0.5]
    both = np.array([[False, True], [True, True]])
    assert at_bounds(both, Box(np.zeros(2, bool), np.ones(2, bool), dtype=bool)).tolist() == [1.0, 1.0]
    assert at_bounds(np.array([[-128], [0], [0]]), Box(-128, 127, (1,), np.int8)).tolist() == [1 / 3]
    demos = load_demonstrations({"obs": np.arange(5.0)[:, None], "acts": actions, "terminal": True}, action_space=space)
    assert check_actions(demos, space).text == "50.0 % of numbers at the bounds, at most 50.0 % of one action"
    few = {"obs": np.arange(4.0), "acts": np.array([0, 2, 2]), "terminal": True}
    taken = load_demonstrations(few, action_space=Discrete(4))
    assert check_actions(taken, Discrete(4)) == ("actions", "note", "never taken: 1, 3")


# --- replay ----------------------------------------------------------------------------------------------------------------


def test_replay_finds_drift_in_observations_rewards_and_ends():
    rng = np.random.default_rng(0)
    demos = collect_demonstrations(lambda obs: int(rng.integers(2)), "CartPole-v1", 2, seed=3)
    env = gym.make("CartPole-v1")
    assert demos.seeds.tolist() == [3, 4] and [finding.level for finding in replay(demos, env)] == ["ok", "ok"]

    def levels_of(**changes) -> list[str]:
        return [(finding.level, finding.text) for finding in replay(demos._replace(**changes), env)]

    moved = np.array(demos.obs)
    moved[2, 1] += 0.5
    level, text = levels_of(obs=moved)[0]
    assert level == "problem" and text.startswith("the observation at step 2 differs by")
    rewards = demos.rewards.copy()
    rewards[1] = 7.0
    assert levels_of(rewards=rewards)[0] == ("problem", "the reward at step 1 is 1, stored is 7")
    assert "terminated=True" in levels_of(terminated=np.zeros(len(demos), dtype=bool), truncated=demos.terminated)[0][1]
    assert all(level == "problem" for level, _ in levels_of(seeds=np.array([8, 9])))
    assert len(levels_of(seeds=np.array([-1, 4]))) == 1
    with pytest.raises(ValueError, match="no recorded seeds"):
        levels_of(seeds=None)


@pytest.mark.parametrize(
    "space", [Box(-0.3, 0.7, (2,), np.float64), Box(-0.3, 0.7, (), np.float64), Box(0, 9, (1,), np.int64)]
)
@pytest.mark.parametrize("vectorised", [False, True])
def test_replayed_actions_are_the_recorded_ones_in_spaces_of_any_dtype(space, vectorised):
    class Chaos(gym.Env):
        """A logistic map nudged by the action: a difference of 1e-8 is seen after some 20 steps."""

        observation_space = Box(0, 1, (1,), np.float64)
        action_space = space

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.x, self.t = self.np_random.uniform(0.2, 0.8, 1), 0
            return self.x, {}

        def step(self, action):
            assert action.dtype == space.dtype and space.contains(np.asarray(action))
            self.x, self.t = np.clip(3.9 * self.x * (1 - self.x) + 0.01 * np.sum(action) / space.high.max(), 0, 1), self.t + 1
            return self.x, 0.0, self.t == 60, False, {}

    rng = np.random.default_rng(0)
    env = DummyVecEnv([Chaos]) if vectorised else Chaos()
    batch = (1,) if vectorised else ()
    demos = collect_demonstrations(lambda obs: rng.uniform(-0.5, 1.0, batch + space.shape), env, 2, seed=3)
    if vectorised:  # seeded once
        demos = demos.select(1)._replace(seeds=np.array([3]))
    assert {finding.level for finding in replay(demos, Chaos())} == {"ok"}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_replay_sees_single_numbers_of_any_dtype(dtype):
    class Still(gym.Env):
        """Every observation holds the largest and the smallest number; two steps."""

        observation_space = Box(0, 255, (2,), dtype)
        action_space = Discrete(2)
        shown = np.array([255, 0], dtype=dtype)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return self.shown, {}

        def step(self, action):
            self.t += 1
            return self.shown, 1.0, self.t == 2, False, {}

    demos = collect_demonstrations(lambda obs: 0, Still(), 1, seed=0)
    assert [finding.level for finding in replay(demos, Still())] == ["ok"]
    for column, value, difference in ((0, 254, 1 / 256), (1, 255, 255)):
        obs = np.array(demos.obs)
        obs[1, column] = value
        (finding,) = replay(demos._replace(obs=obs), Still())
        assert finding.level == "problem" and finding.text == f"the observation at step 1 differs by {difference:.3g}"
    if dtype is np.float32:  # an environment gone wrong
        broken = Still()
        broken.shown = np.full(2, np.nan, dtype)
        assert [finding.level for finding in replay(demos, broken)] == ["problem"]


# --- writers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ".h5", ".parquet", ".csv"])
@pytest.mark.parametrize("discrete", [False, True])
def test_every_format_that_is_written_is_read_back(tmp_path, suffix, discrete):
    pytest.importorskip({".npz": "numpy", ".hdf5": "h5py", ".h5": "h5py"}.get(suffix, "pyarrow"))
    items = [trajectory(0, 3), trajectory(1, 1, terminal=False), trajectory(2, 4)]
    space = Discrete(4) if discrete else Box(-1, 1, (1,), np.float32)
    for item in items:
        item.obs = item.obs + np.float32(1 / 3)
        item.acts = np.arange(len(item.acts)) % 4 if discrete else item.acts
    demos = load_demonstrations(items, observation_space=Box(-np.inf, np.inf, (2,)), action_space=space)
    path = write_demonstrations(demos, tmp_path / "new" / f"d{suffix}")
    again = load_demonstrations(path, observation_space=Box(-np.inf, np.inf, (2,)), action_space=space)
    for name in ("obs", "next_obs", "actions", "rewards", "terminated", "truncated", "episode", "step", "episode_returns"):
        a, b = np.asarray(getattr(demos, name)), np.asarray(getattr(again, name))
        assert a.dtype == b.dtype and np.array_equal(a, b), name


def test_what_cannot_be_written(tmp_path):
    demos = load_demonstrations([trajectory(0, 4)])
    with pytest.raises(ValueError, match=r"has the suffix '.txt', but .npz, .hdf5"):
        write_demonstrations(demos, tmp_path / "d.txt")
    with pytest.raises(ValueError, match="only some steps are kept"):
        write_demonstrations(demos.subsample(2), tmp_path / "d.hdf5")
    images = load_demonstrations([{"obs": np.zeros((3, 4, 4), dtype=np.uint8), "acts": np.zeros(2), "terminal": True}])
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="obs is not one vector per step"):
        write_demonstrations(images, tmp_path / "d.csv")


def test_dict_observations_and_images_in_hdf5(tmp_path):
    pytest.importorskip("h5py")
    obs = {"x": np.arange(4.0), "image": np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3)}
    demos = load_demonstrations([{"obs": obs, "acts": np.zeros((3, 1)), "terminal": True}])
    again = load_demonstrations(write_demonstrations(demos, tmp_path / "d.hdf5"))
    assert again.obs["image"].dtype == np.uint8 and np.array_equal(again.next_obs["image"], obs["image"][1:])
    assert np.array_equal(again.obs["x"], obs["x"][:-1]) and last_flags(again) == [(True, False)]


# --- command line ----------------------------------------------------------------------------------------------------------


def test_keys_with_a_slash_are_not_written_as_hdf5(tmp_path):
    pytest.importorskip("h5py")
    demos = load_demonstrations({"obs": {"arm/x": np.arange(3.0), "y": np.zeros(3)}, "acts": np.zeros(2), "terminal": True})
    with pytest.raises(ValueError, match=r"d\.hdf5 is an HDF5 file, .* obs has the key 'arm/x': write an \.npz file"):
        write_demonstrations(demos, tmp_path / "d.hdf5")
    assert not (tmp_path / "d.hdf5").exists()
    again = load_demonstrations(write_demonstrations(demos, tmp_path / "d.npz"))
    assert again.next_obs["arm/x"].tolist() == [1, 2]


def test_collect_info_check_convert_plot(tmp_path, capsys):
    pytest.importorskip("rich")
    path = random_set(tmp_path)
    demos = load_demonstrations(path)
    assert demos.n_episodes == 3 and demos.seeds.tolist() == [5, 6, 7] and demos.source.endswith("in CartPole-v1")
    assert demos.summary() in capsys.readouterr().out

    assert main(["info", str(path), "--env", "CartPole-v1", "--episodes", "2"]) == 0
    shown = capsys.readouterr().out
    for expected in ("float32 (4,)", f"{len(demos)}", "3 terminated, 0 cut", "5, ..., 7", "and 1 more"):
        assert expected in shown

    assert main(["check", str(path), "--env", "CartPole-v1"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("replay of episode") == 3 and "problem" not in shown and "fits CartPole-v1" in shown
    assert main(["check", str(path), "--env", "CartPole-v1", "--seed", "900"]) == 1
    assert "problem" in capsys.readouterr().out

    pytest.importorskip("pyarrow")
    assert main(["convert", str(path), str(tmp_path / "d.csv"), "-n", "2"]) == 0
    assert load_demonstrations(tmp_path / "d.csv").n_episodes == 2
    assert main(["check", str(tmp_path / "d.csv"), "--env", "CartPole-v1"]) == 0
    assert "no recorded seeds" in capsys.readouterr().out

    pytest.importorskip("matplotlib")
    assert main(["plot", str(path), "-o", str(tmp_path / "plots" / "d.png")]) == 0
    assert (tmp_path / "plots" / "d.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("key", ["[/x]", "[red]", ":warning:"])
def test_keys_and_sources_are_no_markup(tmp_path, capsys, key):
    pytest.importorskip("rich")
    item = {"obs": {key: np.zeros((4, 1))}, "acts": np.zeros((3, 1)), "terminal": True}
    path = load_demonstrations([item])._replace(source=f"source {key}").save(tmp_path / "d.npz")
    assert main(["info", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"observation {key}" in shown and f"source {key}" in shown
    assert main(["check", str(path)]) == 0
    assert f"{key}[0]" in capsys.readouterr().out


def test_built_in_sets_are_replayed_from_the_seeds_of_their_manifest(capsys):
    pytest.importorskip("rich")
    assert main(["check", "builtin:CartPole-v1", "--env", "CartPole-v1", "--replays", "1"]) == 0
    assert "500 steps agree" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kind", ["image", "dict", "box", "no rewards", "booleans", "boolean vectors"])
def test_plot_of_other_observations_and_actions(tmp_path, kind):
    pytest.importorskip("matplotlib")
    item = vars(trajectory(0, 5))
    if kind == "image":
        item["obs"] = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)
    elif kind == "dict":
        item["obs"] = {"x": np.arange(6.0), "y": np.ones((6, 50))}
    elif kind == "no rewards":
        item["rews"] = None
    elif kind.startswith("boolean"):
        item["obs"], item["acts"] = item["obs"] > 1, np.arange(5) % 2 == 0
        item["acts"] = np.stack([item["acts"]] * 2, axis=1) if kind == "boolean vectors" else item["acts"]
    path = load_demonstrations([item]).save(tmp_path / "d.npz")
    assert main(["plot", str(path), "-o", str(tmp_path / "d.png")]) == 0
    assert (tmp_path / "d.png").stat().st_size > 10_000


def test_collect_from_a_model_with_vec_normalize(tmp_path):
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    pytest.importorskip("rich")
    venv = VecNormalize(make_vec_env("CartPole-v1", 2))
    model = PPO("MlpPolicy", venv, n_steps=64, batch_size=64, device="cpu", seed=0).learn(128)
    model.save(tmp_path / "model.zip")
    venv.save(tmp_path / "vecnormalize.pkl")
    words = ["collect", str(tmp_path / "model.zip"), "--algo", "ppo", "--env", "CartPole-v1", "-n", "2", "--seed", "3"]
    words += ["--vec-normalize", str(tmp_path / "vecnormalize.pkl"), "-o", str(tmp_path / "d.npz")]
    assert main(words) == 0
    demos = load_demonstrations(tmp_path / "d.npz")
    assert demos.n_episodes == 2 and np.abs(demos.initial_obs).max() <= 0.05  # raw: CartPole starts within 0.05
    # from a seed each, by a model that saw them normalised
    assert demos.seeds.tolist() == [3, 4]
    for i, seed in enumerate((3, 4)):
        np.testing.assert_array_equal(demos.initial_obs[i], gym.make("CartPole-v1").reset(seed=seed)[0])
    seen = venv.normalize_obs(np.asarray(demos.obs))
    np.testing.assert_array_equal(demos.actions, model.predict(seen, deterministic=True)[0])
    assert not np.array_equal(demos.actions, model.predict(np.asarray(demos.obs), deterministic=True)[0])
    for more in ([], ["--seed", "3"]):
        assert main(["check", str(tmp_path / "d.npz"), "--env", "CartPole-v1", *more]) == 0


@pytest.mark.parametrize("output", ["d.txt", "d", "file/d.npz", "folder.npz", "d.csv", "d.hdf5"])
def test_what_cannot_be_written_is_not_recorded(tmp_path, capsys, monkeypatch, output):
    class Images(gym.Env):
        observation_space, action_space = Box(0, 255, (2, 2), np.uint8), Discrete(2)

        def reset(self, *, seed=None, options=None):
            raise AssertionError("recording has begun")

    monkeypatch.setattr(gym, "make", lambda env: Images())
    monkeypatch.setitem(sys.modules, "h5py", None)
    if output == "d.csv":
        pytest.importorskip("pyarrow")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.npz").mkdir()
    before = sorted(tmp_path.rglob("*"))
    words = ["collect", "random", "--env", "Images-v0", "-o", str(tmp_path / output)]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    reason = {
        "d.txt": "has the suffix '.txt', but .npz",
        "d": "has the suffix '', but .npz",
        "d.csv": "is a table, but obs is not one vector per step",
        "d.hdf5": "is an HDF5 file, and writing it needs h5py",
    }.get(output, "cannot be written (")
    assert line.startswith(f"error: {tmp_path / output} {reason}") and sorted(tmp_path.rglob("*")) == before


def test_files_that_are_no_model_or_no_statistics(tmp_path, capsys):
    paths = {name: str(tmp_path / name) for name in ("d.npz", "text", "list", "empty", "nowhere")}
    load_demonstrations([trajectory(0, 5)]).save(paths["d.npz"])  # a zip archive, as models are
    (tmp_path / "text").write_text("text")
    (tmp_path / "list").write_bytes(pickle.dumps([1]))
    (tmp_path / "empty").touch()
    words = ["--env", "CartPole-v1", "-n", "1", "-o", str(tmp_path / "out.npz")]
    for path in paths.values():
        assert main(["collect", path, "--algo", "ppo", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {path} cannot be loaded as a model of PPO (")
        assert main(["collect", "random", "--vec-normalize", path, *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {path} cannot be loaded as VecNormalize's statistics (")
    assert not (tmp_path / "out.npz").exists()


def test_errors_are_one_line_and_status_2(tmp_path, capsys):
    assert main(["info", str(tmp_path / "nowhere.npz")]) == 2
    assert main(["collect", "model.zip", "--algo", "gail", "--env", "CartPole-v1", "-o", str(tmp_path / "d.npz")]) == 2
    assert main(["check", "builtin:CartPole-v1", "--env", "NoEnv-v0"]) == 2
    assert main(["collect", "random", "--env", "NoEnv-v0", "-o", str(tmp_path / "d.npz")]) == 2
    first, second, *unknown = capsys.readouterr().err.strip().splitlines()
    assert len(unknown) == 2 and all(line.startswith("error: Environment `NoEnv` doesn't exist") for line in unknown)
    assert first.startswith("error: there is no demonstration file") and second.startswith("error: --algo is 'gail', but")
    with pytest.raises(SystemExit):
        main([])

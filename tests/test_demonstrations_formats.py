"""Every file format: a small file in the exact layout, by the real library's writer where there is one."""

import collections
import json
import pickle
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from small_episodes import ends, flat, last_flags, trajectory

from sb3_dualqdm import Demonstrations, load_demonstrations

pytestmark = pytest.mark.both
LENGTHS = [3, 2]


def check_episodes(demos: Demonstrations, lengths: list[int] = LENGTHS, rewards: bool = True) -> None:
    """The episodes of small_episodes.trajectory, whose numbers are known."""
    assert demos.episode_lengths.tolist() == lengths
    expected = [[100.0 * e + t, -100.0 * e - t] for e, n in enumerate(lengths) for t in range(n)]
    assert np.asarray(demos.obs).tolist() == expected
    assert np.asarray(demos.next_obs).tolist() == [[x + 1, y - 1] for x, y in expected]
    assert np.allclose(demos.actions.reshape(-1), [t / 10 for n in lengths for t in range(n)], atol=1e-7)
    assert demos.step.tolist() == [t for n in lengths for t in range(n)]
    if rewards:
        assert demos.rewards.tolist() == [t + 1.0 for n in lengths for t in range(n)]
        assert demos.episode_returns.tolist() == [n * (n + 1) / 2 for n in lengths]


def rewards(lengths: list[int] = LENGTHS) -> np.ndarray:
    return np.concatenate([np.arange(1.0, n + 1) for n in lengths])


# --- D4RL ------------------------------------------------------------------------------------------------------------------


def write_d4rl(path: Path, next_observations: bool = True, terminals: tuple = (True, False), timeouts: tuple = (False, True)):
    h5py = pytest.importorskip("h5py")
    arrays = flat(LENGTHS)
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = arrays["obs"], arrays["acts"]
        file["rewards"] = rewards().astype(np.float32)
        file["terminals"], file["timeouts"] = ends(LENGTHS, list(terminals)), ends(LENGTHS, list(timeouts))
        if next_observations:
            file["next_observations"] = arrays["next_obs"]
        file["infos/qpos"] = np.zeros((5, 3))
        file["metadata/algorithm"] = np.bytes_("SAC")
    return path


def test_d4rl(tmp_path):
    demos = load_demonstrations(write_d4rl(tmp_path / "hopper.hdf5"), max_episode_steps=3)
    check_episodes(demos)
    assert last_flags(demos) == [(True, False), (False, True)] and demos.spec == str(tmp_path / "hopper.hdf5")


def test_d4rl_without_next_observations_never_crosses_an_episode(tmp_path):
    path = write_d4rl(tmp_path / "d.hdf5", next_observations=False)
    with pytest.raises(ValueError, match=r"episode 0 of .*d.hdf5 has 3 obs and 3 acts.*drop_last=True"):
        load_demonstrations(path)
    demos = load_demonstrations(path, drop_last=True)
    assert demos.obs[:, 0].tolist() == [0, 1, 100] and demos.next_obs[:, 0].tolist() == [1, 2, 101]
    assert last_flags(demos) == [(False, True), (False, True)]


def test_d4rl_time_limit_with_both_flags_is_a_termination(tmp_path):
    path = write_d4rl(tmp_path / "d.hdf5", terminals=(True, True), timeouts=(True, False))
    assert last_flags(load_demonstrations(path)) == [(True, True), (True, False)]


# --- robomimic -------------------------------------------------------------------------------------------------------------


def write_robomimic(path: Path, numbers: tuple = (0, 1), next_obs: bool = True, extra_done: bool = False) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift"})
        for number, (episode, n) in sorted(zip(numbers, enumerate(LENGTHS)), reverse=True):
            item, demo = trajectory(episode, n), data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = n
            demo["actions"], demo["rewards"] = item.acts, item.rews
            demo["dones"] = np.arange(n) == n - 1 if episode == 0 else np.zeros(n, dtype=int)
            if extra_done and episode == 0:
                demo["dones"][1] = 1
            demo["states"] = np.zeros((n, 7))
            for key, column in (("object", 0), ("eef", 1)):
                demo[f"obs/{key}"] = item.obs[:-1, column : column + 1]
                if next_obs:
                    demo[f"next_obs/{key}"] = item.obs[1:, column : column + 1]
        file["mask/train"] = np.array([b"demo_0"])
    return path


@pytest.mark.parametrize("numbers", [(0, 1), (2, 10)])
def test_robomimic(tmp_path, numbers):
    demos = load_demonstrations(write_robomimic(tmp_path / "low_dim.hdf5", numbers))
    assert demos.obs["object"].tolist() == [[0], [1], [2], [100], [101]]
    assert np.asarray(demos.next_obs["eef"]).tolist() == [[-1], [-2], [-3], [-101], [-102]]
    assert last_flags(demos) == [(True, False), (False, True)] and demos.rewards.tolist() == [1, 2, 3, 1, 2]
    assert np.allclose(demos.actions[:, 0], [0, 0.1, 0.2, 0, 0.1])


def test_robomimic_done_before_the_end_is_reported(tmp_path):
    with pytest.warns(UserWarning, match="has 1 dones inside its demonstrations"):
        demos = load_demonstrations(write_robomimic(tmp_path / "d.hdf5", extra_done=True))
    assert demos.episode_lengths.tolist() == LENGTHS


def test_robomimic_without_next_obs(tmp_path):
    path = write_robomimic(tmp_path / "d.hdf5", next_obs=False)
    with pytest.raises(ValueError, match="drop_last=True"):
        load_demonstrations(path)
    assert load_demonstrations(path, drop_last=True).next_obs["object"].tolist() == [[1], [2], [101]]


# --- Minari ----------------------------------------------------------------------------------------------------------------


def write_minari_layout(folder: Path) -> Path:
    """Minari's HDF5 layout, written from its description, with more than ten episodes so that their order matters."""
    h5py = pytest.importorskip("h5py")
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data" / "main_data.hdf5", "w", track_order=True) as file:
        for i in range(11):
            item, group = trajectory(i, 2), file.create_group(f"episode_{i}")
            group.attrs.update({"id": i, "seed": 50 + i, "total_steps": 2})
            group["observations"], group["actions"], group["rewards"] = item.obs, item.acts, item.rews
            group["terminations"], group["truncations"] = np.array([False, i != 4]), np.array([False, i == 4])
            group["infos/success"] = np.zeros(3)
    (folder / "data" / "metadata.json").write_text(
        json.dumps({"total_episodes": 11, "total_steps": 22, "data_format": "hdf5", "dataset_id": "in/house-v0"})
    )
    return folder


@pytest.mark.parametrize("which", ["folder", "data", "file", "id"])
def test_minari_layout_without_minari_or_env(tmp_path, monkeypatch, which):
    folder = write_minari_layout(tmp_path / "sets" / "in" / "house-v0")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    source = {
        "folder": folder,
        "data": folder / "data",
        "file": folder / "data" / "main_data.hdf5",
        "id": "minari:in/house-v0",
    }[which]
    demos = load_demonstrations(source)
    check_episodes(demos, [2] * 11)
    assert last_flags(demos)[4] == (False, True) and last_flags(demos)[5] == (True, False)
    assert demos.seeds.tolist() == list(range(50, 61)) and demos.select([3]).seeds.tolist() == [53]


def test_minari_id_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"'mujoco/hopper/expert-v0' is not in .*minari download mujoco/hopper/expert"):
        load_demonstrations("minari:mujoco/hopper/expert-v0")
    with pytest.raises(ValueError, match="is not a dataset id"):
        load_demonstrations("minari:../../etc")


MINARI_OBS = {
    "plain": (spaces.Box(-np.inf, np.inf, (2,), np.float32), lambda t: np.stack([t, -t], axis=1).astype(np.float32)),
    "dict": (
        spaces.Dict({"x": spaces.Box(-np.inf, np.inf, (1,), np.float32), "n": spaces.Discrete(99)}),
        lambda t: {"x": t[:, None].astype(np.float32), "n": t},
    ),
    "image": (
        spaces.Box(0, 255, (48, 48, 3), np.uint8),
        lambda t: np.broadcast_to(t.astype(np.uint8)[:, None, None, None], (len(t), 48, 48, 3)),
    ),
}


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.parametrize("kind", list(MINARI_OBS))
def test_minaris_own_writer(tmp_path, monkeypatch, data_format, kind):
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space, observations = MINARI_OBS[kind]
    episodes = [
        EpisodeBuffer(
            id=i,
            seed=7 + i,
            observations=observations(np.arange(n + 1)),
            actions=trajectory(i, n).acts,
            rewards=list(range(1, n + 1)),
            terminations=[False] * (n - 1) + [i == 0],
            truncations=[False] * (n - 1) + [i == 1],
            infos={},
        )
        for i, n in enumerate(LENGTHS)
    ]
    made = minari.create_dataset_from_buffers(
        "own/counter-v0",
        episodes,
        observation_space=space,
        action_space=spaces.Box(-1, 1, (1,), np.float32),
        description="counts",
        data_format=data_format,
    )
    monkeypatch.setattr("gymnasium.make", None)  # the environment is never needed
    for source in (made, minari.load_dataset("own/counter-v0"), "minari:own/counter-v0", tmp_path / "own" / "counter-v0"):
        demos = load_demonstrations(source)
        assert demos.episode_lengths.tolist() == LENGTHS and last_flags(demos) == [(True, False), (False, True)]
        assert np.allclose(demos.actions[:, 0], [0, 0.1, 0.2, 0, 0.1]) and demos.rewards.tolist() == [1, 2, 3, 1, 2]
        assert demos.seeds.tolist() == [7, 8]
        if kind == "dict":
            assert demos.obs["n"].tolist() == [0, 1, 2, 0, 1] and demos.next_obs["x"].tolist() == [[1], [2], [3], [1], [2]]
        elif kind == "image":
            assert demos.obs.shape == (5, 48, 48, 3) and demos.obs.dtype == np.uint8
            assert np.abs(demos.next_obs[:, 0, 0, 0].astype(int) - [1, 2, 3, 1, 2]).max() <= 1  # JPEG
        else:
            assert demos.next_obs[:, 0].tolist() == [1, 2, 3, 1, 2]


# --- IQ-Learn and Dual Q-DM ------------------------------------------------------------------------------------------------


def iq_learn(as_lists: bool) -> dict:
    """states, next_states, actions, rewards, dones, lengths: one entry per episode under each name, and per step in it."""
    expert = collections.defaultdict(list)
    for episode, n in enumerate(LENGTHS):
        item = trajectory(episode, n)
        values = {"states": item.obs[:-1], "next_states": item.obs[1:], "actions": item.acts, "rewards": item.rews}
        values["dones"] = np.arange(n) == n - 1
        for key, array in values.items():
            expert[key].append(list(array) if as_lists else array)
        expert["lengths"].append(n)
    return expert


@pytest.mark.parametrize("as_lists", [False, True])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_iq_learn_pickle(tmp_path, as_lists, protocol):
    (tmp_path / "Hopper-v2_25.pkl").write_bytes(pickle.dumps(iq_learn(as_lists), protocol))
    demos = load_demonstrations(tmp_path / "Hopper-v2_25.pkl", max_episode_steps=3)
    check_episodes(demos)
    assert last_flags(demos) == [(False, True), (True, False)]  # its flag is set at the limit too
    assert demos.obs.dtype == np.float32


def test_iq_learn_npy(tmp_path):
    np.save(tmp_path / "expert.npy", dict(iq_learn(False)), allow_pickle=True)
    check_episodes(load_demonstrations(tmp_path / "expert.npy"))
    np.save(tmp_path / "plain.npy", np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"plain.npy is one array of the shape \(4, 3\), but demonstrations need obs and"):
        load_demonstrations(tmp_path / "plain.npy")


def test_iq_learn_in_memory_padded_and_wrong():
    padded = {
        key: np.stack([np.concatenate([part, part[-1:] * 0 + 9])[:3] for part in parts]) if key != "lengths" else parts
        for key, parts in iq_learn(False).items()
    }
    padded["dones"] = np.array([[0, 0, 1], [0, 1, 0]])
    check_episodes(load_demonstrations(padded))  # the rows beyond each length do not count
    with pytest.raises(ValueError, match=r"obs of episode 1 .* has 3 rows but the length 4"):
        load_demonstrations(padded | {"lengths": [3, 4]})
    with pytest.raises(ValueError, match="has not one entry for each of 3 lengths"):
        load_demonstrations(padded | {"lengths": [3, 2, 2]})
    with pytest.raises(ValueError, match=r"done of episode 0 .* is set before the episode's end"):
        load_demonstrations(padded | {"dones": np.array([[0, 1, 1], [0, 1, 0]])})


# --- ValueDICE, LS-IQ ------------------------------------------------------------------------------------------------------


def test_value_dice_npz(tmp_path):
    arrays = flat(LENGTHS)
    np.savez(
        tmp_path / "Hopper-v2.npz",
        states=arrays["obs"],
        actions=arrays["acts"],
        next_states=arrays["next_obs"],
        dones=ends(LENGTHS, [True, True]).astype(np.float32),
    )
    demos = load_demonstrations(tmp_path / "Hopper-v2.npz", max_episode_steps=3)
    check_episodes(demos, rewards=False)
    assert last_flags(demos) == [(False, True), (True, False)] and demos.rewards is None


def test_ls_iq_npz(tmp_path):
    arrays = flat(LENGTHS)
    np.savez(
        tmp_path / "expert.npz",
        states=arrays["obs"],
        actions=arrays["acts"],
        next_states=arrays["next_obs"],
        absorbing=ends(LENGTHS, [True, False]),
        last=ends(LENGTHS, [True, True]),
        episode_returns=np.array([6.0, 3.0]),
    )
    demos = load_demonstrations(tmp_path / "expert.npz", max_episode_steps=3)
    check_episodes(demos, rewards=False)
    assert last_flags(demos) == [(True, False), (False, True)]  # absorbing is a real end, whatever the length


# --- Stable-Baselines3's replay buffers ------------------------------------------------------------------------------------


def fill(buffer, lengths=LENGTHS, n_envs=1, time_limit=(False, True), as_dict=False):
    """The episodes one after the other, the same in each environment."""

    def wrap(row):
        row = np.repeat(row[None], n_envs, axis=0)
        return {"x": row} if as_dict else row

    for episode, n in enumerate(lengths):
        item = trajectory(episode, n)
        for t in range(n):
            done = t == n - 1
            buffer.add(
                wrap(item.obs[t]),
                wrap(item.obs[t + 1]),
                np.repeat(item.acts[t][None], n_envs, axis=0),
                np.full(n_envs, item.rews[t]),
                np.full(n_envs, done),
                [{"TimeLimit.truncated": done and time_limit[episode]}] * n_envs,
            )
    return buffer


UNIT = spaces.Box(-1, 1, (1,), np.float32)


def replay_buffer(size=20, n_envs=1, space=UNIT, kind="ReplayBuffer", **kwargs):
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    obs_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    if kind == "DictReplayBuffer":
        obs_space = spaces.Dict({"x": obs_space})
    return getattr(buffers, kind)(size, obs_space, space, device="cpu", n_envs=n_envs, **kwargs)


def saved(buffer, path):
    from stable_baselines3.common.save_util import save_to_pkl

    save_to_pkl(path, buffer)
    return path


def test_replay_buffer_object_and_pickle(tmp_path):
    buffer = fill(replay_buffer())
    for source in (buffer, saved(buffer, tmp_path / "replay.pkl")):
        demos = load_demonstrations(source)
        check_episodes(demos)
        assert last_flags(demos) == [(True, False), (False, True)]


def test_replay_buffer_actions_are_scaled_back():
    space = spaces.Box(np.array([-2.0], dtype=np.float32), np.array([6.0], dtype=np.float32))
    space.sample()  # with a generator in its pickle
    demos = load_demonstrations(fill(replay_buffer(space=space)))
    # SB3 stores 2 (a - low) / (high - low) - 1, so 0, 0.1, 0.2 stand for 2, 2.4, 2.8
    assert np.allclose(demos.actions[:, 0], [2, 2.4, 2.8, 2, 2.4])
    wrong = fill(replay_buffer(space=space))
    wrong.actions[0] = 5.0
    with pytest.raises(ValueError, match=r"has actions up to 5, but SB3's algorithms store them scaled to \[-1, 1\]"):
        load_demonstrations(wrong)


def test_replay_buffer_that_went_round(tmp_path):
    # size 4: of 3 + 2 steps the first is overwritten, so what is left of its episode has no beginning
    buffer = fill(replay_buffer(size=4))
    for source in (buffer, saved(buffer, tmp_path / "replay.pkl")):
        demos = load_demonstrations(source)
        assert demos.obs[:, 0].tolist() == [100, 101] and demos.next_obs[:, 0].tolist() == [101, 102]
    with pytest.raises(ValueError, match="only a piece of one episode"):
        load_demonstrations(fill(replay_buffer(size=2), lengths=[3], time_limit=(True,)))
    with pytest.raises(ValueError, match="is an empty replay buffer"):
        load_demonstrations(replay_buffer())


def test_replay_buffer_of_two_environments_and_dicts(tmp_path):
    buffer = fill(replay_buffer(kind="DictReplayBuffer", n_envs=2), n_envs=2, as_dict=True)
    for source in (buffer, saved(buffer, tmp_path / "replay.pkl")):
        demos = load_demonstrations(source)
        assert demos.episode_lengths.tolist() == [3, 2, 3, 2] and demos.obs["x"][:, 0].tolist() == [0, 1, 2, 100, 101] * 2


def test_replay_buffer_without_successors_needs_a_choice():
    buffer = fill(replay_buffer(optimize_memory_usage=True, handle_timeout_termination=False))
    with pytest.raises(ValueError, match="drop_last=True"):
        load_demonstrations(buffer)
    demos = load_demonstrations(buffer, drop_last=True)
    assert demos.next_obs[:, 0].tolist() == [1, 2, 101]


def test_replay_buffer_without_time_limits_has_a_single_flag():
    buffer = fill(replay_buffer(handle_timeout_termination=False))
    assert last_flags(load_demonstrations(buffer, max_episode_steps=3)) == [(False, True), (True, False)]


def test_replay_buffer_that_an_algorithm_saved(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.SAC("MlpPolicy", "Pendulum-v1", buffer_size=300, learning_starts=1000, seed=0, device="cpu").learn(250)
    model.save_replay_buffer(tmp_path / "replay")
    demos = load_demonstrations(
        tmp_path / "replay.pkl", observation_space=model.observation_space, action_space=model.action_space
    )
    assert demos.episode_lengths.tolist() == [200, 50] and last_flags(demos) == [(False, True), (False, True)]
    env = gym.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    cos, sin, speed = demos.obs[10]
    env.state = np.array([np.arctan2(sin, cos), speed])
    following, reward = env.step(demos.actions[10])[:2]  # only the true torque, between -2 and 2, leads there
    assert np.allclose(following, demos.next_obs[10], atol=1e-5) and reward == pytest.approx(demos.rewards[10], abs=1e-4)


def test_hindsight_replay_buffer(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.envs import BitFlippingEnv
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=4, continuous=True, max_steps=4)])
    env.seed(0)
    buffer = sb3.HerReplayBuffer(100, env.observation_space, env.action_space, env, device="cpu", copy_info_dict=True)
    obs, first, actions = env.reset(), [], []
    for _ in range(9):
        action = np.array([env.action_space.sample()])
        following, reward, done, infos = env.step(action)
        true = {key: infos[0]["terminal_observation"][key][None] if done[0] else value for key, value in following.items()}
        buffer.add(obs, true, action, reward, done, infos)
        first.append(obs["observation"][0].copy())
        actions.append(action[0])
        obs = following
    for source in (buffer, saved(buffer, tmp_path / "her.pkl")):
        demos = load_demonstrations(source)
        assert sorted(demos.obs) == ["achieved_goal", "desired_goal", "observation"]
        assert np.array_equal(demos.obs["observation"], first) and np.allclose(demos.actions, actions, atol=1e-6)


# --- imitation's older pickles ---------------------------------------------------------------------------------------------


def test_imitations_older_pickle(tmp_path):
    types = pytest.importorskip("imitation.data.types")
    items = [trajectory(0, 3), trajectory(1, 2, terminal=False)]
    infos = [np.array([{}] * 2 + [{"TimeLimit.truncated": True}]), None]
    real = [
        types.TrajectoryWithRew(obs=item.obs, acts=item.acts, infos=info, terminal=item.terminal, rews=item.rews)
        for item, info in zip(items, infos)
    ]
    (tmp_path / "final.pkl").write_bytes(pickle.dumps(real))
    demos = load_demonstrations(tmp_path / "final.pkl")
    check_episodes(demos)
    assert last_flags(demos) == [(False, True), (False, True)]
    in_dicts = [types.Trajectory(obs=types.DictObs({"x": np.arange(4.0)}), acts=np.zeros(3), infos=None, terminal=True)]
    (tmp_path / "dicts.pkl").write_bytes(pickle.dumps(in_dicts))
    assert load_demonstrations(tmp_path / "dicts.pkl").next_obs["x"].tolist() == [1, 2, 3]


# --- tables ----------------------------------------------------------------------------------------------------------------


def columns(next_obs: bool = True) -> dict:
    arrays = flat(LENGTHS)
    table = {"episode": np.repeat([0, 1], LENGTHS), "step": np.concatenate([np.arange(n) for n in LENGTHS])}
    for name, array in (("obs", arrays["obs"]), ("next_obs", arrays["next_obs"]), ("action", arrays["acts"])):
        if next_obs or name != "next_obs":
            table |= {f"{name}_{i}": array[:, i] for i in range(array.shape[1])}
    return table | {
        "reward": rewards(),
        "terminated": ends(LENGTHS, [True, False]),
        "truncated": ends(LENGTHS, [False, True]),
        "comment": np.array(["a", "b", "c", "d", "e"]),
    }


def write_table(table: dict, path: Path):
    pa = pytest.importorskip("pyarrow")
    arrow = pa.table({key: list(value) if np.ndim(value) > 1 else value for key, value in table.items()})
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(arrow, path)
    else:
        pytest.importorskip("pyarrow.csv").write_csv(arrow, path)
    return path


@pytest.mark.parametrize("kind", ["t.csv", "t.parquet", "DataFrame", "Table"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_tables(tmp_path, kind, shuffled):
    pa = pytest.importorskip("pyarrow")
    order = np.array([3, 1, 4, 0, 2]) if shuffled else np.arange(5)
    table = {key: value[order] for key, value in columns().items()}
    if kind == "DataFrame":
        source = pytest.importorskip("pandas").DataFrame(table)
    else:
        source = pa.table(table) if kind == "Table" else write_table(table, tmp_path / kind)
    demos = load_demonstrations(source)
    check_episodes(demos)
    assert last_flags(demos) == [(True, False), (False, True)]


@pytest.mark.parametrize("kind", ["t.parquet", "DataFrame"])
def test_tables_with_vectors_in_cells(tmp_path, kind):
    table = {key: value for key, value in columns().items() if "obs" not in key and "action" not in key}
    arrays = flat(LENGTHS)
    table |= {"observation": list(arrays["obs"]), "next_observation": list(arrays["next_obs"]), "action": list(arrays["acts"])}
    if kind == "DataFrame":
        source = pytest.importorskip("pandas").DataFrame(table)
    else:
        source = write_table(table, tmp_path / kind)
    check_episodes(load_demonstrations(source))


@pytest.mark.parametrize("types", ["numpy", "nullable", "object"])
def test_gaps_in_the_types_of_pandas(types):
    """The last row of each episode holds the final observation; all else in it is missing."""
    pandas = pytest.importorskip("pandas")
    rows = []
    for episode, n in enumerate(LENGTHS):
        for t in range(n + 1):
            step = [t / 10, t + 1, t == n - 1 and episode == 0, t == n - 1 and episode == 1] if t < n else [None] * 4
            rows.append([episode, t, 100.0 * episode + t, -100.0 * episode - t, *step])
    names = ["episode", "step", "obs_0", "obs_1", "action_0", "reward", "terminated", "truncated"]
    table = pandas.DataFrame(rows, columns=names)
    if types == "nullable":
        table = table.convert_dtypes()
        assert str(table["terminated"].dtype) == "boolean" and str(table["reward"].dtype) == "Int64"
    demos = load_demonstrations(table.astype(object) if types == "object" else table)
    check_episodes(demos)
    assert last_flags(demos) == [(True, False), (False, True)]


def test_table_whose_episodes_are_cut_without_a_flag():
    pandas = pytest.importorskip("pandas")
    table = {key: value for key, value in columns().items() if key not in ("episode", "step", "truncated", "comment")}
    table["terminated"] = ends(LENGTHS, [False, True])
    demos = load_demonstrations(pandas.DataFrame(table))
    check_episodes(demos)
    assert last_flags(demos) == [(False, True), (True, False)]
    assert demos.notes == ("1 rows not followed by their successor without a flag, read as cut there",)
    order = np.array([3, 1, 4, 0, 2])
    with pytest.warns(UserWarning, match="3 of 5 transitions are not followed by their successor"):
        demos = load_demonstrations(pandas.DataFrame({key: value[order] for key, value in table.items()}))
    assert demos.n_episodes == 5 and np.array_equal(demos.next_obs, flat(LENGTHS)["next_obs"][order])


def test_table_with_a_last_row_without_action_and_keys(tmp_path):
    table = {"t": [], "obs.x": [], "obs.y": [], "act": [], "reward": [], "done": []}
    for episode, n in enumerate(LENGTHS):
        for t in range(n + 1):
            row = (t, 100 * episode + t, -t, t / 10 if t < n else np.nan, t + 1 if t < n else np.nan, t == n)
            for name, value in zip(table, row):
                table[name].append(value)
    path = tmp_path / "t.csv"
    lines = [",".join("" if value != value else str(value) for value in row) for row in zip(*table.values())]
    path.write_text("\n".join([",".join(table), *lines]))
    pytest.importorskip("pyarrow")
    demos = load_demonstrations(path)
    assert demos.next_obs["x"].tolist() == [1, 2, 3, 101, 102] and demos.obs["y"].tolist() == [0, -1, -2, 0, -1]
    assert np.allclose(demos.actions, [0, 0.1, 0.2, 0, 0.1]) and demos.rewards.tolist() == [1, 2, 3, 1, 2]
    assert last_flags(demos) == [(True, False), (True, False)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs_1": None, "obs_0": None}, "but none for obs"),
        ({"obs_0": None}, r"has the obs columns \[1\], but one number per column, counted from 0 without a gap"),
        ({"step": np.array([0, 1, 3, 0, 1])}, "steps that are missing or repeated"),
        ({"episode": np.array([0, 0, 0.5, 1, 1])}, "episode values that are not whole numbers"),
        ({"terminated": np.array([1, 0, 0, 0, 0])}, "goes on after a step that is terminated"),
        ({"terminated": np.array([0, 0, 2, 0, 0])}, "has terminated values other than 0 and 1"),
        ({"rewards": np.zeros(5)}, "has two columns for rewards?, one of them 'rewards?'"),
        ({"obs.x": np.zeros(5)}, "mixes ways to name the columns of obs"),
        ({"next_obs_0": None, "next_obs_1": None}, "has 3 obs and 3 acts.*drop_last=True"),
    ],
)
def test_wrong_tables(tmp_path, change, message):
    table = {key: value for key, value in (columns() | change).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        load_demonstrations(write_table(table, tmp_path / "t.parquet"))


def test_missing_values_in_a_table_are_an_error(tmp_path):
    table = columns()
    table["obs_1"] = np.where(np.arange(5) == 2, np.nan, table["obs_1"])
    with pytest.raises(ValueError, match="obs has NaN or infinite values in 1 of 5 rows, first in episode 0 at step 2"):
        load_demonstrations(write_table(table, tmp_path / "t.csv"))


def as_kind(table: dict, kind: str, folder: Path):
    if kind == "Table":
        return pytest.importorskip("pyarrow").table(table)
    return pytest.importorskip("pandas").DataFrame(table) if kind == "DataFrame" else write_table(table, folder / kind)


@pytest.mark.parametrize("kind", ["t.csv", "t.parquet", "DataFrame", "Table"])
@pytest.mark.parametrize("name", ["episode", "episode_id"])
def test_episodes_with_texts_for_names(tmp_path, kind, name):
    pytest.importorskip("pyarrow")
    table = {key: value for key, value in columns(next_obs=False).items() if key in ("obs_0", "action_0")}
    table[name] = np.array(["a", "a", "a", "b", "b"] if kind == "t.csv" else ["007", "007", "007", "7", "7"])
    demos = load_demonstrations(as_kind(table, kind, tmp_path), drop_last=True)
    assert demos.episode_lengths.tolist() == LENGTHS and np.asarray(demos.next_obs).tolist() == [[1], [2], [101]]
    # in order of appearance, wherever their rows lie
    table = {key: value for key, value in columns().items() if key != "episode"} | {name: np.array(["b", "b", "b", "a", "a"])}
    order = np.array([0, 3, 1, 4, 2])
    check_episodes(load_demonstrations(as_kind({key: value[order] for key, value in table.items()}, kind, tmp_path)))


def test_every_row_needs_its_episode():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="episode of DataFrame is missing in 1 of 5 rows: name the episode of every row"):
        load_demonstrations(pandas.DataFrame(columns() | {"episode": ["a", "a", None, "b", "b"]}))


@pytest.mark.parametrize("kind", ["t.csv", "t.parquet", "DataFrame", "Table"])
@pytest.mark.parametrize("words", [("False", "True"), ("no", "YES"), ("0", "1")])
def test_flags_in_words(tmp_path, kind, words):
    pytest.importorskip("pyarrow")
    table = columns()
    for name in ("terminated", "truncated"):
        table[name] = np.array(words)[table[name].astype(int)]
    demos = load_demonstrations(as_kind(table, kind, tmp_path))
    check_episodes(demos)
    assert last_flags(demos) == [(True, False), (False, True)]


@pytest.mark.parametrize("kind", ["t.csv", "t.parquet", "DataFrame", "Table"])
@pytest.mark.parametrize(
    ("name", "cell", "message"),
    [
        ("obs_1", "-", r"obs_1 of .* holds '-' but numbers are expected"),
        ("action_1", "0,5", r"action_1 of .* holds '0,5' but numbers are expected"),
        ("reward", "?", r"reward of .* holds '\?' but numbers are expected"),
        ("step", "first", r"step of .* holds 'first' but numbers are expected"),
        ("truncated", "maybe", r"truncated of .* holds 'maybe' but true and false, yes and no, or 1 and 0"),
    ],
)
def test_a_text_among_numbers_is_named(tmp_path, kind, name, cell, message):
    pytest.importorskip("pyarrow")
    table = columns() | {name: np.array(["1", "0", cell, "1", "0"])}
    with pytest.raises(ValueError, match=message):
        load_demonstrations(as_kind(table, kind, tmp_path))


@pytest.mark.parametrize("kind", ["t.csv", "t.parquet", "DataFrame", "Table"])
def test_times_and_other_types_are_no_numbers(tmp_path, kind):
    pytest.importorskip("pyarrow")
    days = np.arange("2024-01-01", "2024-01-06", dtype="datetime64[D]").astype("datetime64[s]")
    with pytest.raises(ValueError, match=r"step of .* holds '2024-01-01 00:00:00' but numbers are expected"):
        load_demonstrations(as_kind(columns() | {"step": days}, kind, tmp_path))
    if kind != "t.csv":
        with pytest.raises(ValueError, match=r"obs of .* but numbers are expected"):
            load_demonstrations(as_kind({"obs": [{"x": 1.0}] * 2, "action": [0.0, 1.0]}, kind, tmp_path))


# --- LeRobot ---------------------------------------------------------------------------------------------------------------


def write_lerobot(folder: Path, two_states: bool = False) -> Path:
    pytest.importorskip("pyarrow")
    features = {
        "observation.state": {"dtype": "float32", "shape": [2]},
        "action": {"dtype": "float32", "shape": [1]},
        "observation.images.top": {"dtype": "video", "shape": [96, 96, 3]},
    }
    for chunk in ("meta", "data/chunk-000"):
        (folder / chunk).mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(
        json.dumps(
            {
                "codebase_version": "v2.1",
                "total_episodes": 2,
                "chunks_size": 1000,
                "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
                "features": features,
            }
        )
    )
    for episode, n in enumerate(LENGTHS):
        item = trajectory(episode, n)
        table = {
            "observation.state": item.obs[:-1],
            "action": item.acts,
            "timestamp": np.arange(n) / 30,
            "frame_index": np.arange(n),
            "episode_index": np.full(n, episode),
            "index": np.arange(n),
            "task_index": np.zeros(n, dtype=int),
            "next.reward": item.rews,
            "next.done": np.arange(n) == n - 1,
        }
        if two_states:
            table["observation.environment_state"] = item.obs[:-1, :1] * 2
        write_table(table, folder / "data" / "chunk-000" / f"episode_{episode:06d}.parquet")
    return folder


def test_lerobot_folder(tmp_path):
    folder = write_lerobot(tmp_path / "pusht")
    with pytest.warns(UserWarning, match="observation.images.top of .* are pictures and not read"):
        with pytest.raises(ValueError, match=r"episode 0 of .* has 3 obs and 3 acts.*drop_last=True"):
            load_demonstrations(folder)
        demos = load_demonstrations(folder, drop_last=True)
    assert demos.obs[:, 0].tolist() == [0, 1, 100] and demos.next_obs[:, 0].tolist() == [1, 2, 101]
    assert demos.episode_lengths.tolist() == LENGTHS and demos.episode_returns.tolist() == [6.0, 3.0]
    assert np.allclose(demos.actions[:, 0], [0, 0.1, 0])


def test_lerobot_folder_whose_episodes_are_texts(tmp_path):
    folder = write_lerobot(tmp_path / "d")
    for i, file in enumerate(sorted(folder.rglob("*.parquet"))):
        table = pytest.importorskip("pyarrow.parquet").read_table(file).drop_columns(["episode_index"]).to_pydict()
        write_table(table | {"episode_index": [f"e{i}"] * LENGTHS[i]}, file)
    with pytest.warns(UserWarning, match="pictures"), pytest.raises(ValueError, match=r"episode_index of .* holds texts"):
        load_demonstrations(folder, drop_last=True)


def test_lerobot_folder_with_two_states(tmp_path):
    with pytest.warns(UserWarning, match="pictures"):
        demos = load_demonstrations(write_lerobot(tmp_path / "d", two_states=True), drop_last=True)
    assert demos.obs["state"][:, 0].tolist() == [0, 1, 100] and demos.obs["environment_state"].tolist() == [[0], [2], [200]]


# --- our own, and what is missing ------------------------------------------------------------------------------------------


def test_version_1_of_our_own_files(tmp_path):
    """Written before successors were stored once."""
    arrays = flat(LENGTHS)
    np.savez_compressed(
        tmp_path / "old.npz",
        sb3_dualqdm_format=1,
        source="by hand",
        subsampling=1,
        obs=arrays["obs"],
        next_obs=arrays["next_obs"],
        actions=arrays["acts"],
        rewards=rewards().astype(np.float32),
        terminated=ends(LENGTHS, [True, False]),
        truncated=ends(LENGTHS, [False, True]),
        episode=np.repeat([0, 1], LENGTHS),
        step=np.array([0, 1, 2, 0, 1]),
        episode_returns=np.array([6.0, 3.0]),
        episode_lengths=np.array(LENGTHS),
        episode_indices=np.arange(2),
        reinterpreted=np.zeros(2, dtype=bool),
    )
    demos = load_demonstrations(tmp_path / "old.npz")
    check_episodes(demos)
    again = load_demonstrations(demos.save(tmp_path / "new.npz"))
    check_episodes(again)
    with np.load(tmp_path / "new.npz") as file:
        assert "next_obs" not in file and file["final_obs"].tolist() == [[3, -3], [102, -102]]


@pytest.mark.parametrize(
    ("module", "name", "content"),
    [("h5py", "d.hdf5", b"\x89HDF\r\n\x1a\n"), ("pyarrow.parquet", "d.parquet", b"PAR1"), ("pyarrow.csv", "d.csv", b"o\n1")],
)
def test_missing_packages_are_named_with_their_extra(tmp_path, monkeypatch, module, name, content):
    (tmp_path / name).write_bytes(content)
    monkeypatch.setitem(__import__("sys").modules, module, None)
    package, extra = module.partition(".")[0], "formats" if module == "h5py" else "arrow"
    with pytest.raises(ImportError, match=rf'needs {package}, which cannot .*: pip install "sb3-dualqdm\[{extra}\]"'):
        load_demonstrations(tmp_path / name)


def test_renamed_files_are_known_by_their_content(tmp_path):
    np.savez(tmp_path / "d.npz", **flat(LENGTHS), dones=ends(LENGTHS, [True, True]))
    (tmp_path / "d.npz").rename(tmp_path / "demonstrations.data")
    check_episodes(load_demonstrations(tmp_path / "demonstrations.data"), rewards=False)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"notes.txt is not of a format that is read here \(it starts with b'hello'\)"):
        load_demonstrations(tmp_path / "notes.txt")

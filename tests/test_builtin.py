"""The built-in sets: what the manifest says is in the files, and the simulator agrees."""

import runpy
import shutil
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from sb3_dualqdm import collect_demonstrations, load_demonstrations
from sb3_dualqdm.demonstrations import builtin, builtin_ids, builtin_path
from sb3_dualqdm.demonstrations.files import file_sha256

pytestmark = pytest.mark.both
# What a competent policy reaches on average. It is asked of the expert's 100 evaluation episodes: five stored ones, taken as
# they come, are too few (Acrobot's contain one of -142).
GOOD = {"CartPole-v1": 500.0, "Acrobot-v1": -85.0, "Pendulum-v1": -170.0, "MountainCarContinuous-v0": 90.0}
LIMITS = {"CartPole-v1": 500, "Acrobot-v1": 500, "Pendulum-v1": 200, "MountainCarContinuous-v0": 999}


def test_ids():
    assert builtin_ids() == sorted(GOOD)


@pytest.mark.parametrize("env_id", sorted(GOOD))
def test_files_agree_with_the_manifest(env_id):
    entry = builtin.manifest()[env_id]
    assert file_sha256(builtin_path(env_id)) == entry["sha256"]
    demos = load_demonstrations(f"builtin:{env_id}")
    assert demos.source == demos.spec == f"builtin:{env_id}" and demos.sha256 == entry["sha256"]
    last = np.append(np.flatnonzero(np.diff(demos.episode)), len(demos) - 1)
    assert demos.episode_lengths.tolist() == entry["lengths"] == np.bincount(demos.episode).tolist()
    assert demos.terminated[last].tolist() == entry["terminated"] and demos.truncated[last].tolist() == entry["truncated"]
    assert np.allclose(demos.episode_returns, entry["returns"], atol=1e-3)
    returns = [demos.rewards[demos.episode == i].sum(dtype=np.float64) for i in range(demos.n_episodes)]
    assert np.allclose(returns, entry["returns"], rtol=1e-5)
    assert entry["expert"]["mean_return_100"] >= entry["expert"]["required_mean"] == GOOD[env_id]
    assert entry["seeds"] == list(range(entry["seeds"][0], entry["seeds"][0] + demos.n_episodes))  # none was left out
    for i in range(demos.n_episodes):
        rows = demos.episode == i
        assert np.array_equal(demos.obs[rows][1:], demos.next_obs[rows][:-1])
    # a truncated episode is as long as the limit, a terminated one is not cut
    for length, terminated, truncated in zip(entry["lengths"], entry["terminated"], entry["truncated"]):
        assert truncated == (length == LIMITS[env_id]) and terminated != truncated


# The state of a simulator from its observation.
STATES = {
    "CartPole-v1": lambda obs: tuple(obs),
    "Acrobot-v1": lambda obs: np.array([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), obs[4], obs[5]]),
    "Pendulum-v1": lambda obs: np.array([np.arctan2(obs[1], obs[0]), obs[2]]),
    "MountainCarContinuous-v0": lambda obs: np.array(obs),
}


def play(env, action):
    return env.step(int(action) if action.ndim == 0 else action)


@pytest.mark.parametrize("env_id", sorted(GOOD))
def test_every_step_leads_to_its_successor(env_id):
    demos, env = load_demonstrations(f"builtin:{env_id}"), gym.make(env_id).unwrapped
    for row in range(len(demos)):
        if demos.step[row] == 0:
            env.reset()
        env.state = STATES[env_id](demos.obs[row].astype(np.float64))
        obs, reward, terminated, _, _ = play(env, demos.actions[row])
        # only the float32 rounding of the stored state is left
        assert np.allclose(obs, demos.next_obs[row], atol=2e-5) and reward == pytest.approx(demos.rewards[row], abs=2e-4)
        assert terminated == demos.terminated[row]


@pytest.mark.parametrize("env_id", sorted(GOOD))
def test_replaying_the_actions_from_the_seeds(env_id):
    entry, demos, env = builtin.manifest()[env_id], load_demonstrations(f"builtin:{env_id}"), gym.make(env_id)
    drift = np.zeros(len(demos))
    for i, seed in enumerate(entry["seeds"]):
        rows = np.flatnonzero(demos.episode == i)
        obs, _ = env.reset(seed=seed)
        assert np.allclose(obs, demos.obs[rows[0]], atol=1e-6)
        for row in rows:
            obs, _, terminated, truncated, _ = play(env, demos.actions[row])
            drift[row] = np.abs(obs - demos.next_obs[row]).max()
            if terminated or truncated:
                break
    recorded = {name: entry["versions"][name] for name in ("gymnasium", "numpy")}
    if recorded == {"gymnasium": gym.__version__, "numpy": np.__version__}:
        # later, another processor's rounding may grow in these unstable systems
        assert drift[demos.step < 50].max() < 1e-4
    if drift.max() > 1e-4:
        warnings.warn(f"{env_id} drifts by {drift.max():.2g} from the recording made with {recorded}", stacklevel=1)


@pytest.mark.parametrize(
    ("env_id", "name", "low", "high"), [("CartPole-v1", "cartpole", 8, 11), ("Acrobot-v1", "acrobot", -500, -500)]
)
def test_deliberately_bad_experts(env_id, name, low, high):
    script = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "experts" / "train_builtin_experts.py"))
    demos = collect_demonstrations(script[f"bad_{name}_expert"], env_id, 3, seed=0)
    assert low <= demos.episode_returns.min() <= demos.episode_returns.max() <= high
    assert demos.terminated.sum() == (3 if env_id == "CartPole-v1" else 0)


def test_unknown_id():
    with pytest.raises(ValueError, match=r"no built-in demonstrations for 'Pong-v9', only for Acrobot-v1, CartPole-v1, Mount"):
        load_demonstrations("builtin:Pong-v9")


def test_a_changed_file_is_noticed(tmp_path, monkeypatch):
    shutil.copytree(builtin_path("CartPole-v1").parent, tmp_path / "data")
    monkeypatch.setattr(builtin, "_DATA", tmp_path / "data")
    load_demonstrations("builtin:CartPole-v1").select(1).save(tmp_path / "data" / "CartPole-v1.npz")
    with pytest.raises(ValueError, match="differs from its manifest: reinstall"):
        load_demonstrations("builtin:CartPole-v1")

"""Older experience counts as replay rows, and VecNormalize may begin with the demonstrations."""

import gymnasium as gym
import numpy as np
import pytest
from algorithm_helpers import SMALL, CountingEnv, demonstrations_for
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_dualqdm import BC, DualQDM, collect_demonstrations
from sb3_dualqdm.buffers import rows_of

pytestmark = pytest.mark.both


def experience(n_episodes=3, length=5, ends_by="terminated", discrete=False):
    """Episodes of CountingEnv, whose observations are [episode, step], with action 1."""
    env = CountingEnv(length, ends_by, discrete)
    return collect_demonstrations(lambda obs: 1 if discrete else np.ones(1, dtype=np.float32), env, n_episodes, seed=0)


def model_with(extra, discrete=False, n_envs=1, **options):
    venv = DummyVecEnv([lambda: CountingEnv(5, "terminated", discrete)] * n_envs)
    demonstrations = experience(1, discrete=discrete)
    return DualQDM("MlpPolicy", venv, demonstrations=demonstrations, extra_transitions=extra, seed=0, **{**SMALL, **options})


@pytest.mark.parametrize("discrete", [True, False])
def test_rows_are_those_of_the_episodes(discrete):
    model = model_with(experience(discrete=discrete), discrete)
    buffer = model.replay_buffer
    assert buffer.size() == 15
    steps = np.tile(np.arange(5), 3)
    np.testing.assert_array_equal(buffer.observations[:15, 0, 1], steps)
    np.testing.assert_array_equal(buffer.next_observations[:15, 0, 1], steps + 1)
    np.testing.assert_array_equal(buffer.steps[:15, 0], steps)
    np.testing.assert_array_equal(buffer.terminated[:15, 0], steps == 4)
    np.testing.assert_array_equal(buffer.dones[:15, 0], steps == 4)
    # Box actions are scaled from [-2, 4] to [-1, 1]: 1 is the middle
    np.testing.assert_allclose(buffer.actions[:15, 0, 0], 1 if discrete else 0, atol=1e-6)
    rows = buffer.rows(500, np.random.default_rng(0))
    assert set(rows.obs[:, 0].tolist()) == {0, 1, 2}
    model.learn(12)
    assert buffer.size() == 27 and buffer.steps[15:20, 0].tolist() == [0, 1, 2, 3, 4]


def test_truncations_bootstrap():
    assert not model_with(experience(ends_by="truncated")).replay_buffer.terminated.any()


def test_several_environments_share_them():
    buffer = model_with(experience(), n_envs=4).replay_buffer
    # 15 transitions in columns of 4: the first is there twice
    assert buffer.size() == 4
    counts = np.unique(buffer.observations[:4].reshape(16, 2), axis=0, return_counts=True)[1]
    assert len(counts) == 15 and sorted(counts)[-2:] == [1, 2]


def test_new_transitions_take_their_place():
    model = model_with(experience(), buffer_size=15)
    assert model.replay_buffer.full and model.replay_buffer.pos == 0
    model.learn(10)
    rows = model.replay_buffer
    assert rows.pos == 10 and rows.observations[10:, 0, 0].tolist() == [2.0] * 5
    with pytest.raises(ValueError, match="15 extra transitions but the buffer holds 14: raise buffer_size"):
        model_with(experience(), buffer_size=14)


@pytest.mark.parametrize("source", ["path", "object"])
def test_saved_and_loaded(source, tmp_path):
    path = tmp_path / "old.npz"
    experience().save(path)
    model = model_with(path if source == "path" else experience())
    model.save(tmp_path / "model")
    env = DummyVecEnv([lambda: CountingEnv(5, "terminated", False)])
    loaded = DualQDM.load(tmp_path / "model", env=env, demonstrations=experience(1))
    loaded.learn(5)
    # a path is remembered, an object is data
    assert loaded.replay_buffer.size() == (20 if source == "path" else 5)
    model.save_replay_buffer(tmp_path / "replay")
    loaded = DualQDM.load(tmp_path / "model", env=env, demonstrations=experience(1), extra_transitions=experience())
    loaded.load_replay_buffer(tmp_path / "replay")
    loaded.learn(5)
    assert loaded.replay_buffer.size() == 20  # once, not twice


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("wrapped", [True, False])
def test_replay_buffer_of_sac(n_envs, wrapped):
    venv = DummyVecEnv([lambda: CountingEnv(5, "truncated", False)] * n_envs)
    sac = SAC("MlpPolicy", venv, buffer_size=12 * n_envs if wrapped else 100, learning_starts=1000).learn(18 * n_envs)
    rows = rows_of(sac.replay_buffer, sac.observation_space, sac.action_space)
    n_steps = 12 if wrapped else 18
    first = 18 - n_steps
    time = first + np.arange(n_steps)
    obs = rows.obs.numpy().reshape(n_steps, n_envs, 2)
    np.testing.assert_array_equal(obs[:, 0, 1], time % 5)
    assert not rows.terminated.any()
    # the oldest row may be in the middle of an episode, whose beginning is gone
    expected = np.where(time // 5 == first // 5, time - first, time % 5)
    np.testing.assert_array_equal(rows.step.numpy().reshape(n_steps, n_envs), np.tile(expected[:, None], n_envs))
    model = model_with(sac.replay_buffer)
    assert model.replay_buffer.size() == n_steps * n_envs
    stored = sac.replay_buffer.actions[(sac.replay_buffer.pos * wrapped + np.arange(n_steps)) % sac.replay_buffer.buffer_size]
    np.testing.assert_array_equal(model.replay_buffer.actions[: n_steps * n_envs, 0], stored.reshape(-1, 1))


def test_refused_experience():
    box, discrete = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    with pytest.raises(ValueError, match="use experience of this environment"):
        model_with(ReplayBuffer(10, box, discrete))
    box_actions = CountingEnv(discrete=False).action_space
    with pytest.raises(ValueError, match="buffer is empty"):
        model_with(ReplayBuffer(10, box, box_actions))
    with pytest.raises(ValueError, match="stores time limits as terminations"):
        model_with(ReplayBuffer(10, box, box_actions, handle_timeout_termination=False))
    with pytest.raises(ValueError, match=r"has the shape \(3,\) per step but the observation space has \(2,\)"):
        model_with(demonstrations_for("Pendulum-v1"))


# --------------------------------------------------------------------------------------------------------------------------
# VecNormalize
# --------------------------------------------------------------------------------------------------------------------------


def test_statistics_begin_with_the_demonstrations():
    demos = demonstrations_for("Pendulum-v1")
    for option in (False, True):
        venv = VecNormalize(make_vec_env("Pendulum-v1"))
        model = DualQDM("MlpPolicy", venv, demonstrations=demos, normalize_by_demonstrations=option, seed=0, **SMALL)
        model._setup_learn(10)
        # one reset observation (and the generator's initial count of 1e-4)
        assert venv.obs_rms.count == pytest.approx(1 + 1e-4 + 200 * option)
        if option:
            raw = venv.get_original_obs()
            np.testing.assert_allclose(venv.obs_rms.mean, np.concatenate([demos.obs, raw]).mean(axis=0), atol=1e-4)
            np.testing.assert_array_equal(model._last_obs, venv.normalize_obs(raw))
            model._setup_learn(10)
            assert venv.obs_rms.count < 210  # once


@pytest.mark.parametrize("cls", [DualQDM, BC])
def test_clipped_demonstrations_are_reported_once(cls):
    demos = demonstrations_for("Pendulum-v1")
    venv = VecNormalize(make_vec_env("Pendulum-v1"), clip_obs=1.0)
    model = cls("MlpPolicy", venv, demonstrations=demos, seed=0, **SMALL)
    with pytest.warns(
        UserWarning, match=r"of the demonstrations' observation values lie beyond VecNormalize's clip_obs=1.0"
    ) as seen:
        model.learn(200)
        model.learn(200, reset_num_timesteps=False)
    assert sum("lie beyond" in str(warning.message) for warning in seen) == 1


def test_few_clipped_values_are_no_news(recwarn):
    demos = demonstrations_for("Pendulum-v1")
    venv = VecNormalize(make_vec_env("Pendulum-v1"))
    DualQDM("MlpPolicy", venv, demonstrations=demos, seed=0, **SMALL).learn(200)
    assert not [warning for warning in recwarn if "lie beyond" in str(warning.message)]

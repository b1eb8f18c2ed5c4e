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
from sb3_dualqdm.callbacks import ResumableCheckpoint

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


def test_offline_models_do_not_forget_them_silently(tmp_path):
    model = model_with(experience(), offline=True)
    model.learn(3, ResumableCheckpoint(tmp_path / "run", 1))
    model.save(tmp_path / "model")
    env, given = DummyVecEnv([lambda: CountingEnv(5, "terminated", False)]), {"demonstrations": experience(1)}
    for restore, name in ((DualQDM.load, "model"), (DualQDM.resume, "run")):
        with pytest.raises(ValueError, match=r"learned from extra_transitions too, .* pass extra_transitions= to load"):
            restore(tmp_path / name, env, **given).learn(1, reset_num_timesteps=False)
        whole = restore(tmp_path / name, env, extra_transitions=experience(), **given).learn(1, reset_num_timesteps=False)
        assert len(whole._sample_batch(8).actions) == 16
    alone = DualQDM.load(tmp_path / "model", env, extra_transitions=None, **given).learn(1)
    assert len(alone._sample_batch(8).actions) == 8


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("overwritten", [True, False])
@pytest.mark.parametrize("from_file", [True, False])
def test_replay_buffer_of_sac(n_envs, overwritten, from_file, tmp_path):
    venv = DummyVecEnv([lambda: CountingEnv(5, "truncated", False)] * n_envs)
    sac = SAC("MlpPolicy", venv, buffer_size=12 * n_envs if overwritten else 100, learning_starts=1000).learn(18 * n_envs)
    sac.save_replay_buffer(tmp_path / "replay.pkl")
    buffer = model_with(tmp_path / "replay.pkl" if from_file else sac.replay_buffer).replay_buffer
    # steps 0 to 17 are three whole episodes and three steps; of the last 12, those from 10 on begin with an episode
    steps = [0, 1, 2, 3, 4, 0, 1, 2] if overwritten else [*[0, 1, 2, 3, 4] * 3, 0, 1, 2]
    n = len(steps) * n_envs
    assert buffer.size() == n and not buffer.terminated.any()
    np.testing.assert_array_equal(buffer.steps[:n, 0], steps * n_envs)
    np.testing.assert_array_equal(buffer.observations[:n, 0, 1], steps * n_envs)
    at = (sac.replay_buffer.pos * overwritten + np.arange(12 if overwritten else 18)) % sac.replay_buffer.buffer_size
    actions = sac.replay_buffer.actions[at][-len(steps) :]
    np.testing.assert_allclose(buffer.actions[:n, 0, 0], actions.swapaxes(0, 1).reshape(-1), atol=1e-6)


def test_refused_experience():
    box = gym.spaces.Box(-1, 1, (2,))
    with pytest.raises(ValueError, match="empty replay buffer"):
        model_with(ReplayBuffer(10, box, CountingEnv(discrete=False).action_space))
    with pytest.raises(ValueError, match=r"has the shape \(3,\) per step but the observation space has \(2,\)"):
        model_with(demonstrations_for("Pendulum-v1"))


# --------------------------------------------------------------------------------------------------------------------------
# VecNormalize
# --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["environment first", "demonstrations first", "both at once"])
def test_demonstrations_follow_the_environment_in_use(order):
    """Rows are normalised by whatever statistics the current environment has when they are drawn."""
    demos = demonstrations_for("Pendulum-v1")
    venv = VecNormalize(make_vec_env("Pendulum-v1"))
    if order == "demonstrations first":
        model = DualQDM("MlpPolicy", "Pendulum-v1", demonstrations=demos, seed=0, **SMALL)
        model.set_env(venv)
    elif order == "environment first":
        model = DualQDM("MlpPolicy", venv, seed=0, **SMALL)
        model.set_demonstrations(demos)
    else:
        model = DualQDM("MlpPolicy", venv, demonstrations=demos, seed=0, **SMALL)
    model.learn(20)
    seen = []
    model.actor.latent_pi.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    for mean in (-3.0, 2.0):
        venv.obs_rms.mean, venv.obs_rms.var = np.full(3, mean), np.full(3, 4.0)
        batch = model._sample_batch(8)
        raw = 2 * batch.obs.numpy() + mean
        for part, rows in ((raw[:8], model.replay_buffer.observations[:20, 0]), (raw[8:], demos.obs)):
            assert all(np.isclose(row, rows, atol=1e-5).all(axis=1).any() for row in part)
        # and the actor sees what the critic does
        seen.clear()
        model._update(batch)
        assert any(tensor.shape == batch.obs.shape and np.array_equal(tensor, batch.obs) for tensor in seen)


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


@pytest.mark.parametrize("wrapper", [None, {"norm_obs": False}])
def test_normalisation_that_nothing_does_is_reported_once(wrapper):
    venv = make_vec_env("Pendulum-v1")
    venv = venv if wrapper is None else VecNormalize(venv, **wrapper)
    demos = demonstrations_for("Pendulum-v1")
    model = DualQDM("MlpPolicy", venv, demonstrations=demos, normalize_by_demonstrations=True, seed=0, **SMALL)
    with pytest.warns(UserWarning, match="no VecNormalize normalises the observations: wrap the environment") as seen:
        model.learn(2)
        model.learn(2)
    assert sum("no VecNormalize" in str(warning.message) for warning in seen) == 1


@pytest.mark.parametrize("cls", [DualQDM, BC])
def test_clipped_demonstrations_are_reported_once(cls):
    demos = demonstrations_for("Pendulum-v1")
    venv = VecNormalize(make_vec_env("Pendulum-v1"), training=False, clip_obs=1.0)
    model = cls("MlpPolicy", venv, demonstrations=demos, seed=0, **SMALL)
    with pytest.warns(
        UserWarning, match=r"of the demonstrations' observation values lie beyond VecNormalize's clip_obs=1.0"
    ) as seen:
        model.learn(200)
        model.learn(200, reset_num_timesteps=False)
    assert sum("lie beyond" in str(warning.message) for warning in seen) == 1


@pytest.mark.parametrize("options", [{"training": False, "clip_obs": 20.0}, {"training": True, "clip_obs": 1.0}])
def test_few_clipped_values_and_first_statistics_are_no_news(options, recwarn):
    demos = demonstrations_for("Pendulum-v1")
    venv = VecNormalize(make_vec_env("Pendulum-v1"), **options)
    DualQDM("MlpPolicy", venv, demonstrations=demos, seed=0, **SMALL).learn(200)
    assert not [warning for warning in recwarn if "lie beyond" in str(warning.message)]

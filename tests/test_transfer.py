"""A trained actor goes on in SAC."""

import numpy as np
import pytest
import torch as th
from algorithm_helpers import SMALL, demonstrations_for
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

from sb3_dualqdm import DualQDM, ReCOIL, to_sac

pytestmark = pytest.mark.both


@pytest.fixture(scope="module")
def demos():
    return demonstrations_for("Pendulum-v1")


def trained(demos, policy_kwargs=None, env="Pendulum-v1", **options):
    options = {**SMALL, "policy_kwargs": {"net_arch": [16], **(policy_kwargs or {})}, "seed": 0, **options}
    return DualQDM("MlpPolicy", env, demonstrations=demos, **options).learn(40)


def test_network_style_sb3_moves_exactly(demos):
    model = trained(demos, {"network_style": "sb3", "n_critics": 2}, gamma=0.9, learning_rate=1e-3)
    sac = to_sac(model)
    assert type(sac) is SAC and sac.get_env() is model.get_env()
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.testing.assert_array_equal(sac.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    draws = []
    for learner in (sac, model):
        th.manual_seed(0)
        draws.append(learner.predict(obs)[0])
    np.testing.assert_array_equal(*draws)
    actions = th.rand(50, 1) * 2 - 1
    for ours, theirs in ((model.critic, sac.critic), (model.critic_target, sac.critic_target)):
        th.testing.assert_close(
            ours.q_values(th.as_tensor(obs), actions), th.stack(theirs(th.as_tensor(obs), actions)).squeeze(-1)
        )
    assert (sac.gamma, sac.learning_rate, sac.batch_size) == (0.9, 1e-3, 8)
    # a copy: SAC's learning leaves the model alone
    before = model.predict(obs, deterministic=True)[0]
    sac.learn(5)
    assert not np.array_equal(sac.predict(obs, deterministic=True)[0], before)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], before)


def test_default_style_moves_its_mean_and_says_so(demos):
    model = trained(demos)
    with pytest.warns(UserWarning, match="mean of the policy is exact but its spread differs") as warnings:
        sac = to_sac(model)
    assert len([w for w in warnings if "spread" in str(w.message)]) == 1
    obs = th.as_tensor(np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32))
    means, log_stds = zip(*(actor.get_action_dist_params(obs)[:2] for actor in (model.actor, sac.actor)))
    assert th.equal(*means)
    # both maps have value and slope in common at 0, and part from there on like tanh and its argument
    x = (log_stds[1] + 1.5) / 3.5
    th.testing.assert_close(log_stds[0], -5 + 3.5 * (th.tanh(x) + 1))
    assert (log_stds[0] - log_stds[1]).abs().max() > 1e-4


def test_one_deviation_for_all_states_moves_as_such(demos):
    options = {**SMALL, "policy_kwargs": {"net_arch": [16]}, "seed": 0}
    model = ReCOIL("MlpPolicy", "Pendulum-v1", demonstrations=demos, **options).learn(40)
    with pytest.warns(UserWarning, match="adds noise before tanh"):
        sac = to_sac(model)
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.testing.assert_allclose(*(learner.predict(obs, deterministic=True)[0] for learner in (model, sac)), atol=1e-6)
    spread = sac.actor.get_action_dist_params(th.as_tensor(obs))[1]
    th.testing.assert_close(spread, model.actor.log_std.detach().expand(50, 1))


def test_temperature_and_experience_move_along(demos):
    model = trained(demos, {"network_style": "sb3"}, ent_coef=0.3)
    sac = to_sac(model)
    assert sac.log_ent_coef.exp().item() == pytest.approx(0.3)
    assert sac.replay_buffer is model.replay_buffer and sac.learning_starts == 0
    # rewards that the model never read: Pendulum's are negative
    assert (sac.replay_buffer.rewards[:40] < 0).all()
    sac.learn(5)
    assert sac._n_updates == 5 and sac.replay_buffer.size() == 45
    fresh = to_sac(model, buffer_size=77, learning_starts=3, ent_coef=0.1, policy_kwargs={"n_critics": 2})
    assert fresh.replay_buffer.size() == 0 and fresh.learning_starts == 3 and fresh.ent_coef == 0.1
    # one critic to copy, the second is SAC's own
    assert th.equal(fresh.critic.qf0[0].weight, model.critic.qf0[0].weight)
    assert not th.equal(fresh.critic.qf1[0].weight, model.critic.qf0[0].weight)


def test_experience_without_rewards_stays_behind(demos):
    model = trained(demos, {"network_style": "sb3"}, extra_transitions=demos)
    assert to_sac(model).replay_buffer.size() == 0


def test_experience_of_another_number_of_environments_stays_behind(demos):
    model = trained(demos, {"network_style": "sb3"})
    fresh = SAC("MlpPolicy", "Pendulum-v1").learning_starts
    for options, learning_starts in (({}, fresh), ({"learning_starts": 3}, 3)):
        sac = to_sac(model, make_vec_env("Pendulum-v1", 2), **options)
        assert sac.replay_buffer.size() == 0 and sac.learning_starts == learning_starts
    assert to_sac(model, make_vec_env("Pendulum-v1", 1)).learning_starts == 0


@pytest.mark.parametrize("n_envs", [1, 3])
def test_noise_moves_along_to_other_numbers_of_environments(n_envs, demos):
    options = {"action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.1)), "gradient_steps": -1}
    model = trained(demos, {"network_style": "sb3"}, make_vec_env("Pendulum-v1", 2), **options)
    sac = to_sac(model, make_vec_env("Pendulum-v1", n_envs)).learn(6)
    assert sac.num_timesteps == 6 and sac.action_noise().shape == ((n_envs, 1) if n_envs > 1 else (1,))


def test_normalised_environment_moves_along(demos):
    venv = VecNormalize(make_vec_env("Pendulum-v1", 2), norm_reward=False)
    model = trained(demos, {"network_style": "sb3"}, venv, gradient_steps=-1)
    sac = to_sac(model).learn(8)
    assert sac.get_vec_normalize_env() is venv and sac._n_updates == 8


def test_bounded_critics_stay_behind(demos):
    model = trained(demos, {"network_style": "sb3", "q_range": (-1.0, 1.0)})
    assert not th.equal(to_sac(model).critic.qf0[0].weight, model.critic.qf0[0].weight)


def test_refusals(demos, tmp_path):
    with pytest.raises(ValueError, match="SAC needs Box actions"):
        to_sac(DualQDM("MlpPolicy", "CartPole-v1", **SMALL))
    model = trained(demos, {"network_style": "sb3"})
    with pytest.raises(ValueError, match="other shapes than the trained one"):
        to_sac(model, policy_kwargs={"net_arch": [8]})
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="pass env="):
        to_sac(DualQDM.load(tmp_path / "model"))
    offline = DualQDM("MlpPolicy", "Pendulum-v1", demonstrations=demos, offline=True, **SMALL)
    offline.save(tmp_path / "offline")
    offline = DualQDM.load(tmp_path / "offline", demonstrations=demos).learn(5)  # in a stand-in for the environment
    with pytest.raises(ValueError, match="pass env="):
        to_sac(offline)

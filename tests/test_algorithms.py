"""The algorithms as SB3 models: running, options, refusals, promises."""

import json
import warnings
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from algorithm_helpers import SMALL, CountingEnv, demonstrations_for
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from sb3_dualqdm import (
    BC,
    DAC,
    SQIL,
    Demonstrations,
    DualQDM,
    HyPE,
    IQLearn,
    RegIQLearn,
    collect_demonstrations,
    to_sac,
)
from sb3_dualqdm.buffers import ImitationDictReplayBuffer

pytestmark = pytest.mark.both

ENVS = ["CartPole-v1", "Pendulum-v1"]
ONLINE = [DualQDM, IQLearn, RegIQLearn]


@pytest.fixture(scope="module")
def demos() -> dict[str, Demonstrations]:
    return {env_id: demonstrations_for(env_id) for env_id in ENVS}


def weights_of(model):
    return th.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("cls", [*ONLINE, BC])
def test_learns_and_predicts(cls, env_id, demos):
    model = cls("MlpPolicy", env_id, demonstrations=demos[env_id], seed=0, **SMALL)
    before = weights_of(model).clone()
    model.learn(30.0, log_interval=1)
    assert model.num_timesteps == 30
    assert model._n_updates == (30 if cls is BC else 22)
    assert not th.equal(before, weights_of(model)) and th.isfinite(weights_of(model)).all()
    model.logger.name_to_value.clear()
    model.train(2, 8)
    assert model.logger.name_to_value["train/n_updates"] == model._n_updates  # for whoever writes the log next
    action, _ = model.predict(model.observation_space.sample())
    assert model.action_space.contains(action) or model.action_space.contains(int(action))


OPTIONS = [
    {"objective": "paper", "value_mode": "initial"},
    {"objective": "paper", "value_mode": "value"},
    {"objective": "paper", "value_mode": "value_expert"},
    {"value_mode": "initial"},
    {"value_mode": "v0", "terminal_value": "zero"},
    {"value_mode": "v0_expert"},
    {"value_mode": "value_expert"},
    {"ent_coef": "auto_0.1"},
    {"ent_coef": 0},
    {"warmup": "uniform", "bc_warmup_steps": 3},
    {"policy_kwargs": {"net_arch": [16], "n_critics": 2}},
    {"policy_kwargs": {"net_arch": [16], "network_style": "sb3"}},
    {"policy_kwargs": {"net_arch": {"pi": [8], "qf": [16]}, "q_range": (-5.0, 5.0)}},
    {"train_freq": 4, "gradient_steps": -1},
    {"train_freq": (1, "episode"), "gradient_steps": 2, "learning_starts": 0},
    {"demo_batch_size": 3, "subsample": 20, "target_update_interval": 2},
    {"gamma": 1.0, "terminal_value": "zero"},
]


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("options", OPTIONS, ids=[" ".join(map(str, o)) for o in OPTIONS])
def test_options(options, env_id, demos):
    model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], seed=0, **{**SMALL, **options})
    model.learn(250 if "train_freq" in options else 24)
    assert model._n_updates > 0 and th.isfinite(weights_of(model)).all()


@pytest.mark.parametrize("divergence", ["chi2", "tv", "hellinger", "kl", "js"])
def test_divergences(divergence, demos):
    model = IQLearn("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], divergence=divergence, **SMALL)
    model.learn(30, log_interval=1)
    assert ("train/clamped_share" in model.logger.name_to_value) == (divergence not in ("chi2", "tv"))
    assert model.critic.q_range == (pytest.approx((-100, 100)) if divergence == "tv" else None)


@pytest.mark.parametrize("options", [{"n_action_samples": 3}, {"action_noise": NormalActionNoise(np.zeros(1), np.ones(1))}])
def test_box_only_options(options, demos):
    model = DualQDM("MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], **SMALL, **options)
    model.learn(24)
    assert th.isfinite(weights_of(model)).all()


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
@pytest.mark.parametrize("normalize", [False, True])
def test_several_environments(vec_env_cls, normalize, demos):
    venv = make_vec_env("Pendulum-v1", n_envs=3, vec_env_cls=vec_env_cls)
    if normalize:
        venv = VecNormalize(venv)
    model = DualQDM("MlpPolicy", venv, demonstrations=demos["Pendulum-v1"], gradient_steps=-1, **SMALL)
    model.learn(30)
    assert model._n_updates == 24  # three after each vector step whose count of steps (9, 12, ..., 30) exceeds 8
    assert len(model.replay_buffer.initial_states) == 3
    venv.close()


def test_update_ratio_warns_once(demos):
    venv = make_vec_env("CartPole-v1", n_envs=2)
    model = DualQDM("MlpPolicy", venv, demonstrations=demos["CartPole-v1"], **SMALL)
    with pytest.warns(UserWarning, match="gradient_steps=-1"):
        model.learn(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(10)


# --------------------------------------------------------------------------------------------------------------------------
# Refusals: one sentence, at construction
# --------------------------------------------------------------------------------------------------------------------------


class SpaceEnv(CountingEnv):
    def __init__(self, action_space):
        super().__init__()
        self.action_space = action_space


@pytest.mark.parametrize(
    "space, match",
    [
        (spaces.MultiDiscrete([2, 2]), "Box or Discrete is needed"),
        (spaces.MultiBinary(3), "Box or Discrete is needed"),
        (spaces.Discrete(2, start=1), "starts at 1"),
        (spaces.Box(np.float32([0, 1]), np.float32([1, 1])), "empty range"),
        (spaces.Box(-np.inf, np.inf, (1,), dtype=np.float32), "infinite bounds"),
    ],
)
@pytest.mark.parametrize("cls", [*ONLINE, BC])
def test_action_spaces_refused(cls, space, match):
    with pytest.raises(ValueError, match=match):
        cls("MlpPolicy", SpaceEnv(space))


@pytest.mark.parametrize(
    "cls, options, match",
    [
        (DualQDM, {"value_mode": "v1"}, "value_mode is 'v1'"),
        (DualQDM, {"objective": "exact"}, "objective is 'exact'"),
        (DualQDM, {"terminal_value": 0}, "terminal_value is 0"),
        (DualQDM, {"warmup": "random"}, "warmup is 'random'"),
        (DualQDM, {"gamma": 1.5}, "gamma is 1.5"),
        (DualQDM, {"gamma": 1.0}, "no finite value"),
        (DualQDM, {"objective": "paper", "value_mode": "v0"}, "heuristic of the reference code"),
        (DualQDM, {"bellman_bounds": (1, -1)}, "lo <= hi"),
        (DualQDM, {"bellman_bounds": (1, 2, 3)}, "lo <= hi"),
        (DualQDM, {"bellman_penalty": -1}, r"a number in \[0, inf\)"),
        (DualQDM, {"batch_size": 0}, "batch_size is 0"),
        (DualQDM, {"use_sde": True}, "gSDE is not supported"),
        (DualQDM, {"n_steps": 3}, "n_steps=3"),
        (DualQDM, {"optimize_memory_usage": True}, "time limits"),
        (DualQDM, {"replay_buffer_class": ReplayBuffer}, "ImitationReplayBuffer"),
        (DualQDM, {"actor_learning_rate": 1e-4}, "have no actor"),
        (DualQDM, {"ent_coef": -1}, "at least 0, or 'auto'"),
        (DualQDM, {"ent_coef": float("nan")}, "at least 0, or 'auto'"),
        (DualQDM, {"ent_coef": None}, "at least 0, or 'auto'"),
        (DualQDM, {"ent_coef": "auto_abc"}, "'auto_abc'"),
        (DualQDM, {"ent_coef": "auto_0"}, "'auto_0'"),
        (DualQDM, {"tau": 2.0}, "tau is 2.0"),
        (DualQDM, {"demo_batch_size": 0}, "demo_batch_size is 0"),
        (DualQDM, {"batch_size": 8.5}, "batch_size is 8.5"),
        (DualQDM, {"n_action_samples": 1.5}, "n_action_samples is 1.5"),
        (DualQDM, {"bellman_penalty": float("nan")}, r"a number in \[0, inf\)"),
        (DualQDM, {"bellman_bounds": None}, "lo <= hi, or b"),
        (DualQDM, {"bellman_bounds": "12"}, "lo <= hi, or b"),
        (DualQDM, {"batch_size": None}, "batch_size is None"),
        (DualQDM, {"bc_warmup_steps": -5}, "bc_warmup_steps is -5 but a whole number of at least 0"),
        (DualQDM, {"learning_starts": None}, "learning_starts is None"),
        (DualQDM, {"learning_starts": -5}, "learning_starts is -5"),
        (DualQDM, {"buffer_size": 0}, "buffer_size is 0"),
        (DualQDM, {"buffer_size": float("inf")}, "buffer_size is inf"),
        (DualQDM, {"stats_window_size": 0}, "stats_window_size is 0 but a whole number of at least 1"),
        (DualQDM, {"seed": 1.5}, "seed is 1.5 but a whole number of at least 0"),
        (DualQDM, {"gradient_steps": 0}, "gradient_steps is 0 but a whole number of at least 1, or -1"),
        (DualQDM, {"gradient_steps": -2}, "gradient_steps is -2"),
        (DualQDM, {"gradient_steps": 1.5}, "gradient_steps is 1.5"),
        (DualQDM, {"train_freq": 0}, "train_freq is 0"),
        (DualQDM, {"gamma": "0.9"}, r"gamma is '0.9' but a number in \(0, 1\]"),
        (DualQDM, {"tau": None}, r"tau is None but a number in \[0, 1\]"),
        (DualQDM, {"learning_rate": "exp_1"}, "learning_rate is 'exp_1' but a float, a schedule or 'lin_<float>'"),
        (DualQDM, {"learning_rate": "lin_-1"}, "learning_rate is -1.0 but a number"),
        (DualQDM, {"target_entropy": "foo"}, "target_entropy is 'foo' but a number in .* or 'auto', is needed"),
        (DualQDM, {"target_entropy": None}, "target_entropy is None"),
        (DualQDM, {"replay_buffer_class": "x"}, "replay_buffer_class is 'x'"),
        (DualQDM, {"replay_buffer_class": ImitationDictReplayBuffer}, "ImitationDictReplayBuffer cannot be built for Box"),
        (DualQDM, {"replay_buffer_kwargs": {"foo": 1}}, "replay_buffer_kwargs={'foo': 1} .*'foo'"),
        (DualQDM, {"replay_buffer_kwargs": {"n_initial_states": 0}}, "n_initial_states is 0"),
        (DualQDM, {"observation_space": spaces.Box(0, 1, (4,))}, "given beside env, which has its own"),
        (DualQDM, {"offline": True, "action_space": spaces.Discrete(2)}, "given beside env, which has its own"),
        (DualQDM, {"replay_device": "foo"}, "replay_device is 'foo' but that cannot be used here"),
        (DualQDM, {"replay_device": "cuda:77"}, "replay_device is 'cuda:77' but that cannot be used here"),
        (DualQDM, {"demonstrations_kwargs": {"foo": 1}}, "demonstrations_kwargs is 'foo' but must be one of"),
        (DualQDM, {"demonstrations_kwargs": {"subsample": 2}}, "demonstrations_kwargs is 'subsample' but must be one of"),
        (DualQDM, {"action_noise": NormalActionNoise(np.zeros(1), np.ones(1))}, "Discrete actions take none"),
        (DualQDM, {"policy_kwargs": {"q_range": (1, -1)}}, "q_range is .1, -1. but .lo, hi. with lo < hi, or None"),
        (DualQDM, {"policy_kwargs": {"q_range": 5}}, "q_range is 5"),
        (DualQDM, {"policy_kwargs": {"n_critics": 0}}, "n_critics is 0"),
        (DualQDM, {"policy_kwargs": {"net_arch": {"pi": [8], "vf": [8]}}}, r"net_arch has the keys \['pi', 'vf'\] but"),
        (DualQDM, {"policy_kwargs": {"n_critics": None}}, "n_critics is None"),
        (DualQDM, {"policy_kwargs": {"n_critics": 1.5}}, "n_critics is 1.5"),
        (IQLearn, {"q_range": 5}, "q_range is 5"),
        (IQLearn, {"q_range": "wide"}, "q_range is 'wide' but .* 'auto' or None is needed"),
        (
            IQLearn,
            {"q_range": (0, 1), "policy_kwargs": {"q_range": (0, 2)}},
            r"q_range is \(0, 1\) but policy_kwargs has .*2\)",
        ),
        (IQLearn, {"q_range": None, "policy_kwargs": {"q_range": (0, 2)}}, "q_range is None but policy_kwargs has"),
        (IQLearn, {"regularization": "a"}, "regularization is 'a'"),
        (IQLearn, {"regularization": -1}, "regularization is -1"),
        (RegIQLearn, {"regularization": -1}, "regularization is -1"),
        (DAC, {"discriminator_arch": 64}, "discriminator_arch is 64 but a list of layer sizes"),
        (DAC, {"discriminator_learning_rate": -1}, "discriminator_learning_rate is -1"),
        (HyPE, {"cost_learning_rate": "lin_1e-3"}, "cost_learning_rate is 'lin_1e-3' but a number"),
        (HyPE, {"cost_arch": [0]}, r"cost_arch is \[0\]"),
        (HyPE, {"cost_batch_size": 8.5}, "cost_batch_size is 8.5"),
        (SQIL, {"replay_weight": "1"}, "replay_weight is '1'"),
        (DualQDM, {"replay_buffer_kwargs": {"handle_timeout_termination": False}}, "time limits"),
        (BC, {"ent_coef": 0}, "logits of BC"),
        (BC, {"bc_warmup_steps": 5}, "warm-up itself"),
        (BC, {"extra_transitions": "builtin:CartPole-v1"}, "clones every transition"),
        (BC, {"validation_interval": 0}, "validation_interval is 0"),
        (BC, {"validation_interval": None}, "validation_interval is None"),
        (BC, {"early_stopping_patience": 0}, "early_stopping_patience is 0"),
        (DualQDM, {"ent_coef": "learned"}, "'auto'"),
        (DualQDM, {"policy_kwargs": {"network_style": "tf"}}, "network_style is 'tf'"),
        (IQLearn, {"divergence": "l2"}, "divergence is 'l2'"),
        (IQLearn, {"q_range": (1, 0)}, "lo < hi"),
        (BC, {"loss": "mse"}, "no mean action"),
        (BC, {"loss": "mae"}, "loss is 'mae'"),
        (BC, {"validation_fraction": 1.0}, r"in \[0, 1\)"),
        (BC, {"validation_fraction": 0.0, "early_stopping_patience": 2}, "held-out"),
    ],
)
def test_arguments_refused(cls, options, match):
    with pytest.raises(ValueError, match=match):
        cls("MlpPolicy", "CartPole-v1", **options)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"action_noise": 0.1}, "action_noise is 0.1 but an ActionNoise of Stable-Baselines3 is needed"),
        ({"actor_learning_rate": "exp_1e-4"}, "actor_learning_rate is 'exp_1e-4' but .*lin_<float>"),
        ({"actor_learning_rate": -1.0}, "actor_learning_rate is -1.0"),
        ({"actor_learning_rate": "lin_nan"}, "actor_learning_rate is nan"),
        ({"action_noise": NormalActionNoise(np.zeros(3), np.ones(3))}, r"action_noise has the shape \(3,\) .* have \(1, 1\)"),
        (
            {"action_noise": VectorizedActionNoise(NormalActionNoise(np.zeros(1), np.ones(1)), 2)},
            r"action_noise has the shape \(2, 1\)",
        ),
    ],
)
def test_arguments_of_box_actions_refused(options, match):
    with pytest.raises(ValueError, match=match):
        DualQDM("MlpPolicy", "Pendulum-v1", **options)


def test_numbers_may_be_written_as_floats_and_rates_as_text(demos, tmp_path):
    whole = {"batch_size": 8.0, "demo_batch_size": 4.0, "n_action_samples": 2.0, "bc_warmup_steps": 3.0, "gradient_steps": 2.0}
    whole |= {"buffer_size": 1e3, "learning_starts": 1e1, "subsample": np.float64(2.0), "target_update_interval": np.int64(1)}
    whole |= {"seed": np.int64(3), "_stats_window_size": 5}
    options = {**SMALL, **whole, "learning_rate": "lin_1e-3", "demonstrations": demos["Pendulum-v1"]}
    options["stats_window_size"] = float(options.pop("_stats_window_size"))
    model = DualQDM("MlpPolicy", "Pendulum-v1", **options).learn(20)
    for name, value in whole.items():
        assert getattr(model, name) == value and type(getattr(model, name)) is int
    assert model.lr_schedule(0.5) == 5e-4 and model.critic.optimizer.param_groups[0]["lr"] == 0
    given = {"net_arch": [16], "n_critics": 2.0}
    model.learn(10, log_interval=2.0)
    assert len(DualQDM("MlpPolicy", "Pendulum-v1", policy_kwargs=given).critic.q_networks) == 2 and given["n_critics"] == 2.0
    model.save(tmp_path / "model")
    assert DualQDM.load(tmp_path / "model", learning_rate="lin_2e-3").lr_schedule(0.5) == 1e-3
    assert DualQDM.load(tmp_path / "model").lr_schedule(0.5) == 5e-4
    assert to_sac(model).lr_schedule(0.5) == 5e-4


def test_numbers_of_cloning_may_be_written_as_floats(demos):
    whole = {"validation_interval": 2.0, "early_stopping_patience": 3.0}
    model = BC("MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], **whole, **SMALL).learn(4)
    for name, value in whole.items():
        assert getattr(model, name) == value and type(getattr(model, name)) is int


def test_every_update_of_an_offline_method_has_the_rate_of_its_step(demos):
    model = BC("MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], learning_rate="lin_1.0", **SMALL)
    rates = []
    model._after_update = lambda: rates.append(model.actor.optimizer.param_groups[0]["lr"])
    model.learn(4).learn(2)
    assert rates == pytest.approx([1, 0.75, 0.5, 0.25, 1, 0.5])


def test_demonstrations_of_another_environment_refused(demos):
    with pytest.raises(ValueError, match=r"(?i)action|observation"):
        DualQDM("MlpPolicy", "CartPole-v1", demonstrations=demos["Pendulum-v1"])


def test_learn_without_demonstrations_refused():
    model = DualQDM("MlpPolicy", "CartPole-v1", **SMALL)
    assert model.predict(np.zeros(4, dtype=np.float32))[0] in (0, 1)
    with pytest.raises(ValueError, match="no demonstrations to learn from"):
        model.learn(10)


# --------------------------------------------------------------------------------------------------------------------------
# Promises
# --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ENVS)
def test_same_seed_same_weights(env_id, demos):
    runs = []
    for _ in range(2):
        model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], seed=3, **SMALL)
        np.random.seed(len(runs))  # our sampling must not read NumPy's global generator
        runs.append(weights_of(model.learn(40)))
    assert th.equal(*runs)
    other = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], seed=4, **SMALL)
    assert not th.equal(runs[0], weights_of(other.learn(40)))


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("cls", ONLINE)
def test_blind_to_rewards(cls, discrete):
    """Rewards replaced by noise or NaN change nothing, bit for bit."""
    source = {
        "obs": np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32),
        "acts": np.array([0, 1, 1, 0, 1]) if discrete else np.linspace(-2, 4, 5, dtype=np.float32)[:, None],
        "terminal": True,
    }
    from types import SimpleNamespace

    runs = []
    for reward in (0.0, np.random.default_rng(1).normal, lambda: float("nan")):
        env = CountingEnv(discrete=discrete, reward=reward)
        model = cls("MlpPolicy", env, demonstrations=[SimpleNamespace(**source)], seed=0, **SMALL)
        runs.append(weights_of(model.learn(40)))
    assert th.equal(runs[0], runs[1]) and th.equal(runs[0], runs[2])


def constant_demonstrations(env, obs=(7.0, 3.0)):
    """One terminated transition."""
    obs = np.array([obs], dtype=np.float32)
    actions = np.array([1]) if isinstance(env.action_space, spaces.Discrete) else np.array([[1.0]], dtype=np.float32)
    return Demonstrations(
        obs=obs,
        next_obs=obs + 1,
        actions=actions,
        terminated=np.array([True]),
        truncated=np.array([False]),
        rewards=None,
        episode=np.array([0]),
        step=np.array([0]),
        episode_returns=None,
        episode_lengths=np.array([1]),
        episode_indices=np.array([0]),
    )


@pytest.mark.parametrize("discrete", [True, False])
def test_one_transition_is_enough(discrete):
    env = CountingEnv(discrete=discrete)
    model = DualQDM("MlpPolicy", env, demonstrations=constant_demonstrations(env), **SMALL)
    model.learn(30)
    assert th.isfinite(weights_of(model)).all()


@pytest.mark.parametrize("ends_by", ["terminated", "truncated"])
@pytest.mark.parametrize("terminal_value", ["absorbing", "zero"])
def test_termination_and_truncation_in_replay(ends_by, terminal_value):
    """A truncation bootstraps from the next state, a termination from the absorbing state or from 0."""
    env = CountingEnv(length=5, ends_by=ends_by)
    model = DualQDM(
        "MlpPolicy", env, demonstrations=constant_demonstrations(env), terminal_value=terminal_value, **{**SMALL, "tau": 0.0}
    )
    model.learn(100)
    with th.no_grad():
        model.critic_target.absorbing.fill_(0.3)
    batch = model._sample_batch(64)
    rows = model._rows(batch, None, 0.01)
    n_replay = 64
    last = batch.obs[:n_replay, 1] == 4  # the fifth and last step of an episode
    assert 0 < last.sum() < n_replay
    target_q = model.critic_target(batch.next_obs).squeeze(0)
    bootstrap = model.gamma * 0.01 * th.logsumexp(target_q / 0.01, dim=-1)
    end = model.gamma * 0.3 / (1 - model.gamma) if terminal_value == "absorbing" else 0.0
    expected = th.where(last, th.tensor(end), bootstrap[:n_replay]) if ends_by == "terminated" else bootstrap[:n_replay]
    th.testing.assert_close(rows.y_target[:n_replay], expected)
    assert batch.not_terminated[:n_replay].bool().equal(~last if ends_by == "terminated" else th.ones_like(last))


def test_all_four_flag_pairs():
    """Both flags at once are a termination."""
    env = CountingEnv(length=1, ends_by="terminated")

    class Both(gym.Wrapper):
        def step(self, action):
            obs, reward, _, _, info = self.env.step(action)
            return obs, reward, True, True, info

    model = DualQDM("MlpPolicy", Both(env), demonstrations=constant_demonstrations(env), **SMALL)
    model.learn(20)
    assert model.replay_buffer.rows(20, np.random.default_rng(0)).terminated.all()


def test_absorbing_rows_by_hand():
    """
    A terminated row adds a virtual row Q = V = c with successor c: here one expert row and 8 replay rows all terminate,
    so the loss is the sum of the same objective over the real rows and over nine absorbing rows.
    """
    env = CountingEnv(length=1)
    model = DualQDM("MlpPolicy", env, demonstrations=constant_demonstrations(env), **{**SMALL, "demo_batch_size": 1})
    model.learn(12)
    with th.no_grad():
        model.critic.absorbing.fill_(0.02)
        model.critic_target.absorbing.fill_(0.03)
    batch = model._sample_batch(8)
    rows = model._rows(batch, None, model.ent_coef)
    loss = model.critic_loss(rows, batch.weights)
    real = type(rows)(rows.q[:, :9], rows.v[:9], rows.y[:9], rows.y_target[:9])
    real_weights = type(batch.weights)(*(weight[:9] for weight in batch.weights))
    c, next_c = 0.02 * 100, 0.99 * 0.03 * 100
    reward = c - next_c  # -0.97: within the bounds
    absorbing = -1.0 * reward + 9 * (1 / 9) * (c - next_c)
    assert loss.item() == pytest.approx(model.critic_loss(real, real_weights).item() + absorbing, rel=1e-4, abs=1e-5)
    assert (batch.weights.actor[:9] > 0).all()


def test_initial_states_are_raw_and_complete():
    """Every reset of every environment is in the ring once, before VecNormalize, and no terminal observation is."""
    venv = VecNormalize(DummyVecEnv([lambda: CountingEnv(length=3), lambda: CountingEnv(length=4)]))
    model = DualQDM("MlpPolicy", venv, demonstrations=constant_demonstrations(CountingEnv()), gradient_steps=-1, **SMALL)
    model.learn(24)  # 12 vector steps: 4 episodes of length 3, 3 episodes of length 4, one more start each
    ring = model.replay_buffer.initial_states
    assert len(ring) == 2 + 4 + 3
    states = ring.states[: len(ring)]
    assert (states[:, 1] == 0).all()
    assert sorted(states[:, 0]) == sorted([0, 1, 2, 3, 4] + [0, 1, 2, 3])


def test_initial_state_ring_is_bounded():
    env = CountingEnv(length=1)
    model = DualQDM(
        "MlpPolicy", env, demonstrations=constant_demonstrations(env), replay_buffer_kwargs={"n_initial_states": 4}, **SMALL
    )
    model.learn(20)
    assert len(model.replay_buffer.initial_states) == 4
    assert sorted(model.replay_buffer.initial_states.states[:, 0]) == [17, 18, 19, 20]


@pytest.mark.parametrize("low_then_high", [True, False])
def test_demonstrations_follow_current_normalisation(low_then_high):
    """Raw rows are stored; both networks see the statistics of now."""
    venv = VecNormalize(DummyVecEnv([lambda: CountingEnv(length=5)]))
    model = DualQDM("MlpPolicy", venv, demonstrations=constant_demonstrations(CountingEnv(), (7.0, 3.0)), **SMALL)
    model.learn(12)
    for mean in (1.0, -5.0) if low_then_high else (-5.0, 1.0):
        venv.obs_rms.mean[:], venv.obs_rms.var[:] = mean, 4.0
        batch = model._sample_batch(8)
        expected = (np.array([7.0, 3.0]) - mean) / 2
        np.testing.assert_allclose(batch.obs[8:].numpy(), np.tile(expected, (8, 1)), rtol=1e-5)
        np.testing.assert_allclose(batch.next_obs[8:].numpy(), np.tile(expected + 0.5, (8, 1)), rtol=1e-5)


def test_expert_actions_are_scaled_as_replay_actions():
    env = CountingEnv(discrete=False)  # box [-2, 4]: action 1 is the centre
    model = DualQDM("MlpPolicy", env, demonstrations=constant_demonstrations(env), **SMALL)
    model.learn(12)
    batch = model._sample_batch(8)
    assert (batch.actions[8:] == 0).all() and (batch.actions.abs() <= 1).all()


def test_no_gradient_reaches_target_networks(demos):
    for objective in ("reference", "paper"):
        model = DualQDM("MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], objective=objective, **SMALL)
        model.learn(20)
        batch = model._sample_batch(8)
        rows = model._rows(batch, model.policy.draw(batch.obs, batch.noise.obs), 0.01)
        assert rows.y_target.grad_fn is None
        # paper: the objective's V(s') carries gradient, from the online critic
        assert (rows.y.grad_fn is not None) == (objective == "paper")
        model.critic_loss(rows, batch.weights).backward()
        assert all(parameter.grad is None for parameter in model.critic_target.parameters())
        if objective == "reference":
            assert th.equal(rows.y, rows.y_target)


def test_paper_rows_are_weighted_by_discounted_occupancy():
    env = CountingEnv(length=6)
    model = DualQDM("MlpPolicy", env, demonstrations=constant_demonstrations(env), objective="paper", gamma=0.5, **SMALL)
    model.learn(60)
    rows = model.replay_buffer.rows(20, np.random.default_rng(0))
    np.testing.assert_array_equal(rows.step, rows.obs[:, 1])
    batch = model._sample_batch(20)
    step = batch.obs[:20, 1]
    # after episodes of 6 steps the absorbing state is occupied gamma^6 of the time, whichever rows are drawn
    occupancy = 0.5 * 0.5**step / (0.5**step).sum()
    th.testing.assert_close(batch.weights.value[:20], (1 - 0.5**6) * occupancy)
    assert batch.weights.value[28:48].sum().item() == pytest.approx(0.5 * 0.5**6)
    th.testing.assert_close(batch.weights.value[20:28], th.full((8,), 0.25 / 8))  # every expert row here is terminated
    assert (batch.weights.constraint[20:28] == 0).all() and (batch.weights.actor[20:28] == 0).all()
    for weight in (batch.weights.constraint, batch.weights.actor, batch.weights.replay):
        th.testing.assert_close(weight[:20], th.full((20,), 1 / 20))


def test_nan_stops_with_the_update_range(demos):
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], **SMALL)
    model.learn(20)
    with th.no_grad():
        model.critic.qf0[0].weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"critic_loss.*between updates 13 and"):
        model.learn(30, reset_num_timesteps=False)


def test_diverging_critic_warns_once(demos):
    model = IQLearn("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], **SMALL)
    model.learn(20)
    with th.no_grad():
        model.critic.qf0[-1].bias.fill_(1e5)
    with pytest.warns(UserWarning, match="diverging.*RegIQLearn"):
        model.learn(10, reset_num_timesteps=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(10, reset_num_timesteps=False)


def test_log_keys(demos):
    seen = {}

    class Spy(BaseCallback):
        def _on_step(self):
            return True

    model = DualQDM("MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], **SMALL)
    model.learn(30, callback=Spy())
    seen = model.logger.name_to_value
    for name in (
        "critic_loss actor_loss ent_coef learning_rate actor_learning_rate n_updates implicit_reward_expert "
        "implicit_reward_replay implicit_reward_expert_std below_bounds above_bounds q_min q_max q_mean initial_value "
        "expert_log_likelihood absorbing_value"
    ).split():
        assert np.isfinite(seen[f"train/{name}"]), name
    assert seen["demonstrations/transitions"] == 200
    assert seen["demonstrations/expert_return"] == pytest.approx(demos["Pendulum-v1"].episode_returns[0])
    assert seen["train/q_min"] <= seen["train/q_mean"] <= seen["train/q_max"]
    assert seen["train/n_updates"] == 22


def test_actor_learning_rate_schedules(demos):
    def rate(actor_learning_rate, **options):
        model = DualQDM(
            "MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], actor_learning_rate=actor_learning_rate, **SMALL
        )
        model.learn(16)
        return model.actor.optimizer.param_groups[0]["lr"], model.critic.optimizer.param_groups[0]["lr"]

    assert rate(None) == (3e-4, 3e-4)
    assert rate(1e-3) == (1e-3, 3e-4)
    # at the last update 16 of 16 steps are done
    assert rate("lin_1e-3")[0] == pytest.approx(0.0, abs=1e-9)
    assert rate(lambda progress: 1.0 + progress)[0] == pytest.approx(1.0)


def test_twin_critics_share_the_minimum(demos):
    model = DualQDM(
        "MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], **{**SMALL, "policy_kwargs": {"n_critics": 2}}
    )
    obs, noise = th.randn(5, 3), th.randn(1, 5, 1)
    draw = model.policy.draw(obs, noise)
    q = model.critic.q_values(obs, draw.actions[0])
    assert q.shape == (2, 5)
    # the batched ensemble is SB3's critics, one after the other
    th.testing.assert_close(q, th.stack(model.critic(obs, draw.actions[0])).squeeze(-1))
    th.testing.assert_close(model.policy.value(model.critic, obs, draw, 0.5), th.minimum(*q) - 0.5 * draw.log_prob[0])


# --------------------------------------------------------------------------------------------------------------------------
# Implicit reward
# --------------------------------------------------------------------------------------------------------------------------


def test_implicit_reward_by_hand():
    env = CountingEnv()
    model = DualQDM("MlpPolicy", env, demonstrations=constant_demonstrations(env), **SMALL)
    model.learn(20)
    with th.no_grad():
        model.critic.absorbing.fill_(0.02)
    obs = np.array([[0.0, 1.0], [0.0, 4.0]], dtype=np.float32)
    reward = model.implicit_reward(obs, np.array([1, 0]), obs + 1, np.array([False, True]))
    with th.no_grad():
        q, q_next = model.critic(th.as_tensor(obs))[0].numpy(), model.critic(th.as_tensor(obs + 1))[0].numpy()
    soft = 0.01 * np.log(np.exp((q_next[0] - q_next[0].max()) / 0.01).sum()) + q_next[0].max()
    np.testing.assert_allclose(reward, [q[0, 1] - 0.99 * soft, q[1, 0] - 0.99 * 0.02 * 100], rtol=1e-4, atol=1e-5)


def test_implicit_reward_is_repeatable_and_takes_raw_inputs(demos):
    venv = VecNormalize(make_vec_env("Pendulum-v1"))
    model = DualQDM("MlpPolicy", venv, demonstrations=demos["Pendulum-v1"], **SMALL)
    model.learn(20)
    data = demos["Pendulum-v1"]
    arguments = (data.obs, data.actions, data.next_obs, data.terminated)
    first = model.implicit_reward(*arguments)
    th.randn(3)
    np.testing.assert_array_equal(first, model.implicit_reward(*arguments))
    assert first.shape == (200,) and not np.array_equal(first, model.implicit_reward(*arguments, seed=1))
    venv.obs_rms.mean[:] += 1.0
    assert not np.allclose(first, model.implicit_reward(*arguments))


# --------------------------------------------------------------------------------------------------------------------------
# BC
# --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["nll", "mse"])
def test_bc_fits_box_demonstrations_without_environment_steps(loss):
    env = CountingEnv(discrete=False)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(65, 2)).astype(np.float32)
    actions = (1 + 3 * np.tanh(obs[:-1, :1])).astype(np.float32)  # the box [-2, 4] is 1 +- 3

    class Trajectory:
        acts, terminal = actions, False

    Trajectory.obs = obs
    model = BC("MlpPolicy", env, demonstrations=[Trajectory()], loss=loss, seed=0, learning_rate=3e-3, device="cpu")
    model.learn(400)
    error = np.abs(model.predict(obs[:-1], deterministic=True)[0] - actions)
    assert error.mean() < 0.3 < np.abs(actions - actions.mean()).mean()
    assert env.n_steps == 0


def test_bc_discrete_fits_and_stops_early():
    env = CountingEnv()
    obs = np.random.default_rng(0).normal(size=(129, 2)).astype(np.float32)

    class Trajectory:
        acts, terminal = (obs[:-1, 0] > 0).astype(np.int64), False

    Trajectory.obs = obs
    model = BC(
        "MlpPolicy",
        env,
        demonstrations=[Trajectory()],
        seed=0,
        learning_rate=3e-3,
        validation_interval=50,
        early_stopping_patience=3,
        device="cpu",
    )
    model.learn(20_000)
    assert model.num_timesteps < 20_000 and model.num_timesteps % 50 == 0
    assert (model.predict(obs[:-1], deterministic=True)[0] == Trajectory.acts).mean() > 0.95
    assert env.n_steps == 0


@pytest.mark.parametrize("cls", [BC, DualQDM])
def test_offline_runs_log_their_last_updates(cls, demos, tmp_path):
    options = {**SMALL, "demonstrations": demos["CartPole-v1"], "offline": True, "policy_kwargs": {"net_arch": [2]}}
    model = cls("MlpPolicy", "CartPole-v1", **options)
    model.set_logger(configure(str(tmp_path), ["json"]))

    def steps_logged():
        lines = (tmp_path / "progress.json").read_text().splitlines()
        return [(row["time/total_timesteps"], row["train/n_updates"]) for row in map(json.loads, lines)]

    model.learn(7)
    assert steps_logged() == [(7, 7)]
    if cls is DualQDM:  # whose updates take longer
        return
    model.learn(1010, log_interval=1)
    assert steps_logged() == [(7, 7), (1000, 1007), (1010, 1017)]
    model.learn(1000, log_interval=1)  # the last update is logged once
    assert steps_logged()[3:] == [(1000, 2017)]
    model.learn(3, log_interval=None)
    assert len(steps_logged()) == 4


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("is_listed", [True, False])  # as rl_zoo3 passes it
def test_progress_is_counted_in_time_steps(is_listed, offline, demos, monkeypatch):
    bar = mock.Mock()
    monkeypatch.setattr("stable_baselines3.common.callbacks.tqdm", bar)
    options = {"demonstrations": demos["CartPole-v1"], "gradient_steps": -1, "offline": offline, **SMALL}
    model = DualQDM("MlpPolicy", make_vec_env("CartPole-v1", 3), **options)
    model.learn(12, **({"callback": [ProgressBarCallback()]} if is_listed else {"progress_bar": True}))
    assert bar.call_args.kwargs == {"total": 12}
    assert sum(call.args[0] for call in bar.return_value.update.call_args_list) == 12


@pytest.mark.parametrize("offline", [True, False])
def test_log_interval_of_nothing_is_refused(offline, demos):
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], offline=offline, **SMALL)
    with pytest.raises(ValueError, match="log_interval is 0 but a whole number of at least 1"):
        model.learn(10, log_interval=0)
    assert model.num_timesteps == 0


def test_bc_holds_out_the_stated_share(demos):
    model = BC("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], validation_fraction=0.2, **SMALL)
    assert len(model._held_out) == 100 and len(model._kept) == 400
    assert set(model._held_out).isdisjoint(model._kept)


def test_bc_keeps_every_kth_transition_alone():
    env = CountingEnv(length=5, discrete=False)
    episodes = collect_demonstrations(lambda obs: np.array([1.0]), env, 2)
    assert episodes.terminated.sum() == 2
    for given, options in ((episodes, {"subsample": 3}), (episodes.subsample(3, keep_terminal=True), {})):
        model = BC("MlpPolicy", env, demonstrations=given, validation_fraction=0.0, seed=0, **options, **SMALL)
        assert model.demo_buffer.demonstrations.step.tolist() == [0, 3, 0, 3]
        assert set(model._sample_batches(20, 8).obs[..., 1].flatten().tolist()) == {0, 3}


def test_bc_draws_the_stated_rows(demos):
    model = BC("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], demo_batch_size=5, **SMALL)
    assert len(model._sample_batch(8).actions) == 5


@pytest.mark.parametrize("env_id", ENVS)
def test_bc_trains_alike_however_often_it_is_evaluated(env_id, demos):
    options = {**SMALL, "demonstrations": demos[env_id], "seed": 0}
    often, never = (BC("MlpPolicy", env_id, validation_interval=n, **options).learn(20) for n in (3, 1000))
    for mine, theirs in zip(often.policy.parameters(), never.policy.parameters()):
        assert th.equal(mine, theirs)
    often.validation_interval = 1
    with th.no_grad():
        often._after_update()
        rows = often.demo_buffer.stored.take(often._held_out)
        expected = -often.policy.log_prob(often._inputs.obs(rows.obs), often._inputs.actions(rows.actions)).mean()
    assert often.logger.name_to_value["train/validation_loss"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("n, held_out", [(1, 0), (2, 1), (3, 2), (4, 3), (10, 7)])
def test_bc_keeps_at_least_one_transition(n, held_out):
    demonstrations = {"obs": np.zeros((n + 1, 4), np.float32), "acts": np.zeros(n, int), "terminal": False}
    model = BC("MlpPolicy", "CartPole-v1", demonstrations=[demonstrations], validation_fraction=0.7, **SMALL)
    assert (len(model._held_out), len(model._kept)) == (held_out, n - held_out)
    assert model.learn(3)._n_updates == 3


def test_bc_cannot_stop_early_on_a_single_transition(demos):
    single = [{"obs": np.zeros((2, 4), np.float32), "acts": np.zeros(1, int), "terminal": False}]
    options = {"early_stopping_patience": 2, **SMALL}
    message = "early_stopping_patience is 2 but the demonstrations have a single transition"
    with pytest.raises(ValueError, match=message):
        BC("MlpPolicy", "CartPole-v1", demonstrations=single, **options)
    model = BC("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], **options)
    with pytest.raises(ValueError, match=message):
        model.set_demonstrations(single)
    assert len(model.demo_buffer) == len(demos["CartPole-v1"]) == len(model._held_out) + len(model._kept)


@pytest.mark.parametrize("env_id", ENVS)
def test_bc_warmup_raises_the_likelihood(env_id, demos):
    likelihoods = []
    for steps in (0, 200):
        model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], seed=0, bc_warmup_steps=steps, **SMALL)
        model.learn(1)
        rows = model.demo_buffer.stored.take(np.arange(100))
        with th.no_grad():
            log_prob = model.policy.log_prob(model._inputs.obs(rows.obs), model._inputs.actions(rows.actions))
            likelihoods.append(log_prob.mean().item())
    assert likelihoods[1] > likelihoods[0] + 0.1


# --------------------------------------------------------------------------------------------------------------------------
# Observation spaces
# --------------------------------------------------------------------------------------------------------------------------


def recorded(env, n_episodes=1):
    from sb3_dualqdm import collect_demonstrations

    env.action_space.seed(0)
    return collect_demonstrations(lambda obs: env.action_space.sample(), env, n_episodes, seed=0)


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("channel_last", [True, False])
def test_image_observations(discrete, channel_last):
    from stable_baselines3.common.envs import FakeImageEnv

    env = FakeImageEnv(discrete=discrete, screen_height=36, screen_width=38, channel_first=not channel_last)
    model = DualQDM(
        "CnnPolicy",
        env,
        demonstrations=recorded(env),
        **{**SMALL, "policy_kwargs": {"features_extractor_kwargs": {"features_dim": 8}}},
    )
    model.learn(12)
    batch = model._sample_batch(4)
    assert batch.obs.dtype == th.uint8 and batch.obs.shape == (12, 1, 36, 38)
    rows, actions, no_ends = (
        model.demo_buffer.stored.take(np.arange(5)),
        model.demo_buffer.demonstrations.actions[:5],
        np.zeros(5),
    )
    first = [rows.obs.numpy(), rows.next_obs.numpy()]
    last = [images.transpose(0, 2, 3, 1) for images in first]
    rewards = [model.implicit_reward(images[0], actions, images[1], no_ends) for images in (first, last)]
    np.testing.assert_allclose(*rewards, rtol=1e-4, atol=1e-5)
    action = model.predict(env.reset()[0])[0]
    assert model.action_space.contains(int(action) if discrete else action)


@pytest.mark.parametrize("discrete", [True, False])
def test_dict_observations(discrete):
    from stable_baselines3.common.envs import SimpleMultiObsEnv

    env = SimpleMultiObsEnv(discrete_actions=discrete)
    model = DualQDM("MultiInputPolicy", env, demonstrations=recorded(env), value_mode="initial", **SMALL)
    model.learn(24)
    batch = model._sample_batch(4)
    assert set(batch.obs) == set(env.observation_space.spaces) and len(batch.initial_obs["vec"]) == 4
    last = {key: np.stack([space.sample() for _ in range(5)]) for key, space in env.observation_space.spaces.items()}
    actions = np.stack([env.action_space.sample() for _ in range(5)])
    first = {**last, "img": last["img"].transpose(0, 3, 1, 2)}
    assert last["img"].shape[1:] == env.observation_space["img"].shape != model.observation_space["img"].shape
    rewards = [model.implicit_reward(obs, actions, obs, np.zeros(5)) for obs in (first, last)]
    np.testing.assert_allclose(*rewards, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="MultiInputPolicy"):
        DualQDM("MlpPolicy", env)


def test_discrete_observations():
    env = gym.make("FrozenLake-v1")
    model = DualQDM("MlpPolicy", env, demonstrations=recorded(env, 2), **SMALL)
    model.learn(24)
    assert model._sample_batch(4).obs.shape == (12, 1)
    assert int(model.predict(3)[0]) in range(4)


def test_trajectories_by_attribute():
    """Anything with obs (T + 1), acts and terminal, and the time limit of the environment turns a full episode's end."""
    from types import SimpleNamespace

    obs = np.zeros((501, 4), dtype=np.float32)
    full = SimpleNamespace(obs=obs, acts=np.zeros(500, dtype=np.int64), terminal=True, infos=None)
    short = SimpleNamespace(obs=obs[:11], acts=np.zeros(10, dtype=np.int64), terminal=True, infos=None)
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=[full, short], **SMALL)
    data = model.demo_buffer.demonstrations
    assert data.truncated[499] and not data.terminated[499]
    assert data.terminated[-1] and not data.truncated[-1]
    trusting = DualQDM(
        "MlpPolicy", "CartPole-v1", demonstrations=[full], demonstrations_kwargs={"max_episode_steps": None}, **SMALL
    )
    assert trusting.demo_buffer.demonstrations.terminated[-1]

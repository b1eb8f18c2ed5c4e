"""The other methods of the paper's comparison: objectives against numbers by hand, and each class through one life."""

import inspect
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from algorithm_helpers import SMALL, CountingEnv, EchoEnv, demonstrations_for
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize

from sb3_dualqdm import (
    BC,
    DAC,
    LSIQ,
    RIZE,
    SQIL,
    DualQDM,
    HyPE,
    IQLearn,
    ReCOIL,
    RegIQLearn,
    ValueDICE,
    collect_demonstrations,
    objectives,
    to_sac,
)
from sb3_dualqdm.algorithms import ImitationAlgorithm
from sb3_dualqdm.algorithms.rize import fractions
from sb3_dualqdm.callbacks import ResumableCheckpoint
from sb3_dualqdm.objectives import LSIQTargets, Rows, RowWeights
from sb3_dualqdm.optimizers import OptimisticAdam
from sb3_dualqdm.policies import MlpPolicy

pytestmark = pytest.mark.both

BOX, DISCRETE = "Pendulum-v1", "CartPole-v1"
# Every variant that has networks or terms of its own
METHODS = {
    "sqil": (SQIL, {}),
    "ls_iq": (LSIQ, {}),
    "ls_iq_h": (LSIQ, {"variant": "H"}),
    "ls_iq_hc": (LSIQ, {"variant": "HC", "td_loss": "huber", "charged_state": "next", "expert_entropy": "clip_above"}),
    "dac": (DAC, {}),
    "dac_zero": (DAC, {"terminal_value": "zero", "spectral_norm": False, "reward": "gail"}),
    "value_dice": (ValueDICE, {"gradient_steps": 1}),
    "hype": (HyPE, {"cost_arch": [16], "cost_batch_size": 16, "cost_interval": 15}),
    "recoil": (ReCOIL, {}),
    "rize": (RIZE, {"policy_kwargs": {"net_arch": [16], "n_quantiles": 5}}),
    "rize_v0": (
        RIZE,
        {
            "policy_kwargs": {"net_arch": [16]},
            "value_mode": "v0_expert",
            "policy_level_learning_rate": 1e-3,
            "target_init": "copy",
        },
    ),
}
ON_DISCRETE = {"sqil", "ls_iq", "dac", "dac_zero", "hype"}
WITHOUT_TEMPERATURE = {"value_dice", "recoil"}


@pytest.fixture(scope="module")
def demos():
    return {env_id: demonstrations_for(env_id) for env_id in (BOX, DISCRETE)}


def build(name, demos, env_id=BOX, env=None, **options):
    cls, own = METHODS[name]
    options = {**SMALL, "seed": 0, **own, **options}
    return cls("MlpPolicy", env_id if env is None else env, demonstrations=demos[env_id], **options)


def weights_of(model):
    modules = [model.policy, model.networks]
    return th.cat([tensor.detach().double().flatten() for module in modules for tensor in module.state_dict().values()])


def two_rows(q, v, y):
    """One replay row, then one expert row."""
    half = th.tensor([0.5, 0.5])
    weights = RowWeights(th.tensor([0.0, 1.0]), half, half, half, th.tensor([1.0, 0.0]))
    y = th.tensor(y)
    return Rows(th.tensor([q]), th.tensor(v), y, y), weights


def freeze(*optimizers):
    """Steps leave the parameters as they are, with the gradients beside them."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = 0.0


def assert_gradients(network, loss):
    """What a step has left as gradients is the gradient of a loss."""
    parameters = [parameter for parameter in network.parameters() if parameter.grad is not None]
    expected = th.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    assert any((gradient != 0).any() for gradient in expected)
    for parameter, gradient in zip(parameters, expected):
        th.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)


# --- each class through one life --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", [BOX, DISCRETE])
@pytest.mark.parametrize("name", METHODS)
def test_learns_saves_loads_and_goes_on(name, env_id, demos, tmp_path):
    if env_id == DISCRETE and name not in ON_DISCRETE:
        with pytest.raises(ValueError, match="Discrete"):
            build(name, demos, env_id)
        return
    model = build(name, demos, env_id, **({} if name in WITHOUT_TEMPERATURE else {"ent_coef": "auto"}))
    before = weights_of(model)
    model.learn(40)
    trained = [model.policy, *model._trained_networks().values()]
    assert model._n_updates >= 30
    for module in trained:
        assert all(th.isfinite(parameter).all() for parameter in module.parameters())
    assert (weights_of(model) != before).any()
    for network in model._trained_networks().values():
        assert any(state["exp_avg"].abs().sum() > 0 for state in network.optimizer.state.values())

    model.save(tmp_path / "model.zip")
    loaded = type(model).load(tmp_path / "model.zip", env=gym.make(env_id), demonstrations=demos[env_id])
    assert th.equal(weights_of(loaded), weights_of(model))
    for mine, theirs in zip(model._optimizers(), loaded._optimizers()):
        states = [[state["exp_avg"] for state in optimizer.state.values()] for optimizer in (mine, theirs)]
        assert len(states[0]) == len(states[1]) and all(th.equal(a, b) for a, b in zip(*states))
    loaded.learn(20, reset_num_timesteps=False)
    assert loaded.num_timesteps == 60


@pytest.mark.parametrize("cls", [SQIL, LSIQ, ReCOIL, ValueDICE, DAC, HyPE, RIZE, BC])
def test_methods_without_the_papers_form_refuse_it(cls, tmp_path):
    with pytest.raises(ValueError, match=f"objective='paper' was given but {cls.__name__} has no such form"):
        cls("MlpPolicy", BOX, objective="paper")
    cls("MlpPolicy", BOX, objective="reference", **SMALL).save(tmp_path / "model")
    with pytest.raises(ValueError, match=f"objective='paper' was given but {cls.__name__} has no such form"):
        cls.load(tmp_path / "model", objective="paper")


@pytest.mark.parametrize("cls", [SQIL, LSIQ, ReCOIL, ValueDICE, DAC, HyPE, RIZE, BC])
def test_defaults_of_a_class_are_in_its_documentation(cls):
    model = cls("MlpPolicy", BOX)
    numbers_and_choices = {
        name: parameter.default
        for name, parameter in inspect.signature(ImitationAlgorithm.__init__).parameters.items()
        if isinstance(parameter.default, (int, float, str)) and name not in ("device", "train_freq") and hasattr(model, name)
    }
    assert {"gamma", "learning_starts", "ent_coef"} < set(numbers_and_choices)
    other = [name for name, default in numbers_and_choices.items() if getattr(model, name) != default]
    assert [name for name in other if f"``{name}" not in cls.__doc__] == []


@pytest.mark.parametrize("cls", [DualQDM, IQLearn, RegIQLearn, SQIL, LSIQ, ReCOIL, ValueDICE, DAC, HyPE, RIZE, BC])
def test_arguments_may_be_given_by_position_in_sacs_order(cls):
    sacs = list(inspect.signature(SAC.__init__).parameters)
    ours = inspect.signature(ImitationAlgorithm.__init__).parameters
    names = list(ours)[3 : list(ours).index("ent_coef") + 1]
    assert [name for name in names if name in sacs] == [name for name in sacs if name in names]  # before 2.7 without n_steps
    first = cls("MlpPolicy", BOX)
    given = {name: getattr(first, name, ours[name].default) for name in names}
    given["gamma"] = 0.9
    model = cls("MlpPolicy", BOX, *given.values())
    assert {name: getattr(model, name, ours[name].default) for name in names} == given


@pytest.mark.parametrize("name", METHODS)
def test_rewards_never_enter(name):
    def trained(reward):
        demos = {BOX: collect_demonstrations(lambda obs: np.array([1.0]), CountingEnv(discrete=False), 2)}
        model = build(name, demos, env=CountingEnv(discrete=False, reward=reward))
        return weights_of(model.learn(25))

    rng = np.random.default_rng(0)
    assert th.equal(trained(0.0), trained(lambda: rng.normal()))


@pytest.mark.parametrize("name", METHODS)
def test_targets_receive_no_gradient(name, demos):
    model = build(name, demos).learn(10)
    targets = [model.critic_target, *(net for key, net in model.networks.items() if key.endswith("_target"))]
    before = [parameter.clone() for target in targets for parameter in target.parameters()]
    for target in targets:
        for parameter in target.parameters():
            parameter.requires_grad_(True)
    model._update(model._sample_batch(8))
    parameters = [parameter for target in targets for parameter in target.parameters()]
    assert all(parameter.grad is None for parameter in parameters)
    assert all(th.equal(old, new) for old, new in zip(before, parameters))


class NormDropout(BaseFeaturesExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space, features_dim=observation_space.shape[0])
        self.norm, self.dropout = th.nn.BatchNorm1d(self._features_dim), th.nn.Dropout(0.5)

    def forward(self, obs):
        return self.dropout(self.norm(obs))


@pytest.mark.parametrize("name, network", [("rize", "actor"), ("ls_iq_h", "h")])
def test_running_statistics_reach_target_networks_that_never_drop_out(name, network, demos):
    options = {"features_extractor_class": NormDropout, "net_arch": [16]}
    model = build(name, demos, policy_kwargs=options, tau=0.0).learn(20)
    online = model.actor if network == "actor" else model.networks[network]
    target = model.networks[f"{network}_target"]
    ours, theirs = online.features_extractor.norm, target.features_extractor.norm
    assert (theirs.running_mean != 0).any() and th.equal(ours.running_mean, theirs.running_mean)
    assert th.equal(ours.running_var, theirs.running_var)
    model._set_training_mode(True)
    assert online.training and not target.training
    obs = th.randn(8, 3)
    for net, same in ((target, True), (online, False)):
        first, second = (net.features_extractor(obs) for _ in range(2))
        assert th.equal(first, second) == same


@pytest.mark.parametrize("name", ["ls_iq_h", "dac", "hype", "recoil"])
def test_activation_of_the_policy_is_that_of_every_network(name, demos):
    model = build(name, demos, policy_kwargs={"net_arch": [16], "activation_fn": th.nn.Tanh}).learn(20)
    for network in [model.actor.latent_pi, *model.critic.q_networks, *(each.head for each in model.networks.values())]:
        kinds = {type(layer) for layer in network}
        assert th.nn.Tanh in kinds and th.nn.ReLU not in kinds


def test_rewards_and_logs_leave_running_statistics_alone(demos):
    options = {"features_extractor_class": NormDropout, "net_arch": [16]}
    model = build("recoil", demos, policy_kwargs=options).learn(20)
    norm = model.networks["v"].features_extractor.norm
    data, before = demos[BOX], norm.running_mean.clone()
    first, second = (model.implicit_reward(data.obs, data.actions, data.next_obs, data.terminated) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    model._set_training_mode(True)
    model._record_evaluation()
    assert (before != 0).any() and th.equal(before, norm.running_mean)


@pytest.mark.parametrize("name", METHODS)
def test_updates_never_wait_for_the_device(name, demos, monkeypatch):
    """No number is read from a tensor, nor branched on, so that any update can be captured."""
    model = build(name, demos, **({} if name in WITHOUT_TEMPERATURE else {"ent_coef": "auto"})).learn(10)
    batch = model._sample_batch(8)

    def read(self, *args):
        raise AssertionError("a tensor's value was read")

    for reader in ("item", "__bool__", "__float__", "__int__", "tolist", "numpy"):
        monkeypatch.setattr(th.Tensor, reader, read)
    statistics = model._update(batch)
    monkeypatch.undo()
    assert all(value.ndim == 0 and th.isfinite(value) for value in statistics.values())


@pytest.mark.parametrize("name", METHODS)
def test_normalised_copies_of_an_environment_that_terminates(name):
    demos = {BOX: collect_demonstrations(lambda obs: np.array([1.0]), CountingEnv(discrete=False), 2)}
    env = VecNormalize(make_vec_env(lambda: CountingEnv(discrete=False), n_envs=2), norm_reward=False)
    model = build(name, demos, env=env, gradient_steps=-1)
    model.learn(40)
    assert np.isfinite(model.predict(np.zeros(2, dtype=np.float32))[0]).all()


class Stop(BaseCallback):
    """Fail at a step, as a killed process does."""

    def _on_step(self):
        if self.num_timesteps == 50:
            raise KeyboardInterrupt
        return True


@pytest.mark.parametrize("name", ["dac", "hype", "ls_iq_h", "rize"])
def test_resumed_equals_uninterrupted(name, demos, tmp_path):
    whole = build(name, demos).learn(70, ResumableCheckpoint(tmp_path / "whole", 20))
    with pytest.raises(KeyboardInterrupt):
        build(name, demos).learn(70, [Stop(), ResumableCheckpoint(tmp_path / "killed", 20)])
    resumed = type(whole).resume(tmp_path / "killed", make_vec_env(BOX), demonstrations=demos[BOX])
    assert resumed.num_timesteps == 40
    resumed.learn(70, ResumableCheckpoint(tmp_path / "killed", 20), reset_num_timesteps=False)
    assert resumed.num_timesteps == 70 and th.equal(weights_of(whole), weights_of(resumed))
    for mine, theirs in zip(whole._optimizers(), resumed._optimizers()):
        states = [[state["exp_avg"] for state in optimizer.state.values()] for optimizer in (mine, theirs)]
        assert len(states[0]) == len(states[1]) and all(th.equal(a, b) for a, b in zip(*states))


# --- offline ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [DualQDM, IQLearn, RegIQLearn, LSIQ, ValueDICE, ReCOIL])
@pytest.mark.parametrize("options", [{}, {"value_mode": "initial"}])
def test_offline_counts_updates_and_needs_spaces_alone(cls, options, demos, tmp_path):
    if options and cls.has_paper_objective:
        options = {**options, "objective": "paper"}
    env = gym.make(BOX)
    spaces_of = {"observation_space": env.observation_space, "action_space": env.action_space}
    model = cls("MlpPolicy", None, demonstrations=demos[BOX], offline=True, seed=0, **spaces_of, **SMALL, **options)
    callback = EvalCallback(gym.make(BOX), n_eval_episodes=1, eval_freq=10, log_path=str(tmp_path), verbose=0)
    model.learn(20, callback)
    assert model.num_timesteps == model._n_updates == 20
    assert model._replay_buffer is None or model.replay_buffer.size() == 0
    assert np.load(tmp_path / "evaluations.npz")["timesteps"].tolist() == [10, 20]
    model.save(tmp_path / "model.zip")
    loaded = cls.load(tmp_path / "model.zip", demonstrations=demos[BOX])
    assert loaded.learn(10, reset_num_timesteps=False)._n_updates == 30


def test_offline_makes_no_step(demos):
    env = CountingEnv(discrete=False)
    expert = collect_demonstrations(lambda obs: np.array([1.0]), CountingEnv(discrete=False), 2)
    RegIQLearn("MlpPolicy", env, demonstrations=expert, offline=True, **SMALL).learn(15)
    assert env.n_steps == 0


def test_offline_rows_are_demonstrations_and_their_starts():
    expert = collect_demonstrations(lambda obs: np.array([1.0]), CountingEnv(discrete=False), 3)
    options = {"value_mode": "initial", "objective": "paper", "gamma": 0.5}
    model = DualQDM("MlpPolicy", CountingEnv(discrete=False), demonstrations=expert, offline=True, **SMALL, **options)
    batch = model._sample_batch(64)
    assert (batch.initial_obs[:, 1] == 0).all() and len(batch.initial_obs) == len(batch.actions) == SMALL["batch_size"]
    n = len(batch.actions)
    for weight in (batch.weights.constraint, batch.weights.actor):
        th.testing.assert_close(weight[:n], th.full((n,), 1 / n))
    assert (batch.weights.replay == 0).all()
    assert batch.weights.value.sum().item() == pytest.approx(1) == batch.weights.expert.sum().item()


def test_offline_regulariser_of_reg_iq_learn_is_on_demonstrations():
    expert = collect_demonstrations(lambda obs: np.array([1.0]), CountingEnv(discrete=False), 1)
    model = RegIQLearn("MlpPolicy", CountingEnv(discrete=False), demonstrations=expert, offline=True, **SMALL)
    weights = model._sample_batch(8).weights
    q, y = th.full((1, 16), 3.0), th.full((16,), 1.0)
    loss = model.critic_loss(Rows(q, th.zeros(16), y, y), weights._replace(expert=th.zeros(16), value=th.zeros(16)))
    # 0.5 r^2 with r = 2, for every row and once more for each terminated one
    assert loss.item() == pytest.approx(0.5 * 4 * weights.constraint.sum().item())
    assert weights.constraint.sum() >= 1


def test_offline_uses_extra_transitions(demos):
    model = SQIL("MlpPolicy", BOX, demonstrations=demos[BOX], offline=True, extra_transitions=demos[BOX], **SMALL)
    model.learn(5)
    batch = model._sample_batch(8)
    assert len(batch.actions) == 16 and batch.weights.replay[:8].sum().item() == pytest.approx(1)
    assert model.replay_buffer.size() == len(demos[BOX])


def test_offline_refusals(demos):
    with pytest.raises(ValueError, match="offline=True was given but SQIL needs transitions beside"):
        SQIL("MlpPolicy", BOX, demonstrations=demos[BOX], offline=True)
    with pytest.raises(ValueError, match="'q_old_policy' needs replay rows"):
        LSIQ("MlpPolicy", BOX, demonstrations=demos[BOX], offline=True, policy_term="q_old_policy")
    with pytest.raises(ValueError, match="offline=False was given but BC"):
        BC("MlpPolicy", BOX, demonstrations=demos[BOX], offline=False)
    box = spaces.Box(-1, 1, (3,), dtype=np.float32)
    with pytest.raises(ValueError, match="DualQDM makes environment steps"):
        DualQDM("MlpPolicy", None, observation_space=box, action_space=box)
    with pytest.raises(ValueError, match="env is None: pass an environment, or offline=True"):
        DualQDM("MlpPolicy", None, offline=True)


@pytest.mark.parametrize("cls, options", [(SQIL, {}), (RIZE, {}), (LSIQ, {"policy_term": "q_old_policy"})])
def test_offline_models_without_their_data_predict(cls, options, demos, tmp_path):
    options = {"demonstrations": "builtin:Pendulum-v1", "offline": True, **options, **SMALL}
    model = cls("MlpPolicy", BOX, extra_transitions=demos[BOX], **options).learn(3)
    model.save(tmp_path / "model")  # the path of the demonstrations, but no objects
    loaded = cls.load(tmp_path / "model")
    obs = np.ones(3, dtype=np.float32)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    with pytest.raises(ValueError, match="extra_transitions="):
        loaded.learn(3)
    assert cls.load(tmp_path / "model", extra_transitions=demos[BOX]).learn(3).num_timesteps == 3
    bare = cls("MlpPolicy", BOX, **{**options, "demonstrations": None})
    bare.set_demonstrations(demos[BOX])
    with pytest.raises(ValueError, match="extra_transitions="):
        bare.learn(3)


# --- SQIL -------------------------------------------------------------------------------------------------------------------


def test_sqil_loss():
    rows, weights = two_rows(q=[3.0, 5.0], v=[0.0, 0.0], y=[2.0, 1.0])
    # replay (3 - 0 - 2)^2 = 1, expert (5 - 1 - 1)^2 = 9
    assert objectives.sqil_loss(rows, weights).item() == pytest.approx(10)
    assert objectives.sqil_loss(rows, weights, replay_weight=0.5).item() == pytest.approx(9.5)


# --- LS-IQ ------------------------------------------------------------------------------------------------------------------


def test_ls_iq_constants():
    targets = LSIQTargets.of(0.5, 0.99)
    assert targets.r_max == pytest.approx(2) and targets.q_max == pytest.approx(200)


def test_ls_iq_loss():
    rows, weights = two_rows(q=[1.0, 190.0], v=[4.0, 6.0], y=[3.0, 500.0])
    targets = LSIQTargets.of(0.5, 0.99)
    # expert (190 - 200)^2 = 100; y is clipped to 198: V rows (4 + 2 - 3)^2 = 9 and (6 + 2 - 198)^2 = 36100
    assert objectives.ls_iq_loss(rows, weights, 0.99, targets).item() == pytest.approx(100 + (9 + 36100) / 2)
    # Q of the replay row: (1 + 2 - 3)^2 = 0
    assert objectives.ls_iq_loss(rows, weights, 0.99, targets, "q_old_policy").item() == pytest.approx(100)
    # bootstrapped expert row: (190 - 2 - 198)^2 = 100
    boot = objectives.ls_iq_loss(rows, weights, 0.99, targets, "q_old_policy", "bootstrap")
    assert boot.item() == pytest.approx(100)
    # Huber of -10 is 10 - 1/2
    assert objectives.ls_iq_loss(rows, weights, 0.99, targets, "q_old_policy", huber=True).item() == pytest.approx(9.5)


def test_ls_iq_charge():
    q, v, terminated = th.tensor([11.0, 1.0, 50.0]), th.tensor([10.0, 0.0, 7.0]), th.tensor([0.0, 0.0, 1.0])
    # r = 11 - 0.99 * 10 = 1.1; 1; 50, clipped to 2
    charge = objectives.ls_iq_regularizer(q, v, terminated, 0.99, 0.5, False)
    np.testing.assert_allclose(charge.numpy(), [0.5 * 1.1**2, 0.5, 0.5 * 4], rtol=1e-5)
    # the absorbing state: (1 - gamma) c 50^2
    assert objectives.ls_iq_regularizer(q, v, terminated, 0.99, 0.5, True)[2].item() == pytest.approx(0.01 * 0.5 * 2500)


def test_ls_iq_h_learns_the_discounted_entropy(demos):
    """One update's loss, recomputed from the target network."""
    model = build("ls_iq_h", demos, ent_coef=0.3, expert_entropy="unclipped").learn(10)
    batch = model._sample_batch(8)
    h, h_target = model.networks["h"], model.networks["h_target"]
    with th.no_grad():
        draw = model.policy.draw(batch.next_obs, batch.noise.next_obs)
        target = 0.99 * (h_target(batch.next_obs, draw.actions[0]) - 0.3 * draw.log_prob[0])
        expected = (h(batch.obs, batch.actions) - target).square().mean()
    assert model._entropy_step(batch).item() == pytest.approx(expected.item(), rel=1e-5)
    assert not th.equal(h.head[0].weight, h_target.head[0].weight)


@pytest.mark.parametrize("charged_state", ["current", "next"])
def test_ls_iq_hc_learns_the_charge_of_the_reward_too(charged_state, demos):
    """One update's loss, with c r^2 of the target network's implicit reward written out."""
    options = {"ent_coef": 0.3, "expert_entropy": "unclipped", "charged_state": charged_state}
    model = build("ls_iq_hc", demos, **options).learn(10)
    batch = model._sample_batch(8)
    h, h_target = model.networks["h"], model.networks["h_target"]
    with th.no_grad():
        model.critic_target.q_networks[0][-1].weight.mul_(5.0)
        draw = model.policy.draw(batch.next_obs, batch.noise.next_obs)
        following = h_target(batch.next_obs, draw.actions[0]) - 0.3 * draw.log_prob[0]
        obs, actions = batch.next_obs, draw.actions[0]
        if charged_state == "current":
            obs, actions = batch.obs, model.policy.draw(batch.obs, batch.noise.obs).actions[0]
        v = model.critic_target.q_values(obs, actions)[0]
        r = model.critic_target.q_values(batch.obs, batch.actions)[0] - 0.99 * v
        charge = 0.5 * r.clamp(-2, 2).square()
        expected = th.nn.functional.huber_loss(h(batch.obs, batch.actions), 0.99 * following + charge)
    assert charge.max() > 0.1
    assert model._entropy_step(batch).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("tau, entropy_tau, expected", [(1.0, None, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 1.0)])
def test_ls_iq_entropy_tau_is_that_of_the_entropy_networks_target(tau, entropy_tau, expected, demos):
    model = build("ls_iq_h", demos, tau=tau, entropy_tau=entropy_tau)
    h, h_target = (model.networks[name].head[0].weight for name in ("h", "h_target"))
    begin = h_target.clone()
    model.learn(10)
    assert not th.equal(h, begin) and th.equal(h_target, h if expected == 1.0 else begin)


def test_ls_iq_h_keeps_the_entropy_out_of_q(demos):
    model = build("ls_iq_h", demos, ent_coef=0.3).learn(10)
    batch = model._sample_batch(8)
    draw = model.policy.draw(batch.obs, batch.noise.obs)
    with th.no_grad():
        rows = model._rows(batch, draw, model._critic_ent_coef())
        q = model.critic.q_values(batch.obs, draw.actions[0])[0]
        th.testing.assert_close(rows.v[:16], q)
        # the actor maximises Q + H
        q_and_h = q + model.networks["h"](batch.obs, draw.actions[0])
        th.testing.assert_close(model._actor_values(batch, draw), q_and_h)
        critic_loss = model.critic_loss(rows, batch.weights)
    freeze(model.critic.optimizer, model.actor.optimizer, model.networks["h"].optimizer)
    statistics = model._update(batch)
    assert statistics["critic_loss"].item() == pytest.approx(critic_loss.item(), rel=1e-6)
    expected = (0.3 * draw.log_prob[0] - q_and_h).mean().item()
    assert statistics["actor_loss"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("mode, expected", [("clip_below", [3.0, 9.0]), ("clip_above", [1.0, 3.0]), ("unclipped", [1.0, 9.0])])
def test_ls_iq_entropies_of_the_expert_are_clipped(mode, expected, demos):
    model = build("ls_iq_h", demos, expert_entropy=mode)
    model.networks["h"].largest_entropy.fill_(3.0)
    entropy = model._next_entropies(th.tensor([3.0, 2.0, 1.0, 9.0]), 2)
    assert entropy.tolist() == [3.0, 2.0, *expected]


def test_ls_iq_running_maximum_rises_faster_than_it_falls(demos):
    model = build("ls_iq_h", demos)
    largest = model.networks["h"].largest_entropy
    model._next_entropies(th.tensor([100.0, 0.0]), 1)
    assert largest.item() == pytest.approx(1.0)
    model._next_entropies(th.tensor([-99.0, 0.0]), 1)
    assert largest.item() == pytest.approx(1 - 100e-4)


def test_ls_iq_refusals(demos):
    with pytest.raises(ValueError, match="variant is 'X' but must be one of"):
        build("ls_iq", demos, variant="X")
    for wrong in (0, "a", None, float("inf")):
        with pytest.raises(ValueError, match=rf"regularization is {wrong!r} but a number in \(0, inf\) is needed"):
            build("ls_iq", demos, regularization=wrong)


# --- DAC and the absorbing state's indicator --------------------------------------------------------------------------------


def test_dac_logs_its_discriminators_accuracy_and_rewards(demos):
    model = build("dac_zero", demos).learn(10)
    discriminator = model.networks["discriminator"]
    freeze(discriminator.optimizer)
    batch = model._sample_batch(8)
    statistics = model._update(batch)
    with th.no_grad():
        logits = discriminator.of_batch(batch, "zero")
        rewards = objectives.discriminator_reward(logits[:8], "gail")
    expected = {"learned_reward": rewards.mean(), "learned_reward_min": rewards.min(), "learned_reward_max": rewards.max()}
    expected["discriminator_accuracy_expert"] = (logits[8:] > 0).float().mean()
    expected["discriminator_accuracy_replay"] = (logits[:8] <= 0).float().mean()
    for name, value in expected.items():
        th.testing.assert_close(statistics[name], value)
    assert statistics["gradient_penalty"] > 0


@pytest.mark.parametrize("form, expected", [("airl", 0.0), ("gail", np.log(2)), ("fairl", 0.0)])
def test_discriminator_reward_of_an_undecided_discriminator(form, expected):
    assert objectives.discriminator_reward(th.zeros(1), form).item() == pytest.approx(expected, abs=1e-5)


def test_discriminator_reward():
    logit = th.tensor([1.5])
    assert objectives.discriminator_reward(logit, "airl").item() == pytest.approx(1.5, rel=1e-4)
    assert objectives.discriminator_reward(logit, "gail").item() == pytest.approx(np.log(1 + np.exp(1.5)), rel=1e-4)
    assert objectives.discriminator_reward(logit, "fairl").item() == pytest.approx(-1.5 * np.exp(1.5), rel=1e-4)
    assert th.isfinite(objectives.discriminator_reward(th.tensor([-100.0, 100.0]), "airl")).all()


def test_discriminator_loss():
    _, weights = two_rows([0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    loss = objectives.discriminator_loss(th.tensor([1.0, 2.0]), weights)
    assert loss.item() == pytest.approx(-np.log(1 - 1 / (1 + np.exp(-1.0))) - np.log(1 / (1 + np.exp(-2.0))), rel=1e-5)


def test_td_loss_sums_over_critics():
    rows = Rows(th.tensor([[3.0, 0.0], [1.0, 0.0]]), th.zeros(2), th.zeros(2), th.tensor([0.5, 9.0]))
    # (3 - 2 - 0.5)^2 + (1 - 2 - 0.5)^2
    assert objectives.td_loss(rows, th.tensor([2.0, 9.0]), th.tensor([1.0, 0.0])).item() == pytest.approx(2.5)


@pytest.mark.parametrize("centre, expected", [(0.0, 25.0), (1.0, 16.0), (0.4, 4.6**2)])
def test_gradient_penalty_of_a_linear_function(centre, expected):
    """f(x) = 3 x1 - 4 x2 has a gradient of norm 5 everywhere."""
    linear = th.nn.Linear(2, 1)
    with th.no_grad():
        linear.weight.copy_(th.tensor([[3.0, -4.0]]))
    penalty = objectives.gradient_penalty(
        lambda x: linear(x).squeeze(-1), th.randn(6, 2), th.randn(6, 2), th.rand(6, 1), centre
    )
    assert penalty.item() == pytest.approx(expected, rel=1e-5)
    # d (|w| - c)^2 / dw = 2 (|w| - c) w / |w|
    penalty.backward()
    np.testing.assert_allclose(linear.weight.grad[0].numpy(), 2 * (5 - centre) * np.array([0.6, -0.8]), rtol=1e-4)


def test_gradient_penalty_is_taken_between_the_rows():
    """f(x) = x^2 / 2 has the gradient x."""
    first, second, mix = th.tensor([[2.0]]), th.tensor([[6.0]]), th.tensor([[0.25]])
    penalty = objectives.gradient_penalty(lambda x: x.square().sum(dim=1) / 2, first, second, mix, 0.0)
    assert penalty.item() == pytest.approx(25.0)


@pytest.mark.parametrize("name, centre", [("dac_zero", 0.0), ("hype", 0.4), ("value_dice", 1.0)])
def test_gradient_penalty_is_part_of_the_step(name, centre, demos):
    """The step's gradient with a weight of 2 is that without the penalty, and twice the penalty's between the rows."""
    halves = {"expert_fraction": 0.5, "cost_batch_size": 4} if name == "hype" else {}
    model = build(name, demos, terminal_value="zero", **halves).learn(10)
    batch = model._sample_batch(8)
    n = len(batch.actions) // 2
    inputs = [(batch.obs, batch.actions)]
    if name == "value_dice":
        nu, step = model.critic.q_networks[0], model._update
        inputs.append((batch.next_obs, model.policy.draw(batch.next_obs, batch.noise.next_obs).actions[0].detach()))
        freeze(model.critic.optimizer, model.actor.optimizer)
    else:
        f = model.networks["discriminator" if name == "dac_zero" else "cost"]
        nu, step = f.head, model._discriminator_step if name == "dac_zero" else model._cost_step
        model.cost_learning_rate = 0.0
        freeze(f.optimizer)
    weights = [layer.weight for layer in nu if isinstance(layer, th.nn.Linear)]

    def gradients(weight):
        model.gradient_penalty = weight
        step(batch)
        return [parameter.grad.clone() for parameter in weights]

    penalty = 0.0
    for obs, actions in inputs:
        rows = th.cat([obs, actions], dim=1)
        rows = rows if name == "value_dice" else th.cat([rows, th.zeros(2 * n, 1)], dim=1)
        mix = batch.noise.uniform[:n]
        points = (mix * rows[n:] + (1 - mix) * rows[:n]).requires_grad_(True)
        (slope,) = th.autograd.grad(nu(points).sum(), points, create_graph=True)
        penalty = penalty + (slope.norm(dim=1) - centre).square().mean() / len(inputs)
    expected = th.autograd.grad(2 * penalty, weights)
    for with_penalty, without, gradient in zip(gradients(2.0), gradients(0.0), expected):
        assert gradient.abs().max() > 1e-3
        th.testing.assert_close(with_penalty - without, gradient, rtol=1e-3, atol=1e-5)


def test_indicator_of_the_absorbing_state(demos):
    discriminator = build("dac", demos).networks["discriminator"]
    obs, actions = th.randn(5, 3), th.rand(5, 1)
    inputs = discriminator.inputs(obs, actions)
    assert th.equal(inputs, th.cat([obs, actions, th.zeros(5, 1)], dim=1))
    point = th.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])
    discriminator.eval()
    batch = SimpleNamespace(obs=obs, actions=actions)
    values = discriminator.of_batch(batch, "absorbing")
    assert values[5:].tolist() == pytest.approx([discriminator.head(point).item()] * 5)
    th.testing.assert_close(values[:5], discriminator.head(inputs).squeeze(-1))
    assert th.equal(discriminator.of_batch(batch, "zero"), values[:5])


def test_one_hot_inputs_of_discrete_actions(demos):
    discriminator = build("dac", demos, DISCRETE).networks["discriminator"]
    inputs = discriminator.inputs(th.zeros(2, 4), th.tensor([1, 0]))
    assert inputs[:, 4:].tolist() == [[0, 1, 0], [1, 0, 0]]


def test_dac_learns_from_replay_rows_with_rewards_of_the_discriminator(demos):
    model = build("dac", demos).learn(10)
    batch = model._sample_batch(8)
    part = batch.replay_part(8)
    assert th.equal(part.obs, batch.obs[:8]) and th.equal(part.noise.next_obs, batch.noise.next_obs[:, :8])
    assert part.weights.actor[:8].tolist() == pytest.approx([1 / 8] * 8) and len(part.weights.actor) == 16
    assert (part.weights.expert == 0).all()
    assert all(th.equal(ours, theirs[8:]) for ours, theirs in zip(batch.expert_rows(), (batch.obs, batch.actions)))


def absorbing_batch(model):
    """A batch whose first replay row and first expert row terminate."""
    batch = model._sample_batch(8)
    terminated = th.zeros(16)
    terminated[[0, 8]] = 1
    weights = RowWeights(*(th.cat([weight[:16], weight[:16] * terminated]) for weight in batch.weights))
    return batch._replace(not_terminated=1 - terminated, weights=weights)


def test_absorbing_rows_teach_the_discriminator(demos):
    """With the first rows terminated, the absorbing point counts once for the expert and once for replay."""
    model = build("dac", demos, gradient_penalty=0.0).learn(10)
    batch = absorbing_batch(model)
    logits = model.networks["discriminator"].of_batch(batch, "absorbing").detach()
    model.networks["discriminator"].train()
    loss = model._discriminator_step(batch)["discriminator_loss"].item()
    softplus = th.nn.functional.softplus
    rows = softplus(-logits[8:16]).mean() + softplus(logits[:8]).mean()
    point = (softplus(-logits[16]) + softplus(logits[16])) / 8
    assert loss == pytest.approx((rows + point).item(), rel=0.02)  # the spectral norm is estimated anew


def test_dac_estimates_spectral_norms_by_its_loss_alone(demos):
    """Neither the penalty nor the rewards, which are of the discriminator as it is, iterate any further."""
    model = build("dac", demos, terminal_value="zero").learn(10)
    discriminator, batch = model.networks["discriminator"], model._sample_batch(8)
    estimates = [estimate for name, estimate in discriminator.named_buffers() if name.endswith(("_u", "_v"))]
    begin = [th.nn.functional.normalize(th.randn_like(estimate), dim=0) for estimate in estimates]
    seen = []
    for use in (lambda: discriminator.train()(batch.obs, batch.actions), lambda: model._update(batch)):
        for estimate, start in zip(estimates, begin):
            estimate.copy_(start)
        use()
        seen.append([estimate.clone() for estimate in estimates])
    assert len(estimates) == 4 and not th.equal(seen[0][0], begin[0])
    assert all(th.equal(one, update) for one, update in zip(*seen))


class Door(gym.Env):
    """Nothing to see; action 1 leaves (terminated), action 0 stays, for ten steps at most (truncated)."""

    observation_space = spaces.Box(-1, 1, (1,), dtype=np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.ones(1, dtype=np.float32), {}

    def step(self, action):
        self.t += 1
        return np.ones(1, dtype=np.float32), 0.0, bool(action == 1), action == 0 and self.t == 10, {}


@pytest.mark.parametrize("reward", [1.5, -1.5])
@pytest.mark.parametrize("terminal_value", ["absorbing", "zero"])
def test_constant_rewards_favour_neither_long_nor_short_episodes(reward, terminal_value):
    """
    Under a reward r everywhere, staying and leaving are worth r / (1 - gamma) alike. Without absorbing states leaving is
    worth r alone, which a positive reward makes the worse choice (long episodes) and a negative one the better.
    """
    expert = collect_demonstrations(lambda obs: 1, Door(), 4)
    options = {"gamma": 0.5, "tau": 0.1, "learning_rate": 3e-3, "ent_coef": 0.0, "seed": 0, "warmup": "uniform"}
    options |= {"cost_arch": [4], "cost_batch_size": 8, "learning_starts": 60, "device": "cpu", "batch_size": 32}
    network = {"net_arch": [16], "n_critics": 1}
    model = HyPE("MlpPolicy", Door(), demonstrations=expert, terminal_value=terminal_value, policy_kwargs=network, **options)
    model.learn(61)
    head = model.networks["cost"].head
    with th.no_grad():
        head[-1].weight.zero_()
        head[-1].bias.fill_(-reward)
    model.train(800, 32)
    with th.no_grad():
        stay, leave = model.critic(th.ones(1, 1))[0, 0].tolist()
    if terminal_value == "absorbing":
        expected = [reward / 0.5, reward / 0.5]
    else:
        expected = [reward / 0.5, reward] if reward > 0 else [reward + 0.5 * reward, reward]
    assert [stay, leave] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("leaves", [True, False])
def test_dac_imitates_a_bad_expert_in_both_directions(leaves):
    """Whether it is good to leave or to stay is nowhere to be seen: the learner does what the expert did."""
    expert = collect_demonstrations(lambda obs: int(leaves), Door(), 4)
    options = {"gamma": 0.9, "tau": 0.05, "learning_rate": 3e-3, "ent_coef": 0.05, "seed": 0, "warmup": "uniform"}
    options |= {"discriminator_learning_rate": 3e-3, "discriminator_weight_decay": 0.0, "discriminator_arch": [16]}
    options |= {"learning_starts": 50, "batch_size": 32, "device": "cpu", "reward": "gail"}
    model = DAC("MlpPolicy", Door(), demonstrations=expert, policy_kwargs={"net_arch": [16]}, **options)
    model.learn(500)
    assert model.predict(np.ones(1, dtype=np.float32), deterministic=True)[0] == int(leaves)


def test_dac_refusals(demos):
    with pytest.raises(ValueError, match="offline=True was given but DAC needs rollouts"):
        build("dac", demos, offline=True)
    with pytest.raises(ValueError, match="reward is 'x' but must be one of"):
        build("dac", demos, reward="x")


# --- ValueDICE --------------------------------------------------------------------------------------------------------------


def test_value_dice_terms_have_the_gradient_of_the_logarithm():
    generator = th.Generator().manual_seed(0)
    d = th.randn(6, generator=generator, dtype=th.float64, requires_grad=True)
    expert = th.tensor([0, 0, 0, 1 / 3, 1 / 3, 1 / 3], dtype=th.float64)
    replay = th.tensor([1 / 3, 1 / 3, 1 / 3, 0, 0, 0], dtype=th.float64)
    weights = RowWeights(expert, expert, expert, expert, replay)
    log_term, linear = objectives.value_dice_terms(d, th.tensor([2.0, 4.0], dtype=th.float64), weights, 0.1, 0.99)
    exact = ((0.9 * expert + 0.1 * replay) * d.exp()).sum().log()
    (gradient,) = th.autograd.grad(log_term, d, retain_graph=True)
    (expected,) = th.autograd.grad(exact, d)
    th.testing.assert_close(gradient, expected)
    # 0.9 * 0.01 * 3 + 0.1 * mean of the replay rows
    assert linear.item() == pytest.approx(0.027 + 0.1 * d[:3].mean().item())


def test_a_constant_added_to_nu_changes_nothing_in_value_dice():
    """Two replay rows, the first of which terminated, then two expert rows, and their absorbing rows."""
    expert, replay = th.zeros(8), th.zeros(8)
    expert[2:4], replay[:2], replay[4] = 0.5, 0.5, 0.5
    weights = RowWeights(expert, expert, expert, expert, replay)
    constant = th.zeros((), requires_grad=True)
    d = th.tensor([3.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]) + (1 - 0.9) * constant
    log_term, linear = objectives.value_dice_terms(d, th.zeros(2) + constant, weights, 0.1, 0.9)
    assert linear.item() == pytest.approx(0.1 * (3 + 1 + 2) / 3)
    # a tenth of the mixture is replay, of which each of three rows is a third
    shares = th.tensor([0.1 / 3, 0.1 / 3, 0.45, 0.45, 0.1 / 3]) * th.tensor([3.0, 1.0, 0.0, 0.0, 2.0]).exp()
    assert log_term.item() == pytest.approx(((shares / shares.sum()) @ th.tensor([3.0, 1.0, 0.0, 0.0, 2.0])).item(), rel=1e-5)
    (gradient,) = th.autograd.grad(log_term - linear, constant)
    assert gradient.item() == pytest.approx(0, abs=1e-6)


def test_value_dice_differences(demos):
    model = build("value_dice", demos, gamma=0.9).learn(10)
    with th.no_grad():
        model.critic.absorbing.fill_(0.5)  # a value of 0.5 / (1 - 0.9) = 5
    batch = absorbing_batch(model)
    d = model._differences(batch, th.full((16,), 3.0), th.full((16,), 2.0))
    assert d[0].item() == pytest.approx(3 - 0.9 * 5) and d[1].item() == pytest.approx(3 - 0.9 * 2)
    assert d[16:].tolist() == pytest.approx([0.1 * 5] * 16)
    model.terminal_value = "zero"
    assert model._differences(batch, th.full((16,), 3.0), th.full((16,), 2.0))[0].item() == pytest.approx(3)


def test_value_dice_steps_nu_and_policy_against_each_other(demos):
    model = build("value_dice", demos, gradient_penalty=0.0, orthogonality=0.0).learn(10)
    for group in [*model.critic.optimizer.param_groups, *model.actor.optimizer.param_groups]:
        group["lr"] = 0.0
    batch = model._sample_batch(8)
    model._update(batch)
    nu, policy = (network[-1].weight.grad.clone() for network in (model.critic.q_networks[0], [model.actor.mu]))
    # autograd of the objective itself, written out
    next_actions = model.policy.draw(batch.next_obs, batch.noise.next_obs).actions[0]
    actions = model.policy.draw(batch.obs, batch.noise.obs).actions[0]
    values = model.critic.q_values(batch.obs, batch.actions)[0]
    d = values - 0.99 * model.critic.q_values(batch.next_obs, next_actions)[0]
    start = model.critic.q_values(batch.obs, actions)[0][8:].mean()
    mixture = th.cat([th.full((8,), 0.1 / 8), th.full((8,), 0.9 / 8)])
    objective = (mixture * d.exp()).sum().log() - 0.9 * 0.01 * start - 0.1 * d[:8].mean()
    expected = th.autograd.grad(objective, [model.critic.q_networks[0][-1].weight, model.actor.mu.weight])
    th.testing.assert_close(nu, expected[0], rtol=1e-3, atol=1e-5)
    th.testing.assert_close(policy, -expected[1], rtol=1e-3, atol=1e-5)


def test_value_dice_draws_the_actors_units_apart(demos):
    """The derivative of the squared products of different rows of W is 4 (W W^T - diagonal) W."""
    model = build("value_dice", demos).learn(10)
    freeze(model.critic.optimizer, model.actor.optimizer)
    batch, weight, gradients = model._sample_batch(8), model.actor.latent_pi[0].weight, []
    for model.orthogonality in (0.5, 0.0):
        model._update(batch)
        gradients.append(weight.grad.clone())
    products = (weight @ weight.T).fill_diagonal_(0.0)
    th.testing.assert_close(gradients[0] - gradients[1], 0.5 * 4 * products @ weight, rtol=1e-3, atol=1e-5)


def test_orthogonality():
    weight = th.tensor([[1.0, 2.0], [3.0, -1.0]])
    # rows' product is 3 - 2 = 1, found twice
    assert objectives.orthogonality([weight, weight]).item() == pytest.approx(4)


def test_value_dice_refusals(demos):
    with pytest.raises(ValueError, match="ent_coef is 'auto' but ValueDICE has no entropy"):
        build("value_dice", demos, ent_coef="auto")
    with pytest.raises(ValueError, match="n_critics is 2"):
        build("value_dice", demos, policy_kwargs={"net_arch": [16], "n_critics": 2})


def constant_nu(demos):
    """nu is 3 in every state and 5 in the absorbing one."""
    model = build("value_dice", demos, gamma=0.9).learn(10)
    with th.no_grad():
        model.critic.q_networks[0][-1].weight.zero_()
        model.critic.q_networks[0][-1].bias.fill_(3.0)
        model.critic.absorbing.fill_(0.5)  # over 1 - gamma
    return model


def test_value_dice_implicit_reward_has_minus_nu_as_q(demos):
    model = constant_nu(demos)
    obs, actions, next_obs = demos[BOX].obs[:2], demos[BOX].actions[:2], np.asarray(demos[BOX].next_obs[:2])
    reward = model.implicit_reward(obs, actions, next_obs, np.array([False, True]))
    np.testing.assert_allclose(reward, [-3 + 0.9 * 3, -3 + 0.9 * 5], rtol=1e-5)
    model._record_evaluation()
    assert model.logger.name_to_value["train/initial_value"] == pytest.approx(-3)


def test_value_dice_rewards_the_experts_action():
    """The expert's action is 0.8 in every state: it is worth more than -0.8, in the implicit reward and in SAC's critics."""
    env = EchoEnv(discrete=False)
    expert = collect_demonstrations(lambda obs: np.array([0.8], np.float32), env, 2, seed=0)
    model = ValueDICE("MlpPolicy", env, demonstrations=expert, **{**SMALL, "batch_size": 64}, gradient_steps=1, seed=0)
    model.learn(500)
    obs, next_obs = np.random.default_rng(0).uniform(-1, 1, (2, 100, 2)).astype(np.float32)
    actions = {a: np.full((100, 1), a, np.float32) for a in (-0.8, 0.8)}
    reward = {a: model.implicit_reward(obs, actions[a], next_obs, np.zeros(100)).mean() for a in actions}
    assert reward[0.8] > reward[-0.8] + 0.1
    with pytest.warns(UserWarning, match="spread differs"):
        sac = to_sac(model)
    for ours, theirs in ((model.critic, sac.critic), (model.critic_target, sac.critic_target)):
        with th.no_grad():
            nu, q = ({a: f(th.as_tensor(obs), th.as_tensor(actions[a])) for a in actions} for f in (ours.q_values, theirs))
        assert th.equal(q[0.8][0].squeeze(1), -nu[0.8][0])
        assert q[0.8][0].mean() > q[-0.8][0].mean() + 0.1


# --- HyPE -------------------------------------------------------------------------------------------------------------------


def test_moment_loss_is_low_where_the_expert_is_cheap():
    _, weights = two_rows([0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    # the learner's row costs 3, the expert's 1
    assert objectives.moment_loss(th.tensor([3.0, 1.0]), weights).item() == pytest.approx(-2)
    # the learner's row terminated: its mean is over that row and the absorbing one, and a constant cost tells nothing
    expert, replay = th.tensor([0.0, 1.0, 0.0, 0.0]), th.tensor([1.0, 0.0, 1.0, 0.0])
    weights = RowWeights(expert, expert, expert, expert, replay)
    assert objectives.moment_loss(th.tensor([3.0, 1.0, 7.0, 0.0]), weights).item() == pytest.approx(1 - 5)
    assert objectives.moment_loss(th.ones(4), weights).item() == pytest.approx(0)


def test_hype_lowers_the_cost_of_demonstrations_and_rewards_its_negative():
    """The learner goes one way, the expert the other: after the cost's first step the expert's rows pay more."""
    expert = collect_demonstrations(lambda obs: np.array([4.0]), CountingEnv(discrete=False), 2)
    model = build("hype", {BOX: expert}, env=CountingEnv(discrete=False), gradient_penalty=0.0)
    model.learn(9)
    batch = model._sample_batch(8)
    n = model._n_replay(batch)
    obs, far = th.zeros(1, 2), -th.ones(1, 1)
    cost = model.networks["cost"]
    before = (cost(obs, far) - cost(obs, -far)).item()
    for _ in range(20):
        wide = model._sample_batches(1, 8)
        wide = wide._replace(obs=th.zeros_like(wide.obs), actions=th.where(wide.weights.expert[:, :8, None] > 0, 1.0, -1.0))
        model.cost_batch_size = n
        model._cost_step(wide.at(0))
    after = (cost(obs, far) - cost(obs, -far)).item()
    assert after > before + 0.01  # the learner's action costs more, the expert's less


def test_hype_steps_the_cost_as_an_optimiser_that_has_just_begun(demos):
    """Such a step of Adam has the learning rate's size in every parameter, an optimistic one twice it."""
    model = build("hype", demos, expert_fraction=0.5, cost_batch_size=4).learn(20)
    model._n_cost_updates = 4
    cost = model.networks["cost"]
    for _ in range(2):
        before = [parameter.clone() for parameter in cost.parameters()]
        model._cost_step(model._sample_batch(8))
        for parameter, old in zip(cost.parameters(), before):
            moves = parameter.grad.abs() > 1e-3
            expected = -2 * 2e-4 * parameter.grad[moves].sign()
            th.testing.assert_close((parameter - old)[moves], expected, rtol=1e-2, atol=1e-7)


def test_hype_optimises_by_optimistic_adam(demos):
    model = build("hype", demos)
    optimizers = [model.actor.optimizer, model.critic.optimizer, model.networks["cost"].optimizer]
    assert [type(optimizer) for optimizer in optimizers] == [OptimisticAdam] * 3


def test_hype_relabels_every_batch(demos):
    """The critic's targets follow the cost as it is now: a constant cost is a constant reward of the other sign."""
    model = build("hype", demos, terminal_value="zero", ent_coef=0.1).learn(10)
    head = model.networks["cost"].head
    with th.no_grad():
        head[-1].weight.zero_()
        head[-1].bias.fill_(1.5)
    batch = model._sample_batch(8)
    with th.no_grad():
        rows = model._rows(batch, model.policy.draw(batch.obs, batch.noise.obs), 0.1)
        expected = (rows.q + 1.5 - rows.y_target).square().mean(dim=1).sum()
    statistics = model._update(batch)
    assert statistics["critic_loss"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert statistics["learned_reward_replay"].item() == pytest.approx(-1.5)


def test_hype_batches_and_rounds(demos):
    model = build("hype", demos, batch_size=10, expert_fraction=0.3)
    model.learn(40)
    batch = model._sample_batch(10)
    assert len(batch.actions) == 10 and model._n_replay(batch) == 7
    # updates of the cost at steps 9, 24 and 39
    assert model._n_cost_updates == 3
    assert model._network_rate("cost", 1.0) == pytest.approx(8e-4 / 3)


def test_hype_takes_shares_between_0_and_1_alone(demos):
    for wrong in (-1.0, 2.0, float("nan"), None):
        message = f"expert_fraction at the remaining progress 1 is {wrong!r} but a number in"
        with pytest.raises(ValueError, match=message):
            build("hype", demos, expert_fraction=lambda progress, wrong=wrong: wrong)
    with pytest.raises(ValueError, match=r"remaining progress 0 is -0\.5"):
        build("hype", demos, expert_fraction=lambda progress: progress - 0.5)
    model = build("hype", demos, expert_fraction=lambda progress: 0.5 if progress in (0, 1) else 1.5)
    with pytest.raises(ValueError, match=r"remaining progress 0\.55 is 1\.5"):
        model.learn(20)  # at the ninth step, the first with an update
    assert build("hype", demos, batch_size=10, expert_fraction=lambda progress: progress).learn(20)._demo_batch_size() == 1


def test_hype_statistics_are_of_the_rows_of_the_batch(demos):
    """A compiled update goes on with the split that it was traced with, as the schedule here does."""
    model = build("hype", demos, expert_fraction=lambda left: 0.5 if left > 0.5 else 0.25, ent_coef=0.1).learn(10)
    model._current_progress_remaining = 0.0
    batch = model._sample_batch(8)
    model._current_progress_remaining = 1.0
    with th.no_grad():
        rows = model._rows(batch, model.policy.draw(batch.obs, batch.noise.obs), 0.1)
        implicit, learned = (rows.q - rows.y)[:, :8], -model.networks["cost"](batch.obs, batch.actions)
    statistics = model._update(batch)
    # six replay rows, then two expert rows
    assert statistics["learned_reward_replay"].item() == pytest.approx(learned[:6].mean().item(), rel=1e-5)
    for name, part in (("replay", implicit[:, :6]), ("expert", implicit[:, 6:])):
        assert statistics[f"implicit_reward_{name}"].item() == pytest.approx(part.mean().item(), rel=1e-5)
        std = part.std(dim=1, correction=0).mean().item()
        assert statistics[f"implicit_reward_{name}_std"].item() == pytest.approx(std, rel=1e-4)


@pytest.mark.parametrize("reset", [True, False])
def test_hype_updates_the_cost_at_the_same_steps_in_one_call_or_several(reset, demos):
    model = build("hype", demos, learning_starts=0)
    steps, step = [], model._cost_step
    model._cost_step = lambda batch: (steps.append(model.replay_buffer.size()), step(batch))[1]
    for _ in range(6):
        model.learn(10, reset_num_timesteps=reset)
    assert steps == [1, 16, 31, 46]  # every 15 steps


def test_hype_resumes_a_second_call_with_the_steps_since_the_last_update_of_the_cost(demos, tmp_path):
    model = build("hype", demos, learning_starts=0).learn(10)
    assert model._n_cost_updates == 1  # at the first step
    with pytest.raises(KeyboardInterrupt):
        model.learn(70, [Stop(), ResumableCheckpoint(tmp_path / "killed", 20)])
    resumed = HyPE.resume(tmp_path / "killed", make_vec_env(BOX), demonstrations=demos[BOX])
    assert resumed.num_timesteps == 40 and resumed._n_cost_updates == 4  # steps 6, 21 and 36 of the second call
    resumed.learn(70, reset_num_timesteps=False)
    assert resumed._n_cost_updates == 6 and resumed._next_cost_update == 81  # 51 and 66


def test_newest_rows(demos):
    model = build("hype", demos).learn(30)
    buffer = model.replay_buffer
    obs = buffer.rows(200, np.random.default_rng(0), n_newest=4).obs
    newest = {tuple(row) for row in buffer.observations[26:30, 0].tolist()}
    assert {tuple(row) for row in obs.tolist()} == newest


@pytest.mark.parametrize("n_envs", [1, 2])
def test_newest_rows_are_the_learners_own(n_envs, demos):
    env = make_vec_env(BOX, n_envs)
    model = build("hype", demos, env=env, extra_transitions=demos[BOX], gradient_steps=-1).learn(20)
    buffer = model.replay_buffer
    n_older = -(-len(demos[BOX]) // n_envs)

    def drawn():
        return {tuple(row) for row in buffer.rows(400, np.random.default_rng(0), n_newest=50).obs.tolist()}

    own = {tuple(row) for row in buffer.observations[n_older : buffer.pos].reshape(-1, 3).tolist()}
    assert len(own) == 20 and drawn() == own
    buffer.prefill(model.demo_buffer.stored)  # behind the learner's own
    assert drawn() == own


def test_every_row_of_an_earlier_versions_buffer_is_the_learners_own(demos):
    buffer = build("hype", demos).learn(20).replay_buffer
    state = buffer.__getstate__()
    del state["is_own"]
    loaded = type(buffer).__new__(type(buffer))
    loaded.__setstate__({**state, "_cut": ([name for name in state["_cut"][0] if name != "is_own"], state["_cut"][1])})
    obs = loaded.rows(200, np.random.default_rng(0), n_newest=4).obs
    assert {tuple(row) for row in obs.tolist()} == {tuple(row) for row in buffer.observations[16:20, 0].tolist()}


def test_optimistic_adam():
    """Twice the new direction minus the last one, beside Adam on the same gradients."""
    plain, optimistic = th.nn.Parameter(th.zeros(1)), th.nn.Parameter(th.zeros(1))
    adam, ours = th.optim.Adam([plain], lr=0.1), OptimisticAdam([optimistic], lr=0.1)
    directions, positions = [], [0.0]
    for gradient in (1.0, -2.0, 0.5):
        before = plain.item()
        for parameter, optimizer in ((plain, adam), (optimistic, ours)):
            parameter.grad = th.tensor([gradient])
            optimizer.step()
        directions.append(plain.item() - before)
        positions.append(optimistic.item())
    steps = np.diff(positions)
    expected = [2 * directions[0], 2 * directions[1] - directions[0], 2 * directions[2] - directions[1]]
    np.testing.assert_allclose(steps, expected, atol=1e-6)


# --- ReCOIL -----------------------------------------------------------------------------------------------------------------


def test_gumbel_loss():
    z = th.tensor([1.0, -2.0, 3.0])
    weight = th.tensor([0.5, 0.5, 0.0])
    expected = np.exp(-3) * (0.5 * (np.e - 1 - 1) + 0.5 * (np.exp(-2) + 2 - 1))
    assert objectives.gumbel_loss(z, weight).item() == pytest.approx(expected, rel=1e-5)


def test_gumbel_loss_is_least_at_the_soft_maximum():
    """argmin over V of E[exp(Q - V) - (Q - V) - 1] is log E[exp Q]."""
    q = th.tensor([0.0, 1.0, 2.0], dtype=th.float64)
    v = q.exp().mean().log().requires_grad_(True)
    loss = objectives.gumbel_loss(q - v, th.full((3,), 1 / 3, dtype=th.float64))
    assert th.autograd.grad(loss, v)[0].item() == pytest.approx(0, abs=1e-12)


def test_recoil_critic_loss():
    q = th.tensor([[1.0, 190.0], [0.0, 200.0]])
    expert, mixture = th.tensor([0.0, 1.0]), th.tensor([1.0, 0.0])
    targets = LSIQTargets.of(0.5, 0.99)
    # y = 4 makes the target -2 + 4 = 2; expert rows' is 200
    loss = objectives.recoil_critic_loss(q, th.tensor([4.0, 0.0]), expert, mixture, targets)
    assert loss.item() == pytest.approx(0.5 * (100 + 0 + 1 + 4))


def test_recoil_value_after_a_termination(demos):
    """-2 - 0.99 * 200 = -200 is the target of a terminated row of the mixture."""
    model = build("recoil", demos, expert_fraction=0.0).learn(10)
    batch = model._sample_batch(8)
    batch = batch._replace(not_terminated=th.zeros(16))
    with th.no_grad():
        q = model.critic.q_values(batch.obs, batch.actions)
        expected = 0.5 * ((q[:, 8:] - 200).square().mean(dim=1).sum() + (q[:, :8] + 200).square().mean(dim=1).sum())
    assert model._update(batch)["critic_loss"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_recoil_implicit_reward_is_that_of_its_own_values(demos):
    """Q(s, a) - gamma V(s') with the learned V, or with the smallest value -200 after a termination."""
    model = build("recoil", demos).learn(30)
    obs, actions, next_obs = demos[BOX].obs[:4], demos[BOX].actions[:4], np.asarray(demos[BOX].next_obs[:4])
    reward = model.implicit_reward(obs, actions, next_obs, np.array([False, True, False, True]))
    with th.no_grad():
        q = model.critic.q_values(th.as_tensor(obs), th.as_tensor(actions) / 2).mean(dim=0).numpy()
        v = model.networks["v"](th.as_tensor(next_obs)).numpy()
    np.testing.assert_allclose(reward, [q[0] - 0.99 * v[0], q[1] + 198, q[2] - 0.99 * v[2], q[3] + 198], rtol=1e-4, atol=1e-4)


def test_recoil_logs_the_learned_value_of_initial_states(demos):
    model = build("recoil", demos).learn(30)
    with th.no_grad():
        model.networks["v"].head[-1].weight.zero_()
        model.networks["v"].head[-1].bias.fill_(-7.0)
    model._record_evaluation()
    assert model.logger.name_to_value["train/initial_value"] == pytest.approx(-7)


def test_recoil_clones_good_rows_more(demos, monkeypatch):
    """exp(3 (min Q - V)), at most 1.6, is the weight of a row; a quarter of the mixture is the expert row, the second."""
    model = build("recoil", demos, weight_clip=1.6, expert_fraction=0.25, demo_batch_size=1).learn(10)
    batch = model._sample_batch(1)
    q = th.tensor([[0.1, 0.6], [0.3, 0.4]])
    monkeypatch.setattr(model.critic_target, "q_values", lambda obs, actions: q + 7)
    v = model.networks["v"]
    with th.no_grad():
        v.head[-1].weight.zero_()
        v.head[-1].bias.fill_(7.0)
    freeze(v.optimizer, model.actor.optimizer)
    weights = th.tensor([0.75 * np.exp(0.3), 0.25 * 1.6])  # of exp(1.2) the clip leaves 1.6
    assert model._update(batch)["cloning_weight"].item() == pytest.approx(weights.sum().item(), rel=1e-5)
    loss = -(weights * model.policy.log_prob(batch.obs, batch.actions)).sum()
    assert_gradients(model.actor, loss)


def test_recoil_clones_the_weighted_mean_action(demos):
    """Of action -1 with weight 1 and action 1 with weight 3 the mean is 0.5, where the weighted likelihood is greatest."""
    model = build("recoil", demos)
    with th.no_grad():
        model.actor.mu.weight.zero_()
        model.actor.mu.bias.fill_(np.arctanh(0.5))
    log_prob = model.policy.log_prob(th.zeros(2, 3), th.tensor([[-1.0], [1.0]]))
    (gradient,) = th.autograd.grad(log_prob[0] + 3 * log_prob[1], model.actor.mu.bias)
    assert gradient.item() == pytest.approx(0, abs=1e-5)
    assert model.predict(np.zeros(3), deterministic=True)[0].item() == pytest.approx(2 * 0.5, abs=1e-6)


def test_recoil_has_one_deviation_for_all_states(demos):
    model = build("recoil", demos, offline=True).learn(20)
    log_std = model.actor.get_action_dist_params(th.randn(5, 3))[1]
    assert log_std.min() == log_std.max() != 0
    squashed = build("recoil", demos, policy_kwargs={"net_arch": [16], "actor_distribution": "squashed"})
    assert squashed.actor.get_action_dist_params(th.randn(5, 3))[1].std() > 0


# --- RIZE -------------------------------------------------------------------------------------------------------------------


def test_fractions():
    share, tau = fractions(th.tensor([[0.1, 0.3, 0.0]]))
    # 0.2, 0.4, 0.1 over 0.7
    np.testing.assert_allclose(share[0].numpy(), np.array([2, 4, 1]) / 7, rtol=1e-6)
    np.testing.assert_allclose(tau[0].numpy(), np.array([1, 4, 6.5]) / 7, rtol=1e-6)


def test_rize_loss():
    rows, weights = two_rows(q=[3.0, 5.0], v=[1.0, 2.0], y=[2.0, 1.0])
    expert, policy = th.tensor(10.0), th.tensor(5.0)
    # r = 1 and 4: -4 + (1 + 4) / 2 + 0.1 * ((4 - 10)^2 + (1 - 5)^2)
    loss = objectives.rize_loss(rows, weights, "value", 0.99, 0.1, expert, policy)
    assert loss.item() == pytest.approx(-4 + 2.5 + 0.1 * (36 + 16))
    # V of the expert's row
    loss = objectives.rize_loss(rows, weights, "v0_expert", 0.99, 0.1, expert, policy)
    assert loss.item() == pytest.approx(-4 + 0.01 * 2 + 0.1 * (36 + 16), rel=1e-5)


def test_rize_critic_is_the_mean_of_its_quantiles(demos):
    critic = build("rize", demos).critic
    obs, actions = th.randn(2, 3), th.rand(6, 1)
    critic.uniform = th.rand(2, 5)
    z, share = critic.quantiles(obs, actions)
    assert z.shape == (2, 6, 5) and th.equal(share[:2], share[2:4])
    tau = fractions(critic.uniform)[1]
    alone = critic.q_networks[1](th.cat([obs[1:], actions[5:]], dim=1), tau[1:])
    th.testing.assert_close(z[1, 5], alone[0])
    th.testing.assert_close(critic.q_values(obs, actions)[1, 5], (share[5] * alone[0]).sum())


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_rize_takes_actions_of_any_shape(shape):
    env = CountingEnv(discrete=False)
    env.action_space = spaces.Box(-1, 1, shape, dtype=np.float32)
    expert = collect_demonstrations(lambda obs: np.full(shape, 0.5), env, 2)
    model = build("rize", {BOX: expert}, env=env).learn(20)
    assert model._n_updates > 0 and env.action_space.contains(model.predict(np.zeros(2, dtype=np.float32))[0])


def test_rize_critic_alone(demos, tmp_path):
    critic = build("rize", demos).critic
    critic.save(tmp_path / "critic.pkl")
    obs, actions = th.randn(4, 3), th.rand(4, 1)
    assert th.equal(type(critic).load(tmp_path / "critic.pkl").q_values(obs, actions), critic.q_values(obs, actions))


def test_rize_value_takes_the_smaller_quantiles(demos, monkeypatch):
    """Of quantiles (0, 4) and (3, 0), with shares 1/4 and 3/4, the smaller ones are 0 and the means 3 and 3/4."""
    model = build("rize", demos)
    z, share = th.tensor([[[0.0, 4.0]], [[3.0, 0.0]]]), th.tensor([0.25, 0.75])
    monkeypatch.setattr(model.critic, "quantiles", lambda obs, actions: (z + actions, share.expand(len(actions), 2)))
    obs, actions = th.randn(4, 3), th.rand(4, 1)
    draw = model.policy.draw(obs, th.randn(2, 4, 1))
    expected = (draw.actions.squeeze(-1) - 0.2 * draw.log_prob).mean(dim=0)
    q, v = model.policy.q_and_value(obs, actions, draw, 0.2)
    th.testing.assert_close(v, expected)
    th.testing.assert_close(model.policy.value(model.critic, obs, draw, 0.2), expected)
    th.testing.assert_close(q, th.stack([actions[:, 0] + 3, actions[:, 0] + 0.75]))


def test_rize_levels_follow_the_implicit_rewards(demos):
    model = build("rize_v0", demos, terminal_value="zero", expert_level=10.0, policy_level=-5.0)
    rows, weights = two_rows(q=[3.0, 50.0], v=[1.0, 2.0], y=[2.0, 1.0])
    for _ in range(3):
        model._after_critic_step(rows, weights)
    expert, policy = (level.item() for level in model._levels())
    # Adam steps by its learning rate, the expert's level up to 49, the policy's up to 1
    assert expert == pytest.approx(10 + 3e-4, abs=1e-5) and policy == pytest.approx(-5 + 3e-3, rel=1e-4)


@pytest.mark.parametrize("name, same", [("rize", False), ("rize_v0", True)])
def test_rize_targets_begin_at_random_or_as_copies(name, same, demos):
    model = build(name, demos)
    pairs = [(model.critic.state_dict(), model.critic_target.state_dict())]
    pairs.append((model.actor.state_dict(), model.networks["actor_target"].state_dict()))
    for online, target in pairs:
        assert all(th.equal(online[key], target[key]) for key in online) == same


@pytest.mark.parametrize("name", ["rize", "rize_v0"])
def test_rize_targets_after_cloning(name, demos):
    """The target policy becomes the cloned one; the target critic, which cloning does not train, stays as it began."""
    model = build(name, demos, bc_warmup_steps=5, learning_starts=10)
    critic = {key: value.clone() for key, value in model.critic_target.state_dict().items()}
    before = model.actor.mu.weight.clone()
    model.learn(1)
    actor, actor_target = model.actor.state_dict(), model.networks["actor_target"].state_dict()
    assert not th.equal(model.actor.mu.weight, before)
    assert all(th.equal(actor[key], actor_target[key]) for key in actor)
    assert all(th.equal(value, critic[key]) for key, value in model.critic_target.state_dict().items())


def test_rize_bootstraps_from_the_target_policy(demos):
    model = build("rize", demos).learn(10)
    batch = model._sample_batch(8)
    expected = model.networks["actor_target"].draw(batch.next_obs, batch.noise.next_obs)
    assert th.equal(model._next_draw(batch).actions, expected.actions)
    assert not th.equal(model.policy.draw(batch.next_obs, batch.noise.next_obs).actions, expected.actions)


def test_rize_trains_actor_and_temperature_on_replay_rows(demos):
    model = build("rize", demos, ent_coef="auto_0.1", target_entropy=-0.7).learn(10)
    freeze(model.critic.optimizer, model.actor.optimizer)
    batch, ent_coef, log_ent_coef = model._sample_batch(8), model._current_ent_coef(), model.log_ent_coef.item()
    draw = model.policy.draw(batch.obs, batch.noise.obs)
    statistics = model._update(batch)
    model.critic.uniform = batch.noise.uniform
    log_prob = draw.log_prob[0, :8]
    loss = (ent_coef * log_prob - model.critic.q_values(batch.obs, draw.actions[0]).amin(dim=0)[:8]).mean()
    assert statistics["actor_loss"].item() == pytest.approx(loss.item(), rel=1e-5)
    assert_gradients(model.actor, loss)
    expected = -log_ent_coef * (log_prob.mean().item() - 0.7)
    assert statistics["ent_coef_loss"].item() == pytest.approx(expected, rel=1e-5)


def test_rize_needs_quantile_critics(demos):
    with pytest.raises(ValueError, match="RIZE needs quantile critics"):
        RIZE(MlpPolicy, BOX, demonstrations=demos[BOX])


def test_rize_refusals(demos):
    for name, wrong in (("expert_level", "x"), ("policy_level", None), ("policy_level", float("nan"))):
        with pytest.raises(ValueError, match=rf"{name} is {wrong!r} but a number in \(-inf, inf\) is needed"):
            build("rize", demos, **{name: wrong})


def test_rize_number_of_quantiles_may_be_written_as_a_float(demos):
    model = build("rize", demos, policy_kwargs={"net_arch": [16], "n_quantiles": 5.0, "n_critics": 2.0}).learn(10)
    assert type(model.critic.n_quantiles) is int and model.n_uniform == 5
    model._record_evaluation()  # with equal fractions of the quantiles

"""One update and one learn() from close by: which rows, which networks, which draws."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from algorithm_helpers import SMALL, CountingEnv, cartpole_expert, demonstrations_for
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from sb3_dualqdm import BC, DualQDM, IQLearn, collect_demonstrations
from sb3_dualqdm.algorithms.environments import environment_id, time_limit
from sb3_dualqdm.algorithms.weights import row_weights
from sb3_dualqdm.buffers import DemonstrationBuffer, RawRows

pytestmark = pytest.mark.both


@pytest.fixture(scope="module")
def counting():
    """Two terminated episodes of CountingEnv for each kind of action."""
    experts = {True: lambda obs: 1, False: lambda obs: np.array([1.0])}
    return {
        discrete: collect_demonstrations(expert, CountingEnv(discrete=discrete), 2) for discrete, expert in experts.items()
    }


def model_on_counting(counting, cls=DualQDM, discrete=True, steps=20, env=None, **options):
    env = CountingEnv(discrete=discrete) if env is None else env
    model = cls("MlpPolicy", env, demonstrations=counting[discrete], seed=0, **{**SMALL, **options})
    return model.learn(steps)


def weights_of(model):
    return th.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


def set_constant(critic, values):
    """Make every critic answer with a constant."""
    with th.no_grad():
        for q_net, value in zip(critic.q_networks, values):
            q_net[-1].weight.zero_()
            q_net[-1].bias.fill_(value)


# --- gradients --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("n_critics", [1, 2])
def test_every_weight_moves_along_its_own_gradient(counting, discrete, n_critics):
    """Adam's first step is the learning rate against the sign of the gradient, which layouts in memory must not permute."""
    options = {"policy_kwargs": {"net_arch": [16, 16], "n_critics": n_critics}, "learning_starts": 100}
    model = model_on_counting(counting, discrete=discrete, **options)
    batch = model._sample_batch(32)

    def loss():
        rows = model._rows(batch, model.policy.draw(batch.obs, batch.noise.obs), 0.01)
        return model.critic_loss(rows, batch.weights)

    parameters = list(model.critic.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    gradients = th.autograd.grad(loss(), parameters)
    model._descend(model.critic.optimizer, loss())
    for parameter, old, gradient in zip(parameters, before, gradients):
        is_large = gradient.abs() > 1e-5  # far above Adam's epsilon
        assert th.equal((parameter - old).sign()[is_large], -gradient.sign()[is_large])
    assert sum(int((gradient.abs() > 1e-5).sum()) for gradient in gradients) > 100


# --- rows -------------------------------------------------------------------------------------------------------------------


def test_expert_rows_are_drawn_by_discounted_occupancy(counting):
    model = model_on_counting(counting, objective="paper", gamma=0.5)
    assert isinstance(model.demo_buffer, DemonstrationBuffer)
    step = model.demo_buffer.rows(40_000, np.random.default_rng(0)).step
    share = np.bincount(step, minlength=5) / len(step)
    np.testing.assert_allclose(share, 0.5 ** np.arange(5) / (2 - 0.5**4), atol=0.01)  # four standard errors
    uniform = model_on_counting(counting).demo_buffer.rows(40_000, np.random.default_rng(0)).step
    np.testing.assert_allclose(np.bincount(uniform) / len(uniform), 0.2, atol=0.01)


def test_terminal_rows_kept_beside_a_subsample_count_for_themselves(counting):
    model = model_on_counting(counting, subsample=3)
    data = model.demo_buffer.demonstrations
    assert data.step.tolist() == [0, 3, 4, 0, 3, 4]  # the terminated step 4 is kept for the absorbing state
    step = model.demo_buffer.rows(30_000, np.random.default_rng(0)).step
    np.testing.assert_allclose(np.bincount(step)[[0, 3, 4]] / len(step), np.array([3, 3, 1]) / 7, atol=0.015)


def test_initial_states_come_from_the_environment(counting):
    model = model_on_counting(counting, value_mode="initial", steps=40)
    obs = model._sample_batch(64).initial_obs
    assert (obs[:, 1] == 0).all() and obs[:, 0].max() > 2  # the demonstrations hold episodes 0 and 1 only


def test_absorbing_value_of_the_paper_objective_carries_gradient(counting):
    model = model_on_counting(counting, objective="paper")
    with th.no_grad():
        model.critic.absorbing.fill_(0.02)
        model.critic_target.absorbing.fill_(0.03)
    rows = model._rows(model._sample_batch(8), None, 0.01)
    assert rows.y[-1].item() == pytest.approx(0.99 * 2.0, rel=1e-4)
    assert rows.y_target[-1].item() == pytest.approx(0.99 * 3.0, rel=1e-4)


@pytest.mark.parametrize("objective", ["reference", "paper"])
def test_absorbing_rows_have_the_smaller_value_of_two_critics(objective, counting):
    model = model_on_counting(counting, objective=objective, policy_kwargs={"n_critics": 2, "net_arch": [8]})
    with th.no_grad():
        model.critic.absorbing.copy_(th.tensor([0.02, 0.05]))
        model.critic_target.absorbing.copy_(th.tensor([0.06, 0.03]))
    rows = model._rows(model._sample_batch(8), None, 0.01)
    assert rows.q[:, -1].tolist() == pytest.approx([2.0, 5.0]) and rows.v[-1].item() == pytest.approx(2.0)
    assert rows.y_target[-1].item() == pytest.approx(0.99 * 3.0)
    assert rows.y[-1].item() == pytest.approx(0.99 * (2.0 if objective == "paper" else 3.0))


def test_next_values_are_of_their_own_critic(counting):
    """After a termination they are the absorbing value, which the paper's form takes from the online critic."""
    model = model_on_counting(counting, discrete=False, objective="paper", tau=0.1)
    with th.no_grad():
        model.critic.absorbing.fill_(0.02)
        model.critic_target.absorbing.fill_(0.03)
    batch = model._sample_batch(32)
    rows = model._rows(batch, model.policy.draw(batch.obs, batch.noise.obs), 0.5)
    draw = model.policy.draw(batch.next_obs, batch.noise.next_obs)
    n, goes_on = len(batch.not_terminated), batch.not_terminated > 0
    assert goes_on.any() and not goes_on.all()
    for y, critic, end in ((rows.y, model.critic, 2.0), (rows.y_target, model.critic_target, 3.0)):
        following = critic.q_values(batch.next_obs, draw.actions[0])[0] - 0.5 * draw.log_prob[0]
        th.testing.assert_close(y[:n], 0.99 * th.where(goes_on, following, th.tensor(end)), rtol=1e-4, atol=1e-4)


def test_initial_values_are_soft_values_of_the_online_critic(counting):
    model = model_on_counting(counting, discrete=False, value_mode="initial", tau=0.1)
    batch = model._sample_batch(8)
    rows = model._rows(batch, model.policy.draw(batch.obs, batch.noise.obs), 0.5)
    draw = model.policy.draw(batch.initial_obs, batch.noise.initial_obs)
    expected = model.critic.q_values(batch.initial_obs, draw.actions[0])[0] - 0.5 * draw.log_prob[0]
    th.testing.assert_close(rows.initial_v, expected)


def test_paper_objective_telescopes_through_a_termination():
    """sum_t gamma^t (V(s_t) - gamma V(s_t+1)) = V(s_1) when the absorbing state is occupied for ever after step T."""
    horizon, gamma, c = 20, 0.9, 5.0
    step = np.tile(np.arange(horizon), 2)
    rows = RawRows(None, None, None, th.as_tensor(step == horizon - 1)[None], th.as_tensor(step)[None])
    shares = gamma**horizon, gamma**horizon
    weight = row_weights(rows, horizon, th.device("cpu"), gamma, "paper", "absorbing", 1, shares).value[0].double().numpy()
    v = np.sin(np.arange(horizon)) + 2
    next_v = np.append(v[1:], c)
    difference = np.tile(v - gamma * next_v, 2)
    replay = np.r_[np.arange(horizon), 2 * horizon + np.arange(horizon)]
    differences = np.append(difference, np.full(2 * horizon, c - gamma * c))
    assert 2 * (weight * differences)[replay].sum() == pytest.approx((1 - gamma) * v[0], rel=1e-5)
    assert weight.sum() == pytest.approx(1)


def test_the_absorbing_state_has_its_share_of_the_occupancy_in_every_batch(counting):
    """gamma^T after T steps: all episodes here terminate after 5."""
    model = model_on_counting(counting, objective="paper", gamma=0.8)
    weights, share = model._sample_batch(8).weights, 0.8**5
    assert weights.expert[16:].sum().item() == pytest.approx(share, rel=1e-5)
    assert weights.value[16:].sum().item() == pytest.approx(share, rel=1e-5)
    assert weights.expert.sum().item() == pytest.approx(1) and weights.value.sum().item() == pytest.approx(1)
    # a buffer that ends within an episode: 5 + 2 steps, of which one terminates
    occupancy = sum(0.8**t for t in (0, 1, 2, 3, 4, 0, 1))
    model = model_on_counting(counting, objective="paper", gamma=0.8, steps=7)
    ending = 0.8**5 / 0.2
    assert model.replay_buffer.absorbing_share(0.8) == pytest.approx(ending / (occupancy + ending))
    model.replay_buffer.prefill(model.demo_buffer.stored)  # two more episodes; it follows what is stored
    occupancy += 2 * sum(0.8**t for t in range(5))
    assert model.replay_buffer.absorbing_share(0.8) == pytest.approx(3 * ending / (occupancy + 3 * ending))
    model.learn(3, reset_num_timesteps=False)
    assert model.replay_buffer.absorbing_share(0.8) == pytest.approx(share)


@pytest.mark.parametrize(("subsample", "steps"), [(2, [0, 2, 4]), (3, [0, 3, 4])])
def test_one_of_the_rows_that_a_terminal_row_stands_for_terminates(counting, subsample, steps):
    """On the grid (every second step) or beside it (every third), the absorbing state counts as one of k rows."""
    n, rows = 20_000, {0: subsample, 2: subsample, 3: subsample, 4: subsample if 4 % subsample == 0 else 1}
    mass = sum(rows[step] for step in steps)
    model = model_on_counting(counting, subsample=subsample, demo_batch_size=n)
    assert model.demo_buffer.demonstrations.step.tolist() == steps * 2
    expert = model._sample_batch(8).weights.expert
    assert expert[n + 8 :].sum().item() == pytest.approx(1 / mass, abs=0.01)
    paper = model_on_counting(counting, subsample=subsample, objective="paper", gamma=0.8)
    occupancy = sum(rows[step] * 0.8**step for step in steps)
    ending = 0.8**5 / 0.2
    assert paper._sample_batch(8).weights.expert[16:].sum().item() == pytest.approx(ending / (occupancy + ending), rel=1e-5)


def test_paper_weights_of_very_late_steps_are_finite():
    step = th.tensor([[0] * 16, [1_000_000] * 16])  # batches of their own
    rows = RawRows(None, None, None, th.zeros(2, 16, dtype=th.bool), step)
    weights = row_weights(rows, 8, th.device("cpu"), 0.5, "paper", "absorbing")
    assert all(th.isfinite(weight).all() for weight in weights)


def test_terminated_replay_rows_stand_for_themselves():
    """A row of demonstrations on the grid of every fourth step is one of four, of which one terminates."""
    rows = RawRows(None, None, None, th.ones(1, 4, dtype=th.bool), th.zeros(1, 4))
    weights = row_weights(rows, 2, th.device("cpu"), 0.9, "reference", "absorbing", 4)
    assert weights.replay[0, 4:].tolist() == [0.5, 0.5, 0, 0] and weights.expert[0, 4:].tolist() == [0, 0, 0.125, 0.125]


# --- networks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discrete", [True, False])
def test_target_follows_the_critic(counting, discrete):
    for tau, same in ((1.0, True), (0.0, False)):
        model = model_on_counting(counting, discrete=discrete, tau=tau)
        pairs = zip(model.critic.state_dict().values(), model.critic_target.state_dict().values())
        assert all(th.equal(a, b) for a, b in pairs) == same


class Normed(BaseFeaturesExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space, 2)
        self.norm = th.nn.BatchNorm1d(2)

    def forward(self, obs):
        return self.norm(obs)


def test_running_statistics_reach_the_target(counting):
    model = model_on_counting(counting, policy_kwargs={"features_extractor_class": Normed, "net_arch": [8]})
    norm, target = model.critic.features_extractor.norm, model.critic_target.features_extractor.norm
    assert (norm.running_mean != 0).any() and th.equal(norm.running_mean, target.running_mean)


def test_actor_follows_the_minimum_of_the_critics(counting):
    model = model_on_counting(counting, discrete=False, policy_kwargs={"n_critics": 2, "net_arch": [8]})
    set_constant(model.critic, (1.0, 2.0))
    batch = model._sample_batch(8)
    draw = model.policy.draw(batch.obs, batch.noise.obs)
    expected = 0.5 * draw.log_prob.mean().item() - 1.0
    assert model._actor_step(batch, draw, 0.5).item() == pytest.approx(expected, rel=1e-4)


def test_further_action_samples_are_averaged(counting):
    model = model_on_counting(counting, discrete=False, n_action_samples=3)
    batch = model._sample_batch(4)
    n = len(batch.not_terminated)
    assert batch.noise.obs.shape == batch.noise.next_obs.shape == (3, n, 1)
    assert not th.equal(batch.noise.obs, batch.noise.next_obs)
    rows = model._rows(batch, model.policy.draw(batch.obs, batch.noise.obs), 0.5)

    def mean_value(critic, obs, noises):
        values = [model.policy.value(critic, obs, model.policy.draw(obs, noise[None]), 0.5) for noise in noises]
        assert not th.allclose(values[0], values[1])
        return sum(values) / 3

    th.testing.assert_close(rows.v[:n], mean_value(model.critic, batch.obs, batch.noise.obs))
    next_v = mean_value(model.critic_target, batch.next_obs, batch.noise.next_obs)
    goes_on = batch.not_terminated > 0
    th.testing.assert_close(rows.y[:n][goes_on], 0.99 * next_v[goes_on])
    # the actor's loss is of the first sample, in Q and in its entropy
    draw = model.policy.draw(batch.obs, batch.noise.obs)
    expected = (0.5 * draw.log_prob[0] - model.critic.q_values(batch.obs, draw.actions[0])[0]).mean().item()
    assert model._actor_step(batch, draw, 0.5).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("discrete", [True, False])
def test_learned_temperature_falls_when_entropy_is_ample(counting, discrete):
    for target, falls in ((-10.0, True), (10.0, False)):
        model = model_on_counting(counting, discrete=discrete, steps=60, ent_coef="auto_0.1", target_entropy=target)
        assert (model.log_ent_coef.exp().item() < 0.1) == falls
        if discrete:
            assert model.policy.temperature.item() == pytest.approx(model.log_ent_coef.exp().item())


@pytest.mark.parametrize("discrete", [True, False])
def test_temperature_step_compares_the_entropy_with_its_target(counting, discrete):
    """The loss is -log alpha (E[log pi] + target); with Discrete actions pi is the softmax of the smaller Q over alpha."""
    options = {"ent_coef": "auto_0.1", "target_entropy": 0.3, "policy_kwargs": {"n_critics": 2, "net_arch": [8]}}
    model = model_on_counting(counting, discrete=discrete, steps=8, **options)  # no update yet
    batch = model._sample_batch(8)
    draw = model.policy.draw(batch.obs, batch.noise.obs)
    if discrete:
        pi = th.softmax(model.critic(batch.obs).amin(dim=0) / 0.1, dim=-1)
        log_prob = (pi * pi.log()).sum(dim=-1)
    else:
        log_prob = draw.log_prob[0]
    expected = -np.log(0.1) * (log_prob.mean().item() + 0.3)
    assert model._n_updates == 0 and abs(log_prob.mean().item()) > 0.01
    assert model._ent_coef_step(batch, draw, model._current_ent_coef()).item() == pytest.approx(expected, rel=1e-4)
    if discrete:
        assert model.policy.temperature.item() == pytest.approx(model.log_ent_coef.exp().item()) != pytest.approx(0.1)


def test_implicit_reward_scales_box_actions(counting):
    model = model_on_counting(counting, discrete=False)  # box [-2, 4]
    obs = np.array([[0.0, 1.0]], dtype=np.float32)
    rewards = [model.implicit_reward(obs, np.array([[a]]), obs, np.array([[True]]))[0] for a in (1.0, 4.0)]
    with th.no_grad():
        end = model.gamma * model.critic.absorbing.item() / (1 - model.gamma)
        q = [model.critic.q_values(th.as_tensor(obs), th.tensor([[a]])).item() for a in (0.0, 1.0)]
    np.testing.assert_allclose(rewards, np.array(q) - end, rtol=1e-4, atol=1e-5)


# --- learn() ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup, expected", [("uniform", 8), ("policy", 0)])
def test_uniform_warmup_samples_the_action_space(warmup, expected, counting, monkeypatch):
    model = DualQDM("MlpPolicy", CountingEnv(), demonstrations=counting[True], warmup=warmup, seed=0, **SMALL)
    calls, original = [], model.action_space.sample
    monkeypatch.setattr(model.action_space, "sample", lambda *args: calls.append(1) or original(*args))
    model.learn(20)
    assert len(calls) == expected


def test_logging_does_not_change_learning():
    demos = demonstrations_for("Pendulum-v1")
    runs = []
    for log_interval in (1, 1000):
        model = DualQDM("MlpPolicy", CountingEnvLike(), demonstrations=demos, seed=0, **SMALL)
        runs.append(weights_of(model.learn(60, log_interval=log_interval)))
    assert th.equal(*runs)


class CountingEnvLike(gym.Wrapper):
    """Pendulum with episodes of 10 steps, so that there is something to log."""

    def __init__(self):
        super().__init__(gym.make("Pendulum-v1", max_episode_steps=10))


class StopAfter(BaseCallback):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def _on_step(self):
        return self.n_calls < self.n


def test_stopping_by_a_callback_joins_no_episodes(counting):
    model = DualQDM("MlpPolicy", CountingEnv(length=7), demonstrations=counting[True], seed=0, **SMALL)
    model.learn(100, callback=StopAfter(14))
    model.learn(30, reset_num_timesteps=False)
    rows = model.replay_buffer
    n = rows.size()
    obs, next_obs = rows.observations[:n, 0], rows.next_observations[:n, 0]
    np.testing.assert_array_equal(obs + [0, 1], next_obs)  # same episode, next step
    np.testing.assert_array_equal(rows.steps[:n, 0], obs[:, 1])


def test_bc_warmup_happens_once(counting):
    model = DualQDM("MlpPolicy", CountingEnv(), demonstrations=counting[True], bc_warmup_steps=3, seed=0, **SMALL)
    model.learn(1)
    before = weights_of(model).clone()
    model.learn(1)
    assert th.equal(before, weights_of(model))


@pytest.mark.parametrize("discrete, share", [(True, False), (False, False), (False, True)])
def test_target_critic_begins_where_cloning_ends(discrete, share, counting):
    """Cloning trains the critic of Discrete actions, and a feature extractor that the critic shares with the actor."""
    options = {**SMALL, "policy_kwargs": {"net_arch": [16], "features_extractor_class": Normed}}
    if not discrete:
        options["policy_kwargs"]["share_features_extractor"] = share
    env = CountingEnv(discrete=discrete)
    model = DualQDM("MlpPolicy", env, demonstrations=counting[discrete], bc_warmup_steps=3, seed=0, **options)
    before = {key: value.clone() for key, value in model.critic.state_dict().items()}
    model.learn(1)
    online, target = model.critic.state_dict(), model.critic_target.state_dict()
    assert any(not th.equal(online[key], before[key]) for key in online) == (discrete or share)
    assert all(th.equal(online[key], target[key]) for key in online if not key.endswith("num_batches_tracked"))


def test_bc_sees_normalised_demonstrations():
    """BC makes no environment step, so the statistics must come from the demonstrations."""
    demos = demonstrations_for("CartPole-v1")
    venv = VecNormalize(make_vec_env("CartPole-v1"))
    model = BC("MlpPolicy", venv, demonstrations=demos, **SMALL).learn(5)
    np.testing.assert_allclose(venv.obs_rms.mean, demos.obs.mean(0), atol=0.05)
    assert model._sample_batch(256).obs.abs().max() < 8  # not at the clip of 10


def test_bc_learns_again_after_an_early_stop(counting):
    model = BC(
        "MlpPolicy",
        CountingEnv(),
        demonstrations=counting[True],
        validation_interval=4,
        early_stopping_patience=1,
        learning_rate=0.0,
        **SMALL,
    )
    model.learn(100)
    assert model._n_updates == 8  # the first evaluation is the best one, the second stops
    model.learn(100)
    assert model._n_updates == 16


class PatchedTimeLimit(gym.wrappers.TimeLimit):
    """rl_zoo3 puts a wrapper of this name in TimeLimit's place."""


@pytest.mark.parametrize("wrapper", [gym.wrappers.TimeLimit, PatchedTimeLimit])
@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_time_limit_is_found_without_pickling_the_spec(vec_env_cls, wrapper):
    def make():
        return wrapper(Unpicklable(), 10)

    full = collect_demonstrations(lambda obs: 1, make(), 1)
    venv = vec_env_cls([make, make])
    model = DualQDM("MlpPolicy", venv, demonstrations=full, **SMALL)
    assert time_limit(model.env) == 10
    venv.close()
    assert time_limit(DualQDM("MlpPolicy", CountingEnv(), **SMALL).env) is None


def test_time_limit_is_found_around_environments_with_a_text_of_their_own():
    class World(CountingEnv):
        def __str__(self):
            return "a world"

    assert time_limit(DummyVecEnv([lambda: gym.wrappers.TimeLimit(World(length=100), 10)])) == 10
    assert time_limit(DummyVecEnv([lambda: World(length=100)])) is None


class Unpicklable(CountingEnv):
    def __init__(self):
        super().__init__(length=100)
        self.spec = gym.envs.registration.EnvSpec("Unpicklable-v0", entry_point=lambda: Unpicklable())


class WithoutAttributes(DummyVecEnv):
    """As vectorised environments that are not made of gymnasium environments."""

    def get_attr(self, attr_name, indices=None):
        raise AttributeError(attr_name)

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise NotImplementedError


@pytest.mark.parametrize("vec_env_cls", [SubprocVecEnv, WithoutAttributes])
def test_logging_asks_for_no_spec(vec_env_cls):
    def make():
        return Monitor(gym.wrappers.TimeLimit(Unpicklable(), 10))

    venv = vec_env_cls([make])
    model = DualQDM("MlpPolicy", venv, demonstrations=collect_demonstrations(lambda obs: 1, make(), 1), **SMALL)
    model.learn(25, log_interval=1)
    known = "Unpicklable-v0" if vec_env_cls is SubprocVecEnv else None
    assert len(model.ep_info_buffer) == 2 and environment_id(model.env) == known
    venv.close()
    assert environment_id(make_vec_env("Pendulum-v1")) == "Pendulum-v1" and environment_id(None) is None


def test_time_limit_known_after_set_env(tmp_path):
    from types import SimpleNamespace

    obs = np.zeros((501, 4), dtype=np.float32)
    full = SimpleNamespace(obs=obs, acts=np.zeros(500, dtype=np.int64), terminal=True, infos=None)
    DualQDM("MlpPolicy", "CartPole-v1", **SMALL).save(tmp_path / "model")
    model = DualQDM.load(tmp_path / "model", demonstrations=[full])
    with pytest.raises(ValueError, match="without an environment"):
        model.learn(5)
    model.set_env(make_vec_env("CartPole-v1"))
    model.learn(10)
    assert model.demo_buffer.demonstrations.truncated[-1] and not model.demo_buffer.demonstrations.terminated[-1]


def test_replay_buffers_that_do_not_fit_are_refused(counting, tmp_path):
    model = model_on_counting(counting)
    save_to_pkl(tmp_path / "plain.pkl", ReplayBuffer(10, model.observation_space, model.action_space))
    two = model_on_counting(counting, env=DummyVecEnv([CountingEnv, CountingEnv]), gradient_steps=-1)
    two.save_replay_buffer(tmp_path / "two.pkl")
    model_on_counting(counting, discrete=False).save_replay_buffer(tmp_path / "box.pkl")
    DualQDM("MlpPolicy", "CartPole-v1", **SMALL).save_replay_buffer(tmp_path / "cartpole.pkl")
    model.save_replay_buffer(tmp_path / "own.pkl")
    for name in ("plain", "two", "box", "cartpole"):
        with pytest.raises(ValueError, match="use the same number of environments of the same kind"):
            model.load_replay_buffer(tmp_path / f"{name}.pkl")
        assert model._replay_buffer is None
    model.load_replay_buffer(tmp_path / "own.pkl")
    assert model.replay_buffer.size() == 20


def test_failed_demonstrations_leave_the_old_ones(counting):
    model = model_on_counting(counting)
    with pytest.raises((ValueError, OSError)):
        model.set_demonstrations("not_there.npz")
    assert model.demonstrations is counting[True]


def test_q_range_in_policy_kwargs_is_kept(counting, tmp_path):
    kwargs = {"q_range": [-5.0, 5.0], "net_arch": [8]}
    model = model_on_counting(counting, IQLearn, policy_kwargs=kwargs)
    assert model.critic.q_range == [-5.0, 5.0]
    model.save(tmp_path / "model")
    assert IQLearn.load(tmp_path / "model", policy_kwargs=kwargs).critic.q_range == [-5.0, 5.0]


def test_no_false_alarm_of_divergence(counting):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model_on_counting(counting, bellman_bounds=0)


class MixedEnv(CountingEnv):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"kind": spaces.Discrete(4), "box": self.observation_space})

    def _obs(self):
        return {"kind": self.t % 4, "box": super()._obs()}


def test_dict_with_a_discrete_key():
    demos = collect_demonstrations(lambda obs: 1, MixedEnv(), 2)
    model = DualQDM("MultiInputPolicy", MixedEnv(), demonstrations=demos, value_mode="initial", **SMALL).learn(24)
    batch = model._sample_batch(8)
    assert batch.obs["kind"].shape == (16, 1)
    th.testing.assert_close(batch.obs["kind"][:, 0].float(), batch.obs["box"][:, 1] % 4)


def test_expert_of_the_helpers_is_good():
    assert cartpole_expert(np.array([0, 0, 0.1, 0])) == 1
    assert demonstrations_for("CartPole-v1").episode_returns[0] == 500

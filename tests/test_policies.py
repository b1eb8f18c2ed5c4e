"""Policies and networks against independent computations."""

import math

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.sac.policies import SACPolicy
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from sb3_dualqdm.policies import (
    ACTION_CLAMP,
    CnnPolicy,
    DiscreteCnnPolicy,
    DiscreteMlpPolicy,
    DiscreteMultiInputPolicy,
    MlpPolicy,
    MultiInputPolicy,
    fused,
    log_det_tanh,
)

pytestmark = pytest.mark.both

OBS = spaces.Box(-1, 1, (3,), dtype=np.float32)
BOX = spaces.Box(-2, 2, (2,), dtype=np.float32)


def make(cls=MlpPolicy, action_space=BOX, observation_space=OBS, **kwargs):
    th.manual_seed(0)
    return cls(observation_space, action_space, lambda _: 1e-3, **kwargs)


@pytest.mark.parametrize("style", ["reference", "sb3"])
def test_draws_carry_the_right_density(style):
    """Log-probabilities agree with torch's own transformed distribution."""
    actor = make(network_style=style).actor
    obs, noise = th.randn(64, 3), th.randn(64, 2)
    actions, log_prob = actor.draw(obs, noise)
    mean, log_std, _ = actor.get_action_dist_params(obs)
    th.testing.assert_close(actions, th.tanh(mean + log_std.exp() * noise))
    reference = TransformedDistribution(Normal(mean.double(), log_std.double().exp()), TanhTransform(cache_size=1))
    expected = reference.log_prob(th.tanh(mean.double() + log_std.double().exp() * noise.double())).sum(-1)
    th.testing.assert_close(log_prob.double(), expected, rtol=1e-3, atol=1e-2 if style == "sb3" else 1e-3)
    inside = actions.clamp(-0.99, 0.99)
    expected = reference.log_prob(inside.double()).sum(-1)
    th.testing.assert_close(actor.log_prob(obs, inside).double(), expected, rtol=1e-3, atol=1e-2)


def test_clipped_actor_by_hand():
    """Mean 0.5 and deviation 0.25; the action 1 is two deviations away."""
    policy = make(actor_distribution="clipped")
    with th.no_grad():
        policy.actor.mu.weight.zero_()
        policy.actor.mu.bias.fill_(math.atanh(0.5))
        policy.actor.log_std.fill_(math.log(0.25))
    obs = th.randn(3, 3)
    one = -0.5 * 2**2 - math.log(0.25) - 0.5 * math.log(2 * math.pi)
    th.testing.assert_close(policy.log_prob(obs, th.ones(3, 2)), th.full((3,), 2 * one))
    noise = th.tensor([-1.0, 1.0, 3.0]).view(1, 3, 1).expand(1, 3, 2)
    actions, log_prob = policy.draw(obs, noise)
    th.testing.assert_close(actions, th.tensor([0.25, 0.75, 1.0]).view(1, 3, 1).expand(1, 3, 2))
    th.testing.assert_close(log_prob[0, 2], th.tensor(2 * (one + 2 - 0.5 * 3**2)))
    th.testing.assert_close(policy.actor(obs, deterministic=True), th.full((3, 2), 0.5))
    samples = policy.actor(obs.expand(500, 3, 3).reshape(-1, 3))
    assert samples.max() == 1 and samples.mean().item() == pytest.approx(0.5, abs=0.05)


@given(st.floats(-300, 300))
@settings(max_examples=50, deadline=None)
def test_tanh_log_determinant_is_finite_and_exact(u):
    value = log_det_tanh(th.tensor([[u]], dtype=th.float64)).item()
    assert math.isfinite(value)
    if abs(u) < 15:
        assert value == pytest.approx(math.log(1 - math.tanh(u) ** 2), rel=1e-6, abs=1e-9)
    else:
        assert value == pytest.approx(2 * (math.log(2) - abs(u)), rel=1e-9)  # its asymptote


@pytest.mark.parametrize("style", ["reference", "sb3"])
def test_border_actions_have_finite_likelihood_and_gradient(style):
    policy = make(network_style=style)
    actions = th.tensor([[1.0, -1.0], [-1.0, 1.0]])
    loss = policy.log_prob(th.randn(2, 3), actions).sum()
    loss.backward()
    assert th.isfinite(loss) and all(th.isfinite(p.grad).all() for p in policy.actor.parameters())
    assert math.atanh(1 - ACTION_CLAMP) < 7.3


def test_reference_style_networks():
    policy = make()
    for module in (policy.actor.latent_pi, policy.critic.qf0):
        for layer in module:
            if isinstance(layer, th.nn.Linear):
                gram = layer.weight @ layer.weight.T if layer.weight.shape[0] <= layer.weight.shape[1] else None
                gram = layer.weight.T @ layer.weight if gram is None else gram
                th.testing.assert_close(gram, th.eye(len(gram)), atol=1e-5, rtol=0)
                assert (layer.bias == 0).all()
    assert len(policy.critic.q_networks) == 1
    with th.no_grad():
        for bias, expected in ((-1e3, -5.0), (0.0, -1.5), (1e3, 2.0)):
            policy.actor.log_std.weight.zero_()
            policy.actor.log_std.bias.fill_(bias)
            log_std = policy.actor.get_action_dist_params(th.randn(1, 3))[1]
            th.testing.assert_close(log_std, th.full((1, 2), expected))


def test_sb3_style_is_sacs_own():
    """Same seed, same weights and outputs as SB3's SAC policy."""
    ours = make(network_style="sb3", n_critics=2)
    th.manual_seed(0)
    sac = SACPolicy(OBS, BOX, lambda _: 1e-3)
    obs = th.randn(5, 3)
    th.testing.assert_close(ours.actor(obs, deterministic=True), sac.actor(obs, deterministic=True))
    ours.actor.load_state_dict(sac.actor.state_dict())
    th.manual_seed(1)
    actions, log_prob = sac.actor.action_log_prob(obs)
    th.manual_seed(1)
    draw = ours.actor.draw(obs, th.randn(5, 2))
    th.testing.assert_close(draw.actions, actions)
    th.testing.assert_close(draw.log_prob, log_prob)


def test_q_range_bounds_the_critic():
    for cls, space in ((MlpPolicy, BOX), (DiscreteMlpPolicy, spaces.Discrete(3))):
        policy = make(cls, space, q_range=(0.0, 4.0))
        with th.no_grad():
            for bias, expected in ((-1e4, 0.0), (1e4, 4.0), (0.0, None)):
                policy.critic.qf0[-1].bias.fill_(bias)
                obs = th.randn(6, 3)
                q = policy.critic(obs) if cls is DiscreteMlpPolicy else policy.critic.q_values(obs, th.rand(6, 2))
                assert (q >= 0).all() and (q <= 4).all()
                if expected is not None:
                    th.testing.assert_close(q, th.full_like(q, expected))
            # slope 1 at the middle, so that small networks' outputs keep their size
            policy.critic.q_range = (-100.0, 100.0)
            th.testing.assert_close(policy.critic.bounded(th.tensor([0.5, -0.5])), th.tensor([0.5, -0.5]), rtol=1e-4, atol=0)


def test_softmax_policy_samples_its_distribution():
    policy = make(DiscreteMlpPolicy, spaces.Discrete(3))
    with th.no_grad():
        policy.critic.qf0[-1].weight.zero_()
        policy.critic.qf0[-1].bias.copy_(th.tensor([0.0, 1.0, 2.0]))
    policy.temperature.fill_(0.5)
    expected = np.exp([0.0, 2.0, 4.0]) / np.exp([0.0, 2.0, 4.0]).sum()
    obs = np.zeros((20_000, 3), dtype=np.float32)
    share = np.bincount(policy.predict(obs)[0], minlength=3) / len(obs)
    np.testing.assert_allclose(share, expected, atol=0.015)  # four standard errors
    log_prob = policy.log_prob(th.zeros(3, 3), th.arange(3))
    np.testing.assert_allclose(log_prob.detach().exp(), expected, rtol=1e-5)
    assert (policy.predict(obs[:10], deterministic=True)[0] == 2).all()
    policy.temperature.fill_(0.0)
    assert (policy.predict(obs)[0] == 2).all()


def test_discrete_values_by_hand():
    policy = make(DiscreteMlpPolicy, spaces.Discrete(2), n_critics=2)
    with th.no_grad():
        for critic, bias in ((policy.critic.qf0, [1.0, 5.0]), (policy.critic.qf1, [2.0, 3.0])):
            critic[-1].weight.zero_()
            critic[-1].bias.copy_(th.tensor(bias))
    q, v = policy.q_and_value(th.zeros(2, 3), th.tensor([0, 1]), None, 1.0)
    th.testing.assert_close(q, th.tensor([[1.0, 5.0], [2.0, 3.0]]))
    th.testing.assert_close(v, th.full((2,), math.log(math.exp(1) + math.exp(3))))  # of the minimum (1, 3)


@pytest.mark.parametrize("cls, discrete", [(CnnPolicy, DiscreteCnnPolicy), (MultiInputPolicy, DiscreteMultiInputPolicy)])
def test_images_and_dicts(cls, discrete):
    image = spaces.Box(0, 255, (1, 36, 36), dtype=np.uint8)
    space = image if cls is CnnPolicy else spaces.Dict({"image": image, "vector": OBS})
    for policy_class, actions in ((cls, BOX), (discrete, spaces.Discrete(2))):
        policy = make(policy_class, actions, space)
        action, _ = policy.predict(space.sample(), deterministic=True)
        assert actions.contains(action if policy_class is cls else int(action))
        # the critic's extractor and the target's are separate copies
        assert policy.critic.features_extractor is not policy.critic_target.features_extractor


@pytest.mark.parametrize("cls, space", [(MlpPolicy, BOX), (DiscreteMlpPolicy, spaces.Discrete(3))])
def test_constructor_parameters_rebuild_the_policy(cls, space):
    policy = make(cls, space, net_arch=[8], network_style="sb3", q_range=(-1.0, 1.0))
    rebuilt = cls(**policy._get_constructor_parameters())
    rebuilt.load_state_dict(policy.state_dict())
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(policy.predict(obs, deterministic=True)[0], rebuilt.predict(obs, deterministic=True)[0])
    assert rebuilt.critic.q_range == (-1.0, 1.0)


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, {"fused": True}),
        ({"eps": 1e-5}, {"fused": True, "eps": 1e-5}),
        ({"fused": False}, {"fused": False}),
        ({"foreach": True}, {"foreach": True}),
        ({"differentiable": True}, {"differentiable": True}),
    ],
)
def test_adam_is_fused_unless_the_user_says_otherwise(given, expected):
    assert fused(th.optim.Adam, given) == expected
    th.optim.Adam([th.nn.Parameter(th.zeros(1))], **expected)  # torch takes it
    assert fused(th.optim.SGD, given) == (given or {})

"""Objectives against numbers computed by hand and against the identities of the paper."""

import math

import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_dualqdm import LSIQ, RIZE, SQIL, DualQDM, IQLearn, ReCOIL, RegIQLearn, objectives
from sb3_dualqdm.objectives import Rows, RowWeights

pytestmark = pytest.mark.both

GAMMA = 0.9


def two_rows(initial_v=None):
    """One replay row (Q 2, V 1.5, y 0.9) and one expert row (Q 1, V 3, y -0.45), one critic; target values differ by 0.1."""
    rows = Rows(
        q=th.tensor([[2.0, 1.0]]),
        v=th.tensor([1.5, 3.0]),
        y=th.tensor([0.9, -0.45]),
        y_target=th.tensor([1.0, -0.35]),
        initial_v=initial_v,
    )
    half = th.tensor([0.5, 0.5])
    return rows, RowWeights(
        expert=th.tensor([0.0, 1.0]), value=half, constraint=half, actor=half, replay=1 - th.tensor([0.0, 1.0])
    )


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("value", 0.5 * (1.5 - 0.9) + 0.5 * (3.0 + 0.45)),
        ("value_expert", 3.45),
        ("v0", 0.1 * 2.25),
        ("v0_expert", 0.1 * 3.0),
        ("initial", 0.1 * 5.0),
    ],
)
def test_value_term_by_hand(mode, expected):
    rows, weights = two_rows(initial_v=th.tensor([4.0, 6.0]))
    assert objectives.value_term(rows, weights, mode, GAMMA).item() == pytest.approx(expected, rel=1e-6)


def test_dual_qdm_by_hand():
    rows, weights = two_rows()
    # expert r = 1 + 0.45; value term 2.025; constraint rewards against the target: 1.0 (inside) and 1.35 (0.35 above)
    expected = -1.45 + 2.025 + 0.5 * (0.5 * 0.35**2)
    loss = objectives.dual_qdm_loss(rows, weights, "value", GAMMA, (-1.0, 1.0), 0.5)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    # bounds (1.2, 1.3): the replay row is 0.2 below, the expert row 0.05 above
    loss = objectives.dual_qdm_loss(rows, weights, "value", GAMMA, (1.2, 1.3), 2.0)
    assert loss.item() == pytest.approx(-1.45 + 2.025 + 2.0 * 0.5 * (0.2**2 + 0.05**2), rel=1e-5)


def test_chi2_and_reg_by_hand():
    rows, weights = two_rows()
    chi2 = objectives.iq_learn_loss(rows, weights, "value", GAMMA, "chi2", 0.25)
    assert chi2.item() == pytest.approx(-1.45 + 2.025 + 0.25 * 1.45**2, rel=1e-6)
    reg = objectives.reg_iq_learn_loss(rows, weights, "value", GAMMA, 0.5)
    assert reg.item() == pytest.approx(-1.45 + 2.025 + 0.5 * (0.5 * 1.0 + 0.5 * 1.35**2), rel=1e-6)


def test_two_critics_are_averaged():
    rows, weights = two_rows()
    both = rows._replace(q=th.cat([rows.q, rows.q + 1]))
    losses = [
        objectives.dual_qdm_loss(rows._replace(q=q), weights, "value", GAMMA, (-1.0, 1.0), 0.5).item()
        for q in (rows.q, rows.q + 1)
    ]
    loss = objectives.dual_qdm_loss(both, weights, "value", GAMMA, (-1.0, 1.0), 0.5)
    assert loss.item() == pytest.approx(sum(losses) / 2, rel=1e-6)


IQ = -1.45 + 2.025  # expert term and value term of two_rows()
IQ_V0 = -1.45 + 0.1 * 2.25


@pytest.mark.parametrize(
    "cls, options, expected",
    [
        (DualQDM, {}, IQ + 0.5 * 0.5 * 0.35**2),
        (DualQDM, {"bellman_bounds": (1.2, 1.3), "bellman_penalty": 2.0}, IQ + 2.0 * 0.5 * (0.2**2 + 0.05**2)),
        (DualQDM, {"bellman_bounds": 1.1, "value_mode": "v0"}, IQ_V0 + 0.5 * 0.5 * 0.25**2),
        (IQLearn, {}, IQ + 0.5 * 1.45**2),
        (IQLearn, {"objective": "paper"}, IQ + 0.25 * 1.45**2),
        (IQLearn, {"regularization": 2.0, "value_mode": "v0"}, IQ_V0 + 2.0 * 1.45**2),
        (IQLearn, {"divergence": "kl"}, -math.exp(-2.45) * 1.45 + 2.025),
        (RegIQLearn, {}, IQ + 0.5 * 0.5 * (1.0 + 1.35**2)),
        (RegIQLearn, {"objective": "paper"}, IQ + 0.25 * 0.5 * (1.0 + 1.35**2)),
        (RegIQLearn, {"regularization": 2.0, "value_mode": "v0"}, IQ_V0 + 2.0 * 0.5 * (1.0 + 1.35**2)),
        (SQIL, {"replay_weight": 3.0}, 0.35**2 + 3.0 * 1.0),
        # rewards of 2 and values of 20
        (LSIQ, {}, 19.0**2 + 0.5 * (2.5**2 + 5.35**2)),
        # rewards of 4: expert 1 - (4 - 0.35), replay 2 + 4 - 1
        (
            LSIQ,
            {"regularization": 0.25, "policy_term": "q_old_policy", "expert_target": "bootstrap", "td_loss": "huber"},
            2.65 - 0.5 + 5.0 - 0.5,
        ),
        # the implicit rewards are 1.1 and 1.45
        (RIZE, {"expert_level": 3.0, "policy_level": -1.0}, -1.45 + 0.5 * (1.1 + 1.45) + 0.1 * (1.55**2 + 2.1**2)),
        (RIZE, {"value_mode": "v0_expert", "regularization": 2.0}, -1.45 + 0.1 * 3.0 + 2.0 * (8.55**2 + 3.9**2)),
    ],
)
def test_a_class_minimises_its_objective(cls, options, expected):
    rows, weights = two_rows()
    model = cls("MlpPolicy", "Pendulum-v1", gamma=GAMMA, device="cpu", **options)
    assert model.critic_loss(rows, weights).item() == pytest.approx(expected, rel=1e-5)


def test_shares_outside_the_bounds_and_of_clamped_rewards():
    """Of two critics' rewards (1.0, 1.35) and (3.0, 2.35) against the target, and (1.45) and (-6) of the expert's row."""
    rows, weights = two_rows()
    rows, twice = rows._replace(q=th.cat([rows.q, rows.q + th.tensor([[2.0, 1.0]])])), weights.constraint * 2
    dual = DualQDM("MlpPolicy", "Pendulum-v1", bellman_bounds=(1.1, 1.4), device="cpu")
    shares = dual.extra_statistics(rows, weights._replace(constraint=twice))
    assert shares["below_bounds"].item() == pytest.approx(0.25) and shares["above_bounds"].item() == pytest.approx(0.5)
    symmetric = DualQDM("MlpPolicy", "Pendulum-v1", bellman_bounds=1.1, device="cpu")  # rewards of -1.0, -0.65, 1.0 and 0.35
    assert symmetric.extra_statistics(rows._replace(q=rows.q - 2), weights)["below_bounds"].item() == 0
    iq = IQLearn("MlpPolicy", "Pendulum-v1", divergence="kl", device="cpu")
    rows = rows._replace(q=th.tensor([[2.0, 1.0], [2.0, -6.45]]))
    assert iq.extra_statistics(rows, weights)["clamped_share"].item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    "cls, options, expected",
    [
        (DualQDM, {"bellman_bounds": (-1, 3)}, 3 + 2),
        (DualQDM, {"bellman_bounds": (-5, 3), "bellman_penalty": 0}, 5 + 1),
        (LSIQ, {"regularization": 0.25}, 4),
        (ReCOIL, {"regularization": 0.25}, 4),
        (RIZE, {"expert_level": -20.0}, 20 + 10),
    ],
)
def test_largest_reward_of_a_class(cls, options, expected):
    assert cls("MlpPolicy", "Pendulum-v1", device="cpu", **options)._largest_reward() == pytest.approx(expected)


def random_rows(seed, n_critics=2, n=16):
    generator = th.Generator().manual_seed(seed)
    draw = lambda *shape: 3 * th.randn(*shape, generator=generator)  # noqa: E731
    expert = th.zeros(n)
    expert[n // 2 :] = 2 / n
    everywhere = th.full((n,), 1 / n)
    rows = Rows(draw(n_critics, n), draw(n), draw(n), draw(n), draw(5))
    return rows, RowWeights(expert, everywhere, everywhere, everywhere, (expert == 0).double())


@pytest.mark.parametrize("mode", objectives.VALUE_MODES)
@pytest.mark.parametrize("seed", range(3))
def test_no_penalty_is_iq_learn_tv_bit_for_bit(mode, seed):
    rows, weights = random_rows(seed)
    dual = objectives.dual_qdm_loss(rows, weights, mode, GAMMA, (-1.0, 1.0), 0.0)
    assert th.equal(dual, objectives.iq_learn_loss(rows, weights, mode, GAMMA, "tv"))


@pytest.mark.parametrize("seed", range(3))
def test_zero_bounds_are_reg_iq_learn(seed):
    rows, weights = random_rows(seed)
    dual = objectives.dual_qdm_loss(rows, weights, "value", GAMMA, (0.0, 0.0), 0.5)
    th.testing.assert_close(dual, objectives.reg_iq_learn_loss(rows, weights, "value", GAMMA, 0.5))


@given(st.floats(-20, 20), st.floats(-5, 5), st.floats(0, 5))
@settings(max_examples=50, deadline=None)
def test_penalty_is_the_squared_distance_to_the_interval(reward, low, width):
    weights = RowWeights(*(th.ones(1, dtype=th.float64),) * 5)
    r = th.tensor([[reward]], dtype=th.float64)
    distance = max(low - reward, 0.0, reward - (low + width))
    assert objectives.bellman_penalty(r, weights, (low, low + width)).item() == pytest.approx(distance**2, abs=1e-9)


def test_soft_value_by_hand():
    q = th.tensor([[0.0, math.log(3.0)]])
    assert objectives.soft_value(q, 1.0).item() == pytest.approx(math.log(4.0), rel=1e-6)
    assert objectives.soft_value(q, 0.0).item() == pytest.approx(math.log(3.0), rel=1e-6)
    # the worked example: Q(s2, .) = alpha (log(e^10 + 1), log 2) at alpha = 0.1 follows from rewards (1, 0) and (0, 0)
    value = objectives.soft_value(th.tensor([1.0, 0.0]), 0.1).item()
    assert value == pytest.approx(0.1 * math.log(math.exp(10) + 1), rel=1e-6)
    # a tiny temperature must not overflow
    assert objectives.soft_value(th.tensor([500.0, 499.0]), 1e-3).item() == pytest.approx(500.0)


def test_sampled_soft_value_is_exact_in_expectation():
    # E_pi[Q - alpha log pi] under pi = softmax(Q / alpha) is alpha logsumexp(Q / alpha)
    q = th.tensor([0.3, -1.0, 2.0], dtype=th.float64)
    log_pi = th.log_softmax(q / 0.5, dim=-1)
    mean = (log_pi.exp() * objectives.sampled_soft_value(q, log_pi, 0.5)).sum()
    assert mean.item() == pytest.approx(objectives.soft_value(q, 0.5).item(), rel=1e-12)


PHI = {
    "hellinger": lambda r: r / (1 + r),
    "kl": lambda r: -th.exp(-r - 1),
    "js": lambda r: th.log(2 - th.exp(-r)),
}


@pytest.mark.parametrize("divergence", PHI)
def test_divergence_slope_is_the_derivative_of_phi(divergence):
    r = th.linspace(objectives.SLOPE_FLOORS[divergence] + 0.01, 3.0, 50, dtype=th.float64).requires_grad_()
    (expected,) = th.autograd.grad(PHI[divergence](r).sum(), r)
    slope, clamped = objectives.divergence_slope(r, divergence)
    th.testing.assert_close(slope, expected)
    assert not clamped.any() and not slope.requires_grad


@pytest.mark.parametrize("divergence", PHI)
def test_divergence_slope_is_finite_and_positive_everywhere(divergence):
    r = th.tensor([-1e6, -50.0, -1.0, -math.log(2), 0.0, 1e6])
    slope, clamped = objectives.divergence_slope(r, divergence)
    assert th.isfinite(slope).all() and (slope >= 0).all()
    assert clamped.tolist() == (r < objectives.SLOPE_FLOORS[divergence]).tolist()


@pytest.mark.parametrize("weighting", ["uniform", "discounted"])
def test_telescoping_identity_on_a_chain(weighting):
    """
    E_d[V(s) - gamma V(s')] = (1 - gamma) V(s1) holds under the discounted occupancy, d_t proportional to gamma^t;
    under uniform rows it is (1 - gamma) mean_t V(s_t) up to the boundary.
    """
    horizon = 400
    v = th.sin(th.arange(horizon + 1, dtype=th.float64)) + 2
    steps = th.arange(horizon, dtype=th.float64)
    weight = GAMMA**steps if weighting == "discounted" else th.ones(horizon, dtype=th.float64)
    weight = weight / weight.sum()
    rows = Rows(q=v[None, :-1], v=v[:-1], y=GAMMA * v[1:], y_target=GAMMA * v[1:])
    term = objectives.value_term(rows, RowWeights(*(weight,) * 5), "value", GAMMA).item()
    if weighting == "discounted":
        assert term == pytest.approx((1 - GAMMA) * v[0].item(), rel=1e-9)
    else:
        boundary = GAMMA * (v[0] - v[-1]).item() / horizon
        assert term == pytest.approx((1 - GAMMA) * v[:-1].mean().item() + boundary, rel=1e-9)
        assert abs(term - (1 - GAMMA) * v[0].item()) > 1e-3  # V(s1) = 2 is not the mean value


def test_actor_loss_by_hand():
    weights = RowWeights(*(th.tensor([0.25, 0.75]),) * 5)
    loss = objectives.actor_loss(th.tensor([1.0, 2.0]), th.tensor([-1.0, 3.0]), 0.5, weights)
    assert loss.item() == pytest.approx(0.25 * (-0.5 - 1.0) + 0.75 * (1.5 - 2.0))


def test_temperature_rises_when_entropy_is_low():
    log_alpha = th.zeros(1, requires_grad=True)
    for entropy, sign in ((0.1, -1), (5.0, 1)):
        (gradient,) = th.autograd.grad(objectives.ent_coef_loss(log_alpha, th.full((4,), -entropy), 1.0), log_alpha)
        assert math.copysign(1, gradient.item()) == sign  # a negative gradient raises log alpha


@pytest.mark.parametrize("mode", objectives.VALUE_MODES)
def test_penalty_stays_on_in_every_value_mode(mode):
    rows, weights = two_rows(initial_v=th.tensor([4.0, 6.0]))
    on, off = (objectives.dual_qdm_loss(rows, weights, mode, GAMMA, (-1.0, 1.0), beta).item() for beta in (0.5, 0.0))
    assert on - off == pytest.approx(0.5 * (0.5 * 0.35**2), rel=1e-4)

"""The methods' objectives as pure functions of tensors, one per equation; nothing here knows about SB3, buffers or networks.

Shapes: ``C`` critics, ``M`` rows. ``r`` is the implicit reward ``r_Q(s, a) = Q(s, a) - gamma * V(s')``, shape ``(C, M)``.
Every expectation is a weighted sum over rows, so that expert rows, replay rows and absorbing rows share one formula:
a weight vector ``(M,)`` is zero outside the rows that an expectation is taken over.
All critic objectives are *minimised*; the paper states them as maximisation problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch as th
from torch.nn import functional as F

DIVERGENCES = ("chi2", "tv", "hellinger", "kl", "js")
VALUE_MODES = ("value", "value_expert", "v0", "v0_expert", "initial")


class Rows(NamedTuple):
    """
    What the critic objectives see of a batch.

    :param q: Q(s, a) of the batch's own actions, shape ``(C, M)``
    :param v: soft value V(s), shape ``(M,)``; the minimum over critics is shared by all of them
    :param y: discounted next value in the objective, ``gamma * V(s')``, shape ``(M,)``
    :param y_target: discounted next value of the target network, no gradient, shape ``(M,)``; used by the constraint terms
    :param initial_v: soft value at sampled initial states, shape ``(K,)``, or None when the value mode does not use it
    """

    q: th.Tensor
    v: th.Tensor
    y: th.Tensor
    y_target: th.Tensor
    initial_v: th.Tensor | None = None


class RowWeights(NamedTuple):
    """
    The expectations of an objective as weights over the rows, each of shape ``(M,)``.

    :param expert: demonstrations, E_{D^E}
    :param value: rows that the soft value is pushed down on in the ``"value"`` and ``"v0"`` modes
    :param constraint: rows that the Bellman constraints (or Reg IQ-Learn's square) are imposed on
    :param actor: states that the actor is trained on
    :param replay: rows of the replay buffer alone
    """

    expert: th.Tensor
    value: th.Tensor
    constraint: th.Tensor
    actor: th.Tensor
    replay: th.Tensor


def soft_value(q: th.Tensor, ent_coef: th.Tensor | float) -> th.Tensor:
    """
    Soft value of a discrete Q-function, ``alpha * log sum_a exp(Q(s, a) / alpha)`` (the paper's LSE with temperature).

    :param q: shape ``(..., A)``
    :param ent_coef: temperature alpha >= 0; at 0 the value is ``max_a Q(s, a)``
    :return: shape ``(...)``
    """
    if isinstance(ent_coef, float) and ent_coef == 0.0:
        return q.max(dim=-1).values
    return ent_coef * th.logsumexp(q / ent_coef, dim=-1)


def sampled_soft_value(q: th.Tensor, log_prob: th.Tensor, ent_coef: th.Tensor | float) -> th.Tensor:
    """Soft value from a policy sample, ``Q(s, a) - alpha * log pi(a|s)`` (paper, below eq. policy_obj); shape of ``q``."""
    return q - ent_coef * log_prob


def value_term(rows: Rows, weights: RowWeights, mode: str, gamma: float) -> th.Tensor:
    """
    The term that pushes the soft value down: ``(1 - gamma) E_rho[V]`` or a form of it.

    ``initial``: ``(1 - gamma) E_{s1 ~ rho}[V(s1)]`` (paper, eq. iq_learn_infinite).
    ``value`` / ``value_expert``: ``E[V(s) - gamma V(s')]`` over mixed / expert rows, equal to it by telescoping
    under discounted occupancies. ``v0`` / ``v0_expert``: ``(1 - gamma) E[V(s)]`` over mixed / expert rows
    (a heuristic of the reference code).

    :return: scalar
    """
    if mode == "initial":
        assert rows.initial_v is not None
        return (1 - gamma) * rows.initial_v.mean()
    weight = weights.expert if mode.endswith("_expert") else weights.value
    if mode.startswith("value"):
        return (weight * (rows.v - rows.y)).sum()
    return (1 - gamma) * (weight * rows.v).sum()


def expert_term(r: th.Tensor, weights: RowWeights, slope: th.Tensor | None = None) -> th.Tensor:
    """
    ``-E_{D^E}[phi'(r) r]``, whose gradient is that of ``-E_{D^E}[phi(r)]`` when the slope carries none.

    :param slope: phi'(r) without gradient, shape ``(C, M)``; None for total variation, where phi(r) = r
    :return: scalar, averaged over critics
    """
    gain = r if slope is None else slope * r
    return -(weights.expert * gain).sum(dim=-1).mean()


def bellman_penalty(r: th.Tensor, weights: RowWeights, bounds: tuple[float, float]) -> th.Tensor:
    """
    Squared hinge on violations of ``lo <= r <= hi`` (paper, penalty of eq. dual_q_dm_discrete and dual_q_dm_continuous).

    :param bounds: ``(lo, hi)``
    :return: scalar, averaged over critics
    """
    low, high = bounds
    violation = F.relu(low - r).square() + F.relu(r - high).square()
    return (weights.constraint * violation).sum(dim=-1).mean()


def squared_reward(r: th.Tensor, weight: th.Tensor) -> th.Tensor:
    """``E[r^2]``: the chi-square term on expert rows (IQ-Learn) or on the constraint rows (Reg IQ-Learn); scalar."""
    return (weight * r.square()).sum(dim=-1).mean()


def dual_qdm_loss(
    rows: Rows, weights: RowWeights, mode: str, gamma: float, bounds: tuple[float, float], penalty: float
) -> th.Tensor:
    """Dual Q-DM: IQ-Learn (TV) plus ``beta`` times the penalty (paper, eq. dual_q_dm_discrete and dual_q_dm_continuous)."""
    return iq_learn_loss(rows, weights, mode, gamma, "tv") + penalty * bellman_penalty(rows.q - rows.y_target, weights, bounds)


def reg_iq_learn_loss(rows: Rows, weights: RowWeights, mode: str, gamma: float, coefficient: float) -> th.Tensor:
    """Reg IQ-Learn: IQ-Learn (TV) plus the squared implicit reward on the constraint rows (paper, app. comparison)."""
    return iq_learn_loss(rows, weights, mode, gamma, "tv") + coefficient * squared_reward(
        rows.q - rows.y_target, weights.constraint
    )


def iq_learn_loss(
    rows: Rows, weights: RowWeights, mode: str, gamma: float, divergence: str, coefficient: float = 0.5
) -> th.Tensor:
    """
    IQ-Learn (paper, eq. iq_learn and iq_learn_infinite; other divergences: eq. 9 of the IQ-Learn paper).

    :param divergence: one of ``DIVERGENCES``
    :param coefficient: weight of the squared implicit reward on expert rows, used by ``"chi2"`` alone
    """
    r = rows.q - rows.y
    slope = None
    if divergence not in ("tv", "chi2"):
        slope = divergence_slope(r, divergence)[0]
    loss = expert_term(r, weights, slope) + value_term(rows, weights, mode, gamma)
    if divergence == "chi2":
        loss = loss + coefficient * squared_reward(r, weights.expert)
    return loss


# Lowest implicit reward at which each phi' is evaluated: Hellinger has a pole at -1, JS at -log 2, KL explodes below.
SLOPE_FLOORS = {"hellinger": -0.9, "kl": -4.0, "js": -math.log(2) + 0.05}


def divergence_slope(r: th.Tensor, divergence: str) -> tuple[th.Tensor, th.Tensor]:
    """
    phi'(r) without gradient, evaluated at ``max(r, floor)`` so that it stays inside phi's domain.

    phi of Hellinger ``r / (1 + r)``, KL ``-exp(-r - 1)``, JS ``log(2 - exp(-r))``.

    :return: slope and a mask of the clamped entries, both shaped like ``r``
    """
    floor = SLOPE_FLOORS[divergence]
    r = r.detach()
    clamped = r < floor
    r = r.clamp(min=floor)
    if divergence == "hellinger":
        slope = (1 + r) ** -2
    elif divergence == "kl":
        slope = th.exp(-r - 1)
    else:
        slope = th.exp(-r) / (2 - th.exp(-r))
    return slope, clamped


def actor_loss(q: th.Tensor, log_prob: th.Tensor, ent_coef: th.Tensor | float, weights: RowWeights) -> th.Tensor:
    """``E_s[alpha log pi(a|s) - Q(s, a)]`` with a reparameterised sample a (paper, eq. policy_obj); scalar."""
    return (weights.actor * (ent_coef * log_prob - q)).sum()


def sqil_loss(rows: Rows, weights: RowWeights, replay_weight: float = 1.0) -> th.Tensor:
    """
    SQIL: the squared soft Bellman error under reward 1 on expert rows and 0 on replay rows (SQIL paper, alg. 1).

    :param replay_weight: lambda_samp, weight of the replay rows' error
    """
    expert = squared_reward(rows.q - 1 - rows.y_target, weights.expert)
    return expert + replay_weight * squared_reward(rows.q - rows.y_target, weights.replay)


class LSIQTargets(NamedTuple):
    """
    Constants of LS-IQ, for the coefficient c of its regulariser: rewards ``+-1 / c`` and values ``+-1 / (c (1 - gamma))``.

    :param r_max: target reward of expert rows; replay rows have ``-r_max``
    :param q_max: largest value; ``-q_max`` is the smallest
    """

    r_max: float
    q_max: float

    @classmethod
    def of(cls, coefficient: float, gamma: float) -> LSIQTargets:
        """For a coefficient and a discount below 1."""
        return cls(1 / coefficient, 1 / (coefficient * (1 - gamma)))


def ls_iq_loss(
    rows: Rows,
    weights: RowWeights,
    gamma: float,
    targets: LSIQTargets,
    policy_term: str = "value",
    expert_target: str = "fixed",
    huber: bool = False,
) -> th.Tensor:
    """
    LS-IQ: least squares towards the largest value on expert rows, and towards the smallest reward under the policy.

    :param gamma: discount; the target network's value is clipped to the range that the rewards allow
    :param policy_term: ``"value"``: V(s) of all rows; ``"q_old_policy"``: Q(s, a) of replay rows
    :param expert_target: ``"fixed"``: ``q_max``; ``"bootstrap"``: ``r_max + gamma V(s')``
    :param huber: Huber's loss in place of the square
    """
    y = rows.y_target.clamp(-gamma * targets.q_max, gamma * targets.q_max)

    def error(difference: th.Tensor, weight: th.Tensor) -> th.Tensor:
        if huber:
            loss = F.huber_loss(difference, th.zeros_like(difference), reduction="none")
        else:
            loss = difference.square()
        return (weight * loss).sum(dim=-1).mean()

    expert = error(rows.q - (targets.q_max if expert_target == "fixed" else targets.r_max + y), weights.expert)
    if policy_term == "value":
        return expert + error(rows.v + targets.r_max - y, weights.value)
    return expert + error(rows.q + targets.r_max - y, weights.replay)


def ls_iq_regularizer(
    q: th.Tensor, next_v: th.Tensor, terminated: th.Tensor, gamma: float, coefficient: float, has_absorbing_state: bool
) -> th.Tensor:
    """
    What LS-IQ (HC) charges for the implicit reward r of a row: ``c r^2``, r clipped to what the rewards allow.

    :param q: target network's Q(s, a), shape ``(M,)``
    :param next_v: target network's V, shape ``(M,)``
    :param terminated: 1 where the row terminated, shape ``(M,)``
    :param has_absorbing_state: weigh terminated rows as the absorbing state they lead to: ``(1 - gamma) c r^2``, r clipped
        to the range of values
    """
    r_max, q_max = LSIQTargets.of(coefficient, gamma)
    r = q - gamma * (1 - terminated) * next_v.clamp(-q_max, q_max)
    charge = coefficient * r.clamp(-r_max, r_max).square()
    if has_absorbing_state:
        charge = th.where(terminated > 0, (1 - gamma) * coefficient * r.clamp(-q_max, q_max).square(), charge)
    return charge


def td_loss(rows: Rows, rewards: th.Tensor, weight: th.Tensor) -> th.Tensor:
    """Squared soft Bellman error under given rewards, shape ``(M,)``, summed over critics."""
    return (weight * (rows.q - rewards - rows.y_target).square()).sum()


def discriminator_loss(logits: th.Tensor, weights: RowWeights) -> th.Tensor:
    """Binary cross-entropy with label 1 on expert rows and 0 on replay rows; logits of shape ``(M,)``."""
    return (weights.expert * F.softplus(-logits) + weights.replay * F.softplus(logits)).sum()


def gradient_norms(function: Callable[[th.Tensor], th.Tensor], points: th.Tensor) -> th.Tensor:
    """Norms of the gradient of a scalar function of rows, differentiable in its parameters, shape ``(N,)``."""
    with th.enable_grad():
        points = points.detach().requires_grad_(True)
        (gradient,) = th.autograd.grad(function(points).sum(), points, create_graph=True)
    # the root has no gradient at 0
    return (gradient.square().sum(dim=1) + 1e-12).sqrt()


def gradient_penalty(
    function: Callable[[th.Tensor], th.Tensor], first: th.Tensor, second: th.Tensor, mix: th.Tensor, centre: float
) -> th.Tensor:
    """
    ``E[(|grad f| - centre)^2]`` at random points between two sets of rows.

    :param function: of points ``(N, D)``, with values ``(N,)``
    :param first: shape ``(N, D)``
    :param second: same shape
    :param mix: share of the first, uniform in [0, 1], shape ``(N, 1)``
    :param centre: gradient norm that costs nothing
    """
    return (gradient_norms(function, mix * first + (1 - mix) * second) - centre).square().mean()


# Keeps the logarithms of a discriminator's probabilities finite
PROBABILITY_FLOOR = 1e-6


def discriminator_reward(logits: th.Tensor, form: str) -> th.Tensor:
    """
    Reward that a discriminator D = sigmoid(logit) implies.

    :param form: ``"airl"``: ``log D - log(1 - D)``; ``"gail"``: ``-log(1 - D)``; ``"fairl"``: ``-h exp(h)``, h as in AIRL
    """
    d = th.sigmoid(logits)
    if form == "gail":
        return -th.log(1 - d + PROBABILITY_FLOOR)
    h = th.log(d + PROBABILITY_FLOOR) - th.log(1 - d + PROBABILITY_FLOOR)
    return h if form == "airl" else -h * th.exp(h)


def _of_mean(weight: th.Tensor) -> th.Tensor:
    """Weights that sum to 1 with the absorbing rows, which come on top of a sum of 1; without any row they stay 0."""
    return F.normalize(weight, p=1, dim=0)


def value_dice_terms(
    d: th.Tensor, initial: th.Tensor, weights: RowWeights, replay_share: float, gamma: float
) -> tuple[th.Tensor, th.Tensor]:
    """
    The two terms of ValueDICE, whose difference nu minimises and the policy maximises (value_dice paper, eq. 12).

    ``log E_mix[exp d] - ((1 - gamma) (1 - lambda) E[nu_0] + lambda E_replay[d])``, with the mixture ``(1 - lambda) expert +
    lambda replay``. The first term is written as the weighted sum of d whose gradient is that of the logarithm. A constant
    added to nu everywhere changes nothing, since every expectation is a mean, absorbing rows included.

    :param d: ``nu(s, a) - gamma nu(s', a')``, shape ``(M,)``
    :param initial: nu at initial states, shape ``(K,)``
    :param replay_share: lambda
    :return: log-term (in gradient) and linear term
    """
    expert, replay = _of_mean(weights.expert), _of_mean(weights.replay)
    mixture = (1 - replay_share) * expert + replay_share * replay
    with th.no_grad():
        share = mixture * th.exp(d - d.amax())
        share = share / share.sum()
    linear = (1 - replay_share) * (1 - gamma) * initial.mean() + replay_share * (replay * d).sum()
    return (share * d).sum(), linear


def moment_loss(costs: th.Tensor, weights: RowWeights) -> th.Tensor:
    """Mean cost of demonstrations minus that of the learner, which a cost function minimises; costs of shape ``(M,)``."""
    return (_of_mean(weights.expert) * costs).sum() - (_of_mean(weights.replay) * costs).sum()


def gumbel_loss(z: th.Tensor, weight: th.Tensor) -> th.Tensor:
    """
    Gumbel regression ``E[exp(z) - z - 1]``, scaled by ``exp(-max z)`` (ReCOIL's implicit maximiser).

    :param z: ``(Q - V) / temperature``, shape ``(M,)``
    :param weight: of the rows that the expectation is over; the largest z is that of all rows
    """
    largest = z.detach().amax().clamp(min=-1)
    scale = th.exp(-largest)
    return (weight * (th.exp(z - largest) - z * scale - scale)).sum()


def recoil_critic_loss(q: th.Tensor, y: th.Tensor, expert: th.Tensor, mixture: th.Tensor, targets: LSIQTargets) -> th.Tensor:
    """
    ReCOIL's critic: half squared errors towards the largest value and towards ``-r_max + gamma V(s')``, summed over critics.

    :param q: shape ``(C, M)``
    :param y: ``gamma V(s')`` without gradient, shape ``(M,)``
    :param expert: weights of expert rows, shape ``(M,)``
    :param mixture: weights of the mixture of suboptimal and expert rows, shape ``(M,)``
    """
    towards_expert = (expert * (q - targets.q_max).square()).sum()
    return 0.5 * (towards_expert + (mixture * (q + targets.r_max - y).square()).sum())


def rize_loss(
    rows: Rows,
    weights: RowWeights,
    mode: str,
    gamma: float,
    coefficient: float,
    expert_level: th.Tensor,
    policy_level: th.Tensor,
) -> th.Tensor:
    """
    RIZE: IQ-Learn (TV) whose value term is Q of the batch's own actions, and squares that draw implicit rewards to levels.

    :param mode: ``"value"``: ``E_mix[Q(s, a) - gamma V(s')]``; ``"v0_expert"``: see :func:`value_term`
    :param coefficient: weight of the squares
    :param expert_level: without gradient, shape ``()``
    :param policy_level: likewise
    """
    r = rows.q - rows.y
    if mode == "value":
        value = (weights.value * r).sum(dim=-1).mean()
    else:
        value = value_term(rows, weights, mode, gamma)
    squares = squared_reward(r - expert_level, weights.expert) + squared_reward(r - policy_level, weights.replay)
    return expert_term(r, weights) + value + coefficient * squares


def orthogonality(weight_matrices: Sequence[th.Tensor]) -> th.Tensor:
    """Sum of the squared off-diagonal entries of ``W W^T`` (inner products of different units' weights); scalar."""
    total = th.zeros((), device=weight_matrices[0].device)
    for weight in weight_matrices:
        products = weight @ weight.T
        total = total + (products - th.diag(products.diagonal())).square().sum()
    return total


def ent_coef_loss(log_ent_coef: th.Tensor, log_prob: th.Tensor, target_entropy: float) -> th.Tensor:
    """SAC's temperature loss: raises alpha while the policy's entropy is below the target; scalar."""
    return -(log_ent_coef * (log_prob.detach().mean() + target_entropy)).mean()

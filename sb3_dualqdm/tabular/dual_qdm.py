"""Dual Q-DM, exactly and in its penalised practical form; Reg IQ-Learn is the same problem with another penalty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sb3_dualqdm.tabular.arguments import require_bounds, require_positive, require_table
from sb3_dualqdm.tabular.demos import TabularDemos
from sb3_dualqdm.tabular.mdp import TabularMDP, logsumexp, softmax
from sb3_dualqdm.tabular.optimise import Objective, maximise_on_box
from sb3_dualqdm.tabular.solution import Solution

Penalty = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def solve_dual_qdm(
    mdp: TabularMDP,
    demos: TabularDemos,
    alpha: float = 1.0,
    tolerance: float = 1e-8,
    max_iterations: int = 5000,
    start_reward: np.ndarray | None = None,
) -> Solution:
    """
    Dual Q-DM: max_Q E_D[Q - gamma P LSE(Q)] - E_rho[LSE(Q)] under the Bellman constraints 0 <= Q - gamma P LSE(Q) <= 1.

    Q and its implicit reward r = Q - gamma P LSE(Q) determine each other, so the problem is solved as the equivalent concave
    one over a box: max over r in [0, 1] of <d_E, r> - E_rho[V*_soft(r)], whose gradient is d_E minus the soft-optimal
    occupancy. Pairs that no policy reaches do not enter the objective; they get the smallest feasible reward, 0.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param alpha: temperature of LSE and of the softmax policy, default 1
    :param tolerance: duality gap to reach, relative to max(1, abs(objective)), default 1e-8
    :param max_iterations: default 5000
    :param start_reward: first reward, shape ``mdp.shape``, default 1 on the demonstrated pairs and 0 elsewhere
    :return: the solution; ``gap`` is the duality gap against distribution matching
    :raises ValueError: if an argument is out of range, or if the demonstrations do not fit the MDP
    """
    require_positive(alpha=alpha)
    expert = demos.occupancy(mdp)

    def objective(reward: np.ndarray) -> tuple[float, np.ndarray]:
        _, v, policy = mdp.soft_optimal(reward, alpha)
        value = float((expert * reward).sum()) - mdp.start_value(v)
        return value, expert - mdp.occupancy(policy)

    start = (expert > 0).astype(float) if start_reward is None else require_table("start_reward", start_reward, mdp.shape)
    scale = max(1.0, abs(objective(np.clip(start, 0.0, 1.0))[0]))
    result = maximise_on_box(objective, start, 0.0, 1.0, tolerance * scale, max_iterations)
    reward = np.where((expert == 0) & ~mdp.reachable(), 0.0, result.x)
    return _from_reward(mdp, reward, alpha, result.gap, result.value, result.iterations, result.converged)


def solve_penalised_dual_qdm(
    mdp: TabularMDP,
    demos: TabularDemos,
    alpha: float = 1.0,
    beta: float = 10.0,
    bounds: tuple[float, float] = (0.0, 1.0),
    online: np.ndarray | None = None,
    per_sample: bool = False,
    tolerance: float = 1e-9,
    max_iterations: int = 5000,
    start_reward: np.ndarray | None = None,
) -> Solution:
    """
    The practical form of Dual Q-DM: the Bellman constraints become squared hinges on the online data, weighted by beta.

    With the expectation inside the hinge, relu(low - r)^2 + relu(r - high)^2 with r = Q - gamma P LSE(Q), the problem is
    concave in r and tends to the constrained one as beta grows. With ``per_sample`` the hinge is taken for every successor
    state and averaged after, as the paper writes it and as an implementation from samples does; that is another problem, and
    not a concave one.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param alpha: temperature, default 1
    :param beta: weight of the penalty, > 0, default 10
    :param bounds: bounds low <= high of the implicit reward, default (0, 1)
    :param online: weights >= 0 of the pairs in the online data, shape ``mdp.shape``, default uniform: 1 / (S A) per step
    :param per_sample: whether the hinge is taken per successor state, default False (expectation inside)
    :param tolerance: largest absolute gradient entry to reach, default 1e-9
    :param max_iterations: default 5000
    :param start_reward: first implicit reward, default the demonstrated pairs' indicator
    :return: the solution; ``gap`` is nan, see ``converged``
    :raises ValueError: if an argument is out of range, or if the demonstrations do not fit the MDP
    """
    require_positive(alpha=alpha, beta=beta)
    low, high = require_bounds(bounds)

    def penalty(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        below, above = np.maximum(low - r, 0.0), np.maximum(r - high, 0.0)
        return beta * (below**2 + above**2), 2.0 * beta * (above - below)

    return _solve_penalised(mdp, demos, alpha, penalty, online, per_sample, tolerance, max_iterations, start_reward)


def solve_reg_iq_learn(
    mdp: TabularMDP,
    demos: TabularDemos,
    alpha: float = 1.0,
    coefficient: float = 0.25,
    online: np.ndarray | None = None,
    per_sample: bool = False,
    tolerance: float = 1e-9,
    max_iterations: int = 5000,
) -> Solution:
    """
    Reg IQ-Learn: the IQ-Learn objective minus ``coefficient`` times the squared implicit reward on the online data.

    The square bounds the problem by itself, so the box [0, C] on Q is not imposed.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param alpha: temperature, default 1
    :param coefficient: weight of the square, > 0, default 1/4 as in the paper
    :param online: see :func:`solve_penalised_dual_qdm`
    :param per_sample: see :func:`solve_penalised_dual_qdm`
    :param tolerance: see :func:`solve_penalised_dual_qdm`
    :param max_iterations: default 5000
    :return: the solution; ``gap`` is nan, see ``converged``
    :raises ValueError: if an argument is out of range, or if the demonstrations do not fit the MDP
    """
    require_positive(alpha=alpha, coefficient=coefficient)

    def penalty(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return coefficient * r**2, 2.0 * coefficient * r

    return _solve_penalised(mdp, demos, alpha, penalty, online, per_sample, tolerance, max_iterations, None)


def penalised_objective(
    mdp: TabularMDP,
    expert: np.ndarray,
    alpha: float,
    penalty: Penalty,
    online: np.ndarray,
    per_sample: bool,
) -> Objective:
    """
    The penalised objective as a function of the implicit reward, with its gradient through soft planning (the adjoint
    recursion).

    :param mdp: the MDP
    :param expert: empirical expert occupancy
    :param alpha: temperature
    :param penalty: maps residuals to (penalty, derivative), elementwise
    :param online: weights of the pairs
    :param per_sample: whether the residual is Q(s, a) - gamma V(s') per successor rather than its mean
    """
    source = -mdp.start_source()

    def objective(reward: np.ndarray) -> tuple[float, np.ndarray]:
        q, v, policy = mdp.soft_optimal(reward, alpha)
        value = float((expert * reward).sum()) - mdp.start_value(v)
        if not per_sample:
            cost, slope = penalty(reward)
            return value - float((online * cost).sum()), expert - online * slope + mdp.pair_mass(policy, source)
        q_slope, v_slope, total = np.zeros(mdp.shape), np.zeros(mdp.shape[:-1]), 0.0
        for here, after, kernel in _steps(mdp):
            future = np.zeros(mdp.n_states) if after is None else mdp.discount * v[after]
            cost, slope = penalty(q[here][..., None] - future)
            weight = online[here][..., None] * kernel
            total += float((weight * cost).sum())
            q_slope[here] += (weight * slope).sum(axis=-1)
            if after is not None:
                v_slope[after] += mdp.discount * (weight * slope).sum(axis=(0, 1))
        return value - total, expert + mdp.pair_mass(policy, source + v_slope, -q_slope)

    return objective


def _steps(mdp: TabularMDP) -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Index of a step's pairs, index of the states after it (None after the last step), and its transitions (S, A, S)."""
    shape = (mdp.n_states, mdp.n_actions, mdp.n_states)
    if mdp.horizon is None:
        yield ..., ..., mdp.transitions
        return
    for h in range(mdp.horizon - 1):
        yield h, h + 1, mdp.kernel(h).reshape(shape)
    yield mdp.horizon - 1, None, np.full(shape, 1.0 / mdp.n_states)


def _solve_penalised(
    mdp: TabularMDP,
    demos: TabularDemos,
    alpha: float,
    penalty: Penalty,
    online: np.ndarray | None,
    per_sample: bool,
    tolerance: float,
    max_iterations: int,
    start_reward: np.ndarray | None,
) -> Solution:
    if online is None:
        online = np.full(mdp.shape, 1.0 / (mdp.n_states * mdp.n_actions))
    online = require_table("online", online, mdp.shape)
    if (online < 0).any():
        raise ValueError(f"online has the weight {online.min()}, expected weights >= 0: they are shares of the online data.")
    expert = demos.occupancy(mdp)
    if ((online <= 0) & (expert > 0)).any():
        raise ValueError(
            "online is 0 on a demonstrated pair, expected weights > 0 there: the objective has no maximum without them."
        )
    objective = penalised_objective(mdp, expert, alpha, penalty, online, per_sample)
    start = (expert > 0).astype(float) if start_reward is None else require_table("start_reward", start_reward, mdp.shape)
    result = maximise_on_box(objective, start, tolerance=tolerance, max_iterations=max_iterations)
    return _from_reward(mdp, result.x, alpha, float("nan"), result.value, result.iterations, result.converged)


def _from_reward(
    mdp: TabularMDP, reward: np.ndarray, alpha: float, gap: float, objective: float, iterations: int, converged: bool
) -> Solution:
    q, v, policy = mdp.soft_optimal(reward, alpha)
    return Solution(q, v, policy, reward, mdp.occupancy(policy), gap, objective, iterations, converged)


def penalised_iterates(
    mdp: TabularMDP,
    demos: TabularDemos,
    snapshots: Sequence[int],
    alpha: float = 0.1,
    beta: float = 1.0,
    bounds: tuple[float, float] = (0.0, 1.0),
    learning_rate: float = 0.25,
    tau: float = 0.1,
) -> dict[int, np.ndarray]:
    """
    The practical algorithm for discrete actions with exact expectations: gradient ascent on Q, the penalty measured against
    a target Q that follows by Polyak averaging, every pair having the same weight 1 in the online data.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param snapshots: iterations to return, 0 being the start at Q = 0
    :param alpha: temperature, default 0.1
    :param beta: weight of the penalty, >= 0, default 1; 0 leaves the Bellman constraints out
    :param bounds: bounds of the implicit reward, default (0, 1)
    :param learning_rate: step of the ascent, default 0.25
    :param tau: share of Q in the target per iteration, default 0.1
    :return: Q at every asked iteration
    :raises ValueError: if an argument is out of range, or if the demonstrations do not fit the MDP
    """
    require_positive(alpha=alpha)
    low, high = require_bounds(bounds)
    expert, source = demos.occupancy(mdp), mdp.start_source()
    q, target = np.zeros(mdp.shape), np.zeros(mdp.shape)
    out = {}
    for iteration in range(max(snapshots) + 1):
        if iteration in snapshots:
            out[iteration] = q.copy()
        residual = q - mdp.backup(logsumexp(target, alpha))
        slope = expert + 2.0 * beta * (np.maximum(low - residual, 0.0) - np.maximum(residual - high, 0.0))
        # In the objective V(s') and V(s_1) carry gradient: successors of the demonstrations and initial states are pushed
        # down.
        slope -= (mdp.successor_mass(expert) + source)[..., None] * softmax(q, alpha)
        q = q + learning_rate * slope
        target = tau * q + (1.0 - tau) * target
    return out

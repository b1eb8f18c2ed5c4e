"""The methods that only look at demonstrated states: BC, IQ-Learn in every divergence, ValueDICE."""

from __future__ import annotations

import numpy as np

from sb3_dualqdm.tabular.arguments import require_positive
from sb3_dualqdm.tabular.demos import TabularDemos
from sb3_dualqdm.tabular.mdp import TabularMDP, greedy_policy, logsumexp
from sb3_dualqdm.tabular.optimise import Objective, frank_wolfe_gap, maximise_on_box
from sb3_dualqdm.tabular.solution import Solution, solution_from_q

DIVERGENCES = ("tv", "chi2", "hellinger", "kl", "js")

# Hellinger and JS are defined for r > -1 and r > -log 2 only: below these points phi goes on as its tangent, which keeps it
# concave.
_TANGENT_BELOW = {"hellinger": -0.9, "js": -0.6, "kl": -30.0}


def solve_bc(mdp: TabularMDP, demos: TabularDemos) -> Solution:
    """
    Behavioral cloning, argmax of the log-likelihood: n(s, a) / n(s) at demonstrated states, uniform elsewhere.

    :param mdp: the MDP
    :param demos: the demonstrations
    :return: the solution; q, v and reward are None; ``objective`` is the expected log-likelihood
    """
    expert = demos.occupancy(mdp)
    states = expert.sum(axis=-1, keepdims=True)
    policy = np.where(states > 0, expert / np.where(states > 0, states, 1.0), 1.0 / mdp.n_actions)
    likelihood = float((expert[expert > 0] * np.log(policy[expert > 0])).sum())
    return Solution(None, None, policy, None, mdp.occupancy(policy), 0.0, likelihood)


def default_bound(mdp: TabularMDP, alpha: float) -> float:
    """
    Default C of the class Q in [0, C]: twice the largest Q that rewards in [0, 1] allow, 2 (1 + alpha log A) H, H =
    1/(1-gamma) if discounted. Twice, because the chi2 form wants rewards of 2 on the demonstrations.

    :param mdp: the MDP
    :param alpha: temperature
    """
    steps = mdp.horizon if mdp.horizon is not None else 1.0 / (1.0 - mdp.discount)
    return 2.0 * (1.0 + alpha * float(np.log(mdp.n_actions))) * steps


def state_weights(mdp: TabularMDP, demos: TabularDemos) -> np.ndarray:
    """
    Total weight of LSE(Q)(s) in the sampled IQ-Learn (TV) objective: successors of the demonstrations plus rho.

    :param mdp: the MDP
    :param demos: the demonstrations
    :return: shape (H, S) or (S,)
    """
    return demos.next_mass(mdp) + mdp.start_source()


def solve_iq_learn(
    mdp: TabularMDP,
    demos: TabularDemos,
    alpha: float = 1.0,
    divergence: str = "tv",
    bound: float | None = None,
    initial_q: float = 0.0,
    n_starts: int = 3,
    seed: int = 0,
    tolerance: float = 1e-7,
    max_iterations: int = 2000,
) -> Solution:
    """
    IQ-Learn: max over Q in [0, C] of E_D[phi(Q(s, a) - gamma LSE(Q)(s'))] - E_rho[LSE(Q)(s_1)], s' being the demonstrated
    successor.

    phi is x (tv), x - x^2/4 (chi2), x/(1+x) (hellinger), -exp(-x-1) (kl), log(2 - exp(-x)) (js). TV separates over states
    and is solved exactly per state. The others are concave except chi2 beyond an implicit reward of 2, where phi decreases:
    chi2 is started from several points and the best result is returned, which is no proof of optimality.

    Q-values that do not enter the objective keep ``initial_q``: that unvisited states are flat after step 1 is a convention.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param alpha: temperature, default 1
    :param divergence: "tv" (default), "chi2", "hellinger", "kl" or "js"
    :param bound: C, > 0, default :func:`default_bound`
    :param initial_q: constant initial Q, default 0
    :param n_starts: starting points for chi2, default 3
    :param seed: seed of the random starting points, default 0
    :param tolerance: Frank-Wolfe gap to reach, default 1e-7
    :param max_iterations: per start, default 2000
    :return: the solution; ``gap`` certifies the optimum for every divergence but chi2, where it only certifies stationarity
    :raises ValueError: if divergence is unknown, if alpha, bound or n_starts is not > 0, or if the demonstrations do not
        fit the MDP
    """
    if divergence not in DIVERGENCES:
        raise ValueError(f"divergence is {divergence!r}, expected one of {', '.join(DIVERGENCES)}: choose one of these.")
    require_positive(alpha=alpha, n_starts=n_starts)
    top = default_bound(mdp, alpha) if bound is None else bound
    require_positive(bound=top)
    likelihood_q = _tv_solution(mdp, demos, alpha, top, initial_q)
    weights, expert = state_weights(mdp, demos), demos.occupancy(mdp)
    used = (expert > 0) | (weights > 0)[..., None]
    if divergence == "tv":
        value = float((expert * likelihood_q).sum() - (weights * logsumexp(likelihood_q, alpha)).sum())
        policy = np.exp((likelihood_q - logsumexp(likelihood_q, alpha)[..., None]) / alpha)
        gap = frank_wolfe_gap(likelihood_q, expert - weights[..., None] * policy, 0.0, top)
        return solution_from_q(mdp, likelihood_q, alpha, gap=gap, objective=value)
    objective = iq_learn_objective(mdp, demos, alpha, divergence)
    starts = [np.where(expert > 0, _ramp(mdp, top), 0.0), likelihood_q]
    rng = np.random.default_rng(seed)
    starts += [np.where(expert > 0, top * rng.random(mdp.shape), 0.0) for _ in range(n_starts - 2)]
    starts = starts[:n_starts] if divergence == "chi2" else starts[:1]
    results = [maximise_on_box(objective, start, 0.0, top, tolerance, max_iterations) for start in starts]
    best = max(results, key=lambda result: result.value)
    q = np.where(used, best.x, initial_q)
    return solution_from_q(
        mdp, q, alpha, gap=best.gap, objective=best.value, iterations=best.iterations, converged=best.converged
    )


def iq_learn_objective(mdp: TabularMDP, demos: TabularDemos, alpha: float, divergence: str) -> Objective:
    """
    The sampled IQ-Learn objective of a divergence and its gradient, as a function of Q.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param alpha: temperature
    :param divergence: see :func:`solve_iq_learn`
    :return: a function from Q to (value, gradient)
    """
    table, source = demos.transition_table(mdp), mdp.start_source()
    continues = table.next_index >= 0
    following = np.where(continues, table.next_index, 0)
    future = np.where(continues, mdp.discount, 0.0)
    n_states = int(np.prod(mdp.shape[:-1]))

    def objective(q: np.ndarray) -> tuple[float, np.ndarray]:
        top = q.max(axis=-1)
        policy = np.exp((q - top[..., None]) / alpha)
        total = policy.sum(axis=-1)
        v = top + alpha * np.log(total)
        policy /= total[..., None]
        reward = q.ravel()[table.pair_index] - future * v.ravel()[following]
        value, slope = phi(reward, divergence)
        slope = slope * table.weight
        v_slope = -source - np.bincount(following, weights=future * slope, minlength=n_states).reshape(v.shape)
        gradient = v_slope[..., None] * policy
        gradient += np.bincount(table.pair_index, weights=slope, minlength=q.size).reshape(q.shape)
        return float(table.weight @ value - (source * v).sum()), gradient

    return objective


def phi(x: np.ndarray, divergence: str) -> tuple[np.ndarray, np.ndarray]:
    """
    The concave reward transform of a divergence and its derivative.

    :param x: implicit rewards
    :param divergence: "tv", "chi2", "hellinger", "kl" or "js"
    """
    if divergence == "tv":
        return x, np.ones_like(x)
    if divergence == "chi2":
        return x - x**2 / 4.0, 1.0 - x / 2.0
    edge = _TANGENT_BELOW[divergence]
    y = np.maximum(x, edge)
    if divergence == "hellinger":
        value, slope = y / (1.0 + y), 1.0 / (1.0 + y) ** 2
    elif divergence == "kl":
        value, slope = -np.exp(-y - 1.0), np.exp(-y - 1.0)
    else:
        value, slope = np.log(2.0 - np.exp(-y)), np.exp(-y) / (2.0 - np.exp(-y))
    return value + slope * (x - y), slope


def _ramp(mdp: TabularMDP, top: float) -> np.ndarray:
    """Half the bound, falling linearly to the end of the horizon: equal implicit rewards along a trajectory."""
    if mdp.horizon is None:
        return np.full(mdp.shape, top / 2.0)
    left = np.arange(mdp.horizon, 0, -1) / mdp.horizon
    return np.broadcast_to((top / 2.0 * left)[:, None, None], mdp.shape)


def _tv_solution(mdp: TabularMDP, demos: TabularDemos, alpha: float, top: float, initial_q: float) -> np.ndarray:
    """
    Exact maximiser per state of sum_a c_a q_a - w LSE(q) over [0, C]^A: q_a = clip(V + alpha log(c_a / w), 0, C), where V =
    LSE(q).

    LSE(q(V)) - V falls in V, so V is found by bisection; where it is 0 on an interval (c sums to w: only the policy is
    determined) the smallest V is taken.
    """
    c = demos.occupancy(mdp).reshape(-1, mdp.n_actions)
    w = state_weights(mdp, demos).ravel()
    q = np.full(c.shape, float(initial_q))
    rows = np.flatnonzero((w > 0) | (c.sum(axis=1) > 0))
    c, w = c[rows], w[rows]
    weighted = w > 0
    with np.errstate(divide="ignore"):
        shift = alpha * np.log(c / np.where(weighted, w, 1.0)[:, None])
    low = np.zeros(len(rows))
    high = np.full(len(rows), top + alpha * np.log(mdp.n_actions) + 1.0)
    for _ in range(200):
        middle = 0.5 * (low + high)
        above = logsumexp(np.clip(middle[:, None] + shift, 0.0, top), alpha) > middle + 1e-15 * np.maximum(1.0, middle)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    solved = np.clip(high[:, None] + shift, 0.0, top)
    # A demonstrated state without weight on its V (the user's own demonstrations): only pulled up.
    solved[~weighted] = np.where(c[~weighted] > 0, top, initial_q)
    q[rows] = solved
    return q.reshape(mdp.shape)


def solve_value_dice(
    mdp: TabularMDP, demos: TabularDemos, bound: float | None = None, tolerance: float = 1e-7, max_iterations: int = 2000
) -> Solution:
    """
    ValueDICE in the appendix form, normalised: max over Q in [0, C] of
    -log E_d[exp(-Q(s, a) + gamma MAX(Q)(s'))] - E_rho[MAX(Q)(s_1)] / H, with E_d the average over steps (1 - gamma instead
    of 1/H when discounted); the policy is greedy.

    As printed, with a sum over steps inside the logarithm and no 1/H, the largest objective is at Q = 0 unless a state is
    demonstrated first H times as often as rho says: the greedy action is then undetermined. The two terms balance only when
    both are averages.

    At the optimum every demonstrated action has Q = MAX(Q), so the values V of the visited states are the variables; actions
    that were not demonstrated are free below that and get 0, as do states that nothing enters.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param bound: C, > 0, default :func:`default_bound` at temperature 1
    :param tolerance: Frank-Wolfe gap to reach, default 1e-7
    :param max_iterations: default 2000
    :return: the solution; v is MAX(Q) and ``policy`` is greedy
    :raises ValueError: if bound is not > 0, or if the demonstrations do not fit the MDP
    """
    top = default_bound(mdp, 1.0) if bound is None else bound
    require_positive(bound=top)
    table, expert = demos.transition_table(mdp), demos.occupancy(mdp)
    steps = 1.0 if mdp.horizon is None else float(mdp.horizon)
    source = mdp.start_source() / steps
    here, weight = table.pair_index // mdp.n_actions, table.weight / steps
    continues = table.next_index >= 0
    following, future = np.where(continues, table.next_index, 0), np.where(continues, mdp.discount, 0.0)
    log_weight, n_states = np.log(weight), source.size

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        flat = v.ravel()
        exponent = log_weight - flat[here] + future * flat[following]
        largest = exponent.max()
        shares = np.exp(exponent - largest)
        total = shares.sum()
        shares /= total
        slope = np.bincount(here, weights=shares, minlength=n_states)
        slope -= np.bincount(following, weights=shares * future, minlength=n_states)
        return -float(largest + np.log(total)) - float((source * v).sum()), slope.reshape(v.shape) - source

    visited = expert.sum(axis=-1) > 0
    start = np.where(visited, _ramp(mdp, 2.0 * top)[..., 0], 0.0)
    result = maximise_on_box(objective, start, 0.0, top, tolerance, max_iterations)
    v = np.where(visited | (source > 0) | (demos.next_mass(mdp) > 0), result.x, 0.0)
    q = np.where(expert > 0, v[..., None], 0.0)
    v = q.max(axis=-1)
    policy = greedy_policy(q)
    return Solution(
        q, v, policy, q - mdp.backup(v), mdp.occupancy(policy), result.gap, result.value, result.iterations, result.converged
    )

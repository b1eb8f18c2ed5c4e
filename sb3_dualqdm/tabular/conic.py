"""Two of the paper's convex programs, written down literally for a conic solver: Primal DM (AIL) and Dual V-DM."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from sb3_dualqdm.tabular.ail import distribution_matching_loss
from sb3_dualqdm.tabular.arguments import require_positive
from sb3_dualqdm.tabular.demos import TabularDemos
from sb3_dualqdm.tabular.mdp import TabularMDP
from sb3_dualqdm.tabular.solution import Solution


def _cvxpy() -> Any:
    try:
        import clarabel  # noqa: F401
        import cvxpy
    except ImportError as error:
        raise ImportError(
            f"{error.name} is not installed, expected cvxpy and clarabel for this solver: pip install them."
        ) from error
    return cvxpy


def _solve(problem: Any) -> None:
    with warnings.catch_warnings():
        # Asked for more digits than it can prove, Clarabel says so; the tests hold the result against an independent bound.
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        problem.solve(
            solver="CLARABEL",
            tol_gap_abs=1e-10,
            tol_gap_rel=1e-10,
            tol_feas=1e-10,
            reduced_tol_gap_abs=1e-7,
            reduced_tol_gap_rel=1e-7,
        )
    if problem.status not in ("optimal", "optimal_inaccurate"):
        raise RuntimeError(
            f"the conic solver ended with status {problem.status}, expected optimal: rescale the problem or raise alpha."
        )


def solve_ail_primal(mdp: TabularMDP, demos: TabularDemos, alpha: float = 1.0) -> Solution:
    """
    AIL as the paper's Primal DM: min over occupancies of sum_h D_TV(d_E, d_h) - alpha * H(d_h) under the flow constraints,
    solved with an exponential-cone solver (cvxpy with Clarabel). For small instances.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param alpha: temperature, default 1
    :return: the solution; ``objective`` is the minimised loss of the policy, recomputed exactly; q, v and reward are None,
        and ``gap`` is the difference to the solver's own value
    :raises ValueError: if alpha is not > 0, or if the demonstrations do not fit the MDP
    """
    require_positive(alpha=alpha)
    cp = _cvxpy()
    expert = demos.occupancy(mdp)
    layers = range(1 if mdp.horizon is None else mdp.horizon)
    expert_layers = expert.reshape(len(layers), mdp.n_states, mdp.n_actions)
    d = [cp.Variable((mdp.n_states, mdp.n_actions), nonneg=True) for _ in layers]
    loss, constraints = 0, []
    for h in layers:
        states = cp.sum(d[h], axis=1)
        broadcast = cp.reshape(states, (mdp.n_states, 1), order="C") @ np.ones((1, mdp.n_actions))
        loss += 0.5 * cp.sum(cp.abs(expert_layers[h] - d[h])) + alpha * cp.sum(cp.rel_entr(d[h], broadcast))
        if mdp.horizon is None:
            inflow = mdp.start_source() + mdp.discount * (mdp.kernel().T @ cp.vec(d[0], order="C"))
        elif h == 0:
            inflow = mdp.initial
        else:
            inflow = mdp.kernel(h - 1).T @ cp.vec(d[h - 1], order="C")
        constraints.append(states == inflow)
    problem = cp.Problem(cp.Minimize(loss), constraints)
    _solve(problem)
    occupancy = np.maximum(np.stack([layer.value for layer in d]).reshape(mdp.shape), 0.0)
    states = occupancy.sum(axis=-1, keepdims=True)
    visited = states > 1e-12
    policy = np.where(visited, occupancy / np.where(visited, states, 1.0), 1.0 / mdp.n_actions)
    value = distribution_matching_loss(mdp, expert, policy, alpha)
    return Solution(None, None, policy, None, mdp.occupancy(policy), abs(value - float(problem.value)), value)


def solve_dual_vdm(mdp: TabularMDP, demos: TabularDemos, alpha: float = 1.0) -> Solution:
    """
    The paper's Dual V-DM: max over (r, V) of E_D[r] - E_rho[V] under V = LSE(r + gamma P V) and 0 <= r <= 1, solved as the
    convex program with V >= LSE(r + gamma P V): the objective falls in V, so the constraint is tight wherever it matters.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param alpha: temperature, default 1
    :return: the solution; V is the soft-optimal value of the reward found, the reward being 0 at pairs that no policy
        reaches; ``gap`` is the difference between the solver's value and the objective of this exactly feasible pair
    :raises ValueError: if alpha is not > 0, or if the demonstrations do not fit the MDP
    """
    require_positive(alpha=alpha)
    cp = _cvxpy()
    expert = demos.occupancy(mdp)
    n_layers = 1 if mdp.horizon is None else mdp.horizon
    expert_layers = expert.reshape(n_layers, mdp.n_states, mdp.n_actions)
    r = [cp.Variable((mdp.n_states, mdp.n_actions)) for _ in range(n_layers)]
    v = [cp.Variable(mdp.n_states) for _ in range(n_layers)]
    constraints = []
    for h in range(n_layers):
        constraints += [r[h] >= 0, r[h] <= 1]
        following = None if h == n_layers - 1 else v[h + 1]
        q = r[h]
        if mdp.horizon is None:
            following = v[0]
        if following is not None:
            future = mdp.discount * (mdp.kernel(h) @ following)
            q = r[h] + cp.reshape(future, (mdp.n_states, mdp.n_actions), order="C")
        constraints += [v[h][s] >= alpha * cp.log_sum_exp(q[s] / alpha) for s in range(mdp.n_states)]
    matched = sum(cp.sum(cp.multiply(expert_layers[h], r[h])) for h in range(n_layers))
    problem = cp.Problem(cp.Maximize(matched - mdp.start_scale * (mdp.initial @ v[0])), constraints)
    _solve(problem)
    reward = np.clip(np.stack([layer.value for layer in r]).reshape(mdp.shape), 0.0, 1.0)
    reward = np.where(mdp.reachable(), reward, 0.0)
    q, values, policy = mdp.soft_optimal(reward, alpha)
    objective = float((expert * reward).sum()) - mdp.start_value(values)
    return Solution(q, values, policy, reward, mdp.occupancy(policy), abs(objective - float(problem.value)), objective)

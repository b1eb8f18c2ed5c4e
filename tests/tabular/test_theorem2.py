"""Theorem 2: Dual Q-DM, Dual V-DM and AIL are one problem; four solvers that share no optimisation code agree."""

import numpy as np
import pytest

from sb3_dualqdm.tabular import (
    distribution_matching_loss,
    reset_cliff,
    sample_demos,
    solve_ail,
    solve_ail_primal,
    solve_dual_qdm,
    solve_dual_vdm,
)

from .instances import both, lse, numerical_gradient

CASES = [(seed, case, alpha) for seed in range(4) for case in (0, 1) for alpha in (1.0, 0.1)]


@pytest.mark.both
@pytest.mark.parametrize("seed, case, alpha", CASES)
def test_dual_qdm_is_feasible_and_its_duality_gap_closes(seed, case, alpha):
    mdp, demos = both(seed)[case]
    solution = solve_dual_qdm(mdp, demos, alpha)
    # Feasibility and the soft Bellman equation, from Q alone and without the package's planning.
    values = lse(solution.q, alpha)
    if mdp.horizon is None:
        future = 0.9 * mdp.transitions @ values
    else:
        future = np.zeros(mdp.shape)
        future[:-1] = np.einsum("hsat,ht->hsa", mdp.transitions, values[1:])
    reward = solution.q - future
    assert reward == pytest.approx(solution.reward, abs=1e-9)
    assert reward.min() >= -1e-9 and reward.max() <= 1 + 1e-9
    # Weak duality: the loss of any policy is above the objective of any feasible Q; here they meet.
    objective = float((demos.occupancy(mdp) * reward).sum()) - mdp.start_value(values)
    loss = distribution_matching_loss(mdp, demos.occupancy(mdp), solution.policy, alpha)
    assert 0 <= loss - objective + 1e-12
    assert loss - objective < 1e-6 * max(1.0, abs(loss))
    assert solution.gap == pytest.approx(loss - objective, abs=1e-8)


@pytest.mark.parametrize("seed, case, alpha", CASES)
def test_dual_qdm_equals_ail_primal_and_dual_vdm(seed, case, alpha):
    pytest.importorskip("cvxpy")
    mdp, demos = both(seed)[case]
    dual_q = solve_dual_qdm(mdp, demos, alpha)
    primal, dual_v = solve_ail_primal(mdp, demos, alpha), solve_dual_vdm(mdp, demos, alpha)
    assert dual_q.objective == pytest.approx(primal.objective, abs=1e-6)
    assert dual_q.objective == pytest.approx(dual_v.objective, abs=1e-6)
    visited = dual_q.occupancy.sum(axis=-1) > 1e-6
    assert dual_q.policy[visited] == pytest.approx(primal.policy[visited], abs=1e-4)
    assert dual_q.policy[visited] == pytest.approx(dual_v.policy[visited], abs=1e-4)
    assert dual_q.occupancy == pytest.approx(primal.occupancy, abs=1e-5)


@pytest.mark.both
@pytest.mark.parametrize("seed, case, alpha", CASES[:8])
def test_dual_qdm_equals_ail_by_min_max_iteration(seed, case, alpha):
    mdp, demos = both(seed)[case]
    dual_q, ail = solve_dual_qdm(mdp, demos, alpha, tolerance=1e-9), solve_ail(mdp, demos, alpha, tolerance=1e-8)
    assert ail.gap < 1e-7
    assert ail.objective == pytest.approx(dual_q.objective, abs=1e-7)
    visited = dual_q.occupancy.sum(axis=-1) > 1e-4
    assert ail.policy[visited] == pytest.approx(dual_q.policy[visited], abs=1e-4)


def test_min_max_iteration_agrees_with_the_conic_solver():
    pytest.importorskip("cvxpy")
    mdp = reset_cliff(n_states=6, n_actions=3, horizon=6, n_demos=8)
    demos = sample_demos(mdp, 8, seed=0)
    primal, ail = solve_ail_primal(mdp, demos, 0.1), solve_ail(mdp, demos, 0.1, tolerance=1e-8)
    assert ail.objective == pytest.approx(primal.objective, abs=1e-6)
    assert ail.occupancy == pytest.approx(primal.occupancy, abs=1e-3)
    assert mdp.imitation_gap(ail.policy) == pytest.approx(mdp.imitation_gap(primal.policy), abs=1e-3)


@pytest.mark.both
@pytest.mark.parametrize("case", [0, 1])
def test_ail_loss_is_a_distance_minus_an_entropy(case):
    mdp, demos = both(7)[case]
    expert = demos.occupancy(mdp)
    policy = mdp.uniform_policy()
    steps = mdp.horizon or 1
    distance = sum(
        max(0.0, float(e - d)) for e, d in zip(expert.ravel(), mdp.occupancy(policy).ravel())
    )  # sup over rewards in [0, 1]
    assert distribution_matching_loss(mdp, expert, policy, 0.4) == pytest.approx(distance - 0.4 * steps * np.log(3))


@pytest.mark.both
@pytest.mark.parametrize("case", [0, 1])
def test_no_policy_has_a_smaller_ail_loss(case):
    mdp, demos = both(8)[case]
    expert, rng = demos.occupancy(mdp), np.random.default_rng(8)
    best = solve_dual_qdm(mdp, demos, 0.1).policy

    def loss(logits):
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return distribution_matching_loss(mdp, expert, weights / weights.sum(axis=-1, keepdims=True), 0.1)

    reached = loss(np.log(best))
    for scale in (1e-3, 1e-2, 0.1, 1.0):
        assert min(loss(np.log(best) + scale * rng.normal(size=mdp.shape)) for _ in range(40)) >= reached - 1e-9


@pytest.mark.both
@pytest.mark.parametrize("case", [0, 1])
def test_any_start_leads_to_the_same_solution(case):
    mdp, demos = both(9)[case]
    reference = solve_dual_qdm(mdp, demos, 0.2, tolerance=1e-10)
    for seed in range(3):
        start = np.random.default_rng(seed).random(mdp.shape)
        other = solve_dual_qdm(mdp, demos, 0.2, tolerance=1e-10, start_reward=start)
        assert other.converged
        assert other.objective == pytest.approx(reference.objective, abs=1e-8)
        assert other.policy == pytest.approx(reference.policy, abs=1e-4)


@pytest.mark.both
def test_objective_gradient_is_the_occupancy_difference():
    mdp, demos = both(10)[0]
    expert = demos.occupancy(mdp)
    solution = solve_dual_qdm(mdp, demos, 0.5)
    interior = np.clip(solution.reward, 0.05, 0.95)
    slope = numerical_gradient(
        lambda r: float((expert * r).sum()) - mdp.start_value(mdp.soft_optimal(r, 0.5)[1]), interior, 1e-5
    )
    _, _, policy = mdp.soft_optimal(interior, 0.5)
    assert expert - mdp.occupancy(policy) == pytest.approx(slope, abs=1e-8)

"""ValueDICE, Reg IQ-Learn, the penalised practical form, and the Reset Cliff's closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from sb3_dualqdm.tabular import (
    TabularDemos,
    TabularMDP,
    random_mdp,
    reset_cliff,
    reset_cliff_bc_gap,
    reset_cliff_epsilon,
    sample_demos,
    solve_ail,
    solve_ail_primal,
    solve_bc,
    solve_dual_qdm,
    solve_dual_vdm,
    solve_iq_learn,
    solve_penalised_dual_qdm,
    solve_reg_iq_learn,
    solve_value_dice,
)
from sb3_dualqdm.tabular.dual_qdm import penalised_objective
from sb3_dualqdm.tabular.optimise import maximise_on_box

from .instances import both, finite, numerical_gradient

pytestmark = pytest.mark.both


# --- ValueDICE -------------------------------------------------------------------------------------------------------


def value_dice_objective(mdp, demos, q, as_printed):
    """The appendix form for a finite horizon, row by row; as printed it has a sum over steps and no 1/H."""
    steps = 1.0 if as_printed else float(mdp.horizon)
    best = np.append(q.max(axis=-1), np.zeros((1, mdp.n_states)), axis=0)
    rows = zip(demos.step, demos.states, demos.actions, demos.next_states)
    inner = np.mean([np.exp(-q[h, s, a] + best[h + 1, after]) for h, s, a, after in rows]) * mdp.horizon
    return -np.log(inner / steps) - mdp.initial @ best[0] / steps


@pytest.mark.parametrize("seed", range(3))
def test_value_dice_is_greedy_on_the_demonstrated_action(seed):
    mdp, demos = finite(seed, n_demos=5)
    solution = solve_value_dice(mdp, demos)
    expert = demos.occupancy(mdp)
    seen = expert.sum(axis=-1) > 0
    assert solution.policy[seen] == pytest.approx(solve_bc(mdp, demos).policy[seen])
    assert solution.policy[~seen] == pytest.approx(np.full(((~seen).sum(), 3), 1 / 3))
    assert solution.objective == pytest.approx(value_dice_objective(mdp, demos, solution.q, False), abs=1e-9)
    rng = np.random.default_rng(seed)
    top = solution.q.max()
    for scale in (0.01, 0.3, 3.0):
        for _ in range(100):
            other = np.clip(solution.q + scale * rng.normal(size=mdp.shape), 0.0, top)
            assert value_dice_objective(mdp, demos, other, False) <= solution.objective + 1e-6


def test_value_dice_as_printed_is_degenerate():
    mdp, demos = finite(0, n_demos=5)
    assert (demos.occupancy(mdp)[0].sum(axis=-1) <= mdp.horizon * mdp.initial).all()
    at_zero = value_dice_objective(mdp, demos, np.zeros(mdp.shape), True)
    rng = np.random.default_rng(0)
    for scale in (0.01, 0.3, 3.0):
        for _ in range(200):
            assert value_dice_objective(mdp, demos, scale * rng.random(mdp.shape), True) <= at_zero + 1e-12


# --- the penalised form and Reg IQ-Learn -----------------------------------------------------------------------------


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("case", [0, 1])
def test_penalised_objective_by_rows_and_by_finite_differences(case, per_sample):
    mdp, demos = both(3)[case]
    rng = np.random.default_rng(3)
    expert, online = demos.occupancy(mdp), rng.random(mdp.shape)
    reward = rng.uniform(-1.0, 2.0, size=mdp.shape)

    def penalty(r):
        below, above = np.maximum(-r, 0.0), np.maximum(r - 1.0, 0.0)
        return 0.7 * (below**2 + above**2), 1.4 * (above - below)

    objective = penalised_objective(mdp, expert, 0.6, penalty, online, per_sample)
    q, v, _ = mdp.soft_optimal(reward, 0.6)
    cost = 0.0
    for index in np.ndindex(mdp.shape):
        if not per_sample:
            cost += online[index] * penalty(reward[index])[0]
            continue
        if mdp.horizon is None:
            outcomes = zip(mdp.transitions[index], 0.9 * v)
        elif index[0] == mdp.horizon - 1:
            outcomes = [(1.0, 0.0)]
        else:
            outcomes = zip(mdp.transitions[index], v[index[0] + 1])
        cost += online[index] * sum(p * penalty(q[index] - future)[0] for p, future in outcomes)
    value, slope = objective(reward)
    assert value == pytest.approx(float((expert * reward).sum()) - mdp.start_value(v) - cost, abs=1e-9)
    assert slope == pytest.approx(numerical_gradient(lambda r: objective(r)[0], reward), abs=1e-6)


@pytest.mark.parametrize("case", [0, 1])
def test_large_beta_recovers_the_constrained_solution(case):
    mdp, demos = both(4)[case]
    exact = solve_dual_qdm(mdp, demos, 0.3, tolerance=1e-11)
    errors = []
    for beta in (10.0, 100.0, 1000.0, 10_000.0):
        soft = solve_penalised_dual_qdm(mdp, demos, 0.3, beta, tolerance=1e-7)
        assert soft.objective >= exact.objective - 1e-9  # a relaxation
        errors.append(np.abs(soft.policy - exact.policy)[exact.occupancy.sum(axis=-1) > 1e-6].max())
    assert errors[-1] < 2e-3
    assert errors[3] < 0.2 * errors[2] < 0.1 * errors[1]  # first order in 1 / beta


def test_the_per_sample_penalty_converges_to_another_problem():
    mdp = reset_cliff(n_states=6, n_actions=3, horizon=6, n_demos=8)
    demos = sample_demos(mdp, 8, seed=0)
    exact = solve_dual_qdm(mdp, demos, 0.1, tolerance=1e-10)
    inside, sampled = (
        solve_penalised_dual_qdm(mdp, demos, 0.1, 1e4, per_sample=per_sample, tolerance=1e-6, start_reward=exact.reward)
        for per_sample in (False, True)
    )
    visited = exact.occupancy.sum(axis=-1) > 1e-3
    assert np.abs(inside.v - exact.v)[visited].max() < 0.01
    assert np.abs(sampled.v - exact.v)[visited].max() > 0.5
    assert sampled.objective < exact.objective - 0.1  # it punishes feasible Q-functions


def test_without_penalty_the_gradient_is_that_of_dual_qdm():
    mdp, demos = finite(5)
    expert = demos.occupancy(mdp)
    reward = np.random.default_rng(5).random(mdp.shape)
    objective = penalised_objective(mdp, expert, 1.0, lambda r: (0 * r, 0 * r), np.ones(mdp.shape), True)
    _, v, policy = mdp.soft_optimal(reward, 1.0)
    assert objective(reward)[0] == pytest.approx(float((expert * reward).sum()) - mdp.start_value(v))
    assert objective(reward)[1] == pytest.approx(expert - mdp.occupancy(policy))


@pytest.mark.parametrize("case", [0, 1])
def test_reg_iq_learn_is_the_hinge_with_equal_bounds(case):
    mdp, demos = both(6)[case]
    reg = solve_reg_iq_learn(mdp, demos, 0.5, coefficient=0.25)
    hinge = solve_penalised_dual_qdm(mdp, demos, 0.5, beta=0.25, bounds=(0.0, 0.0))
    assert reg.converged and hinge.converged
    assert reg.q == pytest.approx(hinge.q, abs=1e-5)


def test_reg_iq_learn_by_hand():
    # One state, one step, two actions, weight 1/2 each: maximise q1 - LSE(q) - (q0^2 + q1^2) / 8, so q1 = 4 p0 = -q0.
    mdp = TabularMDP(np.ones((1, 2, 1)), np.ones(1), horizon=1)
    solution = solve_reg_iq_learn(mdp, TabularDemos.from_trajectories([([0], [1])]))
    low, high = 0.0, 4.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < 4.0 / (1.0 + np.exp(2 * middle)) else (low, middle)
    assert solution.q[0, 0] == pytest.approx([-low, low], abs=1e-7)


def test_reg_iq_learn_pulls_rewards_to_zero_where_dual_qdm_does_not():
    mdp = reset_cliff(n_states=6, n_actions=3, horizon=6, n_demos=8)
    demos = sample_demos(mdp, 8, seed=0)
    seen = demos.occupancy(mdp) > 0
    reg, dual = solve_reg_iq_learn(mdp, demos, 0.1), solve_dual_qdm(mdp, demos, 0.1)
    assert (reg.reward[~seen] < 1e-9).all() and (reg.reward[~seen] < -1e-3).any()  # below every feasible reward
    assert (dual.reward[~seen] == 0).all()


def test_online_weights_must_cover_the_demonstrations():
    mdp, demos = finite(0)
    with pytest.raises(ValueError, match="demonstrated pair"):
        solve_reg_iq_learn(mdp, demos, online=np.zeros(mdp.shape))


# --- arguments -------------------------------------------------------------------------------------------------------


SOLVERS = (solve_dual_qdm, solve_penalised_dual_qdm, solve_reg_iq_learn, solve_iq_learn, solve_ail)


@pytest.mark.parametrize("solve", [*SOLVERS, solve_ail_primal, solve_dual_vdm])
@pytest.mark.parametrize("alpha", [0, -1.0, np.nan, np.inf])
def test_temperatures_without_a_meaning_are_refused(solve, alpha):
    with pytest.raises(ValueError, match=f"alpha is {alpha}, expected a finite number > 0"):
        solve(*finite(0), alpha=alpha)


@pytest.mark.parametrize(
    "solve, arguments, message",
    [
        (solve_penalised_dual_qdm, {"beta": 0}, "beta is 0, expected"),
        (solve_penalised_dual_qdm, {"beta": -1}, "beta is -1, expected"),
        (solve_penalised_dual_qdm, {"bounds": (1, 0)}, r"bounds are \(1, 0\), expected"),
        (solve_penalised_dual_qdm, {"online": np.ones((4, 3))}, r"online has shape \(4, 3\), expected"),
        (solve_penalised_dual_qdm, {"online": np.full((4, 4, 3), np.nan)}, "online has NaN"),
        (solve_penalised_dual_qdm, {"online": np.full((4, 4, 3), -1.0)}, "online has the weight -1"),
        (solve_penalised_dual_qdm, {"start_reward": np.zeros(3)}, r"start_reward has shape \(3,\), expected"),
        (solve_dual_qdm, {"start_reward": np.zeros(3)}, r"start_reward has shape \(3,\), expected"),
        (solve_reg_iq_learn, {"coefficient": 0}, "coefficient is 0, expected"),
        (solve_iq_learn, {"bound": -1}, "bound is -1, expected"),
        (solve_value_dice, {"bound": 0}, "bound is 0, expected"),
        (solve_ail, {"check_every": 0}, "check_every is 0, expected"),
    ],
)
def test_arguments_without_a_meaning_are_refused(solve, arguments, message):
    with pytest.raises(ValueError, match=message):
        solve(*finite(0), **arguments)


@pytest.mark.parametrize("solve", [*SOLVERS, solve_bc, solve_value_dice])
def test_demonstrations_of_another_mdp_are_refused(solve):
    with pytest.raises(ValueError, match="the demonstrations have states from 0 to 3, expected 0 to 1"):
        solve(random_mdp(2, 2, horizon=4), finite(0)[1])


def test_a_solution_that_is_not_finite_has_not_converged():
    mdp, demos = finite(0)
    with np.errstate(all="ignore"):
        assert not solve_dual_qdm(mdp, demos, alpha=1e308).converged
        assert not solve_ail(mdp, demos, alpha=1e308, max_iterations=20).converged
    solved = solve_bc(mdp, demos)
    assert solved.converged
    assert not replace(solved, gap=np.inf).converged and not replace(solved, policy=np.full(mdp.shape, np.nan)).converged


# --- Reset Cliff -----------------------------------------------------------------------------------------------------


def test_reset_cliff_is_the_papers():
    mdp = reset_cliff(n_states=5, n_actions=3, horizon=4, n_demos=9, seed=1)
    assert mdp.initial == pytest.approx([0.1, 0.1, 0.1, 0.7, 0.0])
    expert = mdp.expert[0].argmax(axis=-1)
    for s in range(4):
        for a in range(3):
            good = a == expert[s]
            assert mdp.transitions[s, a] == pytest.approx(mdp.initial if good else np.eye(5)[4])
            assert mdp.reward[0, s, a] == float(good)
    assert mdp.transitions[4, :, 4].tolist() == [1.0] * 3
    assert mdp.policy_return(mdp.expert) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="n_demos"):
        reset_cliff(n_states=14, n_demos=10)


def test_expected_bc_gap_in_closed_form_against_simulation():
    sizes = dict(n_states=6, n_actions=3, horizon=8, n_demos=5)
    gaps, missed = [], []
    for seed in range(1500):
        mdp = reset_cliff(**sizes, seed=seed)
        demos = sample_demos(mdp, 5, seed=seed)
        gaps.append(mdp.imitation_gap(solve_bc(mdp, demos).policy))
        missed.append(mdp.initial[demos.occupancy(mdp)[0].sum(axis=-1) == 0].sum())
    standard_error = np.std(gaps) / np.sqrt(len(gaps))
    closed = reset_cliff_bc_gap(**sizes)
    assert closed == pytest.approx(np.mean(gaps), abs=4 * standard_error)
    epsilon = reset_cliff_epsilon(6, 5)
    assert epsilon == pytest.approx(np.mean(missed), abs=4 * np.std(missed) / np.sqrt(len(missed)))
    # The paper's expression is a strict lower bound; the difference is far outside the noise.
    printed = (1 - 1 / 3) * sum((1 - epsilon) ** (h - 1) * epsilon * (8 - h + 1) for h in range(1, 9))
    assert printed < closed - 10 * standard_error


@pytest.mark.parametrize("n_states, n_demos", [(3, 1), (5, 10), (20, 200), (50, 50), (100, 5000)])
def test_epsilon_lemma(n_states, n_demos):
    assert (n_states - 2) / (np.e * (n_demos + 1)) <= reset_cliff_epsilon(n_states, n_demos) <= 1.0
    mdp = reset_cliff(n_states=n_states, n_demos=n_demos, horizon=2)
    assert reset_cliff_epsilon(n_states, n_demos) == pytest.approx(float((mdp.initial * (1 - mdp.initial) ** n_demos).sum()))


def test_temperature_one_fails_and_a_low_temperature_or_the_greedy_policy_does_not():
    gaps = {}
    for horizon in (8, 32):
        mdp = reset_cliff(n_states=20, n_actions=5, horizon=horizon, n_demos=200)
        demos = sample_demos(mdp, 200, seed=0)
        hot, cold = solve_dual_qdm(mdp, demos, 1.0), solve_dual_qdm(mdp, demos, 0.1)
        gaps[horizon] = [mdp.imitation_gap(p) for p in (hot.policy, hot.greedy, cold.policy, cold.greedy)]
        gaps[horizon].append(mdp.imitation_gap(solve_bc(mdp, demos).policy))
        assert gaps[horizon][0] > 0.85 * horizon
        assert max(gaps[horizon][1:4]) < 0.1
    assert gaps[32][4] > 4.0 * gaps[8][4] > 3.0  # BC grows faster than linearly
    assert gaps[32][2] < 2.0 * gaps[8][2]


def test_hot_ail_fails_in_the_same_way():
    mdp = reset_cliff(n_states=20, n_actions=5, horizon=16, n_demos=200)
    demos = sample_demos(mdp, 200, seed=0)
    assert mdp.imitation_gap(solve_ail(mdp, demos, 1.0).policy) > 0.85 * 16
    assert mdp.imitation_gap(solve_ail(mdp, demos, 0.1, tolerance=1e-4).policy) < 0.1


def test_a_large_instance_is_solved_without_dense_layers():
    mdp = reset_cliff(n_states=50, n_actions=5, horizon=100, n_demos=200)
    assert mdp.transitions.shape == (50, 5, 50)
    demos = sample_demos(mdp, 200, seed=0)
    solution = solve_dual_qdm(mdp, demos, 0.1)
    assert solution.converged and solution.relative_gap < 1e-7
    iq = solve_iq_learn(mdp, demos, 0.1)
    assert mdp.imitation_gap(solution.policy) < 0.2 < mdp.imitation_gap(iq.policy)


# --- the optimiser ---------------------------------------------------------------------------------------------------


def test_box_maximiser_on_a_concave_quadratic():
    rng = np.random.default_rng(0)
    factor, target = rng.normal(size=(12, 12)), rng.normal(size=12)
    matrix = factor @ factor.T + 0.1 * np.eye(12)

    def objective(x):
        return float(target @ x - 0.5 * x @ matrix @ x), target - matrix @ x

    free = maximise_on_box(objective, np.zeros(12), tolerance=1e-10)
    assert free.x == pytest.approx(np.linalg.solve(matrix, target), abs=1e-6)
    boxed = maximise_on_box(objective, np.full(12, 0.5), 0.0, 1.0, 1e-10)
    slope = target - matrix @ boxed.x
    assert boxed.converged
    assert (slope[boxed.x == 0] <= 1e-9).all() and (slope[boxed.x == 1] >= -1e-9).all()
    assert slope[(boxed.x > 0) & (boxed.x < 1)] == pytest.approx(0.0, abs=1e-6)
    assert ((boxed.x == 0) | (boxed.x == 1)).any()

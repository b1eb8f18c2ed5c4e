"""Theorem 1: IQ-Learn is BC on demonstrated states after the first step, and uniform on initial states it has not seen."""

import numpy as np
import pytest

from sb3_dualqdm.tabular import TabularDemos, TabularMDP, reset_cliff, sample_demos, solve_bc, solve_iq_learn, td_mdp
from sb3_dualqdm.tabular.likelihood import DIVERGENCES, iq_learn_objective, phi

from .instances import both, discounted, finite, lse, numerical_gradient

pytestmark = pytest.mark.both


def test_bc_is_the_empirical_conditional():
    mdp, _ = finite(0)
    demos = TabularDemos.from_trajectories([([0, 1, 2, 3], [0, 1, 2, 0]), ([0, 1, 3, 3], [2, 1, 0, 0])])
    policy = solve_bc(mdp, demos).policy
    assert policy[0, 0].tolist() == [0.5, 0.0, 0.5]
    assert policy[1, 1].tolist() == [0.0, 1.0, 0.0]
    assert policy[2, 0] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("alpha", [1.0, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_iq_learn_is_bc_after_the_first_step(seed, alpha):
    mdp, demos = finite(seed, n_demos=6)
    bound = 40.0 * alpha  # realises a deterministic policy up to exp(-40)
    learned = solve_iq_learn(mdp, demos, alpha, bound=bound)
    cloned = solve_bc(mdp, demos)
    assert learned.policy[1:] == pytest.approx(cloned.policy[1:], abs=1e-12)
    unseen = (demos.occupancy(mdp)[0].sum(axis=-1) == 0) & (mdp.initial > 0)
    assert learned.policy[0][unseen] == pytest.approx(np.full((unseen.sum(), 3), 1 / 3))
    assert learned.relative_gap < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_first_step_follows_the_ratio_of_the_empirical_to_the_true_start(seed):
    # At a state seen less often than rho says, the optimum is pi(a) = d(s, a) / rho(s) on the seen actions; more often, the
    # bound.
    mdp, demos = finite(seed, n_demos=6)
    learned = solve_iq_learn(mdp, demos, 1.0, bound=40.0)
    expert = demos.occupancy(mdp)[0]
    for s in range(mdp.n_states):
        action = expert[s].argmax()
        share = expert[s, action] / mdp.initial[s]
        if 0 < share < 1:
            assert learned.policy[0, s, action] == pytest.approx(share, abs=1e-9)
        elif share > 1:
            assert learned.q[0, s].tolist() == [40.0 if a == action else 0.0 for a in range(3)]


def test_with_a_small_bound_it_is_maximum_likelihood_inside_the_class():
    mdp, demos = finite(1, n_demos=6)
    learned = solve_iq_learn(mdp, demos, 0.5, bound=1.0)
    seen = demos.occupancy(mdp)[1:].max(axis=-1) > 0
    best = np.exp(1.0 / 0.5) / (np.exp(1.0 / 0.5) + 2.0)  # Q = C on the demonstrated action, 0 on the two others
    assert learned.policy[1:].max(axis=-1)[seen] == pytest.approx(np.full(seen.sum(), best))


def test_a_stochastic_expert_is_cloned_too():
    transitions = np.full((2, 3, 2), 0.5)
    mdp = TabularMDP(transitions, np.array([0.5, 0.5]), horizon=2)
    demos = TabularDemos.from_trajectories([([0, 1], [0, 0]), ([1, 1], [0, 1]), ([0, 1], [0, 1]), ([1, 1], [0, 1])])
    learned = solve_iq_learn(mdp, demos, 1.0, bound=40.0)
    assert learned.policy[1, 1] == pytest.approx([0.25, 0.75, 0.0], abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_discounted_iq_learn_is_bc_off_the_initial_states(seed):
    mdp, _ = discounted(seed)
    initial = np.zeros(6)
    initial[:3] = 1 / 3
    transitions = mdp.transitions.copy()
    transitions[5] = np.eye(6)[5]  # absorbing, so that trajectories have an end
    mdp = TabularMDP(transitions, initial, discount=0.9, expert=mdp.expert)
    demos = sample_demos(mdp, 2, seed=seed, length=300)
    kept = []
    for i in range(2):
        rows = demos.trajectory == i
        states, actions = demos.states[rows], demos.actions[rows]
        assert states[-1] == 5
        end = int((states == 5).argmax()) + 1
        kept.append((states[:end], actions[:end]))
    demos = TabularDemos.from_trajectories(kept)
    learned, cloned = solve_iq_learn(mdp, demos, 0.5, bound=40.0), solve_bc(mdp, demos)
    assert learned.policy[3:] == pytest.approx(cloned.policy[3:], abs=1e-12)
    unseen = demos.occupancy(mdp)[:3].sum(axis=-1) == 0
    assert learned.policy[:3][unseen] == pytest.approx(np.full((unseen.sum(), 3), 1 / 3))


@pytest.mark.parametrize("seed", range(4))
def test_iq_learn_imitates_no_better_than_bc_on_the_hard_instance(seed):
    mdp = reset_cliff(n_states=10, n_actions=4, horizon=20, n_demos=15, seed=seed)
    demos = sample_demos(mdp, 15, seed=seed)
    cloned = mdp.imitation_gap(solve_bc(mdp, demos).policy)
    assert cloned > 1.0
    for divergence in DIVERGENCES:
        learned = solve_iq_learn(mdp, demos, 0.1, divergence, tolerance=1e-3)
        assert mdp.imitation_gap(learned.policy) >= cloned - 1e-6


def test_imitating_less_earns_more_where_other_actions_pay():
    """The order of the gaps is no theorem: here the expert's action pays nothing, the other one 1."""
    mdp = TabularMDP(
        np.full((2, 2, 2), 0.5), np.array([0.5, 0.5]), horizon=1, reward=np.array([[1.0, 0.0]] * 2), expert=np.array([1, 1])
    )
    demos = TabularDemos.from_trajectories([([0], [1])] + 3 * [([1], [1])])
    learned, cloned = solve_iq_learn(mdp, demos, 0.1), solve_bc(mdp, demos)
    assert learned.policy[0] == pytest.approx(np.array([[0.5, 0.5], [0.0, 1.0]]), abs=1e-8)  # (1/4) / (1/2) in the first state
    assert mdp.imitation_gap(cloned.policy) == 0.0
    assert mdp.imitation_gap(learned.policy) == pytest.approx(-0.25)


def test_unvisited_states_stay_flat_in_a_td_mdp():
    mdp = td_mdp(seed=0)
    demos = sample_demos(mdp, 2, seed=0)
    for initial_q in (0.0, 0.7):
        q = solve_iq_learn(mdp, demos, 0.1, initial_q=initial_q).q
        unseen = demos.occupancy(mdp).sum(axis=-1) == 0
        assert (np.ptp(q[unseen], axis=-1) == 0).all()
        assert (q[1:][unseen[1:]] == initial_q).all()  # the convention
        assert (q[0][unseen[0] & (mdp.initial > 0)] == 0).all()  # pushed to the lower end of [0, C]


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("case", [0, 1])
def test_objective_of_every_divergence(divergence, case):
    mdp, demos = both(6)[case]
    objective = iq_learn_objective(mdp, demos, 0.8, divergence)
    q = 3.0 * np.random.default_rng(6).random(mdp.shape)
    v = lse(q, 0.8)
    value = -mdp.start_value(v)
    for row, weight in enumerate(demos.weights(mdp)):
        here = (demos.states[row], demos.actions[row])
        after = demos.next_states[row]
        if mdp.horizon is None:
            reward = q[here] - 0.9 * v[after]
        else:
            h = demos.step[row]
            reward = q[(h, *here)] - (v[h + 1, after] if h + 1 < mdp.horizon else 0.0)
        value += weight * phi(np.array(reward), divergence)[0]
    assert objective(q)[0] == pytest.approx(value, abs=1e-10)
    assert objective(q)[1] == pytest.approx(numerical_gradient(lambda x: objective(x)[0], q), abs=1e-7)


def test_phi_of_every_divergence():
    x = np.array([-0.4, 0.0, 0.5, 2.0])
    assert phi(x, "tv")[0] == pytest.approx(x)
    assert phi(x, "chi2")[0] == pytest.approx(x - x**2 / 4)
    assert phi(x, "hellinger")[0] == pytest.approx(x / (1 + x))
    assert phi(x, "kl")[0] == pytest.approx(-np.exp(-x - 1))
    assert phi(x, "js")[0] == pytest.approx(np.log(2 - np.exp(-x)))
    far = np.linspace(-50, 5, 500)
    for divergence in DIVERGENCES:
        value, slope = phi(far, divergence)
        assert slope == pytest.approx(np.gradient(value, far, edge_order=2), rel=0.3, abs=0.05)
        assert (np.diff(slope) <= 1e-12).all()  # concave, its tangent continuation included


@pytest.mark.parametrize("divergence", ["chi2", "hellinger", "kl", "js"])
def test_one_step_one_state_by_hand(divergence):
    # max phi(q) - LSE(q, 0): phi'(q) is the probability of the demonstrated action.
    mdp = TabularMDP(np.ones((1, 2, 1)), np.ones(1), horizon=1)
    demos = TabularDemos.from_trajectories([([0], [1])])
    learned = solve_iq_learn(mdp, demos, 0.5, divergence, bound=10.0, tolerance=1e-10)
    low, high = 0.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        uphill = phi(np.array(middle), divergence)[1] > 1 / (1 + np.exp(-middle / 0.5))
        low, high = (middle, high) if uphill else (low, middle)
    assert learned.q[0, 0] == pytest.approx([0.0, low], abs=1e-6)


def test_unknown_divergence_is_refused():
    mdp, demos = finite(0)
    with pytest.raises(ValueError, match="tv, chi2, hellinger, kl, js"):
        solve_iq_learn(mdp, demos, divergence="wasserstein")

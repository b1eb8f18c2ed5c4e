"""MDPs, planning and demonstrations against slow independent computations and simulation."""

import numpy as np
import pytest

from sb3_dualqdm.tabular import TabularDemos, TabularMDP, mdp_from_gymnasium, random_mdp, reset_cliff, sample_demos
from sb3_dualqdm.tabular.mdp import greedy_policy, logsumexp, softmax

from .instances import both, discounted, finite, lse, numerical_gradient

pytestmark = pytest.mark.both


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_soft_optimal_solves_the_bellman_equation_step_by_step(alpha):
    mdp, _ = finite(0)
    reward = np.random.default_rng(0).random(mdp.shape)
    q, v, policy = mdp.soft_optimal(reward, alpha)
    value = np.zeros(mdp.n_states)
    for h in reversed(range(mdp.horizon)):
        for s in range(mdp.n_states):
            for a in range(mdp.n_actions):
                future = 0.0 if h == mdp.horizon - 1 else mdp.transitions[h, s, a] @ value
                assert q[h, s, a] == pytest.approx(reward[h, s, a] + future, abs=1e-12)
        value = lse(q[h], alpha)
        assert v[h] == pytest.approx(value, abs=1e-12)
    assert policy == pytest.approx(np.exp((q - v[..., None]) / alpha), abs=1e-12)


def test_discounted_soft_optimal_is_the_limit_of_value_iteration():
    mdp, _ = discounted(1)
    reward = np.random.default_rng(1).random(mdp.shape)
    v = np.zeros(mdp.n_states)
    for _ in range(600):
        v = lse(reward + 0.9 * mdp.transitions @ v, 0.5)
    q, values, _ = mdp.soft_optimal(reward, 0.5)
    assert values == pytest.approx(v, abs=1e-10)
    assert q == pytest.approx(reward + 0.9 * mdp.transitions @ v, abs=1e-10)


@pytest.mark.parametrize("case", [0, 1])
def test_soft_value_is_the_best_entropy_regularised_return(case):
    mdp, _ = both(2)[case]
    rng = np.random.default_rng(2)
    reward = rng.random(mdp.shape)
    _, v, optimal = mdp.soft_optimal(reward, 0.7)

    def regularised(policy):
        occupancy = mdp.occupancy(policy)
        return float((occupancy * (reward - 0.7 * np.log(policy))).sum())

    assert regularised(optimal) == pytest.approx(mdp.start_value(v), abs=1e-10)
    others = [regularised(rng.dirichlet(np.ones(mdp.n_actions), size=mdp.shape[:-1])) for _ in range(50)]
    assert max(others) < mdp.start_value(v)


@pytest.mark.parametrize("case", [0, 1])
def test_gradient_of_the_soft_value_is_the_soft_optimal_occupancy(case):
    mdp, _ = both(3)[case]
    reward = np.random.default_rng(3).random(mdp.shape)
    _, _, policy = mdp.soft_optimal(reward, 0.5)
    slope = numerical_gradient(lambda r: mdp.start_value(mdp.soft_optimal(r, 0.5)[1]), reward, 1e-5)
    assert mdp.occupancy(policy) == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("case", [0, 1])
def test_occupancy_return_and_gap_agree_with_simulation(case):
    mdp, _ = both(4)[case]
    policy = np.random.default_rng(4).dirichlet(np.ones(mdp.n_actions), size=mdp.shape[:-1])
    n = 10_000
    length = None if mdp.horizon else 80
    rollouts = sample_demos(mdp, n, seed=4, policy=policy, length=length)
    assert mdp.occupancy(policy) == pytest.approx(rollouts.occupancy(mdp), abs=0.012)
    where = (rollouts.step, rollouts.states, rollouts.actions) if mdp.horizon else (rollouts.states, rollouts.actions)
    discounts = mdp.discount**rollouts.step
    returns = np.bincount(rollouts.trajectory, weights=discounts * mdp.reward[where])
    error = returns.std() / np.sqrt(n)
    assert mdp.policy_return(policy) == pytest.approx(returns.mean(), abs=4 * error)
    assert mdp.imitation_gap(mdp.expert) == 0.0


@pytest.mark.parametrize("case", [0, 1])
def test_occupancies_and_empirical_occupancies_are_distributions_that_flow(case):
    mdp, demos = both(5)[case]
    policy = softmax(np.random.default_rng(5).normal(size=mdp.shape), 1.0)
    occupancy, expert = mdp.occupancy(policy), demos.occupancy(mdp)
    layers = 1 if mdp.horizon is None else mdp.horizon
    assert occupancy.reshape(layers, -1).sum(axis=1) == pytest.approx(np.ones(layers))
    assert expert.reshape(layers, -1).sum(axis=1) == pytest.approx(np.ones(layers))
    if mdp.horizon is None:
        inflow = 0.1 * mdp.initial + 0.9 * np.einsum("sa,sat->t", occupancy, mdp.transitions)
        assert occupancy.sum(axis=-1) == pytest.approx(inflow)
    else:
        inflow = np.einsum("hsa,hsat->ht", occupancy[:-1], mdp.transitions)
        assert occupancy[1:].sum(axis=-1) == pytest.approx(inflow)
        assert demos.next_mass(mdp)[1:] == pytest.approx(expert[1:].sum(axis=-1))  # successors are the next step's states


def test_discounted_weights_of_an_absorbed_and_of_a_cut_trajectory():
    transitions = np.zeros((2, 2, 2))
    transitions[0, :, 1] = transitions[1, :, 1] = 1.0  # state 1 absorbs
    mdp = TabularMDP(transitions, np.array([1.0, 0.0]), discount=0.5)
    absorbed = TabularDemos.from_trajectories([([0, 1], [0, 1])])
    assert absorbed.occupancy(mdp) == pytest.approx(np.array([[0.5, 0.0], [0.0, 0.5]]))
    cut = TabularDemos.from_trajectories([([0, 1], [0])])
    assert cut.occupancy(mdp) == pytest.approx(np.array([[1.0, 0.0], [0.0, 0.0]]))


def test_greedy_policy_splits_ties():
    assert greedy_policy(np.array([1.0, 1.0 + 1e-13, 0.0])) == pytest.approx([0.5, 0.5, 0.0])
    assert logsumexp(np.array([1e4, 0.0]), 1e-3) == 1e4


def test_layers_of_different_sizes_are_padded_with_states_nothing_reaches():
    first = np.zeros((1, 2, 3))
    first[0, 0] = [0.5, 0.5, 0.0]
    first[0, 1] = [0.0, 0.0, 1.0]
    mdp = TabularMDP.from_layers([first], np.array([1.0]), reward=[np.zeros((1, 2)), np.arange(6.0).reshape(3, 2)])
    assert mdp.shape == (2, 3, 2)
    assert mdp.reachable()[0].tolist() == [[True, True], [False, False], [False, False]]
    assert mdp.policy_return(mdp.uniform_policy()) == pytest.approx(0.25 * 0.5 + 0.25 * 2.5 + 0.5 * 4.5)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"discount": 1.0}, "horizon or a discount"),
        ({"horizon": 3, "discount": 0.9}, "drop one"),
        ({"horizon": 3, "transitions": np.full((4, 2, 2, 2), 0.5)}, "horizon - 1"),
        ({"horizon": 3, "transitions": np.full((2, 2, 2), 0.4)}, "normalise"),
        ({"horizon": 3, "initial": np.array([0.5, 0.6])}, "normalise"),
        ({"horizon": 3, "initial": np.array([1.0])}, "reshape"),
        ({"horizon": 3, "expert": np.array([0.0, 1.0])}, "reshape"),
        ({"horizon": 3, "expert": np.array([0, -1])}, "actions from -1 to 0, expected 0 to 1"),
        ({"horizon": 3, "expert": np.array([0, 2])}, "actions from 0 to 2, expected 0 to 1"),
        ({"horizon": 3, "expert": np.full((2, 2), 0.3)}, "expert is no probability distribution"),
        ({"horizon": 3, "expert": np.array([[1.5, -0.5], [1.0, 0.0]])}, "expert is no probability distribution"),
        ({"horizon": 3, "reward": np.nan}, "reward has NaN"),
    ],
)
def test_wrong_mdps_are_refused(kwargs, message):
    arguments = {"transitions": np.full((2, 2, 2), 0.5), "initial": np.array([0.5, 0.5]), **kwargs}
    with pytest.raises(ValueError, match=message):
        TabularMDP(**arguments)


def test_wrong_demonstrations_are_refused():
    mdp = reset_cliff(horizon=4)
    with pytest.raises(ValueError, match="horizon 4"):
        TabularDemos.from_trajectories([([0, 1], [0, 0])]).occupancy(mdp)
    with pytest.raises(ValueError, match="as many states"):
        TabularDemos.from_trajectories([([0], [0, 1])])
    with pytest.raises(ValueError, match="at least one"):
        TabularDemos.from_trajectories([])
    steps = np.zeros(4, dtype=int), np.arange(4)
    wrong = (([0, 0, 20, 0], [0] * 4, "states from 0 to 20"), ([0] * 4, [0, -1, 0, 0], "actions from -1"))
    for states, actions, message in wrong:
        demos = TabularDemos(*steps, np.array(states), np.array(actions), np.zeros(4, dtype=int))
        with pytest.raises(ValueError, match=f"{message}.*use demonstrations of this MDP"):
            demos.occupancy(mdp)
    with pytest.raises(ValueError, match="length"):
        sample_demos(random_mdp(horizon=None, discount=0.9), 1)


def test_toy_text_tables():
    mdp = mdp_from_gymnasium("FrozenLake-v1", discount=0.9)
    assert mdp.shape == (17, 4)
    assert mdp.initial[0] == 1.0
    assert mdp.transitions[16, :, 16].tolist() == [1.0] * 4  # absorbing
    assert mdp.transitions[14, 2, 16] == pytest.approx(1 / 3)  # moving right beside the goal slips up, down or into it
    assert mdp.reward[14].tolist() == pytest.approx([0.0, 1 / 3, 1 / 3, 1 / 3])
    # The known optimal value of the slippery 4x4 lake at gamma = 0.9, which a tiny temperature approaches.
    assert mdp.soft_optimal(mdp.reward, 1e-4)[1][0] == pytest.approx(0.0689, abs=2e-3)

"""Tight constraints, TD MDPs, the worked example and the gridworld: where Dual Q-DM generalises and IQ-Learn cannot."""

import numpy as np
import pytest

from sb3_dualqdm.tabular import (
    TabularMDP,
    gridworld,
    random_mdp,
    sample_demos,
    solve_dual_qdm,
    solve_iq_learn,
    td_mdp,
    td_violations,
    worked_example,
)
from sb3_dualqdm.tabular.mdp import greedy_actions

from .instances import both, finite

pytestmark = pytest.mark.both


@pytest.mark.parametrize("alpha", [1.0, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_tight_constraints(seed, alpha):
    for mdp, demos in both(seed):
        start = np.random.default_rng(seed).random(mdp.shape)  # so that nothing is 0 from the beginning
        solution = solve_dual_qdm(mdp, demos, alpha, tolerance=1e-10, start_reward=start)
        expert = demos.occupancy(mdp)
        visited = solution.occupancy > 1e-6
        assert solution.reward[(expert == 0) & visited].max() < 1e-6
        per_step = np.where(expert > 0, solution.reward, -1.0).reshape(mdp.horizon or 1, -1).max(axis=1)
        assert per_step == pytest.approx(np.ones(mdp.horizon or 1), abs=1e-9)


def test_unreachable_pairs_get_the_smallest_reward():
    mdp = td_mdp(n_expert=2, n_other=2, seed=3)  # the other states of layer 1 have rho = 0
    demos = sample_demos(mdp, 3, seed=3)
    solution = solve_dual_qdm(mdp, demos, 0.5, start_reward=np.ones(mdp.shape))
    assert not mdp.reachable()[0, 2:].any()
    assert (solution.reward[0, 2:] == 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_constructed_td_mdps_satisfy_the_definition(seed):
    rng = np.random.default_rng(seed)
    mdp = td_mdp(int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(2, 6)), seed)
    assert td_violations(mdp) == []
    # Two consequences proved in the docs: one expert action per mixed layer, and a proper subset of expert-reachable states.
    assert (np.ptp(mdp.expert.argmax(axis=-1), axis=-1) == 0).all()
    for h in range(mdp.horizon - 1):
        following = (mdp.transitions[h][np.arange(mdp.n_states), mdp.expert[h].argmax(axis=-1)] > 0).any(axis=0)
        assert following.any() and not following.all()


def test_other_mdps_are_not_td():
    assert any("other than the expert's" in line for line in td_violations(random_mdp(seed=0)))
    mdp = td_mdp(seed=0)
    swapped = mdp.transitions.copy()
    swapped[0, 0], swapped[0, -1] = mdp.transitions[0, -1], mdp.transitions[0, 0]
    other = (int(mdp.expert[0, 0].argmax()) + 1) % 3
    assert swapped[0, 0, other, :3].sum() < swapped[0, -1, other, :3].sum()
    broken = TabularMDP(swapped, mdp.initial, horizon=mdp.horizon, expert=mdp.expert)
    assert any("not expert-reachable" in line for line in td_violations(broken))


@pytest.mark.parametrize("alpha", [1.0, 0.1])
@pytest.mark.parametrize("seed", range(6))
def test_proposition_on_td_mdps(seed, alpha):
    mdp = td_mdp(n_expert=3, n_other=2, n_actions=3, horizon=5, seed=seed)
    demos = sample_demos(mdp, 1 + seed % 3, seed=seed)
    dual, iq = solve_dual_qdm(mdp, demos, alpha), solve_iq_learn(mdp, demos, alpha)
    unseen = demos.occupancy(mdp).sum(axis=-1) == 0
    unseen[-1] = False  # the claim is about h < H
    assert unseen.any()
    expert = mdp.expert.argmax(axis=-1)
    chosen = np.take_along_axis(dual.q, expert[..., None], axis=-1)
    rivals = np.where(mdp.expert > 0, -np.inf, dual.q).max(axis=-1, keepdims=True)
    assert (chosen - rivals)[unseen].min() > 1e-6
    assert np.ptp(iq.q, axis=-1)[unseen].max() == 0.0


def test_worked_example():
    mdp, demos = worked_example()
    assert td_violations(mdp) == []
    alpha = 0.1
    dual = solve_dual_qdm(mdp, demos, alpha)
    assert dual.reward[0] == pytest.approx(np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert dual.q[1] == pytest.approx(np.array([[1.0, 0.0], [0.0, 0.0]]))
    # The paper prints log(e^10 + 1) and log 2; at alpha = 0.1 both carry the factor alpha.
    assert dual.q[0, 1] == pytest.approx([alpha * np.log(np.exp(10.0) + 1.0), alpha * np.log(2.0)])
    iq = solve_iq_learn(mdp, demos, alpha)
    assert iq.q[0, 1].tolist() == [0.0, 0.0]
    assert greedy_actions(dual.q[0, 1]).tolist() == [True, False]
    assert greedy_actions(iq.q[0, 1]).tolist() == [True, True]


def test_value_flows_through_the_gridworld():
    grid = gridworld()
    demos = grid.demonstration()
    unseen = demos.occupancy(grid.mdp).sum(axis=-1) == 0
    iq, dual = solve_iq_learn(grid.mdp, demos, 0.1), solve_dual_qdm(grid.mdp, demos, 0.1)
    assert greedy_actions(iq.q)[unseen].all()
    assert not greedy_actions(dual.q)[unseen].all(axis=-1).any()
    # Following the greedy arrows from any free cell ends in the goal, which one demonstration showed.
    occupancy = dual.greedy
    state = np.eye(grid.mdp.n_states)
    for _ in range(200):
        state = np.einsum("ns,sa,sat->nt", state, occupancy, grid.mdp.transitions)
    assert state[:, grid.goal] == pytest.approx(np.ones(grid.mdp.n_states), abs=1e-6)


def test_gridworld_layout_is_checked():
    with pytest.raises(ValueError, match="one of each"):
        gridworld(("S..", "..."))
    with pytest.raises(ValueError, match="cannot reach"):
        gridworld(("S#.", "##G"))


@pytest.mark.parametrize("case", [0, 1])
def test_action_labels_do_not_matter(case):
    from sb3_dualqdm.tabular import solve_ail, solve_bc, solve_penalised_dual_qdm, solve_reg_iq_learn, solve_value_dice

    mdp, demos = both(11)[case]
    order = np.array([2, 0, 1])  # action a is renamed to order[a]
    inverse = np.argsort(order)
    renamed = TabularMDP(
        mdp.transitions[..., inverse, :],
        mdp.initial,
        horizon=mdp.horizon,
        discount=mdp.discount,
        reward=mdp.reward[..., inverse],
        expert=mdp.expert[..., inverse],
    )
    renamed_demos = demos.permute_actions(order)
    solvers = [
        solve_bc,
        solve_value_dice,
        solve_dual_qdm,
        solve_ail,
        solve_penalised_dual_qdm,
        solve_reg_iq_learn,
        *(lambda m, d, name=name: solve_iq_learn(m, d, 1.0, name, tolerance=1e-9) for name in ("tv", "hellinger", "kl")),
    ]
    for solver in solvers:
        plain, other = solver(mdp, demos), solver(renamed, renamed_demos)
        assert other.policy[..., order] == pytest.approx(plain.policy, abs=2e-5)
        assert renamed.imitation_gap(other.greedy) == pytest.approx(mdp.imitation_gap(plain.greedy), abs=1e-9)


def test_more_demonstrations_bring_dual_qdm_to_the_expert():
    mdp, _ = finite(12)
    gaps = [mdp.imitation_gap(solve_dual_qdm(mdp, sample_demos(mdp, n, seed=1), 0.02).policy) for n in (2, 2000)]
    assert abs(gaps[1]) < 0.05 < abs(gaps[0])

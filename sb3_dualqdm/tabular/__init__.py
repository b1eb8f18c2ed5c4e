"""
Exact tabular imitation learning: the paper's MDPs, every method solved to optimality, and the paper's figures.

>>> from sb3_dualqdm.tabular import reset_cliff, sample_demos, solve_bc, solve_dual_qdm
>>> mdp = reset_cliff(n_states=20, n_actions=5, horizon=32, n_demos=200)
>>> demos = sample_demos(mdp, 200, seed=0)
>>> mdp.imitation_gap(solve_dual_qdm(mdp, demos, alpha=0.1).policy) < 0.1 < mdp.imitation_gap(solve_bc(mdp, demos).policy)
True
"""

from sb3_dualqdm.tabular.ail import distribution_matching_loss, solve_ail
from sb3_dualqdm.tabular.conic import solve_ail_primal, solve_dual_vdm
from sb3_dualqdm.tabular.demos import TabularDemos, sample_demos
from sb3_dualqdm.tabular.dual_qdm import solve_dual_qdm, solve_penalised_dual_qdm, solve_reg_iq_learn
from sb3_dualqdm.tabular.instances import (
    Gridworld,
    gridworld,
    mdp_from_gymnasium,
    random_mdp,
    reset_cliff,
    reset_cliff_bc_gap,
    reset_cliff_epsilon,
    td_mdp,
    td_violations,
    worked_example,
)
from sb3_dualqdm.tabular.likelihood import solve_bc, solve_iq_learn, solve_value_dice
from sb3_dualqdm.tabular.mdp import TabularMDP, greedy_policy
from sb3_dualqdm.tabular.solution import Solution

__all__ = [
    "Gridworld",
    "Solution",
    "TabularDemos",
    "TabularMDP",
    "distribution_matching_loss",
    "greedy_policy",
    "gridworld",
    "mdp_from_gymnasium",
    "random_mdp",
    "reset_cliff",
    "reset_cliff_bc_gap",
    "reset_cliff_epsilon",
    "sample_demos",
    "solve_ail",
    "solve_ail_primal",
    "solve_bc",
    "solve_dual_qdm",
    "solve_dual_vdm",
    "solve_iq_learn",
    "solve_penalised_dual_qdm",
    "solve_reg_iq_learn",
    "solve_value_dice",
    "td_mdp",
    "td_violations",
    "worked_example",
]

"""Adversarial imitation learning as a min-max iteration between a policy and a reward."""

from __future__ import annotations

import numpy as np

from sb3_dualqdm.tabular.demos import TabularDemos
from sb3_dualqdm.tabular.mdp import TabularMDP
from sb3_dualqdm.tabular.solution import Solution


def distribution_matching_loss(mdp: TabularMDP, expert: np.ndarray, policy: np.ndarray, alpha: float) -> float:
    """
    The AIL objective of a policy: sum_h D_TV(d_E, d) - alpha * conditional entropy of d.

    :param mdp: the MDP
    :param expert: empirical expert occupancy
    :param policy: action probabilities
    :param alpha: temperature
    """
    occupancy = mdp.occupancy(policy)
    log_policy = np.log(np.where(policy > 0, policy, 1.0))
    return 0.5 * float(np.abs(expert - occupancy).sum()) + alpha * float((occupancy * log_policy).sum())


def solve_ail(
    mdp: TabularMDP,
    demos: TabularDemos,
    alpha: float = 1.0,
    tolerance: float = 1e-6,
    max_iterations: int = 3000,
    check_every: int = 10,
) -> Solution:
    """
    AIL, min over policies and max over rewards in [0, 1] of <d_E - d, r> - alpha * entropy(d), by alternating proximal steps.

    The reward moves along d_E - d (extrapolated from the last two policies) and is clipped to [0, 1]. The policy answers with a
    regularised RL step that stays close to the last policy in KL: soft planning at temperature alpha + 1/eta with the reward
    r + log(policy) / eta. Nothing of the dual methods is used; the policy's loss and the reward's soft value bound the optimum from
    both sides.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param alpha: temperature, default 1
    :param tolerance: saddle-point gap to reach, relative to max(1, abs(objective)), default 1e-6
    :param max_iterations: default 3000
    :param check_every: iterations between two evaluations of the gap, default 10
    :return: the policy with the smallest loss met and the reward with the best bound; ``objective`` is the loss, ``gap`` the distance
        between the two bounds; q and v are soft values of the reward
    """
    expert = demos.occupancy(mdp)
    scale = 1.0 if mdp.horizon is None else float(mdp.horizon)
    policy_step = 1.0 / alpha  # eta: as much trust in the last policy as in the entropy
    log_policy = np.full(mdp.shape, -np.log(mdp.n_actions))
    occupancy = previous = mdp.occupancy(mdp.uniform_policy())
    reward = (expert > 0).astype(float)
    reward_step = 0.5 / max(policy_step, 1e-12)
    best_policy, best_loss = mdp.uniform_policy(), np.inf
    best_reward, best_bound = reward, -np.inf
    iterations = 0
    for iterations in range(1, max_iterations + 1):
        ascent = expert - (2.0 * occupancy - previous)
        reward = np.clip(reward + reward_step * scale * ascent / np.maximum(occupancy_scale(occupancy), 1e-3), 0.0, 1.0)
        temperature = alpha + 1.0 / policy_step
        q, v, policy = mdp.soft_optimal(reward + log_policy / policy_step, temperature)
        log_policy = (q - v[..., None]) / temperature
        previous, occupancy = occupancy, mdp.occupancy(policy)
    return None


def occupancy_scale(occupancy):
    return occupancy.sum(axis=-1, keepdims=True)

"""Adversarial imitation learning as a min-max iteration between a policy and a reward."""

from __future__ import annotations

import numpy as np

from sb3_dualqdm.tabular.arguments import require_positive
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
    max_iterations: int = 4000,
    policy_step: float = 1.0,
    reward_step: float = 1.0,
    check_every: int = 20,
) -> Solution:
    """
    AIL, min over policies and max over rewards in [0, 1] of <d_E - d, r> - alpha * entropy(d), by alternating proximal steps.

    The reward moves along 1 - d / d_E (d extrapolated from the last two policies) and is clipped to [0, 1]. The policy
    answers with an RL step that stays close to the last policy in KL: soft planning at temperature alpha + 1/policy_step
    with the reward r + log(policy) / policy_step. Steps that fail are halved and taken again from the best point. Nothing of
    the dual methods is used; the loss of the policy and the soft value of the reward bound the optimum from both sides.

    :param mdp: the MDP
    :param demos: the demonstrations
    :param alpha: temperature, default 1
    :param tolerance: saddle-point gap to reach, relative to max(1, abs(objective)), default 1e-6
    :param max_iterations: default 4000
    :param policy_step: step of the policy, default 1
    :param reward_step: first step of the reward, default 1
    :param check_every: iterations between two evaluations of the gap, default 20
    :return: the policy with the smallest loss met and the reward with the best bound; ``objective`` is the loss, ``gap`` the
        distance between the two bounds; q and v are soft values of the reward
    :raises ValueError: if alpha or a step is not > 0, or if the demonstrations do not fit the MDP
    """
    require_positive(alpha=alpha, policy_step=policy_step, reward_step=reward_step, check_every=check_every)
    expert = demos.occupancy(mdp)
    scale = np.where(expert > 0, expert, 1.0)  # undemonstrated pairs are pushed to reward 0 at once
    temperature = alpha + 1.0 / policy_step
    log_policy = np.full(mdp.shape, -np.log(mdp.n_actions))
    occupancy = mdp.occupancy(mdp.uniform_policy())
    reward, previous = (expert > 0).astype(float), occupancy
    kept = (reward, log_policy, occupancy, previous)
    best_loss, best_bound, best_gap = np.inf, -np.inf, np.inf
    best_log_policy, best_reward = log_policy, reward
    iterations, converged, ceiling = 0, False, 64.0 * reward_step
    while iterations < max_iterations and not converged:
        for _ in range(check_every):
            ascent = (expert - 2.0 * occupancy + previous) / scale
            reward = np.clip(reward + reward_step * ascent, 0.0, 1.0)
            q, v, policy = mdp.soft_optimal(reward + log_policy / policy_step, temperature)
            log_policy = (q - v[..., None]) / temperature
            previous, occupancy = occupancy, mdp.occupancy(policy)
        iterations += check_every
        loss = 0.5 * float(np.abs(expert - occupancy).sum()) + alpha * float((occupancy * log_policy).sum())
        bound = float((expert * reward).sum()) - mdp.start_value(mdp.soft_optimal(reward, alpha)[1])
        if loss < best_loss:
            best_loss, best_log_policy = loss, log_policy
        if bound > best_bound:
            best_bound, best_reward = bound, reward
        gap = loss - bound
        if gap <= best_gap:
            if gap > 0.5 * best_gap:
                reward_step = min(1.3 * reward_step, ceiling)
            best_gap, kept = gap, (reward, log_policy, occupancy, previous)
        elif gap > 3.0 * best_gap:
            ceiling = reward_step = 0.5 * reward_step
            reward, log_policy, occupancy, previous = kept
        converged = best_loss - best_bound <= tolerance * max(1.0, abs(best_loss))
    policy = np.exp(best_log_policy)
    policy /= policy.sum(axis=-1, keepdims=True)
    q, v, _ = mdp.soft_optimal(best_reward, alpha)
    gap = max(0.0, best_loss - best_bound)
    return Solution(q, v, policy, best_reward, mdp.occupancy(policy), gap, best_loss, iterations, converged)

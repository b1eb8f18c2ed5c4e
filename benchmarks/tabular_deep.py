"""
Deep discrete algorithms against the exact solutions, on the two tabular environments.

    python benchmarks/tabular_deep.py --out benchmarks/results/tabular_deep.csv

Each run trains one algorithm on demonstrations sampled by its seed and reports, every few thousand steps, the exact
imitation gap of its greedy policy and how often its greedy action at states that were not demonstrated is a greedy action of
the exact Dual Q-DM. The exact gaps of Dual Q-DM, IQ-Learn and BC on the same demonstrations stand beside it. Needs no
simulation to evaluate.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from tqdm import tqdm

import sb3_dualqdm.envs
from sb3_dualqdm import DualQDM, IQLearn, collect_demonstrations
from sb3_dualqdm.demonstrations import Demonstrations
from sb3_dualqdm.tabular import TabularDemos, TabularMDP, solve_bc, solve_dual_qdm, solve_iq_learn
from sb3_dualqdm.tabular.environments import ResetCliffEnv, ValueFlowGridEnv
from sb3_dualqdm.tabular.mdp import greedy_actions, greedy_policy

FIELDS = [
    *("env", "algo", "seed", "step", "gap", "agreement", "unseen"),
    *("exact_dual_qdm", "exact_iq_learn", "exact_bc", "seconds"),
]
ALPHA = 0.1


class Task(NamedTuple):
    """
    One comparison.

    :param env_id: the environment
    :param env_kwargs: its arguments
    :param n_demos: demonstrations
    :param gamma: discount of the deep algorithm
    :param terminal_value: see the algorithms
    """

    env_id: str
    env_kwargs: dict[str, Any]
    n_demos: int
    gamma: float
    terminal_value: str


TASKS = {
    "reset_cliff": Task(
        sb3_dualqdm.envs.RESET_CLIFF, {"n_states": 5, "n_actions": 3, "horizon": 6, "n_demos": 5}, 5, 0.99, "zero"
    ),
    "grid": Task(sb3_dualqdm.envs.VALUE_FLOW_GRID, {"uniform_start": 0.5}, 1, 0.9, "absorbing"),
}


def exact_problem(task: Task, env: gym.Env, demos: Demonstrations) -> tuple[TabularMDP, TabularDemos, np.ndarray]:
    """
    The MDP of an environment, its demonstrations in tabular form, and which states to compare: not demonstrated, and such
    that the exact solution prefers an action there.

    :param task: the task
    :param env: the environment
    :param demos: the recorded demonstrations
    """
    unwrapped, obs, following = env.unwrapped, np.asarray(demos.obs, dtype=int), np.asarray(demos.next_obs, dtype=int)
    actions = np.asarray(demos.actions, dtype=int)
    if isinstance(unwrapped, ResetCliffEnv):
        mdp, n = unwrapped.mdp, unwrapped.n_states
        after = np.where(demos.terminated, -1, following % n)
        tabular = TabularDemos(demos.episode, obs // n, obs % n, actions, after)
        compared = np.ones(mdp.shape[:-1], dtype=bool)
        compared[:, -1] = compared[-1] = False  # nothing distinguishes actions in the bad state, or at an unseen last step
    else:
        assert isinstance(unwrapped, ValueFlowGridEnv)
        grid = ValueFlowGridEnv(**{**task.env_kwargs}).grid
        mdp = TabularMDP(
            grid.mdp.transitions, grid.mdp.initial, discount=task.gamma, reward=grid.mdp.reward, expert=grid.mdp.expert
        )
        # The goal absorbs: one more row per episode, its action being whatever the expert does there.
        ends = np.flatnonzero(demos.terminated)
        tabular = TabularDemos(
            np.append(demos.episode, demos.episode[ends]),
            np.append(demos.step, demos.step[ends] + 1),
            np.append(obs, following[ends]),
            np.append(actions, unwrapped.expert(following[ends])),
            np.append(following, following[ends]),
        )
        compared = np.ones(mdp.shape[:-1], dtype=bool)
        compared[grid.goal] = False
    return mdp, tabular, compared & (tabular.occupancy(mdp).sum(axis=-1) == 0)


def q_table(model: Any, mdp: TabularMDP) -> np.ndarray:
    """
    Q-values of a model at every state.

    :param model: a trained model on a Discrete observation space
    :param mdp: its MDP
    """
    n_obs = int(np.prod(mdp.shape[:-1]))
    with th.no_grad():
        q = model.policy.critic(model.policy.obs_to_tensor(np.arange(n_obs))[0])
    return q.double().numpy().reshape(-1, n_obs, mdp.n_actions)[0].reshape(mdp.shape)


def run(name: str, algo: str, seed: int, n_steps: int, n_reports: int) -> list[dict[str, Any]]:
    """
    Train once.

    :param name: key of ``TASKS``
    :param algo: "dual_qdm" or "iq_learn"
    :param seed: of the demonstrations and of the training
    :param n_steps: environment steps
    :param n_reports: number of evaluations
    :return: one row per evaluation
    """
    task = TASKS[name]
    env = gym.make(task.env_id, **task.env_kwargs)
    source = gym.make(task.env_id, **{**task.env_kwargs, **({"uniform_start": 0.0} if name == "grid" else {})})
    unwrapped: Any = env.unwrapped
    demos = collect_demonstrations(unwrapped.expert, source, task.n_demos, seed=seed)
    mdp, tabular, unseen = exact_problem(task, env, demos)
    exact = solve_dual_qdm(mdp, tabular, ALPHA, tolerance=1e-11)
    assert exact.q is not None
    exact_actions = greedy_actions(exact.q)[unseen]
    gaps = {
        "exact_dual_qdm": mdp.imitation_gap(exact.greedy),
        "exact_iq_learn": mdp.imitation_gap(solve_iq_learn(mdp, tabular, ALPHA).greedy),
        "exact_bc": mdp.imitation_gap(solve_bc(mdp, tabular).policy),
    }
    common: dict[str, Any] = dict(
        demonstrations=demos,
        seed=seed,
        gamma=task.gamma,
        learning_rate=3e-3,
        tau=0.02,
        learning_starts=500,
        warmup="uniform",
        batch_size=64,
        ent_coef=ALPHA,
        value_mode="value",
        terminal_value=task.terminal_value,
        device="cpu",
    )
    if algo == "dual_qdm":
        model: Any = DualQDM("MlpPolicy", env, bellman_bounds=(0.0, 1.0), bellman_penalty=3.0, **common)
    else:
        model = IQLearn("MlpPolicy", env, divergence="tv", **common)
    rows, start = [], time.time()
    for _ in range(n_reports):
        model.learn(n_steps // n_reports, reset_num_timesteps=False)
        q = q_table(model, mdp)
        agreement = exact_actions[np.arange(len(exact_actions)), q.argmax(axis=-1)[unseen]].mean()
        rows.append(
            {
                "env": name,
                "algo": algo,
                "seed": seed,
                "step": model.num_timesteps,
                "gap": round(mdp.imitation_gap(greedy_policy(q)), 4),
                "agreement": round(float(agreement), 4),
                "unseen": int(unseen.sum()),
                **{key: round(value, 4) for key, value in gaps.items()},
                "seconds": round(time.time() - start, 1),
            }
        )
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--algos", nargs="+", choices=("dual_qdm", "iq_learn"), default=("dual_qdm", "iq_learn"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--reports", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/tabular_deep.csv"))
    chosen = parser.parse_args()
    th.set_num_threads(1)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    jobs = [(task, algo, seed) for seed in range(chosen.seeds) for task in chosen.tasks for algo in chosen.algos]
    with chosen.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=FIELDS)
        writer.writeheader()
        for task, algo, seed in tqdm(jobs, unit="run"):
            for row in run(task, algo, seed, chosen.steps, chosen.reports):
                writer.writerow(row)
            file.flush()
            tqdm.write(str(row))


if __name__ == "__main__":
    main()

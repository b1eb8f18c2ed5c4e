"""
Deep discrete algorithms against the exact solutions, on the two tabular environments.

    python benchmarks/tabular_deep.py --out benchmarks/results/tabular_deep.csv
    python benchmarks/tabular_deep.py --objectives --out benchmarks/results/tabular_objectives.csv

Each run trains one algorithm on demonstrations sampled by its seed and reports, several times while it learns,

- ``gap``: the exact imitation gap of its greedy policy, and ``gap_anywhere``: the same from uniformly random states,
- ``agreement``: how often its greedy action at a state without demonstration is a greedy action of the exact Dual Q-DM,
  and ``agreement_clear``: the same where the exact solution prefers that action clearly, by alpha or more,
- ``table_agreement``: how often it is a greedy action of the algorithm's own optimum (stationary point) when Q is a table
  and expectations are taken over all rows that it has, ``table_exact`` and ``table_exact_clear``: the agreement of that
  table with the exact solution. They tell what the networks add from what the practical objective adds; Dual Q-DM alone.

The exact gaps of Dual Q-DM, IQ-Learn and BC on the same demonstrations stand beside it. Nothing is simulated to evaluate.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

import sb3_dualqdm.envs
from sb3_dualqdm import DualQDM, IQLearn, collect_demonstrations
from sb3_dualqdm.demonstrations import Demonstrations
from sb3_dualqdm.tabular import (
    Solution,
    TabularDemos,
    TabularMDP,
    solve_bc,
    solve_dual_qdm,
    solve_iq_learn,
    solve_penalised_dual_qdm,
)
from sb3_dualqdm.tabular.environments import ResetCliffEnv, ValueFlowGridEnv
from sb3_dualqdm.tabular.figures import write_csv
from sb3_dualqdm.tabular.mdp import greedy_actions, greedy_policy, logsumexp, softmax

FIELDS = [
    *("env", "algo", "seed", "step", "updates", "gap", "gap_anywhere"),
    *("agreement", "agreement_clear", "unseen", "clear", "table_agreement", "table_exact", "table_exact_clear"),
    *("exact_dual_qdm", "exact_iq_learn", "exact_bc"),
    *("exact_dual_qdm_anywhere", "exact_iq_learn_anywhere", "exact_bc_anywhere", "cpu_seconds"),
]
ALPHA = 0.1
TIED = 1e-6  # of a table whose iteration stops at steps of 1e-9
WARMUP = 500  # environment steps of random actions before the first update


class Task(NamedTuple):
    """
    One comparison.

    :param env_id: the environment
    :param env_kwargs: its arguments
    :param n_demos: demonstrations
    :param gamma: discount of the deep algorithm
    :param terminal_value: see the algorithms
    :param beta: weight of the Bellman penalty
    :param experience: episodes of random actions (``extra_transitions``), from which the learner knows the transitions away
        from the demonstrations: what is compared is the objective, not its exploration
    :param experience_kwargs: further arguments of the environment that they come from
    """

    env_id: str
    env_kwargs: dict[str, Any]
    n_demos: int
    gamma: float
    terminal_value: str
    beta: float
    experience: int
    experience_kwargs: dict[str, Any]


CLIFF = {"n_states": 5, "n_actions": 3, "horizon": 6, "n_demos": 5}
TASKS = {
    "reset_cliff": Task(sb3_dualqdm.envs.RESET_CLIFF, CLIFF, 5, 0.99, "zero", 3.0, 2000, {}),
    "grid": Task(sb3_dualqdm.envs.VALUE_FLOW_GRID, {}, 1, 0.9, "absorbing", 10.0, 200, {"uniform_start": 1.0}),
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
        grid = unwrapped.grid
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


class Transitions(NamedTuple):
    """
    What an algorithm learns from, one entry per row.

    :param obs: observations, integers
    :param actions: actions
    :param following: next observations
    :param ended: true terminations
    """

    obs: np.ndarray
    actions: np.ndarray
    following: np.ndarray
    ended: np.ndarray

    @classmethod
    def of(cls, model: Any) -> tuple[Transitions, Transitions]:
        """Rows of a model's replay buffer, and of its demonstrations."""
        replay, demos = model.replay_buffer, model.demo_buffer.demonstrations
        stored = (replay.observations, replay.actions, replay.next_observations, replay.terminated)
        return (
            cls(*(rows[: replay.size()].ravel().astype(int) for rows in stored)),
            cls(*(rows.ravel().astype(int) for rows in (demos.obs, demos.actions, demos.next_obs, demos.terminated))),
        )

    @classmethod
    def everywhere(cls, mdp: TabularMDP, goal: int) -> Transitions:
        """Every pair of a deterministic MDP once, but for those of the goal, where episodes end."""
        states, actions = (rows.ravel() for rows in np.indices(mdp.shape))
        following = mdp.transitions[states, actions].argmax(axis=-1)
        before = states != goal
        return cls(states[before], actions[before], following[before], (following == goal)[before].astype(int))


def table_solution(
    replay: Transitions,
    demos: Transitions,
    shape: tuple[int, ...],
    gamma: float,
    beta: float,
    absorbs: bool,
    iterations: int = 30_000,
) -> tuple[np.ndarray, np.ndarray]:
    """
    Where the updates of ``DualQDM`` (objective "reference", value mode "value", bounds [0, 1]) come to rest when Q is a
    table, the target is up to date, and every expectation is taken over all rows.

    :param replay: rows of the replay buffer
    :param demos: rows of the demonstrations
    :param shape: of the result, (..., A)
    :param gamma: discount
    :param beta: weight of the penalty
    :param absorbs: whether ``terminal_value="absorbing"``, else "zero"
    :param iterations: at most so many sweeps
    :return: Q, and which states have seen every action
    """
    n_actions, n_states = shape[-1], int(np.prod(shape[:-1]))
    obs, actions, following, ended = (np.concatenate(pair) for pair in zip(replay, demos))
    counts = [len(replay.obs), len(demos.obs)]
    expert = np.repeat([0.0, 1.0 / counts[1]], counts)
    weight = np.repeat([0.5 / counts[0], 0.5 / counts[1]], counts)  # both halves of a batch have as many rows
    end = n_states  # one more state, where every episode that terminates goes
    following = np.where(ended > 0, end, following)
    if absorbs:  # it has a row for every row that leads to it
        last = np.flatnonzero(ended)
        obs, following = (np.append(rows, np.full(len(last), end)) for rows in (obs, following))
        actions = np.append(actions, np.zeros(len(last), dtype=int))
        expert, weight = np.append(expert, expert[last]), np.append(weight, weight[last])
    (obs, actions, following), index = np.unique(np.stack([obs, actions, following]), axis=1, return_inverse=True)
    expert, weight = np.bincount(index.ravel(), expert), np.bincount(index.ravel(), weight)
    pair, n_pairs = obs * n_actions + actions, (n_states + 1) * n_actions

    def per_pair(values: np.ndarray) -> np.ndarray:
        return np.bincount(pair, values, n_pairs).reshape(-1, n_actions)

    pull, mass = per_pair(expert), per_pair(weight)
    state_mass = mass.sum(axis=-1, keepdims=True)
    q = np.zeros((n_states + 1, n_actions))
    q[end, 1:] = -np.inf  # no decision is taken there
    for _ in range(iterations):
        v, policy = logsumexp(q, ALPHA), softmax(q, ALPHA)
        v[end] = v[end] if absorbs else 0.0
        residual = q[obs, actions] - gamma * v[following]
        violation = np.maximum(-residual, 0.0) - np.maximum(residual - 1.0, 0.0)
        slope = pull - state_mass * policy + 2.0 * beta * per_pair(weight * violation)
        curvature = 2.0 * beta * mass + state_mass * policy * (1.0 - policy) / ALPHA
        step = np.where(mass > 0, 0.5 * slope / np.where(mass > 0, curvature, 1.0), 0.0)
        q = q + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < 1e-9:
            break
    return q[:-1].reshape(shape), (mass[:-1] > 0).all(axis=-1).reshape(shape[:-1])


def preference(q: np.ndarray) -> np.ndarray:
    """
    By how much greedy actions are better than the best other one; 0 where all are greedy.

    :param q: shape (..., A)
    :return: shape (...)
    """
    best = greedy_actions(q)
    second = np.where(best, -np.inf, q).max(axis=-1)
    return np.where(best.all(axis=-1), 0.0, q.max(axis=-1) - second)


def exact_solution(mdp: TabularMDP, tabular: TabularDemos, unseen: np.ndarray) -> tuple[Solution, np.ndarray, np.ndarray]:
    """Exact Dual Q-DM, its greedy actions, and the unseen states where it clearly prefers them."""
    exact = solve_dual_qdm(mdp, tabular, ALPHA, tolerance=1e-11)
    assert exact.q is not None
    return exact, greedy_actions(exact.q), unseen & (preference(exact.q) >= ALPHA)


def share(greedy: np.ndarray, q: np.ndarray, where: np.ndarray, tolerance: float = 0.0) -> float | str:
    """
    How often the best action of q is among the greedy ones; empty where there is nothing to count.

    :param greedy: bool, shape (..., A)
    :param q: shape (..., A)
    :param where: states to count, shape (...)
    :param tolerance: actions of q this close to the best one are as good, relative to max(1, abs(best))
    """
    agrees = (greedy & greedy_actions(q, tolerance)).any(axis=-1)
    return round(float(agrees[where].mean()), 4) if where.any() else ""


class Report(BaseCallback):
    """
    Measures the model ``n_reports`` times while it learns.

    :param measure: gives a row of results
    :param every: environment steps between reports
    :param first: environment steps before the first update
    """

    def __init__(self, measure: Callable[[Any], dict[str, Any]], every: int, first: int):
        super().__init__()
        self.measure, self.every, self.first, self.rows = measure, every, first, list[dict[str, Any]]()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.first + self.every * (len(self.rows) + 1):
            self.rows.append(self.measure(self.model))

    def _on_training_end(self) -> None:
        self.rows.append(self.measure(self.model))


def run(name: str, algo: str, seed: int, n_updates: int, n_reports: int) -> list[dict[str, Any]]:
    """
    Train once.

    :param name: key of ``TASKS``
    :param algo: "dual_qdm" or "iq_learn"
    :param seed: of the demonstrations and of the training
    :param n_updates: updates, two for each environment step after the warm-up
    :param n_reports: number of evaluations
    :return: one row per evaluation
    """
    task = TASKS[name]
    env = gym.make(task.env_id, **task.env_kwargs)
    unwrapped: Any = env.unwrapped
    demos = collect_demonstrations(unwrapped.expert, gym.make(task.env_id, **task.env_kwargs), task.n_demos, seed=seed)
    mdp, tabular, unseen = exact_problem(task, env, demos)
    anywhere = mdp if mdp.horizon is not None else replace(mdp, initial=np.full(mdp.n_states, 1.0 / mdp.n_states))
    exact, greedy, clear = exact_solution(mdp, tabular, unseen)
    policies = {
        "exact_dual_qdm": exact.greedy,
        "exact_iq_learn": solve_iq_learn(mdp, tabular, ALPHA).greedy,
        "exact_bc": solve_bc(mdp, tabular).policy,
    }

    def gaps(policy: np.ndarray) -> tuple[float, float | str]:
        return round(mdp.imitation_gap(policy), 4), "" if anywhere is mdp else round(anywhere.imitation_gap(policy), 4)

    rng = np.random.default_rng(seed)
    source = gym.make(task.env_id, **task.env_kwargs, **task.experience_kwargs)
    experience = collect_demonstrations(lambda obs: rng.integers(mdp.n_actions), source, task.experience, seed=seed)
    n_steps = n_updates // 2
    total = WARMUP + n_steps
    common: dict[str, Any] = dict(
        demonstrations=demos,
        extra_transitions=experience,
        seed=seed,
        gamma=task.gamma,
        # to 0 over the steps with updates, so that the last policy is not a draw from the noise of the updates
        learning_rate=lambda remaining: 3e-3 * min(1.0, remaining * total / n_steps),
        tau=0.02,
        learning_starts=WARMUP,
        warmup="uniform",
        batch_size=128,
        train_freq=8,
        gradient_steps=16,
        ent_coef=ALPHA,
        value_mode="value",
        terminal_value=task.terminal_value,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
    )
    if algo == "dual_qdm":
        model: Any = DualQDM("MlpPolicy", env, bellman_bounds=(0.0, 1.0), bellman_penalty=task.beta, **common)
    else:
        model = IQLearn("MlpPolicy", env, divergence="tv", **common)
    start = time.process_time()

    def measure(model: Any) -> dict[str, Any]:
        seconds = time.process_time() - start
        q = q_table(model, mdp)
        row = {"env": name, "algo": algo, "seed": seed, "step": model.num_timesteps, "updates": model._n_updates}
        row["gap"], row["gap_anywhere"] = gaps(greedy_policy(q))
        row.update(agreement=share(greedy, q, unseen), agreement_clear=share(greedy, q, clear))
        row.update(unseen=int(unseen.sum()), clear=int(clear.sum()))
        if algo == "dual_qdm":
            absorbs = task.terminal_value == "absorbing"
            table, known = table_solution(*Transitions.of(model), mdp.shape, task.gamma, task.beta, absorbs)
            row["table_agreement"] = share(greedy_actions(table, TIED), q, unseen & known)
            for key, where in (("table_exact", unseen & known), ("table_exact_clear", clear & known)):
                row[key] = share(greedy, table, where, TIED)
        for key, policy in policies.items():
            row[key], row[f"{key}_anywhere"] = gaps(policy)
        return {**row, "cpu_seconds": round(seconds, 1)}

    report = Report(measure, n_steps // n_reports, WARMUP)
    model.learn(total, callback=report)
    return report.rows[-n_reports:]


def objectives() -> list[dict[str, Any]]:
    """
    What the objective alone does to the gridworld's arrows, without networks and with the same data everywhere: agreement
    with the exact solution of the exact penalised problem and of the practical form's table (:func:`table_solution`).

    :return: one row per start distribution and weight of the penalty
    """
    task, rows = TASKS["grid"], []
    for uniform_start in (0.0, 0.5):
        env = gym.make(task.env_id, uniform_start=uniform_start)
        unwrapped: Any = env.unwrapped
        recorded = collect_demonstrations(unwrapped.expert, gym.make(task.env_id), task.n_demos, seed=0)
        mdp, tabular, unseen = exact_problem(task, env, recorded)
        _, greedy, clear = exact_solution(mdp, tabular, unseen)
        columns = (recorded.obs, recorded.actions, recorded.next_obs, recorded.terminated)
        demos = Transitions(*(np.asarray(column, dtype=int) for column in columns))
        for beta in (1.0, 3.0, 10.0, 100.0):
            penalised = solve_penalised_dual_qdm(mdp, tabular, ALPHA, beta).q
            everywhere = Transitions.everywhere(mdp, unwrapped.grid.goal)
            practical, _ = table_solution(everywhere, demos, mdp.shape, task.gamma, beta, True)
            row: dict[str, Any] = {"uniform_start": uniform_start, "beta": beta}
            row.update(unseen=int(unseen.sum()), clear=int(clear.sum()))
            for name, q in (("penalised", penalised), ("practical", practical)):
                assert q is not None
                row.update({name: share(greedy, q, unseen, TIED), f"{name}_clear": share(greedy, q, clear, TIED)})
                tied = greedy_actions(q, TIED).sum(axis=-1) > 1
                row[f"{name}_clear_tied"] = round(float(tied[clear].mean()), 4)
            rows.append(row)
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--algos", nargs="+", choices=("dual_qdm", "iq_learn"), default=("dual_qdm", "iq_learn"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=8000)
    parser.add_argument("--reports", type=int, default=4)
    parser.add_argument("--objectives", action="store_true", help="no training: what the objectives alone agree on")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/tabular_deep.csv"))
    chosen = parser.parse_args()
    th.set_num_threads(1)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    if chosen.objectives:
        write_csv(chosen.out, objectives())
        return
    jobs = [(task, algo, seed) for seed in range(chosen.seeds) for task in chosen.tasks for algo in chosen.algos]
    with chosen.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=FIELDS)
        writer.writeheader()
        for task, algo, seed in tqdm(jobs, unit="run"):
            for row in run(task, algo, seed, chosen.updates, chosen.reports):
                writer.writerow(row)
            file.flush()
            tqdm.write(str(row))


if __name__ == "__main__":
    main()

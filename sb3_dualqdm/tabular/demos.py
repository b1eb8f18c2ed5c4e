"""Demonstrations of a tabular MDP, and the three empirical measures every method is built on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sb3_dualqdm.tabular.mdp import TabularMDP


@dataclass(frozen=True, eq=False)
class TabularDemos:
    """
    Demonstrated trajectories as flat arrays of one row per step.

    :param trajectory: index of the trajectory, shape (T,)
    :param step: step in the trajectory, counted from 0, shape (T,)
    :param states: state, shape (T,)
    :param actions: action, shape (T,)
    :param next_states: the state that followed; -1 where none was seen (after the last step of a horizon), shape (T,)
    :raises ValueError: if there is no row, or if the arrays have different lengths
    """

    trajectory: np.ndarray
    step: np.ndarray
    states: np.ndarray
    actions: np.ndarray
    next_states: np.ndarray

    def __post_init__(self) -> None:
        lengths = {len(self.trajectory), len(self.step), len(self.states), len(self.actions), len(self.next_states)}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(
                f"the arrays have lengths {sorted(lengths)}, expected one common length > 0: give at least one full step."
            )

    @classmethod
    def from_trajectories(cls, trajectories: Iterable[tuple[Iterable[int], Iterable[int]]]) -> TabularDemos:
        """
        :param trajectories: pairs (states, actions); states may hold one more entry, the state after the last action
        :return: the demonstrations
        :raises ValueError: if a trajectory has neither as many states as actions nor one more
        """
        columns: list[list[np.ndarray]] = [[], [], [], [], []]
        for index, (states, actions) in enumerate(trajectories):
            s, a = np.asarray(list(states), dtype=int), np.asarray(list(actions), dtype=int)
            if len(s) - len(a) not in (0, 1):
                raise ValueError(
                    f"trajectory {index} has {len(s)} states and {len(a)} actions, expected as many states or one more."
                )
            following = s[1:] if len(s) > len(a) else np.append(s[1:], -1)
            for column, values in zip(columns, (np.full(len(a), index), np.arange(len(a)), s[: len(a)], a, following)):
                column.append(values)
        return cls(*(np.concatenate(column) if column else np.zeros(0, dtype=int) for column in columns))

    @property
    def n_trajectories(self) -> int:
        """Number of trajectories N."""
        return int(self.trajectory.max()) + 1

    def permute_actions(self, order: np.ndarray) -> TabularDemos:
        """
        The same demonstrations with action a renamed to order[a].

        :param order: a permutation, shape (A,)
        """
        return TabularDemos(self.trajectory, self.step, self.states, np.asarray(order)[self.actions], self.next_states)

    def weights(self, mdp: TabularMDP) -> np.ndarray:
        """
        Weight of every row in the empirical measures. With a horizon: 1/N. Discounted: (1 - gamma) gamma^t / N; the rest of
        the mass of a finite trajectory goes to its last pair if that pair is absorbing (P(s|s, a) = 1), else the weights are
        rescaled.

        :param mdp: where the demonstrations come from
        :return: shape (T,)
        :raises ValueError: if a trajectory does not have the MDP's horizon, or if a state or an action is none of the MDP's
        """
        self._require_range(mdp)
        n = self.n_trajectories
        lengths = np.bincount(self.trajectory, minlength=n)
        if mdp.horizon is not None:
            if (lengths != mdp.horizon).any():
                raise ValueError(
                    f"a trajectory has {int(lengths[lengths != mdp.horizon][0])} steps, expected the horizon {mdp.horizon}: "
                    "give full trajectories."
                )
            return np.full(len(self.states), 1.0 / n)
        weights = (1.0 - mdp.discount) * mdp.discount**self.step / n
        last = self.step == lengths[self.trajectory] - 1
        rest = mdp.discount ** lengths[self.trajectory]
        absorbing = last & (mdp.transitions[self.states, self.actions, self.states] >= 1.0 - 1e-12)
        held = np.zeros(n, dtype=bool)
        held[self.trajectory[absorbing]] = True
        weights = np.where(held[self.trajectory], weights, weights / (1.0 - rest))
        return weights + absorbing * rest / n

    def _require_range(self, mdp: TabularMDP) -> None:
        """Indices of another MDP would run out of the tables, or, if negative, count from their end."""
        columns = (("states", 0, mdp.n_states), ("actions", 0, mdp.n_actions), ("next_states", -1, mdp.n_states))
        for name, low, end in columns:
            values = getattr(self, name)
            if values.min() < low or values.max() >= end:
                raise ValueError(
                    f"the demonstrations have {name} from {values.min()} to {values.max()}, expected {low} to {end - 1}: use "
                    "demonstrations of this MDP."
                )

    def occupancy(self, mdp: TabularMDP) -> np.ndarray:
        """
        The empirical expert occupancy, shape ``mdp.shape``; it sums to 1 per step, or to 1 in the discounted setting.

        :param mdp: where the demonstrations come from
        """
        out = np.zeros(mdp.shape)
        np.add.at(out, self._pairs(mdp), self.weights(mdp))
        return out

    def next_mass(self, mdp: TabularMDP) -> np.ndarray:
        """
        Weight of V(s') in the sampled objectives (gamma included): what the demonstrations' successors carry, shape (H, S)
        or (S,).

        :param mdp: where the demonstrations come from
        """
        table = self.transition_table(mdp)
        seen = table.next_index >= 0
        out = np.bincount(table.next_index[seen], weights=table.weight[seen], minlength=int(np.prod(mdp.shape[:-1])))
        return mdp.discount * out.reshape(mdp.shape[:-1])

    def _pairs(self, mdp: TabularMDP) -> tuple[np.ndarray, ...]:
        if mdp.horizon is None:
            return self.states, self.actions
        return self.step, self.states, self.actions

    def transition_table(self, mdp: TabularMDP) -> TransitionTable:
        """
        The distinct demonstrated transitions and their weights.

        :param mdp: where the demonstrations come from
        :raises ValueError: if the state after the last action is needed and missing
        """
        weight = self.weights(mdp)
        pair = np.ravel_multi_index(self._pairs(mdp), mdp.shape)
        if mdp.horizon is None:
            # An absorbing pair is followed by its own state, even if the recording stops there.
            stays = mdp.transitions[self.states, self.actions, self.states] >= 1.0 - 1e-12
            following = np.where((self.next_states < 0) & stays, self.states, self.next_states)
            if (following < 0).any():
                raise ValueError(
                    "a trajectory ends without its last next state in a discounted MDP: give one more state than actions."
                )
        else:
            ended = self.step == mdp.horizon - 1
            following = np.where(ended, -1, (self.step + 1) * mdp.n_states + self.next_states)
        n_following = int(np.prod(mdp.shape[:-1])) + 1  # one more for "nothing follows"
        keys, inverse = np.unique(pair * n_following + following + 1, return_inverse=True)
        return TransitionTable(keys // n_following, keys % n_following - 1, np.bincount(inverse, weights=weight))


@dataclass(frozen=True, eq=False)
class TransitionTable:
    """
    Distinct demonstrated transitions.

    :param pair_index: flat index of (h, s, a) or (s, a) in ``mdp.shape``, shape (M,)
    :param next_index: flat index of the next (h, s) or s in ``mdp.shape[:-1]``; -1 at the end of the horizon, shape (M,)
    :param weight: weight in the empirical measure, shape (M,)
    """

    pair_index: np.ndarray
    next_index: np.ndarray
    weight: np.ndarray


def sample_demos(
    mdp: TabularMDP,
    n_trajectories: int,
    seed: int | None = None,
    policy: np.ndarray | None = None,
    length: int | None = None,
) -> TabularDemos:
    """
    Roll out a policy (the expert) in the MDP.

    :param mdp: the MDP
    :param n_trajectories: number of trajectories N
    :param seed: seed of the sampling, default None (fresh)
    :param policy: action probabilities, shape ``mdp.shape``, default the MDP's expert
    :param length: steps per trajectory, default the horizon; required in the discounted setting
    :return: the demonstrations
    :raises ValueError: if length is missing, or contradicts the horizon
    """
    policy = mdp.require_expert() if policy is None else policy
    if mdp.horizon is None and length is None:
        raise ValueError("length is None in a discounted MDP, expected the number of steps per trajectory: pass length=.")
    if mdp.horizon is not None and length not in (None, mdp.horizon):
        raise ValueError(f"length is {length}, expected the horizon {mdp.horizon} or None: drop it.")
    n_steps = mdp.horizon if length is None else length
    assert n_steps is not None
    rng = np.random.default_rng(seed)
    states = np.empty((n_trajectories, n_steps + 1), dtype=int)
    actions = np.empty((n_trajectories, n_steps), dtype=int)
    states[:, 0] = _draw(rng, np.broadcast_to(mdp.initial, (n_trajectories, mdp.n_states)))
    for t in range(n_steps):
        actions[:, t] = _draw(rng, (policy if mdp.horizon is None else policy[t])[states[:, t]])
        if mdp.horizon is not None and t == n_steps - 1:
            break  # nothing follows the last step of a horizon
        rows = states[:, t] * mdp.n_actions + actions[:, t]
        states[:, t + 1] = _draw(rng, mdp.kernel(t)[rows])
    keep = n_steps if mdp.horizon is not None else n_steps + 1
    return TabularDemos.from_trajectories(zip(states[:, :keep], actions))


def _draw(rng: np.random.Generator, probabilities: np.ndarray) -> np.ndarray:
    cumulative = probabilities.cumsum(axis=1)
    return (rng.random((len(probabilities), 1)) * cumulative[:, -1:] >= cumulative).sum(axis=1)

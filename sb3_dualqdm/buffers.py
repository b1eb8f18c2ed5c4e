"""
Replay and demonstration buffers: both hold raw observations and actions scaled to [-1, 1], and hand out :class:`RawRows`.

SB3's buffers draw from NumPy's global generator; here the caller passes its own, so that a run depends on its seed alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_dualqdm.demonstrations import Demonstrations
from sb3_dualqdm.demonstrations.types import map_obs

Obs = Any  # np.ndarray, or a dict of them


class RawRows(NamedTuple):
    """
    Transitions as stored.

    :param obs: raw observations, shape ``(N, ...)``, or a dict of them
    :param actions: shape ``(N, |A|)`` in [-1, 1] for Box, ``(N, 1)`` integers for Discrete
    :param next_obs: raw next observations
    :param terminated: true terminations only (a truncation bootstraps), bool, shape ``(N,)``
    :param step: step of each transition in its episode, shape ``(N,)``
    """

    obs: Obs
    actions: np.ndarray
    next_obs: Obs
    terminated: np.ndarray
    step: np.ndarray


def _as_stored(obs: Obs, space: spaces.Space) -> Obs:
    """Observations in the shape of SB3's buffers, where a Discrete observation is a vector of one number."""
    if isinstance(space, spaces.Dict):
        return {key: _as_stored(obs[key], subspace) for key, subspace in space.spaces.items()}
    return obs.reshape(len(obs), *get_obs_shape(space))


def _used_rows(state: dict[str, Any], capacity: int, size: int) -> dict[str, Any]:
    """A buffer's attributes with every array of ``capacity`` rows (or dict of them) cut to those that are filled."""

    def is_storage(value: Any) -> bool:
        arrays = value.values() if isinstance(value, dict) and value else [value]
        return all(isinstance(array, np.ndarray) and array.ndim > 0 and len(array) == capacity for array in arrays)

    cut = [name for name, value in state.items() if is_storage(value)]
    return {**state, **{name: map_obs(lambda array: array[:size], state[name]) for name in cut}, "_cut": (cut, capacity)}


def _all_rows(state: dict[str, Any]) -> dict[str, Any]:
    """Undo :func:`_used_rows`."""
    state = dict(state)
    cut, capacity = state.pop("_cut", ([], 0))

    def grown(array: np.ndarray) -> np.ndarray:
        if len(array) == capacity:
            return array
        full = np.zeros((capacity, *array.shape[1:]), dtype=array.dtype)
        full[: len(array)] = array
        return full

    return {**state, **{name: map_obs(grown, state[name]) for name in cut}}


class InitialStates:
    """
    Bounded ring of raw initial observations, the sample of rho behind ``E_{s1 ~ rho}[V(s1)]``.

    :param capacity: number of states kept, the oldest are overwritten
    """

    def __init__(self, observation_space: spaces.Space, capacity: int):
        self.capacity = capacity
        self.n_seen = 0
        if isinstance(observation_space, spaces.Dict):
            self.states: Obs = {key: self._ring(space) for key, space in observation_space.spaces.items()}
        else:
            self.states = self._ring(observation_space)

    def _ring(self, space: spaces.Space) -> np.ndarray:
        # np.zeros is resident only where written
        return np.zeros((self.capacity, *get_obs_shape(space)), dtype=space.dtype)  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        return _used_rows(self.__dict__, self.capacity, len(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(_all_rows(state))

    def __len__(self) -> int:
        return min(self.n_seen, self.capacity)

    def add(self, obs: Obs, index: int) -> None:
        """Keep the raw observation of one environment, ``obs[index]``."""
        position = self.n_seen % self.capacity
        if isinstance(obs, dict):
            for key, ring in self.states.items():
                ring[position] = np.reshape(obs[key][index], ring.shape[1:])
        else:
            self.states[position] = np.reshape(obs[index], self.states.shape[1:])
        self.n_seen += 1

    def draw(self, n: int, rng: np.random.Generator) -> Obs:
        """``n`` states with replacement."""
        index = rng.integers(len(self), size=n)
        return map_obs(lambda ring: ring[index], self.states)


class _ImitationReplay:
    """What our replay buffers add to SB3's: initial states, the step in the episode, and sampling by a given generator."""

    def __init__(self, *args: Any, n_initial_states: int = 4096, **kwargs: Any):
        super().__init__(*args, **kwargs)
        this: Any = self
        self.initial_states = InitialStates(this.observation_space, n_initial_states)
        self.steps = np.zeros((this.buffer_size, this.n_envs), dtype=np.int32)
        self._episode_step = np.zeros(this.n_envs, dtype=np.int32)

    def __getstate__(self) -> dict[str, Any]:
        this: Any = self
        return _used_rows(self.__dict__, this.buffer_size, this.size())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(_all_rows(state))

    def add(self, obs: Obs, next_obs: Obs, action: np.ndarray, reward: Any, done: np.ndarray, infos: Any) -> None:
        this: Any = self
        self.steps[this.pos] = self._episode_step
        self._episode_step = np.where(done, 0, self._episode_step + 1).astype(np.int32)
        super().add(obs, next_obs, action, reward, done, infos)  # type: ignore[misc]

    def start_episodes(self, obs: Obs) -> None:
        """Every environment was reset to the raw observations ``obs``."""
        this: Any = self
        self._episode_step[:] = 0
        for index in range(this.n_envs):
            self.initial_states.add(obs, index)

    def rows(self, n: int, rng: np.random.Generator) -> RawRows:
        """``n`` transitions, uniformly with replacement."""
        this: Any = self
        at = rng.integers(this.size(), size=n), rng.integers(this.n_envs, size=n)
        return RawRows(
            obs=map_obs(lambda array: array[at], this.observations),
            actions=this.actions[at],
            next_obs=map_obs(lambda array: array[at], this.next_observations),
            terminated=(this.dones[at] > 0) & ~(this.timeouts[at] > 0),
            step=self.steps[at],
        )


class ImitationReplayBuffer(_ImitationReplay, ReplayBuffer):
    """
    SB3's ``ReplayBuffer`` with what imitation needs beside it.

    :param n_initial_states: capacity of the ring of initial states, default 4096
    """


class ImitationDictReplayBuffer(_ImitationReplay, DictReplayBuffer):
    """SB3's ``DictReplayBuffer`` with what imitation needs beside it; see :class:`ImitationReplayBuffer`."""


class DemonstrationBuffer:
    """
    Validated demonstrations, scaled as the replay buffer stores its own rows, sampled with replacement.

    :param demonstrations: validated for the spaces below
    :param policy: scales Box actions from environment units to [-1, 1]
    :param row_discount: gamma for drawing rows with probability proportional to ``gamma^t``, t the step in the original
        episode (the discounted occupancy of the telescoping identity); 1 (default) draws uniformly
    """

    def __init__(
        self, demonstrations: Demonstrations, policy: Any, observation_space: spaces.Space, row_discount: float = 1.0
    ):
        self.demonstrations = demonstrations
        self.obs = _as_stored(demonstrations.obs, observation_space)
        self.next_obs = _as_stored(demonstrations.next_obs, observation_space)
        if isinstance(policy.action_space, spaces.Box):
            scaled = policy.scale_action(demonstrations.actions).astype(np.float32)
            self.actions = scaled.reshape(len(demonstrations), -1)
        else:
            self.actions = demonstrations.actions.reshape(-1, 1)
        self._cumulative = self._sampling_weights(row_discount)

    def __len__(self) -> int:
        return len(self.demonstrations)

    def _sampling_weights(self, row_discount: float) -> np.ndarray | None:
        """Cumulative row probabilities, or None where every row is as likely."""
        demos = self.demonstrations
        # A terminal row that subsampling kept off its grid stands for itself alone, not for `subsampling` rows
        weights = np.where(demos.step % demos.subsampling == 0, 1.0, 1.0 / demos.subsampling)
        weights *= row_discount ** demos.step.astype(np.float64)
        if np.all(weights == weights[0]):
            return None
        cumulative = np.cumsum(weights)
        return cumulative / cumulative[-1]

    def rows(self, n: int, rng: np.random.Generator) -> RawRows:
        """``n`` transitions with replacement, so that one transition is enough for any batch."""
        if self._cumulative is None:
            at = rng.integers(len(self), size=n)
        else:
            at = np.searchsorted(self._cumulative, rng.random(n), side="right").clip(max=len(self) - 1)
        return self.take(at)

    def take(self, at: np.ndarray) -> RawRows:
        """The transitions at the given indices."""
        demos = self.demonstrations
        return RawRows(
            obs=map_obs(lambda array: array[at], self.obs),
            actions=self.actions[at],
            next_obs=map_obs(lambda array: array[at], self.next_obs),
            terminated=demos.terminated[at],
            step=demos.step[at],
        )

    def initial_states(self, n: int, rng: np.random.Generator) -> Obs:
        """``n`` first observations of demonstrated episodes, with replacement."""
        starts = np.flatnonzero(self.demonstrations.step == 0)
        at = starts[rng.integers(len(starts), size=n)]
        return map_obs(lambda array: array[at], self.obs)


def concatenate(first: RawRows, second: RawRows) -> RawRows:
    """Rows of ``first``, then those of ``second``."""

    def join(a: Obs, b: Obs) -> Obs:
        if isinstance(a, dict):
            return {key: np.concatenate([a[key], b[key]]) for key in a}
        return np.concatenate([a, b])

    return RawRows(*(join(a, b) for a, b in zip(first, second)))

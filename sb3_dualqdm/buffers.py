"""
Replay and demonstration buffers: both hold raw observations and actions scaled to [-1, 1], and hand out :class:`RawRows`.

SB3's buffers draw from NumPy's global generator; here the caller passes its own, so that a run depends on its seed alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_dualqdm.demonstrations import Demonstrations
from sb3_dualqdm.demonstrations.successors import Successors, blocks
from sb3_dualqdm.demonstrations.types import map_obs

Obs = Any  # array or tensor, or a dict of them


class RawRows(NamedTuple):
    """
    Transitions as stored, on the device they are stored on.

    :param obs: raw observations, shape ``(N, ...)``, or a dict of them
    :param actions: shape ``(N, |A|)`` in [-1, 1] for Box, ``(N, 1)`` integers for Discrete
    :param next_obs: raw next observations
    :param terminated: true terminations only (a truncation bootstraps), bool, shape ``(N,)``
    :param step: step of each transition in its episode, shape ``(N,)``
    """

    obs: Obs
    actions: th.Tensor
    next_obs: Obs
    terminated: th.Tensor
    step: th.Tensor

    def take(self, at: np.ndarray) -> RawRows:
        """The rows at the given indices, in their shape: ``(K, n)`` indices give rows of shape ``(K, n, ...)``."""
        index = th.as_tensor(at, device=self.step.device)

        def gather(tensor: th.Tensor) -> th.Tensor:
            return tensor.index_select(0, index.flatten()).view(*index.shape, *tensor.shape[1:])

        return self.map(gather)

    def map(self, function: Callable[[th.Tensor], th.Tensor]) -> RawRows:
        """``function`` of every tensor."""
        return RawRows(*(map_obs(function, field) for field in self))

    def tensors(self) -> list[th.Tensor]:
        """Every tensor, in a fixed order."""
        return [tensor for field in self for tensor in (field.values() if isinstance(field, dict) else [field])]


def as_tensor(array: np.ndarray, device: th.device | str) -> th.Tensor:
    """The array as a tensor, without a copy where possible; read-only arrays are welcome, since rows are never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return th.as_tensor(array, device=device)


class _ChainedRows:
    """Successors that repeat the observations, and so are these and the final ones; indexed as the tensor it stands for."""

    def __init__(self, obs: th.Tensor, successors: Successors, device: th.device | str):
        self.obs, self.shape = obs, obs.shape
        self.final = as_tensor(successors.final, device)
        self.last = as_tensor(successors.last, device)

    def index_select(self, dim: int, index: th.Tensor) -> th.Tensor:
        """The rows at the given indices, in time that does not depend on the number of rows."""
        episode = th.searchsorted(self.last, index)
        ending = (self.last[episode] == index).view(-1, *(1 for _ in self.shape[1:]))
        following = self.obs.index_select(dim, (index + 1).clamp(max=len(self.obs) - 1))
        return th.where(ending, self.final.index_select(dim, episode), following)


def _following(next_obs: Any, obs: th.Tensor, device: th.device | str) -> Any:
    return _ChainedRows(obs, next_obs, device) if isinstance(next_obs, Successors) else as_tensor(next_obs, device)


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


def absorbing_share(weights: np.ndarray, terminated: np.ndarray, gamma: float) -> float:
    """
    Share of the absorbing state in a discounted occupancy: a termination at step t adds ``gamma^(t+1) + gamma^(t+2) + ...``.

    :param weights: discounted occupancy of each row, up to a factor, shape ``(N,)``
    :param terminated: how much of each row terminates, shape ``(N,)``
    :param gamma: discount below 1
    """
    occupied = gamma / (1 - gamma) * (weights * terminated).sum()
    return float(occupied / (weights.sum() + occupied))


class InitialStates:
    """
    Bounded ring of raw initial observations, the sample of rho behind ``E_{s1 ~ rho}[V(s1)]``.

    :param capacity: number of states kept, the oldest are overwritten
    """

    def __init__(self, observation_space: spaces.Space, capacity: int):
        if capacity < 1:
            raise ValueError(f"n_initial_states is {capacity} but at least 1 is needed: leave it out of replay_buffer_kwargs.")
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

    def draw(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> Obs:
        """States of the given shape with replacement."""
        index = rng.integers(len(self), size=shape)
        return map_obs(lambda ring: th.from_numpy(ring[index]), self.states)


class _ImitationReplay:
    """
    What our replay buffers add to SB3's: initial states, the step in the episode, true terminations, and sampling by a given
    generator, from host memory or from a copy on another device.
    """

    # Whether it began with older experience
    prefilled = False
    # See absorbing_share(), and how many positions were written since it was computed
    _absorbing_share: float | None = None
    _n_written = 0

    def __init__(self, *args: Any, n_initial_states: int = 4096, storage_device: th.device | str = "cpu", **kwargs: Any):
        super().__init__(*args, **kwargs)
        this: Any = self
        self.initial_states = InitialStates(this.observation_space, n_initial_states)
        self.steps = np.zeros((this.buffer_size, this.n_envs), dtype=np.int32)
        self.terminated = np.zeros((this.buffer_size, this.n_envs), dtype=bool)
        # Positions that hold the learner's own transitions, not older experience
        self.is_own = np.zeros(this.buffer_size, dtype=bool)
        self.storage_device = th.device(storage_device)
        self._copy: RawRows | None = None
        self._episode_step = np.zeros(this.n_envs, dtype=np.int32)

    def __getstate__(self) -> dict[str, Any]:
        this: Any = self
        return _used_rows({**self.__dict__, "_copy": None}, this.buffer_size, this.size())

    def __setstate__(self, state: dict[str, Any]) -> None:
        # earlier versions did not tell whose transitions they stored
        self.__dict__.update({"is_own": np.ones(state["buffer_size"], dtype=bool), **_all_rows(state)})

    def add(self, obs: Obs, next_obs: Obs, action: np.ndarray, reward: Any, done: np.ndarray, infos: Any) -> None:
        this: Any = self
        position = this.pos
        self.steps[position] = self._episode_step
        self._episode_step = np.where(done, 0, self._episode_step + 1).astype(np.int32)
        self.is_own[position] = True
        super().add(obs, next_obs, action, reward, done, infos)  # type: ignore[misc]
        self.terminated[position] = (this.dones[position] > 0) & ~(this.timeouts[position] > 0)
        self._n_written += 1
        if self._copy is not None:
            new = slice(position * this.n_envs, (position + 1) * this.n_envs)
            for copy, host in zip(self._copy.tensors(), self._host().tensors()):
                copy[new] = host[new].to(copy.device)

    def prefill(self, rows: RawRows) -> None:
        """
        Store older experience, whose rewards are unknown; the first rows are repeated until every environment has as many.

        :param rows: transitions
        :raises ValueError: when they are more than the buffer holds
        """
        this: Any = self
        n_rows = len(rows.step)
        n_positions = -(-n_rows // this.n_envs)
        if n_positions > this.buffer_size:
            raise ValueError(
                f"There are {n_rows} extra transitions but the buffer holds {this.buffer_size * this.n_envs}: raise "
                "buffer_size above their number, or pass fewer."
            )
        rows = rows.take(np.arange(n_positions * this.n_envs).reshape(n_positions, this.n_envs) % n_rows)
        at = (this.pos + np.arange(n_positions)) % this.buffer_size
        for ring, new in zip(self._storage().tensors(), rows.tensors()):
            ring[at] = new.to(ring.dtype)
        this.dones[at] = rows.terminated.numpy()
        this.timeouts[at] = this.rewards[at] = 0
        self.is_own[at] = False
        this.full = this.full or this.pos + n_positions >= this.buffer_size
        this.pos = (this.pos + n_positions) % this.buffer_size
        self._copy = self._absorbing_share = None
        self.prefilled = True

    def start_episodes(self, obs: Obs) -> None:
        """Every environment was reset to the raw observations ``obs``."""
        this: Any = self
        self._episode_step[:] = 0
        for index in range(this.n_envs):
            self.initial_states.add(obs, index)

    def rows(self, shape: int | tuple[int, ...], rng: np.random.Generator, n_newest: int | None = None) -> RawRows:
        """Transitions of the given shape, uniformly with replacement; about the learner's newest alone where asked for."""
        this: Any = self
        if n_newest is None:
            position = rng.integers(this.size(), size=shape)
        else:
            by_age = (this.pos - 1 - np.arange(this.size())) % this.buffer_size
            newest = by_age[self.is_own[by_age]][: -(-n_newest // this.n_envs)]
            position = newest[rng.integers(len(newest), size=shape)]
        return self._stored().take(position * this.n_envs + rng.integers(this.n_envs, size=shape))

    def absorbing_share(self, gamma: float) -> float:
        """
        Share of the absorbing state in the discounted occupancy of everything that is stored.

        It is computed anew whenever a hundredth of the buffer has been written.

        :param gamma: discount below 1
        """
        size = cast(Any, self).size()
        if self._absorbing_share is None or 100 * self._n_written >= size:
            steps = self.steps[:size].astype(np.float64)
            # only relative weights matter, and gamma^t of a long episode is not representable
            weights = gamma ** (steps - steps.min())
            self._absorbing_share, self._n_written = absorbing_share(weights, self.terminated[:size], gamma), 0
        return self._absorbing_share

    def _stored(self) -> RawRows:
        if self.storage_device == th.device("cpu"):
            return self._host()
        if self._copy is None:
            self._copy = self._host().map(lambda tensor: tensor.to(self.storage_device, copy=True))
        return self._copy

    def _host(self) -> RawRows:
        """Everything that is stored, one row for each position and environment, as views."""
        return self._storage().map(lambda tensor: tensor.flatten(0, 1))

    def _storage(self) -> RawRows:
        """Everything that is stored, by position and environment, as views."""
        this: Any = self
        return RawRows(
            obs=map_obs(th.from_numpy, this.observations),
            actions=th.from_numpy(this.actions),
            next_obs=map_obs(th.from_numpy, this.next_observations),
            terminated=th.from_numpy(self.terminated),
            step=th.from_numpy(self.steps),
        )


class ImitationReplayBuffer(_ImitationReplay, ReplayBuffer):
    """
    SB3's ``ReplayBuffer`` with what imitation needs beside it.

    :param n_initial_states: capacity of the ring of initial states, default 4096
    :param storage_device: device that rows are drawn on; elsewhere than on ``"cpu"`` (default) a copy of the buffer is kept
        there
    """


class ImitationDictReplayBuffer(_ImitationReplay, DictReplayBuffer):
    """SB3's ``DictReplayBuffer`` with what imitation needs beside it; see :class:`ImitationReplayBuffer`."""


class DemonstrationBuffer:
    """
    Validated demonstrations, scaled as the replay buffer stores its own rows, sampled with replacement.

    :param demonstrations: validated for the spaces below
    :param policy: scales Box actions from environment units to [-1, 1]
    :param row_discount: gamma for drawing rows with probability proportional to ``gamma^t``, t the step in the original
        episode (the discounted occupancy of the telescoping identity, in which the absorbing state then has the share
        ``absorbing_share``); 1 (default) draws uniformly
    :param device: where the rows are kept, default ``"cpu"``
    """

    def __init__(
        self,
        demonstrations: Demonstrations,
        policy: Any,
        observation_space: spaces.Space,
        row_discount: float = 1.0,
        device: th.device | str = "cpu",
    ):
        self.demonstrations = demonstrations
        if isinstance(policy.action_space, spaces.Box):
            actions = np.empty((len(demonstrations), *policy.action_space.shape), dtype=np.float32)
            for rows in blocks(actions):  # no second and third array of a large set
                actions[rows] = policy.scale_action(demonstrations.actions[rows])
            actions = actions.reshape(len(demonstrations), -1)
        else:
            actions = demonstrations.actions.reshape(-1, 1)
        obs = map_obs(lambda array: as_tensor(array, device), _as_stored(demonstrations.obs, observation_space))
        next_obs = _as_stored(demonstrations.next_obs, observation_space)
        self.stored = RawRows(
            obs=obs,
            actions=as_tensor(actions, device),
            next_obs={key: _following(array, obs[key], device) for key, array in next_obs.items()}
            if isinstance(next_obs, dict)
            else _following(next_obs, obs, device),
            terminated=as_tensor(demonstrations.terminated, device),
            step=as_tensor(demonstrations.step, device),
        )
        self._starts = np.flatnonzero(demonstrations.step == 0)
        self.absorbing_share = 0.0
        self._cumulative = self._sampling_weights(row_discount)

    def __len__(self) -> int:
        return len(self.demonstrations)

    def _sampling_weights(self, row_discount: float) -> np.ndarray | None:
        """Cumulative row probabilities, or None where every row is as likely."""
        demos = self.demonstrations
        if demos.subsampling == 1 and row_discount == 1:
            return None
        # A terminal row that subsampling kept off its grid stands for itself alone, not for `subsampling` rows
        weights = np.where(demos.step % demos.subsampling == 0, 1.0, 1.0 / demos.subsampling)
        ending = demos.terminated / (demos.subsampling * weights)
        weights *= row_discount ** demos.step.astype(np.float64)
        if row_discount < 1:
            self.absorbing_share = absorbing_share(weights, ending, row_discount)
        if np.all(weights == weights[0]):
            return None
        cumulative = np.cumsum(weights)
        return cumulative / cumulative[-1]

    def rows(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> RawRows:
        """Transitions of the given shape with replacement, so that one transition is enough for any batch."""
        if self._cumulative is None:
            at = rng.integers(len(self), size=shape)
        else:
            at = np.searchsorted(self._cumulative, rng.random(shape), side="right").clip(max=len(self) - 1)
        return self.stored.take(at)

    def initial_states(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> Obs:
        """First observations of demonstrated episodes, with replacement."""
        return self.stored.take(self._starts[rng.integers(len(self._starts), size=shape)]).obs


def concatenate(first: RawRows, second: RawRows, device: th.device | str) -> RawRows:
    """Rows of ``first``, then those of ``second``, along the second axis, on a device."""

    def join(a: Obs, b: Obs) -> Obs:
        if isinstance(a, dict):
            return {key: join(a[key], b[key]) for key in a}
        return th.cat([a.to(device), b.to(device)], dim=1)

    return RawRows(*(join(a, b) for a, b in zip(first, second)))

"""Stable-Baselines3's replay buffers, as objects or from the pickles that ``save_replay_buffer`` writes."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sb3_dualqdm.demonstrations.readers.arrays import Episode, as_array, as_obs, compact, join
from sb3_dualqdm.demonstrations.types import Demonstrations, Obs, map_obs, obs_arrays

_FIELDS = ("observations", "actions", "rewards", "dones", "pos", "full", "action_space", "observation_space")


def is_replay_buffer(source: Any) -> bool:
    """
    :param source: anything.
    :return: whether it has the attributes of an SB3 replay buffer.
    """
    return not isinstance(source, Mapping) and all(hasattr(source, name) for name in _FIELDS)


def from_buffer(buffer: Any, *, source: str, **options: Any) -> Demonstrations:
    """
    Episodes of a replay buffer, in the order of its environments.

    SB3's algorithms store Box actions scaled to [-1, 1], so they are scaled back by the buffer's action space. An episode
    whose beginning has been overwritten is left out; one that was still running counts as cut.

    :param buffer: ``ReplayBuffer`` or ``DictReplayBuffer`` (or a stand-in with its attributes).
    :param source: where it came from.
    :param options: see :func:`sb3_dualqdm.demonstrations.readers.arrays.join`.
    :return: the demonstrations.
    :raises ValueError: if the buffer is empty, holds no whole episode, or its arrays do not fit together.
    """
    dones = as_array(buffer.dones, f"dones of {source}") > 0
    if dones.ndim != 2 or not isinstance(buffer.pos, (int, np.integer)) or not 0 <= buffer.pos <= len(dones):
        raise ValueError(f"{source} has no dones of the shape (size, n_envs) with a position: save the buffer again.")
    size, n_envs = dones.shape
    arrays = {"actions": as_array(buffer.actions, f"actions of {source}")}
    arrays["rewards"] = as_array(buffer.rewards, f"rewards of {source}")
    timeouts = getattr(buffer, "timeouts", None)
    arrays["timeouts"] = np.zeros_like(dones) if timeouts is None else as_array(timeouts, f"timeouts of {source}") > 0
    obs = as_obs(buffer.observations, f"observations of {source}")
    next_obs = getattr(buffer, "next_observations", None)  # absent with optimize_memory_usage
    next_obs = None if next_obs is None else as_obs(next_obs, f"next_observations of {source}")
    parts = arrays | {f"observations {key}".strip(): value for key, value in obs_arrays(obs).items()}
    if next_obs is not None:
        parts |= {f"next_observations {key}".strip(): value for key, value in obs_arrays(next_obs).items()}
    for name, array in parts.items():
        if array.shape[:2] != dones.shape:
            raise ValueError(f"{source} has {name} of the shape {array.shape} but dones of {dones.shape}: save it again.")
    order = np.roll(np.arange(size), -buffer.pos) if buffer.full else np.arange(buffer.pos)
    if not len(order):
        raise ValueError(f"{source} is an empty replay buffer, but at least 1 step is needed: save it after training.")
    unscale = _unscaler(buffer.action_space, arrays["actions"], order, source)
    known = bool(getattr(buffer, "handle_timeout_termination", True)) and timeouts is not None
    episodes = [
        episode
        for env in range(n_envs)
        for episode in _episodes(env, order, bool(buffer.full), dones, arrays, obs, next_obs, unscale, known)
    ]
    if not episodes:
        raise ValueError(
            f"{source} holds only a piece of one episode, whose beginning was overwritten: use a larger replay buffer."
        )
    return join(episodes, source=source, **options)


def _episodes(
    env: int,
    order: np.ndarray,
    overwritten: bool,
    dones: np.ndarray,
    arrays: dict[str, np.ndarray],
    obs: Obs,
    next_obs: Obs | None,
    unscale: Any,
    known: bool,
) -> Iterator[Episode]:
    ends = np.flatnonzero(dones[order, env])
    ends = np.append(ends, len(order) - 1) if not len(ends) or ends[-1] < len(order) - 1 else ends
    starts = np.append(0, ends[:-1] + 1)
    for start, end in zip(starts[overwritten:], ends[overwritten:]):
        rows = compact(order[start : end + 1])
        done, cut = bool(dones[order[end], env]), bool(arrays["timeouts"][order[end], env])
        yield Episode(
            obs=map_obs(operator.itemgetter((rows, env)), obs),
            acts=unscale(arrays["actions"][rows, env]),
            rews=arrays["rewards"][rows, env],
            terminated=done and not cut,
            truncated=cut,
            single_flag=not known,
            next_obs=None if next_obs is None else map_obs(operator.itemgetter((rows, env)), next_obs),
        )


def _unscaler(space: Any, actions: np.ndarray, order: np.ndarray, source: str) -> Any:
    """From SB3's [-1, 1] to the environment's units; integers of other spaces are left alone."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None:
        return (lambda array: array[:, 0]) if actions.shape[2:] == (1,) else (lambda array: array)
    low, high = as_array(low, "low of the action space"), as_array(high, "high of the action space")
    if low.size != actions[0, 0].size or low.shape != high.shape:
        raise ValueError(f"{source} has actions of the shape {actions.shape} but bounds of {low.shape}: save it again.")
    if len(order) and np.abs(actions[order]).max() > 1 + 1e-5:
        raise ValueError(
            f"{source} has actions up to {np.abs(actions[order]).max():.3g}, but SB3's algorithms store them scaled to "
            "[-1, 1]: pass its arrays as a dict (observations, actions, next_observations, dones) if they are unscaled."
        )
    return lambda array: (low + 0.5 * (array.reshape(-1, *low.shape) + 1.0) * (high - low)).astype(array.dtype, copy=False)

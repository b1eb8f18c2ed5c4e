"""Readers: from what people have (trajectories, imitation's objects and folders, npz files) to :class:`Demonstrations`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sb3_dualqdm.demonstrations import builtin
from sb3_dualqdm.demonstrations.files import Npz, concatenate, file_sha256, find_obs, from_own, read_folder
from sb3_dualqdm.demonstrations.types import FORMAT_KEY, Demonstrations, Obs, assemble, map_obs, obs_arrays

if TYPE_CHECKING:
    from gymnasium import spaces

ALIASES = {
    "obs": ("obs", "observations", "states"),
    "acts": ("acts", "actions"),
    "next_obs": ("next_obs", "next_observations", "next_states"),
    "terminated": ("terminated", "terminals"),
    "done": ("dones", "done", "terminal"),
    "truncated": ("truncated", "timeouts"),
    "rews": ("rews", "rewards"),
    "episode_starts": ("episode_starts",),
    "indices": ("indices",),
}
# Batches are read to their end: an iterable with more actions than this is taken for an endless one.
MAX_BATCH_ROWS = 10_000_000
_SUCCESSOR = (
    "pass the final observation too (one more obs than acts), or next_obs, or drop_last=True to leave out the last step"
)


def load_demonstrations(
    source: Any,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    n_demonstrations: int | Iterable[int] | None = None,
    subsample: int = 1,
    keep_terminal: bool = False,
    max_episode_steps: int | None = None,
    clip_actions: bool = False,
    drop_last: bool = False,
) -> Demonstrations:
    """
    Read demonstrations from any supported source, select, check and cast them.

    :param source: :class:`Demonstrations`; trajectories with ``obs`` (T+1), ``acts`` and ``terminal`` (objects or dicts), or
        one of them; imitation's ``Transitions``; a mapping of flat arrays; an iterable of batches (mappings with ``obs``,
        ``acts``, ``next_obs``, ``dones``, such as a data loader) that ends; the path of an ``.npz`` file or of a folder
        written by imitation's ``serialize.save``; or ``"builtin:<env id>"``. Files are data: nothing in them is executed.
    :param observation_space: check and cast to this space, default None (leave as stored).
    :param action_space: likewise for actions.
    :param n_demonstrations: the first n episodes, or a list of episode indices, default None (all).
    :param subsample: keep every such step of each episode, default 1.
    :param keep_terminal: also keep terminated steps when subsampling, default False.
    :param max_episode_steps: the environment's time limit. Where the source has a single terminal flag, an episode exactly
        that long counts as truncated unless its infos say otherwise. Default None: trust the flags.
    :param clip_actions: clip actions that lie outside the box by more than rounding instead of refusing them, default False.
    :param drop_last: with as many obs as acts and no next_obs, leave out each episode's last step, whose successor is
        unknown, instead of refusing, default False.
    :return: the demonstrations.
    :raises ValueError: if the source cannot be read or does not fit.
    :raises FileNotFoundError: if there is no such file.
    :raises ImportError: if a folder is read and pyarrow is not installed.
    """
    if isinstance(source, Demonstrations):
        demonstrations = source
    elif isinstance(source, (str, os.PathLike)):
        demonstrations = _read_path(os.fspath(source), max_episode_steps, drop_last)
    elif isinstance(source, Mapping) or hasattr(source, "obs"):
        demonstrations = _from_arrays(source, max_episode_steps, drop_last, source=type(source).__name__)
    else:
        demonstrations = _from_sequence(source, max_episode_steps, drop_last)
    if n_demonstrations is not None:
        demonstrations = demonstrations.select(n_demonstrations)
    demonstrations = demonstrations.subsample(subsample, keep_terminal)
    return demonstrations.validate(observation_space, action_space, clip_actions)


def _read_path(spec: str, max_episode_steps: int | None, drop_last: bool) -> Demonstrations:
    if spec.startswith("builtin:"):
        env_id = spec.removeprefix("builtin:")
        demonstrations = from_own(Npz(builtin.builtin_path(env_id)), spec)
        if demonstrations.sha256 != builtin.manifest()[env_id]["sha256"]:
            raise ValueError(f"{builtin.builtin_path(env_id)} differs from its manifest: reinstall sb3-dualqdm.")
        return demonstrations._replace(source=spec)
    path = Path(spec).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"there is no demonstration file or folder {spec!r}: pass an .npz file, a folder written by imitation, or one of "
            f"{', '.join('builtin:' + name for name in builtin.builtin_ids())}."
        )
    if path.is_dir():
        values, counts = read_folder(path, spec)
        return _from_chained(
            values["obs"],
            values["acts"],
            values.get("rews"),
            counts["obs"],
            counts["acts"],
            drop_last=drop_last,
            terminated=values["terminal"],
            max_episode_steps=max_episode_steps,
            source=spec,
            spec=spec,
            sha256=file_sha256(path),
        )
    arrays = Npz(path)
    if FORMAT_KEY in arrays:
        return from_own(arrays, spec)
    return _from_arrays(arrays, max_episode_steps, drop_last, source=spec, spec=spec, sha256=file_sha256(path))


def _field(item: Any, name: str) -> Any:
    """A field of a mapping or object under any of its aliases, None if absent."""
    if isinstance(item, Mapping):
        found = [alias for alias in ALIASES[name] if alias in item]
    else:
        found = [alias for alias in ALIASES[name] if getattr(item, alias, None) is not None]
    if len(found) > 1:
        raise ValueError(f"the demonstrations have both {found[0]!r} and {found[1]!r}, which mean the same: keep one of them.")
    if isinstance(item, Mapping):
        return item[found[0]] if found else find_obs(item, *ALIASES[name])
    return getattr(item, found[0]) if found else None


def _as_array(value: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # numpy's answer to rows of different shapes
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} is not an array of numbers (dtype {array.dtype}): pass arrays with rows of one shape.")
    return array


def _as_obs(value: Any, name: str) -> Obs:
    if callable(getattr(value, "unwrap", None)):  # imitation's DictObs
        value = value.unwrap()
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        value = {key: [step[key] for step in value] for key in value[0]}
    if not isinstance(value, Mapping):
        return _as_array(value, name)
    arrays = {str(key): _as_array(part, f"{name} {key!r}") for key, part in value.items()}
    if not arrays or len({part.shape[:1] for part in arrays.values()}) > 1:
        shapes = {key: part.shape for key, part in arrays.items()}
        raise ValueError(f"{name} has arrays of the shapes {shapes}: store one row per step under every key.")
    return arrays


def _n_rows(obs: Obs) -> int:
    first = next(iter(obs_arrays(obs).values()))
    return len(first) if first.ndim else 0


def _infos(item: Any) -> Any:
    return item.get("infos") if type(item) is dict else getattr(item, "infos", None)


def _limit_in_infos(infos: Any) -> bool | None:
    """What the last info says about the time limit, None if nothing; lazily decoded infos (imitation's) are not touched."""
    if isinstance(infos, (list, tuple, np.ndarray)) and len(infos) and isinstance(infos[-1], Mapping):
        flag = infos[-1].get("TimeLimit.truncated")
        return None if flag is None else bool(flag)
    return None


class _Trajectory(NamedTuple):
    obs: Obs
    acts: np.ndarray
    rews: np.ndarray | None
    terminated: bool
    truncated: bool
    single_flag: bool


def _trajectory(item: Any, name: str) -> _Trajectory:
    fields = {key: _field(item, key) for key in ("obs", "acts", "done", "terminated", "truncated", "rews")}
    fields["terminal"] = fields["terminated"] if fields["done"] is None else fields["done"]
    if missing := [key for key in ("obs", "acts", "terminal") if fields[key] is None]:
        raise ValueError(
            f"{name} is a {type(item).__name__} without {' and '.join(missing)}, but a trajectory needs obs (one more than "
            "acts), acts and terminal: add what is missing."
        )
    acts = _as_array(fields["acts"], f"acts of {name}")
    rews = None if fields["rews"] is None else _as_array(fields["rews"], f"rews of {name}")
    if acts.shape[:1] == (0,):
        raise ValueError(f"{name} has no action, but at least 1 step is needed: leave this trajectory out.")
    if acts.ndim == 0 or (rews is not None and rews.shape[:1] != acts.shape[:1]):
        found = None if rews is None else rews.shape
        raise ValueError(f"{name} has acts of the shape {acts.shape} and rews of {found}: pass one row of each per step.")
    if np.size(fields["terminal"]) != 1:
        raise ValueError(
            f"terminal of {name} has {np.size(fields['terminal'])} values, but it is one flag per trajectory: pass a bool."
        )
    terminated, truncated, single_flag = bool(np.all(fields["terminal"])), False, fields["terminated"] is None
    if fields["truncated"] is not None:
        truncated, single_flag = bool(np.any(fields["truncated"])), False
    elif (limit := _limit_in_infos(_infos(item))) is not None:
        terminated, truncated, single_flag = terminated and not limit, limit, False
    return _Trajectory(_as_obs(fields["obs"], f"obs of {name}"), acts, rews, terminated, truncated, single_flag)


def _from_sequence(source: Any, max_episode_steps: int | None, drop_last: bool) -> Demonstrations:
    try:
        iterator = iter(source)
    except TypeError:
        iterator = iter(())
    items = list(until_endless(iterator))
    if not items:
        raise ValueError(
            f"demonstrations of the type {type(source).__name__} hold no trajectory: pass trajectories with obs, acts and "
            "terminal, imitation Transitions, a path, or 'builtin:<env id>'."
        )
    name = f"{len(items)} x {type(items[0]).__name__}"
    if _is_batch(items[0]):
        return _from_arrays(_join_batches(items, name), max_episode_steps, drop_last, source=name)
    return _from_trajectories(items, max_episode_steps, drop_last, source=name)


def until_endless(source: Iterable[Any]) -> Iterator[Any]:
    """The items of an iterable; batches that never end (an endless iterator over a data loader) are refused."""
    n_rows = 0
    for item in source:
        yield item
        if _is_batch(item):
            n_rows += np.asarray(_field(item, "acts")).size
            if n_rows > MAX_BATCH_ROWS:
                raise ValueError(
                    f"the batches do not end within {MAX_BATCH_ROWS} actions, but they are read once, to their end: pass "
                    "the data loader itself, or the trajectories."
                )


def _is_batch(item: Any) -> bool:
    return isinstance(item, Mapping) and _field(item, "next_obs") is not None


def _join_batches(batches: list[Any], name: str) -> dict[str, Any]:
    """Batches of transitions (mappings of arrays or tensors, as data loaders yield) as flat arrays."""
    joined: dict[str, Any] = {}
    for key in ("obs", "next_obs", "acts", "done", "terminated", "truncated", "rews"):
        values, label = [_field(batch, key) for batch in batches], ALIASES[key][0]
        if any(value is None for value in values):
            continue
        if key in ("obs", "next_obs"):
            joined[label] = _concatenate_obs([_as_obs(value, f"{label} of {name}") for value in values], label)
        else:
            joined[label] = concatenate([_as_array(value, f"{label} of {name}") for value in values], label)
    return joined


def _concatenate_obs(parts: list[Obs], name: str) -> Obs:
    if len({tuple(sorted(obs_arrays(part))) for part in parts}) > 1:
        raise ValueError("the trajectories have different observation keys: use episodes of one environment.")
    whole = {
        key: concatenate([obs_arrays(part)[key] for part in parts], f"{name} {key}".strip()) for key in obs_arrays(parts[0])
    }
    return whole if isinstance(parts[0], dict) else whole[""]


def _from_trajectories(items: list[Any], max_episode_steps: int | None, drop_last: bool, **origin: Any) -> Demonstrations:
    parts = [_trajectory(item, f"trajectory {i}") for i, item in enumerate(items)]
    rews = [part.rews for part in parts if part.rews is not None]
    return _from_chained(
        _concatenate_obs([part.obs for part in parts], "obs"),
        concatenate([part.acts for part in parts], "acts"),
        concatenate(rews, "rews") if len(rews) == len(parts) else None,
        np.array([_n_rows(part.obs) for part in parts]),
        np.array([len(part.acts) for part in parts]),
        drop_last=drop_last,
        terminated=np.array([part.terminated for part in parts]),
        truncated=np.array([part.truncated for part in parts]),
        single_flag=np.array([part.single_flag for part in parts]),
        max_episode_steps=max_episode_steps,
        **origin,
    )


def _from_chained(
    obs: Obs, acts: np.ndarray, rews: np.ndarray | None, n_obs: np.ndarray, n_acts: np.ndarray, *, drop_last: bool, **rest: Any
) -> Demonstrations:
    """Episodes laid end to end whose observations chain: one more obs than acts each, or equally many with ``drop_last``."""
    name = rest["source"]
    if not len(n_acts) or n_acts.min() < 1:
        raise ValueError(f"{name} has an episode without an action, but at least 1 step is needed: leave this episode out.")
    wrong = (n_obs != n_acts + 1) & ~((n_obs == n_acts) & drop_last)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(
            f"episode {i} of {name} has {n_obs[i]} obs and {n_acts[i]} acts, but every step needs a successor: {_SUCCESSOR}."
        )
    obs_ends = np.cumsum(n_obs)
    state = np.arange(len(acts)) + np.repeat((obs_ends - n_obs) - (np.cumsum(n_acts) - n_acts), n_acts)
    known = state + 1 < np.repeat(obs_ends, n_acts)
    successor = state + known
    demonstrations = assemble(
        map_obs(lambda array: array[state], obs), map_obs(lambda array: array[successor], obs), acts, rews, n_acts, **rest
    )
    return demonstrations if known.all() else _drop(demonstrations, known)


def _drop(demonstrations: Demonstrations, known: np.ndarray) -> Demonstrations:
    """Leave out last steps without a successor; what remains of these episodes is cut there, not terminated."""
    if not known.any():
        raise ValueError(f"{demonstrations.source} has only 1-step episodes without successors: {_SUCCESSOR}.")
    unknown = np.flatnonzero(~known)
    truncated, reinterpreted = demonstrations.truncated.copy(), demonstrations.reinterpreted.copy()
    truncated[unknown[demonstrations.step[unknown] > 0] - 1] = True
    reinterpreted[demonstrations.episode[unknown]] = False
    episodes, episode = np.unique(demonstrations.episode[known], return_inverse=True)
    returns = demonstrations.episode_returns
    return demonstrations._rows(
        known,
        truncated=truncated[known],
        episode=episode,
        episode_returns=None if returns is None else returns[episodes],
        episode_lengths=demonstrations.episode_lengths[episodes],
        episode_indices=demonstrations.episode_indices[episodes],
        reinterpreted=reinterpreted[episodes],
    )


def _from_arrays(arrays: Any, max_episode_steps: int | None, drop_last: bool, **origin: Any) -> Demonstrations:
    """Flat arrays of several episodes (an npz file, a mapping, imitation's Transitions), or the fields of one trajectory."""
    name = origin["source"]
    fields = {alias: _field(arrays, alias) for alias in ALIASES}
    if fields["obs"] is None or fields["acts"] is None:
        _refuse_keys(arrays, name)
    done, next_obs = fields["done"], fields["next_obs"]
    obs, acts = _as_obs(fields["obs"], f"obs of {name}"), _as_array(fields["acts"], f"acts of {name}")
    n_steps = len(acts) if acts.ndim else 0
    if n_steps == 0:
        raise ValueError(f"{name} has no action, but at least 1 step is needed: record an episode first.")
    one_flag = done is not None and np.size(done) == 1 and (np.ndim(done) == 0 or n_steps > 1)
    if one_flag and next_obs is None and fields["indices"] is None:
        return _from_trajectories([arrays], max_episode_steps, drop_last, **origin)
    rews = None if fields["rews"] is None else _as_array(fields["rews"], f"rews of {name}")
    if rews is not None and rews.shape[:1] != (n_steps,):
        raise ValueError(f"{name} has rewards of the shape {rews.shape} but {n_steps} actions: store one reward per action.")
    origin["max_episode_steps"] = max_episode_steps
    if fields["indices"] is not None:  # imitation's older npz: one terminal flag per episode, cut points between episodes
        lengths = np.diff(_as_array(fields["indices"], f"indices of {name}"), prepend=0, append=n_steps)
        origin["terminated"] = _flags(np.zeros(len(lengths)) if done is None else done, f"terminal of {name}", len(lengths))
    else:
        lengths, ends = _split(arrays, fields, obs, n_steps, name)
        origin |= ends
        if next_obs is not None:
            return assemble(obs, _as_obs(next_obs, f"next_obs of {name}"), acts, rews, lengths, **origin)
    n_obs = _n_rows(obs)
    if n_obs not in (n_steps, n_steps + len(lengths)):
        raise ValueError(
            f"{name} has {n_obs} obs and {n_steps} acts in {len(lengths)} episodes, but {n_steps + len(lengths)} obs (one "
            "more per episode) are needed: add the final observations and the flags that end episodes, or next_obs."
        )
    return _from_chained(obs, acts, rews, lengths + (n_obs != n_steps), lengths, drop_last=drop_last, **origin)


def _refuse_keys(arrays: Any, name: str) -> None:
    found: Any = sorted(arrays) if isinstance(arrays, Mapping) else f"the type {type(arrays).__name__}"
    if type(arrays) is dict:
        found = {key: np.shape(value) for key, value in arrays.items()}
    raise ValueError(
        f"{name} has {found}, but {' or '.join(ALIASES['obs'])} and {' or '.join(ALIASES['acts'])} are needed, with next_obs "
        "or one more obs than acts per episode, and dones, terminated and truncated, or episode_starts: rename the arrays."
    )


def _split(arrays: Any, fields: dict[str, Any], obs: Obs, n_steps: int, name: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Lengths of the episodes in flat arrays, and how each ends."""
    named = ("terminated", "done", "truncated", "episode_starts")
    flags = {key: _flags(fields[key], f"{key} of {name}", n_steps) for key in named if fields[key] is not None}
    if not flags.keys() - {"episode_starts"}:
        warnings.warn(f"{name} has no dones, terminated or truncated: its episodes are read as cut off.", stacklevel=5)
    done, truncated, starts = (
        flags.get(key, np.zeros(n_steps, dtype=bool)) for key in ("done", "truncated", "episode_starts")
    )
    terminated = flags.get("terminated", done & ~truncated)
    ends = terminated | truncated | done
    ends[:-1] |= starts[1:]
    ends[-1] = True
    if fields["next_obs"] is not None:
        next_obs = _as_obs(fields["next_obs"], f"next_obs of {name}")
        if not _n_rows(obs) == _n_rows(next_obs) == n_steps:
            raise ValueError(
                f"{name} has {_n_rows(obs)} obs, {_n_rows(next_obs)} next_obs and {n_steps} acts: store one of each per step."
            )
        if not flags.keys() & {"truncated", "episode_starts"}:
            ends |= _breaks(obs, next_obs, ends, name)
    last = np.flatnonzero(ends)
    infos = _infos(arrays)
    limits = [_limit_in_infos(infos[i : i + 1] if isinstance(infos, (list, np.ndarray)) else None) for i in last]
    limited = np.array([bool(limit) for limit in limits])
    plain = "terminated" in arrays if isinstance(arrays, Mapping) else hasattr(arrays, "terminated")
    return np.diff(last, prepend=-1), {
        "terminated": terminated[last] & ~limited,
        "truncated": truncated[last] | limited,
        "single_flag": np.array(["truncated" not in flags and not plain and limit is None for limit in limits]),
    }


def _flags(value: Any, name: str, n: int) -> np.ndarray:
    array = _as_array(value, name)
    if array.size != n or not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} has the shape {array.shape}, but {n} flags, each 0 or 1, are expected: store one bool each.")
    return array.reshape(n).astype(bool)


def _breaks(obs: Obs, next_obs: Obs, ends: np.ndarray, name: str) -> np.ndarray:
    """Rows that are not followed by their own successor, so that an episode must have been cut there."""
    breaks = np.zeros(len(ends), dtype=bool)
    successors = obs_arrays(next_obs)
    for key, array in obs_arrays(obs).items():
        if key not in successors or successors[key].shape != array.shape:
            return breaks  # reported when the set is built
        different = array[1:] != successors[key][:-1]
        breaks[:-1] |= different.reshape(len(different), -1).any(axis=1)
    unmarked = int((breaks & ~ends).sum())
    if unmarked > len(ends) // 2:
        warnings.warn(
            f"in {name}, {unmarked} of {len(ends)} transitions are not followed by their successor, so each counts as an "
            "episode of its own and start states are unknown: pass trajectories if they are known.",
            stacklevel=6,
        )
    return breaks

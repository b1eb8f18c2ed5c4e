"""Arrays by their names: trajectories, batches and flat arrays of transitions, in memory or in a file with named arrays."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sb3_dualqdm.demonstrations.files import concatenate, find_obs
from sb3_dualqdm.demonstrations.successors import Successors, blocks
from sb3_dualqdm.demonstrations.types import Demonstrations, Obs, assemble, map_obs, obs_arrays

ALIASES = {
    "obs": ("obs", "observations", "states"),
    "acts": ("acts", "actions"),
    "next_obs": ("next_obs", "next_observations", "next_states"),
    "terminated": ("terminated", "terminals", "terminations", "absorbing"),
    "done": ("dones", "done", "terminal", "last"),
    "truncated": ("truncated", "timeouts", "truncations"),
    "rews": ("rews", "rewards"),
    "episode_starts": ("episode_starts",),
    "indices": ("indices",),
    "lengths": ("lengths",),
}
# These say that the task ended; other lone flags are often set at the time limit too.
_TERMINATION_ONLY = ("terminated", "terminations", "absorbing")
_END_FLAGS = ("done", "terminated", "truncated")
# Batches are read to their end: an iterable with more actions than this is taken for an endless one.
MAX_BATCH_ROWS = 10_000_000
_SUCCESSOR = (
    "pass the final observation too (one more obs than acts), or next_obs, or drop_last=True to leave out the last step"
)


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


def as_array(value: Any, name: str) -> np.ndarray:
    """
    An array of numbers.

    :param value: anything array-like.
    :param name: what it is, for the error.
    :return: the array.
    :raises ValueError: if it holds anything but bool, integer and float numbers.
    """
    parts = value if isinstance(value, (list, tuple)) else [value]
    if masked := sum(int(np.ma.count_masked(part)) for part in parts if isinstance(part, np.ma.MaskedArray)):
        raise ValueError(f"{name} has {masked} masked values, but every step needs one: fill them in, or leave the rows out.")
    if callable(getattr(value, "detach", None)):  # a tensor, perhaps one with gradients, or on another device
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except ValueError:  # numpy's answer to rows of different shapes
        array = np.empty(0, dtype=object)
    except (RuntimeError, TypeError) as error:  # lists of such tensors, and types that numpy does not have
        text = str(error).partition(". ")[0].rstrip(".")
        raise ValueError(f"{name} cannot be read as an array ({text}): pass NumPy arrays.") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} is not an array of numbers (dtype {array.dtype}): pass arrays with rows of one shape.")
    if array.size == 0 and array.ndim and len(array):  # any number of rows fits into no byte at all
        raise ValueError(f"{name} has {len(array)} rows without a number (shape {array.shape}): store numbers in each row.")
    return array


def as_obs(value: Any, name: str) -> Obs:
    """
    Observations as an array or a dict of arrays.

    :param value: an array-like, a mapping or a list of mappings of them, or imitation's ``DictObs``.
    :param name: what they are, for the error.
    :return: the observations.
    :raises ValueError: if they hold anything but numbers, or keys have different numbers of rows.
    """
    if callable(getattr(value, "unwrap", None)):  # imitation's DictObs
        value = value.unwrap()
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        value = {key: [step[key] for step in value] for key in value[0]}
    if not isinstance(value, Mapping):
        return as_array(value, name)
    arrays = {str(key): as_array(part, f"{name} {key!r}") for key, part in value.items()}
    if not arrays or len({part.shape[:1] for part in arrays.values()}) > 1:
        shapes = {key: part.shape for key, part in arrays.items()}
        raise ValueError(f"{name} has arrays of the shapes {shapes}: store one row per step under every key.")
    return arrays


def n_rows(obs: Obs) -> int:
    """
    Number of rows.

    :param obs: observations.
    :return: rows of the first array, 0 if it has no axis.
    """
    first = next(iter(obs_arrays(obs).values()))
    return len(first) if first.ndim else 0


def _infos(item: Any) -> Any:
    return item.get("infos") if type(item) is dict else getattr(item, "infos", None)


def _limit_in_infos(infos: Any) -> bool | None:
    """What the last info says about the time limit, None if nothing; lazily decoded infos (imitation's) are not touched."""
    if isinstance(infos, (list, tuple, np.ndarray)) and len(infos) and isinstance(infos[-1], Mapping):
        flag = infos[-1].get("TimeLimit.truncated")
        return None if flag is None else bool(np.all(flag))
    return None


def compact(index: np.ndarray) -> np.ndarray | slice:
    """
    Row numbers as a slice where they count up one by one, so that indexing makes a view.

    :param index: row numbers, at least one.
    :return: the slice, or the row numbers.
    """
    first, last = int(index[0]), int(index[-1])
    return slice(first, last + 1) if last - first == len(index) - 1 and (np.diff(index) == 1).all() else index


class Episode(NamedTuple):
    """
    One episode as a reader found it.

    :param obs: observations, T+1 rows, or T with ``next_obs`` (or without the last successor).
    :param acts: actions, T rows.
    :param rews: rewards, T rows, or None.
    :param terminated: the task ended in the last step.
    :param truncated: the episode was cut there.
    :param single_flag: ``terminated`` may mean the time limit.
    :param next_obs: successors, T rows, or None.
    :param seed: seed the episode was reset with, -1 if unknown.
    """

    obs: Obs
    acts: np.ndarray
    rews: np.ndarray | None
    terminated: bool
    truncated: bool
    single_flag: bool
    next_obs: Obs | None = None
    seed: int = -1


def episode_of(item: Any, name: str) -> Episode:
    """
    A trajectory (object or mapping with ``obs``, ``acts`` and ``terminal``) as an episode.

    :param item: the trajectory.
    :param name: what it is, for the errors.
    :return: the episode.
    :raises ValueError: if something is missing or not an array of numbers.
    """
    names = ("obs", "acts", "done", "terminated", "truncated", "rews", "next_obs")
    fields = {key: _field(item, key) for key in names}
    fields["terminal"] = fields["done"] if fields["terminated"] is None else fields["terminated"]
    if fields["terminal"] is None and fields["truncated"] is not None:  # as in flat arrays, what is only cut did not end
        fields["terminal"] = False
    if missing := [key for key in ("obs", "acts", "terminal") if fields[key] is None]:
        raise ValueError(
            f"{name} is a {type(item).__name__} without {' and '.join(missing)}, but a trajectory needs obs (one more than "
            "acts), acts and terminal: add what is missing."
        )
    acts = as_array(fields["acts"], f"acts of {name}")
    rews = None if fields["rews"] is None else as_array(fields["rews"], f"rews of {name}")
    terminated, truncated = _flag(fields["terminal"], f"terminal of {name}"), False
    single_flag = fields["terminated"] is None
    if fields["truncated"] is not None:
        truncated, single_flag = _flag(fields["truncated"], f"truncated of {name}"), False
    elif (limit := _limit_in_infos(_infos(item))) is not None:
        terminated, truncated, single_flag = terminated and not limit, limit, False
    next_obs = None if fields["next_obs"] is None else as_obs(fields["next_obs"], f"next_obs of {name}")
    return Episode(as_obs(fields["obs"], f"obs of {name}"), acts, rews, terminated, truncated, single_flag, next_obs)


def _flag(value: Any, name: str) -> bool:
    array = as_array(value, name)
    if array.size != 1 or not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} has {array.size} values, but it is one flag per trajectory: pass a bool.")
    return bool(array.all())


def from_sequence(items: Any, max_episode_steps: int | None, drop_last: bool, **origin: Any) -> Demonstrations:
    """
    Read trajectories, or batches of transitions, one after the other.

    :param items: the iterable.
    :param max_episode_steps: see :func:`load_demonstrations`.
    :param drop_last: see :func:`load_demonstrations`.
    :param origin: ``source``, ``spec`` and ``sha256`` of a file.
    :return: the demonstrations.
    :raises ValueError: if it holds no trajectory, or wrong ones.
    """
    try:
        iterator = iter(items)
    except TypeError:
        iterator = iter(())
    kind = type(items).__name__
    items = list(until_endless(iterator))
    if not items:
        raise ValueError(
            f"demonstrations of the type {kind} hold no trajectory: pass trajectories with obs, acts and "
            "terminal, imitation Transitions, a path, or 'builtin:<env id>'."
        )
    name = f"{len(items)} x {type(items[0]).__name__}"
    if isinstance(items[0], (Demonstrations, str, os.PathLike)):
        raise ValueError(
            f"the demonstrations are {name}, but one source is loaded at a time: load each with load_demonstrations and pass "
            "the episodes of all of them, a list of what their to_dicts() return."
        )
    origin.setdefault("source", name)
    if all(_is_batch(item) for item in items):
        return from_arrays(_join_batches(items, name), max_episode_steps, drop_last, **origin)
    episodes = (episode_of(item, f"trajectory {i}") for i, item in enumerate(items))
    return join(episodes, max_episode_steps, drop_last, **origin)


def until_endless(source: Iterable[Any]) -> Iterator[Any]:
    """The items of an iterable; batches that never end (an endless iterator over a data loader) are refused."""
    n_rows = 0
    for item in source:
        yield item
        if _is_batch(item):
            n_rows += as_array(_field(item, "acts"), "acts of a batch").size
            if n_rows > MAX_BATCH_ROWS:
                raise ValueError(
                    f"the batches do not end within {MAX_BATCH_ROWS} actions, but they are read once, to their end: pass "
                    "the data loader itself, or the trajectories."
                )


def _is_batch(item: Any) -> bool:
    if not isinstance(item, Mapping) or _field(item, "next_obs") is None:
        return False
    acts = _field(item, "acts")
    n_steps = 1 if acts is None else n_rows(as_array(acts, "acts of a batch"))
    return not _has_one_flag({key: _field(item, key) for key in _END_FLAGS}, n_steps, "a batch")


def _has_one_flag(fields: Mapping[str, Any], n_steps: int, name: str) -> bool:
    """A single flag is that of a whole trajectory: flat arrays and batches have one per step."""
    flags = [as_array(fields[key], f"{key} of {name}") for key in _END_FLAGS if fields[key] is not None]
    return any(flag.size == 1 and (flag.ndim == 0 or n_steps > 1) for flag in flags)


def _join_batches(batches: list[Any], name: str) -> dict[str, Any]:
    """Batches of transitions (mappings of arrays or tensors, as data loaders yield) as flat arrays."""
    joined: dict[str, Any] = {}
    for key in ("obs", "next_obs", "acts", "done", "terminated", "truncated", "rews"):
        values, label = [_field(batch, key) for batch in batches], ALIASES[key][0]
        if any(value is None for value in values):
            continue
        if key in ("obs", "next_obs"):
            joined[label] = _concatenate_obs([as_obs(value, f"{label} of {name}") for value in values], label)
        else:
            joined[label] = concatenate([as_array(value, f"{label} of {name}") for value in values], label)
    infos = [_infos(batch) for batch in batches]
    if all(isinstance(part, (list, tuple, np.ndarray)) for part in infos):
        joined["infos"] = [info for part in infos for info in part]
    return joined


def _concatenate_obs(parts: list[Obs], name: str) -> Obs:
    if len({tuple(sorted(obs_arrays(part))) for part in parts}) > 1:
        raise ValueError("the trajectories have different observation keys: use episodes of one environment.")
    whole = {
        key: concatenate([obs_arrays(part)[key] for part in parts], f"{name} {key}".strip()) for key in obs_arrays(parts[0])
    }
    return whole if isinstance(parts[0], dict) else whole[""]


def join(
    episodes: Iterable[Episode], max_episode_steps: int | None, drop_last: bool, *, source: str, **origin: Any
) -> Demonstrations:
    """
    Lay episodes end to end.

    :param episodes: the episodes, at least one.
    :param max_episode_steps: see :func:`load_demonstrations`.
    :param drop_last: see :func:`load_demonstrations`.
    :param source: where they came from.
    :param origin: ``spec`` and ``sha256``.
    :return: the demonstrations.
    :raises ValueError: if an episode has the wrong number of rows, or episodes do not go together.
    """
    parts = list(episodes)
    for i, part in enumerate(parts):
        _check_rows(part, f"episode {i} of {source}", drop_last)
    n_acts = np.array([len(part.acts) for part in parts])
    cut = np.array([part.next_obs is None and n_rows(part.obs) == len(part.acts) for part in parts])
    kept = n_acts - cut > 0
    if not kept.any():
        raise ValueError(f"{source} has only 1-step episodes without successors: {_SUCCESSOR}.")
    steps = (n_acts - cut)[kept]
    whole = [part for part, keep in zip(parts, kept) if keep]
    rews = None
    if all(part.rews is not None for part in parts):
        rews = concatenate([part.rews[:n] for part, n in zip(whole, steps)], "rews")  # type: ignore[index]
    flags: dict[str, Any] = {
        name: np.array([getattr(part, name) for part in whole], dtype=bool)
        for name in ("terminated", "truncated", "single_flag")
    }
    flags["terminated"] &= ~cut[kept]
    seeds = np.array([part.seed for part in whole], dtype=np.int64)
    obs = _concatenate_obs([map_obs(operator.itemgetter(slice(n)), part.obs) for part, n in zip(whole, steps)], "obs")
    if all(part.next_obs is None for part in whole):
        final = _concatenate_obs([map_obs(operator.itemgetter(slice(n, n + 1)), p.obs) for p, n in zip(whole, steps)], "obs")
        ends = np.cumsum(steps) - 1
        chained = {key: Successors(array, obs_arrays(final)[key], ends) for key, array in obs_arrays(obs).items()}
        next_obs: Obs = chained if isinstance(obs, dict) else chained[""]
    else:
        following = (map_obs(lambda a: a[1:], p.obs) if p.next_obs is None else p.next_obs for p in whole)
        next_obs = _concatenate_obs(list(following), "next_obs")
    demonstrations = assemble(
        obs,
        next_obs,
        concatenate([part.acts[:n] for part, n in zip(whole, steps)], "acts"),
        rews,
        steps,
        **flags,
        max_episode_steps=max_episode_steps,
        seeds=seeds if (seeds >= 0).any() else None,
        source=source,
        **origin,
    )
    if not cut.any():
        return demonstrations
    # what is left out still counts in the lengths and returns of the original episodes
    returns = None if rews is None else np.array([np.sum(part.rews, dtype=np.float64) for part in whole])  # type: ignore[arg-type]
    return demonstrations._replace(episode_lengths=n_acts[kept], episode_returns=returns, episode_indices=np.flatnonzero(kept))


def _check_rows(part: Episode, name: str, drop_last: bool) -> None:
    n = len(part.acts) if part.acts.ndim else 0
    if n == 0:
        raise ValueError(f"{name} has no action, but at least 1 step is needed: leave this episode out.")
    if part.rews is not None and part.rews.shape not in ((n,), (n, 1)):
        raise ValueError(
            f"{name} has acts of the shape {part.acts.shape} and rews of {part.rews.shape}: pass one row of each per step."
        )
    n_obs = n_rows(part.obs)
    if part.next_obs is not None:
        if not n_obs == n_rows(part.next_obs) == n:
            raise ValueError(
                f"{name} has {n_obs} obs, {n_rows(part.next_obs)} next_obs and {n} acts: store one of each per step."
            )
    elif n_obs != n + 1 and not (n_obs == n and drop_last):
        raise ValueError(f"{name} has {n_obs} obs and {n} acts, but every step needs a successor: {_SUCCESSOR}.")


def from_arrays(arrays: Any, max_episode_steps: int | None, drop_last: bool, **origin: Any) -> Demonstrations:
    """
    Read flat arrays of several episodes, one trajectory, or lists with an entry per episode (with ``lengths``).

    :param arrays: mapping (such as an npz file) or object (such as imitation's Transitions) with the arrays.
    :param max_episode_steps: see :func:`load_demonstrations`.
    :param drop_last: see :func:`load_demonstrations`.
    :param origin: ``source``, ``spec`` and ``sha256``.
    :return: the demonstrations.
    :raises ValueError: if arrays are missing or do not fit together.
    """
    name = origin["source"]
    fields = {alias: _field(arrays, alias) for alias in ALIASES}
    if fields["obs"] is None or fields["acts"] is None:
        _refuse_keys(arrays, name)
    if fields["lengths"] is not None:
        return join(_nested_episodes(fields, name), max_episode_steps, drop_last, **origin)
    done, next_obs = fields["done"], fields["next_obs"]
    obs, acts = as_obs(fields["obs"], f"obs of {name}"), as_array(fields["acts"], f"acts of {name}")
    n_steps = len(acts) if acts.ndim else 0
    if n_steps == 0:
        raise ValueError(f"{name} has no action, but at least 1 step is needed: record an episode first.")
    if fields["indices"] is None and _has_one_flag(fields, n_steps, name):
        return join([episode_of(arrays, name)], max_episode_steps, drop_last, **origin)
    rews = None if fields["rews"] is None else as_array(fields["rews"], f"rews of {name}")
    if rews is not None and rews.shape not in ((n_steps,), (n_steps, 1)):
        raise ValueError(f"{name} has rewards of the shape {rews.shape} but {n_steps} actions: store one reward per action.")
    if fields["indices"] is not None:  # imitation's older npz: one terminal flag per episode, cut points between episodes
        cuts = as_array(fields["indices"], f"indices of {name}").reshape(-1)
        lengths = np.diff(cuts.astype(np.int64), prepend=0, append=n_steps)
        if lengths.min() < 1:
            raise ValueError(f"indices of {name} are not increasing cuts inside {n_steps} actions: write the file again.")
        terminated = _flags(np.zeros(len(lengths)) if done is None else done, f"terminal of {name}", len(lengths))
        ends: dict[str, Any] = {
            "terminated": terminated,
            "truncated": np.zeros(len(lengths), dtype=bool),
            "single_flag": np.ones(len(lengths), dtype=bool),
        }
    else:
        lengths, ends, notes = _split(arrays, fields, obs, n_steps, name)
        if next_obs is not None:
            following = as_obs(next_obs, f"next_obs of {name}")
            origin |= {"max_episode_steps": max_episode_steps, "notes": notes}
            return assemble(obs, following, acts, rews, lengths, **ends, **origin)
    n_obs = n_rows(obs)
    if n_obs not in (n_steps, n_steps + len(lengths)):
        raise ValueError(
            f"{name} has {n_obs} obs and {n_steps} acts in {len(lengths)} episodes, but {n_steps + len(lengths)} obs (one "
            "more per episode) are needed: add the final observations and the flags that end episodes, or next_obs."
        )
    if n_obs == n_steps:
        return join(_pieces(obs, acts, rews, lengths, ends), max_episode_steps, drop_last, **origin)
    del fields
    in_place = getattr(arrays, "reads_anew", False)  # nobody else has these arrays
    pairs = {key: _without_final(array, lengths, in_place) for key, array in obs_arrays(obs).items()}
    obs = {key: pair[0] for key, pair in pairs.items()} if isinstance(obs, dict) else pairs[""][0]
    following = {key: pair[1] for key, pair in pairs.items()} if isinstance(obs, dict) else pairs[""][1]
    return assemble(obs, following, acts, rews, lengths, **ends, max_episode_steps=max_episode_steps, **origin)


def _without_final(array: np.ndarray, lengths: np.ndarray, in_place: bool) -> tuple[np.ndarray, Successors]:
    """Observations laid end to end with one more than actions per episode: those before an action, and their successors."""
    ends = np.cumsum(lengths)
    final = array[ends + np.arange(len(lengths))]
    kept = array if in_place and array.flags.writeable else np.empty((ends[-1], *array.shape[1:]), dtype=array.dtype)
    for i, (end, n) in enumerate(zip(ends.tolist(), lengths.tolist())):
        for rows in blocks(array[end - n : end]):  # forward, so that no row is overwritten before it has been moved
            start, stop = end - n + rows.start, end - n + rows.stop
            kept[start:stop] = array[start + i : stop + i]
    return kept[: ends[-1]], Successors(kept[: ends[-1]], final, ends - 1)


def _pieces(
    obs: Obs, acts: np.ndarray, rews: np.ndarray | None, lengths: np.ndarray, ends: dict[str, np.ndarray]
) -> Iterator[Episode]:
    """Episodes of flat arrays without any successor, as views."""
    starts = np.cumsum(lengths) - lengths
    for i, (start, n) in enumerate(zip(starts.tolist(), lengths.tolist())):
        rows = slice(start, start + n)
        yield Episode(
            map_obs(operator.itemgetter(rows), obs),
            acts[rows],
            None if rews is None else rews[rows],
            *(bool(ends[name][i]) for name in ("terminated", "truncated", "single_flag")),
        )


def _nested_episodes(fields: dict[str, Any], name: str) -> Iterator[Episode]:
    """Episodes of IQ-Learn's layout: under each name one entry per episode, of which the first ``lengths[i]`` rows count."""
    lengths = as_array(fields["lengths"], f"lengths of {name}")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not len(lengths) or lengths.min() < 1:
        raise ValueError(f"lengths of {name} are not integers of at least 1, one per episode: write the file again.")
    used = {key: fields[key] for key in ("obs", "next_obs", "acts", "rews", "done", "terminated", "truncated")}
    for key, value in used.items():
        if value is not None and (not hasattr(value, "__len__") or isinstance(value, Mapping) or len(value) != len(lengths)):
            raise ValueError(f"{ALIASES[key][0]} of {name} has not one entry for each of {len(lengths)} lengths: store one.")
    for i, n in enumerate(lengths.tolist()):
        rows: dict[str, Any] = {}
        for key, value in used.items():
            label = f"{ALIASES[key][0]} of episode {i} of {name}"
            rows[key] = None if value is None else (as_obs if "obs" in key else as_array)(value[i], label)
            found = n if value is None else n_rows(rows[key])
            if found < n:
                raise ValueError(f"{label} has {found} rows but the length {n}: write the file again.")
            if value is not None:
                extra = key == "obs" and used["next_obs"] is None and found > n
                rows[key] = map_obs(operator.itemgetter(slice(n + extra)), rows[key])
        flags = {}
        for key in ("done", "terminated", "truncated"):
            if rows[key] is not None:
                *before, flags[key] = _flags(rows[key], f"{key} of episode {i} of {name}", n).tolist()
                if any(before):
                    raise ValueError(f"{key} of episode {i} of {name} is set before the episode's end: split it there.")
        truncated = flags.get("truncated", False)
        terminated = flags.get("terminated", flags.get("done", False) and not truncated)
        yield Episode(rows["obs"], rows["acts"], rows["rews"], terminated, truncated, len(flags) < 2, rows["next_obs"])


def _refuse_keys(arrays: Any, name: str) -> None:
    found: Any = sorted(arrays) if isinstance(arrays, Mapping) else f"the type {type(arrays).__name__}"
    if type(arrays) is dict:
        found = {key: getattr(value, "shape", type(value).__name__) for key, value in arrays.items()}
    raise ValueError(
        f"{name} has {found}, but {' or '.join(ALIASES['obs'])} and {' or '.join(ALIASES['acts'])} are needed, with next_obs "
        "or one more obs than acts per episode, and dones, terminated and truncated, or episode_starts: rename the arrays."
    )


def _split(
    arrays: Any, fields: dict[str, Any], obs: Obs, n_steps: int, name: str
) -> tuple[np.ndarray, dict[str, Any], tuple[str, ...]]:
    """Lengths of the episodes in flat arrays, how each ends, and what was noticed."""
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
    notes: tuple[str, ...] = ()
    if fields["next_obs"] is not None:
        next_obs = as_obs(fields["next_obs"], f"next_obs of {name}")
        if not n_rows(obs) == n_rows(next_obs) == n_steps:
            raise ValueError(
                f"{name} has {n_rows(obs)} obs, {n_rows(next_obs)} next_obs and {n_steps} acts: store one of each per step."
            )
        notes = cut_at_breaks(ends, obs, next_obs, bool(flags.keys() & {"truncated", "episode_starts"}), name)
    last = np.flatnonzero(ends)
    infos = _infos(arrays)
    limits = [_limit_in_infos(infos[i : i + 1] if isinstance(infos, (list, np.ndarray)) else None) for i in last]
    limited = np.array([bool(limit) for limit in limits])
    plain = any(key in arrays if isinstance(arrays, Mapping) else hasattr(arrays, key) for key in _TERMINATION_ONLY)
    trusted = plain or "truncated" in flags or {"terminated", "done"} <= flags.keys()
    how = {
        "terminated": terminated[last] & ~limited,
        "truncated": truncated[last] | limited,
        "single_flag": np.array([not trusted and limit is None for limit in limits]),
    }
    return np.diff(last, prepend=-1), how, notes


def cut_at_breaks(ends: np.ndarray, obs: Obs, next_obs: Obs, cuts_known: bool, name: str) -> tuple[str, ...]:
    """
    Look for rows that are not followed by their successor.

    :param ends: whether an episode ends in each row; set there too unless cuts are known.
    :param obs: observations, one row each.
    :param next_obs: successors.
    :param cuts_known: something else than the end of the task is marked, so that episodes are complete.
    :param name: what they are rows of.
    :return: what was noticed.
    """
    unmarked = _breaks(obs, next_obs) & ~ends
    if not cuts_known:
        ends |= unmarked
    if unmarked.sum() > len(unmarked) // 2:
        warnings.warn(
            f"in {name}, {unmarked.sum()} of {len(unmarked)} transitions are not followed by their successor, so the order of "
            "steps and the start states are unknown: pass trajectories if they are known.",
            stacklevel=6,
        )
    what = "inside an episode" if cuts_known else "without a flag, read as cut there"
    return (f"{unmarked.sum()} rows not followed by their successor {what}",) if unmarked.any() else ()


def _flags(value: Any, name: str, n: int) -> np.ndarray:
    array = as_array(value, name)
    if array.size != n or not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} has the shape {array.shape}, but {n} flags, each 0 or 1, are expected: store one bool each.")
    return array.reshape(n).astype(bool)


def _breaks(obs: Obs, next_obs: Obs) -> np.ndarray:
    """Rows that are not followed by their own successor, so that an episode must have been cut there."""
    breaks = np.zeros(n_rows(obs), dtype=bool)
    successors = obs_arrays(next_obs)
    for key, array in obs_arrays(obs).items():
        if key not in successors or successors[key].shape != array.shape:
            return breaks  # reported when the set is built
        for rows in blocks(array[1:]):
            different = array[rows.start + 1 : rows.stop + 1] != successors[key][rows]
            breaks[rows] |= different.reshape(len(different), -1).any(axis=1)
    return breaks

"""Checks of demonstrations against an environment's spaces, and the one cast to their dtypes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from sb3_dualqdm.demonstrations.successors import Successors, blocks
from sb3_dualqdm.demonstrations.types import Obs, obs_arrays

if TYPE_CHECKING:
    from sb3_dualqdm.demonstrations.types import Demonstrations

ROUNDING = 1e-5
# Observation sizes that tell environment versions apart.
_VERSION_SIZES = {
    "Ant": {111: "v2 and v3", 27: "v4 (or v5 without contact forces)", 105: "v5"},
    "Humanoid": {376: "v2 to v4", 348: "v5"},
}


def validate(
    demonstrations: Demonstrations,
    observation_space: spaces.Space | None,
    action_space: spaces.Space | None,
    clip_actions: bool = False,
) -> Demonstrations:
    """See :meth:`Demonstrations.validate`."""
    demos = demonstrations
    changes: dict[str, Any] = {}
    notes: dict[str, None] = dict.fromkeys(demos.notes)  # in order, each once
    if observation_space is not None:
        changes["obs"], changes["next_obs"] = _fit_obs(demos, observation_space)
        for key, array in obs_arrays(demos.obs).items():
            _note_cast(f"obs {key}".strip(), array, obs_arrays(changes["obs"])[key], notes)
    if action_space is not None:
        changes["actions"] = _fit_actions(demos.actions, action_space, f"{demos.source}: actions", clip_actions)
        _note_cast("actions", demos.actions, changes["actions"], notes)
    demos = demos._replace(**changes, notes=tuple(notes)) if changes else demos
    _check_finite(demos.actions, "actions", demos)
    for name in ("obs", "next_obs"):
        for key, array in obs_arrays(getattr(demos, name)).items():
            _check_finite(array, f"{name} {key}".rstrip(), demos)
    return demos


def _note_cast(name: str, before: np.ndarray, after: np.ndarray, notes: dict[str, None]) -> None:
    if before.dtype != after.dtype:
        notes[f"{name} cast from {before.dtype} to {after.dtype}"] = None
    if before.size != after.size:
        notes[f"{name} one-hot, read as the index of the 1"] = None


def _check_finite(array: Any, name: str, demos: Demonstrations) -> None:
    """Successors that repeat observations are covered by these, apart from the final ones."""
    if array.dtype.kind != "f":
        return
    values, rows = (array.final, array.last) if isinstance(array, Successors) else (array, None)
    bad = np.empty(len(values), dtype=bool)
    for block in blocks(values):
        bad[block] = ~np.isfinite(values[block]).reshape(block.stop - block.start, -1).all(axis=1)
    if bad.any():
        row = int(bad.argmax()) if rows is None else rows[bad.argmax()]
        raise ValueError(
            f"{demos.source}: {name} has NaN or infinite values in {int(bad.sum())} of {len(array)} rows, first in episode "
            f"{demos.episode[row]} at step {demos.step[row]}, but every value must be finite: remove or repair these rows."
        )


def _fit_obs(demos: Demonstrations, space: spaces.Space) -> tuple[Obs, Obs]:
    obs, source = demos.obs, demos.source
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, dict):
            raise ValueError(
                f"{source}: obs is one array but the observation space is a Dict with the keys {sorted(space.spaces)}: "
                "pass a dict with one array per key."
            )
        if obs.keys() != space.spaces.keys():
            raise ValueError(
                f"{source}: obs has the keys {sorted(obs)} but the observation space {sorted(space.spaces)}: "
                "store exactly the keys of the environment."
            )
        pairs = {key: _fit_pair(obs[key], demos.next_obs[key], part, f"{source}: %s {key!r}") for key, part in space.items()}
        return {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}
    if isinstance(obs, dict):
        raise ValueError(
            f"{source}: obs is a dict with the keys {sorted(obs)} but the observation space is {space}: "
            "pass one array, or use the environment with the Dict space."
        )
    return _fit_pair(obs, demos.next_obs, space, f"{source}: %s")


def _fit_pair(obs: np.ndarray, next_obs: Any, space: spaces.Space, name: str) -> tuple[np.ndarray, Any]:
    """Observations and successors; what both have is cast once."""
    fitted = _fit_obs_array(obs, space, name % "obs")
    _warn_outside(fitted, space, name % "obs")
    chained = isinstance(next_obs, Successors)
    following = _fit_obs_array(next_obs.final if chained else next_obs, space, name % "next_obs")
    _warn_outside(following, space, name % "next_obs")
    return fitted, Successors(fitted, following, next_obs.last) if chained else following


def _warn_outside(array: np.ndarray, space: spaces.Space, name: str) -> None:
    """Observations in other units than the space's, such as pixels from 0 to 255 where it has 0 to 1."""
    if not isinstance(space, spaces.Box):
        return
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if array.dtype.kind == "f":
        slack = ROUNDING * np.nan_to_num(high - low, posinf=0)
        low, high = low - slack, high + slack
        least, most = -np.inf, np.inf
    elif array.dtype.kind in "iu":
        least, most = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
    else:
        return
    if (low <= least).all() and (high >= most).all():  # no value can be outside, as of images
        return
    outside = sum(int(((array[rows] < low) | (array[rows] > high)).sum()) for rows in blocks(array))
    if outside:
        warnings.warn(
            f"{name} has {outside} values outside the observation space {space}: check that the demonstrations are in the "
            "environment's units.",
            stacklevel=7,
        )


def _fit_obs_array(array: np.ndarray, space: spaces.Space, name: str) -> np.ndarray:
    if isinstance(space, spaces.Discrete):
        return _fit_discrete(array, space, name)
    if not isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise ValueError(
            f"{name} cannot be read for the observation space {space}, only Box, Discrete, MultiDiscrete, MultiBinary and "
            "one-level Dict spaces of them are: flatten the observation with a wrapper."
        )
    shape = array.shape[1:]
    if shape != space.shape and len(shape) == len(space.shape) == 3 and space.dtype == np.uint8:
        for order in ((0, 3, 1, 2), (0, 2, 3, 1)):  # channel-last to channel-first, and back
            if array.transpose(order).shape[1:] == space.shape:
                return _cast(np.ascontiguousarray(array.transpose(order)), space.dtype, name)
    if shape == () and space.shape == (1,):
        array = array[:, None]
    elif shape != space.shape:
        raise ValueError(
            f"{name} has the shape {shape} per step but the observation space has {space.shape}: "
            f"{_version_hint(shape, space.shape) or 'record the demonstrations in this environment, with the same wrappers'}."
        )
    cast = _cast(array, space.dtype, name)
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        start = np.asarray(getattr(space, "start", 0), dtype=np.int64)  # gymnasium 0.29 has none
        _check_range(cast, start, start + getattr(space, "nvec", 2) - 1, str(space), name)
    return cast


def _check_range(array: np.ndarray, low: Any, high: Any, expected: str, name: str) -> None:
    """Categories between the first and the last one; others would fail when they are one-hot encoded in training."""
    n_outside, example = 0, None
    for rows in blocks(array):
        outside = (array[rows] < low) | (array[rows] > high)
        if outside.any():
            n_outside += int(outside.sum())
            example = array[rows][outside][0] if example is None else example
    if n_outside:
        raise ValueError(
            f"{name} has {n_outside} values out of range (such as {example}) but the space is {expected}: use demonstrations "
            "of this environment."
        )


def _version_hint(found: tuple[int, ...], expected: tuple[int, ...]) -> str | None:
    if len(found) != 1 or len(expected) != 1:
        return None
    for env, sizes in _VERSION_SIZES.items():
        if found[0] in sizes and expected[0] in sizes:
            known = ", ".join(f"{size} values are {env}-{version}" for size, version in sizes.items())
            return f"{known}, so use demonstrations of the environment's own version"
    return None


def _cast(array: np.ndarray, dtype: np.dtype | None, name: str) -> np.ndarray:
    target = np.dtype(dtype if dtype is not None else np.float32)
    if target.kind == "f":
        # float64 spaces too: networks are float32, and casting at every sampling would cost more than once here.
        with np.errstate(over="ignore"):
            return array.astype(np.float32, copy=False)
    if array.dtype == target:
        return array
    with np.errstate(invalid="ignore"):
        cast = array.astype(target)
    if not np.array_equal(cast, array):
        raise ValueError(
            f"{name} has values from {array.min():g} to {array.max():g} that are not {target} numbers, "
            f"but the space's dtype is {target}: store the values unscaled, as the environment returns them."
        )
    return cast


def _fit_discrete(array: np.ndarray, space: spaces.Discrete, name: str) -> np.ndarray:
    if array.shape == (len(array), space.n) and space.n > 1 and _one_hot(array):
        array = space.start + array.argmax(axis=1)
    if array.shape == (len(array), 1):
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(
            f"{name} has the shape {array.shape[1:]} per step but the space is {space}: pass integers, or one-hot rows."
        )
    cast = _cast(array, np.dtype(np.int64), name) if array.dtype.kind != "f" else _integers(array, space, name)
    low, high = int(space.start), int(space.start + space.n - 1)
    _check_range(cast, low, high, f"{space}, {low} to {high}", name)
    return cast


def _one_hot(array: np.ndarray) -> bool:
    return bool(np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all())


def _integers(array: np.ndarray, space: spaces.Discrete, name: str) -> np.ndarray:
    wrong = ~(np.isfinite(array) & (array == np.round(array)))
    if wrong.any():
        raise ValueError(
            f"{name} has {int(wrong.sum())} values that are not integers (such as {array[wrong][0]:g}) but the space is "
            f"{space}: pass indices."
        )
    return array.astype(np.int64)


def _fit_actions(array: np.ndarray, space: spaces.Space, name: str, clip: bool) -> np.ndarray:
    if isinstance(space, spaces.Discrete):
        return _fit_discrete(array, space, name)
    if not isinstance(space, spaces.Box):
        raise ValueError(f"{name} cannot fit the action space {space}, only Box and Discrete do: wrap the environment.")
    if array.ndim == 1 and space.shape == (1,):
        array = array[:, None]
    if array.shape[1:] != space.shape:
        raise ValueError(
            f"{name} has the shape {array.shape[1:]} per step but the action space has {space.shape}: "
            "record the demonstrations in this environment."
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        low, high = (np.round(np.nanpercentile(array, q, axis=0), 3).tolist() for q in (1, 99))
        raise ValueError(
            f"the action space {space} is unbounded but a finite box is needed: bound it with a wrapper, for instance by the "
            f"1st and 99th percentiles of the demonstrations' actions, {low} and {high}."
        )
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    n_outside, most = 0, 0.0
    for rows in blocks(array):
        block = array[rows]
        if not np.isfinite(block).all():
            return array  # reported by the check for finite values
        excess = np.maximum(low - block, block - high)
        n_outside += int((excess > ROUNDING * (high - low)).reshape(len(block), -1).any(axis=1).sum())
        most = max(most, float(excess.max()))
    if n_outside and not clip:
        raise ValueError(
            f"{name} lie outside the action space {space} in {n_outside} of {len(array)} rows, by up to "
            f"{most:.3g}: use demonstrations in the environment's units, or pass clip_actions=True to clip them."
        )
    if most > 0:
        array = array.astype(np.result_type(array, np.float32))  # whole numbers may be clipped to a bound between them
        for rows in blocks(array):
            array[rows] = np.clip(array[rows], low, high)
    return _cast(array, space.dtype, name)

"""HDF5 files: D4RL's flat arrays, robomimic's groups of demonstrations, Minari's groups of episodes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sb3_dualqdm.demonstrations.files import Budget, RefusedError, check_size, optional, reading
from sb3_dualqdm.demonstrations.readers.arrays import Episode, as_array, from_arrays, join
from sb3_dualqdm.demonstrations.types import Demonstrations, Obs, obs_arrays


class Hdf5(Mapping):
    """
    A group of an HDF5 file as a mapping that reads an array when asked for it, from this file only and only if it is numbers.

    Groups are mappings again. Links to other files, arrays stored elsewhere, and sizes out of proportion are refused.

    :param group: an open ``h5py.Group``.
    :param path: the file.
    :param budget: what all groups of the file may still take, default None: this is the first.
    """

    reads_anew = True  # every array belongs to who asked for it

    def __init__(self, group: Any, path: Path, budget: Budget | None = None):
        self.group, self.path, self.budget = group, path, budget or Budget(path.stat().st_size)

    def __getitem__(self, key: str) -> Any:
        import h5py

        name = f"{f'{self.group.name}/{key}'.replace('//', '/')!r} of {self.path}"
        with reading(name):
            item = None if isinstance(self.group.get(key, getlink=True), h5py.ExternalLink) else self.group[key]
            # a soft link may lead on to an external one
            outside = item is None or h5py.h5o.get_info(item.id).fileno != h5py.h5o.get_info(self.group.id).fileno
            if isinstance(item, h5py.Group) and not outside:
                return Hdf5(item, self.path, self.budget)
            if outside or not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                raise RefusedError(f"{name} lies outside the file, and only the file itself is read: copy the data into it.")
            if item.dtype.kind not in "biuf" or item.shape is None:
                raise RefusedError(f"{name} has the type {item.dtype} but only numbers are read: store plain numbers.")
            # an enormous chunk would be unpacked whole
            chunk = int(np.prod(item.chunks or (0,), dtype=object)) * item.dtype.itemsize
            check_size(name, chunk, item.id.get_storage_size())
            self.budget.take(name, item.size * item.dtype.itemsize, item.id.get_storage_size())
            array = item[()]
        return as_array(array, name)

    def __contains__(self, key: object) -> bool:
        return key in self.group

    def __iter__(self) -> Iterator[str]:
        return iter(self.group)

    def __len__(self) -> int:
        return len(self.group)


def from_file(path: Path, *, source: str, **options: Any) -> Demonstrations:
    """
    Read an HDF5 file by its layout: ``data/demo_0`` (robomimic), ``episode_0`` (Minari), or flat arrays (D4RL).

    :param path: the file.
    :param source: what the user called it.
    :param options: see :func:`sb3_dualqdm.demonstrations.readers.arrays.join`.
    :return: the demonstrations.
    :raises ValueError: if it cannot be read.
    :raises ImportError: without h5py.
    """
    h5py = optional("h5py", "formats", f"{source!r} is an HDF5 file, and reading it")
    with reading(str(path)):
        file = h5py.File(path, "r")
    with file:
        root = Hdf5(file, path)
        if file.get("data", getclass=True) is h5py.Group and (demos := _numbered(root["data"], "demo_")):
            return join(_robomimic(demos, source), source=source, **options)
        if episodes := _numbered(root, "episode_"):
            return join(minari_episodes(episodes, source), source=source, **options)
        # observations may be a group: one array per key
        return from_arrays(root, source=source, **options)


def _numbered(group: Hdf5, prefix: str) -> dict[str, Hdf5]:
    """Groups such as ``demo_10`` in the order of their numbers, which is not that of the file."""
    names = [name for name in group if re.fullmatch(prefix + r"\d+", name)]
    groups = {name: group[name] for name in sorted(names, key=lambda name: int(name.removeprefix(prefix)))}
    if arrays := [name for name, part in groups.items() if not isinstance(part, Hdf5)]:
        raise ValueError(f"{arrays[0]} of {group.path} is an array, but a group of arrays is expected: rename it.")
    return groups


def arrays_of(value: Any, name: str) -> Obs:
    """
    A stored array, or the arrays of a stored group.

    :param value: what :class:`Hdf5` returned.
    :param name: what it is, for the error.
    :return: an array, or a dict of arrays.
    :raises ValueError: if groups lie inside the group.
    """
    if not isinstance(value, Hdf5):
        return value
    parts = {key: value[key] for key in value}
    if not parts or any(isinstance(part, Hdf5) for part in parts.values()):
        raise ValueError(f"{name} has groups in its group, but one level of arrays is read: flatten the observations.")
    return parts


def _robomimic(groups: Mapping[str, Hdf5], source: str) -> Iterator[Episode]:
    unmarked = 0
    for name, group in groups.items():
        label = f"{name} of {source}"
        if missing := [key for key in ("obs", "actions") if key not in group]:
            raise ValueError(f"{label} has {sorted(group)} but no {' and '.join(missing)}: extract the observations first.")
        dones = as_array(group["dones"], f"dones of {label}").reshape(-1) > 0 if "dones" in group else np.zeros(1, dtype=bool)
        unmarked += int(dones[:-1].sum())
        acts = group["actions"]
        yield Episode(
            obs=arrays_of(group["obs"], f"obs of {label}"),
            acts=acts,
            rews=group["rewards"] if "rewards" in group else None,
            terminated=bool(len(dones) and dones[-1]),
            truncated=False,
            single_flag=True,
            next_obs=arrays_of(group["next_obs"], f"next_obs of {label}") if "next_obs" in group else None,
        )
    if unmarked:
        warnings.warn(
            f"{source} has {unmarked} dones inside its demonstrations: each is read as one episode that goes on to its end, "
            "as robomimic does.",
            stacklevel=5,
        )


def minari_episodes(groups: Mapping[str, Hdf5], source: str) -> Iterator[Episode]:
    """
    Episodes of a Minari file.

    :param groups: its ``episode_k`` groups in order.
    :param source: what the user called it.
    :return: the episodes, with the seeds that are stored.
    :raises ValueError: if arrays are missing.
    """
    for name, group in groups.items():
        label = f"{name} of {source}"
        needed = ("observations", "actions", "rewards", "terminations", "truncations")
        if missing := [key for key in needed if key not in group]:
            raise ValueError(f"{label} has {sorted(group)} but no {' and '.join(missing)}: write the dataset with Minari.")
        flags = {key: bool(np.any(as_array(group[key], f"{key} of {label}")[-1:])) for key in ("terminations", "truncations")}
        seed = group.group.attrs.get("seed", -1)
        obs = arrays_of(group["observations"], f"observations of {label}")
        if any(array.dtype == np.uint8 and array.ndim == 2 for array in obs_arrays(obs).values()):
            raise ValueError(f"{label} has rows of bytes, which may be compressed pictures: pass the dataset's folder.")
        yield Episode(
            obs=obs,
            acts=as_array(group["actions"], f"actions of {label}"),
            rews=as_array(group["rewards"], f"rewards of {label}"),
            terminated=flags["terminations"],
            truncated=flags["truncations"],
            single_flag=False,
            seed=int(seed) if isinstance(seed, (int, np.integer)) else -1,
        )

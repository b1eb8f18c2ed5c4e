"""Readers: from what people have, in memory or on disk, to :class:`Demonstrations`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_dualqdm.demonstrations import builtin
from sb3_dualqdm.demonstrations.files import Npz, file_sha256, from_own
from sb3_dualqdm.demonstrations.readers import arrow, hdf5, hub, minari, pickles, replay, tables
from sb3_dualqdm.demonstrations.readers.arrays import from_arrays, from_sequence, until_endless
from sb3_dualqdm.demonstrations.types import FORMAT_KEY, Demonstrations

if TYPE_CHECKING:
    from gymnasium import spaces

__all__ = ["load_demonstrations", "until_endless"]

_FORMATS = (
    "an .npz, .npy, .pkl, .hdf5, .parquet or .csv file, or a folder written by imitation, Minari or LeRobot (the "
    "documentation lists their layouts)"
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
        ``acts``, ``next_obs``, ``dones``, such as a data loader) that ends; a Minari dataset; an SB3 replay buffer; a pandas
        table; ``"builtin:<env id>"``; ``"minari:<dataset id>"``; ``"hub:<dataset id>"``; or the path of a file or folder
        (npz, npy, pickle, HDF5, Parquet, CSV; imitation, Minari, LeRobot). Files are data: nothing in them is executed.
    :param observation_space: check and cast to this space, default None (leave as stored).
    :param action_space: likewise for actions.
    :param n_demonstrations: the first n episodes, or a list of episode indices, default None (all).
    :param subsample: keep every such step of each episode, default 1.
    :param keep_terminal: also keep terminated steps when subsampling, default False.
    :param max_episode_steps: the environment's time limit. Where the source has a single terminal flag, an episode exactly
        that long counts as truncated unless its infos say otherwise. Default None: trust the flags, until the limit is given.
    :param clip_actions: clip actions that lie outside the box by more than rounding instead of refusing them, default False.
    :param drop_last: with as many obs as acts and no next_obs, leave out each episode's last step, whose successor is
        unknown, instead of refusing, default False.
    :return: the demonstrations.
    :raises ValueError: if the source cannot be read or does not fit.
    :raises FileNotFoundError: if there is no such file.
    :raises ImportError: if a format needs a package that is not installed.
    """
    options: dict[str, Any] = {"max_episode_steps": max_episode_steps, "drop_last": drop_last}
    if isinstance(source, Demonstrations):
        demonstrations = source
    elif isinstance(source, (str, os.PathLike)):
        demonstrations = _read_path(os.fspath(source), options)
    else:
        demonstrations = _read_object(source, options)
    demonstrations = demonstrations.with_time_limit(max_episode_steps)  # sets that were read without it
    if n_demonstrations is not None:
        demonstrations = demonstrations.select(n_demonstrations)
    demonstrations = demonstrations.subsample(subsample, keep_terminal)
    return demonstrations.validate(observation_space, action_space, clip_actions)


def _read_object(source: Any, options: dict[str, Any]) -> Demonstrations:
    name = type(source).__name__
    if replay.is_replay_buffer(source):
        return replay.from_buffer(source, source=name, **options)
    if minari.is_dataset(source):
        return minari.from_dataset(source, source=name, **options)
    if tables.is_table(source):
        return tables.from_table(source, source=name, **options)
    if isinstance(source, Mapping) or hasattr(source, "obs"):
        return from_arrays(source, source=name, **options)
    return from_sequence(source, **options)


def _read_path(spec: str, options: dict[str, Any]) -> Demonstrations:
    if spec.startswith("builtin:"):
        env_id = spec.removeprefix("builtin:")
        demonstrations = from_own(Npz(builtin.builtin_path(env_id)), spec)
        if demonstrations.sha256 != builtin.manifest()[env_id]["sha256"]:
            raise ValueError(f"{builtin.builtin_path(env_id)} differs from its manifest: reinstall sb3-dualqdm.")
        seeds = builtin.manifest()[env_id].get("seeds")
        if demonstrations.seeds is None and seeds is not None:
            demonstrations = demonstrations._replace(seeds=np.array(seeds, dtype=np.int64))
        return demonstrations._replace(source=spec)
    if not spec:  # pathlib's name for the current folder
        raise ValueError(f"the path of the demonstrations is empty: pass {_FORMATS}.")
    prefix, _, name = spec.partition(":")
    local_path = {"minari": minari.local_path, "hub": hub.local_path}.get(prefix)
    path = Path(spec).expanduser() if local_path is None else local_path(name)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no demonstration file or folder {spec!r}: pass {_FORMATS}, or one of "
            f"{', '.join('builtin:' + name for name in builtin.builtin_ids())}."
        )
    read = _folder_reader(path) if path.is_dir() else _file_reader(path)
    try:
        return read(path, source=spec, spec=spec, sha256=file_sha256(path), **options)
    except (ValueError, ImportError):
        raise
    except Exception as error:  # damage that a reader did not expect, such as memory that is not there
        raise ValueError(f"{spec!r} cannot be read ({type(error).__name__}): write it again.") from error


def _folder_reader(path: Path) -> Callable[..., Demonstrations]:
    for file, reader in (
        ("state.json", arrow.from_folder),
        ("meta/info.json", tables.from_lerobot),
        ("metadata.json", minari.from_folder),
        ("data/metadata.json", minari.from_folder),
    ):
        if (path / file).is_file():
            return reader
    if arrow.parquet_files(path):
        return arrow.from_folder
    raise ValueError(
        f"the folder {path} has no state.json (imitation), metadata.json (Minari) or meta/info.json (LeRobot): pass "
        f"{_FORMATS}."
    )


def _file_reader(path: Path) -> Callable[..., Demonstrations]:
    """By the first bytes, which no renaming changes; text and the oldest pickles have none, there the suffix tells."""
    with open(path, "rb") as file:
        start = file.read(8)
    for magic, reader in (
        (b"PK\x03\x04", _from_npz),
        (b"PK\x05\x06", _from_npz),
        (b"\x93NUMPY", pickles.from_npy),
        (b"\x89HDF\r\n\x1a\n", hdf5.from_file),
        (b"PAR1", tables.from_parquet),
        (b"\x80", pickles.from_pickle),
    ):
        if start.startswith(magic):
            return reader
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return tables.from_csv
    if suffix in (".pkl", ".pickle", ".p"):
        return pickles.from_pickle
    raise ValueError(f"{path} is not of a format that is read here (it starts with {start!r}): pass {_FORMATS}.")


def _from_npz(path: Path, **options: Any) -> Demonstrations:
    arrays = Npz(path)
    if FORMAT_KEY in arrays:
        return from_own(arrays, options["spec"])
    if {"data", "policy.pth"} & set(arrays) and not {"obs", "observations", "states"} & set(arrays):
        raise ValueError(
            f"{path} holds a model or its weights, not demonstrations: load it with its algorithm's load(), and record "
            "episodes with collect_demonstrations."
        )
    return from_arrays(arrays, **options)

"""Minari datasets: by id or folder without the package minari, or as its objects; the environment is never made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sb3_dualqdm.demonstrations.files import optional, reading
from sb3_dualqdm.demonstrations.readers import hdf5
from sb3_dualqdm.demonstrations.readers.arrays import Episode, as_array, as_obs, join
from sb3_dualqdm.demonstrations.types import Demonstrations


def local_path(dataset_id: str) -> Path:
    """
    Where Minari keeps a dataset on this computer.

    :param dataset_id: such as ``"mujoco/hopper/expert-v0"``.
    :return: its folder.
    :raises ValueError: if the id leads out of Minari's folder.
    :raises FileNotFoundError: if it has not been downloaded.
    """
    root = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    if ".." in Path(dataset_id).parts or Path(dataset_id).is_absolute():
        raise ValueError(f"'minari:{dataset_id}' is not a dataset id: pass the path without 'minari:' if it is a folder.")
    if not (root / dataset_id).is_dir():
        raise FileNotFoundError(
            f"the Minari dataset {dataset_id!r} is not in {root}: download it with  minari download {dataset_id}  first."
        )
    return root / dataset_id


def is_dataset(source: Any) -> bool:
    """
    :param source: anything.
    :return: whether it is a ``minari.MinariDataset``.
    """
    return callable(getattr(source, "iterate_episodes", None)) and hasattr(source, "total_episodes")


def from_dataset(dataset: Any, *, source: str, **options: Any) -> Demonstrations:
    """
    Read a ``minari.MinariDataset`` through its public methods.

    :param dataset: the dataset.
    :param source: what the user called it; the dataset's own id is preferred.
    :param options: see :func:`sb3_dualqdm.demonstrations.readers.arrays.join`.
    :return: the demonstrations.
    :raises ValueError: if it holds anything but numbers, or nothing.
    """
    name = str(getattr(dataset, "id", source))
    if int(dataset.total_episodes) < 1:
        raise ValueError(f"the Minari dataset {name} has no episode, but at least 1 is needed: record one.")
    return join(_episodes(dataset, name), source=name, **options)


def _episodes(dataset: Any, name: str) -> Iterator[Episode]:
    seeds = [part.get("seed") for part in dataset.storage.get_episode_metadata(dataset.episode_indices)]
    for i, (episode, seed) in enumerate(zip(dataset.iterate_episodes(), seeds)):
        label = f"episode {i} of {name}"
        if isinstance(episode.observations, tuple):
            raise ValueError(f"{label} has a tuple of observations, but arrays and dicts are read: flatten the observations.")
        obs = as_obs(episode.observations, f"observations of {label}")
        expected = getattr(dataset.observation_space, "shape", None)
        if not isinstance(obs, dict) and expected is not None and obs.shape[1:] != expected:
            raise ValueError(
                f"{label} has observations of the shape {obs.shape[1:]} but its space has {expected}, as compressed pictures "
                "that Minari did not unpack: update minari, or write the dataset without compression."
            )
        yield Episode(
            obs=obs,
            acts=as_array(episode.actions, f"actions of {label}"),
            rews=as_array(episode.rewards, f"rewards of {label}"),
            terminated=bool(np.any(episode.terminations[-1:])),
            truncated=bool(np.any(episode.truncations[-1:])),
            single_flag=False,
            seed=-1 if seed is None else int(seed),
        )


def from_folder(path: Path, **options: Any) -> Demonstrations:
    """
    Read a dataset's folder (or its ``data`` folder); HDF5 is read here, Minari's Arrow format and pictures through minari.

    :param path: the folder.
    :param options: ``source``, and see :func:`sb3_dualqdm.demonstrations.readers.arrays.join`.
    :return: the demonstrations.
    :raises ValueError: if it cannot be read.
    :raises ImportError: without h5py, or minari where it is needed.
    """
    data = path / "data" if (path / "data" / "metadata.json").is_file() else path
    with reading(str(data / "metadata.json")):
        metadata = json.loads((data / "metadata.json").read_text())
        # whether pictures are compressed, and how, differs between Minari's releases
        pictures = "uint8" in str(metadata.get("observation_space"))
        stored = "picture" if pictures else metadata.get("data_format", "hdf5")
    if stored == "hdf5":
        if not (data / "main_data.hdf5").is_file():
            raise ValueError(f"the Minari folder {path} has no main_data.hdf5: download the dataset again.")
        return hdf5.from_file(data / "main_data.hdf5", **options)
    minari = optional("minari", "formats", f"{options['source']!r} is in Minari's {stored} format, and reading it")
    with reading(str(path)):
        dataset = minari.MinariDataset(data)
    return from_dataset(dataset, **options)

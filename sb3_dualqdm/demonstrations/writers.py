"""Writers: demonstrations in the layouts that other tools read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sb3_dualqdm.demonstrations.files import optional
from sb3_dualqdm.demonstrations.types import Demonstrations, obs_arrays


def write_demonstrations(demonstrations: Demonstrations, path: str | os.PathLike[str]) -> Path:
    """
    Write demonstrations in the layout that the suffix names; :func:`load_demonstrations` reads all of them back.

    :param demonstrations: the demonstrations.
    :param path: ``.npz`` (our own, complete), ``.hdf5`` or ``.h5`` (D4RL's arrays), ``.parquet`` or ``.csv`` (a row per step).
    :return: the path written; missing folders are created.
    :raises ValueError: if the suffix is unknown, or the layout cannot hold the demonstrations.
    :raises ImportError: without h5py or pyarrow.
    """
    target = Path(path).expanduser()
    writers = {".npz": _write_npz, ".hdf5": _write_hdf5, ".h5": _write_hdf5, ".parquet": _write_table, ".csv": _write_table}
    suffix = target.suffix.lower()
    if suffix not in writers:
        raise ValueError(f"{target} has the suffix {suffix!r}, but {', '.join(writers)} are written: choose one of them.")
    if suffix != ".npz" and not np.array_equal(demonstrations.episode_lengths, np.bincount(demonstrations.episode)):
        raise ValueError(
            f"{demonstrations.source} has episodes of which only some steps are kept, and only .npz files keep the others' "
            "place: write an .npz file, or all steps."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    writers[suffix](demonstrations, target)
    return target


def _write_npz(demos: Demonstrations, target: Path) -> None:
    demos.save(target)


def _write_hdf5(demos: Demonstrations, target: Path) -> None:
    h5py = optional("h5py", "formats", f"{target} is an HDF5 file, and writing it")
    if slashed := [key for key in obs_arrays(demos.obs) if "/" in key]:
        raise ValueError(
            f"{target} is an HDF5 file, where a slash parts groups, but obs has the key {slashed[0]!r}: write an .npz file."
        )
    arrays: dict[str, Any] = {"actions": demos.actions, "terminals": demos.terminated, "timeouts": demos.truncated}
    if demos.rewards is not None:
        arrays["rewards"] = demos.rewards
    for name, value in (("observations", demos.obs), ("next_observations", demos.next_obs)):
        arrays |= {f"{name}/{key}".rstrip("/"): array for key, array in obs_arrays(value).items()}
    with h5py.File(target, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=np.asarray(array), compression="gzip")


def _write_table(demos: Demonstrations, target: Path) -> None:
    csv = target.suffix.lower() == ".csv"
    module = optional(f"pyarrow.{'csv' if csv else 'parquet'}", "arrow", f"{target} is a table, and writing it")
    import pyarrow as pa

    columns: dict[str, Any] = {"episode": demos.episode, "step": demos.step}
    for name, value in (("obs", demos.obs), ("next_obs", demos.next_obs), ("action", demos.actions)):
        if isinstance(value, dict) or value.ndim > 2:
            raise ValueError(f"{target} is a table, but {name} is not one vector per step: write an .npz or .hdf5 file.")
        array = np.asarray(value)
        columns |= {name: array} if array.ndim == 1 else {f"{name}_{i}": array[:, i] for i in range(array.shape[1])}
    columns |= {"terminated": demos.terminated, "truncated": demos.truncated}
    if demos.rewards is not None:
        columns["reward"] = demos.rewards
    (module.write_csv if csv else module.write_table)(pa.table(columns), target)

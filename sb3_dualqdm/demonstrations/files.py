"""Files as data: npz archives that are never unpickled, imitation's folders read as plain Arrow columns, and hashes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sb3_dualqdm.demonstrations.types import FORMAT_KEY, FORMAT_VERSION, Demonstrations, Obs

MAX_MEMBER_BYTES = 64 * 2**30
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Npz(Mapping):
    """
    An ``.npz`` archive as a mapping that reads a member when asked for it, never unpickles, and distrusts declared sizes.

    :param path: the file.
    :raises ValueError: if it is not a zip archive; on reading a member, if it holds objects or declares an impossible size.
    """

    def __init__(self, path: Path):
        self.path = path
        if not zipfile.is_zipfile(path):
            raise ValueError(
                f"{path} is not an .npz file, the only single-file format read here (pickles can execute code): "
                "save it with numpy.savez or Demonstrations.save."
            )
        with zipfile.ZipFile(path) as archive:
            self._members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def __getitem__(self, key: str) -> np.ndarray:
        info = self._members[key]
        with zipfile.ZipFile(self.path) as archive, archive.open(info) as member:
            try:
                shape, _, dtype = _HEADERS[np.lib.format.read_magic(member)](member)
                self._check_size(key, math.prod(shape) * dtype.itemsize, info.file_size, dtype.hasobject)
                member.seek(0)
                return np.lib.format.read_array(member, allow_pickle=False)
            except _RefusedError as error:
                raise ValueError(*error.args) from None
            except (KeyError, ValueError, EOFError, zipfile.BadZipFile, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
                raise ValueError(f"the array {key!r} of {self.path} cannot be read ({error}): write the file again.") from None

    def _check_size(self, key: str, size: int, stored: int, has_objects: bool) -> None:
        if has_objects:
            raise _RefusedError(
                f"the array {key!r} of {self.path} holds pickled objects, which are never loaded because they can execute "
                "code: store plain numeric arrays."
            )
        if size > min(MAX_MEMBER_BYTES, stored):
            raise _RefusedError(
                f"the array {key!r} of {self.path} declares {size} bytes, but at most {min(MAX_MEMBER_BYTES, stored)} can be "
                "right for this file: write the file again, or split it."
            )

    def __contains__(self, key: object) -> bool:  # Mapping's own would read the member
        return key in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class _RefusedError(Exception):
    """A member that must not be read."""


def find_obs(arrays: Mapping[str, Any], *names: str) -> Any:
    """
    Observations of a mapping: an array under one of the names, or a dict of the entries ``"<name>/<key>"``.

    :param arrays: named arrays.
    :param names: names to try, in order.
    :return: the array, the dict, or None.
    """
    for name in names:
        if name in arrays:
            return arrays[name]
        if parts := {key.removeprefix(f"{name}/"): arrays[key] for key in arrays if str(key).startswith(f"{name}/")}:
            return parts
    return None


def read_own_npz(path: str | os.PathLike[str]) -> Demonstrations:
    """See :meth:`Demonstrations.load`."""
    file = Path(path).expanduser()
    if not file.exists():
        raise FileNotFoundError(f"there is no demonstration file {str(path)!r}: check the path (relative to {Path.cwd()}).")
    arrays = Npz(file)
    if FORMAT_KEY not in arrays:
        raise ValueError(
            f"{str(path)!r} has the keys {sorted(arrays)}, but not those of Demonstrations.save: use load_demonstrations."
        )
    return from_own(arrays, os.fspath(path))


def from_own(arrays: Npz, spec: str) -> Demonstrations:
    """
    Demonstrations from an archive that :meth:`Demonstrations.save` wrote.

    :param arrays: the archive.
    :param spec: what the user called it.
    :return: the demonstrations.
    :raises ValueError: if it is incomplete or of another version.
    """
    version = int(arrays[FORMAT_KEY])
    if version != FORMAT_VERSION:
        raise ValueError(f"{spec!r} has the format version {version} but {FORMAT_VERSION} is read here: update sb3-dualqdm.")
    needed = ("actions", "terminated", "truncated", "episode", "step", "episode_lengths", "episode_indices", "reinterpreted")
    obs: Obs | None = find_obs(arrays, "obs")
    next_obs: Obs | None = find_obs(arrays, "next_obs")
    missing = [key for key in ("source", "subsampling", *needed) if key not in arrays]
    if obs is None or next_obs is None or missing:
        raise ValueError(f"{spec!r} is incomplete (keys {sorted(arrays)}): write it again with Demonstrations.save.")
    return Demonstrations(
        obs=obs,
        next_obs=next_obs,
        **{key: arrays[key] for key in needed},
        rewards=arrays["rewards"] if "rewards" in arrays else None,
        episode_returns=arrays["episode_returns"] if "episode_returns" in arrays else None,
        source=str(arrays["source"]),
        subsampling=int(arrays["subsampling"]),
        spec=spec,
        sha256=file_sha256(arrays.path),
    )


def data_files(folder: Path) -> list[Path]:
    """
    Data files of a folder written by imitation, in the order of its ``state.json``.

    :param folder: the folder.
    :return: their paths.
    :raises ValueError: if it is not such a folder.
    """
    try:
        names = [entry["filename"] for entry in json.loads((folder / "state.json").read_text())["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        names = []
    # plain names only: a listed path must not lead out of the folder
    files = [folder / name for name in names if isinstance(name, str) and Path(name).name == name]
    if not files or len(files) < len(names) or not all(file.is_file() for file in files):
        raise ValueError(
            f"the folder {folder} has no state.json that lists its data files, as imitation's serialize.save writes it: "
            "pass such a folder, or an .npz file."
        )
    return files


def file_sha256(path: str | os.PathLike[str]) -> str:
    """
    Hash a file's content, or for a folder its data files' names and contents in order.

    :param path: a file, or a folder written by imitation.
    :return: hexadecimal SHA-256.
    """
    path = Path(path).expanduser()
    digest = hashlib.sha256()
    for file in data_files(path) if path.is_dir() else [path]:
        if path.is_dir():
            digest.update(file.name.encode())
        with open(file, "rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def read_folder(folder: Path, spec: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """
    Columns of a folder written by imitation, its infos left alone (imitation would decode them into objects).

    :param folder: the folder.
    :param spec: what the user called it.
    :return: flat values of obs, acts, terminal and, if stored, rews; for all but terminal also the rows per episode (E,).
    :raises ImportError: without pyarrow.
    :raises ValueError: if the folder is not readable.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(
            f"{spec!r} is a folder written by imitation, and reading it needs pyarrow, which cannot be imported ({error}): "
            'pip install "sb3-dualqdm[arrow]".'
        ) from None
    columns: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"obs": [], "acts": [], "terminal": [], "rews": []}
    names: list[str] = []
    for file in data_files(folder):
        try:
            with pa.memory_map(str(file)) as stream, pa.ipc.open_stream(stream) as reader:
                names = reader.schema.names
                for batch in reader:
                    for name in columns.keys() & set(names):
                        columns[name].append(_nested(pa, batch.column(names.index(name)), f"{name} of {file}"))
        except pa.ArrowInvalid as error:
            raise ValueError(f"{file} is not an Arrow stream ({error}): write the folder again.") from None
    found = {name: chunks for name, chunks in columns.items() if chunks}
    if missing := {"obs", "acts", "terminal"} - found.keys():
        raise ValueError(
            f"the folder {folder} has the columns {names} but no {' or '.join(sorted(missing))}: pass a folder written by "
            "imitation's serialize.save, with at least one trajectory."
        )
    values = {name: concatenate([chunk[1] for chunk in chunks], f"{name} of {spec}") for name, chunks in found.items()}
    counts = {name: np.concatenate([chunk[0] for chunk in found[name]]) for name in found.keys() - {"terminal"}}
    n_acts = counts["acts"]
    if values["terminal"].shape != n_acts.shape or not np.array_equal(counts.get("rews", n_acts), n_acts):
        raise ValueError(f"the folder {folder} has columns of different lengths: write it with imitation's serialize.save.")
    return values, counts


def _nested(pa: Any, array: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows per episode (the outermost lists), and all values below them as one array (rows, \\*shape)."""
    levels = []
    while True:
        if array.null_count:
            raise ValueError(f"{name} has missing values, but every step needs one: write the folder again.")
        if pa.types.is_fixed_size_list(array.type):
            levels.append(np.full(len(array), array.type.list_size, dtype=np.int64))
        elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            levels.append(array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64))
        else:
            break
        array = array.flatten()
    shape = [int(counts[0]) if len(counts) else 0 for counts in levels[1:]]
    if any((counts != size).any() for counts, size in zip(levels[1:], shape)):
        raise ValueError(f"{name} has rows of different shapes, but every step needs the same one: write the folder again.")
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{name} has the type {array.type} but numbers are expected: write the folder again.")
    return (levels or [np.empty(0, dtype=np.int64)])[0], values.reshape(-1, *shape)


def concatenate(parts: list[np.ndarray], name: str) -> np.ndarray:
    """
    Lay the arrays of several episodes end to end.

    :param parts: arrays of shape (n, \\*shape).
    :param name: what they are, for the error.
    :return: one array.
    :raises ValueError: if their shapes per row differ.
    """
    if len(shapes := sorted({part.shape[1:] for part in parts})) > 1:
        raise ValueError(f"{name} has the shapes {shapes[0]} and {shapes[1]} per step: use episodes of one environment.")
    return np.concatenate(parts)

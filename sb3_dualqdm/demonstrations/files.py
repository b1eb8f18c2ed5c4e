"""Files as data: npz archives that are never unpickled, imitation's folders read as plain Arrow columns, and hashes."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sb3_dualqdm.demonstrations.successors import Successors
from sb3_dualqdm.demonstrations.types import FORMAT_KEY, FORMAT_VERSION, Demonstrations, last_rows, obs_arrays

MAX_MEMBER_BYTES = 64 * 2**30
# What is stored may unpack to 64 MiB, and beyond that to 200 times its size: real recordings stay far below.
FREE_BYTES = 64 * 2**20
MAX_RATIO = 200


def check_size(name: str, size: int, stored: int, most: int = MAX_MEMBER_BYTES) -> None:
    """
    Refuse an array before memory is taken for it if what a file stores cannot be that large.

    :param name: what it is, for the error.
    :param size: bytes it declares.
    :param stored: bytes stored for it.
    :param most: a further limit, default that of a single array.
    :raises ValueError: if the declared size is impossible or out of proportion.
    """
    limit = min(MAX_MEMBER_BYTES, most, FREE_BYTES + MAX_RATIO * stored)
    if size > limit:
        raise RefusedError(
            f"{name} declares {size} bytes, but at most {limit} can be right for this file: write the file again, without "
            "compression if it is so repetitive, or split it."
        )


class Budget:
    """
    What all parts of one source may unpack to together: however many parts there are, the proportion to the disk is the same.

    :param stored: bytes that the source takes on the disk.
    """

    def __init__(self, stored: int):
        self._left = FREE_BYTES + MAX_RATIO * stored
        self._known: set[str] = set()

    def take(self, name: str, size: int, stored: int, most: int = MAX_MEMBER_BYTES) -> None:
        """
        Refuse a part before memory is taken for it if it, or all parts so far, cannot be that large.

        :param name: what it is, for the error; a part that is read again counts once.
        :param size: bytes it declares.
        :param stored: bytes stored for it.
        :param most: a further limit, default that of a single array.
        :raises ValueError: if the size is impossible or out of proportion.
        """
        if name not in self._known:
            check_size(name, size, stored, min(most, self._left))
            self._left -= size
            self._known.add(name)


def read_header(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    """
    Header of an ``.npy`` file.

    :param file: the open file; afterwards, it is where the data begin.
    :return: shape and type.
    """
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[np.lib.format.read_magic(file)](file)
    return shape, dtype


class RefusedError(ValueError):
    """A file, or a part of it, that must not be read; its text is one sentence."""


@contextmanager
def reading(name: str) -> Iterator[None]:
    """
    Whatever a library raises for a damaged file, in one sentence.

    :param name: what is read, the beginning of the sentence.
    :raises ValueError: for any error inside, apart from ours.
    """
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise RefusedError(f"{name} cannot be read ({text[:200]}): write the file again.") from None


class Npz(Mapping):
    """
    An ``.npz`` archive as a mapping that reads a member when asked for it, never unpickles, and distrusts declared sizes.

    :param path: the file.
    :raises ValueError: if it is not a zip archive; on reading a member, if it holds objects or declares an impossible size.
    """

    reads_anew = True  # every array belongs to who asked for it

    def __init__(self, path: Path):
        self.path = path
        with reading(str(path)), zipfile.ZipFile(path) as archive:
            self._members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            self._budget = Budget(path.stat().st_size)

    def __getitem__(self, key: str) -> np.ndarray:
        info, name = self._members[key], f"the array {key!r} of {self.path}"
        shape, dtype = self._read(info, name, read_header)
        if dtype.hasobject:
            raise ValueError(
                f"{name} holds pickled objects, which are never loaded because they can execute code: store plain numeric "
                "arrays."
            )
        self._budget.take(name, math.prod(shape) * dtype.itemsize, info.compress_size, info.file_size)
        return self._read(info, name, lambda file: np.lib.format.read_array(file, allow_pickle=False))

    def _read(self, info: zipfile.ZipInfo, name: str, function: Callable[[Any], Any]) -> Any:
        with reading(name), zipfile.ZipFile(self.path) as archive, archive.open(info) as member:
            return function(member)

    def __contains__(self, key: object) -> bool:  # Mapping's own would read the member
        return key in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


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
    if version not in (1, FORMAT_VERSION):
        raise ValueError(f"{spec!r} has the format version {version} but {FORMAT_VERSION} is read here: update sb3-dualqdm.")
    needed = ("actions", "terminated", "truncated", "episode", "step", "episode_lengths", "episode_indices", "reinterpreted")
    obs, following, final = (find_obs(arrays, name) for name in ("obs", "next_obs", "final_obs"))
    missing = [key for key in ("source", "subsampling", *needed) if key not in arrays]
    parts = [obs_arrays(part) for part in (following, final) if part is not None]
    if obs is None or missing or sorted(key for part in parts for key in part) != sorted(obs_arrays(obs)):
        raise ValueError(f"{spec!r} is incomplete (keys {sorted(arrays)}): write it again with Demonstrations.save.")
    fields: dict[str, Any] = {key: arrays[key] for key in needed}
    if fields["episode"].ndim != 1 or not len(fields["episode"]):
        raise ValueError(f"{spec!r} has no episode index of shape (T,): write it again with Demonstrations.save.")
    fields |= {key: arrays[key] if key in arrays else None for key in ("rewards", "episode_returns", "seeds", "single_flag")}
    last, next_obs = last_rows(fields["episode"]), {}
    for key, array in obs_arrays(obs).items():
        stored = next(part[key] for part in parts if key in part)
        chained = final is not None and key in obs_arrays(final)
        next_obs[key] = Successors(array, stored, last) if chained else stored
    return Demonstrations(
        obs=obs,
        next_obs=next_obs if isinstance(obs, dict) else next_obs[""],
        **fields,
        source=str(arrays["source"]),
        subsampling=int(arrays["subsampling"]),
        notes=tuple(arrays["notes"].tolist()) if "notes" in arrays else (),
        spec=spec,
        sha256=file_sha256(arrays.path),
    )


def optional(module: str, extra: str, what: str) -> Any:
    """
    Import a package that only some formats need.

    :param module: its name.
    :param extra: the extra of this package that installs it.
    :param what: what needs it, the beginning of a sentence.
    :return: the module.
    :raises ImportError: with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'{what} needs {module.partition(".")[0]}, which cannot be imported ({error}): pip install "sb3-dualqdm[{extra}]".'
        ) from None


def data_files(folder: Path) -> list[Path]:
    """
    Data files of a folder: those that imitation's ``state.json`` lists, in its order, else every file in it, sorted.

    :param folder: the folder.
    :return: their paths.
    :raises ValueError: if ``state.json`` does not list files of the folder.
    """
    if not (folder / "state.json").is_file():
        return sorted(file for file in folder.rglob("*") if file.is_file())
    try:
        names = [entry["filename"] for entry in json.loads((folder / "state.json").read_text())["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        names = []
    # plain names only: a listed path must not lead out of the folder
    files = [folder / name for name in names if isinstance(name, str) and Path(name).name == name]
    if not files or len(files) < len(names) or not all(file.is_file() for file in files):
        raise ValueError(
            f"the folder {folder} has no state.json that lists its data files, as imitation's serialize.save writes it: "
            "write the folder again."
        )
    return files


def file_sha256(path: str | os.PathLike[str]) -> str:
    """
    Hash a file's content, or for a folder the names and contents of its data files in order.

    :param path: a file, or a folder of demonstrations.
    :return: hexadecimal SHA-256.
    """
    path = Path(path).expanduser()
    digest = hashlib.sha256()
    for file in data_files(path) if path.is_dir() else [path]:
        if path.is_dir():
            digest.update(file.relative_to(path).as_posix().encode())
        with open(file, "rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


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

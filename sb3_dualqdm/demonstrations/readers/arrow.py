"""Nested Arrow columns as arrays, and the folders that imitation writes; strings in them are never decoded into objects."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sb3_dualqdm.demonstrations.files import Budget, RefusedError, concatenate, data_files, optional, reading
from sb3_dualqdm.demonstrations.readers.arrays import Episode, join
from sb3_dualqdm.demonstrations.types import Demonstrations


def from_folder(path: Path, *, source: str, **options: Any) -> Demonstrations:
    """
    Read a folder written by imitation, or its Parquet form on a hub; infos are left alone (imitation would decode them into
    objects).

    :param path: the folder.
    :param source: what the user called it.
    :param options: see :func:`sb3_dualqdm.demonstrations.readers.arrays.join`.
    :return: the demonstrations.
    :raises ImportError: without pyarrow.
    :raises ValueError: if the folder is not readable.
    """
    values, counts = _columns(path, source)
    ends = {name: np.cumsum(count) for name, count in counts.items()}

    def rows(name: str, i: int) -> np.ndarray:
        return values[name][ends[name][i] - counts[name][i] : ends[name][i]]

    episodes = (
        Episode(
            obs=rows("obs", i),
            acts=rows("acts", i),
            rews=rows("rews", i) if "rews" in values else None,
            terminated=bool(terminal),
            truncated=False,
            single_flag=True,
        )
        for i, terminal in enumerate(values["terminal"])
    )
    return join(episodes, source=source, **options)


def _columns(folder: Path, spec: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Flat values of obs, acts, terminal and, if stored, rews; for all but terminal also the rows per episode (E,)."""
    columns: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"obs": [], "acts": [], "terminal": [], "rews": []}
    names: list[str] = []
    for file, batch in _batches(folder, spec):
        names = batch.schema.names
        with reading(str(file)):
            for name in columns.keys() & set(names):
                columns[name].append(nested(batch.column(names.index(name)), f"{name} of {file}"))
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


def parquet_files(folder: Path) -> list[Path]:
    """
    :param folder: any folder.
    :return: its Parquet files where a hub keeps them, sorted.
    """
    return sorted([*folder.glob("*.parquet"), *folder.glob("data/*.parquet")])


def _batches(folder: Path, spec: str) -> Iterator[tuple[Path, Any]]:
    """Record batches of trajectories, with the file each is from."""
    pa = optional("pyarrow", "arrow", f"{spec!r} is a folder written by imitation, and reading it")
    if (folder / "state.json").is_file():
        files = data_files(folder)
        budget = Budget(sum(file.stat().st_size for file in files))
        for file in files:
            with reading(str(file)), pa.memory_map(str(file)) as stream:
                size = sum(_unpacked_size(message) for message in pa.ipc.MessageReader.open_stream(stream))
                budget.take(str(file), size, file.stat().st_size)
                stream.seek(0)
                with pa.ipc.open_stream(stream) as reader:
                    yield from ((file, batch) for batch in reader)
        return
    parquet = optional("pyarrow.parquet", "arrow", f"{spec!r} has Parquet files, and reading them")
    files = parquet_files(folder)
    budget = Budget(sum(file.stat().st_size for file in files))
    for file in files:
        with reading(str(file)), parquet.ParquetFile(file) as reader:
            names = [name for name in ("obs", "acts", "terminal", "rews") if name in reader.schema_arrow.names]
            budget.take(str(file), parquet_size(reader, names, str(file)), file.stat().st_size)
            yield from ((file, batch) for batch in reader.iter_batches(columns=names))


def parquet_size(file: Any, names: list[str], label: str, texts: Collection[str] = ()) -> int:
    """
    :param file: an open ``pyarrow.parquet.ParquetFile``.
    :param names: columns that are to be read.
    :param label: what the file is, for the error.
    :param texts: those that may hold texts, since they are read as dictionaries, default none.
    :return: bytes that they need at most.
    :raises ValueError: if one holds texts, of which a file says nothing.
    """
    size = 0
    for group in (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)):
        for i, column in ((i, group.column(i)) for i in range(group.num_columns)):
            # pyarrow reads by the beginnings of paths, too
            if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in names):
                long = column.physical_type.endswith("BYTE_ARRAY") and not 0 < file.schema.column(i).length <= 8
                # texts that share their beginnings need more than is stored, in a dictionary too
                if long and (column.path_in_schema not in texts or "DELTA_BYTE_ARRAY" in column.encodings):
                    name = f"{column.path_in_schema} of {label}"
                    raise RefusedError(f"{name} holds texts but numbers are expected: store numbers.")
                # runs of equal values take no space, so their number counts too
                size += max(column.total_uncompressed_size, 8 * column.num_values)
    return size


def _unpacked_size(message: Any) -> int:
    """Bytes that the compressed body of an IPC message declares; others are read where they lie."""
    if message.type not in ("record batch", "dictionary"):
        return 0
    data, body = message.metadata.to_pybytes(), message.body

    def at(where: int, kind: str = "I") -> int:
        return struct.unpack_from(f"<{kind}", data, where)[0]

    def field(table: int, number: int) -> int:
        """Where a flatbuffers table keeps a field, 0 if it has its default."""
        offsets = table - at(table, "i")
        offset = at(offsets + 4 + 2 * number, "H") if 4 + 2 * number < at(offsets, "H") else 0
        return offset and table + offset

    def follow(where: int) -> int:
        return where + at(where)

    batch = follow(field(follow(0), 2))
    if message.type == "dictionary":
        batch = follow(field(batch, 1))
    if not field(batch, 3) or not field(batch, 2):  # no compression, or no buffers
        return 0
    vector = follow(field(batch, 2))
    size = 0
    for i in range(at(vector)):
        offset, length = at(vector + 4 + 16 * i, "q"), at(vector + 12 + 16 * i, "q")
        if length:  # each buffer begins with its true size, -1 if it is stored as it is
            size += max(length, struct.unpack_from("<q", body, offset)[0])
    return size


def innermost(kind: Any) -> Any:
    """
    :param kind: a pyarrow type.
    :return: the type of the numbers in it, inside any lists; None if there are none.
    """
    from pyarrow import types

    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) else None


def nested(array: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """
    Lists of lists of numbers as one array.

    :param array: pyarrow array.
    :param name: what it is, for the error.
    :return: rows of each outermost list (E,), empty if there is none; all values below them, shape (rows, \\*shape).
    :raises ValueError: if values are missing or not numbers, or rows differ in shape.
    """
    from pyarrow import types

    if innermost(array.type) is None:  # before it is looked at: an array of a few bytes may stand for a large one
        raise RefusedError(f"{name} has the type {array.type} but numbers are expected: store numbers.")
    array.validate(full=True)  # offsets of a stranger's file may point anywhere
    levels = []
    while True:
        if array.null_count:
            raise RefusedError(f"{name} has missing values, but every step needs one: fill them in, or leave the rows out.")
        if types.is_fixed_size_list(array.type) and array.type.list_size > 0:
            levels.append(np.full(len(array), array.type.list_size, dtype=np.int64))
        elif types.is_list(array.type) or types.is_large_list(array.type):
            levels.append(array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64))
        else:
            break
        array = array.flatten()
    shape = [int(counts[0]) if len(counts) else 0 for counts in levels[1:]]
    if any((counts != size).any() for counts, size in zip(levels[1:], shape)):
        raise RefusedError(f"{name} has rows of different shapes, but every step needs the same one: store equal ones.")
    values = array.to_numpy(zero_copy_only=False)
    return (levels or [np.empty(0, dtype=np.int64)])[0], values.reshape(-1, *shape)

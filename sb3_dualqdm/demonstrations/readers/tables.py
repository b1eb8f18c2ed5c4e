"""Tables with a row per step: pandas, Parquet, CSV, and the Parquet folders of LeRobot."""

from __future__ import annotations

import json
import operator
import re
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sb3_dualqdm.demonstrations.files import Budget, RefusedError, concatenate, optional, reading
from sb3_dualqdm.demonstrations.readers.arrays import ALIASES, Episode, compact, cut_at_breaks, join
from sb3_dualqdm.demonstrations.readers.arrow import innermost, nested, parquet_size
from sb3_dualqdm.demonstrations.types import Demonstrations, Obs, map_obs

# A column is a field, or a part of one (obs_0, obs_1, ... are numbers; obs.x, obs.y keys); the longest name wins.
_COLUMNS = {
    **{
        field: aliases + tuple(alias.removesuffix("s") for alias in aliases)
        for field, aliases in ALIASES.items()
        if field not in ("indices", "lengths")  # no column of a table
    },
    "episode": ("episode", "episode_id", "episode_index"),
    "step": ("step", "timestep", "frame_index", "t"),
}
_FIELD_OF = {alias: field for field, aliases in _COLUMNS.items() for alias in aliases}
_PART = re.compile(
    rf"(?P<name>{'|'.join(sorted(_FIELD_OF, key=len, reverse=True))})(?:[._](?P<number>\d+)|\[(?P<index>\d+)\]|\.(?P<key>.+))?"
)
_FLAGS = ("done", "terminated", "truncated", "episode_starts")
_FLAG_TEXTS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


def is_table(source: Any) -> bool:
    """
    :param source: anything.
    :return: whether it is a pandas or pyarrow table.
    """
    return type(source).__module__.partition(".")[0] in ("pandas", "pyarrow") and hasattr(source, "columns")


def from_table(table: Any, *, source: str, **options: Any) -> Demonstrations:
    """
    Read a pandas ``DataFrame`` or pyarrow ``Table`` (see the documentation for the names of columns).

    :param table: the table.
    :param source: what the user called it.
    :param options: see :func:`sb3_dualqdm.demonstrations.readers.arrays.join`.
    :return: the demonstrations.
    :raises ValueError: if columns are missing, unknown values are left in them, or episodes are not told apart.
    """
    columns: dict[str, np.ndarray | None] = {}
    if hasattr(table, "column_names"):
        for i, name in enumerate(table.column_names):
            columns[str(name)] = _from_arrow(table.column(i), f"{name} of {source}", _field_of(str(name)))
    else:
        for name in table.columns:
            columns[str(name)] = _from_pandas(table[name], f"{name} of {source}", _field_of(str(name)))
    return _from_columns({name: array for name, array in columns.items() if array is not None}, source, options)


def _field_of(column: str) -> str | None:
    """What a column is, or is a part of; None if its name says nothing, so that it is ignored."""
    match = _PART.fullmatch(column)
    return _FIELD_OF[match["name"]] if match else None


def _from_arrow(column: Any, name: str, field: str | None) -> np.ndarray | None:
    inner = innermost(column.type)
    if inner is None:
        return None if field is None else _from_arrow_texts(column, name, field)
    if inner == column.type:  # missing numbers become NaN
        chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks]
        return concatenate(chunks, name) if chunks else np.empty(0)
    parts = []
    for chunk in column.chunks:
        counts, values = nested(chunk, name)
        if len(counts) and (counts != counts[0]).any():
            raise ValueError(f"{name} has rows of different shapes, but every step needs the same one: store equal ones.")
        parts.append(values.reshape(len(counts), int(counts[0]) if len(counts) else 0, *values.shape[1:]))
    return concatenate(parts, name) if parts else np.empty(0)


def _from_arrow_texts(column: Any, name: str, field: str) -> np.ndarray:
    from pyarrow import types

    if types.is_nested(column.type):
        raise RefusedError(f"{name} has the type {column.type} but numbers are expected: store numbers.")
    if types.is_null(column.type) or not len(column):
        return np.full(len(column), np.nan)
    # each text is decoded once, however often it occurs
    chunks = column.dictionary_encode().unify_dictionaries().chunks
    codes = np.concatenate([chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks])
    return _from_texts(codes.astype(np.int64), chunks[0].dictionary.to_pylist(), name, field)


def _from_pandas(series: Any, name: str, field: str | None) -> np.ndarray | None:
    array = series.to_numpy()
    if array.dtype.kind == "O" and len(array) and isinstance(array[0], (list, tuple, np.ndarray)):
        try:
            array = np.stack([np.asarray(row) for row in array])
        except ValueError:
            raise ValueError(
                f"{name} has rows of different shapes, but every step needs the same one: store equal ones."
            ) from None
    if array.dtype.kind in "biuf":
        return array
    gaps = series.isna().to_numpy()
    # whole numbers or bools with gaps: None, or the NA of pandas' own types
    if array.dtype.kind == "O" and not any(isinstance(value, str) for value in array):
        try:
            return np.array([np.nan if gap else value for value, gap in zip(array, gaps)], dtype=float)
        except (TypeError, ValueError):
            pass
    if field is None:
        return None
    if array.ndim > 1:
        raise ValueError(f"{name} has the type {array.dtype} but numbers are expected: store numbers.")
    seen: dict[Any, int] = {}
    try:
        codes = [-1 if gap else seen.setdefault(value, len(seen)) for value, gap in zip(series, gaps)]
    except TypeError:  # not hashable, such as dicts
        raise ValueError(f"{name} holds the type {type(array[0]).__name__} but numbers are expected: store numbers.") from None
    return _from_texts(np.array(codes, dtype=np.int64), list(seen), name, field)


def _from_texts(codes: np.ndarray, values: list[Any], name: str, field: str) -> np.ndarray:
    """
    A column that holds something else than numbers, as numbers.

    :param codes: which of the values each row has, -1 where it is missing, shape (T,).
    :param values: the different values, None where they are missing, too.
    :param name: what the column is, for the error.
    :param field: what it means.
    :return: for episodes, their numbers in order of appearance; else floats, NaN where they are missing.
    :raises ValueError: if a value is no number (or no flag).
    """
    missing = np.array([*(value is None for value in values), True])[codes]
    if field == "episode":
        if missing.any():
            raise ValueError(f"{name} is missing in {int(missing.sum())} of {len(codes)} rows: name the episode of every row.")
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[inverse]
    numbers = np.full(len(values) + 1, np.nan)  # the last one is that of missing values
    expected = "true and false, yes and no, or 1 and 0" if field in _FLAGS else "numbers"
    for i in np.unique(codes[~missing]):
        text = str(values[i]).strip().lower()
        try:
            numbers[i] = _FLAG_TEXTS[text] if field in _FLAGS and text in _FLAG_TEXTS else float(values[i])
        except (TypeError, ValueError):
            found = str(values[i])[:40]
            raise ValueError(f"{name} holds {found!r} but {expected} are expected: store nothing else in it.") from None
    return numbers[codes]


def _from_columns(columns: dict[str, np.ndarray], source: str, options: dict[str, Any]) -> Demonstrations:
    fields = _fields(columns, source)
    if missing := [name for name in ("obs", "acts") if name not in fields]:
        raise ValueError(
            f"{source} has the columns {sorted(columns)} but none for {' and '.join(missing)}: name them obs_0, obs_1, ..., "
            "act or action_0, ..., reward, terminated, truncated (or done), episode and step."
        )
    singles: dict[str, np.ndarray] = {}
    for name in ("rews", "done", "terminated", "truncated", "episode_starts", "episode", "step"):
        if name in fields:
            singles[name] = fields[name]
            if isinstance(singles[name], dict) or singles[name].size != len(singles[name]):
                raise ValueError(f"{source} has several columns for {_COLUMNS[name][0]}, but it is one number: keep one.")
            singles[name] = singles[name].reshape(-1)
    n = len(next(iter(columns.values())))
    if not n:
        raise ValueError(f"{source} has no row, but at least 1 step is needed: record an episode first.")
    if isinstance(fields["acts"], dict):
        raise ValueError(f"{source} has the action keys {sorted(fields['acts'])}, but an action is one vector: number them.")
    groups, notes = _episodes(fields, singles, n, source)
    return join(_rows(fields, singles, groups, source), source=source, notes=notes, **options)


def _fields(columns: dict[str, np.ndarray], source: str) -> dict[str, Obs]:
    """Columns put together under our names."""
    parts: dict[str, dict[Any, np.ndarray]] = {}
    for column, array in columns.items():
        if match := _PART.fullmatch(column):
            number = match["number"] or match["index"]
            part = match["key"] if number is None else int(number)
            if part in parts.setdefault(_FIELD_OF[match["name"]], {}):
                raise ValueError(f"{source} has two columns for {match['name']}, one of them {column!r}: keep one of them.")
            parts[_FIELD_OF[match["name"]]][part] = array
    fields: dict[str, Obs] = {}
    for field, found in parts.items():
        if list(found) == [None]:
            fields[field] = found[None]
        elif all(isinstance(part, int) for part in found):
            if sorted(found) != list(range(len(found))) or any(array.ndim > 1 for array in found.values()):
                raise ValueError(
                    f"{source} has the {_COLUMNS[field][0]} columns {sorted(found)}, but one number per column, counted from "
                    "0 without a gap, is needed: add or rename columns."
                )
            fields[field] = np.stack([found[i] for i in range(len(found))], axis=1)
        elif all(isinstance(part, str) for part in found):
            fields[field] = found
        else:
            raise ValueError(f"{source} mixes ways to name the columns of {_COLUMNS[field][0]}: use numbers or keys.")
    return fields


def _episodes(
    fields: dict[str, Obs], singles: dict[str, np.ndarray], n: int, source: str
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Rows of each episode, in the order of its steps, and what was noticed."""
    notes: tuple[str, ...] = ()
    for name, array in singles.items():
        if name in ("episode", "step") and not np.array_equal(array, np.round(array.astype(float))):
            raise ValueError(f"{source} has {name} values that are not whole numbers: number the {name}s.")
    if "episode" in singles:
        order = np.lexsort((np.arange(n), singles["step"], singles["episode"])) if "step" in singles else None
        order = np.argsort(singles["episode"], kind="stable") if order is None else order
        cuts = np.flatnonzero(np.diff(singles["episode"][order])) + 1
    else:
        order = np.arange(n)
        ends = np.zeros(n, dtype=bool)
        for name in ("done", "terminated", "truncated"):
            if name in singles:
                ends |= np.nan_to_num(singles[name].astype(float)) > 0
        if not ends.any() and "step" not in singles:
            warnings.warn(f"{source} has no episode, step or flags: its episodes are read as cut off.", stacklevel=6)
        if "step" in singles:
            ends[:-1] |= np.diff(singles["step"]) <= 0
        if "episode_starts" in singles:
            ends[:-1] |= singles["episode_starts"][1:] > 0
        ends[-1] = True
        if "next_obs" in fields:
            cuts_known = bool(singles.keys() & {"truncated", "episode_starts", "step"})
            notes = cut_at_breaks(ends, fields["obs"], fields["next_obs"], cuts_known, source)
        cuts = np.flatnonzero(ends[:-1]) + 1
    groups = np.split(order, cuts)
    if "step" in singles:
        for group in groups:
            if (np.diff(singles["step"][group]) != 1).any():
                raise ValueError(f"{source} has steps that are missing or repeated in an episode: number them one by one.")
    return groups, notes


def _rows(fields: dict[str, Obs], singles: dict[str, np.ndarray], groups: list[np.ndarray], source: str) -> Iterator[Episode]:
    acts, next_obs = fields["acts"], fields.get("next_obs")
    without = np.isnan(acts).reshape(len(acts), -1).all(axis=1) if acts.dtype.kind == "f" else np.zeros(len(acts), dtype=bool)
    for i, group in enumerate(groups):
        # a last row without an action holds the final observation
        n = len(group) - bool(len(group) > 1 and without[group[-1]] and next_obs is None)
        flags = {}
        for name in ("done", "terminated", "truncated"):
            if name in singles:
                column = singles[name][group].astype(float)
                column[n:] = np.nan_to_num(column[n:])
                if not np.isin(column, (0, 1)).all():
                    raise ValueError(f"episode {i} of {source} has {name} values other than 0 and 1: store one bool each.")
                if column[: n - 1].any():
                    raise ValueError(f"episode {i} of {source} goes on after a step that is {name}: split it there.")
                flags[name] = bool(column[n - 1 :].any())
        truncated = flags.get("truncated", False)
        rows, steps = compact(group), compact(group[:n])
        yield Episode(
            obs=map_obs(operator.itemgetter(rows), fields["obs"]),
            acts=acts[steps],
            rews=singles["rews"][steps] if "rews" in singles else None,
            terminated=flags.get("terminated", flags.get("done", False) and not truncated),
            truncated=truncated,
            single_flag="terminated" not in flags and "truncated" not in flags,
            next_obs=None if next_obs is None else map_obs(operator.itemgetter(steps), next_obs),
        )


def from_csv(path: Path, *, source: str, **options: Any) -> Demonstrations:
    """
    Read a CSV (or TSV) file with a header line.

    :param path: the file.
    :param source: what the user called it.
    :param options: see :func:`from_table`.
    :return: the demonstrations.
    :raises ValueError: if it cannot be read.
    :raises ImportError: without pyarrow.
    """
    csv = optional("pyarrow.csv", "arrow", f"{source!r} is a table, and reading it")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with reading(str(path)):
        table = csv.read_csv(path, parse_options=csv.ParseOptions(delimiter=delimiter))
    return from_table(table, source=source, **options)


def _parquet(path: Path, spec: str, budget: Budget, texts_read: bool = True, left_out: Collection[str] = ()) -> Any:
    parquet = optional("pyarrow.parquet", "arrow", f"{spec!r} is a Parquet table, and reading it")
    with reading(str(path)):
        schema = parquet.read_schema(path)
        names = [
            field.name
            for field in schema
            if field.name not in left_out
            and (
                _PART.fullmatch(field.name)
                or (field.name.startswith(("observation", "next.")) and innermost(field.type) is not None)
            )
        ]
        kinds = {name: schema.field(name).type for name in names if texts_read}
        texts = [name for name, kind in kinds.items() if innermost(kind) is None and not kind.num_fields]
        # as a dictionary, a text is unpacked once, however many rows repeat it
        file = parquet.ParquetFile(path, read_dictionary=texts)
        budget.take(str(path), parquet_size(file, names, str(path), texts), path.stat().st_size)
        return file.read(columns=names)


def from_parquet(path: Path, *, source: str, **options: Any) -> Demonstrations:
    """
    Read a Parquet file.

    :param path: the file.
    :param source: what the user called it.
    :param options: see :func:`from_table`.
    :return: the demonstrations.
    :raises ValueError: if it cannot be read.
    :raises ImportError: without pyarrow.
    """
    return from_table(_parquet(path, source, Budget(path.stat().st_size)), source=source, **options)


def from_lerobot(path: Path, *, source: str, **options: Any) -> Demonstrations:
    """
    Read a LeRobot folder: the numbers in ``data/**/*.parquet``; videos and pictures are left out, with a warning.

    :param path: the folder.
    :param source: what the user called it.
    :param options: see :func:`from_table`.
    :return: the demonstrations.
    :raises ValueError: if it cannot be read.
    :raises ImportError: without pyarrow.
    """
    with reading(str(path / "meta" / "info.json")):
        features = dict(json.loads((path / "meta" / "info.json").read_text())["features"])
        pictures = sorted(name for name, feature in features.items() if feature["dtype"] in ("image", "video"))
    files = sorted((path / "data").rglob("*.parquet"))
    if not files:
        raise ValueError(f"the LeRobot folder {path} has no data/**/*.parquet: download the dataset again.")
    if pictures:
        warnings.warn(f"{', '.join(pictures)} of {source} are pictures and not read, only the numbers are.", stacklevel=5)
    budget = Budget(sum(file.stat().st_size for file in files))
    # every file counts its texts anew, so they cannot tell episodes apart
    tables = [_parquet(file, source, budget, texts_read=False, left_out=pictures) for file in files]
    columns: dict[str, np.ndarray] = {}
    for name in tables[0].column_names:
        field, label = _field_of(name), f"{name} of {source}"
        parts = [_from_arrow(table.column(name), label, field) for table in tables if name in table.column_names]
        if all(part is not None for part in parts) and len(parts) == len(tables):
            columns[_lerobot_name(name, tables[0].column_names)] = concatenate(parts, name)  # type: ignore[arg-type]
    return _from_columns(columns, source, options)


def _lerobot_name(name: str, names: list[str]) -> str:
    """LeRobot's column under our names: its ``next.reward`` and ``next.done`` belong to the step itself."""
    if name.startswith("observation."):
        numbers = [other for other in names if other.startswith("observation.") and "image" not in other]
        return "obs" if len(numbers) == 1 else f"obs.{name.removeprefix('observation.')}"
    return {"next.reward": "rewards", "next.done": "done"}.get(name, name)

"""Readers: from what people have (trajectories, imitation's objects and folders, npz files) to :class:`Demonstrations`."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_dualqdm.demonstrations import builtin
from sb3_dualqdm.demonstrations.types import FORMAT_KEY, FORMAT_VERSION, Demonstrations, Obs, assemble, map_obs, obs_arrays

if TYPE_CHECKING:
    from gymnasium import spaces

ALIASES = {
    "obs": ("obs", "observations", "states"),
    "acts": ("acts", "actions"),
    "next_obs": ("next_obs", "next_observations", "next_states"),
    "terminated": ("terminated", "terminals"),
    "done": ("dones", "done", "terminal"),
    "truncated": ("truncated", "timeouts"),
    "rews": ("rews", "rewards"),
    "episode_starts": ("episode_starts",),
    "indices": ("indices",),
}
MAX_MEMBER_BYTES = 64 * 2**30
_SUCCESSOR = "pass the final observation too (one more obs than acts), or next_obs, or drop_last=True to leave out each last step"


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
        one of them; imitation's ``Transitions``; a mapping of flat arrays; the path of an ``.npz`` file or of a folder
        written by imitation's ``serialize.save``; or ``"builtin:<env id>"``. Files are data: nothing in them is executed.
    :param observation_space: check and cast to this space, default None (leave as stored).
    :param action_space: likewise for actions.
    :param n_demonstrations: the first n episodes, or a list of episode indices, default None (all).
    :param subsample: keep every such step of each episode, default 1.
    :param keep_terminal: also keep terminated steps when subsampling, default False.
    :param max_episode_steps: the environment's time limit. Where the source has a single terminal flag, an episode exactly
        that long counts as truncated unless its infos say otherwise. Default None: trust the flags.
    :param clip_actions: clip actions that lie outside the box by more than rounding instead of refusing them, default False.
    :param drop_last: with as many obs as acts and no next_obs, leave out each episode's last step, whose successor is
        unknown, instead of refusing, default False.
    :return: the demonstrations.
    :raises ValueError: if the source cannot be read or does not fit.
    :raises FileNotFoundError: if there is no such file.
    :raises ImportError: if a folder is read and pyarrow is not installed.
    """
    if isinstance(source, Demonstrations):
        demonstrations = source
    elif isinstance(source, (str, os.PathLike)):
        demonstrations = _read_path(os.fspath(source), max_episode_steps, drop_last)
    else:
        demonstrations = _read_objects(source, max_episode_steps, drop_last)
    if n_demonstrations is not None:
        demonstrations = demonstrations.select(n_demonstrations if np.ndim(n_demonstrations) == 0 else list(n_demonstrations))  # type: ignore[arg-type]
    demonstrations = demonstrations.subsample(subsample, keep_terminal)
    return demonstrations.validate(observation_space, action_space, clip_actions)


def file_sha256(path: str | os.PathLike[str]) -> str:
    """
    Hash a file's content, or for a folder its data files' names and contents in order.

    :param path: a file, or a folder written by imitation.
    :return: hexadecimal SHA-256.
    """
    path = Path(path).expanduser()
    digest = hashlib.sha256()
    for file in _data_files(path) if path.is_dir() else [path]:
        if path.is_dir():
            digest.update(file.name.encode())
        with open(file, "rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def read_own_npz(path: str | os.PathLike[str]) -> Demonstrations:
    """See :meth:`Demonstrations.load`."""
    file = Path(path).expanduser()
    if not file.exists():
        raise FileNotFoundError(f"there is no demonstration file {str(path)!r}: check the path (it is relative to {Path.cwd()}).")
    arrays = _Npz(file)
    if FORMAT_KEY not in arrays:
        raise ValueError(
            f"{str(path)!r} was not written by Demonstrations.save (it has the keys {sorted(arrays)}): use load_demonstrations."
        )
    return _from_own(arrays, os.fspath(path))


# --- files -----------------------------------------------------------------------------------------------------------------


def _read_path(spec: str, max_episode_steps: int | None, drop_last: bool) -> Demonstrations:
    if spec.startswith("builtin:"):
        path = builtin.builtin_path(spec.removeprefix("builtin:"))
        demonstrations = _from_own(_Npz(path), spec)
        if demonstrations.sha256 != builtin.manifest()[spec.removeprefix("builtin:")]["sha256"]:
            raise ValueError(f"the built-in set {path} differs from its manifest: reinstall sb3-dualqdm.")
        return demonstrations._replace(source=spec)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _read_imitation_folder(path, spec, max_episode_steps, drop_last)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no demonstration file or folder {spec!r}: pass an .npz file, a folder written by imitation, or one of "
            f"{', '.join('builtin:' + name for name in builtin.builtin_ids())}."
        )
    arrays = _Npz(path)
    if FORMAT_KEY in arrays:
        return _from_own(arrays, spec)
    return _from_arrays(arrays, max_episode_steps, drop_last, source=spec, spec=spec, sha256=file_sha256(path))


class _Npz(Mapping):
    """An ``.npz`` archive as a mapping that reads a member when asked, never unpickles, and distrusts declared sizes."""

    def __init__(self, path: Path):
        self._path = path
        if not zipfile.is_zipfile(path):
            raise ValueError(
                f"{path} is not an .npz file, the only single-file format read here (pickles can execute code): "
                "save it with numpy.savez or Demonstrations.save."
            )
        with zipfile.ZipFile(path) as archive:
            self._members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def __getitem__(self, key: str) -> np.ndarray:
        info = self._members[key]
        with zipfile.ZipFile(self._path) as archive, archive.open(info) as member:
            self._check_header(key, info, member)
        with zipfile.ZipFile(self._path) as archive, archive.open(info) as member:
            return np.lib.format.read_array(member, allow_pickle=False)

    def _check_header(self, key: str, info: zipfile.ZipInfo, member: Any) -> None:
        try:
            version = np.lib.format.read_magic(member)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, _, dtype = read_header(member)
        except (KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"the array {key!r} of {self._path} cannot be read ({error}): write the file again.") from None
        if dtype.hasobject:
            raise ValueError(
                f"the array {key!r} of {self._path} holds pickled objects, which are never loaded because they can execute code: "
                "store plain numeric arrays."
            )
        size = math.prod(shape) * dtype.itemsize
        if size > min(MAX_MEMBER_BYTES, info.file_size):
            raise ValueError(
                f"the array {key!r} of {self._path} declares {size} bytes, but at most {min(MAX_MEMBER_BYTES, info.file_size)} "
                "can be right for this file: write the file again, or split it."
            )

    def shapes(self) -> dict[str, str]:
        """Names and sizes for error messages, without reading a member."""
        return {key: f"{info.file_size} bytes" for key, info in self._members.items()}

    def __contains__(self, key: object) -> bool:  # Mapping's own would read the member
        return key in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _from_own(arrays: _Npz, spec: str) -> Demonstrations:
    version = int(arrays[FORMAT_KEY])
    if version != FORMAT_VERSION:
        raise ValueError(f"{spec!r} has the format version {version} but this package reads {FORMAT_VERSION}: update sb3-dualqdm.")
    needed = ("actions", "terminated", "truncated", "episode", "step", "episode_lengths", "episode_indices", "reinterpreted")
    obs, next_obs = _find_obs(arrays, "obs"), _find_obs(arrays, "next_obs")
    missing = [key for key in ("source", "subsampling", *needed) if key not in arrays]
    if obs is None or next_obs is None or missing:
        raise ValueError(f"{spec!r} is incomplete (it has the keys {sorted(arrays)}): write it again with Demonstrations.save.")
    return Demonstrations(
        obs=obs,
        next_obs=next_obs,
        **{key: arrays[key] for key in needed},
        rewards=arrays["rewards"] if "rewards" in arrays else None,
        episode_returns=arrays["episode_returns"] if "episode_returns" in arrays else None,
        source=str(arrays["source"]),
        subsampling=int(arrays["subsampling"]),
        spec=spec,
        sha256=file_sha256(arrays._path),
    )


def _data_files(folder: Path) -> list[Path]:
    try:
        names = [entry["filename"] for entry in json.loads((folder / "state.json").read_text())["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        names = []
    files = [folder / name for name in names if isinstance(name, str) and Path(name).name == name]
    if not files or len(files) < len(names) or not all(file.is_file() for file in files):
        raise ValueError(
            f"the folder {folder} has no state.json that lists its data files, as imitation's serialize.save writes it: "
            "pass such a folder, or an .npz file."
        )
    return files


def _read_imitation_folder(folder: Path, spec: str, max_episode_steps: int | None, drop_last: bool) -> Demonstrations:
    try:
        import pyarrow as pa
    except ImportError:
        raise ImportError(
            f'{spec!r} is a folder written by imitation, and reading it needs pyarrow: pip install "sb3-dualqdm[arrow]".'
        ) from None
    columns: dict[str, list[Any]] = {"obs": [], "acts": [], "terminal": [], "rews": []}
    for file in _data_files(folder):
        try:
            with pa.memory_map(str(file)) as stream, pa.ipc.open_stream(stream) as reader:
                names = reader.schema.names
                for batch in reader:
                    for name, chunks in columns.items():
                        if name in names:  # infos stay untouched: imitation would decode them as objects
                            chunks.append(_arrow_array(batch.column(names.index(name)), f"{name} of {file}"))
        except pa.ArrowInvalid as error:
            raise ValueError(f"{file} is not an Arrow stream ({error}): write the folder again.") from None
    found = {name: chunks for name, chunks in columns.items() if chunks}
    if missing := {"obs", "acts", "terminal"} - found.keys():
        raise ValueError(
            f"the folder {folder} lacks the columns {sorted(missing)} (it has {sorted(names)}): "
            "pass a folder written by imitation's serialize.save."
        )
    lengths = {name: np.concatenate([chunk[0] for chunk in chunks]) for name, chunks in found.items() if name != "terminal"}
    values = {name: _concatenate([chunk[1] for chunk in chunks], f"{name} of {folder}") for name, chunks in found.items()}
    if "rews" in lengths and not np.array_equal(lengths["rews"], lengths["acts"]):
        raise ValueError(f"the folder {folder} has episodes with different numbers of rews and acts: write the folder again.")
    return _from_chained(
        values["obs"],
        values["acts"],
        values.get("rews"),
        lengths["obs"],
        lengths["acts"],
        drop_last=drop_last,
        terminated=values["terminal"],
        max_episode_steps=max_episode_steps,
        source=spec,
        spec=spec,
        sha256=file_sha256(folder),
    )


def _arrow_array(array: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the outermost lists, and all values below them as one array (rows, \\*shape)."""
    import pyarrow as pa

    def is_list(a: Any) -> bool:
        return pa.types.is_list(a.type) or pa.types.is_large_list(a.type) or pa.types.is_fixed_size_list(a.type)

    n_lists = np.empty(0, dtype=np.int64)
    shape: list[int] = []
    depth = 0
    while True:
        if array.null_count:
            raise ValueError(f"{name} has missing values, but every step needs one: write the folder again.")
        if not is_list(array):
            break
        if pa.types.is_fixed_size_list(array.type):
            counts = np.full(len(array), array.type.list_size, dtype=np.int64)
        else:
            counts = array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        if depth == 0:
            n_lists = counts
        else:
            if len(counts) and (counts != counts[0]).any():
                raise ValueError(f"{name} has rows of different sizes, from {counts.min()} to {counts.max()}: write the folder again.")
            shape.append(int(counts[0]) if len(counts) else 0)
        array = array.flatten()
        depth += 1
    values = array.to_numpy(zero_copy_only=False)
    return n_lists, values.reshape(-1, *shape) if shape else values


# --- objects ---------------------------------------------------------------------------------------------------------------


def _field(item: Any, name: str) -> Any:
    """A field of a dict or object under any of its aliases, None if absent; ``"a/key"`` entries of a mapping form a dict."""
    if isinstance(item, Mapping):
        found = [alias for alias in ALIASES[name] if alias in item]
        if not found and name in ("obs", "next_obs"):
            return _find_obs(item, *ALIASES[name])
        get: Callable[[str], Any] = item.__getitem__
    else:
        found = [alias for alias in ALIASES[name] if getattr(item, alias, None) is not None]
        get = lambda alias: getattr(item, alias)  # noqa: E731
    if len(found) > 1:
        raise ValueError(f"the demonstrations have both {found[0]!r} and {found[1]!r}, which mean the same: keep one of them.")
    return get(found[0]) if found else None


def _find_obs(arrays: Mapping[str, Any], *names: str) -> Obs | None:
    for name in names:
        if name in arrays:
            return arrays[name]
        if parts := {key.removeprefix(f"{name}/"): arrays[key] for key in arrays if key.startswith(f"{name}/")}:
            return parts
    return None


def _as_array(value: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # numpy's answer to rows of different shapes
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} is not an array of numbers (dtype {array.dtype}): pass arrays with rows of one shape.")
    return array


def _as_obs(value: Any, name: str) -> Obs:
    if callable(getattr(value, "unwrap", None)):  # imitation's DictObs
        value = value.unwrap()
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        value = {key: [step[key] for step in value] for key in value[0]}
    if isinstance(value, Mapping):
        arrays = {str(key): _as_array(part, f"{name} {key!r}") for key, part in value.items()}
        if not arrays or len({len(part) if part.ndim else -1 for part in arrays.values()}) > 1:
            raise ValueError(
                f"{name} has the shapes { {key: part.shape for key, part in arrays.items()} }: store one row per step in every key."
            )
        return arrays
    return _as_array(value, name)


def _n_rows(obs: Obs) -> int:
    first = next(iter(obs_arrays(obs).values()))
    return len(first) if first.ndim else 0


def _concatenate(parts: list[np.ndarray], name: str) -> np.ndarray:
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = sorted({part.shape[1:] for part in parts})
        raise ValueError(f"{name} has the shapes {shapes[0]} and {shapes[1]} in different episodes: use episodes of one environment.")
    return np.concatenate(parts)


def _read_objects(source: Any, max_episode_steps: int | None, drop_last: bool) -> Demonstrations:
    if isinstance(source, Mapping) or hasattr(source, "obs"):
        return _from_arrays(source, max_episode_steps, drop_last, source=type(source).__name__)
    try:
        trajectories = list(source)
    except TypeError:
        trajectories = []
    if not trajectories:
        raise ValueError(
            f"demonstrations of the type {type(source).__name__} hold no trajectory: pass trajectories with obs, acts and "
            "terminal, imitation Transitions, a path, or 'builtin:<env id>'."
        )
    name = type(trajectories[0]).__name__
    source = name if len(trajectories) == 1 else f"{len(trajectories)} x {name}"
    return _from_trajectories(trajectories, max_episode_steps, drop_last, source=source)


def _from_trajectories(
    trajectories: list[Any], max_episode_steps: int | None, drop_last: bool, **origin: Any
) -> Demonstrations:
    obs, acts, rews, terminated, truncated, known = [], [], [], [], [], []
    for i, item in enumerate(trajectories):
        fields = {name: _field(item, name) for name in ("obs", "acts", "done", "terminated", "truncated", "rews")}
        terminal = fields["terminated"] if fields["done"] is None else fields["done"]
        if missing := [name for name, value in (("obs", fields["obs"]), ("acts", fields["acts"]), ("terminal", terminal)) if value is None]:
            raise ValueError(
                f"trajectory {i} is a {type(item).__name__} without {' and '.join(missing)}, but a trajectory needs obs (one more "
                "than acts), acts and terminal: add what is missing."
            )
        obs.append(_as_obs(fields["obs"], f"obs of trajectory {i}"))
        acts.append(_as_array(fields["acts"], f"acts of trajectory {i}"))
        if acts[-1].ndim == 0 or len(acts[-1]) == 0:
            raise ValueError(f"trajectory {i} has no action, but at least 1 step is needed: leave this trajectory out.")
        if np.size(terminal) != 1:
            raise ValueError(f"terminal of trajectory {i} has {np.size(terminal)} values, but it is one flag per trajectory: pass a bool.")
        if fields["rews"] is not None:
            rews.append(_as_array(fields["rews"], f"rews of trajectory {i}"))
            if rews[-1].shape[:1] != acts[-1].shape[:1]:
                raise ValueError(f"trajectory {i} has {len(rews[-1])} rews but {len(acts[-1])} acts: pass one reward per action.")
        ended, cut, told = bool(np.all(terminal)), False, False
        if fields["truncated"] is not None:
            cut, told = bool(np.any(fields["truncated"])), True
        elif (limit := _limit_in_infos(_infos(item))) is not None:
            ended, cut, told = ended and not limit, limit, True
        terminated.append(ended)
        truncated.append(cut)
        known.append(told)
    if len({tuple(sorted(obs_arrays(o))) for o in obs}) > 1:
        raise ValueError("the trajectories have different observation keys: use episodes of one environment.")
    n_obs, n_acts = np.array([_n_rows(o) for o in obs]), np.array([len(a) for a in acts])
    flat_obs: Obs = (
        {key: _concatenate([o[key] for o in obs], f"obs {key!r}") for key in obs[0]}  # type: ignore[index]
        if isinstance(obs[0], dict)
        else _concatenate(obs, "obs")  # type: ignore[arg-type]
    )
    return _from_chained(
        flat_obs,
        _concatenate(acts, "acts"),
        _concatenate(rews, "rews") if len(rews) == len(trajectories) else None,
        n_obs,
        n_acts,
        drop_last=drop_last,
        terminated=np.array(terminated),
        truncated=np.array(truncated),
        single_flag=~np.array(known),
        max_episode_steps=max_episode_steps,
        **origin,
    )


def _infos(item: Any) -> Any:
    return item.get("infos") if type(item) is dict else getattr(item, "infos", None)


def _limit_in_infos(infos: Any) -> bool | None:
    """What the last info says about the time limit, None if nothing; lazily decoded infos (imitation's) are not touched."""
    if isinstance(infos, (list, tuple, np.ndarray)) and len(infos) and isinstance(infos[-1], Mapping):
        flag = infos[-1].get("TimeLimit.truncated")
        return None if flag is None else bool(flag)
    return None


def _from_chained(
    obs: Obs,
    acts: np.ndarray,
    rews: np.ndarray | None,
    n_obs: np.ndarray,
    n_acts: np.ndarray,
    *,
    drop_last: bool,
    **rest: Any,
) -> Demonstrations:
    """Episodes laid end to end whose observations chain: one more obs than acts each, or equally many with ``drop_last``."""
    name = rest["source"]
    if not len(n_acts) or n_acts.min() < 1:
        raise ValueError(f"{name} has an episode without an action, but at least 1 step is needed: leave this episode out.")
    equal = n_obs == n_acts
    wrong = ~(n_obs == n_acts + 1) & ~(equal & drop_last)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(
            f"episode {i} of {name} has {n_obs[i]} obs and {n_acts[i]} acts, but the last step needs its successor: {_SUCCESSOR}."
        )
    obs_ends = np.cumsum(n_obs)
    state = np.arange(len(acts)) + np.repeat((obs_ends - n_obs) - (np.cumsum(n_acts) - n_acts), n_acts)
    known = state + 1 < np.repeat(obs_ends, n_acts)
    successor = state + known
    demonstrations = assemble(
        map_obs(lambda array: array[state], obs), map_obs(lambda array: array[successor], obs), acts, rews, n_acts, **rest
    )
    return demonstrations if known.all() else _drop(demonstrations, known)


def _drop(demonstrations: Demonstrations, known: np.ndarray) -> Demonstrations:
    """Leave out last steps without a successor; what remains of these episodes is cut there, not terminated."""
    if not known.any():
        raise ValueError(f"{demonstrations.source} has only 1-step episodes without successors: {_SUCCESSOR}.")
    unknown = np.flatnonzero(~known)
    truncated = demonstrations.truncated.copy()
    truncated[unknown[demonstrations.step[unknown] > 0] - 1] = True
    reinterpreted = demonstrations.reinterpreted.copy()  # type: ignore[union-attr]
    reinterpreted[demonstrations.episode[unknown]] = False
    episodes, episode = np.unique(demonstrations.episode[known], return_inverse=True)
    returns = demonstrations.episode_returns
    return demonstrations._rows(
        known,
        truncated=truncated[known],
        episode=episode,
        episode_returns=None if returns is None else returns[episodes],
        episode_lengths=demonstrations.episode_lengths[episodes],
        episode_indices=demonstrations.episode_indices[episodes],
        reinterpreted=reinterpreted[episodes],
    )


def _from_arrays(arrays: Any, max_episode_steps: int | None, drop_last: bool, **origin: Any) -> Demonstrations:
    """Flat arrays of several episodes (an npz file, a mapping, imitation's Transitions), or the fields of one trajectory."""
    name = origin["source"]
    fields = {alias: _field(arrays, alias) for alias in ALIASES}
    if fields["obs"] is None or fields["acts"] is None:
        found = {key: np.shape(value) for key, value in arrays.items()} if type(arrays) is dict else arrays
        found = found.shapes() if isinstance(found, _Npz) else found
        raise ValueError(
            f"{name} has {found}, but obs (or {', '.join(ALIASES['obs'][1:])}) and acts (or actions) are needed, with next_obs "
            "or one more obs than acts per episode, and dones, terminated and truncated, or episode_starts: rename the arrays."
        )
    obs, acts = _as_obs(fields["obs"], f"obs of {name}"), _as_array(fields["acts"], f"acts of {name}")
    rews = None if fields["rews"] is None else _as_array(fields["rews"], f"rews of {name}")
    if fields["next_obs"] is None and fields["indices"] is None and fields["done"] is not None and np.size(fields["done"]) == 1:
        return _from_trajectories([arrays], max_episode_steps, drop_last, **origin)
    n_steps = len(acts) if acts.ndim else 0
    if n_steps == 0:
        raise ValueError(f"{name} has no action, but at least 1 step is needed: record an episode first.")
    if rews is not None and len(np.atleast_1d(rews)) != n_steps:
        raise ValueError(f"{name} has rewards of the shape {rews.shape} but {n_steps} actions: store one reward per action.")
    origin["max_episode_steps"] = max_episode_steps
    if fields["indices"] is not None:  # imitation's older npz: one terminal flag per episode, cut points between episodes
        lengths = np.diff(_as_array(fields["indices"], f"indices of {name}"), prepend=0, append=n_steps)
        done = _flags(fields["done"], f"terminal of {name}", len(lengths))
        origin["terminated"] = np.zeros(len(lengths), dtype=bool) if done is None else done
        return _from_chained(obs, acts, rews, _obs_per_episode(obs, lengths, name), lengths, drop_last=drop_last, **origin)

    flags = {key: _flags(fields[key], f"{key} of {name}", n_steps) for key in ("terminated", "done", "truncated", "episode_starts")}
    none = np.zeros(n_steps, dtype=bool)
    truncated = none if flags["truncated"] is None else flags["truncated"]
    done = none if flags["done"] is None else flags["done"]
    terminated = done & ~truncated if flags["terminated"] is None else flags["terminated"]
    ends = terminated | truncated | done
    if flags["episode_starts"] is not None:
        ends[:-1] |= flags["episode_starts"][1:]
    ends[-1] = True
    if all(value is None for key, value in flags.items() if key != "episode_starts"):
        warnings.warn(
            f"{name} has no dones, terminated or truncated: its episodes are read as cut off, not as terminated.", stacklevel=4
        )
    next_obs = None if fields["next_obs"] is None else _as_obs(fields["next_obs"], f"next_obs of {name}")
    if next_obs is not None:
        if not _n_rows(obs) == _n_rows(next_obs) == n_steps:
            raise ValueError(
                f"{name} has {_n_rows(obs)} obs, {_n_rows(next_obs)} next_obs and {n_steps} acts: store one of each per step."
            )
        if flags["truncated"] is None and flags["episode_starts"] is None:
            ends |= _breaks(obs, next_obs, ends, name)
    last = np.flatnonzero(ends)
    lengths = np.diff(last, prepend=-1)
    limits = [_limit_in_infos(infos[i : i + 1]) for i in last] if isinstance(infos := _infos(arrays), (list, np.ndarray)) else []
    told = np.array([limit is not None for limit in limits] or np.zeros(len(last)), dtype=bool)
    limited = np.array([bool(limit) for limit in limits] or np.zeros(len(last)), dtype=bool)
    two_flags = flags["truncated"] is not None or "terminated" in (arrays if isinstance(arrays, Mapping) else dir(arrays))
    origin |= {
        "terminated": terminated[last] & ~limited,
        "truncated": truncated[last] | limited,
        "single_flag": ~told & (not two_flags),
    }
    if next_obs is not None:
        return assemble(obs, next_obs, acts, rews, lengths, **origin)
    return _from_chained(obs, acts, rews, _obs_per_episode(obs, lengths, name), lengths, drop_last=drop_last, **origin)


def _flags(value: Any, name: str, n: int) -> np.ndarray | None:
    if value is None:
        return None
    array = _as_array(value, name)
    if array.size != n or not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} has the shape {array.shape}, but {n} flags, each 0 or 1, are expected: store one bool each.")
    return array.reshape(n).astype(bool)


def _obs_per_episode(obs: Obs, lengths: np.ndarray, name: str) -> np.ndarray:
    n_obs, n_steps = _n_rows(obs), int(lengths.sum())
    if n_obs not in (n_steps, n_steps + len(lengths)):
        raise ValueError(
            f"{name} has {n_obs} obs and {n_steps} acts in {len(lengths)} episodes, but {n_steps + len(lengths)} obs (one more than "
            "acts per episode) are expected: add the final observations and the flags that end the episodes, or store next_obs."
        )
    return lengths + (n_obs != n_steps)


def _breaks(obs: Obs, next_obs: Obs, ends: np.ndarray, name: str) -> np.ndarray:
    """Rows that are not followed by their own successor, so that an episode must have been cut there."""
    breaks = np.zeros(len(ends), dtype=bool)
    successors = obs_arrays(next_obs)
    for key, array in obs_arrays(obs).items():
        if key not in successors or successors[key].shape != array.shape:
            return breaks  # reported by the structure check
        different = array[1:] != successors[key][:-1]
        breaks[:-1] |= different.reshape(len(different), -1).any(axis=1)
    unmarked = int((breaks & ~ends).sum())
    if unmarked > len(ends) // 2:
        warnings.warn(
            f"in {name}, {unmarked} of {len(ends)} transitions are not followed by their successor, so each counts as an episode of "
            "its own and start states are unknown: pass trajectories if the order matters to you.",
            stacklevel=5,
        )
    return breaks

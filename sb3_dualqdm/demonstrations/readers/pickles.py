"""
Pickles as data: an unpickler that admits numbers, containers and NumPy arrays and calls nothing a file names.

A pickle is a program whose instructions may import and call anything. Here every name in it is looked up in a short table of
our own harmless functions, and objects of a few known classes (imitation's trajectories, SB3's replay buffers and spaces)
become :class:`Record`, which has their attributes and no behaviour. Every other name is refused.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sb3_dualqdm.demonstrations.files import FREE_BYTES, check_size, read_header, reading
from sb3_dualqdm.demonstrations.readers import replay
from sb3_dualqdm.demonstrations.readers.arrays import from_arrays, from_sequence
from sb3_dualqdm.demonstrations.types import Demonstrations

_TRUST = "if you trust the file, load it with the library that wrote it and pass the object"


class Record:
    """Attributes of a pickled object of a known class, without its behaviour."""


class _Name:
    """A name that a pickle may mention; calling it is up to our table."""

    def __init__(self, name: str, call: Callable[..., Any] | None):
        self.name, self.call = name, call


class _DType:
    """A number's type while its pickle is being read: NumPy completes the byte order in a second instruction."""

    def __init__(self, code: Any, *_: Any):
        self.code: str = code if isinstance(code, str) else "?"
        self.order: Any = "="

    def final(self) -> np.dtype:
        dtype = np.dtype(self.code)
        if dtype.kind not in "biufO" or dtype.names is not None or dtype.subdtype is not None:
            raise pickle.UnpicklingError(f"it has an array of the type {dtype}, but only numbers are read")
        return dtype if self.order in "|=" else dtype.newbyteorder(self.order)


def _numbers(data: Any, dtype: Any, shape: Any, order: str = "C") -> np.ndarray:
    """An array over the bytes of a pickle, which must be exactly as many as its shape needs."""
    if isinstance(data, str):  # Python 2's bytes
        data = data.encode("latin1")
    final = dtype.final()
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    sizes_fit = all(type(n) is int and n >= 0 for n in shape) and isinstance(data, (bytes, bytearray))
    if final.hasobject or order not in ("C", "F") or not sizes_fit or math.prod(shape) * final.itemsize != len(data):
        raise pickle.UnpicklingError(f"it has an array of the shape {shape} that does not fit its data")
    return np.frombuffer(data, dtype=final).reshape(shape, order=order)  # type: ignore[call-overload]


def _fill(array: np.ndarray, state: Any) -> None:
    """Contents of an array made empty before, numbers or Python objects."""
    _, shape, dtype, fortran, data = state
    if array.shape != (0,):
        raise pickle.UnpicklingError("it fills an array twice")
    if isinstance(dtype, _DType) and dtype.final().hasobject:
        if not isinstance(data, list) or math.prod(shape) != len(data) or (0 in shape and len(shape) > 1):
            raise pickle.UnpicklingError(f"it has an array of the shape {shape} that does not fit its data")
        array.__setstate__((1, tuple(int(n) for n in shape), np.dtype(object), bool(fortran), data))  # type: ignore[arg-type]
        return
    whole = _numbers(data, dtype, shape, "F" if fortran else "C")
    content = whole.tobytes("F" if fortran else "C") if not isinstance(data, bytes) else data
    array.__setstate__((1, whole.shape, whole.dtype, bool(fortran), content))  # type: ignore[arg-type]


def _scalar(dtype: Any, data: Any) -> Any:
    return _numbers(data, dtype, ())[()]


def _bytearray(content: Any = b"", encoding: str = "latin1") -> bytearray:
    return bytearray(content.encode("latin1") if isinstance(content, str) else bytes(memoryview(content)))


def _bytes(content: Any = b"") -> bytes:
    return bytes(memoryview(content))


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")  # Python 2's bytes, whatever codec is named


def _empty(*_: Any) -> np.ndarray:
    return np.empty(0)


def _record(*_: Any) -> Record:
    return Record()


def _dict(*items: Any) -> dict:
    """Also for a ``defaultdict``, whose default is of no use here."""
    return dict(*[item for item in items if isinstance(item, (list, dict))])


_ARRAYS: dict[str, Callable[..., Any] | None] = {"_reconstruct": _empty, "scalar": _scalar, "_frombuffer": _numbers}
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_SCALARS = ("bool", "bool_", "float16", "float32", "float64", *_INTEGERS)
_CONTAINERS = (list, tuple, set, frozenset, _dict)
_NAMES: dict[str, dict[str, Callable[..., Any] | None]] = {
    "builtins": {
        "list": list,
        "dict": _dict,
        "tuple": tuple,
        "set": set,
        "frozenset": frozenset,
        "bytes": _bytes,
        "bytearray": _bytearray,
        **dict.fromkeys(("int", "float", "bool", "str", "object")),
    },
    "collections": {"OrderedDict": _dict, "defaultdict": _dict},
    "_codecs": {"encode": _latin1},
    "copyreg": {"_reconstructor": _record},
    "numpy": {"ndarray": None, "dtype": _DType, **dict.fromkeys(_SCALARS)},
    **{f"numpy.{core}.{module}": _ARRAYS for core in ("core", "_core") for module in ("multiarray", "numeric")},
    **{
        module: dict.fromkeys(names, _record)
        for module, names in {
            "numpy.random._pickle": ("__generator_ctor", "__bit_generator_ctor"),
            "numpy.random._pcg64": ("PCG64",),
            "numpy.random.bit_generator": ("SeedSequence", "__pyx_unpickle_SeedSequence"),
            "torch": ("device",),
            "stable_baselines3.common.buffers": ("ReplayBuffer", "DictReplayBuffer"),
            "stable_baselines3.her.her_replay_buffer": ("HerReplayBuffer",),
            "stable_baselines3.her.goal_selection_strategy": ("GoalSelectionStrategy",),
            "sb3_dualqdm.buffers": ("ImitationReplayBuffer", "ImitationDictReplayBuffer", "InitialStates"),
            "gymnasium.spaces.box": ("Box",),
            "gymnasium.spaces.discrete": ("Discrete",),
            "gymnasium.spaces.multi_discrete": ("MultiDiscrete",),
            "gymnasium.spaces.multi_binary": ("MultiBinary",),
            "gymnasium.spaces.dict": ("Dict",),
            "imitation.data.types": ("Trajectory", "TrajectoryWithRew", "Transitions", "TransitionsWithRew", "DictObs"),
        }.items()
    },
}
_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}


_PythonUnpickler: Any = pickle._Unpickler  # type: ignore[attr-defined]


class _Unpickler(_PythonUnpickler):
    """
    Python's own interpreter of pickles, with the instructions that call or change something replaced.

    It is the one written in Python, whose instructions can be replaced; the memory a pickle can ask for is bounded by the
    size of its file.
    """

    def __init__(self, file: BinaryIO, size: int):
        super().__init__(_Bounded(file, size), encoding="latin1")
        # what its instructions may copy: a few bytes could ask for the same list again and again
        self._budget = FREE_BYTES + 8 * size

    def find_class(self, module: str, name: str) -> _Name:
        module = _PYTHON_2.get(module, module)
        if name not in _NAMES.get(module, {}):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, but only numbers, containers and arrays are read")
        return _Name(f"{module}.{name}", _NAMES[module][name])

    def _make(self, name: Any, arguments: Any) -> Any:
        if not isinstance(name, _Name) or name.call is None:
            raise pickle.UnpicklingError(f"it calls {getattr(name, 'name', type(name).__name__)}, which is not read")
        copied = sum(len(part) for part in arguments if hasattr(part, "__len__"))
        self._budget -= copied * (8 if name.call in _CONTAINERS else 1)
        if self._budget < 0:
            raise pickle.UnpicklingError("it repeats its contents out of proportion to its size")
        return name.call(*arguments)

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self._make(self.stack[-1], arguments)

    def load_newobj(self) -> None:
        self.load_reduce()

    def load_newobj_ex(self) -> None:
        self.stack.pop()  # keyword arguments
        self.load_reduce()

    def _instantiate(self, name: Any, arguments: Any) -> None:
        self.append(self._make(name, arguments))

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Record):
            for part in state if isinstance(state, tuple) else (state,):
                if isinstance(part, Mapping):
                    target.__dict__.update({key: value for key, value in part.items() if isinstance(key, str)})
        elif isinstance(target, _DType):
            target.order = state[1] if state[1] in ("<", ">") else "="
        elif isinstance(target, np.ndarray):
            _fill(target, state)
        else:
            raise pickle.UnpicklingError(f"it changes a {type(target).__name__}, which is not read")

    def load_bytearray8(self) -> None:
        length = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(length)))

    dispatch = {
        **_PythonUnpickler.dispatch,
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.BUILD[0]: load_build,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }


class _Bounded:
    """A file that refuses to read more than it can hold, before memory is taken for it."""

    def __init__(self, file: BinaryIO, size: int):
        self._file, self._size = file, size
        self.readline = file.readline

    def read(self, n: int) -> bytes:
        if n > self._size:
            raise pickle.UnpicklingError("it is cut short")
        return self._file.read(n)


def read_pickle(path: Path, offset: int = 0) -> Any:
    """
    Read a pickle without executing anything it names.

    :param path: the file.
    :param offset: byte at which the pickle starts, default 0.
    :return: numbers, strings, lists, tuples, dicts, arrays and :class:`Record` of them; arrays of objects become lists.
    :raises ValueError: if it asks for anything else (the error names it), or is damaged.
    """
    size = os.path.getsize(path)
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            content = _Unpickler(file, size).load()
        expanded = _expanded(content, {})
        content = _plain(content, {})
    except Exception as error:  # a damaged pickle raises nearly anything
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(f"{path} is a pickle that cannot be read as data ({text[:200]}): {_TRUST}.") from None
    check_size(str(path), expanded, size)
    return content


def _children(value: Any) -> list[Any]:
    if isinstance(value, Record):
        return list(value.__dict__.values())
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype.hasobject else []
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else []


def _expanded(value: Any, known: dict[int, int]) -> int:
    """Bytes of all arrays to be made of a value; a small pickle may contain the same list in itself many times over."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.nbytes
    if not isinstance(value, (Record, Mapping, np.ndarray, list, tuple, set, frozenset)):
        return 8
    if id(value) not in known:
        known[id(value)] = 0  # in case it contains itself
        known[id(value)] = sum(_expanded(child, known) for child in _children(value))
    return known[id(value)]


def _plain(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """Arrays of objects as lists, and imitation's dict observations as dicts, everywhere inside a value."""
    if id(value) in known:
        return known[id(value)][1]
    result = value
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        result = _plain(value.item() if value.ndim == 0 else value.tolist(), known)
    elif isinstance(value, Record):
        known[id(value)] = value, value
        value.__dict__.update({key: _plain(part, known) for key, part in value.__dict__.items()})
        result = value.__dict__["_d"] if value.__dict__.keys() == {"_d"} else value
    elif isinstance(value, dict):
        known[id(value)] = value, value
        value.update({key: _plain(part, known) for key, part in value.items()})
    elif isinstance(value, list):
        known[id(value)] = value, value
        value[:] = [_plain(part, known) for part in value]
    elif isinstance(value, tuple):
        result = tuple(_plain(part, known) for part in value)
    else:
        return value
    known[id(value)] = value, result  # with the value itself, whose id would be given away after its end
    return result


def from_pickle(path: Path, *, source: str, offset: int = 0, **options: Any) -> Demonstrations:
    """
    Demonstrations in a pickle: trajectories, named arrays, IQ-Learn's lists, or an SB3 replay buffer.

    :param path: the file.
    :param source: what the user called it.
    :param offset: byte at which the pickle starts, default 0.
    :param options: see :func:`sb3_dualqdm.demonstrations.readers.arrays.join`.
    :return: the demonstrations.
    :raises ValueError: if it cannot be read as data.
    """
    content = read_pickle(path, offset)
    if replay.is_replay_buffer(content):
        return replay.from_buffer(content, source=source, **options)
    if isinstance(content, Mapping) or hasattr(content, "obs"):
        return from_arrays(content, source=source, **options)
    if not isinstance(content, (list, tuple)) or not content:
        raise ValueError(
            f"{path} holds a {type(content).__name__}, but trajectories, named arrays or a replay buffer are expected: pass "
            "such a file."
        )
    return from_sequence(content, source=source, **options)


def from_npy(path: Path, **options: Any) -> Demonstrations:
    """
    Demonstrations in an ``.npy`` file: IQ-Learn's are a pickled dict in an array of one object.

    :param path: the file.
    :param options: see :func:`from_pickle`.
    :return: the demonstrations.
    :raises ValueError: if it is a plain array, or cannot be read as data.
    """
    with reading(str(path)), open(path, "rb") as file:
        shape, dtype = read_header(file)
        offset = file.tell()
    if not dtype.hasobject:
        raise ValueError(
            f"{path} is one array of the shape {shape}, but demonstrations need obs and acts: put both in an .npz file."
        )
    return from_pickle(path, offset=offset, **options)

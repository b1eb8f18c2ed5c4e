"""Successor observations that are not stored twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

BLOCK_BYTES = 1 << 20


def blocks(array: np.ndarray) -> Iterator[slice]:
    """
    Row ranges of about 1 MiB, so that work on a large array needs no second one of its size.

    :param array: array of shape (T, \\*shape).
    :return: the ranges in order.
    """
    rows = max(1, BLOCK_BYTES // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), rows):
        yield slice(start, min(start + rows, len(array)))


class Successors(np.lib.mixins.NDArrayOperatorsMixin):
    """
    Read-only array-like of true successors: row t is ``obs[t + 1]``, and at the end of an episode its final observation.

    It is indexed like the array it stands for and turns into that array wherever NumPy needs one.

    :param obs: observations, shape (T, \\*shape).
    :param final: final observations of the episodes, shape (E, \\*shape).
    :param last: row of each episode's last step, increasing, int64, shape (E,).
    """

    def __init__(self, obs: np.ndarray, final: np.ndarray, last: np.ndarray):
        self.obs, self.final, self.last = obs, final, last

    @classmethod
    def of(cls, obs: np.ndarray, next_obs: np.ndarray, last: np.ndarray) -> Successors | None:
        """
        The same successors without the second array.

        :param obs: observations, shape (T, \\*shape).
        :param next_obs: successors, same shape.
        :param last: row of each episode's last step.
        :return: the successors, or None if some row is not followed by its successor bit for bit.
        """
        if obs.dtype != next_obs.dtype or obs.shape != next_obs.shape or obs.dtype.itemsize > 8:
            return None
        bits = f"u{obs.dtype.itemsize}"
        inside = np.ones(len(obs), dtype=bool)
        inside[last] = False
        for rows in blocks(next_obs[:-1]):
            followed = obs[rows.start + 1 : rows.stop + 1].view(bits) == next_obs[rows].view(bits)
            if not followed.reshape(len(followed), -1)[inside[rows]].all():
                return None
        return cls(obs, next_obs[last], last)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.obs.shape

    @property
    def dtype(self) -> np.dtype:
        return self.obs.dtype

    @property
    def ndim(self) -> int:
        return self.obs.ndim

    @property
    def size(self) -> int:
        return self.obs.size

    def __len__(self) -> int:
        return len(self.obs)

    def __getitem__(self, key: Any) -> Any:
        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if rows is Ellipsis or rows is None or isinstance(rows, tuple):
            return np.asarray(self)[key]
        if isinstance(rows, slice) and not rest and rows.step in (None, 1):
            start, stop, _ = rows.indices(len(self))
            first, end = np.searchsorted(self.last, [start, stop])
            if start < stop and self.last[end - 1] == stop - 1:  # up to an episode's end: still no second array
                return Successors(self.obs[start:stop], self.final[first:end], self.last[first:end] - start)
        at = np.asarray(rows)
        if at.dtype.kind in "iu":
            at = np.where(at < 0, at + len(self), at)
            if at.size and not 0 <= at.min() <= at.max() < len(self):
                raise IndexError(f"index {rows} is out of bounds for {len(self)} rows")
        else:  # a slice or a mask
            at = np.arange(len(self))[rows]
        return self._at(at)[(slice(None),) * np.ndim(at) + rest]

    def _at(self, at: np.ndarray) -> np.ndarray:
        """Rows at non-negative indices, in time that does not depend on the number of rows."""
        episode = np.searchsorted(self.last, at)
        ending = self.last[episode] == at
        following = self.obs[np.minimum(at + 1, len(self) - 1)]
        if np.ndim(at) == 0:
            return self.final[episode] if ending else following
        following[ending] = self.final[episode[ending]]
        return following

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.empty(self.shape, dtype=self.dtype)
        array[:-1] = self.obs[1:]
        array[self.last] = self.final
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:  # else torch would read row by row
        return np.asarray(self).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return np.asarray(self[:0]).__dlpack_device__()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays = [np.asarray(value) if isinstance(value, Successors) else value for value in inputs]
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ValueError("assignment destination is read-only: copy it with numpy.array first.")

    def reshape(self, *shape: Any) -> Successors | np.ndarray:
        """
        As ``numpy.ndarray.reshape``.

        :param shape: new shape; where it keeps the rows, no array is made.
        :return: the successors in that shape.
        """
        size = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if size[0] != len(self) or -1 in size[1:]:
            return np.asarray(self).reshape(size)
        return Successors(self.obs.reshape(size), self.final.reshape(len(self.final), *size[1:]), self.last)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("obs", "final", "last"):  # not yet set while being unpickled
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

"""Running means of training statistics, accumulated on the device and read only when they are logged."""

from __future__ import annotations

import torch as th


class DeviceMeans:
    """
    Means over updates of named scalar tensors, without reading one of them per update (a read waits for the device).
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sum: th.Tensor | None = None
        self.count = 0

    def add(self, values: dict[str, th.Tensor]) -> None:
        """Add one update's values, scalars without gradient; the names must not change between two reads."""
        stacked = th.stack([value.detach() for value in values.values()])
        self._names = tuple(values)
        self._sum = stacked if self._sum is None else self._sum + stacked
        self.count += 1

    def read(self) -> dict[str, float]:
        """The means since the last read (empty if nothing was added), then start anew."""
        if self._sum is None:
            return {}
        means = dict(zip(self._names, (self._sum / self.count).tolist()))
        self._sum, self.count = None, 0
        return means

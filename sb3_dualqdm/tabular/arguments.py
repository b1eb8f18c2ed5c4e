"""Checks of the arguments that the solvers share."""

from __future__ import annotations

from typing import Any

import numpy as np


def require_positive(**numbers: float) -> None:
    """
    Refuse temperatures, weights and bounds with which a problem has no meaning or no maximum.

    :param numbers: arguments by name
    :raises ValueError: if one is not a finite number > 0
    """
    for name, value in numbers.items():
        if not 0.0 < value < np.inf:
            raise ValueError(f"{name} is {value}, expected a finite number > 0: pass such a number.")


def require_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """
    The bounds of the implicit reward.

    :param bounds: (low, high); they may be equal, the squared hinges then being the square around that number
    :return: the bounds
    :raises ValueError: if they are not finite, or if low > high
    """
    low, high = bounds
    if not -np.inf < low <= high < np.inf:
        raise ValueError(f"bounds are ({low}, {high}), expected finite numbers (low, high) with low <= high: change them.")
    return low, high


def require_table(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """
    A table with a number for every pair.

    :param name: what it is, for the error
    :param values: the table
    :param shape: shape of the MDP's tables
    :return: the table as floats
    :raises ValueError: if the shape differs, which numpy might broadcast, or if a number is not finite
    """
    table = np.asarray(values, dtype=float)
    if table.shape != shape:
        raise ValueError(f"{name} has shape {table.shape}, expected the MDP's shape {shape}: reshape or broadcast it.")
    if not np.isfinite(table).all():
        raise ValueError(f"{name} has NaN or infinite numbers, expected finite ones: replace them.")
    return table

"""Maximisation of a smooth function over a box: projected L-BFGS in plain numpy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Bound = float | np.ndarray
Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True, eq=False)
class BoxResult:
    """
    :param x: the maximiser found
    :param value: objective there
    :param gap: sum over coordinates of gradient times the room left in its direction: an upper bound on the distance to the
        optimum of a concave objective on a bounded box; without bounds, the largest absolute gradient entry
    :param iterations: accepted steps
    :param converged: whether gap <= tolerance
    """

    x: np.ndarray
    value: float
    gap: float
    iterations: int
    converged: bool


def frank_wolfe_gap(x: np.ndarray, gradient: np.ndarray, lower: Bound, upper: Bound) -> float:
    """
    max over y in the box of <gradient, y - x>.

    :param x: point in the box
    :param gradient: gradient of the maximised function at x
    :param lower: lower bounds
    :param upper: upper bounds
    """
    return float(np.where(gradient > 0, gradient * (upper - x), gradient * (lower - x)).sum())


def maximise_on_box(
    objective: Objective,
    start: np.ndarray,
    lower: Bound = -np.inf,
    upper: Bound = np.inf,
    tolerance: float = 1e-9,
    max_iterations: int = 5000,
    memory: int = 15,
) -> BoxResult:
    """
    Projected L-BFGS: a quasi-Newton step in the coordinates that are free to move, then a search along the projected path.

    :param objective: maps x to (value, gradient)
    :param start: first point, any shape; it is clipped into the box
    :param lower: lower bounds, broadcastable to start, default none
    :param upper: upper bounds, broadcastable to start, default none
    :param tolerance: stop when the gap falls to this, see :class:`BoxResult`, default 1e-9
    :param max_iterations: default 5000
    :param memory: stored curvature pairs, default 15
    """
    shape = np.shape(start)
    low = np.broadcast_to(np.asarray(lower, dtype=float), shape).ravel()
    high = np.broadcast_to(np.asarray(upper, dtype=float), shape).ravel()
    bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(flat.reshape(shape))
        return -value, -gradient.ravel()

    def measure(flat: np.ndarray, slope: np.ndarray) -> float:
        return (
            frank_wolfe_gap(flat, -slope, low, high)
            if bounded
            else float(np.abs(flat - np.clip(flat - slope, low, high)).max())
        )

    x = np.clip(np.asarray(start, dtype=float).ravel(), low, high)
    value, slope = evaluate(x)
    pairs = _Curvature(memory)
    best = (x, value, measure(x, slope))
    iterations, stalled = 0, 0
    while best[2] > tolerance and iterations < max_iterations:
        free = ~(((x <= low) & (slope >= 0)) | ((x >= high) & (slope <= 0)))
        direction = -pairs.newton_step(slope, np.flatnonzero(free))
        if not pairs.full:
            direction /= max(1.0, float(np.abs(direction).max()))
        step, accepted = 1.0, False
        for _ in range(60):
            trial = np.clip(x + step * direction, low, high)
            decrease = float(slope @ (trial - x))
            trial_value, trial_slope = evaluate(trial)
            noise = 1e-15 * max(1.0, abs(value))  # below this a difference of objectives is rounding
            if decrease < 0 and trial_value <= value + 1e-4 * decrease + noise and np.isfinite(trial_slope).all():
                accepted = True
                break
            step *= 0.5 if step > 1e-3 else 0.1
        if not accepted:
            if not pairs.full:
                break  # steepest descent cannot improve either: the limit of the arithmetic
            pairs.clear()
            continue
        change, bend = trial - x, trial_slope - slope
        if float(change @ bend) > 1e-12 * float(bend @ bend):
            pairs.add(change, bend)
        stalled = stalled + 1 if trial_value >= value else 0
        x, value, slope = trial, trial_value, trial_slope
        iterations += 1
        gap = measure(x, slope)
        if gap < best[2]:
            best = (x, value, gap)
        if stalled > 50:
            break
    x, value, gap = best
    return BoxResult(x.reshape(shape), -value, gap, iterations, gap <= tolerance)


class _Curvature:
    """The last steps and gradient changes, and the L-BFGS two-loop recursion on them restricted to the free coordinates."""

    def __init__(self, memory: int) -> None:
        self.full: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=memory)
        self._index = np.zeros(0, dtype=int)
        self._restricted: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=memory)  # kept while the free set stays

    def clear(self) -> None:
        self.full.clear()
        self._restricted.clear()

    def add(self, change: np.ndarray, bend: np.ndarray) -> None:
        self.full.append((change, bend))
        self._restricted.append(self._restrict(change, bend))

    def _restrict(self, change: np.ndarray, bend: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        c, b = change[self._index], bend[self._index]
        product = float(c @ b)
        return c, b, 1.0 / product if product > 0 and product > 1e-14 * float(b @ b) else 0.0  # 0: no use on this free set

    def newton_step(self, slope: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Approximate inverse Hessian times the slope, on the free coordinates; 0 elsewhere."""
        if not np.array_equal(index, self._index):
            self._index = index
            self._restricted = deque((self._restrict(*pair) for pair in self.full), maxlen=self.full.maxlen)
        usable = [pair for pair in self._restricted if pair[2] > 0]
        out = slope[index]
        if usable:
            coefficients = []
            for c, b, rho in reversed(usable):
                coefficients.append(rho * float(c @ out))
                out -= coefficients[-1] * b
            c, b, rho = usable[-1]
            out *= 1.0 / (rho * float(b @ b))
            for (c, b, rho), coefficient in zip(usable, reversed(coefficients)):
                out += (coefficient - rho * float(b @ out)) * c
        result = np.zeros_like(slope)
        result[index] = out
        return result

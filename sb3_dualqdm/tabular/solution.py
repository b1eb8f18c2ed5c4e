"""What every tabular solver returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sb3_dualqdm.tabular.mdp import TabularMDP, greedy_policy, logsumexp, softmax


@dataclass(frozen=True, eq=False)
class Solution:
    """
    A solved imitation problem; arrays have the MDP's shape (H, S, A) or (S, A).

    :param q: Q-function; None for methods without one
    :param v: state values, shape without the action axis; None for methods without a Q-function
    :param policy: action probabilities
    :param reward: implicit reward r_Q = Q - gamma * P V; None for methods without a Q-function
    :param occupancy: occupancy of ``policy``
    :param gap: certified distance of the objective from its optimum, absolute: the duality gap where the method has a dual,
        the Frank-Wolfe gap of a concave problem on a box, 0 for a closed form; nan where nothing certifies the optimum
    :param objective: value of the maximised objective (for the AIL solvers: of the minimised one)
    :param iterations: iterations of the solver
    :param converged: whether the solver reached its tolerance; False where a number of the solution is not finite
    """

    q: np.ndarray | None
    v: np.ndarray | None
    policy: np.ndarray
    reward: np.ndarray | None
    occupancy: np.ndarray
    gap: float
    objective: float
    iterations: int = 0
    converged: bool = True

    def __post_init__(self) -> None:
        arrays = (self.q, self.v, self.policy, self.reward, self.occupancy)
        # A comparison of infinite numbers may hold; gap alone may be nan, where nothing certifies the optimum.
        finite = all(array is None or np.isfinite(array).all() for array in arrays)
        finite = finite and bool(np.isfinite(self.objective)) and not np.isinf(self.gap)
        object.__setattr__(self, "converged", bool(self.converged) and finite)

    @property
    def relative_gap(self) -> float:
        """``gap`` relative to max(1, abs(objective))."""
        return self.gap / max(1.0, abs(self.objective))

    @property
    def greedy(self) -> np.ndarray:
        """The greedy policy of q (of the policy itself without q); ties share the probability evenly."""
        return greedy_policy(self.policy if self.q is None else self.q)


def solution_from_q(
    mdp: TabularMDP,
    q: np.ndarray,
    alpha: float,
    *,
    gap: float,
    objective: float,
    iterations: int = 0,
    converged: bool = True,
) -> Solution:
    """
    The solution of a method that ends in a softmax policy of a Q-function.

    :param mdp: the MDP
    :param q: the Q-function
    :param alpha: temperature
    :param gap: see :class:`Solution`
    :param objective: see :class:`Solution`
    :param iterations: see :class:`Solution`
    :param converged: see :class:`Solution`
    """
    v, policy = logsumexp(q, alpha), softmax(q, alpha)
    return Solution(q, v, policy, q - mdp.backup(v), mdp.occupancy(policy), gap, objective, iterations, converged)

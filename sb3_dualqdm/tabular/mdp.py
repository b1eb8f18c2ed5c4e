"""Finite Markov decision processes, finite-horizon (layered) or discounted, and exact soft planning in them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

TIE_TOLERANCE = 1e-9


def logsumexp(q: np.ndarray, alpha: float) -> np.ndarray:
    """
    ``alpha * log sum_a exp(q(., a) / alpha)``, the (LSE Q)(s) of the paper at temperature alpha.

    :param q: values, shape (..., A)
    :param alpha: temperature, > 0
    :return: shape (...)
    """
    top = q.max(axis=-1)
    return top + alpha * np.log(np.exp((q - top[..., None]) / alpha).sum(axis=-1))


def softmax(q: np.ndarray, alpha: float) -> np.ndarray:
    """
    The softmax policy of a Q-function at temperature alpha.

    :param q: values, shape (..., A)
    :param alpha: temperature, > 0
    :return: probabilities, shape (..., A)
    """
    weights = np.exp((q - q.max(axis=-1, keepdims=True)) / alpha)
    return weights / weights.sum(axis=-1, keepdims=True)


def greedy_actions(q: np.ndarray, tolerance: float = TIE_TOLERANCE) -> np.ndarray:
    """
    Which actions are greedy, ties included.

    :param q: values, shape (..., A)
    :param tolerance: values this close to the best one count as tied, relative to max(1, abs(best)), default 1e-9
    :return: bool, shape (..., A)
    """
    best = q.max(axis=-1, keepdims=True)
    return q >= best - tolerance * np.maximum(1.0, np.abs(best))


def greedy_policy(q: np.ndarray, tolerance: float = TIE_TOLERANCE) -> np.ndarray:
    """
    The greedy policy; ties share the probability evenly, so that no action label is preferred.

    :param q: values, shape (..., A)
    :param tolerance: see :func:`greedy_actions`
    :return: probabilities, shape (..., A)
    """
    best = greedy_actions(q, tolerance).astype(float)
    return best / best.sum(axis=-1, keepdims=True)


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """
    A finite MDP. With ``horizon=H`` it is finite-horizon and layered: quantities are indexed (h, s, a) and have shape (H, S,
    A), every layer having the same S state names. Without a horizon it is discounted and quantities have shape (S, A).

    :param transitions: P(s' | s, a), shape (S, A, S); or (H - 1, S, A, S) if they differ per step
    :param initial: rho, shape (S,)
    :param horizon: number of steps H, or None for the discounted setting
    :param discount: gamma in (0, 1) without a horizon, 1 with one
    :param reward: true reward, finite, broadcastable to ``shape``, used for evaluation only; None if unknown
    :param expert: expert actions, shape (S,) or (H, S), or expert action probabilities of shape ``shape``; None if unknown
    :raises ValueError: if a shape, a probability, an action or a reward is wrong, or if horizon and discount contradict each
        other
    """

    transitions: np.ndarray
    initial: np.ndarray
    horizon: int | None = None
    discount: float = 1.0
    reward: np.ndarray | None = None
    expert: np.ndarray | None = None
    _kernels: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        transitions = np.ascontiguousarray(self.transitions, dtype=float)
        initial = np.asarray(self.initial, dtype=float)
        if self.horizon is None and not 0.0 < self.discount < 1.0:
            raise ValueError(
                f"discount is {self.discount} without a horizon, expected a number in (0, 1): give a horizon or a discount."
            )
        if self.horizon is not None and (self.horizon < 1 or self.discount != 1.0):
            raise ValueError(
                f"horizon is {self.horizon} with discount {self.discount}, expected horizon >= 1 with discount 1: drop one."
            )
        per_step = transitions.ndim == 4
        if per_step and (self.horizon is None or transitions.shape[0] != self.horizon - 1):
            raise ValueError(
                f"transitions have shape {transitions.shape}, expected (S, A, S), or (horizon - 1, S, A, S) with a horizon: "
                "reshape them."
            )
        if (
            transitions.ndim not in (3, 4)
            or transitions.shape[-1] != transitions.shape[-3]
            or transitions.shape[-1] != initial.size
        ):
            raise ValueError(
                f"transitions have shape {transitions.shape} and initial has shape {initial.shape}, expected (S, A, S) and "
                "(S,): reshape them."
            )
        if (transitions < 0).any() or not np.allclose(transitions.sum(axis=-1), 1.0, atol=1e-9):
            raise ValueError(
                "a row P(. | s, a) of transitions is no probability distribution: normalise the last axis to sum to 1."
            )
        if (initial < 0).any() or not np.isclose(initial.sum(), 1.0, atol=1e-9):
            raise ValueError(
                f"initial sums to {initial.sum():.6g}, expected a probability distribution: normalise it to sum to 1."
            )
        n_states, n_actions = transitions.shape[-3], transitions.shape[-2]
        object.__setattr__(self, "transitions", transitions)
        object.__setattr__(self, "initial", initial)
        shape = transitions.shape[:-3] + (n_states * n_actions, n_states)
        object.__setattr__(self, "_kernels", transitions.reshape(shape))
        if self.reward is not None:
            if not np.isfinite(self.reward).all():
                raise ValueError("reward has NaN or infinite numbers, expected finite ones: replace them, or pass None.")
            object.__setattr__(self, "reward", np.broadcast_to(np.asarray(self.reward, dtype=float), self.shape))
        if self.expert is not None:
            object.__setattr__(self, "expert", self._expert_probabilities(np.asarray(self.expert)))

    def _expert_probabilities(self, expert: np.ndarray) -> np.ndarray:
        if np.issubdtype(expert.dtype, np.integer) and expert.shape in (self.shape[-2:-1], self.shape[:-1]):
            if expert.min() < 0 or expert.max() >= self.n_actions:
                raise ValueError(
                    f"expert has actions from {expert.min()} to {expert.max()}, expected 0 to {self.n_actions - 1}: pass "
                    "indices of actions."
                )
            return np.broadcast_to(np.eye(self.n_actions)[expert], self.shape)
        if expert.shape not in (self.shape[-2:], self.shape):
            raise ValueError(
                f"expert has shape {expert.shape} and dtype {expert.dtype}, expected integer actions of shape "
                f"{self.shape[:-1]} or probabilities of shape {self.shape}: reshape it."
            )
        if not (expert >= 0).all() or not np.allclose(expert.sum(axis=-1), 1.0, atol=1e-9):
            raise ValueError(
                "a row of expert is no probability distribution over actions: normalise the last axis to sum to 1, also in "
                "states that the expert does not reach."
            )
        return np.broadcast_to(expert.astype(float), self.shape)

    @classmethod
    def from_layers(
        cls,
        layers: list[np.ndarray],
        initial: np.ndarray,
        reward: list[np.ndarray] | None = None,
        expert: list[np.ndarray] | None = None,
    ) -> TabularMDP:
        """
        A finite-horizon MDP from layers of different sizes; smaller layers are padded with states that nothing reaches.

        :param layers: the H - 1 transition tables, the h-th of shape (S_h, A, S_{h+1})
        :param initial: rho over the first layer, shape (S_1,)
        :param reward: H reward tables of shape (S_h, A), or None
        :param expert: H integer arrays of shape (S_h,), or None
        :return: the padded MDP, with S = max_h S_h
        """
        sizes = [table.shape[0] for table in layers] + [layers[-1].shape[2]]
        n_states, n_actions, horizon = max(sizes), layers[0].shape[1], len(sizes)
        transitions = np.zeros((horizon - 1, n_states, n_actions, n_states))
        transitions[..., 0] = 1.0  # where the padding goes does not matter: it is never entered
        for h, table in enumerate(layers):
            transitions[h, : sizes[h]] = 0.0
            transitions[h, : sizes[h], :, : sizes[h + 1]] = table
        rho = np.zeros(n_states)
        rho[: sizes[0]] = initial
        rewards = actions = None
        if reward is not None:
            rewards = np.zeros((horizon, n_states, n_actions))
            for h, table in enumerate(reward):
                rewards[h, : sizes[h]] = table
        if expert is not None:
            actions = np.zeros((horizon, n_states), dtype=int)
            for h, row in enumerate(expert):
                actions[h, : sizes[h]] = row
        return cls(transitions, rho, horizon=horizon, reward=rewards, expert=actions)

    @property
    def n_states(self) -> int:
        """Number of states S (per layer)."""
        return self.transitions.shape[-1]

    @property
    def n_actions(self) -> int:
        """Number of actions A."""
        return self.transitions.shape[-2]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a Q-function, a reward, a policy or an occupancy: (H, S, A) or (S, A)."""
        pairs = (self.n_states, self.n_actions)
        return pairs if self.horizon is None else (self.horizon, *pairs)

    @property
    def start_scale(self) -> float:
        """Factor of the initial-state term in the objectives: 1 with a horizon, 1 - gamma without."""
        return 1.0 if self.horizon is not None else 1.0 - self.discount

    def kernel(self, h: int = 0) -> np.ndarray:
        """
        Transitions of step h as a matrix.

        :param h: step, counted from 0, default 0
        :return: shape (S * A, S), not a copy
        """
        return self._kernels if self._kernels.ndim == 2 else self._kernels[h]

    def start_value(self, v: np.ndarray) -> float:
        """
        The initial-state term of the objectives: E_rho[V(s_1)], times 1 - gamma without a horizon.

        :param v: state values, shape (H, S) or (S,)
        """
        return self.start_scale * float(self.initial @ (v if self.horizon is None else v[0]))

    def start_source(self) -> np.ndarray:
        """The gradient of :meth:`start_value` with respect to v, which is also where occupancies come from."""
        source = np.zeros(self.shape[:-1])
        source[... if self.horizon is None else 0] = self.start_scale * self.initial
        return source

    def backup(self, v: np.ndarray) -> np.ndarray:
        """
        The expected (discounted) next value, gamma * P v; after the last step it is 0.

        :param v: state values, shape (H, S) or (S,)
        :return: shape (H, S, A) or (S, A)
        """
        if self.horizon is None:
            return self.discount * (self.kernel() @ v).reshape(self.shape)
        out = np.zeros(self.shape)
        if self._kernels.ndim == 2:
            out[:-1] = (v[1:] @ self._kernels.T).reshape(self.horizon - 1, self.n_states, self.n_actions)
        else:
            for h in range(self.horizon - 1):
                out[h] = (self._kernels[h] @ v[h + 1]).reshape(self.n_states, self.n_actions)
        return out

    def soft_optimal(self, reward: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """
        Soft-optimal values of a reward: V = LSE(r + gamma P V), Q = r + gamma P V (the constraint of the paper's Dual V-DM).

        :param reward: shape ``shape``
        :param alpha: temperature, > 0
        :return: q of shape ``shape``, v, and the softmax policy, which is soft-optimal
        """
        if self.horizon is None:
            return self._soft_optimal_discounted(reward, alpha)
        shape = (self.n_states, self.n_actions)
        q = np.empty(self.shape)
        v = np.empty(self.shape[:-1])
        policy = np.empty(self.shape)
        inverse = 1.0 / alpha
        for h in range(self.horizon - 1, -1, -1):
            if h == self.horizon - 1:
                q[h] = reward[h]
            else:
                np.add(reward[h], (self.kernel(h) @ v[h + 1]).reshape(shape), out=q[h])
            top = q[h].max(axis=1)
            weights = np.exp((q[h] - top[:, None]) * inverse)
            total = weights.sum(axis=1)
            v[h] = top + alpha * np.log(total)
            np.divide(weights, total[:, None], out=policy[h])
        return q, v, policy

    def _soft_optimal_discounted(self, reward: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Soft policy iteration is Newton's method on V = LSE(r + gamma P V): quadratic, so the values come out at rounding
        # error.
        v = logsumexp(reward, alpha) / (1.0 - self.discount)
        for _ in range(200):
            q = reward + self.backup(v)
            policy = softmax(q, alpha)
            residual = logsumexp(q, alpha) - v
            if np.abs(residual).max() <= 1e-14 * max(1.0, float(np.abs(v).max())):
                break
            v = v + np.linalg.solve(np.eye(self.n_states) - self.discount * self.policy_kernel(policy), residual)
        q = reward + self.backup(v)
        return q, logsumexp(q, alpha), softmax(q, alpha)

    def policy_kernel(self, policy: np.ndarray) -> np.ndarray:
        """
        State transitions of a stationary policy.

        :param policy: shape (S, A)
        :return: shape (S, S)
        """
        return np.einsum("sa,sat->st", policy, self.transitions)

    def pair_mass(self, policy: np.ndarray, source: np.ndarray, pair_source: np.ndarray | None = None) -> np.ndarray:
        """
        Push mass through the chain of a policy: m(s, a) = pair_source(s, a) + x(s) policy(a|s) with
        x(s') = source(s') + gamma * sum_{s, a} m(s, a) P(s'|s, a).

        With :meth:`start_source` this is the occupancy. In general it is the adjoint of soft planning: the gradient with
        respect to the reward of a function of v and q with partial derivatives ``source`` and ``pair_source``, ``policy``
        being the soft-optimal one.

        :param policy: shape ``shape``
        :param source: mass injected at states, shape (H, S) or (S,)
        :param pair_source: mass injected at pairs, shape ``shape``, default none
        :return: mass of the pairs, shape ``shape``
        """
        if self.horizon is None:
            if pair_source is not None:
                source = source + self.discount * (pair_source.ravel() @ self.kernel())
            system = np.eye(self.n_states) - self.discount * self.policy_kernel(policy).T
            mass = np.linalg.solve(system, source)[:, None] * policy
            return mass if pair_source is None else mass + pair_source
        mass = np.empty(self.shape)
        state_mass = source[0]
        for h in range(self.horizon):
            np.multiply(state_mass[:, None], policy[h], out=mass[h])
            if pair_source is not None:
                mass[h] += pair_source[h]
            if h < self.horizon - 1:
                state_mass = source[h + 1] + mass[h].ravel() @ self.kernel(h)
        return mass

    def occupancy(self, policy: np.ndarray) -> np.ndarray:
        """
        State-action occupancy: d_h(s, a), summing to 1 per step; or (1 - gamma) sum_t gamma^t P(s_t = s, a_t = a), summing
        to 1.

        :param policy: shape ``shape``
        :return: shape ``shape``
        """
        return self.pair_mass(policy, self.start_source())

    def successor_mass(self, pair_mass: np.ndarray) -> np.ndarray:
        """
        Where mass on pairs goes in one step, gamma included; the adjoint of :meth:`backup`.

        :param pair_mass: shape ``shape``
        :return: shape (H, S) or (S,)
        """
        if self.horizon is None:
            return self.discount * (pair_mass.ravel() @ self.kernel())
        out = np.zeros(self.shape[:-1])
        for h in range(self.horizon - 1):
            out[h + 1] = pair_mass[h].ravel() @ self.kernel(h)
        return out

    def reachable(self) -> np.ndarray:
        """Which pairs some policy visits with positive probability: bool of shape ``shape``."""
        return self.occupancy(self.uniform_policy()) > 0

    def policy_return(self, policy: np.ndarray) -> float:
        """
        Expected return of a policy under the true reward: the sum over steps, or the discounted sum.

        :param policy: shape ``shape``
        :raises ValueError: if the MDP has no reward
        """
        if self.reward is None:
            raise ValueError("this MDP has no reward, expected one to evaluate a policy: pass reward= when building it.")
        return float((self.occupancy(policy) * self.reward).sum()) / self.start_scale

    def imitation_gap(self, policy: np.ndarray) -> float:
        """
        Expected return of the expert minus that of a policy.

        :param policy: shape ``shape``
        :raises ValueError: if the MDP has no reward or no expert
        """
        return self.policy_return(self.require_expert()) - self.policy_return(policy)

    def require_expert(self) -> np.ndarray:
        """
        The expert's action probabilities, shape ``shape``.

        :raises ValueError: if the MDP has no expert
        """
        if self.expert is None:
            raise ValueError("this MDP has no expert, expected one: pass expert= when building it.")
        return self.expert

    def uniform_policy(self) -> np.ndarray:
        """The policy that draws every action with the same probability."""
        return np.full(self.shape, 1.0 / self.n_actions)

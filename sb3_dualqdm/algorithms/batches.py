"""The batches that updates learn from: stored rows as the networks take them, with weights and noise beside them."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from sb3_dualqdm.acceleration import leaves, tree_map
from sb3_dualqdm.buffers import Obs, RawRows, as_tensor
from sb3_dualqdm.demonstrations.types import map_obs
from sb3_dualqdm.objectives import RowWeights


class Noise(NamedTuple):
    """
    Standard normal noise for the policy samples of an update, S for each state; None for exact policies.

    :param obs: for the batch's observations, shape ``(S, n + m, |A|)``
    :param next_obs: for the next observations, same shape
    :param initial_obs: for the initial states, shape ``(S, n, |A|)``, or None
    :param uniform: uniform numbers in [0, 1] for methods that need some, shape ``(n + m, k)``, or None
    """

    obs: th.Tensor | None
    next_obs: th.Tensor | None
    initial_obs: th.Tensor | None
    uniform: th.Tensor | None = None


class Batch(NamedTuple):
    """
    Everything that one update depends on beside the parameters, on the device: ``n`` replay rows first, then ``m`` expert
    rows. A training phase's batches are made at once, with a leading axis.

    :param obs: normalised observations, shape ``(n + m, ...)``, or a dict of them
    :param actions: ``(n + m, |A|)`` in [-1, 1] for Box, ``(n + m,)`` integers for Discrete
    :param next_obs: normalised next observations
    :param not_terminated: 1 unless terminated, shape ``(n + m,)``
    :param weights: the expectations over these rows, and over the absorbing rows appended to them
    :param initial_obs: normalised initial states, or None when no term needs them
    :param noise: noise of the policy samples
    """

    obs: Any
    actions: th.Tensor
    next_obs: Any
    not_terminated: th.Tensor
    weights: RowWeights
    initial_obs: Any | None
    noise: Noise

    def at(self, index: int) -> Batch:
        """One of the batches along the leading axis."""
        return tree_map(itemgetter(index), self)

    def expert_rows(self) -> tuple[Any, th.Tensor]:
        """Observations and actions of the expert rows."""
        is_expert = self.weights.expert[: len(self.actions)] > 0
        return map_obs(lambda tensor: tensor[is_expert], self.obs), self.actions[is_expert]

    def replay_part(self, n_replay: int) -> Batch:
        """The replay rows alone, with the absorbing rows that follow them."""
        n = len(self.not_terminated)

        def first(tensor: th.Tensor) -> th.Tensor:
            return tensor[:n_replay]

        weights = self.weights._replace(actor=self.weights.replay)
        return self._replace(
            obs=map_obs(first, self.obs),
            actions=first(self.actions),
            next_obs=map_obs(first, self.next_obs),
            not_terminated=first(self.not_terminated),
            weights=RowWeights(*(th.cat([w[:n_replay], w[n : n + n_replay]]) for w in weights)),
            noise=self.noise._replace(
                obs=None if self.noise.obs is None else self.noise.obs[:, :n_replay],
                next_obs=None if self.noise.next_obs is None else self.noise.next_obs[:, :n_replay],
            ),
        )


class NetworkInputs(NamedTuple):
    """
    How stored data become inputs of the networks.

    :param device: device of the networks
    :param action_space: Box or Discrete
    :param vec_normalize: normalises observations with its current statistics; None leaves them as they are
    """

    device: th.device
    action_space: spaces.Space
    vec_normalize: VecNormalize | None

    def obs(self, obs: Obs) -> Any:
        """Observations, raw and of any leading shape."""
        if self.vec_normalize is not None:
            on_host = map_obs(lambda array: array.cpu().numpy() if isinstance(array, th.Tensor) else array, obs)
            obs = self.vec_normalize.normalize_obs(on_host)

        def convert(array: Any) -> th.Tensor:
            tensor = as_tensor(array, self.device)
            return tensor.float() if tensor.dtype == th.float64 else tensor

        return map_obs(convert, obs)

    def actions(self, actions: th.Tensor) -> th.Tensor:
        """Actions as the buffers store them."""
        is_discrete = isinstance(self.action_space, spaces.Discrete)
        return actions.to(self.device).long().squeeze(-1) if is_discrete else actions.to(self.device, th.float32)

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> th.Tensor | None:
        """Standard normal noise for policy samples of the given shape; None for Discrete actions, whose policy is exact."""
        if isinstance(self.action_space, spaces.Discrete):
            return None
        size = math.prod(self.action_space.shape)  # type: ignore[arg-type]
        return th.as_tensor(rng.standard_normal((*shape, size), dtype=np.float32), device=self.device)

    def batches(
        self,
        rows: RawRows,
        weights: RowWeights,
        initial_states: Obs | None,
        rng: np.random.Generator,
        n_samples: int,
        n_uniform: int,
    ) -> Batch:
        """
        Batches of rows, stacked along a leading axis.

        :param rows: rows of K batches, with leading axes ``(K, n)``
        :param weights: the expectations over them
        :param initial_states: raw initial states, with two leading axes as well, or None
        :param rng: where noise is drawn from
        :param n_samples: policy samples for each state
        :param n_uniform: uniform numbers for each row
        """
        n_batches, n_rows = rows.terminated.shape
        noise = self.noise((n_batches, n_samples, n_rows), rng)
        next_noise = self.noise((n_batches, n_samples, n_rows), rng)
        initial_obs = initial_noise = uniform = None
        if initial_states is not None:
            initial_obs = self.obs(initial_states)
            initial_noise = self.noise((n_batches, n_samples, leaves(initial_obs)[0].shape[1]), rng)
        if n_uniform > 0:
            uniform = th.as_tensor(rng.random((n_batches, n_rows, n_uniform), dtype=np.float32), device=self.device)
        return Batch(
            obs=self.obs(rows.obs),
            actions=self.actions(rows.actions),
            next_obs=self.obs(rows.next_obs),
            not_terminated=(~rows.terminated).to(self.device, th.float32),
            weights=weights,
            initial_obs=initial_obs,
            noise=Noise(noise, next_noise, initial_noise, uniform),
        )

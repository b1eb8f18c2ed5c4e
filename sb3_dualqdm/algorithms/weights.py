"""
The expectations of the objectives as weights over the rows of a batch.

Replay rows come first, expert rows second, then one absorbing row for each of them, which counts where its row terminated (as
that row does).
"""

from __future__ import annotations

from functools import lru_cache

import torch as th
from torch.nn import functional as F

from sb3_dualqdm.buffers import RawRows
from sb3_dualqdm.objectives import RowWeights


def row_weights(
    rows: RawRows, n_replay: int, device: th.device, gamma: float, objective: str, terminal_value: str
) -> RowWeights:
    """
    Weights of batches, each of shape ``(K, M)``.

    :param rows: rows of K batches, of which ``terminated`` and ``step`` are read, shape ``(K, n)``
    :param n_replay: how many of the n are replay rows
    :param device: where the weights are needed
    :param gamma: discount
    :param objective: ``"reference"``: every row of a kind counts the same; ``"paper"``: by gamma^t of its step t
    :param terminal_value: ``"absorbing"``: absorbing rows follow, M = 2n; ``"zero"``: M = n
    """
    terminated = rows.terminated.to(device).unsqueeze(-2)
    weights = _equal(terminated.shape[-1], n_replay, device).expand(len(terminated), 5, -1)
    is_paper = objective == "paper"
    if is_paper and n_replay > 0:
        weights = _by_occupancy(weights, rows.step.to(device), n_replay, gamma)
    if terminal_value == "absorbing":
        weights = th.cat([weights, weights * terminated], dim=-1)
        if is_paper:
            weights = _with_absorbing_occupancy(weights, n_replay, gamma)
    return RowWeights(*weights.float().unbind(dim=-2))


@lru_cache(maxsize=8)
def _equal(n: int, n_replay: int, device: th.device) -> th.Tensor:
    """Fields of :class:`RowWeights` where every row of a kind counts the same, shape ``(5, n)``; never written to."""
    expert = th.zeros(n, dtype=th.float64, device=device)
    expert[n_replay:] = 1 / max(n - n_replay, 1)
    everywhere = th.full_like(expert, 1 / n)
    replay = th.zeros_like(expert)
    replay[:n_replay] = 1 / max(n_replay, 1)
    return th.stack([expert, everywhere, everywhere, everywhere, replay])


def _by_occupancy(weights: th.Tensor, step: th.Tensor, n_replay: int, gamma: float) -> th.Tensor:
    """
    Weights of the paper's objective: replay rows by gamma^t of their step t, constraints and actor on replay rows.

    Expert rows are drawn with probability proportional to gamma^t already, replay rows uniformly. Only relative weights
    matter, and gamma^t of a long episode is not representable.
    """
    expert, replay = weights[..., 0, :], weights[..., 4, :]
    step = step[..., :n_replay].double()
    occupancy = gamma ** (step - step.amin(dim=-1, keepdim=True))
    occupancy = F.pad(occupancy / occupancy.sum(dim=-1, keepdim=True), (0, expert.shape[-1] - n_replay))
    return th.stack([expert, (expert + occupancy) / 2, replay, replay, replay], dim=-2)


def _with_absorbing_occupancy(weights: th.Tensor, n_replay: int, gamma: float) -> th.Tensor:
    """The absorbing state is occupied for ever: gamma + gamma^2 + ... times as much as the row that led to it."""
    n = weights.shape[-1] // 2
    scale = th.ones(2 * n, dtype=weights.dtype, device=weights.device)
    scale[n:] = gamma / (1 - gamma)
    is_expert = (th.arange(2 * n, device=weights.device) % n) >= n_replay

    def normalised(weight: th.Tensor) -> th.Tensor:
        return weight / weight.sum(dim=-1, keepdim=True)

    expert, value, *others = weights.unbind(dim=-2)
    sides = [is_expert] if n_replay == 0 else [is_expert, ~is_expert]
    value = th.stack([normalised(value * scale * side) for side in sides]).mean(dim=0)
    return th.stack([normalised(expert * scale), value, *others], dim=-2)

"""
The expectations of the objectives as weights over the rows of a batch.

Replay rows come first, expert rows second, then one absorbing row for each of them. In the reference's objective it counts
where its row terminated, as that row does; in the paper's all of them have the absorbing state's share of the occupancy.
"""

from __future__ import annotations

from functools import lru_cache

import torch as th
from torch.nn import functional as F

from sb3_dualqdm.buffers import RawRows
from sb3_dualqdm.objectives import RowWeights


def row_weights(
    rows: RawRows,
    n_replay: int,
    device: th.device,
    gamma: float,
    objective: str,
    terminal_value: str,
    subsampling: int = 1,
    absorbing_shares: tuple[float, float] = (0.0, 0.0),
) -> RowWeights:
    """
    Weights of batches, each of shape ``(K, M)``.

    :param rows: rows of K batches, of which ``terminated`` and ``step`` are read, shape ``(K, n)``
    :param n_replay: how many of the n are replay rows
    :param device: where the weights are needed
    :param gamma: discount
    :param objective: ``"reference"``: every row of a kind counts the same; ``"paper"``: by gamma^t of its step t
    :param terminal_value: ``"absorbing"``: absorbing rows follow, M = 2n; ``"zero"``: M = n
    :param subsampling: an expert row on its grid stands for so many rows
    :param absorbing_shares: of the expert's and of the replay's discounted occupancy, for ``"paper"``
    """
    n_batches, n_rows = rows.terminated.shape
    weights = _equal(n_rows, n_replay, device).expand(n_batches, 5, -1)
    is_paper = objective == "paper"
    if is_paper and n_replay > 0:
        weights = _by_occupancy(weights, rows.step.to(device), n_replay, gamma)
    if terminal_value == "absorbing":
        weights = th.cat([weights, weights * _terminations(rows, n_replay, subsampling).to(device).unsqueeze(-2)], dim=-1)
        if is_paper:
            weights = _with_absorbing_occupancy(weights, n_replay, absorbing_shares)
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


def _terminations(rows: RawRows, n_replay: int, subsampling: int) -> th.Tensor:
    """How many absorbing rows each row brings in: of the rows that one on the subsampling grid stands for, one terminates."""
    if subsampling == 1:
        return rows.terminated
    on_grid = rows.step % subsampling == 0
    on_grid[..., :n_replay] = False
    return rows.terminated / th.where(on_grid, subsampling, 1)


def _with_absorbing_occupancy(weights: th.Tensor, n_replay: int, shares: tuple[float, float]) -> th.Tensor:
    """
    Every absorbing row is of the one absorbing state, whose share is that of all stored rows: a batch's own terminations are
    rare and weigh so much (gamma + gamma^2 + ... each) that their ratio to its other rows is far too small on average.
    """
    n = weights.shape[-1] // 2
    share = th.full((n,), shares[0], dtype=weights.dtype, device=weights.device)
    share[:n_replay] = shares[1]
    expert, value, *others = weights.unbind(dim=-2)
    expert, value = (th.cat([(1 - share) * w[..., :n], share * w[..., :n]], dim=-1) for w in (expert, value))
    return th.stack([expert, value, *others], dim=-2)

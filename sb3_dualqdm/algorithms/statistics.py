"""What is logged of a run, and what its numbers warn about."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_dualqdm.algorithms.environments import environment_id
from sb3_dualqdm.demonstrations import Demonstrations, builtin_ids, normalized_score
from sb3_dualqdm.objectives import Rows, RowWeights

# A critic is called diverging when the mean of |Q| exceeds this multiple of the largest value the bounds allow.
DIVERGENCE_FACTOR = 10.0
# Share of clipped demonstration values that is worth a warning
CLIPPED_SHARE = 0.01
# Environment steps until when VecNormalize's statistics fit nothing but the first states
SETTLED_STATISTICS = 1000


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


class RunWarnings:
    """The warnings of a run, each given once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def _once(self, kind: str, message: str) -> None:
        if kind not in self._given:
            self._given.add(kind)
            warnings.warn(message, UserWarning, stacklevel=3)

    def divergence(self, means: dict[str, float], largest: float, n_updates: int, advice: str) -> None:
        """
        The critic runs away.

        :param means: of statistics, see :func:`row_statistics`
        :param largest: largest |Q| that is plausible, see :func:`largest_value`
        :param n_updates: updates made so far
        :param advice: what can be done about it
        """
        if means.get("q_abs_mean", 0.0) > DIVERGENCE_FACTOR * largest:
            self._once(
                "divergence",
                f"The critic is diverging (mean |Q| is {means['q_abs_mean']:.3g} after {n_updates} updates): {advice}.",
            )

    def clipping(self, venv: VecNormalize | None, obs: Any, num_timesteps: int) -> None:
        """
        Observations of demonstrations that VecNormalize clips have lost what they say.

        :param venv: what normalised them, if anything did
        :param obs: normalised observations of demonstrations, as tensors
        :param num_timesteps: environment steps made so far
        """
        if venv is None or not venv.norm_obs or "clipping" in self._given:
            return
        if venv.training and num_timesteps < SETTLED_STATISTICS:
            return
        values = [obs[key] for key in venv.norm_obs_keys or ()] if isinstance(obs, dict) else [obs]
        n_clipped = sum(int((value.abs() >= venv.clip_obs).sum()) for value in values)
        share = n_clipped / max(sum(value.numel() for value in values), 1)
        if share > CLIPPED_SHARE:
            self._once(
                "clipping",
                f"{share:.1%} of the demonstrations' observation values lie beyond VecNormalize's clip_obs={venv.clip_obs}, "
                "because its statistics come from other states: use normalize_by_demonstrations=True or a larger clip_obs.",
            )

    def no_statistics(self, venv: VecNormalize | None) -> None:
        """Observations are to be normalised, and nothing does so."""
        if venv is None or not venv.norm_obs:
            self._once(
                "no statistics",
                "normalize_by_demonstrations=True was given but no VecNormalize normalises the observations: wrap the "
                "environment (rl_zoo3: normalize: true) or leave it out.",
            )

    def update_ratio(self, n_envs: int, gradient_steps: int) -> None:
        """Several environments, but one update for a step of all of them."""
        if n_envs > 1 and gradient_steps == 1:
            self._once(
                "update ratio",
                f"{n_envs} environments with gradient_steps=1 make one update per {n_envs} steps: "
                "gradient_steps=-1 keeps one update per step.",
            )

    def changed_demonstrations(self, demonstrations: Any) -> None:
        """A file is not the one that the model was trained on."""
        self._once(
            "changed demonstrations",
            f"The demonstrations {demonstrations} have changed since the model was saved: pass demonstrations= to "
            "load() if others are meant.",
        )


def row_statistics(rows: Rows, weights: RowWeights, n_replay: int, terminal_value: str) -> dict[str, th.Tensor]:
    """
    Implicit rewards of expert and replay rows, and the size of Q, as scalars.

    :param rows: replay rows first, then expert rows, then the absorbing rows of ``terminal_value="absorbing"``
    :param weights: which rows are which; HyPE splits batches of one layout in several ways
    :param n_replay: number of replay rows, of which it matters here whether there are any, and any others
    :param terminal_value: see the constructor of the algorithms
    """
    n = len(rows.v) // 2 if terminal_value == "absorbing" else len(rows.v)
    q = rows.q[:, :n]
    r = q - rows.y[:n]
    statistics: dict[str, th.Tensor] = {}
    for name, weight, n_rows in (("expert", weights.expert[:n], n - n_replay), ("replay", weights.replay[:n], n_replay)):
        if n_rows == 0:
            continue
        share = weight / weight.sum()
        mean = (share * r).sum(dim=1, keepdim=True)
        std = (share * (r - mean).square()).sum(dim=1).sqrt()
        statistics[f"implicit_reward_{name}"], statistics[f"implicit_reward_{name}_std"] = mean.mean(), std.mean()
    statistics["q_mean"], statistics["q_abs_mean"] = q.mean(), q.abs().mean()
    statistics["q_min"], statistics["q_max"] = q.aminmax()
    if terminal_value == "absorbing":
        statistics["absorbing_value"] = rows.v[-1]
    return statistics


def check_finite(means: dict[str, float], first_update: int, last_update: int, advice: str) -> None:
    """
    :raises FloatingPointError: when a mean over these updates is NaN or infinite
    """
    bad = ", ".join(name for name, value in means.items() if not math.isfinite(value))
    if bad:
        raise FloatingPointError(
            f"NaN or infinite values were found in {bad} between updates {first_update} and {last_update}: "
            f"check the observations for NaN, or {advice}."
        )


def largest_value(reward: float, ent_coef: float, action_space: Any, gamma: float) -> float:
    """
    Largest |Q| that rewards and the entropy allow.

    :param reward: largest size of a reward
    :param ent_coef: temperature of the entropy
    :param action_space: Box or Discrete
    :param gamma: discount; an episode of 1000 steps stands for the sum without discount
    """
    if isinstance(action_space, spaces.Discrete):
        entropy = math.log(int(action_space.n))
    else:
        entropy = float(np.prod(action_space.shape)) * math.log(2)
    per_step = reward + ent_coef * entropy
    return per_step / (1 - gamma) if gamma < 1 else 1000 * per_step


def record_demonstrations(logger: Logger, demonstrations: Demonstrations) -> None:
    """How much there is to learn from, and what it reaches."""
    logger.record("demonstrations/episodes", demonstrations.n_episodes)
    logger.record("demonstrations/transitions", len(demonstrations))
    if demonstrations.episode_returns is not None:
        logger.record("demonstrations/expert_return", float(np.mean(demonstrations.episode_returns)))


def record_normalized_score(logger: Logger, venv: VecEnv | None, episodes: Iterable[dict[str, Any]] | None) -> None:
    """Between random actions (0) and the built-in expert (1), in the tasks that have one."""
    env_id = environment_id(venv) if episodes else None
    if env_id is not None and env_id in builtin_ids():
        returns = [episode["r"] for episode in episodes or ()]
        logger.record("rollout/normalized_score", float(normalized_score(env_id, returns).mean()))

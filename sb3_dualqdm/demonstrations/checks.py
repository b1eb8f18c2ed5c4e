"""What may be wrong with demonstrations although they can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_dualqdm.demonstrations.collect import env_action
from sb3_dualqdm.demonstrations.successors import Successors, blocks
from sb3_dualqdm.demonstrations.types import Demonstrations, last_rows, map_obs, obs_arrays

TOLERANCE = 1e-4


class Finding(NamedTuple):
    """
    Result of one check.

    :param check: what was looked at.
    :param level: ``"ok"``, ``"note"`` (worth a look) or ``"problem"``.
    :param text: what was found.
    """

    check: str
    level: str
    text: str


def check_demonstrations(demonstrations: Demonstrations) -> list[Finding]:
    """
    Look for what a recording script gets wrong: successors, rewards, lengths, ends, repeated episodes, dead numbers.

    :param demonstrations: the demonstrations.
    :return: one finding per check.
    """
    demos = demonstrations
    checks: tuple[Callable[[Demonstrations], Finding], ...] = (_successors, _rewards, _lengths, _ends, _repeated, _constant)
    return [*(Finding("reading", "note", note) for note in demos.notes), *(check(demos) for check in checks)]


def _successors(demos: Demonstrations) -> Finding:
    """s'[t] == s[t+1] inside every episode."""
    inside = np.ones(len(demos), dtype=bool)
    inside[last_rows(demos.episode)] = False
    inside[:-1] &= np.diff(demos.step) == 1
    broken, drift = np.zeros(len(demos), dtype=bool), 0.0
    for key, following in obs_arrays(demos.next_obs).items():
        if isinstance(following, Successors):
            continue
        obs = obs_arrays(demos.obs)[key]
        for rows in blocks(following[:-1]):
            difference = np.abs(following[rows].astype(np.float64) - obs[rows.start + 1 : rows.stop + 1])
            difference = difference.reshape(len(difference), -1).max(axis=1) * inside[rows]
            broken[rows] |= difference > 0
            drift = max(drift, float(difference.max()))
    if broken.any():
        text = f"{broken.sum()} of {inside.sum()} steps inside episodes have next_obs[t] != obs[t+1], by up to {drift:.3g}"
        return Finding("successors", "problem", text)
    return Finding("successors", "ok", f"next_obs[t] == obs[t+1] in all {inside.sum()} steps inside episodes")


def _rewards(demos: Demonstrations) -> Finding:
    if demos.rewards is None:
        return Finding("rewards", "ok", "none stored, none needed")
    low, high = float(demos.rewards.min()), float(demos.rewards.max())
    if low == high:
        return Finding("rewards", "note", f"all {len(demos)} are {low:g}, so returns say only how long episodes are")
    return Finding("rewards", "ok", f"from {low:.3g} to {high:.3g}")


def _lengths(demos: Demonstrations) -> Finding:
    lengths = demos.episode_lengths
    short = np.flatnonzero(lengths < 0.1 * np.median(lengths))
    if len(short):
        text = f"episode {short[0]} has {lengths[short[0]]} steps but the median is {np.median(lengths):g}"
        return Finding("lengths", "note", f"{text} ({len(short)} such episodes)" if len(short) > 1 else text)
    if (lengths == 1).all() and len(lengths) > 1:
        return Finding("lengths", "problem", "every episode has 1 step, as of shuffled transitions: start states are unknown")
    return Finding("lengths", "ok", f"from {lengths.min()} to {lengths.max()}")


def _ends(demos: Demonstrations) -> Finding:
    """A limit of the recording that was stored as a termination shows as many ends at one same length."""
    last = last_rows(demos.episode)
    terminated = demos.terminated[last] & (demos.step[last] == demos.episode_lengths - 1)
    longest = demos.episode_lengths == demos.episode_lengths.max()
    if (terminated & longest).sum() > 1:
        n, most = (terminated & longest).sum(), demos.episode_lengths.max()
        text = f"{n} episodes terminate at the same, longest length of {most}"
        text += ": a time limit? (max_episode_steps reads it as truncation where the source has only one flag)"
        return Finding("ends", "note", text)
    return Finding("ends", "ok", f"{terminated.sum()} episodes terminate, {(~terminated).sum()} are cut")


def _repeated(demos: Demonstrations) -> Finding:
    bounds = np.searchsorted(demos.episode, np.arange(demos.n_episodes + 1))
    seen: dict[bytes, int] = {}
    for i in range(demos.n_episodes):
        rows = slice(bounds[i], bounds[i + 1])
        content = b"".join(array[rows].tobytes() for array in obs_arrays(demos.obs).values()) + demos.actions[rows].tobytes()
        if (first := seen.setdefault(content, i)) != i:
            return Finding("repeated episodes", "problem", f"episode {i} is the same as episode {first}")
    return Finding("repeated episodes", "ok", "none")


def _constant(demos: Demonstrations) -> Finding:
    constant = []
    arrays = {f"obs {key}".strip(): array for key, array in obs_arrays(demos.obs).items()}
    for key, array in (arrays | {"actions": demos.actions}).items():
        if array.ndim <= 2 and len(array) > 1:
            same = np.atleast_1d((array == array[0]).all(axis=0))
            constant += [f"{key}[{i}]" for i in np.flatnonzero(same)]
    if constant:
        return Finding("constant numbers", "note", ", ".join(constant[:8]) + (", ..." if len(constant) > 8 else ""))
    return Finding("constant numbers", "ok", "none")


def check_actions(demonstrations: Demonstrations, space: spaces.Space) -> Finding:
    """
    Look for actions at the bounds of their space, where the data say least about what the expert wanted.

    :param demonstrations: demonstrations that fit the space.
    :param space: the action space.
    :return: the finding.
    """
    if isinstance(space, spaces.Box):
        share = at_bounds(demonstrations.actions, space)
        text = f"{100 * share.mean():.1f} % of numbers at the bounds, at most {100 * share.max():.1f} % of one action"
        return Finding("actions at the bounds", "note" if share.max() > 0.5 else "ok", text)
    n = int(getattr(space, "n", 0))
    missing = sorted(set(range(n)) - set((demonstrations.actions - getattr(space, "start", 0)).tolist()))
    text = f"never taken: {', '.join(map(str, missing))}" if missing else f"all {n} are taken"
    return Finding("actions", "note" if missing else "ok", text)


def at_bounds(actions: np.ndarray, space: spaces.Box) -> np.ndarray:
    """
    How often each number of an action lies at a bound.

    :param actions: actions, shape (T, \\*shape).
    :param space: their space.
    :return: shares from 0 to 1, shape (numbers,).
    """
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)  # integers may overflow, booleans do not subtract
    slack = 1e-3 * (high - low)
    return ((actions <= low + slack) | (actions >= high - slack)).reshape(len(actions), -1).mean(axis=0)


def replay(demonstrations: Demonstrations, env: gym.Env, seeds: np.ndarray | None = None) -> Iterator[Finding]:
    """
    Take the recorded actions in the environment, from the recorded seeds, and compare what happens with what is stored.

    :param demonstrations: whole episodes that fit the environment's spaces.
    :param env: the environment; episodes in which it ends earlier are problems.
    :param seeds: seed of each episode, default the recorded ones; episodes with -1 are left out.
    :return: a finding per episode.
    :raises ValueError: if steps are missing, or there are no seeds.
    """
    demos = demonstrations
    seeds = demos.seeds if seeds is None else seeds
    if seeds is None or not (seeds >= 0).any():
        raise ValueError(f"{demos.source} has no recorded seeds to replay from: pass the seed of the first episode.")
    for i, episode in enumerate(demos.to_dicts()):
        if seeds[i] >= 0:
            yield _replayed(episode, env, int(seeds[i]), f"replay of episode {i} (seed {seeds[i]})")


def _replayed(episode: dict[str, Any], env: gym.Env, seed: int, name: str) -> Finding:
    obs, _ = env.reset(seed=seed)
    worst = _drift(obs, episode["obs"], 0)
    for t, action in enumerate(episode["acts"]):
        if not worst <= TOLERANCE:
            return Finding(name, "problem", f"the observation at step {t} differs by {worst:.3g}")
        obs, reward, terminated, truncated, _ = env.step(env_action(action, env.action_space))
        worst = float(np.maximum(worst, _drift(obs, episode["obs"], t + 1)))  # NaN stays
        if episode["rews"] is not None and not np.isclose(float(reward), episode["rews"][t], rtol=TOLERANCE, atol=TOLERANCE):
            text = f"the reward at step {t} is {float(reward):.5g}, stored is {episode['rews'][t]:.5g}"
            return Finding(name, "problem", text)
        last = t == len(episode["acts"]) - 1
        if terminated != (last and episode["terminal"]) or (truncated and not last):
            text = f"at step {t} the environment says terminated={terminated}, truncated={truncated}"
            return Finding(name, "problem", f"{text}, stored is terminated={last and episode['terminal']}")
    if not worst <= TOLERANCE:
        return Finding(name, "problem", f"the final observation differs by {worst:.3g}")
    return Finding(name, "ok", f"{len(episode['acts'])} steps agree to {worst:.1g}")


def _drift(obs: Any, stored: Any, row: int) -> float:
    """Largest difference, relative for large numbers."""
    pairs = zip(obs_arrays(map_obs(np.asarray, obs)).values(), (obs_arrays(stored)[key] for key in obs_arrays(obs)))
    floats = [(a.astype(float), b[row]) for a, b in pairs]  # integers of few bits would overflow
    return float(np.max([(np.abs(a - b) / (1 + np.abs(a))).max(initial=0.0) for a, b in floats]))

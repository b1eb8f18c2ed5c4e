"""The one internal form of demonstrations: flat transition arrays with an episode index."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import os
from collections.abc import Callable, Iterable
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sb3_dualqdm.demonstrations.successors import Successors

if TYPE_CHECKING:
    from gymnasium import spaces

Obs: TypeAlias = Any  # np.ndarray (for next_obs also Successors), or a dict of them

FORMAT_KEY = "sb3_dualqdm_format"
FORMAT_VERSION = 2
_PLAIN = ("actions", "terminated", "truncated", "rewards", "episode", "step")
_PER_EPISODE = ("episode_returns", "episode_lengths", "episode_indices", "reinterpreted", "single_flag", "seeds")


def map_obs(function: Callable[[Any], Any], obs: Any) -> Any:
    """
    Apply a function to an observation array (or tensor), or to each of a dict of them.

    :param function: function of one array.
    :param obs: observations.
    :return: the results, in the same structure.
    """
    return {key: function(value) for key, value in obs.items()} if isinstance(obs, dict) else function(obs)


def obs_arrays(obs: Obs) -> dict[str, np.ndarray]:
    """
    Observations as named arrays.

    :param obs: observations.
    :return: the dict itself, or the single array under the name ``""``.
    """
    return obs if isinstance(obs, dict) else {"": obs}


def last_rows(episode: np.ndarray) -> np.ndarray:
    """
    Rows at which episodes end.

    :param episode: index of the episode of each row, shape (T,).
    :return: their last rows, int64, shape (E,).
    """
    return np.append(np.flatnonzero(np.diff(episode)), len(episode) - 1)


def _frozen(array: Any) -> Any:
    if isinstance(array, np.ndarray) and array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Demonstrations:
    """
    Expert transitions of whole or subsampled episodes, raw (never normalised), as read-only flat arrays.

    T is the number of transitions kept, E the number of episodes. Rows are ordered by episode, then by step. The last step
    of every episode is terminated, truncated or both: a recording that merely stops counts as truncated.

    :param obs: observations, shape (T, \\*shape), or a dict of such arrays for Dict spaces.
    :param next_obs: true one-step successors, same shapes; the terminal observation at the end of an episode. Where they
        repeat obs, they are kept as :class:`Successors`, an array-like that stores the final observations only.
    :param actions: actions in the environment's units, shape (T, \\*shape).
    :param terminated: the task ended in this step, bool, shape (T,).
    :param truncated: the episode was cut after this step (time limit, end of the recording), bool, shape (T,).
    :param rewards: float32, shape (T,), or None; only reported, never learned from.
    :param episode: index of the episode in this set, int64, shape (T,).
    :param step: step in the original episode, kept through subsampling, int64, shape (T,).
    :param episode_returns: undiscounted returns of the original episodes, float64, shape (E,), or None.
    :param episode_lengths: lengths of the original episodes, int64, shape (E,).
    :param episode_indices: index of each episode in the source, int64, shape (E,).
    :param reinterpreted: episodes whose terminal flag was read as a time limit, bool, shape (E,), default none.
    :param single_flag: episodes whose source has one flag for both kinds of ends, so that ``terminated`` may mean the time
        limit, bool, shape (E,), or None (default): none.
    :param seeds: seed that each episode was reset with, int64, shape (E,), -1 where unknown, or None (default).
    :param source: where the data came from, for people.
    :param spec: path or ``"builtin:<id>"`` from which they can be loaded again, or None.
    :param sha256: hash of the file or folder ``spec`` names, or None.
    :param subsampling: only every such step of an episode was kept, default 1.
    :param notes: what was changed in reading, such as casts, default none.
    :raises ValueError: if the arrays are empty, hold objects or do not fit together.
    """

    obs: Obs
    next_obs: Obs
    actions: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    rewards: np.ndarray | None
    episode: np.ndarray
    step: np.ndarray
    episode_returns: np.ndarray | None
    episode_lengths: np.ndarray
    episode_indices: np.ndarray
    reinterpreted: np.ndarray = None  # type: ignore[assignment]
    single_flag: np.ndarray | None = None
    seeds: np.ndarray | None = None
    source: str = "arrays"
    spec: str | None = None
    sha256: str | None = None
    subsampling: int = 1
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.reinterpreted is None:
            object.__setattr__(self, "reinterpreted", np.zeros(len(self.episode_lengths), dtype=bool))
        for name in ("obs", "next_obs"):
            object.__setattr__(self, name, map_obs(_frozen, getattr(self, name)))
        for name in _PLAIN + _PER_EPISODE:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _frozen(value))
        self._check_structure()
        self._store_once()

    def _store_once(self) -> None:
        """Drop successors that repeat the observations."""
        last, obs = last_rows(self.episode), obs_arrays(self.obs)
        following: dict[str, Any] = dict(obs_arrays(self.next_obs))
        for key, value in following.items():
            if isinstance(value, Successors):
                following[key] = Successors(obs[key], value.final, last)
            elif (chained := Successors.of(obs[key], value, last)) is not None:
                following[key] = chained
        object.__setattr__(self, "next_obs", following if isinstance(self.next_obs, dict) else following[""])

    def _check_structure(self) -> None:
        obs, next_obs = obs_arrays(self.obs), obs_arrays(self.next_obs)
        if obs.keys() != next_obs.keys():
            raise ValueError(
                f"{self.source}: obs has the keys {sorted(obs)} but next_obs {sorted(next_obs)}: store the same keys in both."
            )
        rows = {f"obs {key}".strip(): value for key, value in obs.items()}
        rows |= {f"next_obs {key}".strip(): value for key, value in next_obs.items()}
        rows |= {name: getattr(self, name) for name in _PLAIN if getattr(self, name) is not None}
        per_episode = {name: getattr(self, name) for name in _PER_EPISODE if getattr(self, name) is not None}
        for name, array in (rows | per_episode).items():
            if array.dtype.kind not in "biuf":
                raise ValueError(
                    f"{self.source}: {name} has the dtype {array.dtype} but only bool, integer and float arrays are read: "
                    "store plain numbers."
                )
        n_rows = {name: len(array) if array.ndim else None for name, array in rows.items()}
        if len(set(n_rows.values())) > 1:
            raise ValueError(f"{self.source}: arrays of different lengths {n_rows}: store one row per transition in each.")
        if len(self) == 0:
            raise ValueError(f"{self.source} holds no transition, but at least 1 is needed: pass an episode.")
        for key, value in obs.items():
            if value.shape != next_obs[key].shape:
                raise ValueError(
                    f"{self.source}: obs {key} has the shape {value.shape} but next_obs {next_obs[key].shape}: "
                    "store the successor of every observation in the same shape."
                )
        if (
            len({len(array) for array in per_episode.values()}) > 1
            or self.episode[0] != 0
            or self.episode[-1] != self.n_episodes - 1
            or not np.isin(np.diff(self.episode), (0, 1)).all()
        ):
            raise ValueError(
                f"{self.source}: the episode index must count 0, 1, ..., {self.n_episodes - 1}, and the per-episode arrays "
                "need one value each: sort the rows by episode."
            )

    def __len__(self) -> int:
        return len(self.episode)

    def __repr__(self) -> str:
        return f"<Demonstrations {self.summary()}>"

    @property
    def n_episodes(self) -> int:
        """Number of episodes E."""
        return len(self.episode_lengths)

    @property
    def initial_obs(self) -> Obs:
        """First observations of the episodes, shape (E, \\*shape)."""
        return map_obs(operator.itemgetter(self.step == 0), self.obs)

    def _replace(self, **changes: Any) -> Demonstrations:
        return dataclasses.replace(self, **changes)

    def _rows(self, index: np.ndarray | slice, **changes: Any) -> Demonstrations:
        def take(array: Any) -> Any:
            # a copy of a slice, too: a view would keep the whole set in memory
            return array[index].copy() if isinstance(index, slice) and isinstance(array, np.ndarray) else array[index]

        rows = {name: take(value) for name in _PLAIN if (value := getattr(self, name)) is not None}
        return self._replace(**(rows | {"obs": map_obs(take, self.obs), "next_obs": map_obs(take, self.next_obs)} | changes))

    def select(self, episodes: int | Iterable[int]) -> Demonstrations:
        """
        Keep some episodes.

        :param episodes: the first n episodes (an int), or a list of episode indices of this set, in the order wanted.
        :return: the selected episodes, re-counted from 0; ``episode_indices`` still name them in the source.
        :raises ValueError: if there is no such episode, an index is repeated, or nothing is selected.
        """
        if not isinstance(episodes, Iterable) or isinstance(episodes, str) or np.ndim(episodes) == 0:  # type: ignore[arg-type]
            n = _integer(episodes, "n_demonstrations")
            if not 1 <= n <= self.n_episodes:
                raise ValueError(
                    f"n_demonstrations is {n} but {self.source} has {self.n_episodes} episodes: "
                    f"pass a number from 1 to {self.n_episodes}, or a list of episode indices."
                )
            indices = np.arange(n)
        else:
            indices = np.array([_integer(index, "an episode index") for index in episodes], dtype=np.int64)
            possible = set(indices.tolist()) & set(range(self.n_episodes))
            if not 0 < len(possible) == len(indices):
                raise ValueError(
                    f"the episode indices {indices.tolist()} were asked for but {self.source} has {self.n_episodes} episodes: "
                    f"pass one or more different indices from 0 to {self.n_episodes - 1}."
                )
        starts = np.searchsorted(self.episode, indices)
        counts = np.searchsorted(self.episode, indices, side="right") - starts
        if np.array_equal(indices, np.arange(self.n_episodes)):
            return self
        if (np.diff(indices) == 1).all():
            rows: np.ndarray | slice = slice(int(starts[0]), int(starts[-1] + counts[-1]))
        else:
            rows = np.concatenate([np.arange(start, start + count) for start, count in zip(starts, counts)])
        per_episode = {name: value[indices] for name in _PER_EPISODE if (value := getattr(self, name)) is not None}
        notes = (*self.notes, f"{len(indices)} of {self.n_episodes} episodes selected")
        return self._rows(rows, **per_episode, episode=np.repeat(np.arange(len(indices)), counts), notes=notes)

    def subsample(self, k: int, keep_terminal: bool = False) -> Demonstrations:
        """
        Keep every k-th step of each episode, counted from its first one, with its true one-step successor.

        :param k: steps between two kept ones; on a subsampled set, k counts the steps that are left.
        :param keep_terminal: also keep each episode's terminated step, default False.
        :return: the subsampled set; ``step``, ``episode_lengths`` and ``episode_returns`` stay those of the original episodes.
        :raises ValueError: if k is not an integer of at least 1.
        """
        k = _integer(k, "subsample")
        if k < 1:
            raise ValueError(f"subsample is {k} but must be at least 1: pass 1 to keep every step.")
        every = k * self.subsampling
        keep = self.step % every == 0
        if keep_terminal:
            keep |= self.terminated
        return self if keep.all() and k == 1 else self._rows(keep, subsampling=every)

    def with_time_limit(self, max_episode_steps: int | None) -> Demonstrations:
        """
        Read single terminal flags at the environment's time limit as truncations.

        :param max_episode_steps: the limit, or None if there is none.
        :return: the demonstrations; episodes of the limit's length are in ``reinterpreted``.
        :raises ValueError: if the limit is no number of steps.
        """
        if max_episode_steps is not None and not (isinstance(max_episode_steps, Real) and max_episode_steps >= 1):
            raise ValueError(f"max_episode_steps is {max_episode_steps!r} but a number of steps, or None, is needed.")
        if self.single_flag is None or max_episode_steps is None:
            return self
        at_limit = self.single_flag & (self.episode_lengths == max_episode_steps)
        flagged = self.terminated & at_limit[self.episode]
        if not flagged.any():
            return self
        reinterpreted = self.reinterpreted.copy()
        reinterpreted[self.episode[flagged]] = True
        return self._replace(
            terminated=self.terminated & ~flagged, truncated=self.truncated | flagged, reinterpreted=reinterpreted
        )

    def validate(
        self,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        clip_actions: bool = False,
    ) -> Demonstrations:
        """
        Check the data against the spaces and cast them once to what the spaces use.

        Floats become float32, uint8 and other integers keep the space's dtype, Discrete actions become int64 of shape (T,);
        images stored channel-last for a channel-first space (or the reverse) are transposed. Actions outside the box by
        rounding (up to 1e-5 of its range) are clipped.

        :param observation_space: space of one observation, or None to leave them as they are.
        :param action_space: space of one action, or None to leave them as they are.
        :param clip_actions: clip actions however far they lie outside the box, default False.
        :return: demonstrations that fit the spaces.
        :raises ValueError: if they do not fit, or hold NaN or inf.
        """
        from sb3_dualqdm.demonstrations.validation import validate

        return validate(self, observation_space, action_space, clip_actions)

    def summary(self) -> str:
        """
        One line for people: source, episodes, transitions, terminated and truncated ends, return.

        :return: the line.
        """
        last = last_rows(self.episode)
        parts = [
            f"{self.source}: {_count(self.n_episodes, 'episode')}, {_count(len(self), 'transition')}",
            f"{int(self.terminated.sum())} terminated, {int((self.truncated & ~self.terminated).sum())} truncated",
        ]
        cut = self.n_episodes - int((self.terminated | self.truncated)[last].sum())
        if cut:
            parts[-1] += f" ({_count(cut, 'end')} not kept by subsampling)"
        if self.reinterpreted.any():
            n = int(self.reinterpreted.sum())
            parts.append(f"{_count(n, 'terminal flag')} at the time limit read as truncation")
        if self.subsampling > 1:
            parts.append(f"subsampled by {self.subsampling} from {int(self.episode_lengths.sum())}")
        if self.episode_returns is not None:
            returns = self.episode_returns
            parts.append(f"return {returns.mean():.1f} (from {returns.min():.1f} to {returns.max():.1f})")
        return ", ".join([*parts, *self.notes])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """
        Write a compressed ``.npz`` of plain arrays, from which :meth:`load` restores the set bit for bit.

        :param path: file to write, used exactly as given; missing folders are created.
        :return: the path written.
        """
        target = Path(path).expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {FORMAT_KEY: FORMAT_VERSION, "source": self.source, "subsampling": self.subsampling}
        arrays["notes"] = np.array(self.notes, dtype=str)
        for key, value in obs_arrays(self.obs).items():
            following, suffix = obs_arrays(self.next_obs)[key], f"/{key}" if key else ""
            arrays["obs" + suffix] = value
            if isinstance(following, Successors):
                arrays["final_obs" + suffix] = following.final
            else:
                arrays["next_obs" + suffix] = following
        arrays |= {name: value for name in _PLAIN + _PER_EPISODE if (value := getattr(self, name)) is not None}
        with open(target, "wb") as file:  # a handle: numpy would append a suffix to a path
            np.savez_compressed(file, **arrays)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Demonstrations:
        """
        Read what :meth:`save` wrote; nothing in the file is executed.

        :param path: the file.
        :return: the demonstrations.
        :raises ValueError: if the file is not one written by :meth:`save`.
        """
        from sb3_dualqdm.demonstrations.files import read_own_npz

        return read_own_npz(path)

    def to_dicts(self) -> list[dict[str, Any]]:
        """
        Whole episodes as plain dicts, which :func:`load_demonstrations` reads back.

        :return: one dict per episode: ``obs`` (T+1 rows, or a dict of such arrays), ``acts`` (T), ``rews`` (T, or None),
            ``terminal`` (the task ended) and ``truncated``, both bool.
        :raises ValueError: if steps are missing, so that the observations do not chain.
        """
        bounds = np.searchsorted(self.episode, np.arange(self.n_episodes + 1))
        episodes = []
        for start, stop in itertools.pairwise(bounds):
            if not np.array_equal(self.step[start:stop], np.arange(stop - start)):
                raise ValueError(
                    f"{self.source} has an episode of which only some steps are kept, but trajectories need every step: "
                    "convert the set before subsampling it."
                )
            for key, value in obs_arrays(self.obs).items():
                following = obs_arrays(self.next_obs)[key]
                if not isinstance(following, Successors) and not np.array_equal(
                    following[start : stop - 1], value[start + 1 : stop], equal_nan=value.dtype.kind == "f"
                ):
                    raise ValueError(
                        f"{self.source} has an episode whose next_obs are not the obs of the next step, but trajectories need "
                        "chains: use obs and next_obs of the set itself."
                    )
            obs = {
                key: np.concatenate([value[start:stop], obs_arrays(self.next_obs)[key][[stop - 1]]])
                for key, value in obs_arrays(self.obs).items()
            }
            episodes.append(
                {
                    "obs": obs if isinstance(self.obs, dict) else obs[""],
                    "acts": self.actions[start:stop].copy(),
                    "rews": None if self.rewards is None else self.rewards[start:stop].copy(),
                    "terminal": bool(self.terminated[stop - 1]),
                    "truncated": bool(self.truncated[stop - 1]),
                }
            )
        return episodes

    def to_imitation(self) -> list[Any]:
        """
        Whole episodes as imitation's ``TrajectoryWithRew`` (``Trajectory`` without rewards).

        ``terminal`` is True for real terminations only; the last info keeps ``TimeLimit.truncated`` as gymnasium writes it.

        :return: the trajectories.
        :raises ImportError: if imitation is not installed.
        :raises ValueError: if steps are missing (see :meth:`to_dicts`).
        """
        try:
            from imitation.data import types
        except ImportError as error:
            raise ImportError(
                'to_imitation() needs the package imitation, which is not installed: pip install "sb3-dualqdm[imitation]".'
            ) from error
        trajectories = []
        for episode in self.to_dicts():
            infos = np.array([{} for _ in episode["acts"]])
            infos[-1]["TimeLimit.truncated"] = episode["truncated"] and not episode["terminal"]
            obs = types.DictObs(episode["obs"]) if isinstance(episode["obs"], dict) else episode["obs"]
            fields = {"obs": obs, "acts": episode["acts"], "infos": infos, "terminal": episode["terminal"]}
            rews = episode["rews"]
            trajectories.append(types.Trajectory(**fields) if rews is None else types.TrajectoryWithRew(**fields, rews=rews))
        return trajectories


def _integer(value: Any, name: str) -> int:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r} but must be an integer: pass an int, without quotes or decimals.") from None


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _steps(lengths: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """0, 1, ... in each episode, with one array only."""
    steps = np.ones(int(lengths.sum()), dtype=np.int64)
    steps[starts] = np.append(0, 1 - lengths[:-1])[: len(starts)]
    return np.cumsum(steps, out=steps)


def assemble(
    obs: Obs,
    next_obs: Obs,
    actions: np.ndarray,
    rewards: np.ndarray | None,
    lengths: np.ndarray,
    terminated: np.ndarray,
    *,
    truncated: np.ndarray | None = None,
    single_flag: np.ndarray | None = None,
    max_episode_steps: int | None = None,
    seeds: np.ndarray | None = None,
    source: str,
    spec: str | None = None,
    sha256: str | None = None,
    notes: tuple[str, ...] = (),
) -> Demonstrations:
    """
    Build a set of whole episodes from flat arrays.

    :param obs: observations, shape (T, \\*shape).
    :param next_obs: successors, same shape.
    :param actions: actions, shape (T, \\*shape).
    :param rewards: rewards, shape (T,), or None.
    :param lengths: lengths of the episodes, int, shape (E,), each at least 1.
    :param terminated: the episode's last step ended the task, bool, shape (E,).
    :param truncated: it was cut there, bool, shape (E,), or None if the format does not tell.
    :param single_flag: ``terminated`` may mean the time limit in this episode, bool, shape (E,); default: all of them if
        ``truncated`` is None, else none.
    :param max_episode_steps: such an episode, if terminated and exactly that long, counts as truncated; None: never.
    :param seeds: seed each episode was reset with, int, shape (E,), -1 where unknown, or None.
    :param source: where the data came from.
    :param spec: what can be loaded again.
    :param sha256: its hash.
    :param notes: what was changed in reading.
    :return: the demonstrations.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    terminated = np.asarray(terminated, dtype=bool)
    if single_flag is None:
        single_flag = np.full(len(lengths), truncated is None)
    truncated = ~terminated if truncated is None else truncated | ~terminated
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    last_terminated, last_truncated = np.zeros(total, dtype=bool), np.zeros(total, dtype=bool)
    last_terminated[starts + lengths - 1] = terminated
    last_truncated[starts + lengths - 1] = truncated
    returns = None
    if rewards is not None:
        rewards = np.asarray(rewards)
        if rewards.shape == (total, 1):
            rewards = rewards[:, 0]
        if rewards.shape == (total,) and rewards.dtype.kind in "biuf" and total:
            returns = np.add.reduceat(rewards.astype(np.float64), starts)
            rewards = rewards.astype(np.float32)
    return Demonstrations(
        obs=obs,
        next_obs=next_obs,
        actions=actions,
        terminated=last_terminated,
        truncated=last_truncated,
        rewards=rewards,
        episode=np.repeat(np.arange(len(lengths)), lengths),
        step=_steps(lengths, starts),
        episode_returns=returns,
        episode_lengths=lengths,
        episode_indices=np.arange(len(lengths)),
        single_flag=single_flag if single_flag.any() else None,
        seeds=seeds,
        source=source,
        spec=spec,
        sha256=sha256,
        notes=notes,
    ).with_time_limit(max_episode_steps)

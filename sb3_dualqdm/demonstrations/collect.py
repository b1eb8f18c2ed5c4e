"""Record demonstrations from a policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from sb3_dualqdm.demonstrations.files import optional
from sb3_dualqdm.demonstrations.readers.arrays import Episode, join
from sb3_dualqdm.demonstrations.types import Demonstrations, Obs, map_obs

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize


def collect_demonstrations(
    policy_or_callable: Any,
    env: gym.Env | VecEnv | str,
    n_episodes: int,
    *,
    deterministic: bool = True,
    seed: int | None = None,
    progress_bar: bool = False,
) -> Demonstrations:
    """
    Roll out whole episodes of a policy and keep them raw, with terminal observations and both end flags.

    :param policy_or_callable: anything with Stable-Baselines3's ``predict`` (a model, a policy, imitation's policies), or a
        function from observation to action; with an env or id it gets one observation, with a VecEnv a batch of them.
    :param env: gymnasium env, its id, or a VecEnv. Under ``VecNormalize`` (which must be the outermost wrapper) the policy
        sees normalised observations and the set keeps the raw ones; a model trained under VecNormalize gets them normalised
        by its own statistics if ``env`` has none. The statistics are not updated. Reset a VecEnv of yours before using it on.
    :param n_episodes: number of episodes, at least 1; with a VecEnv, shared out evenly so that short ones are not favoured.
    :param deterministic: passed to ``predict``, default True.
    :param seed: episode i starts from ``env.reset(seed=seed + i)``; a VecEnv is seeded once. Default None. It does not seed
        a stochastic policy. The set keeps the seeds of ``env.reset``.
    :param progress_bar: show the number of finished episodes with tqdm, default False.
    :return: the demonstrations; actions are clipped to the box and rounded to float32, as the environment got them.
    :raises ValueError: if the arguments do not fit or the policy returns unusable actions.
    :raises ImportError: if a progress bar is asked for and tqdm is not installed.
    """
    if isinstance(n_episodes, bool) or int(n_episodes) != n_episodes or n_episodes < 1:
        raise ValueError(f"n_episodes is {n_episodes!r} but at least 1 episode is needed: pass a positive integer.")
    n_episodes = int(n_episodes)
    policy = _Policy(policy_or_callable, deterministic)
    name = f"{n_episodes} {'episode' if n_episodes == 1 else 'episodes'} of {policy.name}"
    with _progress(n_episodes, progress_bar) as finished:
        if isinstance(env, str):
            made = gym.make(env)
            try:
                episodes = _from_env(policy, made, n_episodes, seed, finished)
            finally:
                made.close()
            return _pack(episodes, made.observation_space, made.action_space, f"{name} in {env}")
        if isinstance(env, gym.Env):
            episodes = _from_env(policy, env, n_episodes, seed, finished)
        else:
            episodes = _from_vec_env(policy, env, n_episodes, seed, finished)
        return _pack(episodes, env.observation_space, env.action_space, name)


@contextmanager
def _progress(n_episodes: int, shown: bool) -> Iterator[Callable[[], Any]]:
    """A function to call after each episode."""
    if not shown:
        yield lambda: None
        return
    with optional("tqdm", "demos", "a progress bar").tqdm(total=n_episodes, unit="episode") as bar:
        yield bar.update


class _Policy:
    """One call for models and plain functions: observation (or batch) to action, with recurrent state."""

    def __init__(self, policy: Any, deterministic: bool):
        self.model = policy if hasattr(policy, "predict") else None
        if self.model is None and not callable(policy):
            raise ValueError(f"the policy is a {type(policy).__name__}: pass an object with predict, or a function.")
        self.function: Callable[..., Any] = policy if self.model is None else policy.predict
        self.name = type(policy).__name__ if self.model is not None else getattr(policy, "__name__", type(policy).__name__)
        self.deterministic = deterministic
        self.state: Any = None
        if self.model is not None:
            parameters = inspect.signature(self.function).parameters
            takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            self.accepts = {key for key in ("state", "episode_start", "deterministic") if takes_all or key in parameters}
        normalizer = getattr(policy, "get_vec_normalize_env", lambda: None)()
        self.normalize: Callable[[Obs], Obs] = (lambda obs: obs) if normalizer is None else normalizer.normalize_obs

    def act(self, obs: Obs, starts: np.ndarray) -> Any:
        if self.model is None:
            return self.function(obs)
        options = {"deterministic": self.deterministic, "state": self.state, "episode_start": starts}
        result = self.function(self.normalize(obs), **{key: value for key, value in options.items() if key in self.accepts})
        action, self.state = result if isinstance(result, tuple) else (result, None)
        return action


class _Episode:
    def __init__(self) -> None:
        self.obs: list[Any] = []  # the final one too
        self.acts: list[Any] = []
        self.rews: list[float] = []
        self.terminated = self.truncated = False
        self.seed = -1


def _copy(obs: Any) -> Any:
    return {key: np.array(value) for key, value in obs.items()} if isinstance(obs, dict) else np.array(obs)


def env_action(action: Any, space: gym.Space, batch: tuple[int, ...] = ()) -> Any:
    """
    An action as the environment gets it, when it is recorded and when it is replayed.

    :param action: the action of a policy or of a set, or a batch of them.
    :param space: the action space.
    :param batch: shape before that of the space, default none.
    :return: an array in the dtype and shape of the space, inside the box, and of no more digits than a set stores; an int for
        a single discrete action.
    :raises ValueError: if its shape is another, or if a discrete action is no integer.
    """
    array = np.asarray(action)
    try:
        array = array.reshape(batch + (space.shape or ()))
    except ValueError:
        raise ValueError(
            f"the policy returned an action of the shape {array.shape} but the action space is {space}: return one action per "
            "observation."
        ) from None
    if isinstance(space, gym.spaces.Box):
        array = np.clip(array, space.low, space.high)
        if space.dtype.kind == "f":
            # Sets store float32: float64 digits could not be replayed. A bound between two float32 numbers is kept by the
            # second clip, of the rounded number.
            array = np.clip(array.astype(np.float32).astype(space.dtype), space.low, space.high)
        return np.asarray(array, dtype=space.dtype)
    whole = array.astype(np.int64)
    if not np.array_equal(whole, array):
        raise ValueError(f"the policy returned the action {array.tolist()} but the action space is {space}: return integers.")
    return int(whole) if whole.ndim == 0 else whole


def _from_env(policy: _Policy, env: gym.Env, n_episodes: int, seed: int | None, finished: Callable[[], Any]) -> list[_Episode]:
    episodes = []
    for i in range(n_episodes):
        obs, _ = env.reset(seed=None if seed is None else int(seed) + i)
        episode = _Episode()
        episode.seed = -1 if seed is None else int(seed) + i
        start = np.ones(1, dtype=bool)
        while not (episode.terminated or episode.truncated):
            episode.obs.append(_copy(obs))  # before a policy that works in place
            action = env_action(policy.act(obs, start), env.action_space)
            obs, reward, terminated, truncated, _ = env.step(action)
            episode.acts.append(action)
            episode.rews.append(float(reward))
            episode.terminated, episode.truncated = bool(terminated), bool(truncated)
            start = np.zeros(1, dtype=bool)
        episode.obs.append(_copy(obs))
        episodes.append(episode)
        finished()
    return episodes


def _raw_env(env: VecEnv) -> tuple[VecEnv, VecNormalize | None]:
    from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize

    if isinstance(env, VecNormalize):
        inner, normalizer = env.venv, env
    else:
        inner, normalizer = env, None
    if unwrap_vec_normalize(inner) is not None:
        raise ValueError(
            f"VecNormalize lies inside a {type(inner).__name__}, where raw observations cannot be recorded: make it "
            "the outermost wrapper."
        )
    return inner, normalizer


def _from_vec_env(policy: _Policy, env: VecEnv, n_episodes: int, seed: int | None, count: Callable[[], Any]) -> list[_Episode]:
    from stable_baselines3.common.vec_env import VecEnv

    if not isinstance(env, VecEnv):
        raise ValueError(f"env is a {type(env).__name__}, but a gymnasium env, its id or an SB3 VecEnv is expected: pass one.")
    inner, normalizer = _raw_env(env)
    if normalizer is not None:
        policy.normalize = normalizer.normalize_obs
    n_envs = inner.num_envs
    # As in evaluate_policy: a fixed number of episodes per env, else short episodes would come first and too often.
    wanted = [(n_episodes + i) // n_envs for i in range(n_envs)]
    finished: list[list[_Episode]] = [[] for _ in range(n_envs)]
    running = [_Episode() for _ in range(n_envs)]
    if seed is not None:
        inner.seed(int(seed))
    obs: Any = inner.reset()
    starts = np.ones(n_envs, dtype=bool)
    while any(len(done) < n for done, n in zip(finished, wanted)):
        before = _copy(obs)
        seen = obs if policy.model is not None or normalizer is None else normalizer.normalize_obs(obs)
        actions = env_action(policy.act(seen, starts), inner.action_space, (n_envs,))
        obs, rewards, dones, infos = inner.step(actions)
        for i in range(n_envs):
            episode = running[i]
            episode.obs.append(map_obs(itemgetter(i), before))
            episode.acts.append(actions[i])
            episode.rews.append(float(rewards[i]))
            if dones[i]:
                episode.obs.append(_copy(infos[i]["terminal_observation"]))
                episode.truncated = bool(infos[i].get("TimeLimit.truncated", False))
                episode.terminated = not episode.truncated
                if len(finished[i]) < wanted[i]:
                    finished[i].append(episode)
                    count()
                running[i] = _Episode()
        starts = np.array(dones)
    return [episode for episodes in finished for episode in episodes]


def _stack(rows: list[Any]) -> Obs:
    if isinstance(rows[0], dict):
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)


def _pack(episodes: list[_Episode], observation_space: gym.Space, action_space: gym.Space, source: str) -> Demonstrations:
    parts = (
        Episode(
            obs=_stack(episode.obs),
            acts=np.stack(episode.acts),
            rews=np.array(episode.rews),
            terminated=episode.terminated,
            truncated=episode.truncated,
            single_flag=False,
            seed=episode.seed,
        )
        for episode in episodes
    )
    return join(parts, None, False, source=source).validate(observation_space, action_space)

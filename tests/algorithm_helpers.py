"""Small environments and demonstrations shared by the tests of the algorithms."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_dualqdm import Demonstrations, collect_demonstrations

SMALL = {"policy_kwargs": {"net_arch": [16]}, "batch_size": 8, "learning_starts": 8, "buffer_size": 500, "device": "cpu"}


def cartpole_expert(obs: np.ndarray) -> int:
    """A linear controller that balances CartPole for 500 steps."""
    return int(3 * obs[2] + obs[3] + 0.05 * obs[0] + 0.3 * obs[1] > 0)


def pendulum_expert(obs: np.ndarray) -> np.ndarray:
    """Any deterministic policy within the bounds of Pendulum's torque."""
    return np.array([2.0 * np.tanh(obs[1] + obs[2])], dtype=np.float32)


def demonstrations_for(env_id: str, n_episodes: int = 1) -> Demonstrations:
    expert = cartpole_expert if env_id.startswith("CartPole") else pendulum_expert
    return collect_demonstrations(expert, gym.make(env_id), n_episodes, seed=0)


class CountingEnv(gym.Env):
    """
    Episodes of ``length`` steps; the observation is ``[episode, step]`` and ends by termination or truncation.

    :param ends_by: ``"terminated"`` or ``"truncated"``
    :param reward: what each step pays: a number, or a function without arguments
    """

    def __init__(self, length=5, ends_by="terminated", discrete=True, reward=0.0):
        self.length, self.ends_by, self.reward = length, ends_by, reward
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-2.0, 4.0, (1,), dtype=np.float32)
        self.episode = -1
        self.n_steps = 0

    def _obs(self):
        return np.array([self.episode, self.t], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        self.n_steps += 1
        over = self.t == self.length
        reward = self.reward() if callable(self.reward) else self.reward
        return self._obs(), reward, over and self.ends_by == "terminated", over and self.ends_by == "truncated", {}


class EchoEnv(gym.Env):
    """Observations are drawn anew at every step; the expert answers with their sign (Discrete) or half of them (Box)."""

    def __init__(self, discrete: bool):
        self.observation_space = spaces.Box(-1, 1, (2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (1,), dtype=np.float32)

    def _draw(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._draw(), {}

    def step(self, action):
        self.t += 1
        return self._draw(), 0.0, False, self.t == 50, {}


def echo_expert(discrete):
    return (lambda obs: int(obs[0] > 0)) if discrete else (lambda obs: obs[:1] / 2)

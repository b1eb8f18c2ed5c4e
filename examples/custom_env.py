"""An own environment and an expert that is a plain function.

python examples/custom_env.py [timesteps]

rl-zoo3 finds the environment when its module is importable (here: from the folder ``examples``):

python -m rl_zoo3.train --algo dual_qdm --env PointMass-v0 --gym-packages custom_env \
    -params demonstrations:"'../logs/point_mass.npz'"
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_dualqdm import DualQDM, collect_demonstrations


class PointMass(gym.Env):
    """A point on a plane, pushed by a force; it has to come to rest at the origin."""

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.velocity = self.np_random.uniform(-1, 1, 2), np.zeros(2)
        return self._observation(), {}

    def step(self, action):
        self.velocity = 0.9 * self.velocity + 0.1 * np.clip(action, -1, 1)
        self.position = self.position + 0.2 * self.velocity
        return self._observation(), -float(np.linalg.norm(self.position)), False, False, {}

    def _observation(self):
        return np.concatenate([self.position, self.velocity]).astype(np.float32)


def expert(observation):
    """A spring and a damper."""
    return np.clip(-3 * observation[:2] - 3 * observation[2:], -1, 1)


gym.register("PointMass-v0", entry_point=PointMass, max_episode_steps=50)

if __name__ == "__main__":
    timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 6_000
    env = Monitor(gym.make("PointMass-v0"))
    demonstrations = collect_demonstrations(expert, env, n_episodes=3, seed=0)
    demonstrations.save("logs/point_mass.npz")
    print(demonstrations.summary())

    model = DualQDM("MlpPolicy", env, demonstrations=demonstrations, seed=0)
    before, _ = evaluate_policy(model, env, n_eval_episodes=10)
    model.learn(timesteps)
    after, _ = evaluate_policy(model, env, n_eval_episodes=10)
    print(f"expert {demonstrations.episode_returns.mean():.1f}, untrained {before:.1f}, learner {after:.1f}")

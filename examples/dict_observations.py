"""Observations that are a dictionary of arrays, with ``MultiInputPolicy``.

python examples/dict_observations.py [timesteps]
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_dualqdm import DualQDM, collect_demonstrations


class CartAndPole(gym.ObservationWrapper):
    """CartPole whose observation tells cart and pole apart."""

    def __init__(self, env):
        super().__init__(env)
        part = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict({"cart": part, "pole": part})

    def observation(self, observation):
        return {"cart": observation[:2], "pole": observation[2:]}


def expert(observation):
    """Push towards the side to which pole and cart lean."""
    (position, speed), (angle, rotation) = observation["cart"], observation["pole"]
    return int(angle + 0.3 * rotation + 0.03 * position + 0.06 * speed > 0)


timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000
env = Monitor(CartAndPole(gym.make("CartPole-v1")))
demonstrations = collect_demonstrations(expert, env, n_episodes=1, seed=0)
print(demonstrations.summary())

model = DualQDM("MultiInputPolicy", env, demonstrations=demonstrations, seed=0)
model.learn(timesteps)
print("learner {:.0f} +- {:.0f}".format(*evaluate_policy(model, env, n_eval_episodes=10)))

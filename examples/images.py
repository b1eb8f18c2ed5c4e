"""Image observations with ``CnnPolicy``: a bright square has to be brought to a dark one.

python examples/images.py [timesteps]
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_dualqdm import DualQDM, collect_demonstrations

MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))


class Grid(gym.Env):
    """A 4 x 4 grid drawn with cells of 9 x 9 pixels; the goal is never where the agent starts."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        agent, goal = self.np_random.choice(16, 2, replace=False)
        self.agent, self.goal = np.array(divmod(agent, 4)), np.array(divmod(goal, 4))
        return self._image(), {}

    def step(self, action):
        self.agent = np.clip(self.agent + MOVES[action], 0, 3)
        arrived = bool((self.agent == self.goal).all())
        return self._image(), 0.0 if arrived else -1.0, arrived, False, {}

    def _image(self):
        cells = np.zeros((4, 4), np.uint8)
        cells[tuple(self.goal)] = 100
        cells[tuple(self.agent)] = 255
        return np.kron(cells, np.ones((9, 9), np.uint8))[..., None]


def expert(image):
    """Read both positions from the image; go along the columns first, then along the rows."""
    cells = image[4::9, 4::9, 0]
    agent = np.argwhere(cells == 255)[0]
    row, column = np.argwhere(cells == 100)[0] - agent
    if column != 0:
        return 0 if column > 0 else 1
    return 2 if row > 0 else 3


gym.register("Grid-v0", entry_point=Grid, max_episode_steps=20)

if __name__ == "__main__":
    timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_500
    env = Monitor(gym.make("Grid-v0"))
    demonstrations = collect_demonstrations(expert, env, n_episodes=60, seed=0)
    print(demonstrations.summary())

    model = DualQDM(
        "CnnPolicy", env, demonstrations=demonstrations, buffer_size=5_000, learning_starts=200, batch_size=64, seed=0
    )
    model.learn(timesteps)
    print("learner {:.1f} +- {:.1f}".format(*evaluate_policy(model, env, n_eval_episodes=50)))

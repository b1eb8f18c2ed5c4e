"""The reward that a learned critic implies, on the demonstrations and on a random policy's transitions.

python examples/recovered_reward.py [timesteps]
"""

import sys
from pathlib import Path

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np

from sb3_dualqdm import DualQDM, collect_demonstrations, load_demonstrations

timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000
env = gym.make("Acrobot-v1")

expert = load_demonstrations("builtin:Acrobot-v1")
model = DualQDM("MlpPolicy", env, demonstrations=expert, seed=0).learn(timesteps)

rng = np.random.default_rng(0)
random = collect_demonstrations(lambda observation: int(rng.integers(3)), env, n_episodes=3, seed=1)

for name, data in (("expert", expert), ("random", random)):
    reward = model.implicit_reward(data.obs, data.actions, data.next_obs, data.terminated)
    print(f"{name}: mean implicit reward {reward.mean():.3f}")
    plt.hist(reward, bins=50, density=True, alpha=0.6, label=name)
plt.xlabel("implicit reward")
plt.legend()
Path("logs").mkdir(exist_ok=True)
plt.savefig("logs/recovered_reward.png")

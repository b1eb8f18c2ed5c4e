"""Train an expert, record five episodes of it, imitate them and plot how it went.

python examples/quickstart.py [timesteps]
"""

import sys

import gymnasium as gym
import matplotlib.pyplot as plt
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_dualqdm import DualQDM, collect_demonstrations

timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 6_000
env = Monitor(gym.make("CartPole-v1"))

expert = PPO("MlpPolicy", env, n_steps=512, seed=0).learn(5 * timesteps)
demonstrations = collect_demonstrations(expert, env, n_episodes=5, seed=0)
demonstrations.save("logs/quickstart/expert.npz")
print(demonstrations.summary())

learner = DualQDM("MlpPolicy", "CartPole-v1", demonstrations="logs/quickstart/expert.npz", seed=0)
evaluation = EvalCallback(env, eval_freq=timesteps // 10, n_eval_episodes=5, log_path="logs/quickstart", verbose=0)
learner.learn(timesteps, callback=evaluation)
mean, std = evaluate_policy(learner, env, n_eval_episodes=10)
print(f"expert {demonstrations.episode_returns.mean():.0f}, learner {mean:.0f} +- {std:.0f}")

plt.plot(evaluation.evaluations_timesteps, [sum(returns) / len(returns) for returns in evaluation.evaluations_results])
plt.axhline(demonstrations.episode_returns.mean(), linestyle="--", color="grey", label="expert")
plt.xlabel("environment steps")
plt.ylabel("mean return of 5 episodes")
plt.legend()
plt.savefig("logs/quickstart/learning_curve.png")

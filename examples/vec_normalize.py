"""Several environments with normalised observations; demonstrations stay as they were recorded.

python examples/vec_normalize.py [timesteps]
"""

import sys

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from sb3_dualqdm import DualQDM

timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000

env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=4, seed=0), norm_reward=False)
# one update for each of the four transitions of a step
model = DualQDM("MlpPolicy", env, demonstrations="builtin:Pendulum-v1", gradient_steps=-1, seed=0)
model.learn(timesteps)
model.save("logs/vec_normalize/model")
env.save("logs/vec_normalize/vecnormalize.pkl")

# Prediction needs the statistics, and no demonstrations.
test_env = VecNormalize.load("logs/vec_normalize/vecnormalize.pkl", make_vec_env("Pendulum-v1", seed=1))
test_env.training = False
model = DualQDM.load("logs/vec_normalize/model", env=test_env)
print("learner {:.0f} +- {:.0f}".format(*evaluate_policy(model, test_env, n_eval_episodes=10)))

"""Compare the newest model that rl_zoo3 trained with its expert and a random policy.

python examples/report_returns.py --algo dual_qdm --env CartPole-v1 -f logs
"""

import argparse

import gymnasium as gym
import numpy as np
from rl_zoo3 import ALGOS, get_latest_run_id
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_dualqdm import load_demonstrations

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--algo", default="dual_qdm")
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("-f", "--log-folder", default="logs")
parser.add_argument("--episodes", type=int, default=10)
args = parser.parse_args()

run = get_latest_run_id(f"{args.log_folder}/{args.algo}", args.env)
path = f"{args.log_folder}/{args.algo}/{args.env}_{run}/{args.env}.zip"
model = ALGOS[args.algo].load(path)
expert = load_demonstrations(model.demonstrations, n_demonstrations=model.n_demonstrations).episode_returns

env = Monitor(gym.make(args.env))
env.reset(seed=1000)
learner, _ = evaluate_policy(model, env, n_eval_episodes=args.episodes, return_episode_rewards=True)

env.action_space.seed(1000)
random = []
for _ in range(args.episodes):
    env.reset()
    done = False
    while not done:
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        done = terminated or truncated
    random.append(info["episode"]["r"])

print(f"{args.env}, {path}")
for name, returns in (("random", random), ("expert", expert), ("learner", learner)):
    print(f"{name:8} return {np.mean(returns):8.1f} +- {np.std(returns):.1f}  ({len(returns)} episodes)")

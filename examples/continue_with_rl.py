"""Imitate for a while, then go on with reinforcement learning on the true reward.

python examples/continue_with_rl.py [timesteps]
"""

import sys

import gymnasium as gym
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_dualqdm import DualQDM, to_sac

timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
test_env = Monitor(gym.make("Pendulum-v1"))

# SAC's own parameterisation of the actor, so that the policy moves exactly
policy_kwargs = {"net_arch": [64, 64], "network_style": "sb3"}
learner = DualQDM(
    "MlpPolicy", "Pendulum-v1", demonstrations="builtin:Pendulum-v1", policy_kwargs=policy_kwargs, learning_rate=1e-3, seed=0
)
learner.learn(timesteps)
print("after imitation {:.0f} +- {:.0f}".format(*evaluate_policy(learner, test_env, 10)))

# Actor, critic and the experience so far, whose rewards imitation never read
sac = to_sac(learner)
sac.learn(timesteps)
print("after reinforcement learning {:.0f} +- {:.0f}".format(*evaluate_policy(sac, test_env, 10)))

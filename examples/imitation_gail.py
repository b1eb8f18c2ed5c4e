"""A script for imitation's GAIL with Dual Q-DM in its place: the two lines marked below are what changed.

python examples/imitation_gail.py [timesteps]
"""

import sys

import numpy as np
from imitation.data import rollout
from imitation.data.wrappers import RolloutInfoWrapper
from imitation.util.util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_dualqdm import DualQDM
from sb3_dualqdm.imitation import DualQDMTrainer


def expert(observations, states, dones):
    """Push towards the side to which pole and cart lean; imitation takes a function where it takes a policy."""
    return (observations @ np.array([0.03, 0.06, 1.0, 0.3]) > 0).astype(int), states


timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000
rng = np.random.default_rng(0)
venv = make_vec_env("CartPole-v1", rng=rng, n_envs=8, post_wrappers=[lambda env, _: RolloutInfoWrapper(env)])
rollouts = rollout.rollout(expert, venv, rollout.make_sample_until(min_episodes=8), rng=rng)

learner = DualQDM("MlpPolicy", venv, gradient_steps=-1, seed=0)  # was: PPO("MlpPolicy", venv, ...)
trainer = DualQDMTrainer(demonstrations=rollouts, demo_batch_size=128, venv=venv, gen_algo=learner)  # was: GAIL(...)

before, _ = evaluate_policy(learner, venv, n_eval_episodes=16)
trainer.train(timesteps, callback=lambda round_number: print(f"round {round_number}: {learner.num_timesteps} steps"))
after, _ = evaluate_policy(learner, venv, n_eval_episodes=16)
print(f"expert {np.mean([sum(episode.rews) for episode in rollouts]):.0f}, untrained {before:.0f}, learner {after:.0f}")

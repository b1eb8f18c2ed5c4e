"""A script for imitation's BC with this package's BC in its place: the lines marked below are what changed.

python examples/imitation_bc.py [updates]
"""

import sys

import numpy as np
from imitation.data import rollout
from imitation.data.wrappers import RolloutInfoWrapper
from imitation.util.util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_dualqdm import BC


def expert(observations, states, dones):
    """Push towards the side to which pole and cart lean; imitation takes a function where it takes a policy."""
    return (observations @ np.array([0.03, 0.06, 1.0, 0.3]) > 0).astype(int), states


updates = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
rng = np.random.default_rng(0)
venv = make_vec_env("CartPole-v1", rng=rng, n_envs=4, post_wrappers=[lambda env, _: RolloutInfoWrapper(env)])
rollouts = rollout.rollout(expert, venv, rollout.make_sample_until(min_episodes=4), rng=rng)
transitions = rollout.flatten_trajectories(rollouts)

learner = BC("MlpPolicy", venv, demonstrations=transitions, seed=0)  # was: bc.BC(observation_space=..., rng=rng, ...)

before, _ = evaluate_policy(learner, venv, n_eval_episodes=8)
learner.learn(updates)  # was: learner.train(n_epochs=...)
after, _ = evaluate_policy(learner, venv, n_eval_episodes=8)
print(f"expert {np.mean([sum(episode.rews) for episode in rollouts]):.0f}, untrained {before:.0f}, learner {after:.0f}")

"""A script for imitation's SQIL with Reg IQ-Learn in its place: the import and the line marked below changed.

python examples/imitation_sqil.py [timesteps]
"""

import sys

import numpy as np
from imitation.data import rollout
from imitation.data.wrappers import RolloutInfoWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_dualqdm.imitation import RegIQLearnTrainer


def expert(observations, states, dones):
    """Push towards the side to which pole and cart lean; imitation takes a function where it takes a policy."""
    return (observations @ np.array([0.03, 0.06, 1.0, 0.3]) > 0).astype(int), states


timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000
rng = np.random.default_rng(0)
venv = make_vec_env("CartPole-v1", n_envs=1, wrapper_class=RolloutInfoWrapper, seed=0)
rollouts = rollout.rollout(expert, venv, rollout.make_sample_until(min_episodes=4), rng=rng)

trainer = RegIQLearnTrainer(  # was: SQIL(
    venv=venv,
    demonstrations=rollouts,
    policy="MlpPolicy",
    rl_kwargs={"batch_size": 128, "seed": 0},
)

before, _ = evaluate_policy(trainer.policy, venv, n_eval_episodes=10)
trainer.train(total_timesteps=timesteps)
after, _ = evaluate_policy(trainer.policy, venv, n_eval_episodes=10)
print(f"expert {np.mean([sum(episode.rews) for episode in rollouts]):.0f}, untrained {before:.0f}, learner {after:.0f}")

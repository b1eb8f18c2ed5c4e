"""imitation's GAIL as a reference: PPO against a reward net, with the demonstrations that Dual Q-DM has for the task."""

from __future__ import annotations

import argparse
from typing import Any

from sb3_dualqdm.benchmark.recording import Recorder

# PPO for continuous control, and imitation's GAIL as its documentation trains it
N_ENVS = 8
PPO_KWARGS: dict[str, Any] = {
    "n_steps": 256,
    "batch_size": 64,
    "ent_coef": 0.0,
    "learning_rate": 4e-4,
    "gamma": 0.95,
    "n_epochs": 5,
}
DEMO_BATCH_SIZE = 1024
GAIL_KWARGS: dict[str, Any] = {"gen_replay_buffer_capacity": 512, "n_disc_updates_per_round": 8}


def demonstrations_for(run: dict[str, Any]) -> Any:
    """
    The demonstrations of Dual Q-DM's entry for the task, with what the run changes. GAIL takes whole trajectories.

    :param run: the run, as JSON has it.
    """
    import gymnasium as gym

    from sb3_dualqdm import load_demonstrations
    from sb3_dualqdm.benchmark.suites import entry

    settings = {**entry("dual_qdm", run["task"]), **run["params"]}
    return load_demonstrations(
        settings["demonstrations"],
        n_demonstrations=settings.get("n_demonstrations"),
        max_episode_steps=gym.spec(run["task"]).max_episode_steps,
    )


def train(request: str, device: str) -> None:
    """
    Train GAIL and record its evaluations.

    :param request: see :class:`sb3_dualqdm.benchmark.recording.Recorder`.
    :param device: torch device.
    """
    import numpy as np
    import torch as th
    from imitation.algorithms.adversarial.gail import GAIL
    from imitation.data.wrappers import RolloutInfoWrapper
    from imitation.rewards.reward_nets import BasicRewardNet
    from imitation.util.networks import RunningNorm
    from imitation.util.util import make_vec_env
    from stable_baselines3 import PPO

    th.set_num_threads(1)
    recorder = Recorder(request)
    run = recorder.run
    demonstrations = demonstrations_for(run)
    recorder.describe(demonstrations)
    rng = np.random.default_rng(run["seed"])
    venv = make_vec_env(run["task"], rng=rng, n_envs=N_ENVS, post_wrappers=[lambda env, _: RolloutInfoWrapper(env)])
    learner = PPO("MlpPolicy", venv, seed=run["seed"], device=device, **PPO_KWARGS)
    reward_net = BasicRewardNet(venv.observation_space, venv.action_space, normalize_input_layer=RunningNorm)
    trainer = GAIL(
        demonstrations=demonstrations.to_imitation(),
        demo_batch_size=min(DEMO_BATCH_SIZE, len(demonstrations)),
        venv=venv,
        gen_algo=learner,
        reward_net=reward_net,
        allow_variable_horizon=True,  # Hopper and Walker2d end when they fall
        **GAIL_KWARGS,
    )

    def after_round(round_number: int) -> None:
        if recorder.due(learner.num_timesteps):
            recorder.evaluate(learner, learner.num_timesteps)

    # imitation asks for whole rounds, at least one
    trainer.train(max(run["steps"], trainer.gen_train_timesteps), callback=after_round)
    recorder.finish(learner, learner.num_timesteps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("request")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    train(arguments.request, arguments.device)

"""Go on with a run from its checkpoint, in an environment as rl_zoo3 made it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sb3_dualqdm.benchmark.recording import RecordEvaluations
from sb3_dualqdm.benchmark.suites import entry
from sb3_dualqdm.zoo import ALGOS


def resume(request: str, device: str) -> None:
    """
    Make the rest of a run.

    :param request: see :class:`sb3_dualqdm.benchmark.recording.Recorder`, with ``checkpoint`` and ``save_freq``.
    :param device: torch device.
    """
    import torch as th
    from stable_baselines3.common.env_util import make_vec_env

    from sb3_dualqdm import algorithms
    from sb3_dualqdm.callbacks import ResumableCheckpoint

    th.set_num_threads(1)
    content = json.loads(Path(request).read_text())
    run = content["run"]
    venv = make_vec_env(run["task"], entry(run["method"], run["task"]).get("n_envs", 1), seed=run["seed"])
    model = getattr(algorithms, ALGOS[run["method"]]).resume(content["checkpoint"], venv, device=device)
    callbacks = [RecordEvaluations(request), ResumableCheckpoint(content["checkpoint"], content["save_freq"])]
    model.learn(run["steps"], callbacks, log_interval=1000, reset_num_timesteps=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("request")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    resume(arguments.request, arguments.device)

"""Evaluate a model while it trains, and write what a benchmark keeps of a run as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

# Evaluation episode i starts from this seed plus i, whatever the run's seed: no training environment has such a seed.
EVALUATION_SEED = 10_000
PACKAGES = ("sb3-dualqdm", "stable-baselines3", "gymnasium", "torch", "numpy", "rl-zoo3", "imitation", "mujoco")


def evaluate(model: Any, venv: VecEnv) -> np.ndarray:
    """
    Returns of deterministic episodes from fixed seeds, one in each environment, played side by side.

    :param model: anything with ``predict``; observations are normalised by its own VecNormalize statistics, if any.
    :param venv: as many environments as there are episodes.
    :return: undiscounted return of each episode.
    """
    normalizer = getattr(model, "get_vec_normalize_env", lambda: None)()
    venv.seed(EVALUATION_SEED)
    obs = venv.reset()
    returns, playing = np.zeros(venv.num_envs), np.ones(venv.num_envs, dtype=bool)
    while playing.any():
        if normalizer is not None:
            obs = normalizer.normalize_obs(obs)
        obs, rewards, dones, _ = venv.step(model.predict(obs, deterministic=True)[0])
        returns += rewards * playing
        playing &= ~dones
    return returns


def versions() -> dict[str, str]:
    """
    Versions that a run's numbers may depend on.

    :return: version by package, for those installed, and Python's.
    """
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def write_json(path: Path, content: Any) -> None:
    """
    Write a JSON file whole, or not at all.

    :param path: the file.
    :param content: what it holds.
    """
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(part, path)


class Recorder:
    """
    Evaluations of one run, written after each of them.

    :param request: JSON file with ``run`` (see :class:`sb3_dualqdm.benchmark.suites.Run`) and ``record``, the file to write.
    """

    def __init__(self, request: str | os.PathLike[str]):
        content = json.loads(Path(request).read_text())
        self.run, self.path = content["run"], Path(content["record"])
        self.venv = make_vec_env(self.run["task"], self.run["episodes"])
        self.started, self.cpu_before = time.perf_counter(), 0.0
        self.record: dict[str, Any] = {"run": self.run, "status": "running", "versions": versions()}
        self.record |= {"demonstrations": None, "evaluations": []}

    def go_on(self, step: int) -> None:
        """
        Keep what an interrupted run has recorded up to its checkpoint.

        :param step: step of the checkpoint, 0 for a new run.
        """
        if step > 0 and self.path.exists():
            before = json.loads(self.path.read_text())
            kept = [evaluation for evaluation in before["evaluations"] if evaluation["step"] <= step]
            self.record |= {"evaluations": kept, "resumed_at": [*before.get("resumed_at", []), step]}
            if kept:
                self.started -= kept[-1]["seconds"]
                self.cpu_before = kept[-1]["cpu_seconds"]

    def _times(self) -> dict[str, float]:
        cpu = self.cpu_before + time.process_time()
        return {"seconds": round(time.perf_counter() - self.started, 1), "cpu_seconds": round(cpu, 1)}

    def describe(self, demonstrations: Any) -> None:
        """
        Note which demonstrations the run learns from.

        :param demonstrations: :class:`sb3_dualqdm.Demonstrations`, or None.
        """
        if demonstrations is not None:
            returns = demonstrations.episode_returns
            self.record["demonstrations"] = {
                "source": demonstrations.source,
                "sha256": demonstrations.sha256,
                "episodes": demonstrations.episode_indices.tolist(),
                "returns": None if returns is None else returns.tolist(),
                "subsample": demonstrations.subsampling,
                "transitions": len(demonstrations),
            }

    def due(self, step: int) -> bool:
        """
        Whether an evaluation should follow.

        :param step: steps done.
        """
        evaluations = self.record["evaluations"]
        return step // self.run["eval_every"] > (evaluations[-1]["step"] if evaluations else 0) // self.run["eval_every"]

    def evaluate(self, model: Any, step: int) -> None:
        """
        Evaluate and write.

        :param model: the model.
        :param step: steps done.
        """
        times = self._times()
        returns = evaluate(model, self.venv)
        self.record["evaluations"].append({"step": step, **times, "returns": returns.tolist()})
        write_json(self.path, self.record)

    def finish(self, model: Any, step: int) -> None:
        """
        Last evaluation, unless it was just made, and the mark that the run is complete.

        :param model: the trained model.
        :param step: steps done.
        """
        evaluations = self.record["evaluations"]
        if not evaluations or evaluations[-1]["step"] != step:
            self.evaluate(model, step)
        self.record |= {"status": "finished", **self._times()}
        write_json(self.path, self.record)


class RecordEvaluations(BaseCallback):
    """
    What rl_zoo3 is given as a callback.

    :param request: see :class:`Recorder`.
    """

    def __init__(self, request: str):
        super().__init__()
        self.recorder = Recorder(request)
        self.started_by = os.getppid()

    def _on_training_start(self) -> None:
        buffer = getattr(self.model, "demo_buffer", None)
        self.recorder.go_on(self.num_timesteps)
        self.recorder.describe(None if buffer is None else buffer.demonstrations)

    def _on_step(self) -> bool:
        if self.recorder.due(self.num_timesteps):
            self.recorder.evaluate(self.model, self.num_timesteps)
        return os.getppid() == self.started_by  # who started the run is gone, and with it whoever wants the result

    def _on_training_end(self) -> None:
        if self.num_timesteps >= self.recorder.run["steps"]:
            self.recorder.finish(self.model, self.num_timesteps)

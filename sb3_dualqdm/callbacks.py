"""Callbacks for the algorithms of this package."""

from __future__ import annotations

import os
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback

from sb3_dualqdm.resume import continue_from, save_checkpoint, with_suffix


class ResumableCheckpoint(BaseCallback):
    """
    Keep a checkpoint from which :meth:`~sb3_dualqdm.algorithms.ImitationAlgorithm.resume` goes on exactly.

    A run that was killed and resumed with this callback ends with the weights of a run with this callback that was not
    killed (bitwise, on CPU and the same machine). For this the current episodes end at every checkpoint, by a reset seeded
    from the model's seed and the number of steps. The file is replaced as a whole, so that a run that dies
    while writing leaves the previous checkpoint.

    :param path: file to write, with suffix ``.zip`` if it has none; one per run, and so one per seed
    :param save_freq: environment steps (updates for an offline method) between two checkpoints; they are written between
        two training phases, at the first that reaches a multiple
    :param resume: go on from the file if there is one, default False; with it, the same command started again continues a
        killed run by itself (``learn`` counts its steps from where the run began, and the seed stays that of the file)
    :param verbose: 0 silent (default), 1 tells when a checkpoint is written
    :raises ValueError: unless ``save_freq`` is at least 1
    """

    model: Any

    def __init__(self, path: str | os.PathLike[str], save_freq: int, resume: bool = False, verbose: int = 0):
        super().__init__(verbose)
        if save_freq < 1:
            raise ValueError(f"save_freq is {save_freq} but at least 1 step between two checkpoints is needed.")
        self.path = with_suffix(path)
        self.save_freq = int(save_freq)
        self.resume = resume

    def _init_callback(self) -> None:
        if not hasattr(self.model, "resume"):
            raise TypeError(
                f"ResumableCheckpoint cannot save {type(self.model).__name__} but only this package's algorithms: use "
                "Stable-Baselines3's CheckpointCallback."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def _on_training_start(self) -> None:
        if self.resume and self.path.exists() and self.model.num_timesteps == 0:
            continue_from(self.model, self.path)
            if self.verbose >= 1:
                print(f"Training goes on at step {self.model.num_timesteps} of {self.path}")
        self._plan()

    def _plan(self) -> None:
        self._next = (self.model.num_timesteps // self.save_freq + 1) * self.save_freq

    def _save_if_due(self) -> None:
        if self.model.num_timesteps < self._next:
            return
        save_checkpoint(self.model, self.path)
        self._plan()
        if self.verbose >= 1:
            print(f"Checkpoint of step {self.model.num_timesteps} saved to {self.path}")

    def _on_rollout_start(self) -> None:
        # the updates that belong to all steps so far are made
        if not self.model.offline:
            self._save_if_due()

    def _on_step(self) -> bool:
        if self.model.offline:
            self._save_if_due()
        return True

    def _on_training_end(self) -> None:
        # a callback that stopped training did so within a rollout
        if self.model.offline or self.model._last_obs is not None:
            self._save_if_due()


class TimeStepProgressBar(ProgressBarCallback):
    """SB3's progress bar, where an update of an offline model is one time step, however many copies its environment has."""

    model: Any

    def _on_step(self) -> bool:
        if not self.model.offline:
            return super()._on_step()
        self.pbar.update(1)
        return True

"""What rl_zoo3 needs to know of this package.

The ``on_*`` functions receive a freshly imported module of rl_zoo3 (see ``_sb3_dualqdm_startup``) and add to it; nothing
here imports rl_zoo3 by itself. Where start-up files are not executed, ``python -m sb3_dualqdm.zoo train ...`` does the
same and then runs ``python -m rl_zoo3.train ...``.
"""

import argparse
import functools
import importlib
import inspect
import os
import runpy
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

ALGOS = {
    "dual_qdm": "DualQDM",
    "iq_learn": "IQLearn",
    "reg_iq_learn": "RegIQLearn",
    "bc": "BC",
    "sqil": "SQIL",
    "ls_iq": "LSIQ",
    "dac": "DAC",
    "value_dice": "ValueDICE",
    "hype": "HyPE",
    "recoil": "ReCOIL",
    "rize": "RIZE",
}

# Hyperparameters that say which demonstrations a model learns from
DEMONSTRATION_KEYS = ("demonstrations", "n_demonstrations", "subsample", "demonstrations_kwargs")

# ``-optimize`` samples one of these for ``policy_kwargs["net_arch"]``
NET_ARCHS = {"small": [64, 64], "medium": [256, 256], "big": [400, 300]}

COMMANDS = ("train", "enjoy", "record_video", "record_training", "benchmark", "push_to_hub", "load_from_hub", "cli")


def hyperparams_path(algo: str) -> Path:
    """
    The YAML file with the hyperparameters of an algorithm.

    :param algo: rl_zoo3's name of the algorithm, e.g. ``"dual_qdm"``
    """
    package = Path(__file__).parent
    installed = package / "hyperparams"
    # in a source tree or an editable install, they lie next to the package
    return (installed if installed.is_dir() else package.parent / "hyperparams") / f"{algo}.yml"


def on_utils(module: ModuleType) -> None:
    """Let ``--algo`` find our classes."""
    algorithms = importlib.import_module("sb3_dualqdm.algorithms")
    module.ALGOS.update({algo: getattr(algorithms, name) for algo, name in ALGOS.items()})


def on_hyperparams_opt(module: ModuleType) -> None:
    """Let ``-optimize`` and ``--trial-id`` know which hyperparameters to sample, and how to read a sample."""
    for algo in ALGOS:
        module.HYPERPARAMS_SAMPLER[algo] = functools.partial(sample_hyperparams, algo)
        if hasattr(module, "HYPERPARAMS_CONVERTER"):  # rl_zoo3 >= 2.6
            module.HYPERPARAMS_CONVERTER[algo] = convert_hyperparams


def on_import_envs(module: ModuleType) -> None:
    """Register our environments with gymnasium."""
    importlib.import_module("sb3_dualqdm.envs")


def on_callbacks(module: ModuleType) -> None:
    """Refuse ``ParallelTrainCallback``, which trains a reloaded SAC or TQC in place of the model."""
    original = module.ParallelTrainCallback._init_callback

    @functools.wraps(original)
    def _init_callback(self: Any) -> None:
        if _is_ours(self.model):
            self.process = None  # read when training ends, which rl_zoo3 announces after an error as well
            raise TypeError(  # not one of the errors that rl_zoo3 takes for a bad trial of `-optimize`
                f"ParallelTrainCallback trains a second model of class SAC or TQC in another thread, which would learn from "
                f"the reward and not from the demonstrations of this {type(self.model).__name__}; remove the callback."
            )
        original(self)

    module.ParallelTrainCallback._init_callback = _init_callback


def on_exp_manager(module: ModuleType) -> None:
    """Make ``ExperimentManager`` find our hyperparameters, and treat demonstrations as more than a hyperparameter."""
    manager = module.ExperimentManager
    _config_path(manager)
    _demonstrations_and_default_entry(manager)
    _check_before_search(manager, module.ALGOS)


def _is_ours(model: Any) -> bool:
    algorithms = importlib.import_module("sb3_dualqdm.algorithms")
    return isinstance(model, tuple(getattr(algorithms, name) for name in ALGOS.values()))


def _config_path(manager: type) -> None:
    original = manager.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # a path given with -conf stays, a wrong one too, and so does a file that someone added to rl_zoo3's own folder
        if self.algo in ALGOS and not kwargs.get("config") and not os.path.exists(self.config):
            self.config = str(hyperparams_path(self.algo))

    manager.__init__ = __init__  # type: ignore[misc]


def _demonstrations_and_default_entry(manager: Any) -> None:
    original = manager.read_hyperparameters
    # a ``default`` entry means something from rl_zoo3 2.8 on
    knows_default = "default" in inspect.unwrap(original).__code__.co_consts

    @functools.wraps(original)
    def read_hyperparameters(self: Any) -> Any:
        if self.algo not in ALGOS:
            return original(self)
        if knows_default or self.config != str(hyperparams_path(self.algo)):
            both = original(self)
        else:
            both = _read_with_default(self, original)
        if self.continue_training and "demonstrations" not in (self.custom_hyperparams or {}):
            # The model goes on with the demonstrations it was trained on, not with those that the file has for a new one.
            for hyperparams in both:
                for key in DEMONSTRATION_KEYS:
                    if key not in (self.custom_hyperparams or {}):
                        hyperparams.pop(key, None)
        return both

    manager.read_hyperparameters = read_hyperparameters


def _read_with_default(manager: Any, read: Any) -> Any:
    """Show an older rl_zoo3 a copy of our file in which the environment has an entry."""
    import yaml

    path, env_id = manager.config, manager.env_name.gym_id
    entries = yaml.safe_load(Path(path).read_text())
    if env_id in entries or manager._is_atari:
        return read(manager)
    print(f"Using the 'default' hyperparameters of {path}")
    with tempfile.TemporaryDirectory() as folder:
        manager.config = os.path.join(folder, f"{manager.algo}.yml")
        Path(manager.config).write_text(yaml.safe_dump({env_id: entries["default"]}))
        try:
            return read(manager)
        finally:
            manager.config = path


def _check_before_search(manager: Any, algos: dict[str, Any]) -> None:
    original = manager._preprocess_action_noise

    @functools.wraps(original)
    def _preprocess_action_noise(self: Any, hyperparams: Any, saved_hyperparams: Any, env: Any) -> Any:
        if self.algo in ALGOS and env.action_space.shape:
            self.n_actions = env.action_space.shape[0]  # older versions set it for action noise only
        hyperparams = original(self, hyperparams, saved_hyperparams, env)
        if self.algo in ALGOS and self.optimize_hyperparameters:
            checkpoint = importlib.import_module("sb3_dualqdm.callbacks").ResumableCheckpoint
            if any(isinstance(callback, checkpoint) and callback.resume for callback in self.callbacks):
                raise ValueError(
                    "ResumableCheckpoint(resume=True) is among the callbacks, but every trial of -optimize would go on from "
                    "the checkpoint of the first: leave it out."
                )
            # An error within a trial may be taken for bad hyperparameters, so missing or wrong demonstrations are found here.
            algos[self.algo](env=env, **hyperparams)._require_demonstrations()
        return hyperparams

    manager._preprocess_action_noise = _preprocess_action_noise


def sample_hyperparams(algo: str, trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Sample hyperparameters for a trial of ``-optimize``, with the arguments of rl_zoo3's samplers.

    :param algo: which of our algorithms
    :param trial: Optuna's trial
    :param n_actions: number of action dimensions, 0 for a Discrete action space
    :param n_envs: unused
    :param additional_args: unused
    :return: keyword arguments of the algorithm
    """
    params: dict[str, Any] = {
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 2e-3, log=True),
        "batch_size_pow": trial.suggest_int("batch_size_pow", 5, 9),
        "net_arch": trial.suggest_categorical("net_arch", list(NET_ARCHS)),
    }
    method = getattr(importlib.import_module("sb3_dualqdm.algorithms"), ALGOS[algo])
    space = {**method.search_space, **(method.box_search_space if n_actions > 0 else {})}
    params.update((name, values.suggest(trial, name)) for name, values in space.items())
    return convert_hyperparams(params)


def convert_hyperparams(params: dict[str, Any]) -> dict[str, Any]:
    """
    Turn the sampled parameters of a trial into keyword arguments of the algorithm.

    :param params: parameters by the names under which Optuna stores them
    """
    hyperparams = dict(params)
    hyperparams["batch_size"] = 2 ** hyperparams.pop("batch_size_pow")
    hyperparams["policy_kwargs"] = {"net_arch": list(NET_ARCHS[hyperparams.pop("net_arch")])}
    if "one_minus_gamma" in hyperparams:
        hyperparams["gamma"] = 1 - hyperparams.pop("one_minus_gamma")
    return hyperparams


def main(argv: list[str] | None = None) -> None:
    """
    Run a command of rl_zoo3 with our algorithms, also where Python's start-up files are not executed.

    :param argv: the command and its arguments, ``sys.argv[1:]`` by default
    """
    parser = argparse.ArgumentParser(
        prog="python -m sb3_dualqdm.zoo",
        description="Runs `python -m rl_zoo3.COMMAND ARGUMENTS` with the algorithms of sb3_dualqdm.",
        epilog="For the arguments of a command: python -m sb3_dualqdm.zoo COMMAND --help",
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="passed on as they are")
    args = parser.parse_args(argv)

    startup = importlib.import_module("_sb3_dualqdm_startup")
    startup.install(always=True)
    sys.argv = [sys.argv[0], *args.arguments]
    runpy.run_module(f"rl_zoo3.{args.command}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

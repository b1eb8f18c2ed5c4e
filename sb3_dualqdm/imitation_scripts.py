"""
What imitation's registries and command line need to know of this package.

The ``on_*`` functions receive a freshly imported module of imitation (see ``_sb3_dualqdm_startup``) and add to it; nothing
here imports imitation before one of the added commands or loaders runs.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_dualqdm.algorithms import DualQDM, ImitationAlgorithm, IQLearn, RegIQLearn
from sb3_dualqdm.zoo import ALGOS

SCRIPT = "imitation.scripts.train_adversarial"
BATCH_SIZE = 256


class _NoRelabelling:
    """imitation's script gives every off-policy algorithm a buffer that relabels rewards; ours have none to relabel."""

    def __init__(self, *args: Any, replay_buffer_class: Any = None, replay_buffer_kwargs: Any = None, **kwargs: Any):
        super().__init__(*args, **kwargs)

    @classmethod
    def load(cls, *args: Any, replay_buffer_class: Any = None, replay_buffer_kwargs: Any = None, **kwargs: Any) -> Any:
        return super().load(*args, **kwargs)  # type: ignore[misc]


class ScriptDualQDM(_NoRelabelling, DualQDM):
    """``DualQDM`` for imitation's script."""


class ScriptIQLearn(_NoRelabelling, IQLearn):
    """``IQLearn`` for imitation's script."""


class ScriptRegIQLearn(_NoRelabelling, RegIQLearn):
    """``RegIQLearn`` for imitation's script."""


COMMANDS: dict[str, type[ImitationAlgorithm]] = {
    "dual_qdm": ScriptDualQDM,
    "iq_learn": ScriptIQLearn,
    "reg_iq_learn": ScriptRegIQLearn,
}


def on_serialize(module: ModuleType) -> None:
    """Let ``load_policy("dual_qdm", venv, path=...)`` find our classes."""
    for name, attribute in ALGOS.items():
        if name not in module.policy_registry.keys():
            module.policy_registry.register(name, value=_policy_loader(module, attribute))


def _policy_loader(module: ModuleType, attribute: str) -> Callable[..., Any]:
    def load(venv: Any, path: str) -> Any:
        algorithms = importlib.import_module("sb3_dualqdm.algorithms")
        return module.load_stable_baselines_model(getattr(algorithms, attribute), path, venv).policy

    return load


def on_rl(module: ModuleType) -> None:
    """Let the script make our models: always for our commands, and by name (``rl.dual_qdm``)."""
    for name, model_class in COMMANDS.items():
        settings = {"rl_cls": model_class, "batch_size": BATCH_SIZE, "rl_kwargs": {}}
        if name not in module.rl_ingredient.named_configs:
            module.rl_ingredient.add_named_config(name, settings)
    hooks = module.rl_ingredient.config_hooks
    hooks[:] = [_except_for_ours(hook) for hook in hooks]

    @module.rl_ingredient.config_hook
    def model(config: Any, command_name: str, logger: Any) -> dict[str, Any]:
        if command_name not in COMMANDS or config["rl"]["rl_cls"] is not None:
            return {}
        return {"rl_cls": COMMANDS[command_name], "batch_size": BATCH_SIZE}

    @module.policy_ingredient.config_hook
    def policy(config: Any, command_name: str, logger: Any) -> dict[str, Any]:
        policy_class = config["policy"]["policy_cls"]
        is_default = isinstance(policy_class, type) and issubclass(policy_class, ActorCriticPolicy)
        return {"policy_cls": "MlpPolicy"} if command_name in COMMANDS and is_default else {}


def _except_for_ours(hook: Callable[..., Any]) -> Callable[..., Any]:
    """imitation's own default, which is PPO, for all commands but ours."""

    def config_hook(config: Any, command_name: str, logger: Any) -> Any:
        return {} if command_name in COMMANDS else hook(config, command_name, logger)

    return config_hook


def on_train_adversarial(module: ModuleType) -> None:
    """Add our commands to ``imitation-train-adversarial``."""
    for name in COMMANDS:
        module.train_adversarial_ex.command(_command(name))

    @module.train_adversarial_ex.config_hook
    def batch_size(config: Any, command_name: str, logger: Any) -> dict[str, Any]:
        # The script's default is that of a discriminator which makes one update per round
        return {"algorithm_kwargs": {"demo_batch_size": config["rl"]["batch_size"]}} if command_name in COMMANDS else {}


def _command(name: str) -> Callable[[], Any]:
    def run() -> Any:
        trainers = importlib.import_module("sb3_dualqdm.imitation")
        return _script().train_adversarial(algo_cls=getattr(trainers, f"{ALGOS[name]}Trainer"))

    run.__name__, run.__doc__ = name, f"Train {ALGOS[name]} on the demonstrations."
    return run


def _script() -> Any:
    """The script's module, under ``python -m`` also."""
    main = sys.modules["__main__"]
    return main if getattr(main.__spec__, "name", None) == SCRIPT else importlib.import_module(SCRIPT)

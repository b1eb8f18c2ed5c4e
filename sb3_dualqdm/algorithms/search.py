"""What a hyperparameter search may try: each method declares its own, :mod:`sb3_dualqdm.zoo` samples them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Range(NamedTuple):
    """
    Numbers between two bounds, whole ones where the bounds are.

    :param low: the smallest
    :param high: the largest
    :param log: evenly in the logarithm, default True
    """

    low: float
    high: float
    log: bool = True

    def suggest(self, trial: Any, name: str) -> Any:
        """
        :param trial: Optuna's trial
        :param name: under which the trial stores it
        """
        suggest = trial.suggest_int if isinstance(self.low, int) and isinstance(self.high, int) else trial.suggest_float
        return suggest(name, self.low, self.high, log=self.log)


class Choice(NamedTuple):
    """
    One of a few values.

    :param options: the values
    """

    options: list[Any]

    def suggest(self, trial: Any, name: str) -> Any:
        """
        :param trial: Optuna's trial
        :param name: under which the trial stores it
        """
        return trial.suggest_categorical(name, self.options)


SearchSpace = dict[str, Range | Choice]

DISCOUNT: SearchSpace = {"one_minus_gamma": Range(1e-3, 0.05), "tau": Range(1e-3, 0.05)}
ENTROPY: SearchSpace = {"ent_coef": Range(1e-3, 1.0)}
GRADIENT_PENALTY: SearchSpace = {"gradient_penalty": Range(0.1, 20.0)}
VALUE_MODE: SearchSpace = {"value_mode": Choice(["value", "v0"])}
REGULARIZATION_WEIGHT: SearchSpace = {"regularization": Range(0.1, 10.0)}

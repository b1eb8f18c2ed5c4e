"""Optimisers that torch does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch as th


class OptimisticAdam(th.optim.Adam):
    """
    Adam that steps by twice its new direction minus the last one (Daskalakis et al., 2018); parameters as Adam's.

    In games against another learner it damps the cycling of simultaneous gradient steps.

    :param fused: step all parameters in one pass, default True
    """

    def __init__(self, *args: Any, fused: bool = True, **kwargs: Any):
        super().__init__(*args, fused=fused, **kwargs)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """
        One step.

        :param closure: as Adam's
        """
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        before = [parameter.detach().clone() for parameter in parameters]
        loss = super().step(closure)
        with th.no_grad():
            for parameter, old in zip(parameters, before):
                state = self.state[parameter]
                direction = parameter - old
                last = state.setdefault("direction", th.zeros_like(parameter))
                parameter.add_(direction - last)
                last.copy_(direction)
        return loss

"""
Ways to run an update: as it is written, compiled, or captured once as a CUDA graph and replayed.

An update is a function of one batch of tensors that changes parameters in place and returns scalar tensors. Which way it runs
never shows in the saved modules.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch as th

ACCELERATIONS = ("auto", "none", "compile", "cudagraph")
# Updates that run eagerly before a capture, so that optimisers and libraries have allocated what they keep.
WARMUP_UPDATES = 3

Update = Callable[[Any], dict[str, th.Tensor]]


def tree_map(function: Callable[[th.Tensor], Any], tree: Any) -> Any:
    """``function`` of every tensor in nested (named) tuples and dicts; None stays None."""
    if isinstance(tree, th.Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        values = [tree_map(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    return tree


def leaves(tree: Any) -> list[th.Tensor]:
    """Every tensor in the order of :func:`tree_map`."""
    found: list[th.Tensor] = []
    tree_map(found.append, tree)
    return found


def resolve(acceleration: str, device: th.device) -> str:
    """
    What ``"auto"`` means on a device: captured on CUDA, plain elsewhere.

    :raises ValueError: for an unknown name, or a captured update without CUDA
    """
    if acceleration not in ACCELERATIONS:
        raise ValueError(f"acceleration is {acceleration!r} but must be one of {ACCELERATIONS}.")
    if acceleration == "cudagraph" and device.type != "cuda":
        raise ValueError(f"acceleration='cudagraph' was given but the device is {device}: use device='cuda', or 'auto'.")
    if acceleration == "auto":
        return "cudagraph" if device.type == "cuda" else "none"
    return acceleration


def accelerated(update: Update, acceleration: str, optimizers: Sequence[th.optim.Optimizer]) -> Update:
    """
    The update, run as ``acceleration`` says.

    :param update: changes parameters in place and returns scalars
    :param acceleration: ``"none"``, ``"compile"`` or ``"cudagraph"``, see :func:`resolve`
    :param optimizers: those that the update steps
    """
    if acceleration == "compile":
        return CompiledUpdate(update)
    if acceleration == "cudagraph":
        return CapturedUpdate(update, optimizers)
    return update


def set_learning_rate(optimizer: th.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group, in place where a captured update reads it from a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], th.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _fell_back(what: str, error: Exception) -> None:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    warnings.warn(
        f"The update could not be {what} ({reason}) and runs as it is: pass acceleration='none' to silence this.", stacklevel=3
    )


class CompiledUpdate:
    """
    The update through ``torch.compile``; runs as it is, with one warning, where that fails (no C++ compiler, say).

    :param update: see :func:`accelerated`
    """

    def __init__(self, update: Update):
        self._plain = update
        self._run = th.compile(update, dynamic=False)
        # Of the first call, compilation included, in seconds
        self.compile_seconds: float | None = None

    def __call__(self, batch: Any) -> dict[str, th.Tensor]:
        if self.compile_seconds is not None:
            return self._run(batch)
        started = time.perf_counter()
        try:
            statistics = self._run(batch)
        except Exception as error:  # whatever a compiler raises
            _fell_back("compiled", error)
            self._run = self._plain
            statistics = self._run(batch)
        self.compile_seconds = time.perf_counter() - started
        return statistics


class CapturedUpdate:
    """
    The update as a CUDA graph, captured anew for every shape of batch.

    The first updates run eagerly on a side stream. Batches are copied into the captured one; what the update returns is
    overwritten by the next replay.

    :param update: see :func:`accelerated`
    :param optimizers: made capturable, with learning rates in tensors
    """

    def __init__(self, update: Update, optimizers: Sequence[th.optim.Optimizer]):
        self._update = update
        self._optimizers = optimizers
        self._stream = th.cuda.Stream()
        self._graphs: dict[Any, tuple[Any, Any, dict[str, th.Tensor]]] = {}
        self._n_eager: dict[Any, int] = {}
        self._failed = False
        make_capturable(optimizers)

    def __call__(self, batch: Any) -> dict[str, th.Tensor]:
        key = tuple((tensor.shape, tensor.dtype) for tensor in leaves(batch))
        if self._failed or self._n_eager.get(key, 0) < WARMUP_UPDATES:
            self._n_eager[key] = self._n_eager.get(key, 0) + 1
            return self._on_side_stream(batch)
        if key not in self._graphs:
            try:
                self._graphs[key] = self._capture(batch)
            except RuntimeError as error:
                self._failed = True
                _fell_back("captured as a CUDA graph", error)
                return self._on_side_stream(batch)
        graph, static_batch, statistics = self._graphs[key]
        for static, new in zip(leaves(static_batch), leaves(batch)):
            static.copy_(new)
        graph.replay()
        return statistics

    def _on_side_stream(self, batch: Any) -> dict[str, th.Tensor]:
        self._stream.wait_stream(th.cuda.current_stream())
        with th.cuda.stream(self._stream):
            statistics = self._update(batch)
        th.cuda.current_stream().wait_stream(self._stream)
        return statistics

    def _capture(self, batch: Any) -> tuple[Any, Any, dict[str, th.Tensor]]:
        static_batch = tree_map(th.clone, batch)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)  # gradients must live in the graph's memory
        graph = th.cuda.CUDAGraph()
        with th.cuda.graph(graph):
            statistics = self._update(static_batch)
        return graph, static_batch, statistics


def make_capturable(optimizers: Sequence[th.optim.Optimizer]) -> None:
    """Keep step counts and learning rates on the device, where a graph reads them."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            device = group["params"][0].device
            if "capturable" in group:
                group["capturable"] = True
            group["lr"] = th.as_tensor(float(group["lr"]), device=device)
            for parameter in group["params"]:
                step = optimizer.state.get(parameter, {}).get("step")
                if step is not None:
                    optimizer.state[parameter]["step"] = step.to(device)


@contextmanager
def plain_optimizers(optimizers: Sequence[th.optim.Optimizer]) -> Iterator[None]:
    """Within it the optimisers look as if nothing was captured, so that what is saved loads anywhere."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    before: list[dict[str, Any]] = [{name: group[name] for name in ("lr", "capturable") if name in group} for group in groups]
    try:
        for group in groups:
            group["lr"] = float(group["lr"])
            if "capturable" in group:
                group["capturable"] = False
        yield
    finally:
        for group, values in zip(groups, before):
            group.update(values)

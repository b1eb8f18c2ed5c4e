"""
Ways to run an update: as it is written, compiled, or captured once as a CUDA graph and replayed.

An update is a function of one batch of tensors that changes parameters in place and returns scalar tensors. Which way it runs
never shows in the saved modules.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch as th

ACCELERATIONS = ("auto", "none", "compile", "cudagraph")
# Arguments that say how this machine runs a model, with their defaults; a zip, which another may load, holds none of them
MACHINE_ARGUMENTS = {"acceleration": "auto", "replay_device": "cpu"}
# Updates that run eagerly before a capture, so that optimisers and libraries have allocated what they keep.
WARMUP_UPDATES = 3
UNCOMPILED_UPDATES = 2  # before the one that is compiled

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
        return CompiledUpdate(update, optimizers)
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
    if "_local_scalar_dense" in reason:  # torch's name for it
        reason = "it reads a tensor's value, as Stable-Baselines3 does to encode Discrete and MultiDiscrete observations"
    warnings.warn(
        f"The update could not be {what} ({reason}) and runs as it is: pass acceleration='none' to silence this.", stacklevel=3
    )


class CompiledUpdate:
    """
    The update as one compiled program, see :mod:`sb3_dualqdm.program`, compiled anew for every layout of batch.

    The first update of a layout runs as it is, so that optimisers allocate their states; during the second the tensors that
    updates use are found; the third is traced and compiled. Where that fails (no C++ compiler, an optimiser without
    ``fused=True``) updates run as they are, with one warning.

    :param update: see :func:`accelerated`
    :param optimizers: their learning rates become tensors, which the program reads
    """

    def __init__(self, update: Update, optimizers: Sequence[th.optim.Optimizer]):
        self._update = update
        self._optimizers = optimizers
        self._n_calls: Counter[Any] = Counter()
        self._outside: dict[Any, list[th.Tensor]] = {}
        self._programs: dict[Any, tuple[Callable[..., list[th.Tensor]], list[str]]] = {}
        self._failed = False
        # Tracing and compiling, in seconds
        self.compile_seconds: float | None = None
        rates_in_tensors(optimizers)

    def __call__(self, batch: Any) -> dict[str, th.Tensor]:
        tensors = leaves(batch)
        layout = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors)
        self._n_calls[layout] += 1
        if self._n_calls[layout] > UNCOMPILED_UPDATES:
            if layout in self._programs:
                run, names = self._programs[layout]
                with th.no_grad():
                    return dict(zip(names, run(*self._outside[layout], *tensors)))
            if not self._failed:
                return self._compile(batch, layout)
        if self._n_calls[layout] < UNCOMPILED_UPDATES or self._failed or layout in self._outside:
            return self._update(batch)
        from sb3_dualqdm import program  # inductor takes a second to import

        with program.OutsideTensors(tensors) as outside:
            statistics = self._update(batch)
        self._outside[layout] = outside.found
        return statistics

    def begin_again(self) -> None:
        """Run the first updates of each layout as they are once more: they differ from compiled ones by rounding."""
        self._n_calls.clear()

    def _compile(self, batch: Any, layout: Any) -> dict[str, th.Tensor]:
        """Trace, compile and run the program of a layout."""
        from sb3_dualqdm import program

        started = time.perf_counter()
        outside, names = self._outside[layout], list[str]()
        inputs = [*outside, *leaves(batch)]
        before = [tensor.detach().clone() for tensor in outside]

        def flat() -> list[th.Tensor]:
            statistics = self._update(batch)
            names[:] = statistics
            return list(statistics.values())

        try:
            graph = program.trace(flat, inputs)
            self._restore(outside, before)
            run, values = program.compiled(graph, inputs)
        except Exception as error:  # whatever a tracer or a compiler raises
            _fell_back("compiled", error)
            self._failed = True
            self._restore(outside, before)
            return self._update(batch)
        self._programs[layout] = run, names
        self.compile_seconds = time.perf_counter() - started
        return dict(zip(names, values))

    def _restore(self, tensors: list[th.Tensor], values: list[th.Tensor]) -> None:
        """Undo what tracing changed; gradients are left to it."""
        with th.no_grad():
            for tensor, value in zip(tensors, values):
                tensor.copy_(value)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)


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


def rates_in_tensors(optimizers: Sequence[th.optim.Optimizer]) -> None:
    """Keep learning rates on the device, where a program or a graph reads them."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = th.as_tensor(float(group["lr"]), device=group["params"][0].device)


def make_capturable(optimizers: Sequence[th.optim.Optimizer]) -> None:
    """Keep step counts and learning rates on the device, where a graph reads them."""
    rates_in_tensors(optimizers)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
            for parameter in group["params"]:
                step = optimizer.state.get(parameter, {}).get("step")
                if step is not None:
                    optimizer.state[parameter]["step"] = step.to(parameter.device)


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

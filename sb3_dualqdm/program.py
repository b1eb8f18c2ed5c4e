"""
An update as one compiled program.

``torch.compile`` breaks an update at every backward pass and optimiser step. Here the whole of it, backward passes included,
is traced into one graph of tensor operations, cut at the fused optimiser steps (which are kernels already, and unknown to
inductor) and compiled in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch as th
import torch._inductor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.split_module import split_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The step of a fused optimiser: counters, then everything else in one kernel
OPTIMIZER_OPERATIONS = ("aten._foreach_", "aten._fused_")


class OutsideTensors(TorchDispatchMode):
    """
    Collects the tensors that a function uses beside its arguments: parameters, buffers, states of optimisers.

    :param arguments: tensors that are passed to the function
    """

    def __init__(self, arguments: Sequence[th.Tensor]):
        super().__init__()
        self._storages = {self._storage(tensor) for tensor in arguments}
        self._kept: list[th.Tensor] = list(arguments)  # a freed storage's identity could be taken by another
        self.found: list[th.Tensor] = []

    @staticmethod
    def _storage(tensor: th.Tensor) -> int:
        return tensor.untyped_storage()._cdata

    def _add(self, tensors: Sequence[th.Tensor]) -> list[th.Tensor]:
        new = []
        for tensor in tensors:
            if self._storage(tensor) not in self._storages:
                self._storages.add(self._storage(tensor))
                new.append(tensor)
        self._kept += new
        return new

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        used = self._add(_tensors((args, kwargs)))
        if function is not th.ops.aten.lift_fresh.default:  # a literal, made anew by every call
            self.found += used
        results = function(*args, **kwargs)
        self._add(_tensors(results))
        return results


def _tensors(tree: Any) -> list[th.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, th.Tensor)]


def trace(function: Callable[[], Sequence[th.Tensor]], tensors: Sequence[th.Tensor]) -> th.fx.GraphModule:
    """
    The operations of one call as a graph, whose inputs are the given tensors; the call takes place.

    :param function: uses no other tensors than these and those it makes
    :raises RuntimeError: if it does use another one, whose value the graph would keep as it is now
    """
    graph = make_fx(lambda *_: list(function()))(*tensors)
    for node in reversed(list(graph.graph.nodes)):
        if str(node.target).startswith("profiler."):
            graph.graph.erase_node(node)  # optimisers mark their steps for the profiler
        elif node.op == "get_attr" and any(user.target is not th.ops.aten.lift_fresh_copy.default for user in node.users):
            raise RuntimeError("it uses tensors that are new in every update, or that share memory")  # literals are copied
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def compiled(graph: th.fx.GraphModule, tensors: Sequence[th.Tensor]) -> tuple[th.fx.GraphModule, list[th.Tensor]]:
    """
    The graph as a program, and what its first run, which compiles it, returns.

    :param graph: see :func:`trace`
    :param tensors: the inputs
    """
    parts: dict[th.fx.Node, int] = {}
    part, was_step = 0, False
    for node in graph.graph.nodes:
        is_step = str(node.target).startswith(OPTIMIZER_OPERATIONS)
        part, was_step = part + (is_step != was_step), is_step
        parts[node] = part
    program = split_module(graph, graph, parts.__getitem__, keep_original_order=True)
    with th.no_grad():
        return program, _Compiling(program).run(*tensors)


class _Compiling(th.fx.Interpreter):
    """Compiles every part with the inputs that it gets, and puts the result in its place."""

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        part: Any = self.module.get_submodule(target)
        if not any(str(node.target).startswith(OPTIMIZER_OPERATIONS) for node in part.graph.nodes):
            part = _Part(torch._inductor.compile(part, list(args)))
            setattr(self.module, target, part)
        return part(*args)


class _Part(th.nn.Module):
    def __init__(self, run: Callable[..., Any]):
        super().__init__()
        self.run = run

    def forward(self, *args: th.Tensor) -> Any:
        return self.run(*args)

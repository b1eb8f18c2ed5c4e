"""The suites: which methods learn which tasks, in which variants, for how long, from how many seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from sb3_dualqdm.zoo import ALGOS, hyperparams_path

# Not ours: they run beside our methods to compare with. SAC learns from the task's reward.
REFERENCES = ("gail", "sac")
LABELS = {
    "dual_qdm": "Dual Q-DM",
    "iq_learn": "IQ-Learn",
    "reg_iq_learn": "Reg IQ-Learn",
    "ls_iq": "LS-IQ",
    "gail": "GAIL",
    "sac": "SAC (reward)",
}
MUJOCO = ("Ant-v4", "HalfCheetah-v4", "Hopper-v4", "Humanoid-v4", "Walker2d-v4")
PAPER_STEPS = 500_000


@dataclasses.dataclass(frozen=True)
class Variant:
    """
    Hyperparameters that differ from the method's entry for the task.

    :param name: short name, ``""`` for the entry as it is
    :param params: keyword arguments of the algorithm
    """

    name: str = ""
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Block:
    """
    All combinations of tasks, methods, variants and seeds.

    :param tasks: environment ids
    :param methods: rl_zoo3's names of algorithms, or ``"gail"``
    :param steps: steps of a run (environment steps; updates for BC), None: those of the method's hyperparameter file
    :param seeds: seeds
    :param variants: hyperparameters that differ
    :param evaluations: evaluations of a run of all steps, evenly spaced; the last one is at its end
    :param episodes: deterministic episodes of an evaluation
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    steps: int | None
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...] = (Variant(),)
    evaluations: int = 50
    episodes: int = 10


@dataclasses.dataclass(frozen=True)
class Run:
    """
    One training run.

    :param suite: suite that it belongs to
    :param task: environment id
    :param method: rl_zoo3's name of the algorithm, or ``"gail"``
    :param variant: name of the variant, ``""`` for none
    :param seed: seed of the run
    :param steps: environment steps, or updates for BC
    :param eval_every: steps between evaluations, and between checkpoints
    :param episodes: deterministic episodes of an evaluation
    :param params: hyperparameters that differ from the method's entry for the task
    """

    suite: str
    task: str
    method: str
    variant: str
    seed: int
    steps: int
    eval_every: int
    episodes: int
    params: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What tells it apart within its suite; also the name of its files."""
        parts = [self.task, self.method, self.variant, f"s{self.seed}"]
        return "_".join(part.replace(" ", "-").replace("/", "-") for part in parts if part)


def imitation_methods() -> tuple[str, ...]:
    """
    Every algorithm of this package that rl_zoo3 knows.

    :return: their names in rl_zoo3.
    """
    return tuple(ALGOS)


def _online() -> tuple[str, ...]:
    return tuple(method for method in imitation_methods() if method != "bc")


def _bounds(*bounds: float) -> tuple[Variant, ...]:
    return tuple(Variant(f"bound {bound:g}", {"bellman_bounds": [-bound, bound]}) for bound in bounds)


def _penalties(*penalties: float) -> tuple[Variant, ...]:
    return tuple(Variant(f"beta {penalty:g}", {"bellman_penalty": penalty}) for penalty in penalties)


def suites() -> dict[str, tuple[Block, ...]]:
    """
    The suites by name.

    :return: blocks of each.
    """
    three, five = tuple(range(3)), tuple(range(5))
    counts = tuple(Variant(f"{n} trajectories", {"n_demonstrations": n}) for n in (1, 5, 10, 25))
    return {
        "paper-online": (
            Block(MUJOCO, (*_online(), *REFERENCES), PAPER_STEPS, three),
            Block(MUJOCO, ("bc",), None, three),
        ),
        "paper-demos": (
            Block(MUJOCO, (*_online(), "gail"), PAPER_STEPS, three, counts),
            Block(MUJOCO, ("bc",), None, three, counts),
        ),
        "paper-offline": (
            Block(MUJOCO, ("bc",), PAPER_STEPS, five),
            Block(MUJOCO, ("iq_learn", "reg_iq_learn"), PAPER_STEPS, five, (Variant("", {"offline": True}),)),
        ),
        "paper-sensitivity": (
            Block(("HalfCheetah-v4",), ("dual_qdm",), PAPER_STEPS, three, _bounds(0.5, 1, 2, 5)),
            Block(("HalfCheetah-v4",), ("dual_qdm",), PAPER_STEPS, three, _penalties(0.1, 0.5, 1, 5)),
            Block(("Humanoid-v4",), ("dual_qdm",), PAPER_STEPS, three, _bounds(0.1, 0.5, 1, 2, 5)),
            Block(("Humanoid-v4",), ("dual_qdm",), PAPER_STEPS, three, _penalties(0.1, 3, 5, 7, 15)),
        ),
        "smoke": (
            Block(("CartPole-v1",), ("dual_qdm",), 2_000, (0, 1), evaluations=2, episodes=2),
            Block(("CartPole-v1",), ("bc",), 500, (0, 1), evaluations=2, episodes=2),
        ),
    }


def label(method: str) -> str:
    """
    A method's name in tables and figures.

    :param method: rl_zoo3's name of the algorithm.
    """
    return LABELS.get(method) or ALGOS.get(method) or method


def expand(
    suite: str,
    tasks: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
    seeds: Iterable[int] | None = None,
    steps: int | None = None,
) -> list[Run]:
    """
    The runs of a suite, or of a part of it.

    :param suite: name of the suite.
    :param tasks: only these tasks, default None: all; another version of a task (``HalfCheetah-v5``) takes its place.
    :param methods: only these methods, default None: all.
    :param seeds: these seeds instead of the suite's, default None.
    :param steps: at most so many steps a run, default None.
    :return: the runs, first all tasks and methods of a seed.
    :raises ValueError: if there is no such suite, task or method.
    """
    known = suites()
    if suite not in known:
        raise ValueError(f"the suite is {suite!r} but the suites are {', '.join(known)}: name one of them.")
    if steps is not None and steps < 1:
        raise ValueError(f"steps is {steps} but at least 1 is needed: pass a positive number.")
    runs = []
    for block in known[suite]:
        for task in _chosen_tasks(block.tasks, tasks):
            for method in block.methods:
                if methods is None or method in methods:
                    runs += _runs(suite, block, task, method, seeds, steps)
    missing = {
        "task": sorted(set(tasks or ()) - {run.task for run in runs}),
        "method": sorted(set(methods or ()) - {run.method for run in runs}),
    }
    for kind, names in missing.items():
        if names:
            there = sorted({getattr(run, kind) for run in expand(suite)})
            raise ValueError(f"{suite} has no {kind} {names[0]!r} but {', '.join(there)}: name some of them.")
    each_once = {run.name: run for run in runs}  # a task or seed may be asked for twice
    return sorted(each_once.values(), key=lambda run: run.seed)


def _chosen_tasks(tasks: tuple[str, ...], wanted: Iterable[str] | None) -> list[str]:
    """The wanted tasks among these, whatever their version."""
    if wanted is None:
        return list(tasks)
    families = {task.rpartition("-v")[0] for task in tasks}
    return [task for task in wanted if task.rpartition("-v")[0] in families]


def _runs(suite: str, block: Block, task: str, method: str, seeds: Iterable[int] | None, at_most: int | None) -> list[Run]:
    steps = block.steps or _steps_of_entry(method, task)
    eval_every = max(1, steps // block.evaluations)
    steps = min(steps, at_most or steps)
    return [
        Run(suite, task, method, variant.name, seed, steps, eval_every, block.episodes, variant.params)
        for variant in block.variants
        for seed in (block.seeds if seeds is None else seeds)
    ]


def _steps_of_entry(method: str, task: str) -> int:
    return int(entry(method, task)["n_timesteps"])


def entry(method: str, task: str) -> dict[str, Any]:
    """
    What the hyperparameter file of one of our methods has for a task.

    :param method: rl_zoo3's name of the algorithm.
    :param task: environment id.
    """
    import yaml

    entries = yaml.safe_load(hyperparams_path(method).read_text())
    return entries.get(task, entries["default"])

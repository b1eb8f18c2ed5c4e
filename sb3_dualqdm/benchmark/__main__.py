"""
Run, aggregate and plot benchmark suites.

    python -m sb3_dualqdm.benchmark run paper-online --tasks HalfCheetah-v4 --methods dual_qdm bc --steps 200000 -n 2
    python -m sb3_dualqdm.benchmark aggregate paper-online
    python -m sb3_dualqdm.benchmark plot paper-online

A run that is finished is a JSON file in the suite's folder and is not made again: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from sb3_dualqdm.acceleration import ACCELERATIONS
from sb3_dualqdm.benchmark import runs as running
from sb3_dualqdm.benchmark.suites import Run, expand, suites


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(
        prog="python -m sb3_dualqdm.benchmark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = main.add_subparsers(dest="command", required=True)
    texts = {
        "run": "make the runs of a suite that are not there yet",
        "aggregate": "tables of the finished runs",
        "plot": "figures of the finished runs",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("suite", choices=suites(), metavar="SUITE", help=", ".join(suites()))
        command.add_argument("--folder", type=Path, help="folder of the suite's records, default: benchmarks/results/SUITE")
        command.add_argument("--tasks", nargs="+", metavar="ENV", help="only these tasks")
        command.add_argument("--methods", nargs="+", metavar="ALGO", help="only these methods")
        command.add_argument("--seeds", nargs="+", type=int, metavar="N", help="these seeds")
        command.add_argument("--steps", type=int, help="at most so many steps a run")
        command.add_argument("--demonstrations", type=Path, metavar="DIR", help="has a file or folder named after each task")
        if name == "run":
            command.add_argument("-n", type=int, default=1, dest="at_once", help="runs at a time on this machine, default 1")
            command.add_argument("--device", default="auto", help="torch device, default auto")
            command.add_argument(
                "--acceleration", choices=ACCELERATIONS, help="how updates run, default: as the hyperparameters say"
            )
            command.add_argument(
                "--keep-checkpoints", action="store_true", help="so that finished runs can go on, with more --steps"
            )
            command.add_argument("--backend", choices=("local", "ray"), default="local")
            command.add_argument("--ray-address", help="address of a Ray cluster, default: a new one on this machine")
            command.add_argument("--dry-run", action="store_true", help="print the runs and what they cost")
    return main


def _possible(runs: list[Run]) -> tuple[list[Run], dict[str, list[str]]]:
    """Runs that can be made here, and the names of the others by reason."""
    obstacles: dict[str, list[str]] = {}
    possible = []
    for run in runs:
        reason = running.obstacle(run)
        if reason is None:
            possible.append(run)
        else:
            obstacles.setdefault(reason, []).append(run.name)
    return possible, obstacles


def _run(args: argparse.Namespace, runs: list[Run], folder: Path) -> int:
    from sb3_dualqdm.benchmark import analysis

    done = {run.name: running.steps_done(run, folder) for run in runs}
    missing = [run for run in runs if done[run.name] < run.steps]
    possible, obstacles = _possible(missing)
    rest = [dataclasses.replace(run, steps=run.steps - done[run.name]) for run in possible]
    hours = running.estimate(rest, analysis.read(folder))
    print(f"{args.suite}: {len(runs)} runs, {len(runs) - len(missing)} finished, {len(possible)} to make, in {folder}")
    for reason, names in obstacles.items():
        print(f"not possible here ({reason}): {len(names)} runs, the first is {names[0]}")
    print(f"about {_duration(hours)} of CPU time, {_duration(hours / args.at_once)} with {args.at_once} at a time", flush=True)
    if args.dry_run:
        for run in possible:
            print(f"  {run.name}: {run.steps:,} steps")
        return 0
    from tqdm import tqdm

    with tqdm(total=sum(run.steps for run in possible), unit=" steps", unit_scale=True, mininterval=1.0) as bar:
        failed = running.execute_all(
            possible,
            folder,
            args.at_once,
            running.Execution(args.device, args.acceleration, args.keep_checkpoints),
            args.backend,
            args.ray_address,
            progress=bar.update,
        )
    for name, message in failed.items():
        print(f"failed: {name}, see {folder / name}.log: {message.strip().splitlines()[-1]}")
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """
    Command line.

    :param argv: arguments, ``sys.argv[1:]`` by default.
    :return: exit status.
    """
    args = parser().parse_args(argv)
    folder = (args.folder or Path("benchmarks") / "results" / args.suite).resolve()
    try:
        runs = expand(args.suite, args.tasks, args.methods, args.seeds, args.steps)
        runs = running.with_demonstrations(runs, args.demonstrations)
        if args.command == "run":
            if args.at_once < 1:
                raise ValueError(f"-n is {args.at_once} but at least 1 run at a time is needed.")
            return _run(args, runs, folder)
        from sb3_dualqdm.benchmark import analysis

        done = {run.name for run in runs if running.steps_done(run, folder)}
        records = [record for record in analysis.read(folder) if Run(**record["run"]).name in done]
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    if not records:
        raise SystemExit(f"error: {folder} has no finished run of what was asked for: make some with the command run.")
    try:
        _show(args, runs, records, [run for run in runs if run.name not in done], folder)
    except ImportError as error:  # rliable is an extra
        raise SystemExit(f"error: {error}") from None
    return 0


def _duration(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"


def _show(args: argparse.Namespace, runs: list[Run], records: list[dict[str, Any]], missing: list[Run], folder: Path) -> None:
    """The commands aggregate and plot."""
    from sb3_dualqdm.benchmark import analysis, figures

    if args.command == "aggregate":
        _, obstacles = _possible(missing)
        text = analysis.report(records, runs, obstacles)
        (folder / "summary.md").write_text(text)
        analysis.last(analysis.evaluations(records)).round(4).to_csv(folder / "summary.csv", index=False)
        print(text)
    else:
        for path in figures.plot(args.suite, analysis.evaluations(records), folder):
            print(path)


if __name__ == "__main__":
    sys.exit(main())

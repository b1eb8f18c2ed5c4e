"""
Look at, record, convert and check demonstrations: ``python -m sb3_dualqdm.demos info | collect | convert | check | plot``.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium as gym
    import numpy as np
    from matplotlib.axes import Axes

    from sb3_dualqdm.demonstrations import Demonstrations
    from sb3_dualqdm.demonstrations.checks import Finding

_LEVELS = {"ok": "green", "note": "yellow", "problem": "bold red"}
_TERMINATED, _TRUNCATED = "#2166ac", "#e08214"
# Observations' components in a plot
_MOST_OBSERVATIONS = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    :param arguments: its words, default those of the process.
    :return: exit status: 0, 1 if ``check`` found a problem, 2 if something cannot be read.
    """
    args = _parser().parse_args(arguments)
    import gymnasium as gym  # not before, so that --help answers at once

    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
            return int(args.run(args) or 0)
    except (ValueError, ImportError, OSError, gym.error.Error) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sb3_dualqdm.demos", description="Work with demonstrations.")
    commands = parser.add_subparsers(required=True, metavar="info | collect | convert | check | plot")
    source = argparse.ArgumentParser(add_help=False)
    source.add_argument("source", help="file, folder, builtin:<env id> or minari:<dataset id>")
    source.add_argument("--env", help="check and cast to the spaces of this environment")
    source.add_argument("-n", "--n-demonstrations", type=int, help="the first n episodes only")
    source.add_argument("--subsample", type=int, default=1, help="every k-th step of each episode (default: 1)")
    source.add_argument("--max-episode-steps", type=int, help="time limit (default: the environment's, if --env is given)")
    source.add_argument("--drop-last", action="store_true", help="leave out last steps whose successor is not stored")
    source.add_argument("--clip-actions", action="store_true", help="clip actions that lie outside the action space")

    command = commands.add_parser("info", parents=[source], help="what is in it")
    command.add_argument("--episodes", type=int, default=10, help="episodes to list (default: 10)")
    command.set_defaults(run=_info)

    command = commands.add_parser("collect", help="record episodes of a model")
    command.add_argument("source", help='file of a trained model, or "random"')
    command.add_argument("--env", required=True, help="environment id")
    command.add_argument("--algo", help="its algorithm, such as ppo, sac, tqc or dual_qdm; loading a model executes its code")
    command.add_argument("-n", "--n-episodes", type=int, default=10, help="default: 10")
    command.add_argument("--seed", type=int, default=0, help="episode i starts from seed + i (default: 0)")
    command.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the most likely ones")
    command.add_argument("--vec-normalize", help="vecnormalize.pkl that the model was trained with")
    command.add_argument("-o", "--output", required=True, help=".npz, .hdf5, .parquet or .csv file to write")
    command.set_defaults(run=_collect)

    command = commands.add_parser("convert", parents=[source], help="write it in another format")
    command.add_argument("output", help=".npz, .hdf5, .parquet or .csv file to write")
    command.set_defaults(run=_convert)

    command = commands.add_parser("check", parents=[source], help="look for mistakes; with --env, replay it")
    command.add_argument("--seed", type=int, help="seed of the first episode, if seeds are not recorded")
    command.add_argument("--replays", type=int, default=5, help="episodes to replay with --env (default: 5)")
    command.set_defaults(run=_check)

    command = commands.add_parser("plot", parents=[source], help="returns, lengths, ranges and actions as a PNG")
    command.add_argument("-o", "--output", default="demonstrations.png", help="file to write (default: demonstrations.png)")
    command.set_defaults(run=_plot)
    return parser


def _load(args: argparse.Namespace) -> tuple[Demonstrations, gym.Env | None]:
    from sb3_dualqdm.demonstrations import load_demonstrations

    env, options = None, dict[str, Any]()
    limit = args.max_episode_steps
    if args.env:
        import gymnasium as gym

        env = gym.make(args.env)
        options = {"observation_space": env.observation_space, "action_space": env.action_space}
        limit = limit or (env.spec.max_episode_steps if env.spec else None)
    demos = load_demonstrations(
        args.source,
        **options,
        n_demonstrations=args.n_demonstrations,
        subsample=args.subsample,
        max_episode_steps=limit,
        drop_last=args.drop_last,
        clip_actions=args.clip_actions,
    )
    return demos, env


def _print(*parts: Any) -> None:
    from sb3_dualqdm.demonstrations.files import optional

    # keys of observations and names of files may look like [x] or :x:, which is not meant as a style
    console = optional("rich.console", "demos", "a table").Console(markup=False, emoji=False)
    for part in parts:
        console.print(part)


def _table(title: str, *columns: str, numbers: Sequence[int] = ()) -> Any:
    from sb3_dualqdm.demonstrations.files import optional

    header = any(columns)
    table = optional("rich.table", "demos", "a table").Table(title=title, title_justify="left", show_header=header)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in numbers else "left", overflow="fold")
    return table


def _info(args: argparse.Namespace) -> None:
    from sb3_dualqdm.demonstrations.successors import Successors
    from sb3_dualqdm.demonstrations.types import last_rows, obs_arrays

    demos, _ = _load(args)
    table = _table(demos.source, "", "")

    def spread(values: np.ndarray) -> str:
        return f"{values.mean():.1f} ± {values.std():.1f}, from {values.min():g} to {values.max():g}"

    nbytes = demos.actions.nbytes
    for key, array in obs_arrays(demos.obs).items():
        following: Any = obs_arrays(demos.next_obs)[key]
        nbytes += array.nbytes + (following.final if isinstance(following, Successors) else following).nbytes
        name = f"observation {key}".strip()
        table.add_row(name, f"{array.dtype} {array.shape[1:]}, from {array.min():.4g} to {array.max():.4g}")
    actions = demos.actions
    table.add_row("action", f"{actions.dtype} {actions.shape[1:]}, from {actions.min():.4g} to {actions.max():.4g}")
    table.add_row("episodes", str(demos.n_episodes))
    table.add_row("transitions", f"{len(demos)}" + (f" (every {demos.subsampling}th)" if demos.subsampling > 1 else ""))
    last = last_rows(demos.episode)
    terminated = int(demos.terminated[last].sum())
    ends = f"{terminated} terminated, {demos.n_episodes - terminated} cut"
    if demos.reinterpreted.any():
        ends += f" ({int(demos.reinterpreted.sum())} flags at the time limit read as cuts)"
    table.add_row("ends", ends)
    table.add_row("length", spread(demos.episode_lengths))
    table.add_row("return", "no rewards stored" if demos.episode_returns is None else spread(demos.episode_returns))
    table.add_row("seeds", "not recorded" if demos.seeds is None else f"{demos.seeds[0]}, ..., {demos.seeds[-1]}")
    table.add_row("memory", f"{nbytes / 2**20:.1f} MiB of observations and actions")
    if demos.sha256:
        table.add_row("sha256", demos.sha256)
    for note in demos.notes:
        table.add_row("note", note)
    episodes = _table("episodes", "episode", "steps", "return", "end", numbers=(0, 1, 2))
    for i in range(min(args.episodes, demos.n_episodes)):
        total = "" if demos.episode_returns is None else f"{demos.episode_returns[i]:.2f}"
        end = "terminated" if demos.terminated[last[i]] else "cut"
        episodes.add_row(str(demos.episode_indices[i]), str(demos.episode_lengths[i]), total, end)
    if demos.n_episodes > args.episodes:
        episodes.caption = f"and {demos.n_episodes - args.episodes} more (--episodes)"
    _print(table, episodes)


def _algorithm(name: str | None) -> Any:
    """Class of a model, by the name that rl-zoo3 gives it."""
    import importlib

    known = {}
    for module in ("stable_baselines3", "sb3_contrib", "sb3_dualqdm"):
        try:
            package = importlib.import_module(module)
        except ImportError:
            continue
        for attribute in dir(package):
            value = getattr(package, attribute)
            if isinstance(value, type) and hasattr(value, "load") and hasattr(value, "learn"):
                known[attribute.lower()] = value
    if name is None or name.lower().replace("_", "") not in known:
        names = ", ".join(sorted(known))
        raise ValueError(f"--algo is {name!r}, but a model is loaded with its algorithm: pass one of {names}.")
    return known[name.lower().replace("_", "")]


def _collect(args: argparse.Namespace) -> None:
    import gymnasium as gym

    from sb3_dualqdm.demonstrations import collect_demonstrations
    from sb3_dualqdm.demonstrations.writers import write_demonstrations

    env = gym.make(args.env)
    _check_output(args.output, env)
    normalized = None  # what the model sees; episodes are recorded in the environment itself, which takes a seed each
    if args.vec_normalize:
        from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

        with _loading(args.vec_normalize, "VecNormalize's statistics", "VecNormalize.save wrote"):
            normalized = VecNormalize.load(args.vec_normalize, DummyVecEnv([lambda: env]))
    if args.source == "random":
        env.action_space.seed(args.seed)
        policy: Any = _random_policy(env.action_space)
    else:
        algorithm = _algorithm(args.algo)
        with _loading(args.source, f"a model of {algorithm.__name__}", "its save wrote, in the spaces of the environment"):
            policy = algorithm.load(args.source, env=normalized, device="cpu")
    demos = collect_demonstrations(
        policy, env, args.n_episodes, deterministic=not args.stochastic, seed=args.seed, progress_bar=True
    )
    demos = demos._replace(source=f"{demos.source} in {args.env}")
    write_demonstrations(demos, args.output)
    print(f"{args.output}: {demos.summary()}")


@contextmanager
def _loading(file: str, what: str, wanted: str) -> Iterator[None]:
    """Pickles and archives of anything else raise whatever they like: one sentence that names the file."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(f"{file} cannot be loaded as {what} ({text[:200]}): pass a file that {wanted}.") from None


def _check_output(output: str, env: gym.Env) -> None:
    """Write two made-up observations in the format of the output: what cannot be written is not recorded first."""
    import tempfile

    import numpy as np
    from gymnasium.vector.utils import create_empty_array

    from sb3_dualqdm.demonstrations import load_demonstrations
    from sb3_dualqdm.demonstrations.writers import write_demonstrations

    target = Path(output).expanduser()
    step = {
        "obs": create_empty_array(env.observation_space, 2, np.zeros),
        "acts": create_empty_array(env.action_space, 1, np.zeros),
        "rews": np.zeros(1),
        "terminal": True,
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            open(target, "ab").close()  # leaves it as it is
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder:
            trial = Path(folder) / target.name
            try:
                write_demonstrations(load_demonstrations([step]), trial)
            except (ValueError, ImportError) as error:
                raise ValueError(str(error).replace(str(trial), output)) from None
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{output} cannot be written ({reason}): choose a file in a folder that you may write to.") from None


def _random_policy(space: gym.Space) -> Any:
    def random(obs: Any) -> Any:
        return space.sample()

    return random


def _convert(args: argparse.Namespace) -> None:
    from sb3_dualqdm.demonstrations.writers import write_demonstrations

    demos, _ = _load(args)
    print(f"{write_demonstrations(demos, args.output)}: {demos.summary()}")


def _check(args: argparse.Namespace) -> int:
    import numpy as np

    from sb3_dualqdm.demonstrations.checks import Finding, check_actions, check_demonstrations, replay
    from sb3_dualqdm.demonstrations.files import optional

    demos, env = _load(args)
    findings = check_demonstrations(demos)
    if env is not None:
        findings.append(Finding("spaces", "ok", f"fits {args.env}"))
        findings.append(check_actions(demos, env.action_space))
        some = demos.select(min(args.replays, demos.n_episodes)) if args.replays > 0 else None
        seeds = None if args.seed is None else args.seed + np.arange(args.replays)
        if some is None or (seeds is None and demos.seeds is None):
            findings.append(Finding("replay", "note", "left out: no recorded seeds (--seed gives that of the first episode)"))
        elif demos.subsampling > 1:
            findings.append(Finding("replay", "note", "left out: it needs every step"))
        else:
            tqdm = optional("tqdm", "demos", "a progress bar").tqdm
            findings += tqdm(replay(some, env, seeds), total=some.n_episodes, desc="replay", unit="episode", leave=False)
    _print(_findings(demos, findings))
    return int(any(finding.level == "problem" for finding in findings))


def _findings(demos: Demonstrations, findings: list[Finding]) -> Any:
    from sb3_dualqdm.demonstrations.files import optional

    styled = optional("rich.text", "demos", "a table").Text
    table = _table(demos.summary(), "check", "", "found")
    for finding in findings:
        table.add_row(finding.check, styled(finding.level, _LEVELS[finding.level]), finding.text)
    return table


def _plot(args: argparse.Namespace) -> None:
    from sb3_dualqdm.demonstrations.files import optional

    demos, env = _load(args)
    figure = optional("matplotlib.figure", "demos", "a plot").Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    figure.suptitle(demos.summary(), fontsize=9, wrap=True)
    _plot_returns(axes[0, 0], demos)
    _plot_lengths(axes[0, 1], demos)
    _plot_observations(axes[1, 0], demos)
    _plot_actions(axes[1, 1], demos, None if env is None else env.action_space)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.output, dpi=130)
    print(args.output)


def _plot_returns(ax: Axes, demos: Demonstrations) -> None:
    ax.set_title("return of each episode")
    ax.set_xlabel("episode")
    ax.set_ylabel("return")
    if demos.episode_returns is None:
        ax.text(0.5, 0.5, "no rewards stored", ha="center", va="center", transform=ax.transAxes)
        ax.set(xticks=[], yticks=[])
        return
    ax.plot(demos.episode_indices, demos.episode_returns, "o", color=_TERMINATED, markersize=4 if demos.n_episodes > 50 else 6)
    mean = demos.episode_returns.mean()
    ax.axhline(mean, color="0.5", linewidth=1, linestyle="--", label=f"mean {mean:.1f}")
    ax.locator_params(axis="x", integer=True)
    ax.legend(frameon=False)


def _plot_lengths(ax: Axes, demos: Demonstrations) -> None:
    from sb3_dualqdm.demonstrations.types import last_rows

    ax.set_title("length of each episode, and how it ends")
    ax.set_xlabel("episode")
    ax.set_ylabel("steps")
    terminated = demos.terminated[last_rows(demos.episode)]
    for which, color, label in ((terminated, _TERMINATED, "terminated"), (~terminated, _TRUNCATED, "cut")):
        if which.any():
            ax.bar(demos.episode_indices[which], demos.episode_lengths[which], color=color, label=label)
    ax.locator_params(axis="x", integer=True)
    ax.margins(y=0.2)
    ax.legend(frameon=False, ncols=2, loc="upper right")


def _numbers(array: np.ndarray) -> np.ndarray:
    """numpy neither interpolates nor subtracts booleans."""
    return array.astype("uint8") if array.dtype == bool else array


def _plot_observations(ax: Axes, demos: Demonstrations) -> None:
    import numpy as np

    from sb3_dualqdm.demonstrations.types import obs_arrays

    columns = {}
    for key, stored in obs_arrays(demos.obs).items():
        array = _numbers(stored)
        if array.ndim > 2:  # a picture: all its values together
            columns[key or "all values"] = array[:: max(1, len(array) // 200)].ravel()
            continue
        flat = array.reshape(len(array), -1)
        columns |= {f"{key}[{i}]" if key else str(i): flat[:, i] for i in range(flat.shape[1])}
    shown = dict(list(columns.items())[:_MOST_OBSERVATIONS])
    some = f", first {_MOST_OBSERVATIONS}" if len(columns) > _MOST_OBSERVATIONS else ""
    ax.set_title(f"observations: range, and 5th to 95th percentile (thick){some}")
    for i, column in enumerate(shown.values()):
        low, five, half, most_of, high = np.percentile(column, (0, 5, 50, 95, 100))
        ax.plot([i, i], [low, high], color="0.6", linewidth=1.2, solid_capstyle="butt")
        ax.plot([i, i], [five, most_of], color=_TERMINATED, linewidth=5, solid_capstyle="butt")
        ax.plot(i, half, "o", color="white", markeredgecolor=_TERMINATED, markersize=4.5)
    step = max(1, len(shown) // 20)
    ax.set_xticks(range(0, len(shown), step), list(shown)[::step], rotation=0 if "0" in shown else 60)
    ax.set_xlabel("element of the observation")


def _plot_actions(ax: Axes, demos: Demonstrations, space: Any) -> None:
    import numpy as np
    from gymnasium import spaces

    from sb3_dualqdm.demonstrations.checks import at_bounds

    actions = _numbers(demos.actions)
    if actions.ndim == 1 and actions.dtype.kind in "iu":
        values, counts = np.unique(actions, return_counts=True)
        ax.set_title("how often each action is taken")
        ax.bar(values, counts / counts.sum(), color=_TERMINATED)
        ax.set_xticks(values if len(values) <= 20 else values[:: len(values) // 20])
        ax.set_xlabel("action")
        ax.set_ylabel("share of steps")
        return
    if not isinstance(space, spaces.Box):  # the data's own range, where the space is not known
        flat = actions.reshape(len(actions), -1)
        space = spaces.Box(flat.min(axis=0).astype(np.float32), flat.max(axis=0).astype(np.float32), dtype=np.float32)
        ax.set_title("actions, and share at the ends of their range (right)")
    else:
        ax.set_title("actions, and share at the bounds (right)")
    shares = at_bounds(actions.reshape(len(actions), *space.shape), space)
    flat, low, high = actions.reshape(len(actions), -1), space.low.ravel().astype(float), space.high.ravel().astype(float)
    bins = int(np.clip(np.sqrt(len(flat)), 10, 60))
    for i in range(flat.shape[1]):
        counts, edges = np.histogram(flat[:, i], bins=bins, range=(float(low[i]), float(high[i]) or 1e-6))
        center = (edges[:-1] + edges[1:]) / 2
        position = (center - low[i]) / max(high[i] - low[i], 1e-12) * 2 - 1
        ax.fill_between(position, i, i + 0.85 * counts / max(1, counts.max()), color=_TERMINATED, alpha=0.75, linewidth=0)
        ax.text(1.06, i + 0.1, f"{100 * shares[i]:.0f} %", fontsize=8)
    ax.set_yticks(range(flat.shape[1]), [f"[{i}]  {low[i]:.3g} to {high[i]:.3g}" for i in range(flat.shape[1])], fontsize=8)
    ax.set_xlim(-1.05, 1.2)
    ax.set_xticks([-1, 0, 1], ["lowest", "middle", "highest"])


if __name__ == "__main__":
    sys.exit(main())

"""
Break one solver at a time and report which tests notice: ``python tests/tabular/mutations.py [--all] [name ...]``.

Every mutation is a textual change to a copy of the package; a mutation that no test fails is an error.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]

# name: (file in sb3_dualqdm/tabular, text, replacement, test file that must notice)
T1, T2, FLOW, OTHER, PLAN = (f"test_{name}.py" for name in ("theorem1", "theorem2", "value_flow", "other_methods", "mdp"))
BOX = "objective, start, 0.0, 1.0, tolerance * scale"
MUTATIONS = {
    "Dual Q-DM: rewards up to 2": ("dual_qdm.py", BOX, BOX.replace("1.0", "2.0"), T2),
    "Dual Q-DM: rewards down to -1": ("dual_qdm.py", BOX, BOX.replace("0.0", "-1.0"), T2),
    "Dual Q-DM: stops early": ("dual_qdm.py", BOX + ", max_iterations", BOX + ", 2", T2),
    "AIL primal: TV without the half": ("conic.py", "0.5 * cp.sum(cp.abs(", "1.0 * cp.sum(cp.abs(", T2),
    "Dual V-DM: rewards up to 2": ("conic.py", "r[h] <= 1]", "r[h] <= 2]", T2),
    "AIL min-max: entropy twice": ("ail.py", "temperature = alpha + 1.0", "temperature = 2 * alpha + 1.0", T2),
    "BC: smoothed counts": ("likelihood.py", "states > 0, expert /", "states > 0, (expert + 0.01) /", T1),
    "IQ-Learn (TV): no initial states": (
        "likelihood.py",
        "return demos.next_mass(mdp) + mdp.start_source()",
        "return demos.next_mass(mdp)",
        T1,
    ),
    "IQ-Learn (chi2): half, not a quarter": ("likelihood.py", "x - x**2 / 4.0, 1.0 - x / 2.0", "x - x**2 / 2.0, 1.0 - x", T1),
    "ValueDICE: as printed": (
        "likelihood.py",
        "steps = 1.0 if mdp.horizon is None else float(mdp.horizon)\n    source",
        "steps = 1.0\n    source",
        OTHER,
    ),
    "penalised form: upper hinge at the lower bound": (
        "dual_qdm.py",
        "np.maximum(r - high, 0.0)\n        return beta",
        "np.maximum(r - low, 0.0)\n        return beta",
        OTHER,
    ),
    "penalised form: hinge always per sample": ("dual_qdm.py", "if not per_sample:", "if False:", OTHER),
    "Reg IQ-Learn: twice the square": (
        "dual_qdm.py",
        "coefficient * r**2, 2.0 * coefficient * r",
        "2.0 * coefficient * r**2, 4.0 * coefficient * r",
        OTHER,
    ),
    "soft planning: max instead of LSE": ("mdp.py", "v[h] = top + alpha * np.log(total)", "v[h] = top", PLAN),
    "TD MDP: lambda not ordered": (
        "instances.py",
        "np.maximum(mixture[:n_expert], mixture[n_expert:].max(axis=0))",
        "mixture[:n_expert]",
        FLOW,
    ),
    "Reset Cliff: a second chance": (
        "instances.py",
        "transitions[..., -1] = 1.0\n    transitions[good",
        "transitions[..., -2] = 1.0\n    transitions[good",
        OTHER,
    ),
    "expected BC gap: no lucky guesses": (
        "instances.py",
        "* (1.0 - 1.0 / n_actions)\n    return horizon",
        "\n    return horizon",
        OTHER,
    ),
}


def failed_tests(name: str, everything: bool) -> list[str]:
    file, old, new, noticing = MUTATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "sb3_dualqdm", copy / "sb3_dualqdm", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "tests" / "tabular", copy / "tests" / "tabular", ignore=shutil.ignore_patterns("__pycache__"))
        target = copy / "sb3_dualqdm" / "tabular" / file
        text = target.read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name}: found {text.count(old)} places to change in {file}, expected 1: update the mutation.")
        target.write_text(text.replace(old, new))
        target_tests = "tests/tabular" if everything else f"tests/tabular/{noticing}"
        command = [sys.executable, "-m", "pytest", *"-q --tb=no -rf -p no:cacheprovider -W ignore".split(), target_tests]
        report = subprocess.run(command, cwd=copy, capture_output=True, text=True).stdout
    return re.findall(r"^FAILED tests/tabular/(\w+\.py::\w+)", report, flags=re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutations (default: all)")
    parser.add_argument("--all", action="store_true", help="run every tabular test, not only the file that must notice")
    chosen = parser.parse_args()
    unnoticed = []
    for name in tqdm(chosen.names or MUTATIONS, unit="mutation"):
        counts = Counter(failed_tests(name, chosen.all))
        tqdm.write(f"{name}\n" + "".join(f"    {count:3d} x {test}\n" for test, count in counts.items()))
        unnoticed += [] if counts else [name]
    if unnoticed:
        raise SystemExit(f"no test noticed: {', '.join(unnoticed)}")


if __name__ == "__main__":
    main()

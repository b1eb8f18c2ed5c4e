"""
Break one solver at a time and report which tests notice: ``python tests/tabular/mutations.py [name ...]``.

Every mutation is a textual change to a copy of the package; a mutation that no test fails is an error.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]

# name: (file in sb3_dualqdm/tabular, text, replacement)
MUTATIONS = {
    "Dual Q-DM: rewards up to 2": (
        "dual_qdm.py",
        "objective, start, 0.0, 1.0, tolerance * scale",
        "objective, start, 0.0, 2.0, tolerance * scale",
    ),
    "Dual Q-DM: rewards down to -1": (
        "dual_qdm.py",
        "objective, start, 0.0, 1.0, tolerance * scale",
        "objective, start, -1.0, 1.0, tolerance * scale",
    ),
    "Dual Q-DM: no initial-state term": (
        "dual_qdm.py",
        "return value, expert - mdp.occupancy(policy)",
        "return value, expert - 0.5 * mdp.occupancy(policy)",
    ),
    "AIL primal: TV without the half": ("conic.py", "0.5 * cp.sum(cp.abs(", "1.0 * cp.sum(cp.abs("),
    "Dual V-DM: rewards up to 2": ("conic.py", "r[h] <= 1]", "r[h] <= 2]"),
    "AIL min-max: entropy twice": ("ail.py", "temperature = alpha + 1.0", "temperature = 2 * alpha + 1.0"),
    "BC: smoothed counts": ("likelihood.py", "np.where(states > 0, expert /", "np.where(states > 0, (expert + 0.01) /"),
    "IQ-Learn (TV): no initial-state term": (
        "likelihood.py",
        "return demos.next_mass(mdp) + mdp.start_source()",
        "return demos.next_mass(mdp)",
    ),
    "IQ-Learn (chi2): half instead of a quarter": (
        "likelihood.py",
        "x - x**2 / 4.0, 1.0 - x / 2.0",
        "x - x**2 / 2.0, 1.0 - x",
    ),
    "ValueDICE: as printed": (
        "likelihood.py",
        "steps = 1.0 if mdp.horizon is None else float(mdp.horizon)\n    source",
        "steps = 1.0\n    source",
    ),
    "penalised form: upper hinge at the lower bound": (
        "dual_qdm.py",
        "np.maximum(r - high, 0.0)\n        return beta",
        "np.maximum(r - low, 0.0)\n        return beta",
    ),
    "penalised form: expectation outside the hinge": ("dual_qdm.py", "if not per_sample:", "if False:"),
    "Reg IQ-Learn: twice the square": (
        "dual_qdm.py",
        "coefficient * r**2, 2.0 * coefficient * r",
        "2.0 * coefficient * r**2, 4.0 * coefficient * r",
    ),
    "soft planning: max instead of LSE": ("mdp.py", "v[h] = top + alpha * np.log(total)", "v[h] = top"),
    "TD MDP: lambda not ordered": (
        "instances.py",
        "np.maximum(mixture[:n_expert], mixture[n_expert:].max(axis=0))",
        "mixture[:n_expert]",
    ),
    "Reset Cliff: a second chance": (
        "instances.py",
        "transitions[..., -1] = 1.0\n    transitions[good",
        "transitions[..., -2] = 1.0\n    transitions[good",
    ),
    "expected BC gap: no lucky guesses": (
        "instances.py",
        "* (1.0 - 1.0 / n_actions)\n    return horizon",
        "\n    return horizon",
    ),
}


def failed_tests(name: str) -> list[str]:
    file, old, new = MUTATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "sb3_dualqdm", copy / "sb3_dualqdm", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "tests" / "tabular", copy / "tests" / "tabular", ignore=shutil.ignore_patterns("__pycache__"))
        target = copy / "sb3_dualqdm" / "tabular" / file
        text = target.read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name}: found {text.count(old)} places to change in {file}, expected 1: update the mutation.")
        target.write_text(text.replace(old, new))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=no",
            "-rf",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            "tests/tabular",
        ]
        report = subprocess.run(command, cwd=copy, capture_output=True, text=True).stdout
    return re.findall(r"^FAILED tests/tabular/(\w+\.py::\w+)", report, flags=re.MULTILINE)


def main() -> None:
    unnoticed = []
    for name in tqdm(sys.argv[1:] or MUTATIONS, unit="mutation"):
        counts = Counter(failed_tests(name))
        tqdm.write(f"{name}\n" + "".join(f"    {count:3d} x {test}\n" for test, count in counts.items()))
        unnoticed += [] if counts else [name]
    if unnoticed:
        raise SystemExit(f"no test noticed: {', '.join(unnoticed)}")


if __name__ == "__main__":
    main()

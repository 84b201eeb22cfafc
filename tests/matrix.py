"""Trains the examples with every Python and TensorFlow that installs here, and writes its table in docs/.

    python tests/matrix.py [--python 3.12] [--tensorflow 2.19] [--environments DIR]

For each pair an environment is created as a user would, with the project's wheel, and removed after its checks. A
cell of docs/compatibility.md is written when its checks are done; a pair that is not run keeps its cell. The exit
code is 1 if a check failed.

Standard library only.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "compatibility.md"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TENSORFLOWS = ("2.16", "2.17", "2.18", "2.19", "2.20", "2.21")
NOT_RUN = "not run"
NO_WHEEL = "no wheel"
HEAD = "| Python |"

SHORT = ("--epochs", "1", "--steps-per-epoch", "20", "--min-accuracy", "0.01", "--data", "synthetic")
KERAS_3 = ("--set", "legacy_keras=false")
ONE_WORKER = ("--set", 'cluster={"chief": 1, "worker": 1, "ps": 1}')
CHECKS: dict[str, tuple[str, ...]] = {  # the name of a failure: the example, and its settings
    "MWMS fit": ("mnist_multi_worker",),
    "PSS fit": ("mnist_parameter_server", *ONE_WORKER),
    "MWMS loop": ("mnist_custom_loop",),
    "MWMS loop, Keras 3": ("mnist_custom_loop", *KERAS_3),
    "PSS loop, Keras 3": ("mnist_coordinator", *ONE_WORKER, *KERAS_3),
    "Mirrored fit, Keras 3": ("mnist_mirrored", *KERAS_3),
}
VERSION = "from importlib import metadata; print(metadata.version('keras'))"
OUR_VIEW = (
    "import sys; from tflaunch_worker.inspect import interpreter; "
    "print(*interpreter.legacy_keras([sys.executable], {}))"
)
THE_TRUTH = "import tensorflow as tf; print(tf.keras.layers.Layer.__module__)"
INSTALL_PATIENCE = 1800  # seconds
PATIENCE = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this one; may be repeated")
    parser.add_argument("--tensorflow", action="append", choices=TENSORFLOWS, help="only this one; may be repeated")
    parser.add_argument("--environments", type=Path, help="where environments are made (default: a temporary place)")
    asked = parser.parse_args()
    sound = True
    with tempfile.TemporaryDirectory(prefix="tflaunch-matrix-", dir=asked.environments) as directory:
        wheel = build(Path(directory))
        for version in asked.python or PYTHONS:
            python = interpreter(version)
            if python is None:
                print(f"no Python {version} here", file=sys.stderr)
                continue
            for tensorflow in asked.tensorflow or TENSORFLOWS:
                cell = Environment(Path(directory, "env"), wheel).examine(python, tensorflow)
                print(f"Python {version}, TensorFlow {tensorflow}: {cell}", flush=True)
                PAGE.write_text(with_cell(PAGE.read_text(), version, tensorflow, cell))
                sound = sound and not cell.startswith("fails")
    print("\n".join(line for line in PAGE.read_text().splitlines() if line.startswith(("| Python |", "| 3."))))
    return 0 if sound else 1


def interpreter(version: str) -> str | None:
    """Return a Python of this version: the one on PATH, or else pyenv's."""
    root = os.path.expanduser(os.environ.get("PYENV_ROOT", "~/.pyenv"))
    candidates = [f"python{version}", *sorted(glob.glob(f"{root}/versions/{version}.*/bin/python{version}"))]
    for candidate in candidates:  # the one on PATH may be a pyenv shim without this version
        probe = [candidate, "-c", "import sys, venv, ensurepip; print(sys.executable)"]
        try:
            return subprocess.run(probe, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            continue
    return None


def build(directory: Path) -> Path:
    """Build the project's wheel from a copy of the sources."""
    ignored = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "tests")
    shutil.copytree(REPOSITORY, directory / "source", ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory)]
    subprocess.run([*command, str(directory / "source")], check=True, timeout=INSTALL_PATIENCE)
    (wheel,) = directory.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment for one cell of the table."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.directory = directory
        self.wheel = wheel
        self.bin = directory / "bin"
        names = ("PYTHON", "TF_", "TFLAUNCH_", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        own = {"PATH": f"{self.bin}:/usr/bin:/bin", "TFLAUNCH_HOME": str(directory / "home")}
        self.env = {**kept, **own, "TF_CPP_MIN_LOG_LEVEL": "2"}

    def examine(self, python: str, tensorflow: str) -> str:
        try:
            if problem := self._install(python, tensorflow):
                return problem
            keras = self._run("python", "-c", VERSION).stdout.strip()
            problems = [name for name in CHECKS if not self._trains(name)]
            problems += self._mistakes()
            return f"fails: {'; '.join(problems)}" if problems else f"passes, Keras {keras}"
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _install(self, python: str, tensorflow: str) -> str:
        """Install TensorFlow, tf_keras and the project; return what prevented that."""
        subprocess.run([python, "-m", "venv", self.directory], check=True)
        wanted = [f"{self.wheel}[tensorflow]", f"tensorflow=={tensorflow}.*", f"tf-keras=={tensorflow}.*"]
        ended = self._run(
            "python", "-m", "pip", "install", "--quiet", "--no-compile", *wanted, patience=INSTALL_PATIENCE
        )
        if ended.returncode == 0:
            return ""
        if "No matching distribution found for tensorflow==" in ended.stderr:
            return NO_WHEEL
        say(ended)
        return "fails: pip install"

    def _trains(self, name: str) -> bool:
        """Return whether an example succeeds, with the same weights everywhere."""
        example, *options = CHECKS[name]
        spec = self.wheel.parent / "source" / "cluster_specs" / f"{example}.json"  # its leftovers are removed
        command = ("python", "-m", f"tflaunch_worker.examples.{example}", *SHORT)
        ended = self._run("tflaunch", "up", spec, "--set", "restart.max=0", *options, "--", *command)
        if ended.returncode == 0 and len(set(re.findall(r"weights sha256 (\w+)", ended.stdout))) == 1:
            return True
        say(ended)
        return False

    def _mistakes(self) -> Iterator[str]:
        """Yield where tflaunch misjudges which Keras a task can have, with tf_keras and without."""
        for state in ("with tf_keras", "without tf_keras"):
            if state == "without tf_keras":
                self._run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "tf-keras")
            ours = self._run("python", "-c", OUR_VIEW)
            truth = self._run("python", "-c", THE_TRUTH, TF_USE_LEGACY_KERAS="1")
            works = truth.returncode == 0 and truth.stdout.startswith("tf_keras.")
            print(f"  {state}: {ours.stdout.strip()}; {truth.stdout.strip() or last_line(truth.stderr)}", flush=True)
            if not ours.stdout.startswith(f"{works} "):
                say(ours)
                yield f"interpreter.py {state}"

    def _run(
        self, program: str, *arguments: str | Path, patience: float = PATIENCE, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment and wait for its end, outside the checkout."""
        try:
            return subprocess.run(
                [self.bin / program, *arguments], cwd=self.directory, env={**self.env, **more}, text=True,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=patience, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            out, err = ((part or b"").decode(errors="replace") for part in (late.stdout, late.stderr))
            return subprocess.CompletedProcess(late.cmd, -1, out, f"{err}\nno end within {patience:g} s")


def say(ended: subprocess.CompletedProcess[str]) -> None:
    print("$", *ended.args, file=sys.stderr)
    print(ended.stdout[-4000:], ended.stderr[-4000:], f"exit code {ended.returncode}", sep="\n", file=sys.stderr)
    sys.stderr.flush()


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def with_cell(page: str, python: str, tensorflow: str, cell: str) -> str:
    """Return the page with one cell of the table changed, and everything else as it was."""
    cells = {(one, other): NOT_RUN for one in PYTHONS for other in TENSORFLOWS}
    lines = page.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(HEAD))
    length = next((n for n, line in enumerate(lines[start:]) if not line.startswith("|")), len(lines) - start)
    columns = cells_of(lines[start])[1:]
    for line in lines[start + 2 : start + length]:
        version, *values = cells_of(line)
        cells.update({(version, column): value for column, value in zip(columns, values, strict=True)})
    cells[python, tensorflow] = cell
    heads = " | ".join(f"TensorFlow {name}" for name in TENSORFLOWS)
    table = [f"{HEAD} {heads} |", "|---" * (len(TENSORFLOWS) + 1) + "|"]
    table += [f"| {row} | {' | '.join(cells[row, name] for name in TENSORFLOWS)} |" for row in PYTHONS]
    return "\n".join([*lines[:start], *table, *lines[start + length :]]) + "\n"


def cells_of(line: str) -> list[str]:
    return [cell.strip().removeprefix("TensorFlow ") for cell in line.strip().strip("|").split("|")]


if __name__ == "__main__":
    sys.exit(main())

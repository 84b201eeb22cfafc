"""Find planted bugs: by histories of the simulator, or by tests that run a copy of the code."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mutants.edits import Edit, Invariant, Suite, copy_code
from simulator import history
from simulator.case import draw_case
from support import waiting
from support.specs import REPOSITORY

PATIENCE = 300.0
"""Seconds of CPU time within which histories must find a bug."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) \S*?(?P<test>test_\w+\.py(?:::\S+)?)", re.MULTILINE)
_FAILURES = 1  # pytest's exit code
_UNWINDING = 60.0  # seconds for tests to end what they have started


class Finding(NamedTuple):
    """How a bug was found: by which invariant or test, and after how many histories or seconds.

    ``by`` is "" if it was not found; ``after`` then says why that means nothing, or is "", too.
    """

    by: str
    after: str


def find(edit: Edit, seeds: Iterable[int], patience: float = float("inf")) -> int | None:
    """Return the first seed in which the edit's invariant fails; None if none does within ``patience`` CPU seconds."""
    assert isinstance(edit.found_by, Invariant)
    until = time.process_time() + patience
    with edit.planted():
        for seed in seeds:
            if time.process_time() > until:
                return None
            violation = history.play(draw_case(seed)).violation
            if violation is not None and violation.invariant == edit.found_by.name:
                return seed
    return None


def hunt(edit: Edit) -> Finding:
    if isinstance(edit.found_by, Suite):
        return _test(edit.found_by, edit)
    seed = find(edit, range(10**6), PATIENCE)
    histories = f"{seed + 1} histor{'y' if seed == 0 else 'ies'}" if seed is not None else ""
    return Finding(edit.found_by.name if histories else "", histories)


def why_useless(suite: Suite) -> str:
    """Return why tests cannot find a bug here, "" if they can: they pass without one."""
    finding = _test(suite, None)
    return f"{suite.path} fails without a bug: {finding.by}" if finding.by else finding.after


def _test(suite: Suite, edit: Edit | None) -> Finding:
    with tempfile.TemporaryDirectory(prefix="tflaunch-mutant-") as directory:
        path = copy_code(Path(directory))
        if edit is not None:
            edit.plant_in(Path(directory))
        began_at = time.monotonic()  # clock: the page says how long it took
        env = {**os.environ, "PYTHONPATH": path, "TFLAUNCH_TEST_PATIENCE": f"{PATIENCE / 3:.0f}"}
        code, output = _run_pytest(suite, env)
        seconds = time.monotonic() - began_at  # clock: likewise
    failed = _FAILED.search(output)
    if code == _FAILURES and failed is not None:
        return Finding(failed["test"].partition("[")[0], f"{seconds:.0f} s")
    is_passed = code == 0 and " passed" in output
    return Finding("", "" if is_passed else f"{suite.path}: {output.strip().splitlines()[-1:]}, exit code {code}")


def _run_pytest(suite: Suite, env: dict[str, str]) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"tests/{suite.path}"]
    with tempfile.TemporaryFile("w+") as output:
        tests = subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            tests.wait(waiting.PATIENCE)
        except subprocess.TimeoutExpired:
            tests.send_signal(signal.SIGINT)
            tests.wait(_UNWINDING)
        finally:
            tests.kill()
            code = tests.wait()
        output.seek(0)
        return code, output.read()

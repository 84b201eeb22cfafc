"""What waits without a limit says why, beside the call, and so do tests that sleep or look at a clock.

The former may keep a process of tflaunch from going on; the latter fail where a machine is busy. Not seen here:
sockets, whose loops are non-blocking or which have a timeout; and locks around a few lines.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from support.specs import REPOSITORY

MARK = "# no limit: "
WAITS = r"\.(join|wait|communicate|result|get|acquire)\(\)$"
"""Without an argument, which would be the limit."""
LIMITED_BY = {
    r"^subprocess\.(run|call|check_call|check_output)\(": "timeout=",
    r"\bflock\(": "LOCK_NB|LOCK_UN",
    r"^os\.(wait|waitpid|wait3|wait4|waitid)\(": "WNOHANG",
    r"^select\.select\((?:[^,]+,){2}[^,]+\)$": "never",
    r"^signal\.(pause|sigwait|sigwaitinfo)\(": "never",
    r"\bThreadPoolExecutor\(": "never",
}
"""Other calls that wait, and what limits them."""
OF_USERS = ("examples", "training", "in_tasks")  # what runs in their programs


CLOCK = "# clock: "
CLOCKS = r"^(asyncio\.sleep|(time\.)?(sleep|time|monotonic|perf_counter)(_ns)?|(datetime\.)?datetime\.(utc)?now)$"
"""Calls that sleep or tell the time: tests wait for events (`support.waiting`)."""


def unexplained(paths: Iterable[Path], is_meant: Callable[[ast.Call], bool], mark: str) -> Iterator[tuple[str, int]]:
    """Yield the file and the line of each of these calls that has no comment with a mark there or above."""
    for path in paths:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and is_meant(node):
                here = text.splitlines()[max(node.lineno - 2, 0) : node.lineno]
                if not any(mark in line for line in here):
                    yield str(path.relative_to(REPOSITORY)), node.lineno


def is_unlimited(call: ast.Call) -> bool:
    text = ast.unparse(call)
    limits = [limit for pattern, limit in LIMITED_BY.items() if re.search(pattern, text)]
    return bool(re.search(WAITS, text)) or any(not re.search(limit, text) for limit in limits)


def asks_a_clock(call: ast.Call) -> bool:
    return bool(re.search(CLOCKS, ast.unparse(call.func)))


def test_what_waits_without_a_limit_says_why() -> None:
    roots = (REPOSITORY / "launcher" / "tflaunch", REPOSITORY / "worker" / "tflaunch_worker")
    ours = [path for root in roots for path in sorted(root.rglob("*.py")) if not set(OF_USERS) & set(path.parts)]
    found = list(unexplained(ours, is_unlimited, MARK))
    assert found == [], f"give each a limit, or say why it needs none, in a comment that begins with {MARK!r}"


def test_tests_that_sleep_or_look_at_a_clock_say_why() -> None:
    tests = REPOSITORY / "tests"
    programs = tests / "training" / "programs"  # as users write them
    paths = [path for path in sorted(tests.rglob("*.py")) if programs not in path.parents and path.stem != "waiting"]
    found = list(unexplained(paths, asks_a_clock, CLOCK))
    assert found == [], f"wait for an event (support.waiting), or say why, in a comment that begins with {CLOCK!r}"


@pytest.mark.parametrize(
    ("call", "test", "expected"),
    [
        ("thread.join()", is_unlimited, True),
        ("thread.join(3.0)", is_unlimited, False),
        ("', '.join(names)", is_unlimited, False),
        ("subprocess.run(words, check=True)", is_unlimited, True),
        ("subprocess.run(words, timeout=5)", is_unlimited, False),
        ("fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", is_unlimited, False),
        ("os.waitpid(pid, 0)", is_unlimited, True),
        ("select.select([end], [], [])", is_unlimited, True),
        ("select.select([end], [], [], 1.0)", is_unlimited, False),
        ("time.sleep(1)", asks_a_clock, True),
        ("time.monotonic_ns()", asks_a_clock, True),
        ("datetime.now(UTC)", asks_a_clock, True),
        ("world.time()", asks_a_clock, False),
    ],
)
def test_what_counts(call: str, test: Callable[[ast.Call], bool], expected: bool) -> None:
    (statement,) = ast.parse(call).body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    assert test(statement.value) == expected

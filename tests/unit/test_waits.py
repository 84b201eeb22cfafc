"""What waits without a limit says why, beside the call: nothing else may keep a process of tflaunch from going on.

Not seen here: sockets, whose loops are non-blocking or which have a timeout; and locks around a few lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from support.specs import REPOSITORY

pytestmark = pytest.mark.unit

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


def waits() -> Iterator[tuple[str, int, list[str]]]:
    """Yield the file, the line and the lines of the file, for each call that waits without a limit."""
    for root in (REPOSITORY / "launcher" / "tflaunch", REPOSITORY / "worker" / "tflaunch_worker"):
        for path in sorted(root.rglob("*.py")):
            text = path.read_text()
            if not set(OF_USERS) & set(path.parts):
                for node in ast.walk(ast.parse(text)):
                    if isinstance(node, ast.Call) and is_unlimited(ast.unparse(node)):
                        yield str(path.relative_to(REPOSITORY)), node.lineno, text.splitlines()


def is_unlimited(call: str) -> bool:
    """Return whether a call waits, and nothing in it is a limit."""
    limits = [limit for pattern, limit in LIMITED_BY.items() if re.search(pattern, call)]
    return bool(re.search(WAITS, call)) or any(not re.search(limit, call) for limit in limits)


def test_what_waits_without_a_limit_says_why() -> None:
    found = [(file, line) for file, line, lines in waits() if not any(MARK in text for text in lines[line - 2 : line])]
    assert found == [], f"give each a limit, or say why it needs none, in a comment that begins with {MARK!r}"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("thread.join()", True),
        ("thread.join(3.0)", False),
        ("', '.join(names)", False),
        ("subprocess.run(words, check=True)", True),
        ("subprocess.run(words, timeout=5)", False),
        ("fcntl.flock(lock, fcntl.LOCK_EX)", True),
        ("fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", False),
        ("os.waitpid(pid, 0)", True),
        ("select.select([end], [], [])", True),
        ("select.select([end], [], [], 1.0)", False),
    ],
)
def test_what_counts_as_a_limit(call: str, expected: bool) -> None:
    assert is_unlimited(call) == expected

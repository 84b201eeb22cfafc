"""Which event counts in which state, as docs/architecture.md says it."""

import os
from collections.abc import Iterator
from typing import get_args

from support.page_tables import write_table
from support.specs import REPOSITORY
from tflaunch.core import step
from tflaunch.core.events import Event
from tflaunch.core.job_state import Phase
from tflaunch.core.states import HostPhase, TaskPhase


def test_the_page_says_which_event_counts_in_which_state() -> None:
    """TFLAUNCH_WRITE_TABLE=1 writes its table."""
    page, lines = REPOSITORY / "docs" / "architecture.md", list(rules_in_markdown())
    if os.environ.get("TFLAUNCH_WRITE_TABLE"):
        write_table(page, "events", lines)
    assert "\n".join(lines) in page.read_text()
    assert set(step.RULES) == set(get_args(Event))


def rules_in_markdown() -> Iterator[str]:
    """Yield a table for events of hosts, one for those of tasks, and one for what concerns the whole job."""
    for states, of in ((HostPhase, "host"), (TaskPhase, "task"), (Phase, "job")):
        yield from ["", f"| event of a {of} that is | {' | '.join(state.value for state in states)} | handled by |"]
        yield f"|---|{':-:|' * len(states)}---|"
        for event, rule in step.RULES.items():
            if isinstance(next(iter(rule.states)), states):
                cells = " | ".join("●" if state in rule.states else "" for state in states)
                module = rule.handle.__module__.rpartition(".")[2]
                yield f"| {event.__name__} | {cells} | `{module}.{rule.handle.__name__}` |"

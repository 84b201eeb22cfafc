"""A task that waits at a breakpoint: what the supervisor decides during that time and afterwards."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.job_history import HERE, History, mirrored
from support.played_agent import PlayedAgent
from support.specs import clustered
from support.ungreeted_run import UngreetedRun
from tflaunch.core import time_limits
from tflaunch.core.events import BreakpointLeft, BreakpointReached, TimePassed
from tflaunch.core.job_state import Phase
from tflaunch.core.states import Breakpoint
from tflaunch.explain.run_status import Status
from tflaunch.features.debug import LINK_LOST
from tflaunch.features.debug.debugger_relay import Debugging
from tflaunch.records import as_json, read_record
from tflaunch.tui import layout
from tflaunch_worker.features.debug import FEATURE, breakpoints
from tflaunch_worker.features.debug.in_tasks import tflaunch_breakpoint

REACHED = BreakpointReached(HERE, "worker:1", 0, "/code/train.py", 40, "step")
LEFT = BreakpointLeft(HERE, "worker:1", 0)


def test_the_warning_of_the_start_and_the_limit_finish_wait() -> None:
    """A cluster cannot form, and a task cannot finish, while it is debugged."""
    history = mirrored(timeouts={"finish": 30}).ends("worker:0").happens(REACHED)
    forming = History(clustered({"worker": 2})).start_without_ports().happens(REACHED)
    assert time_limits.next_deadline(forming.job) is None
    for each in (history, forming):
        each.now += 1000
        each.happens(TimePassed())
    assert (history.job.phase, forming.job.formation.was_warned) == (Phase.RUNNING, False)
    left_at = history.happens(LEFT).now
    while history.job.phase is Phase.RUNNING:
        history.wait()
    assert (history.now, history.stopped()) == (left_at + 30, ["worker:1"])
    left_at = forming.now
    forming.happens(LEFT).wait()
    assert (forming.now, forming.job.formation.was_warned) == (left_at + 60, True)


def test_who_quits_ends_the_run() -> None:
    """As with `tflaunch down`; a late event of an earlier attempt does nothing."""
    history = mirrored(restart={"max": 5}).happens(REACHED)
    assert history.happens(LEFT._replace(attempt=7, is_quit=True)).stopped() == []
    history.happens(LEFT._replace(is_quit=True))
    assert sorted(history.stopped()) == ["worker:0", "worker:1"]
    history.ends("worker:0", None, 15).ends("worker:1", 1)
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 143)


def test_users_hear_where_a_task_waits_and_how_to_get_there() -> None:
    history = mirrored()
    sentence = "worker:1 waits at a breakpoint in train.py, line 40, in step: tflaunch debug run worker:1"
    assert history.told(REACHED) == [sentence]
    shown = history.status()
    assert read_record(Status, json.loads(json.dumps(as_json(shown)))) == shown
    assert [task.breakpoint for task in shown.tasks] == [None, "train.py, line 40, in step"]
    assert [task.state for task in shown.tasks] == ["running", "running"]
    table = layout.table(shown, now=history.now)
    assert sentence.partition(": ")[0] in table.splitlines()
    assert (shown.trains, shown.phase) == ("no", "first step")
    assert "worker:1  at breakpoint" in table
    assert history.told(LEFT) == []
    assert "breakpoint" not in layout.table(history.status(), now=history.now)
    (stops,) = history.told(LEFT._replace(is_quit=True))
    assert stops.startswith("ending worker:0, worker:1, as the debugger of worker:1 asks")
    assert str(Breakpoint("<string>", 3, "<module>")) == "<string>, line 3"


def test_tasks_and_agents_agree() -> None:
    """The module of tasks cannot import the agent's."""
    assert tflaunch_breakpoint.SOCKET_NAME == breakpoints.SOCKET_NAME
    hook = f"{tflaunch_breakpoint.__name__.rpartition('.')[2]}.{tflaunch_breakpoint.stop.__name__}"
    assert FEATURE.variables["PYTHONBREAKPOINT"].value == hook


class Screen(SimpleNamespace):
    """A terminal that notes what it gets, and that it has left."""

    def __init__(self) -> None:
        super().__init__(got=[])

    def say(self, kind: str, **about: Any) -> None:
        self.got.append((kind.partition("_")[2], *about.values()))

    def attach(self, agent: PlayedAgent, task: str = "worker:0", attempt: int = 0) -> Debugging:
        return Debugging(agent.calls, task, attempt, self, lambda: self.got.append("gone"))  # type: ignore[arg-type]


def test_terminals_hear_only_what_is_for_them() -> None:
    agent, first, second = PlayedAgent(), Screen(), Screen()
    first.attach(agent)
    call = second.attach(agent, "worker:1", 2).call
    agent.tell(2, what="attached", file="a\x1b.py", line=3, function="f")
    agent.tell(2, b"(Pdb) ", what="output")
    agent.tell(2, what="asks")
    assert second.got == [("attached", "worker:1", "a\\x1b.py", 3, "f"), ("output", "(Pdb) "), ("asks",)]
    call.tell(what="line", text="p 1")
    call.end()
    call.tell(what="line", text="p 2")
    agent.tell(2, what="asks")
    kinds = [message["kind"] for message in agent.sent]
    assert kinds == ["attach_debugger", "attach_debugger", "tell_call", "end_call"]
    agent.calls.lose()
    lost = ["gone", ("left", "worker:0", LINK_LOST)]
    assert (first.got, second.got[-1]) == (lost, ("asks",))
    late = Screen()
    assert late.attach(agent).has_left
    assert late.got == lost


@pytest.mark.parametrize(
    ("call", "about", "body"),
    [
        (2, {"what": "asks"}, b""),
        (0, {"what": "asks"}, b""),
        (1, {"what": "begs"}, b""),
        (1, {}, b""),
        (1, {"what": "attached", "file": "a", "line": -1}, b""),
        (1, {"what": "output"}, bytes(breakpoints.MOST_OUTPUT + 1)),
    ],
)
def test_what_agents_say_about_debuggers_is_checked(call: int, about: dict[str, Any], body: bytes) -> None:
    """Terminals that never were, wrong fields."""
    agent = PlayedAgent()
    Screen().attach(agent)
    with pytest.raises(ValueError, match=r"must be|cannot be"):
        agent.tell(call, body, **about)


@pytest.mark.parametrize("reason", [LINK_LOST, None, "refused"])
def test_why_terminals_leave_is_checked(reason: str | None) -> None:
    agent, screen = PlayedAgent(), Screen()
    screen.attach(agent)
    with pytest.raises(ValueError, match=r"must be|cannot be"):
        agent.answer(1, reason=reason)
    assert screen.got == ["gone", ("left", "worker:0", LINK_LOST)]


def test_a_debugger_waits_for_the_greeting(tmp_path: Path) -> None:
    """A terminal is attached to a task that waits at a breakpoint as soon as its agent takes commands."""
    run = UngreetedRun(tmp_path)
    run.history.happens(BreakpointReached(HERE, "worker:0", 0, "/code/train.py", 40, "step"))
    run.watch()
    (answer,) = run.caller.says("debug", tasks=["worker:0"])
    assert answer["kind"] == "debugger_waits"
    run.greet()
    assert "attach_debugger" in [message["kind"] for message in run.agent.hears()]
    run.close()

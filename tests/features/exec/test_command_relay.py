"""The supervisor's side of `exec`: what callers get, and what they and agents must not do."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.job_history import HERE
from support.played_agent import Answers, agent_parts
from support.ungreeted_run import UngreetedRun
from tflaunch_worker.agent import orders
from tflaunch_worker.features.exec.host_commands import NOT_STARTED, HostCommands
from tflaunch_worker.features.exec.running_command import PART, WINDOW, check_told

ASKED: dict[str, Any] = {"task": "worker:1", "argv": ["ls", "-l"], "columns": 80, "rows": 24, "term": "vt100"}
INPUT = b"x" * PART


@pytest.fixture
def run(tmp_path: Path) -> Iterator[UngreetedRun]:
    started = UngreetedRun(tmp_path)
    yield started
    started.close()


class Asking:
    """A caller of a run whose agent has greeted, and its command; ``number`` is that of the call."""

    def __init__(self, run: UngreetedRun, **changes: Any) -> None:
        run.greet()
        run.agent.hears()
        self.run = run
        self.begun = run.caller.says("exec", **{**ASKED, **changes})
        self.number = 0
        for message in run.agent.hears():
            if message["kind"] == "run_command":
                self.number, self.sent = message["call"], message

    def tells(self, what: str, body: bytes = b"", /, **about: Any) -> list[tuple[str, bytes]]:
        """Tell the command something; return what its agent hears of it."""
        self.run.caller.says("exec_tell", body, host=HERE, what=what, **about)
        return [(message["what"], message["body"]) for message in self.run.agent.hears() if "what" in message]

    def hears(self, kind: str, body: bytes = b"", /, **about: Any) -> list[dict[str, Any]]:
        """Let the agent say something about the command; return what the caller hears."""
        self.run.agent.says(kind, body, call=self.number, **about)
        return self.run.caller.hears()


def test_a_command_is_a_call_to_the_agent_of_its_task(run: UngreetedRun) -> None:
    asking = Asking(run)
    assert [(message["kind"], message["hosts"]) for message in asking.begun] == [("exec_begun", [HERE])]
    assert {name: asking.sent[name] for name in (*ASKED, "grace")} == {**ASKED, "grace": 10.0}
    assert asking.tells("input", b"\0\xff") == [("input", b"\0\xff")]
    assert asking.tells("resize", rows=30, columns=100) == [("resize", b"")]
    assert asking.tells("end_input") == [("end_input", b"")]
    (told,) = asking.hears("told", b"\xff\n", what="errors")
    assert (told["kind"], told["host"], told["what"], told["body"]) == ("exec_told", HERE, "errors", b"\xff\n")
    (ended,) = asking.hears("answered", code=7, problem="")
    assert (ended["kind"], ended["host"], ended["code"], ended["problem"]) == ("exec_ended", HERE, 7, "")
    assert asking.tells("input", b"late") == []


def test_a_host_that_cannot_be_heard_is_one_sentence(run: UngreetedRun) -> None:
    _, ended = run.caller.says("exec", **ASKED)
    assert (ended["code"], ended["problem"].count(HERE)) == (125, 1)
    assert ended["problem"].startswith(f"host {HERE} of worker:1 cannot be reached: it is ")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"task": "worker:7"}, "there is no task worker:7"), ({"argv": "ls"}, "'argv'"), ({"columns": -1}, "'columns'")],
)
def test_what_cannot_be_run_is_refused(run: UngreetedRun, changes: dict[str, Any], reason: str) -> None:
    asking = Asking(run, **changes)
    (refused,) = asking.begun
    assert (refused["kind"], asking.number) == ("refused", 0)
    assert reason in refused["reason"]


def test_a_caller_cannot_send_more_than_there_is_room_for(run: UngreetedRun) -> None:
    """So a command that does not read fills no memory of ours; what it has taken makes room."""
    asking = Asking(run)
    for _ in range(WINDOW // PART):
        assert asking.tells("input", INPUT)
    assert not asking.tells("input", b"x")
    run.caller.hears()
    assert asking.hears("told", what="took", size=5)[0]["size"] == 5
    for body, about in ((INPUT + b"x", {"what": "input"}), (b"", {"what": "sing"}), (b"", {"what": "took", "size": 0})):
        (refused,) = run.caller.says("exec_tell", body, host=HERE, **about)
        assert refused["kind"] == "refused"
    assert run.session.is_greeted


@pytest.mark.parametrize("about", [{"what": "output"}, {"what": "took", "size": 1}, {"what": "x"}, {}])
def test_an_agent_that_tells_what_cannot_be_breaks_the_protocol(run: UngreetedRun, about: dict[str, Any]) -> None:
    asking = Asking(run)
    (ended,) = asking.hears("told", **about)
    assert (ended["code"], run.session.is_greeted) == (125, False)
    assert ended["problem"] == f"host {HERE}: the link was lost, and the command was ended"


def test_a_command_ends_with_its_caller(run: UngreetedRun) -> None:
    asking = Asking(run)
    run.caller.close()
    run.mailbox.take(run.mailbox.now())
    assert [(message["kind"], message["call"]) for message in run.agent.hears()] == [("end_call", asking.number)]


def test_a_caller_that_is_gone_gets_no_command(run: UngreetedRun) -> None:
    run.greet()
    run.agent.hears()
    run.caller.sends("exec", **ASKED)
    run.caller.close()
    kinds = [message["kind"] for message in run.agent.hears()]
    assert kinds.count("run_command") == kinds.count("end_call")


def test_commands_end_with_the_run(run: UngreetedRun) -> None:
    asking = Asking(run)
    run.history.ends("worker:0").ends("worker:1")
    run.watch()
    assert "end_call" in [message["kind"] for message in run.agent.hears()]
    (ended,) = run.caller.hears()
    assert (ended["code"], ended["problem"]) == (143, "run run has ended, and the command with it")
    (refused,) = run.caller.says("exec", **ASKED)
    assert "run run has ended" in json.dumps(refused["reason"])
    assert asking.number


# ---- the agent's side, where no process is needed


@pytest.mark.parametrize(
    ("field", "value"),
    [("task", "../x"), ("argv", ["a\0"]), ("argv", None), ("rows", 2**20), ("term", 5), ("grace", -1)],
)
def test_a_malformed_command_is_refused(field: str, value: object) -> None:
    """As is one for a task that has not started on its host, and so has no environment there."""
    answer, _ = Answers().ask(HostCommands(agent_parts(tasks={})).run_command, grace=1.0, **ASKED)
    problem = "worker:1 has not started on its host yet; `tflaunch ps` shows when it has"
    assert answer == {"code": NOT_STARTED, "problem": problem}
    checks = HostCommands.CALLS["run_command"]
    orders.check({**ASKED, "grace": 1.0}, checks)
    with pytest.raises(ValueError, match=rf"'{field}'|name of a task"):
        orders.check({**ASKED, "grace": 1.0, field: value}, checks)


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ({"what": "input"}, 0),
        ({"what": "input"}, PART + 1),
        ({"what": "took", "size": WINDOW + 1}, 0),
        ({"what": "resize", "rows": 1}, 0),
        ({}, 1),
    ],
)
def test_what_a_command_cannot_be_told_is_refused(told: dict[str, Any], size: int) -> None:
    assert check_told({"what": "input"}, PART) == "input"
    with pytest.raises(ValueError, match=r"'what'|'size'|'columns'|cannot be told"):
        check_told(told, size)

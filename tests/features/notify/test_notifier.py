"""What users are notified of, and how often."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.job_history import History
from support.specs import planned
from support.ungreeted_run import supervision
from support.waiting import PATIENCE
from tflaunch.features.notify.notifier import Notifier, Occurrence, end_of, occurrences
from tflaunch.plan.model import NotifyPlan

FAILED = Occurrence("failed", "end", "worker:0 exited with code 3")
SERVERS = {"chief": 1, "worker": 2, "ps": 1}


def job(**fields: Any) -> History:
    return History(planned({"cluster": {"worker": 2}, "command": ["train"], **fields}))


def told(history: History, *steps: Any) -> list[tuple[str, str, str]]:
    """Return the notifications while a job goes through steps, each a function."""
    found: list[tuple[str, str, str]] = []
    for one in steps:
        before = history.job
        one()
        found += [(each.kind, each.name, each.text) for each in occurrences(before, history.job)]
    return found


def test_what_is_one_occurrence() -> None:
    """A restart of all tasks, and that of one."""
    history = job().start()
    found = told(history, lambda: history.ends("worker:1", 3), lambda: history.ends("worker:0", None, 15), history.wait)
    found += told(history, history.start)
    assert found == [("restarted", "restarted-1", "restart 1 of 3: worker:1 exited with code 3")]
    servers = job(cluster=SERVERS, strategy="parameter_server").start()
    found = told(servers, lambda: servers.ends("worker:1", 3), servers.wait)
    assert found == [("restarted", "restarted-worker-1-1", "worker:1 restarts alone (attempt 1)")]


@pytest.mark.parametrize(
    ("state", "kinds"), [("succeeded", ["done"]), ("failed", ["failed"]), ("stopped", []), ("interrupted", [])]
)
def test_the_end(tmp_path: Path, state: str, kinds: list[str]) -> None:
    history = job(strategy="none").start()
    for task in ("worker:0", "worker:1"):
        history.ends(task, 0)
    assert [each.kind for each in end_of(history.job, state, tmp_path, history.known)] == kinds


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for each command to its end, also beside other work."""
    monkeypatch.setattr("tflaunch.features.notify.notifier.PATIENCE", float(PATIENCE))


class Told:
    """A run's notifier whose command appends the summary to a file."""

    def __init__(self, directory: Path, *command: str) -> None:
        self.directory = directory
        self.records: list[str] = []
        self.said: list[str] = []
        script = "echo $TFLAUNCH_EVENT: $TFLAUNCH_SUMMARY >>told; cat >>told"
        self.plan = NotifyPlan(command or ("sh", "-c", script), ("failed",), str(directory))

    def notify(self, *found: Occurrence) -> None:
        """Notify as a new supervisor of the run does."""
        journal = SimpleNamespace(note=lambda _, name: self.records.append(name))
        before = job().job
        before = before._replace(original=before.original._replace(notify=self.plan))
        notifier = Notifier(supervision(before, self.directory, say=self.said.append, journal=journal))
        notifier.notify(found)
        notifier.close()

    def text(self) -> str:
        file = self.directory / "told"
        return file.read_text() if file.exists() else ""


def test_another_supervisor_does_not_notify_again(tmp_path: Path) -> None:
    """Even if the first was killed before it could record that it did."""
    run = Told(tmp_path)
    run.notify(FAILED)
    run.notify(FAILED)
    assert run.text() == f"failed: {FAILED.text}\n{FAILED.text}\n"
    assert run.records == ["end", "end"]
    run.plan = run.plan._replace(on=("done", "stalled"))  # which does not name this one
    run.notify(FAILED)
    assert (run.records, run.said) == (["end", "end"], [])
    run.plan = run.plan._replace(on=("failed",), directory=str(tmp_path / "gone"))
    run.notify(FAILED._replace(name="another"))
    assert run.said == [f"warning: notify.exec: {tmp_path / 'gone'}: No such file or directory"]
    assert run.records == ["end", "end"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("sh", "-c", "exit 3"), "warning: notify.exec exited with code 3; its output is in "),
        (("sh", "-c", "kill -9 $$"), "warning: notify.exec was killed by SIGKILL"),
        (("no-such-program",), "warning: notify.exec exited with code 12"),  # 126: PATH has a directory of another user
    ],
)
def test_a_command_that_fails(tmp_path: Path, command: tuple[str, ...], said: str) -> None:
    """The job's end is the same, and a sentence says where the reason is."""
    run = Told(tmp_path, *command)
    run.notify(FAILED)
    (sentence,) = run.said
    assert sentence.startswith(said)


def test_a_slow_command_delays_the_end_by_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all commands together; one that was waited for to its end would wait for this test."""
    monkeypatch.setattr("tflaunch.features.notify.notifier.PATIENCE", 0.2)
    run = Told(tmp_path, "sh", "-c", "until test -e go; do sleep 0.1; done")
    try:
        run.notify(FAILED, FAILED._replace(name="another"))
    finally:
        (tmp_path / "go").touch()
    assert run.said == ["warning: notify.exec still runs after 0.2 s, and is not waited for"]

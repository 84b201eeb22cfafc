"""Setups on a host, with real agents: made once, whole or not at all."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.agent_client import LocalAgent
from support.processes import command_of
from support.waiting import PATIENCE, wait_gone, wait_until

pytestmark = pytest.mark.agent


class Bed:
    """A host with code, on which agents of several runs prepare the same."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.code, self.count = directory, directory / "code", directory / "count"
        self.code.mkdir()
        self.says("one")
        self.makes = f"mkdir -p .venv/bin && cp -p words .venv/bin/tool && echo made >>{self.count}"
        self.waits = f"while [ -e {directory}/gate ]; do sleep 0.02; done"
        self.agents: list[LocalAgent] = []

    def says(self, words: str) -> None:
        (self.code / "words").write_text(f"#!/bin/sh\necho {words}\n")
        (self.code / "words").chmod(0o755)

    def agent(self, lease: float = 0) -> LocalAgent:
        agent = LocalAgent(self.directory, f"run{len(self.agents)}")
        agent.talk.hello(lease=lease)
        self.agents.append(agent)
        return agent

    def begin(self, agent: LocalAgent, *commands: str, files: tuple[str, ...] = (), limit: float = PATIENCE) -> int:
        env = {"TFLAUNCH_RUN": f"test-{os.getpid()}", "TFLAUNCH_ATTEMPT": "0"}
        program: dict[str, Any] = {"argv": ["python3", *commands], "env": env, "unset": [], "workdir": str(self.code)}
        return agent.talk.begin("set_up", setup="it", files=files, limit=limit, inherit=True, **program)

    def set_up(self, agent: LocalAgent, *commands: str, **about: Any) -> dict[str, Any]:
        return agent.talk.answer(self.begin(agent, *(commands or [self.makes]), **about))

    def made(self) -> int:
        return self.count.read_text().count("made") if self.count.exists() else 0

    def builds(self) -> list[Path]:
        return list(self.directory.glob("home/setups/*/build-*"))


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    bed = Bed(tmp_path)
    yield bed
    logs = [agent.end() for agent in bed.agents]
    assert not any(logs), logs
    assert not [process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info)]


def output_of(agent: LocalAgent, *argv: str, task: str = "worker:0") -> str:
    agent.talk.start(task, *argv, order={"setup": "it"})
    return agent.talk.text(task)


def test_it_is_made_once_for_each_content_and_tasks_find_it(bed: Bed) -> None:
    first, second = bed.agent(), bed.agent()
    assert bed.set_up(first)["problem"] == bed.set_up(second)["problem"] == ""
    assert (bed.made(), output_of(first, "tool"), output_of(second, "tool")) == (1, "one\n", "one\n")
    assert not (bed.code / ".venv").exists()
    bed.says("two")
    third = bed.agent()
    assert bed.set_up(third)["problem"] == ""
    assert (bed.made(), output_of(third, "tool"), output_of(first, "tool", task="worker:1")) == (2, "two\n", "one\n")


def test_only_what_it_depends_on_makes_it_again(bed: Bed) -> None:
    agent, command = bed.agent(), f"echo made >>{bed.count}"
    for expected, changed in ((1, "lock"), (1, "words"), (2, "lock")):
        (bed.code / changed).write_text(str(expected))
        assert bed.set_up(agent, command, files=("lock",))["problem"] == ""
        assert bed.made() == expected
    assert "missing is no file in" in bed.set_up(agent, command, files=("missing",))["problem"]


@pytest.mark.parametrize(
    ("command", "problem", "line"),
    [
        ("echo to; echo bits >&2; exit 3", "failed with exit code 3", "bits"),
        ("echo here; kill -9 $$", "was killed by SIGKILL", "here"),
        ("echo slow; sleep 9999 & sleep 9999", "did not end within 0.5 s (timeouts.setup)", "slow"),
    ],
)
def test_what_has_failed_is_said_and_not_used(bed: Bed, command: str, problem: str, line: str) -> None:
    agent = bed.agent()
    answer = bed.set_up(agent, "mkdir -p .venv/bin", command, limit=0.5 if line == "slow" else PATIENCE)
    assert answer["problem"] == f"`{command}` {problem}"
    assert Path(answer["log"]).read_text().splitlines()[-1] == answer["lines"][-1] == line
    assert bed.builds() == []
    assert (bed.set_up(agent)["problem"], output_of(agent, "tool")) == ("", "one\n")


def test_two_runs_make_it_once(bed: Bed) -> None:
    """The second waits, and gets what the first has made."""
    (bed.directory / "gate").touch()
    agents = [bed.agent(), bed.agent()]
    calls = [bed.begin(agent, bed.waits, bed.makes) for agent in agents]
    wait_until(bed.builds)
    (bed.directory / "gate").unlink()
    assert [agent.talk.answer(call)["problem"] for agent, call in zip(agents, calls, strict=True)] == ["", ""]
    assert [bed.made(), *(output_of(agent, "tool") for agent in agents)] == [1, "one\n", "one\n"]


@pytest.mark.parametrize("killed", ["shell", "keeper", "agent", "guard", "keeper agent guard"])
def test_nothing_is_used_that_was_killed(bed: Bed, killed: str) -> None:
    """Nor do processes of it stay; the next run makes it from the start."""
    agent = bed.agent()
    call = bed.begin(agent, "mkdir -p .venv/bin; echo half >.venv/bin/tool; sleep 9999; true")
    guard, leader = agent.pids()
    below = lambda: psutil.Process(leader).children(recursive=True)  # noqa: E731
    (sleeping,) = wait_until(lambda: [each for each in below() if command_of(each)[:1] == ["sleep"]])
    shell = psutil.Process(sleeping.ppid())
    pids = {"shell": shell.pid, "keeper": shell.ppid(), "agent": leader, "guard": guard}
    for name in killed.split():
        os.kill(pids[name], signal.SIGKILL)
    if killed in ("shell", "keeper"):
        assert "killed" in agent.talk.answer(call)["problem"]
    agent.end()
    after = bed.agent()
    wait_gone(sleeping.pid)
    assert bed.set_up(after)["problem"] == ""
    assert (output_of(after, "tool"), bed.made()) == ("one\n", 1)


def test_it_goes_on_without_a_supervisor(bed: Bed) -> None:
    agent = bed.agent(lease=PATIENCE)
    bed.begin(agent, "sleep 0.3", bed.makes)
    agent.link.close()
    agent.talk = agent.reconnect()
    agent.talk.hello(lease=PATIENCE)
    assert (bed.set_up(agent, "sleep 0.3", bed.makes)["problem"], bed.made()) == ("", 1)
    agent.talk.say("leave", grace=0)
    wait_gone(agent.guard.pid)


def test_what_is_installed_as_editable_is_found_in_the_code_of_the_run(bed: Bed) -> None:
    agent, packages = bed.agent(), ".venv/lib/python3.1/site-packages"
    finder = f"echo \"MAPPING = {{'pkg': '$PWD/flat/pkg'}}\" >{packages}/__editable___pkg_finder.py"
    lists = f"mkdir -p .venv/bin {packages}; echo $PWD/src >{packages}/_pkg.pth"
    assert bed.set_up(agent, lists, finder)["problem"] == ""
    paths = output_of(agent, "sh", "-c", "echo $PYTHONPATH").split(":")
    assert paths[:2] == [f"{bed.code}/src", f"{bed.code}/flat"]

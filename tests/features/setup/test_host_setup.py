"""When hosts are asked for a setup, and what becomes of the job."""

from pathlib import Path
from typing import Any, cast

from support.job_history import Willing
from support.played_agent import PlayedAgent
from support.specs import clustered, made
from support.ungreeted_run import supervision
from tflaunch.core.events import Event, LinkLost, LinkRestored, TimePassed
from tflaunch.core.job_state import Phase
from tflaunch.features.setup.host_setup import HostSetup
from tflaunch.features.setup.setup_rules import find_problems
from tflaunch.mailbox import Mailbox

SPEC: dict[str, Any] = {"setup": "make env", "strategy": "none", "restart": {"max": 2, "backoff": [0, 0]}}


class Host(PlayedAgent):
    """The session with an agent that the test plays."""

    is_greeted = True

    def commands(self) -> list[list[str]]:
        return [message["argv"][1:] for message in self.sent]

    def done(self, problem: str = "", lines: tuple[str, ...] = (), log: str = "") -> None:
        """Answer the oldest call that has no answer yet."""
        self.answer(self.sent.pop(0)["call"], problem=problem, lines=list(lines), log=log)


class Bed:
    """A job on some hosts, and the watcher that has them set up."""

    def __init__(self, directory: Path, *names: str, cluster: Any = None, **fields: Any) -> None:
        self.hosts = {name: Host() for name in names}
        self.job = Willing(clustered(cluster or {"worker": [*names]}, **{**SPEC, **fields}))
        self.mailbox = Mailbox()
        run = supervision(self.job.job, directory / "run", self.mailbox, cast("Any", self.hosts), secrets={"KEY": "s"})
        self.watcher = HostSetup(run)
        self.happens(TimePassed())

    def happens(self, *events: Event) -> None:
        """Let events happen, and all that follow."""
        waiting: list[Any] = list(events)
        while (event := waiting.pop(0) if waiting else cast("Any", self.mailbox.take(self.mailbox.now()))) is not None:
            self.job.happens(event)
            self.watcher.watch(self.job.job, self.job.now)


def test_tasks_start_once_all_hosts_are_set_up(tmp_path: Path) -> None:
    bed = Bed(tmp_path, "h1", "h2")
    assert [host.commands() for host in bed.hosts.values()] == [[["make env"]], [["make env"]]]
    assert bed.hosts["h1"].sent[0]["secrets"] == {"KEY": "s"}
    bed.hosts["h1"].done()
    bed.happens()
    assert bed.job.job.phase is Phase.PREPARING
    bed.hosts["h2"].done()
    bed.happens()
    assert bed.job.job.phase is Phase.RUNNING


def test_each_setup_of_a_host_is_made_before_its_tasks_start(tmp_path: Path) -> None:
    cluster = {"chief": ["h1"], "worker": ["h1", "h2"], "evaluator": ["h3"]}
    roles = {"chief": {"setup": ["make other", "more"]}}
    hosts = {"h2": {"setup": []}, "h3": {"python": "~/bin/python3.12", "setup_files": ["lock"]}}
    bed = Bed(tmp_path, "h1", "h2", "h3", cluster=cluster, roles=roles, hosts=hosts)
    assert sorted(bed.hosts["h1"].commands()) == [["make env"], ["make other", "more"]]
    assert bed.hosts["h2"].sent == []
    (call,) = bed.hosts["h3"].sent
    assert (call["argv"], call["files"]) == (["~/bin/python3.12", "make env"], ["lock"])
    for host in ("h1", "h3", "h1"):
        assert bed.job.job.phase is Phase.PREPARING
        bed.hosts[host].done()
        bed.happens()
    assert bed.job.job.phase is Phase.RUNNING


def test_a_host_that_cannot_be_set_up_is_named_before_any_task_starts(tmp_path: Path) -> None:
    bed = Bed(tmp_path, "h1", "h2")
    bed.hosts["h2"].done("`make env` failed with exit code 2", ("no rule", "stop"), "/log")
    bed.happens()
    assert (bed.job.job.phase, bed.job.job.exit_code) == (Phase.ENDED, 3)
    assert bed.job.culprit.message.splitlines() == [
        "`setup` is not possible on h2: `make env` failed with exit code 2; its output is in /log there;"
        " correct it, or what it needs there",
        "  no rule",
        "  stop",
    ]


def test_a_host_is_asked_again_over_another_link(tmp_path: Path) -> None:
    bed = Bed(tmp_path, "h1")
    bed.hosts["h1"].calls.lose()
    bed.happens(LinkLost("h1", "cut"))
    bed.hosts["h1"].calls.open()
    bed.happens(LinkRestored("h1", is_leaving=False))
    assert len(bed.hosts["h1"].sent) == 2
    bed.hosts["h1"].sent.pop(0)
    bed.hosts["h1"].done()
    bed.happens()
    assert bed.job.job.phase is Phase.RUNNING


def test_a_spare_host_is_set_up_for_what_may_move_there_or_ruled_out(tmp_path: Path) -> None:
    hosts = {"h1": {"setup": "make one"}, "h2": {"setup": []}}
    bed = Bed(tmp_path, "h1", "h2", "h3", "h4", cluster={"worker": ["h1", "h2"]}, spares=["h3", "h4"], hosts=hosts)
    assert [host.commands() for host in bed.hosts.values()] == [[["make one"]], [], [["make env"]], [["make env"]]]
    for host, problem in (("h3", "no room"), ("h4", ""), ("h1", "")):
        bed.hosts[host].done(problem)
        bed.happens()
    assert bed.job.job.phase is Phase.RUNNING
    assert [state.can_take_over for state in bed.job.job.hosts.values() if state.is_spare] == [False, True]
    assert "no room" in bed.job.job.hosts["h3"].flaw


def warnings_of(**fields: Any) -> list[str]:
    spec = made({"cluster": {"worker": 1}, "command": "true", **fields})
    return [f"{each.where}: {each.message}" for each in find_problems(spec, Path("/"))]


def test_what_would_not_work_is_said() -> None:
    assert warnings_of(setup="uv sync") == ["setup: does not name uv.lock, so that a change of it is not noticed"]
    assert warnings_of(setup="uv sync", setup_files=["uv.lock"]) == []
    assert warnings_of(setup=[".venv/bin/pip install -r requirements.txt"]) == []
    assert "does not name pyproject.toml" in warnings_of(setup=["make env", ".venv/bin/pip install -e ."])[0]
    assert warnings_of(setup_files=["uv.lock"]) == ["setup_files: has no effect without `setup`"]
    assert "'../lock' is not below the dir" in warnings_of(setup="make env", setup_files=["../lock"])[0]

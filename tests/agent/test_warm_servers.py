"""Warm servers: a run started by one behaves like a run started in the ordinary way, whatever has changed since."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from support.agent_client import Talk
from support.needs import need
from support.processes import command_of, memory_has
from support.waiting import PATIENCE, wait_gone, wait_until
from tflaunch.transport.local import LocalConnector
from tflaunch_worker import LOCK_NAME, LOG_NAME, linux, procfs
from tflaunch_worker.features.preload import warm_client

pytestmark = pytest.mark.agent

RECIPE = "recipe"
PROGRAM = """
import json, os, resource, sys
try:
    import mine
    from importlib import metadata
    seen = [mine.VALUE, mine.MODE, mine.__file__, mine.sub.VALUE, metadata.version("mine")]
    imported_by = mine.PID
except ImportError as error:
    seen, imported_by = [str(error)], 0
umask = os.umask(0)
seen += [sys.path[1:], sys.executable, sys.prefix, os.getcwd(), umask, resource.getrlimit(resource.RLIMIT_NOFILE)]
seen += [os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0)), os.getsid(0) == os.getpid()]
noise = ("TFLAUNCH_", "COLUMNS", "LINES")  # the latter two are those of pytest, set by readline
seen += [sorted(item for item in os.environ.items() if not item[0].startswith(noise))]
print(json.dumps([seen, imported_by]))
"""
PRINT_PID_AND_WAIT = "import os, time, mine; os.write(1, b'%d\\n' % mine.PID); time.sleep(9999)"


class Seen(NamedTuple):
    """What a task's program saw: facts, and the process that imported its module."""

    facts: list[Any]
    imported_by: int


class Warm:
    """A home with warm servers, and a package that tasks import."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.site, self.other = directory / "site", directory / "other"
        self.env = {"PYTHONPATH": f"{self.site}:{self.other}"}
        self.python = sys.executable
        self.workdir = directory
        self.idle: float = PATIENCE
        self.recipe = RECIPE
        self.secrets: dict[str, str] = {}
        self._runs = 0
        self.other.mkdir()
        self.install(self.site, "one")

    @property
    def sockets(self) -> Path:
        """The directory of the servers' sockets."""
        return self.directory / "home/warm"

    def install(self, site: Path, value: str, version: str = "1.0") -> None:
        """Install the package, in the place of any other version."""
        shutil.rmtree(site, ignore_errors=True)
        (site / f"mine-{version}.dist-info").mkdir(parents=True)
        (site / f"mine-{version}.dist-info/METADATA").write_text(f"Name: mine\nVersion: {version}\n")
        (site / "mine").mkdir()
        text = f"import colorsys, os\nfrom mine import sub\nVALUE, MODE = {value!r}, os.environ.get('MODE')\n"
        (site / "mine/__init__.py").write_text(f"{text}PID = os.getpid()\n")
        (site / "mine/sub.py").write_text(f"VALUE = {value!r}\n")

    def servers(self) -> list[int]:
        """Return the living servers."""
        return [status["pid"] for status in warm_client.living_servers(str(self.sockets)).values()]

    def server(self) -> int:
        """Return the only server."""
        (pid,) = self.servers()
        return int(pid)

    @contextmanager
    def agent(self, *, is_warm: bool = True) -> Iterator[Run]:
        """Start an agent, and dismiss it at the end."""
        self._runs += 1
        directory = self.directory / f"home/runs/test{self._runs}/agents/here"
        connector = LocalConnector(directory, f"test{self._runs}", self.recipe if is_warm else None)
        run = Run(directory, connector)
        run.talk.hello()
        try:
            yield run
        finally:
            run.dismiss()

    def run(self, *, is_warm: bool = True, text: str = PROGRAM) -> Seen:
        """Run the program in a task of a run of its own, and return what it saw."""
        with self.agent(is_warm=is_warm) as run:
            self.start(run.talk, text, is_warm=is_warm)
            said = run.talk.text("worker:0")
        return Seen(*json.loads(said))

    def start(self, talk: Talk, text: str, task: str = "worker:0", *, is_warm: bool = True) -> None:
        """Start a task."""
        marks = {"TFLAUNCH_RUN": f"test{os.getpid()}-{self._runs}", "TFLAUNCH_TASK": task, "TFLAUNCH_ATTEMPT": "0"}
        order: dict[str, Any] = {"unset": ["SOURCE"], "workdir": str(self.workdir), "inherit": True, "port": 0}
        order["secrets"] = self.secrets
        if is_warm:
            order |= {"preload": ["mine"], "warm": {"recipe": self.recipe, "idle": self.idle}}
        argv = [self.python, "-c", text]
        talk.say("start_task", task=task, attempt=0, argv=argv, env={**marks, **self.env}, **order)


class Run:
    """An agent, and the connection to it."""

    def __init__(self, directory: Path, connector: LocalConnector) -> None:
        self.directory = directory
        self.connector = connector
        self.link = connector.open()
        self.talk = Talk(self.link.socket)

    def dismiss(self) -> None:
        """Order the agent to leave, and wait until guard and agent have ended."""
        try:
            self.talk.say("leave", grace=0)
        except OSError:
            pass  # it was killed
        self.link.close()
        self.connector.end()
        assert linux.is_lock_free(str(self.directory / LOCK_NAME)) is not False
        log = self.directory / LOG_NAME
        assert not log.exists() or not log.read_text(), log.read_text()

    def processes(self) -> tuple[int, int, int]:
        """Return guard, agent, and the process that has imported modules."""
        agent = int(self.talk.wait_for("greeted")["pid"])
        children = psutil.Process(agent).children()
        (zygote,) = [child.pid for child in children if any("forkserver" in word for word in command_of(child)[:1])]
        guard = procfs.parent_of(agent)
        assert guard is not None
        return guard, agent, zygote


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    """A home of its own; its servers are ended."""
    made = Warm(tmp_path)
    try:
        yield made
    finally:
        for server in made.servers():
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)


def test_later_runs_are_forked_from_what_the_first_has_imported(warm: Warm) -> None:
    """The tasks see the same as if they were started; the server belongs to no run."""
    cold = warm.run(is_warm=False)
    first = warm.run()
    server = warm.server()
    assert first.imported_by == server
    assert cold.facts == first.facts
    for number in range(3):
        assert warm.run() == first, number
    assert warm.servers() == [server]
    assert psutil.Process(server).ppid() != os.getpid()
    assert not any(entry.startswith(b"TFLAUNCH_RUN=") for entry in procfs.environment_of(server))
    children = psutil.Process(server).children()
    assert not children, children


def test_the_processes_of_a_run_have_their_usual_parents(warm: Warm) -> None:
    """Only the guard is the child of another process: the server."""
    warm.run()
    with warm.agent() as run:
        warm.start(run.talk, PRINT_PID_AND_WAIT)
        task = run.talk.wait_for("task_started")["pid"]
        guard, agent, zygote = run.processes()
        assert procfs.parent_of(guard) == warm.server()
        assert [procfs.parent_of(pid) for pid in (agent, zygote, task)] == [guard, agent, agent]
        assert [os.getsid(pid) for pid in (guard, zygote, task)] == [guard, zygote, task]
        assert psutil.Process(guard).exe() == psutil.Process(agent).exe() == os.path.realpath(sys.executable)
        for pid in (guard, agent):
            assert os.readlink(f"/proc/{pid}/fd/1") == str(run.directory / LOG_NAME)
            assert os.environb.items() <= dict(e.split(b"=", 1) for e in procfs.environment_of(pid) if e).items()
    for pid in (guard, agent, zygote, task):
        wait_gone(pid)


# ---- changes


class Change(NamedTuple):
    """Something that changes between two runs, and whether the second is then still started warm."""

    make: Callable[[Warm], object]
    is_warm: bool = False


def write(path: Path, text: str) -> None:
    """Write a file, in a directory that is made if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def edit_in_place(warm: Warm) -> None:
    """Change a file to another of the same size and time."""
    path = warm.site / "mine/sub.py"
    status = path.stat()
    path.write_text("VALUE = 'two'\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    shutil.rmtree(
        warm.site / "mine/__pycache__", ignore_errors=True
    )  # which would be used by a run that is started, too


def swap_path(warm: Warm) -> None:
    """Have another directory searched first, which has another version."""
    warm.install(warm.other, "two", "2.0")
    warm.env["PYTHONPATH"] = f"{warm.other}:{warm.site}"


def use_other_python(warm: Warm) -> None:
    """Use the interpreter by another name."""
    (warm.directory / "bin").mkdir()
    (warm.directory / "bin/python3").symlink_to(os.path.realpath(sys.executable))
    warm.python = str(warm.directory / "bin/python3")


def kill(warm: Warm) -> None:
    """Kill the server."""
    server = warm.server()
    os.kill(server, signal.SIGKILL)
    wait_gone(server)


def update_file(name: str, text: str) -> Callable[[Warm], object]:
    """Return a change that writes a file in the package's directory."""
    return lambda warm: write(warm.site / name, text)


def set_variable(name: str, value: str) -> Callable[[Warm], object]:
    """Return a change of the tasks' environment."""
    return lambda warm: warm.env.__setitem__(name, value)


CHANGES = {
    "nothing": Change(lambda _: None, is_warm=True),
    "a file of the same size and time": Change(edit_in_place),
    "the same version is reinstalled": Change(lambda warm: warm.install(warm.site, "one")),
    "its metadata is removed": Change(lambda warm: shutil.rmtree(warm.site / "mine-1.0.dist-info")),
    "a module of the standard library is hidden": Change(update_file("colorsys.py", "raise ImportError('mine')\n")),
    "a module is added": Change(lambda warm: write(warm.other / "extra.py", "")),
    "PYTHONPATH has another order": Change(swap_path),
    "PYTHONPATH is relative": Change(lambda warm: warm.env.update(PYTHONPATH="site")),
    "a variable": Change(set_variable("MODE", "other")),
    "the working directory": Change(lambda warm: setattr(warm, "workdir", warm.other), is_warm=True),
    "the interpreter": Change(use_other_python),
    "the server is killed": Change(kill),
    "the server hangs": Change(lambda warm: os.kill(warm.server(), signal.SIGSTOP)),
}
RARE = {
    "a file is touched": Change(lambda warm: os.utime(warm.site / "mine/sub.py")),
    "a file is removed": Change(lambda warm: (warm.site / "mine/sub.py").unlink()),
    "another version is installed": Change(lambda warm: warm.install(warm.site, "two", "2.0")),
    "another package is installed": Change(update_file("extra-1.0.dist-info/METADATA", "Name: extra\nVersion: 1\n")),
    "a .pth file is written": Change(update_file("extra.pth", "/nowhere\n")),
    "a package is added": Change(lambda warm: write(warm.other / "extra/__init__.py", "")),
    "a file that is no module is added": Change(lambda warm: write(warm.other / "model.ckpt", ""), is_warm=True),
    "the locale": Change(set_variable("LC_ALL", "C")),
    "a variable of the task alone": Change(set_variable("TFLAUNCH_PROGRESS_X", "1"), is_warm=True),
    "the server's socket is removed": Change(lambda warm: next(warm.sockets.glob("*.sock")).unlink()),
    "the directory of the sockets is removed": Change(lambda warm: shutil.rmtree(warm.sockets)),
}


@pytest.mark.parametrize("name", [*CHANGES, *(pytest.param(name, marks=pytest.mark.thorough) for name in RARE)])
def test_after_a_change_a_run_is_as_a_cold_one(warm: Warm, name: str) -> None:
    """The same facts, and nothing imported by the server that is out of date."""
    warm.run()
    server = warm.server()
    process = psutil.Process(server)
    change = {**CHANGES, **RARE}[name]
    change.make(warm)
    try:
        again, cold = warm.run(), warm.run(is_warm=False)
    finally:
        if server not in warm.servers():
            with suppress(psutil.NoSuchProcess):
                process.kill()
    assert again.facts == cold.facts
    assert (again.imported_by == server) == change.is_warm


@contextmanager
def changed_here(name: str) -> Iterator[None]:
    """Change something in this process, which its agents inherit."""
    limits, cpus, umask = resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0), os.umask(0o077)
    os.umask(umask)
    try:
        match name:
            case "umask":
                os.umask(0o027)
            case "limit of open files":
                resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
            case "CPUs":
                os.sched_setaffinity(0, {min(cpus)})
        yield
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.sched_setaffinity(0, cpus)


@pytest.mark.parametrize("name", ["umask", "limit of open files", "CPUs", "variable", "depth of the shell"])
def test_what_the_launcher_passes_on_is_passed_on(warm: Warm, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "CPUs":
        need("cores")
    warm.run()
    server = warm.server()
    for variable, about, value in (("MODE", "variable", "other"), ("SHLVL", "depth of the shell", "7")):
        if name == about:
            monkeypatch.setenv(variable, value)
    with changed_here(name):
        again, cold = warm.run(), warm.run(is_warm=False)
    assert again.facts == cold.facts
    assert (again.imported_by == server) == (name in ("umask", "depth of the shell"))


def test_a_change_while_the_first_run_lasts_leaves_no_server(warm: Warm) -> None:
    """Its process has imported something that has been removed."""
    with warm.agent() as run:
        warm.start(run.talk, PRINT_PID_AND_WAIT)
        run.talk.wait_until(lambda: b"\n" in run.talk.output.get(("worker:0", 0), b""))
        (warm.site / "mine/sub.py").write_text("VALUE = 'two'\n")
    assert not warm.servers()


@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError",
        "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    ],
)
def test_what_must_not_be_forked_leaves_no_server(warm: Warm, text: str) -> None:
    (warm.site / "mine/sub.py").write_text(text)
    with warm.agent() as run:
        warm.start(run.talk, "print('x')")
        assert run.talk.text("worker:0") == "x\n"
    assert not warm.servers()


# ---- ends


def test_a_server_ends_when_it_was_not_used(warm: Warm) -> None:
    """Each run counts as a use."""
    warm.idle = PATIENCE
    warm.run()
    server = warm.server()
    begun = time.monotonic()  # clock: the server says how long it has left since its last use
    assert warm.run().imported_by == server
    (status,) = warm_client.living_servers(str(warm.sockets)).values()
    assert status["idle_left"] >= warm.idle - (time.monotonic() - begun)  # clock: as above
    kill(warm)
    warm.idle = 0.1
    warm.run()
    wait_until(lambda: not warm.servers())
    assert not list(warm.sockets.glob("*.sock"))


def test_a_run_that_outlasts_its_server_leaves_one_again(warm: Warm) -> None:
    warm.run()
    with warm.agent() as run:
        warm.start(run.talk, PRINT_PID_AND_WAIT)
        run.talk.wait_for("task_started")
        kill(warm)
        zygote = run.processes()[2]
    assert warm.server() == zygote
    assert warm.run().imported_by != zygote, "the modules are those that the first server has imported"


def test_servers_end_with_their_owner(warm: Warm) -> None:
    """However it ends: that is how they end with a session of pytest."""
    owner = subprocess.Popen(["sleep", "9999"])
    warm.sockets.mkdir(parents=True, mode=0o700)
    (warm.sockets / warm_client.OWNER_NAME).write_text(str(owner.pid))
    warm.run()
    server = warm.server()
    owner.kill()
    owner.wait()
    wait_gone(server)
    warm.run()
    assert not warm.servers()


def test_there_are_only_a_few(warm: Warm) -> None:
    """Those that were not used for the longest time end."""
    for number in range(5):
        warm.env["MODE"] = str(number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MODE", str(number))
            warm.run()
    assert len(warm.servers()) == 4


# ---- deaths


@pytest.mark.parametrize("victim", ["guard", "agent", "launcher", "server", "zygote"])
def test_nothing_of_a_run_is_left_whoever_is_killed(warm: Warm, victim: str) -> None:
    """As without a server, which itself lives on unless it is the one that is killed."""
    warm.run()
    server = warm.server()
    child = "import subprocess; subprocess.Popen(['sleep', '9999'], start_new_session=True); "
    with warm.agent() as run:
        warm.start(run.talk, child + PRINT_PID_AND_WAIT)
        run.talk.wait_until(lambda: b"\n" in run.talk.output.get(("worker:0", 0), b""))
        task = run.talk.wait_for("task_started")["pid"]
        guard, agent, zygote = run.processes()
        (orphan,) = [process.pid for process in psutil.Process(task).children()]
        processes = {"guard": guard, "agent": agent, "zygote": zygote, "server": server}
        if victim != "launcher":  # whose death the agent notices by the end of the link
            os.kill(processes[victim], signal.SIGKILL)
        if victim in ("server", "zygote"):
            wait_gone(processes[victim])
            assert psutil.pid_exists(task)
            warm.start(run.talk, "print('x')", "worker:1")
            assert run.talk.text("worker:1") == "x\n"
            run.dismiss()
        run.link.close()
        for pid in (task, orphan, agent, guard, *([] if victim == "server" else [zygote])):
            wait_gone(pid)
    assert warm.server() == (zygote if victim == "server" else server)


def test_a_server_that_does_not_answer_keeps_no_link(warm: Warm) -> None:
    """The death of an agent is noticed, which a copy of its end of the link would hide; the server can be ended."""
    warm.run()
    server = warm.server()
    os.kill(server, signal.SIGSTOP)
    assert [status["answers"] for status in warm_client.living_servers(str(warm.sockets)).values()] == [False]
    with warm.agent() as run:
        os.kill(run.talk.wait_for("greeted")["pid"], signal.SIGKILL)
        while run.link.socket.recv(1000):
            pass
    warm_client.stop_servers(str(warm.sockets))
    wait_gone(server)


def test_several_runs_at_once(warm: Warm) -> None:
    """They share a server, and leave one."""
    warm.run()
    server = warm.server()
    with ExitStack() as stack:
        runs = [stack.enter_context(warm.agent()) for _ in range(6)]
        for run in runs:
            warm.start(run.talk, PROGRAM)
        for run in runs:
            assert Seen(*json.loads(run.talk.text("worker:0"))).imported_by == server
    assert warm.servers() == [server]


def test_requests_that_are_none(warm: Warm) -> None:
    """They do the server no harm."""
    warm.run()
    server = warm.server()
    (path,) = warm.sockets.glob("*.sock")
    for message in ({}, {"kind": "guard"}, {"kind": "guard", "traits": {}}, {"kind": 1}, {"kind": "unknown"}):
        warm_client.ask(str(path), message)
    assert warm.run().imported_by == server


def test_a_server_knows_no_secrets(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of tasks, nor those of the process that asks for a guard; its name does not depend on them."""
    values = [f"secret-{os.urandom(16).hex()}" for _ in range(2)]
    warm.recipe = f"{RECIPE}=API_KEY=SOURCE"
    imported_by = set()
    for value in values:
        monkeypatch.setenv("SOURCE", value)
        warm.secrets = {"API_KEY": value}
        with warm.agent() as run:
            warm.start(run.talk, "import mine, os; print(os.environ['API_KEY'], 'SOURCE' in os.environ, mine.PID)")
            said, has_source, pid = run.talk.text("worker:0").split()
        assert (said, has_source) == (value, "False")
        imported_by.add(int(pid))
    assert imported_by == {warm.server()}
    for value in values:
        assert not memory_has(warm.server(), value)
    assert memory_has(os.getpid(), values[0])

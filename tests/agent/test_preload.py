"""Tasks forked from processes with imported modules: those of a run, and warm servers, which several runs share.

Tasks cannot tell, no event of theirs is lost, and whatever has changed since, a run is as without.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil
import pytest

from agent.preload_cases import PRELOAD_CASES, PreloadCase
from support.agent_client import Agent, LocalAgent, Talk
from support.needs import need
from support.processes import command_of, memory_has
from support.signals import SOME_ENDING
from support.waiting import PATIENCE, wait_gone, wait_until
from tflaunch.transport.local import LocalConnector
from tflaunch_worker import LOCK_NAME, LOG_NAME, linux, procfs
from tflaunch_worker.features.preload import fingerprint, warm_client

MODULES = ["json", "decimal"]
PRINT_PID = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(9999)"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAgent]:
    """One agent shared by many programs."""
    agent = LocalAgent(tmp_path_factory.mktemp("shared"))
    agent.talk.hello()
    yield agent
    assert not (log := agent.end()), log


def start(
    talk: Talk,
    task: str,
    workdir: Path,
    *words: str,
    python: str = sys.executable,
    modules: list[str] = MODULES,
    attempt: int = 0,
    **env: Any,
) -> None:
    order = {"preload": modules, "workdir": str(workdir), "unset": ["PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"]}
    talk.start(task, python, *words, attempt=attempt, order=order, **env)


def zygotes(agent: int) -> list[int]:
    """Return the processes that import modules for the tasks of an agent."""
    children = psutil.Process(agent).children()
    return [child.pid for child in children if any("forkserver" in word for word in command_of(child))]


def wait_buried(agent: int) -> None:
    """Wait until an agent has no children other than those that import modules."""
    wait_until(lambda: {child.pid for child in psutil.Process(agent).children()} <= set(zygotes(agent)))


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


@pytest.mark.parametrize("name", PRELOAD_CASES)
def test_a_program_cannot_tell_that_it_was_forked(shared: LocalAgent, tmp_path: Path, name: str) -> None:
    """Its output and its end are the same either way."""
    case: PreloadCase = PRELOAD_CASES[name]
    env: dict[str, Any] = dict(case.env)
    write(tmp_path, {"prog.py": case.text, **dict(case.files)})
    seen = []
    for way, modules in (("started", []), ("forked", MODULES)):
        task = f"{name} {way}"
        start(shared.talk, task, tmp_path, *case.argv, modules=modules, **env)
        text = re.sub("0x[0-9a-f]+", "0x", shared.talk.text(task))
        ended = shared.talk.wait_for("task_exited", task)
        seen.append((text if case.is_shown else "", ended["code"], ended["signal"]))
        shared.talk.acknowledge((task, 0, len(shared.talk.output.get((task, 0), b"")), True))
    assert seen[0] == seen[1]
    preload = shared.talk.wait_for("task_started", f"{name} forked")["preload"]
    assert (preload == ",".join(MODULES)) == case.is_forked, preload


OWN_JSON = {"prog.py": "import json; print(json.mine)", "json.py": "mine = 1"}
REFUSED: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "sets a variable": ({"prog.py": "import os\nos.environ['TF_NUM_X'] = '1'"}, ("prog.py",), "mentions TF_NUM_X"),
    "has a module of that name": (OWN_JSON, ("prog.py",), "a module json of its own"),
    "is a module that was imported": ({}, ("-m", "json.decoder"), "json.decoder itself has been imported"),
    "has other options": ({"prog.py": ""}, ("-O", "prog.py"), "only `python script.py`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_in_doubt_a_program_is_started(shared: LocalAgent, tmp_path: Path, name: str) -> None:
    """As if preloading had not been requested; its environment and the supervisor get the reason."""
    files, words, reason = REFUSED[name]
    write(tmp_path, files)
    start(shared.talk, f"{name} plain", tmp_path, *words, modules=[])
    start(shared.talk, name, tmp_path, *words)
    assert shared.talk.text(name) == shared.talk.text(f"{name} plain")
    codes = [shared.talk.wait_for("task_exited", task)["code"] for task in (name, f"{name} plain")]
    assert codes[0] == codes[1]
    preload = shared.talk.wait_for("task_started", name)["preload"]
    assert preload.startswith("no: ")
    assert reason in preload


def test_what_an_import_has_looked_for_in_vain_may_be_the_program_s(local: LocalAgent, tmp_path: Path) -> None:
    """TensorFlow tries to import a module `python`; a program may have a file of this name beside it."""
    tries = "try:\n    import extra\nexcept ImportError:\n    extra = None"
    write(tmp_path, {"lib/mine.py": tries, "prog.py": "import mine; print(mine.extra)", "extra.py": ""})
    start(local.talk, "worker:0", tmp_path, "prog.py", modules=["mine"], PYTHONPATH="lib")
    assert local.talk.text("worker:0").startswith("<module 'extra'")
    preload = local.talk.wait_for("task_started", "worker:0")["preload"]
    assert "a module extra of its own: what was imported had looked for one" in preload


def test_only_an_interpreter_is_preloaded(local: LocalAgent, tmp_path: Path) -> None:
    """No script that is called python and starts one."""
    write(tmp_path, {"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'})
    (tmp_path / "python").chmod(0o755)
    start(local.talk, "shim", tmp_path, "-c", "print('x')", python=str(tmp_path / "python"))
    assert local.talk.text("shim") == "x\n"
    assert "is not the interpreter itself" in local.talk.wait_for("task_started", "shim")["preload"]
    assert not zygotes(local.pids()[1])


NOT_STARTED = """
import os, sys
if any("zygote_server" in word for word in sys.orig_argv):
    print("no licence", flush=True)
    os._exit(1)
"""


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("mine", "raise ValueError('not today')", "mine could not be imported: ValueError: not today"),
        ("mine", "import os; os.abort()", "the process that imports for it has died"),
        ("sitecustomize", NOT_STARTED, "the process that imports for it has died: no licence"),
    ],
    ids=["fails", "crashes", "cannot start"],
)
def test_what_cannot_be_imported_for_others_is_left_to_them(
    local: LocalAgent, tmp_path: Path, name: str, text: str, reason: str
) -> None:
    """With the last words of the process that was to import it; the task itself reports any error."""
    write(tmp_path, {"lib/mine.py": "", f"lib/{name}.py": text})
    for task in ("worker:0", "worker:1"):
        start(local.talk, task, tmp_path, "-c", "print('x')", modules=["mine"], PYTHONPATH="lib")
        assert local.talk.text(task) == "x\n"
        assert reason in local.talk.wait_for("task_started", task)["preload"]


def test_what_imports_write_is_in_every_task_s_output(local: LocalAgent, tmp_path: Path) -> None:
    """In the same order, before the program's own output, if the program imports them."""
    write(tmp_path, {"lib/mine.py": "import os, sys; print('one'); sys.stdout.flush(); os.write(2, b'two\\n')"})
    for task, modules in (("worker:0", ["mine"]), ("worker:1", ["mine"]), ("worker:2", [])):
        start(local.talk, task, tmp_path, "-c", "import mine; print('x')", modules=modules, PYTHONPATH="lib")
        assert local.talk.text(task) == "one\ntwo\nx\n"
    start(local.talk, "none", tmp_path, "-c", "print('x')", modules=["mine"], PYTHONPATH="lib")
    assert local.talk.text("none") == "x\n", "it does not import them"


@pytest.mark.parametrize("decision", ["set_threshold(0, 5, 5)", "disable()"])
def test_what_imports_decide_about_garbage_holds(local: LocalAgent, tmp_path: Path, decision: str) -> None:
    """For a fork as for a program that does the imports itself."""
    write(tmp_path, {"lib/mine.py": f"import gc; gc.{decision}"})
    text = "import gc, mine; print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), end='|'); gc.set_debug(0)"
    for task, modules in (("forked", ["mine"]), ("started", [])):
        start(local.talk, task, tmp_path, "-c", text, modules=modules, PYTHONPATH="lib")
    seen = [local.talk.text(task).partition("|")[0] for task in ("forked", "started")]
    assert seen[0] == seen[1]
    assert local.talk.wait_for("task_started", "forked")["preload"] == "mine"


def test_it_works_over_every_link(agent: Agent, tmp_path: Path) -> None:
    """Even if the agent's code is an archive and the program has a package of our name."""
    write(tmp_path, {"prog.py": "import tflaunch_worker; print(tflaunch_worker.mine)"})
    write(tmp_path, {"tflaunch_worker/__init__.py": "mine = 'mine'"})
    start(agent.talk, "worker:0", tmp_path, "prog.py")
    assert agent.talk.text("worker:0") == "mine\n"
    assert agent.talk.wait_for("task_started", "worker:0")["preload"] == "json,decimal"


def test_a_zygote_serves_all_tasks_of_its_environment_and_stays_warm(local: LocalAgent, tmp_path: Path) -> None:
    """Another environment, workdir or interpreter gets its own zygote; TF_CONFIG and GPUs make no difference."""
    write(tmp_path, {"prog.py": PRINT_PID})
    for number in range(3):
        task, config, device = f"worker:{number}", f"{number}" * 300_000, f"{number}"
        start(local.talk, task, tmp_path, "prog.py", TF_CONFIG=config, CUDA_VISIBLE_DEVICES=device)
        local.talk.wait_for("task_started", f"worker:{number}")
    (zygote,) = zygotes(local.pids()[1])
    start(local.talk, "ps:0", tmp_path, "prog.py", TF_NUM_INTRAOP_THREADS="1")
    local.talk.wait_for("task_started", "ps:0")
    assert len(zygotes(local.pids()[1])) == 2
    local.talk.say("stop_task", task="worker:1", attempt=0, grace=5)
    assert local.talk.wait_for("task_exited", "worker:1")["signal"] == signal.SIGTERM
    local.talk.wait_for("task_gone", "worker:1")
    start(local.talk, "worker:1", tmp_path, "prog.py", attempt=1)
    assert local.talk.wait_for("task_started", "worker:1", 1)["preload"] == "json,decimal"
    assert zygote in zygotes(local.pids()[1])
    assert len(zygotes(local.pids()[1])) == 2
    pids = [m["pid"] for m in local.talk.heard if m["kind"] == "task_started"]
    parents = {psutil.Process(pid).ppid() for pid in pids if psutil.pid_exists(pid)}
    assert parents == {local.pids()[1]}, "tasks are the agent's own children"


def test_forks_have_random_numbers_of_their_own(local: LocalAgent, tmp_path: Path) -> None:
    """As processes that are started have."""
    program = "import os, random, uuid, tempfile; print(random.random(), uuid.uuid4(), tempfile.mktemp())"
    for number in range(2):
        start(local.talk, str(number), tmp_path, "-c", program, modules=["random", "uuid", "tempfile"])
    texts = [local.talk.text(str(number)).split() for number in range(2)]
    assert not set(texts[0]) & set(texts[1])


def test_what_forks_share_is_measured(local: LocalAgent, tmp_path: Path) -> None:
    """It is part of their memory; it is not measured for tasks that were started."""
    write(tmp_path, {"lib/large.py": "data = bytearray(b'x' * 50_000_000)", "prog.py": PRINT_PID})
    for task, modules in (("worker:0", ["large"]), ("worker:1", ["large"]), ("worker:2", [])):
        start(local.talk, task, tmp_path, "prog.py", modules=modules, PYTHONPATH="lib")
        local.talk.wait_until(lambda: b"\n" in local.talk.output.get((task, 0), b""))  # noqa: B023

    def answer() -> dict[str, Any] | None:
        tasks: dict[str, Any] = local.talk.call("measure")["tasks"]
        return tasks if "shared_bytes" in tasks["worker:0"] else None  # it is left out if it takes some seconds

    for _ in range(2):  # the second time it comes from memory
        tasks = wait_until(answer)
        shared = {task: known.get("shared_bytes") for task, known in tasks.items()}
        assert shared["worker:2"] is None
        for task in ("worker:0", "worker:1"):
            assert 50_000_000 < shared[task] <= tasks[task]["rss_bytes"]


def slow(directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return a pipe, and the environment with a module whose import waits until the pipe is written to."""
    pipe = directory / "pipe"
    os.mkfifo(pipe)
    write(directory, {"lib/slow.py": f"open({str(pipe)!r}).read()"})
    return pipe, {"PYTHONPATH": "lib"}


def importing(agent: LocalAgent) -> int:
    """Wait for the one process that imports modules and return it."""
    return wait_until(lambda: zygotes(agent.pids()[1]))[0]  # it may not even have called exec


def test_a_task_that_is_stopped_before_it_is_forked_never_runs(local: LocalAgent, tmp_path: Path) -> None:
    """It ends at once, with the signal it was to get; nothing of its program runs later."""
    pipe, env = slow(tmp_path)
    program = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"
    for number in range(2):
        start(local.talk, f"worker:{number}", tmp_path, "-c", program, modules=["slow"], **env)
    importing(local)
    local.talk.say("signal_task", task="worker:0", attempt=0, signal=9)  # there is no process to signal
    local.talk.say("stop_task", task="worker:0", attempt=0, grace=5)
    assert local.talk.wait_for("task_exited", "worker:0")["signal"] == signal.SIGTERM
    local.talk.wait_for("task_gone", "worker:0")
    pipe.write_text("go")
    assert local.talk.wait_for("task_exited", "worker:1")["code"] == 0
    assert (tmp_path / "ran").read_text() == "x"
    start(local.talk, "worker:0", tmp_path, "-c", program, modules=["slow"], attempt=1, **env)
    assert local.talk.wait_for("task_exited", "worker:0", 1)["code"] == 0
    wait_buried(local.pids()[1])
    assert len(zygotes(local.pids()[1])) == 1


def test_a_run_that_ends_while_modules_are_imported_leaves_nothing(local: LocalAgent, tmp_path: Path) -> None:
    """The zygote ends with the agent, whatever it is doing."""
    _, env = slow(tmp_path)
    start(local.talk, "worker:0", tmp_path, "-c", "print('x')", modules=["slow"], **env)
    zygote = importing(local)
    local.talk.say("leave", grace=PATIENCE)
    local.talk.wait_for("task_gone", "worker:0")
    local.talk.text("worker:0")
    local.talk.acknowledge(("worker:0", 0, 0, True))
    wait_gone(local.guard.pid)
    wait_gone(zygote)


def test_a_zygote_that_is_killed_while_it_imports_loses_no_task(local: LocalAgent, tmp_path: Path) -> None:
    """The tasks that waited for it are started, and it is not tried again."""
    pipe, env = slow(tmp_path)
    for number in range(3):
        start(local.talk, f"worker:{number}", tmp_path, "-c", "print('x')", modules=["slow"], **env)
    os.kill(importing(local), signal.SIGKILL)
    for number in range(3):
        assert local.talk.text(f"worker:{number}") == "x\n"
        assert local.talk.wait_for("task_started", f"worker:{number}")["preload"].startswith("no: ")
    start(local.talk, "worker:3", tmp_path, "-c", "print('x')", modules=["slow"], **env)
    assert local.talk.text("worker:3") == "x\n"
    assert not zygotes(local.pids()[1])
    assert pipe.exists()


def test_a_zygote_that_is_killed_later_takes_no_task_with_it(local: LocalAgent, tmp_path: Path) -> None:
    """Whatever signal it gets: the next task is forked from a new one."""
    pids = []
    for index, number in enumerate((signal.SIGKILL, *SOME_ENDING, signal.SIGHUP)):
        start(local.talk, f"ps:{index}", tmp_path, "-c", PRINT_PID)
        pids.append(local.talk.wait_for("task_started", f"ps:{index}")["pid"])
        (zygote,) = zygotes(local.pids()[1])
        os.kill(zygote, number)
        wait_gone(zygote)
        start(local.talk, f"worker:{index}", tmp_path, "-c", "print('x')")
        assert local.talk.text(f"worker:{index}") == "x\n"
    start(local.talk, "chief:0", tmp_path, "-c", "print('x')")
    assert local.talk.wait_for("task_started", "chief:0")["preload"] == "json,decimal"
    assert all(map(psutil.pid_exists, pids))


def test_many_starts_and_stops_at_once(local: LocalAgent, tmp_path: Path) -> None:
    """Every task ends exactly once, no matter when it is stopped."""
    names = [f"worker:{number}" for number in range(16)]
    for name in names:
        start(local.talk, name, tmp_path, "-c", PRINT_PID)
    for number, name in enumerate(names):
        local.talk.say("stop_task", task=name, attempt=0, grace=(0, 5)[number % 2])
    for name in names:
        local.talk.wait_for("task_gone", name)
    for name in names:
        kinds = [m["kind"] for m in local.talk.heard if m.get("task") == name and m["kind"].startswith("task_")]
        assert kinds in (["task_exited", "task_gone"], ["task_started", "task_exited", "task_gone"])
    start(local.talk, "last", tmp_path, "-c", "print('x')")
    assert local.talk.text("last") == "x\n"
    wait_buried(local.pids()[1])


def test_an_interpreter_is_found_as_a_shell_finds_it(local: LocalAgent, tmp_path: Path) -> None:
    """On the task's own PATH, and sys.executable says so."""
    found = shutil.which("python3", path=str(Path(sys.executable).parent))
    program = "import sys; print(sys.executable, sys.prefix, sys.orig_argv[0])"
    for task, modules in (("worker:0", []), ("worker:1", MODULES)):
        path = f"/nowhere:{Path(sys.executable).parent}:{os.environ['PATH']}"
        start(local.talk, task, tmp_path, "-c", program, python="python3", modules=modules, PATH=path)
    assert local.talk.text("worker:0") == local.talk.text("worker:1")
    assert local.talk.text("worker:1").split()[0] == found
    assert local.talk.wait_for("task_started", "worker:1")["preload"] == "json,decimal"


# ---- servers

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
PRINT_IMPORTER = "import os, time, mine; os.write(1, b'%d\\n' % mine.PID); time.sleep(9999)"


class Seen(NamedTuple):
    """What a task's program saw: facts, and the process that imported its module."""

    facts: list[Any]
    imported_by: int


class Warm:
    """A home with warm servers, and a package that tasks import."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.site, self.other = directory / "site", directory / "other"
        self.env: dict[str, Any] = {"PYTHONPATH": f"{self.site}:{self.other}"}
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
        return [status["pid"] for status in warm_client.living_servers(str(self.sockets)).values()]

    def server(self) -> int:
        (pid,) = self.servers()
        return int(pid)

    @contextmanager
    def agent(self, *, is_warm: bool = True) -> Iterator[Run]:
        self._runs += 1
        directory = self.directory / f"home/runs/test{self._runs}/agents/here"
        connector = LocalConnector(directory, f"test{self._runs}", self.recipe if is_warm else None)
        run = Run(directory, connector)
        run.talk.hello()
        try:
            yield run
        finally:
            run.dismiss()

    def run(self, *, is_warm: bool = True) -> Seen:
        """Run the program in a task of a run of its own, and return what it saw."""
        with self.agent(is_warm=is_warm) as run:
            self.start(run.talk, PROGRAM, is_warm=is_warm)
            return Seen(*json.loads(run.talk.text("worker:0")))

    def start(self, talk: Talk, text: str, task: str = "worker:0", *, is_warm: bool = True) -> None:
        order: dict[str, Any] = {"unset": ["SOURCE"], "workdir": str(self.workdir), "secrets": self.secrets}
        if is_warm:
            order |= {"preload": ["mine"], "warm": {"recipe": self.recipe, "idle": self.idle}}
        run = f"test{os.getpid()}-{self._runs}"
        talk.start(task, self.python, "-c", text, order=order, TFLAUNCH_RUN=run, **self.env)


class Run:
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
        (zygote,) = zygotes(agent)
        guard = procfs.parent_of(agent)
        assert guard is not None
        return guard, agent, zygote


@pytest.fixture
def warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warm]:
    """A home of its own; its servers are ended, and have as long to answer as a busy machine needs."""
    monkeypatch.setattr(warm_client, "_PATIENCE", PATIENCE)
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


# ---- servers: changes


class Change(NamedTuple):
    """Something that changes between two runs, and whether the second is then still started warm."""

    make: Callable[[Warm], object]
    is_warm: bool = False


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


def limit_files(_: Warm) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def kill(warm: Warm) -> None:
    server = warm.server()
    os.kill(server, signal.SIGKILL)
    wait_gone(server)


def change_what_imports_do_not_see(warm: Warm) -> None:
    """Change the task's directory, the launcher's umask, and the depth of its shell."""
    warm.workdir = warm.other
    os.umask(0o027)
    os.environ["SHLVL"] = "7"


CHANGES = {
    "what imports do not see": Change(change_what_imports_do_not_see, is_warm=True),
    "a file of the same size and time": Change(edit_in_place),
    "the same version is reinstalled": Change(lambda warm: warm.install(warm.site, "one")),
    "a module of the standard library is hidden": Change(
        lambda warm: write(warm.site, {"colorsys.py": "raise ImportError('mine')\n"})
    ),
    "a module is added": Change(lambda warm: write(warm.other, {"extra.py": ""})),
    "PYTHONPATH has another order": Change(swap_path),
    "a variable": Change(lambda warm: warm.env.update(MODE="other")),
    "the interpreter": Change(use_other_python),
    "the server is killed": Change(kill),
    "the variable of the launcher": Change(lambda _: os.environ.update(MODE="other")),
    "the launcher's limit of open files": Change(limit_files),
    "the launcher's CPUs": Change(lambda _: os.sched_setaffinity(0, [*os.sched_getaffinity(0)][:1])),
    "the server hangs": Change(lambda warm: os.kill(warm.server(), signal.SIGSTOP)),
}


@pytest.fixture
def own_state() -> Iterator[None]:
    """Restore what agents inherit of this process."""
    limits, cpus, variables = resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0), dict(os.environ)
    os.umask(umask := os.umask(0))
    yield
    os.umask(umask)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.sched_setaffinity(0, cpus)
    os.environ.clear()
    os.environ.update(variables)


@pytest.mark.usefixtures("own_state")
@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_a_run_is_as_a_cold_one(warm: Warm, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The same facts, and nothing imported by the server that is out of date."""
    if name == "the launcher's CPUs":
        need("cores")
    warm.run()
    server = warm.server()
    process = psutil.Process(server)
    change = CHANGES[name]
    change.make(warm)
    if name == "the server hangs":
        monkeypatch.setattr(warm_client, "_PATIENCE", 1.0)  # seconds that are lost, as it is stopped
    try:
        again, cold = warm.run(), warm.run(is_warm=False)
    finally:
        if server not in warm.servers():
            with suppress(psutil.NoSuchProcess):
                process.kill()
    assert again.facts == cold.facts
    assert (again.imported_by == server) == change.is_warm


def test_another_login_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Systemd makes a control group for each."""

    def traits(group: str) -> dict[str, str]:
        def opened(path: str, **how: Any) -> IO[str]:
            return io.StringIO(f"0::/user.slice/{group}\n") if path.endswith("cgroup") else open(path, **how)

        monkeypatch.setattr(fingerprint, "open", opened, raising=False)
        return fingerprint.process_traits()

    assert traits("session-1.scope") == traits("session-2.scope")
    assert traits("job-1.scope") != traits("job-2.scope")


def test_a_change_while_the_first_run_lasts_leaves_no_server(warm: Warm) -> None:
    """Its process has imported something that has been removed."""
    with warm.agent() as run:
        warm.start(run.talk, PRINT_IMPORTER)
        run.talk.wait_until(lambda: b"\n" in run.talk.output.get(("worker:0", 0), b""))
        (warm.site / "mine/sub.py").write_text("VALUE = 'two'\n")
    assert not warm.servers()


def test_what_must_not_be_forked_leaves_no_server(warm: Warm) -> None:
    starts_a_thread = "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"
    (warm.site / "mine/sub.py").write_text(starts_a_thread)
    with warm.agent() as run:
        warm.start(run.talk, "print('x')")
        assert run.talk.text("worker:0") == "x\n"
    assert not warm.servers()


# ---- servers: ends


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


# ---- servers: deaths


@pytest.mark.parametrize("victim", ["guard", "agent", "launcher", "server", "zygote"])
def test_nothing_of_a_run_is_left_whoever_is_killed(warm: Warm, victim: str) -> None:
    """As without a server, which itself lives on unless it is the one that is killed."""
    warm.run()
    server = warm.server()
    child = "import subprocess; subprocess.Popen(['sleep', '9999'], start_new_session=True); "
    with warm.agent() as run:
        warm.start(run.talk, child + PRINT_IMPORTER)
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
    assert warm.run().imported_by == server, "what took its place has the modules that it had imported"


def test_a_server_that_does_not_answer_keeps_no_link(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The death of an agent is noticed, which a copy of its end of the link would hide; the server can be ended."""
    warm.run()
    server = warm.server()
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(warm_client, "_PATIENCE", 1.0)  # seconds that are lost, as it is stopped
    assert [status["answers"] for status in warm_client.living_servers(str(warm.sockets)).values()] == [False]
    with warm.agent() as run:
        os.kill(run.talk.wait_for("greeted")["pid"], signal.SIGKILL)
        while run.link.socket.recv(1000):
            pass
    warm_client.stop_servers(str(warm.sockets))
    wait_gone(server)


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


# ---- unasked: the host finds in a program what it imports

SLOW = """
import os, sys
is_task = len(sys.argv) < 3
if not is_task:
    with open(os.environ["IMPORTED"], "a") as file:
        file.write("x")
"""
PRINT_WAY = "import jax, os\nprint(os.environ.get('TFLAUNCH_PRELOAD'), jax.__name__)\n"


class SlowPackage:
    """A directory with a program and an installed package, which counts its imports for other processes."""

    def __init__(self, directory: Path, agent: LocalAgent) -> None:
        self.directory = directory
        self.agent = agent
        self.install("")
        (directory / "lib/jax-1.0.dist-info").mkdir()
        self._tasks, self._program = 0, ""

    def install(self, more: str) -> None:
        write(self.directory, {"lib/jax.py": SLOW + more})

    def start(self, program: str, *words: str, **order: Any) -> str:
        if program != self._program:
            write(self.directory, {"prog.py": program})
        self._program = program
        self._tasks += 1
        task = f"worker:{self._tasks}"
        env: dict[str, Any] = {"PYTHONPATH": str(self.directory / "lib"), "IMPORTED": str(self.directory / "imported")}
        fields = {"preload": ["auto"], "workdir": str(self.directory), "unset": [], **order}
        self.agent.talk.start(task, sys.executable, *(words or ("prog.py",)), order=fields, **env)
        return task

    def run(self, program: str, *words: str, **order: Any) -> str:
        return self.agent.talk.text(self.start(program, *words, **order))

    def imports(self) -> int:
        path = self.directory / "imported"
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture
def installed(local: LocalAgent, tmp_path: Path) -> SlowPackage:
    local.talk.hello()
    return SlowPackage(tmp_path, local)


def test_unasked_what_a_program_imports_first_is_imported_once(installed: SlowPackage) -> None:
    """As a script, a module or a text; all are forked from one process."""
    for words in (("prog.py",), ("-m", "prog"), ("-c", PRINT_WAY), ("prog.py",)):
        assert installed.run(PRINT_WAY, *words) == "jax jax\n"
    assert installed.imports() == 1


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os\ndef f():\n    import jax\nprint(os.environ['TFLAUNCH_PRELOAD'])", "certainly imports none of"),
        (f"import os\nos.environ['OMP_NUM_THREADS'] = '1'\n{PRINT_WAY}", "certainly imports none of"),
        (f"import os\nos.environ['KERAS_BACKEND'] = str('jax')\n{PRINT_WAY}", "certainly imports none of"),
    ],
)
def test_unasked_nothing_is_imported_in_vain(installed: SlowPackage, program: str, reason: str) -> None:
    """The program is read before."""
    assert reason in installed.run(program)
    assert installed.imports() == 0
    assert not zygotes(installed.agent.pids()[1])


ABOUT_A_MODULE = """
import jax, sys, __main__
print(sys.argv, sys.path, __name__, __package__, __spec__, __file__, sorted(vars(__main__)))
print([name for name in sys.modules if name.startswith("mine")])
"""
INSTALLED: dict[str, tuple[dict[str, str], str, bool]] = {
    "a module": ({"mine.py": ABOUT_A_MODULE}, "mine", True),
    "a package": ({"mine/__init__.py": "import jax", "mine/__main__.py": ABOUT_A_MODULE}, "mine", True),
    "imports relatively": (
        {"mine/__init__.py": "", "mine/data.py": "import jax", "mine/run.py": f"from . import data\n{ABOUT_A_MODULE}"},
        "mine.run",
        True,
    ),
    "without __init__.py": ({"mine/run.py": ABOUT_A_MODULE}, "mine.run", True),
    "inside of one without": ({"mine/sub/run.py": ABOUT_A_MODULE}, "mine.sub.run", True),
    "hidden by the directory": ({"mine/run.py": ABOUT_A_MODULE, "../mine/__init__.py": ""}, "mine.run", False),
    "acts first": ({"mine/__init__.py": "print('first')", "mine/run.py": ABOUT_A_MODULE}, "mine.run", False),
    "missing": ({}, "mine.run", False),
    "is not a program": ({"mine/__init__.py": "import jax"}, "mine", False),
}


@pytest.mark.parametrize("name", INSTALLED)
def test_unasked_an_installed_program_is_found_by_its_interpreter(installed: SlowPackage, name: str) -> None:
    """It behaves as one that is started, and is, where anything is uncertain."""
    files, program, is_forked = INSTALLED[name]
    write(installed.directory / "lib", files)
    seen, talk = set(), installed.agent.talk
    for modules in ([], ["auto"], ["auto"]):
        task = installed.start("", "-m", program, "a b", preload=modules)
        text = re.sub("0x[0-9a-f]+", "0x", talk.text(task))
        seen.add((text, talk.wait_for("task_exited", task)["code"]))
        preload = talk.wait_for("task_started", task)["preload"]
        assert (preload == "jax") == (is_forked and modules == ["auto"]), preload
    assert len(seen) == 1
    wait_until(lambda: len(zygotes(installed.agent.pids()[1])) == is_forked)


def test_unasked_a_variable_that_a_program_sets_is_set_for_its_imports(installed: SlowPackage) -> None:
    """The program finds it as it was, and sets it itself; another program has an import of its own."""
    installed.install("MODE = os.environ.get('JAX_MODE')\n")
    for value in ("a", "b", "a"):
        program = f"import os\nbefore = os.environ.get('JAX_MODE')\nos.environ['JAX_MODE'] = {value!r}\n{PRINT_WAY}"
        program += "print(before, jax.MODE, os.environ['JAX_MODE'], end='')"
        assert installed.run("", "-c", program) == f"jax jax\nNone {value} {value}"
    assert installed.imports() == 2


def test_unasked_a_process_from_which_nothing_can_be_forked_ends(installed: SlowPackage) -> None:
    """It would keep its memory; later tasks are refused at once."""
    thread = "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"
    installed.install(f"if not is_task:\n    {thread}\n")
    for _ in range(2):
        assert "no: importing jax has started a thread" in installed.run(PRINT_WAY)
    wait_until(lambda: not zygotes(installed.agent.pids()[1]))
    assert installed.imports() == 1


@pytest.mark.parametrize("stopped", ["the process that imports", "the fork"])
def test_a_start_waits_for_no_process_that_is_stopped(installed: SlowPackage, stopped: str) -> None:
    """It is killed, and the task starts in the ordinary way."""
    stop = "os.kill(os.getpid(), 19)"
    if stopped == "the fork":
        stop = f"os.register_at_fork(after_in_child=lambda: {stop})"
    installed.install(f"if not is_task:\n    {stop}\n")
    tasks = [installed.start(PRINT_WAY) for _ in range(3)]
    for task in tasks:
        assert installed.agent.talk.text(task).startswith("no: ")
        wait_gone(installed.agent.talk.wait_for("task_started", task)["pid"])
    children = psutil.Process(installed.agent.pids()[1]).children()
    assert not [child for child in children if child.status() == psutil.STATUS_STOPPED]


def test_a_program_that_has_crashed_as_a_fork_is_not_forked_for_a_day(installed: SlowPackage) -> None:
    """Nor in later runs of this host, until it is edited; others are."""
    assert installed.run(PRINT_WAY, unforked="it crashed") == "no: it crashed jax\n"
    assert installed.run(PRINT_WAY) == "no: it crashed jax\n"
    assert installed.run(PRINT_WAY, "-c", PRINT_WAY) == "jax jax\n"
    assert installed.run(f"{PRINT_WAY}# edited") == "jax jax\n"

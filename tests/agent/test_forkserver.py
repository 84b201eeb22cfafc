"""Tasks forked from a process with imported modules: they cannot tell, and no event of theirs is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.preload_cases import PRELOAD_CASES, PreloadCase
from support.agent_client import Agent, LocalAgent, Talk
from support.processes import command_of
from support.signals import ENDING
from support.waiting import PATIENCE, wait_gone, wait_until

pytestmark = pytest.mark.agent

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
    talk: Talk, task: str, workdir: Path, *words: str, modules: list[str] = MODULES, attempt: int = 0, **env: Any
) -> None:
    """Start a task, preloaded or not."""
    order = {"preload": modules, "workdir": str(workdir), "unset": ["PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"]}
    talk.start(task, *words, attempt=attempt, order=order, **env)


def python(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line of a Python program."""
    return (sys.executable, *words)


def zygotes(agent: Agent) -> list[int]:
    """Return the processes that import modules."""
    return [child.pid for child in psutil.Process(agent.pids()[1]).children() if _imports(child)]


def _imports(process: psutil.Process) -> bool:
    return any("forkserver" in word for word in command_of(process))


def wait_buried(agent: Agent) -> None:
    """Wait until the agent has no children other than those that import modules."""
    process = psutil.Process(agent.pids()[1])
    wait_until(lambda: {child.pid for child in process.children()} <= set(zygotes(agent)))


def write(directory: Path, files: dict[str, str]) -> None:
    """Write files."""
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
        start(shared.talk, task, tmp_path, *python(case.argv), modules=modules, **env)
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
    "has a helper that does": (
        {"prog.py": "import sub.helper", "sub/__init__.py": "", "sub/helper.py": "x = dict(CUDA_CACHE_PATH=1)"},
        ("prog.py",),
        "helper.py mentions CUDA_CACHE_PATH",
    ),
    "has a module of that name": (OWN_JSON, ("prog.py",), "a module json of its own"),
    "is a module that was imported": ({}, ("-m", "json.decoder"), "json.decoder itself has been imported"),
    "has other options": ({"prog.py": ""}, ("-O", "prog.py"), "only `python script.py`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_in_doubt_a_program_is_started(shared: LocalAgent, tmp_path: Path, name: str) -> None:
    """As if preloading had not been requested; its environment and the supervisor get the reason."""
    files, words, reason = REFUSED[name]
    write(tmp_path, files)
    start(shared.talk, f"{name} plain", tmp_path, *python(words), modules=[])
    start(shared.talk, name, tmp_path, *python(words))
    assert shared.talk.text(name) == shared.talk.text(f"{name} plain")
    codes = [shared.talk.wait_for("task_exited", task)["code"] for task in (name, f"{name} plain")]
    assert codes[0] == codes[1]
    preload = shared.talk.wait_for("task_started", name)["preload"]
    assert preload.startswith("no: ")
    assert reason in preload


def test_only_an_interpreter_is_preloaded(local: LocalAgent, tmp_path: Path) -> None:
    """No script that is called python and starts one."""
    write(tmp_path, {"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'})
    (tmp_path / "python").chmod(0o755)
    start(local.talk, "shim", tmp_path, str(tmp_path / "python"), "-c", "print('x')")
    assert local.talk.text("shim") == "x\n"
    assert "is not the interpreter itself" in local.talk.wait_for("task_started", "shim")["preload"]
    assert not zygotes(local)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ValueError('not today')", "mine could not be imported: ValueError: not today"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
            "importing mine has started a thread, which a fork would lack; leave it out, or run without preload",
        ),
        ("import os; os.abort()", "has died"),
    ],
    ids=["fails", "starts a thread", "crashes"],
)
def test_what_cannot_be_imported_for_others_is_left_to_them(
    local: LocalAgent, tmp_path: Path, text: str, reason: str
) -> None:
    """The task itself reports any error."""
    write(tmp_path, {"lib/mine.py": text})
    for task in ("worker:0", "worker:1"):
        start(local.talk, task, tmp_path, *python(("-c", "print('x')")), modules=["mine"], PYTHONPATH="lib")
        assert local.talk.text(task) == "x\n"
        assert reason in local.talk.wait_for("task_started", task)["preload"]


def test_what_imports_write_is_in_every_task_s_output(local: LocalAgent, tmp_path: Path) -> None:
    """In the same order, before the program's own output, if the program imports them."""
    write(tmp_path, {"lib/mine.py": "import os, sys; print('one'); sys.stdout.flush(); os.write(2, b'two\\n')"})
    for task, modules in (("worker:0", ["mine"]), ("worker:1", ["mine"]), ("worker:2", [])):
        start(local.talk, task, tmp_path, *python(("-c", "import mine; print('x')")), modules=modules, PYTHONPATH="lib")
        assert local.talk.text(task) == "one\ntwo\nx\n"
    start(local.talk, "none", tmp_path, *python(("-c", "print('x')")), modules=["mine"], PYTHONPATH="lib")
    assert local.talk.text("none") == "x\n", "it does not import them"


@pytest.mark.parametrize("decision", ["set_threshold(0, 5, 5)", "disable()"])
def test_what_imports_decide_about_garbage_holds(local: LocalAgent, tmp_path: Path, decision: str) -> None:
    """For a fork as for a program that does the imports itself."""
    write(tmp_path, {"lib/mine.py": f"import gc; gc.{decision}"})
    text = "import gc, mine; print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), end='|'); gc.set_debug(0)"
    for task, modules in (("forked", ["mine"]), ("started", [])):
        start(local.talk, task, tmp_path, *python(("-c", text)), modules=modules, PYTHONPATH="lib")
    seen = [local.talk.text(task).partition("|")[0] for task in ("forked", "started")]
    assert seen[0] == seen[1]
    assert local.talk.wait_for("task_started", "forked")["preload"] == "mine"


def test_it_works_over_every_link(agent: Agent, tmp_path: Path) -> None:
    """Even if the agent's code is an archive and the program has a package of our name."""
    write(tmp_path, {"prog.py": "import tflaunch_worker; print(tflaunch_worker.mine)"})
    write(tmp_path, {"tflaunch_worker/__init__.py": "mine = 'mine'"})
    start(agent.talk, "worker:0", tmp_path, *python(("prog.py",)))
    assert agent.talk.text("worker:0") == "mine\n"
    assert agent.talk.wait_for("task_started", "worker:0")["preload"] == "json,decimal"


def test_a_zygote_serves_all_tasks_of_its_environment_and_stays_warm(local: LocalAgent, tmp_path: Path) -> None:
    """Another environment, workdir or interpreter gets its own zygote; TF_CONFIG and GPUs make no difference."""
    write(tmp_path, {"prog.py": PRINT_PID})
    for number in range(3):
        task, config, device = f"worker:{number}", f"{number}" * 300_000, f"{number}"
        start(local.talk, task, tmp_path, *python(("prog.py",)), TF_CONFIG=config, CUDA_VISIBLE_DEVICES=device)
        local.talk.wait_for("task_started", f"worker:{number}")
    (zygote,) = zygotes(local)
    start(local.talk, "ps:0", tmp_path, *python(("prog.py",)), TF_NUM_INTRAOP_THREADS="1")
    local.talk.wait_for("task_started", "ps:0")
    assert len(zygotes(local)) == 2
    local.talk.say("stop_task", task="worker:1", attempt=0, grace=5)
    assert local.talk.wait_for("task_exited", "worker:1")["signal"] == signal.SIGTERM
    local.talk.wait_for("task_gone", "worker:1")
    start(local.talk, "worker:1", tmp_path, *python(("prog.py",)), attempt=1)
    assert local.talk.wait_for("task_started", "worker:1", 1)["preload"] == "json,decimal"
    assert zygote in zygotes(local)
    assert len(zygotes(local)) == 2
    pids = [m["pid"] for m in local.talk.heard if m["kind"] == "task_started"]
    parents = {psutil.Process(pid).ppid() for pid in pids if psutil.pid_exists(pid)}
    assert parents == {local.pids()[1]}, "tasks are the agent's own children"


def test_forks_have_random_numbers_of_their_own(local: LocalAgent, tmp_path: Path) -> None:
    """As processes that are started have."""
    program = "import os, random, uuid, tempfile; print(random.random(), uuid.uuid4(), tempfile.mktemp())"
    for number in range(2):
        start(local.talk, str(number), tmp_path, *python(("-c", program)), modules=["random", "uuid", "tempfile"])
    texts = [local.talk.text(str(number)).split() for number in range(2)]
    assert not set(texts[0]) & set(texts[1])


def test_what_forks_share_is_measured(local: LocalAgent, tmp_path: Path) -> None:
    """It is part of their memory; it is not measured for tasks that were started."""
    write(tmp_path, {"lib/large.py": "data = bytearray(b'x' * 50_000_000)", "prog.py": PRINT_PID})
    for task, modules in (("worker:0", ["large"]), ("worker:1", ["large"]), ("worker:2", [])):
        start(local.talk, task, tmp_path, *python(("prog.py",)), modules=modules, PYTHONPATH="lib")
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
    return wait_until(lambda: zygotes(agent))[0]  # it may not even have called exec


def test_a_task_that_is_stopped_before_it_is_forked_never_runs(local: LocalAgent, tmp_path: Path) -> None:
    """It ends at once, with the signal it was to get; nothing of its program runs later."""
    pipe, env = slow(tmp_path)
    program = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"
    for number in range(2):
        start(local.talk, f"worker:{number}", tmp_path, *python(("-c", program)), modules=["slow"], **env)
    importing(local)
    local.talk.say("signal_task", task="worker:0", attempt=0, signal=9)  # there is no process to signal
    local.talk.say("stop_task", task="worker:0", attempt=0, grace=5)
    assert local.talk.wait_for("task_exited", "worker:0")["signal"] == signal.SIGTERM
    local.talk.wait_for("task_gone", "worker:0")
    pipe.write_text("go")
    assert local.talk.wait_for("task_exited", "worker:1")["code"] == 0
    assert (tmp_path / "ran").read_text() == "x"
    start(local.talk, "worker:0", tmp_path, *python(("-c", program)), modules=["slow"], attempt=1, **env)
    assert local.talk.wait_for("task_exited", "worker:0", 1)["code"] == 0
    wait_buried(local)
    assert len(zygotes(local)) == 1


def test_a_run_that_ends_while_modules_are_imported_leaves_nothing(local: LocalAgent, tmp_path: Path) -> None:
    """The zygote ends with the agent, whatever it is doing."""
    _, env = slow(tmp_path)
    start(local.talk, "worker:0", tmp_path, *python(("-c", "print('x')")), modules=["slow"], **env)
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
        start(local.talk, f"worker:{number}", tmp_path, *python(("-c", "print('x')")), modules=["slow"], **env)
    os.kill(importing(local), signal.SIGKILL)
    for number in range(3):
        assert local.talk.text(f"worker:{number}") == "x\n"
        assert local.talk.wait_for("task_started", f"worker:{number}")["preload"].startswith("no: ")
    start(local.talk, "worker:3", tmp_path, *python(("-c", "print('x')")), modules=["slow"], **env)
    assert local.talk.text("worker:3") == "x\n"
    assert not zygotes(local)
    assert pipe.exists()


def test_a_zygote_that_is_killed_later_takes_no_task_with_it(local: LocalAgent, tmp_path: Path) -> None:
    """Whatever signal it gets: the next task is forked from a new one."""
    pids = []
    for index, number in enumerate((signal.SIGKILL, *ENDING, signal.SIGHUP)):
        start(local.talk, f"ps:{index}", tmp_path, *python(("-c", PRINT_PID)))
        pids.append(local.talk.wait_for("task_started", f"ps:{index}")["pid"])
        (zygote,) = zygotes(local)
        os.kill(zygote, number)
        wait_gone(zygote)
        start(local.talk, f"worker:{index}", tmp_path, *python(("-c", "print('x')")))
        assert local.talk.text(f"worker:{index}") == "x\n"
    start(local.talk, "chief:0", tmp_path, *python(("-c", "print('x')")))
    assert local.talk.wait_for("task_started", "chief:0")["preload"] == "json,decimal"
    assert all(map(psutil.pid_exists, pids))


def test_many_starts_and_stops_at_once(local: LocalAgent, tmp_path: Path) -> None:
    """Every task ends exactly once, no matter when it is stopped."""
    names = [f"worker:{number}" for number in range(16)]
    for name in names:
        start(local.talk, name, tmp_path, *python(("-c", PRINT_PID)))
    for number, name in enumerate(names):
        local.talk.say("stop_task", task=name, attempt=0, grace=(0, 5)[number % 2])
    for name in names:
        local.talk.wait_for("task_gone", name)
    for name in names:
        kinds = [m["kind"] for m in local.talk.heard if m.get("task") == name and m["kind"].startswith("task_")]
        assert kinds in (["task_exited", "task_gone"], ["task_started", "task_exited", "task_gone"])
    start(local.talk, "last", tmp_path, *python(("-c", "print('x')")))
    assert local.talk.text("last") == "x\n"
    wait_buried(local)


def test_an_interpreter_is_found_as_a_shell_finds_it(local: LocalAgent, tmp_path: Path) -> None:
    """On the task's own PATH, and sys.executable says so."""
    found = shutil.which("python3", path=str(Path(sys.executable).parent))
    program = "import sys; print(sys.executable, sys.prefix, sys.orig_argv[0])"
    for task, modules in (("worker:0", []), ("worker:1", MODULES)):
        path = f"/nowhere:{Path(sys.executable).parent}:{os.environ['PATH']}"
        start(local.talk, task, tmp_path, "python3", "-c", program, modules=modules, PATH=path)
    assert local.talk.text("worker:0") == local.talk.text("worker:1")
    assert local.talk.text("worker:1").split()[0] == found
    assert local.talk.wait_for("task_started", "worker:1")["preload"] == "json,decimal"

"""Real agents tell where tasks are, and what they wait for."""

import glob
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from support.agent_client import Agent, LocalAgent
from support.processes import wait_until_waiting
from support.waiting import PATIENCE, wait_until
from tflaunch.features.hang.evidence import Evidence
from tflaunch.records import as_json, read_record
from tflaunch_worker.features import python_runtime, python_stacks
from tflaunch_worker.features.python_runtime import UnreadableError

PROGRAM = """
import threading, time
def inner(number):
    pass
    time.sleep(
        3600
    )
class Späte:
    def sleep(self):
        for number in range(3):
            with open("/dev/null"):
                if number == 2:
                    inner(number)
def generate():
    yield Späte().sleep()
def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()
thread = threading.Thread(target=lock, daemon=True)
thread.start()
print("up", flush=True)
sorted([1], key=lambda _: list(generate()))
"""
MAIN = [5, 13, 15, 23, 23]


def pythons() -> list[str]:
    """Return the Pythons of this machine whose stacks can be read, and this one."""
    root = os.path.expanduser(os.environ.get("PYENV_ROOT", "~/.pyenv"))
    others = glob.glob(f"{root}/versions/3.*/bin/python3.*")  # none, also where another user's may not be read
    return [sys.executable, *sorted(path for path in others if path.rpartition("python")[2] in KNOWN)]


KNOWN = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")


@contextmanager
def running(program: str, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """Run a program that says "up", until the end of the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen([python, "-c", program], stdin=pipe, stdout=pipe, text=True) as started:
        assert started.stdout.readline() == "up\n"
        try:
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize("python", pythons())
def test_the_stacks_of_every_python_can_be_read(python: str) -> None:
    """Files, lines and functions of all threads, whatever the interpreter does at the moment."""
    with running(PROGRAM, python) as sleeper:

        def are_there() -> bool:
            found = [[frame.line for frame in thread.frames] for thread in python_stacks.read_threads(sleeper.pid)]
            return len(found) == 2 and found[0] == MAIN and found[1][:1] == [19]

        wait_until(are_there, sleeper)  # it may not have come that far yet
        main, locked = python_stacks.read_threads(sleeper.pid)
    assert {frame.file for frame in main.frames} == {"<string>"}
    assert [frame.function.rpartition(".")[2] for frame in main.frames] == [
        "inner", "sleep", "generate", "<lambda>", "<module>",
    ]  # fmt: skip
    assert main.frames[1].function in ("sleep", "Späte.sleep")
    assert locked.frames[0].function == "lock"
    assert main.id in (sleeper.pid, 0)


@pytest.mark.parametrize("python", pythons())
def test_code_that_replaces_other_code_at_its_address_is_read_again(python: str) -> None:
    """A reader keeps the code objects that it has read, and Python frees and reuses their memory."""
    program = (
        "import sys\nline = sys.stdin.readline()\nwhile line:\n"
        "    source = 'print(1, flush=True)\\nline = sys.stdin.readline()'\n"
        "    exec(compile(source, line.strip(), 'exec'))"
    )
    argv = [python, "-c", program]
    with subprocess.Popen(argv, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        process = None
        for number in range(50):
            started.stdin.write(f"file {number}\n")
            assert started.stdout.readline() == "1\n"
            wait_until_waiting(started.pid, "pipe_read")  # in the next line of that file
            process = process or python_stacks.PythonProcess(started.pid)
            (main,) = process.read_threads()
            assert f"file {number}" in [frame.file for frame in main.frames]
        started.stdin.close()
        process.close()


BEGINS_THREADS = """
import threading
print("up", flush=True)
while True:
    threads = [threading.Thread(target=threading.get_ident) for _ in range(40)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""
DEEP = """
import sys
sys.setrecursionlimit(10000)
def deep(number):
    return deep(number - 1) if number else [len(list(range(5))) for _ in range(3)]
print("up", flush=True)
while True:
    deep(150)
    [deep(number) for number in range(37)]
"""


@pytest.mark.parametrize(("program", "times"), [(BEGINS_THREADS, 1500), (DEEP, 200)], ids=["threads", "deep"])
def test_what_changes_all_the_time_is_read(program: str, times: int) -> None:
    """Threads that begin and end; a stack as of a program that traces functions.

    A single try fails in every second reading of the latter; on a busy machine, all of them do now and then.
    """
    with running(program) as started:
        read = [python_stacks.read_threads(started.pid) for _ in range(times)]
    assert program == BEGINS_THREADS or sum(bool(threads) for threads in read) > 0.75 * times


MANY_THREADS = """
import threading
for _ in range(200):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("up", flush=True)
input()
"""


def test_the_main_thread_of_many_is_read() -> None:
    """With the newest of the others; the others are left out."""
    with running(MANY_THREADS) as started:
        main, *others = python_stacks.read_threads(started.pid)
        assert [frame.function for frame in main.frames] == ["<module>"]
        assert len(others) == python_stacks.MOST_THREADS - 1


@pytest.mark.parametrize("pid", [1 << 22, 2], ids=["gone", "of the kernel"])
def test_what_is_not_a_python_is_refused_with_a_reason(pid: int) -> None:
    """And so is a process that does not exist."""
    with pytest.raises(UnreadableError, match=r"cannot be read|does not run Python"):
        python_stacks.read_threads(pid)


def test_a_file_that_only_looks_like_a_python_is_not_believed(tmp_path: Path) -> None:
    """An ELF header whose tables lie outside."""
    path = tmp_path / "python3.11"
    path.write_bytes(struct.pack("<4sBB10x16xQQ6x4H2x", b"\x7fELF", 2, 1, 1 << 62, 1 << 62, 56, 9, 64, 9))
    assert python_runtime.find_symbol(str(path), 0) is None


def evidence(agent: Agent) -> dict[str, Evidence]:
    call = agent.talk.call("gather_evidence")["call"]
    parts = [message for message in agent.talk.heard if (message["kind"], message.get("call")) == ("told", call)]
    return {each.task: each for each in (read_record(Evidence, message) for message in parts)}


def test_an_agent_tells_where_its_tasks_are(agent: Agent) -> None:
    """A Python below a shell, one that computes, one that is stopped, one that reads, and a program without Python."""
    reads = "import os, socket\nends = os.pipe()\nheld = socket.create_server(('', 0))\nprint('up', flush=True)\n"
    programs = {
        "worker:0": ["sh", "-c", f"{sys.executable} -c '{PROGRAM}'; true"],
        "worker:1": [sys.executable, "-c", "print('up', flush=True)\nwhile True: pass"],
        "worker:2": [sys.executable, "-c", f"{reads}os.read(ends[0], 1)"],
        "worker:3": [sys.executable, "-c", "import os, signal\nprint('up', flush=True)\nos.kill(os.getpid(), 19)"],
        "worker:4": ["sh", "-c", "echo up; exec sleep 3600"],
    }
    for task, argv in programs.items():
        agent.talk.start(task, *argv)
    agent.talk.wait_until(lambda: all(b"up" in agent.talk.output.get((task, 0), b"") for task in programs))
    pids = {task: agent.talk.wait_for("task_started", task)["pid"] for task in programs}
    (python_of_shell,) = psutil.Process(pids["worker:0"]).children()
    wait_until_waiting(python_of_shell.pid)
    wait_until_waiting(pids["worker:2"], "pipe_read")
    wait_until_waiting(pids["worker:3"], "", state="T")
    wait_until_waiting(pids["worker:4"])
    # On a busy machine it may have got no core between two samples.
    found = wait_until(lambda: (about := evidence(agent))["worker:1"].processes[0].cpu and about)
    assert isinstance(found, dict)
    shell, python = found["worker:0"].processes
    assert shell.unread == "it does not run Python"
    assert [frame.line for frame in python.threads[0].frames] == MAIN
    assert python.threads[0].wchan == "hrtimer_nanosleep"
    assert not python.threads[0].has_moved
    (busy,) = found["worker:1"].processes
    assert 0 < busy.cpu < 1.5
    assert busy.threads[0].has_moved
    (reader,) = found["worker:2"].processes
    assert reader.threads[0].target.startswith("pipe:")
    assert [socket.state for socket in reader.sockets] == ["listening"]
    (stopped,) = found["worker:3"].processes
    assert (stopped.state, stopped.threads[0].frames[0].line) == ("T", 3)
    (other,) = found["worker:4"].processes
    assert (other.name, other.unread) == ("sleep", "it does not run Python")
    assert all(read_record(Evidence, as_json(each)) == each for each in found.values())
    assert all(each.silence is not None and each.silence >= 2 for each in found.values())
    assert not any(message["kind"] == "task_exited" for message in agent.talk.heard)
    os.kill(pids["worker:3"], signal.SIGCONT)


READS_IN_C = """
import ctypes, os, threading
c = ctypes.CDLL(None)
os.mkfifo("fifo")
c.fopen.restype, c.pthread_create.argtypes = ctypes.c_void_p, [ctypes.c_void_p] * 4
number = ctypes.c_ulong()
c.pthread_create(ctypes.byref(number), None, ctypes.cast(c.fgetc, ctypes.c_void_p), c.fopen(b"fifo", b"r+"))
print("up", flush=True)
threading.Event().wait()
"""


def test_a_thread_of_c_that_waits_for_a_file_is_told(agent: Agent, tmp_path: Path) -> None:
    """TensorFlow reads files in such threads; those that wait for work are left out."""
    agent.talk.start("worker:0", "sh", "-c", f"cd {tmp_path} && exec {sys.executable} -c '{READS_IN_C}'")
    agent.talk.wait_until(lambda: b"up" in agent.talk.output.get(("worker:0", 0), b""))
    wait_until(lambda: len(evidence(agent)["worker:0"].processes[0].threads) == 2)
    main, reader = evidence(agent)["worker:0"].processes[0].threads
    assert [frame.function for frame in main.frames][-1] == "<module>"
    assert "pipe_read" in reader.wchan
    assert (reader.target, reader.frames) == (str(tmp_path / "fifo"), ())


@pytest.mark.parametrize(("call", "wchan"), [("flock", "lock_inode"), ("lockf", "setlk")])
def test_the_process_that_has_locked_a_file_is_named(agent: Agent, tmp_path: Path, call: str, wchan: str) -> None:
    """Others wait for it in the kernel, which knows it."""
    locks = f"import fcntl, time\nf = open({str(tmp_path / 'cache.lock')!r}, 'w')\nfcntl.{call}(f, fcntl.LOCK_EX)\n"
    agent.talk.start("worker:0", sys.executable, "-c", f"{locks}print('up', flush=True)\ntime.sleep(3600)")
    agent.talk.wait_until(lambda: b"up" in agent.talk.output.get(("worker:0", 0), b""))
    agent.talk.start("worker:1", sys.executable, "-c", locks)
    holder, waiter = (agent.talk.wait_for("task_started", f"worker:{number}")["pid"] for number in range(2))
    wait_until_waiting(waiter, wchan)
    target = evidence(agent)["worker:1"].processes[0].threads[0].target
    assert re.fullmatch(rf".*/cache\.lock, which python\S* \(pid {holder}\) has locked", target)


HANGS = """
import time

def wait_for_the_others():
    print("waiting", flush=True)
    time.sleep(9999)

wait_for_the_others()
"""


def test_a_task_that_hangs_writes_its_stacks_before_it_ends(local: LocalAgent, tmp_path: Path) -> None:
    """Even if the task is stopped."""
    program = tmp_path / "hangs.py"
    program.write_text(HANGS)
    tasks = ("worker:0", "worker:1")
    for task in tasks:
        local.talk.start(task, sys.executable, str(program), PYTHONFAULTHANDLER="1")
    local.talk.wait_until(lambda: all(b"waiting" in local.talk.output.get((task, 0), b"") for task in tasks))
    os.kill(local.talk.wait_for("task_started", "worker:1")["pid"], signal.SIGSTOP)
    for task in tasks:
        local.talk.say("stop_task", task=task, attempt=0, grace=PATIENCE, with_stacks=True)
    for task in tasks:
        assert local.talk.wait_for("task_exited", task)["signal"] == signal.SIGABRT
        assert "in wait_for_the_others" in local.talk.text(task)

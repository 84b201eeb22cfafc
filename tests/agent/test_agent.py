"""The agent: real processes, driven over its own protocol, on every kind of link."""

import os
import random
import select
import signal
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from support.agent_client import Agent, Talk
from support.waiting import PATIENCE, wait_gone, wait_until
from tflaunch_worker import LOCK_NAME, SOCKET_NAME, TASKS_NAME, wire

PRINT_PIDS = "sleep 9999 & echo $! $$; wait"


def pids_of(talk: Talk, task: str) -> list[int]:
    """Return the numbers on the first line that a task wrote."""
    talk.wait_until(lambda: b"\n" in talk.output.get((task, 0), b""))
    return [int(word) for word in talk.output[(task, 0)].split(b"\n")[0].split()]


def test_a_task_has_a_clean_start(agent: Agent) -> None:
    """Own session, default signals, no input, own scratch directory; the agent's descriptors are closed.

    Guard and agent are listed under the name of the run, wherever they run.
    """
    for pid in agent.pids():
        assert psutil.Process(pid).cmdline()[-1] == "tflaunch-agent:test"
    script = (
        "import os,signal,sys;"
        "print(os.getsid(0)==os.getpid(), sys.stdin.read()=='', sorted(os.listdir('/proc/self/fd'))[:4],"
        "[s for s in signal.valid_signals() if s not in (9,19,2,13,25) and signal.getsignal(s)!=signal.SIG_DFL],"
        "signal.getsignal(2)==signal.default_int_handler, len(signal.pthread_sigmask(0,[])),"
        "os.path.isdir(os.environ['TFLAUNCH_TASK_DIR']), 'http_proxy' in os.environ)"
    )
    agent.talk.start("worker:0", "python3", "-c", script)
    assert agent.talk.text("worker:0") == "True True ['0', '1', '2', '3'] [] True 0 True False\n"


def test_a_start_says_what_its_host_has(agent: Agent) -> None:
    """The TensorFlow that its Python would import, if any, found without starting Python, and the GPUs."""
    agent.talk.start("worker:0", sys.executable, "-c", "")
    agent.talk.start("worker:1", "true")
    versions = [agent.talk.wait_for("task_started", f"worker:{number}")["tensorflow"] for number in (0, 1)]
    installed = [".".join(found.version.split(".")[:2]) for found in metadata.distributions(name="tensorflow")]
    assert versions == [*(installed[:1] or [""]), ""]
    nvidia = Path("/proc/driver/nvidia/gpus")
    count = len(list(nvidia.iterdir())) if nvidia.exists() else 0
    assert agent.talk.wait_for("greeted")["gpus"] == count


RAISES = """import sys
print("Epoch 3/9")
print("7/10 [==>..] - loss: 0.5")
open(f"{sys.argv[1]}/ckpt-30.index", "w").close()
int("x")
"""


def test_an_exit_says_what_failed_and_how_far_it_came(agent: Agent, tmp_path: Path) -> None:
    """From its last output, complete by then, and from a checkpoint in a directory named in its command."""
    program = tmp_path / "train.py"
    program.write_text(RAISES)
    for number in range(20):
        agent.talk.start(f"worker:{number}", "python3", str(program), str(tmp_path))
    for number in range(20):
        exited = agent.talk.wait_for("task_exited", f"worker:{number}")
        assert (exited["failure"], exited["epoch"], exited["step"]) == ("ValueError at train.py:5", 3, 27)
        assert agent.talk.wait_for("task_gone", f"worker:{number}")["checkpoint"] == 30


def test_progress_that_was_reported_last_is_known_at_the_exit(agent: Agent) -> None:
    """Even if written to the pipe just before the exit; it takes precedence over Keras output lines."""
    report = '{"step": 5, "epoch": 2, "metrics": {"loss": 0.5}}'
    script = f"""echo "Epoch 9/9"; echo '{report}' > "$TFLAUNCH_PROGRESS"; exit 1"""
    for number in range(20):
        agent.talk.start(f"worker:{number}", "sh", "-c", script)
    for number in range(20):
        exited = agent.talk.wait_for("task_exited", f"worker:{number}")
        assert (exited["step"], exited["epoch"], exited["metrics"]) == (5, 2, {"loss": 0.5})


def test_exits_are_told_in_the_order_in_which_they_happened(agent: Agent) -> None:
    """Even if the agent was not running at the time: the kernel kept the order."""
    tasks = [f"worker:{number}" for number in range(8)]
    for task in tasks:
        agent.talk.start(task, "sleep", "9999")
    pids = {task: agent.talk.wait_for("task_started", task)["pid"] for task in tasks}
    random.Random(1).shuffle(tasks)
    _, agent_pid = agent.pids()
    os.kill(agent_pid, signal.SIGSTOP)
    for task in tasks:
        descriptor = os.pidfd_open(pids[task])
        os.kill(pids[task], signal.SIGKILL)
        select.select([descriptor], [], [])
        os.close(descriptor)
    os.kill(agent_pid, signal.SIGCONT)
    agent.talk.wait_until(lambda: sum(m["kind"] == "task_exited" for m in agent.talk.heard) == len(tasks))
    assert [m["task"] for m in agent.talk.heard if m["kind"] == "task_exited"] == tasks


@pytest.mark.parametrize(("is_child", "grace"), [(False, 0), (True, 0.1)], ids=["leader", "below a shell"])
def test_a_task_that_is_suspended_before_its_stop_is_told_apart(agent: Agent, is_child: bool, grace: float) -> None:
    """Its peers fail first, as they get no answer; TERM and KILL end its state."""
    agent.talk.start("worker:0", "sh", "-c", PRINT_PIDS)
    child, leader = pids_of(agent.talk, "worker:0")
    agent.talk.start("worker:1", "sleep", "9999")
    agent.talk.wait_for("task_started", "worker:1")
    stopped = child if is_child else leader
    wait_until(lambda: psutil.Process(child).name() == "sleep")  # no longer the shell that was forked
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(stopped).status() == psutil.STATUS_STOPPED)
    for task in ("worker:1", "worker:0"):
        agent.talk.say("stop_task", task=task, attempt=0, grace=grace)
    command = "sleep 9999" if is_child else f"sh -c {PRINT_PIDS}"
    told = agent.talk.wait_for("task_exited", "worker:0")
    assert told["suspended"] == f"state T, pid {stopped}: {command}"
    assert not agent.talk.wait_for("task_exited", "worker:1")["suspended"]


SAVES = """
import os, signal, time
def save(*_):
    while not os.path.exists(os.environ["GO"]): time.sleep(0.02)
    os.write(1, b"saved")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
os.write(1, b"%d\\n" % os.getppid())
while True: time.sleep(0.1)  # a single long one would still begin if the signal arrived just before it
"""


def test_children_keep_the_grace_when_their_leader_dies_at_once(agent: Agent, tmp_path: Path) -> None:
    """`sh -c 'python train.py; …'`: TERM kills the shell, but the program under it may still save."""
    (tmp_path / "saves.py").write_text(SAVES)
    go = tmp_path / "go"
    agent.talk.start("worker:0", "sh", "-c", f"python3 {tmp_path}/saves.py; true", GO=str(go))
    (leader,) = pids_of(agent.talk, "worker:0")
    agent.talk.say("stop_task", task="worker:0", attempt=0, grace=PATIENCE)
    wait_gone(leader)
    go.touch()
    assert "saved" in agent.talk.text("worker:0")
    agent.talk.wait_for("task_gone")


@pytest.mark.parametrize(
    ("script", "goes_to_background", "names"),
    [
        ("sleep 9999 &", True, "(sleep 9999)"),
        ("setsid sh -c 'sleep 9999; true' &", True, "(sh -c sleep 9999; true)"),
        ("sleep 0.5 &", False, ""),
        ("echo '{\"step\": 7}' > $TFLAUNCH_PROGRESS; sleep 9999 & sleep 0.3", False, "(sleep 9999)"),
        ("(exec -a 'python -c from multiprocessing.resource_tracker import main' sleep 9999) &", False, ""),
    ],
)
def test_a_program_in_the_background_is_told_from_helpers(
    agent: Agent, script: str, goes_to_background: bool, names: str
) -> None:
    """The first process ends with 0 while others live: did it only start the program, or has it trained?

    Either way they end with it, also a daemon that moved to a session of its own.
    """
    agent.talk.start("worker:0", "bash", "-c", script)
    ended = agent.talk.wait_for("task_exited")
    assert ended["code"] == 0
    assert ended.get("went_to_background", False) is goes_to_background
    assert names in ended["evidence"]
    assert bool(ended["evidence"]) is bool(names)
    agent.talk.wait_for("task_gone")
    assert not psutil.Process(agent.pids()[1]).children(recursive=True)


def test_output_waits_for_its_reader_and_never_for_the_task(agent: Agent) -> None:
    """10 MB go to the spool until acknowledged; the window bounds what is in flight; nothing is lost."""
    agent.talk.start("worker:0", "sh", "-c", "head -c 10000000 /dev/zero | tr '\\0' x")
    agent.talk.wait_for("task_gone")
    agent.talk.wait_until(lambda: len(agent.talk.output.get(("worker:0", 0), b"")) >= 1 << 20)
    received = 0
    while received < 10_000_000:
        agent.talk.acknowledge(("worker:0", 0, received, False))
        agent.talk.wait_until(lambda: len(agent.talk.output[("worker:0", 0)]) > received)  # noqa: B023
        assert len(agent.talk.output[("worker:0", 0)]) <= received + (1 << 20) + (1 << 18)
        received = len(agent.talk.output[("worker:0", 0)])
    assert agent.talk.text("worker:0") == "x" * 10_000_000


def test_a_chatty_task_does_not_delay_news_of_another(agent: Agent) -> None:
    """Exits overtake output that awaits acknowledgement."""
    agent.talk.start("worker:0", "yes")
    agent.talk.wait_until(lambda: len(agent.talk.output.get(("worker:0", 0), b"")) >= 1 << 20)
    agent.talk.start("worker:1", "sh", "-c", "exit 3")
    assert agent.talk.wait_for("task_exited", "worker:1")["code"] == 3


def test_a_new_link_goes_on_where_the_old_one_broke(new_agent: Agent) -> None:
    """Within the lease: the tasks never notice, unseen events are resent, output resumes at its offset."""
    new_agent.talk.hello(lease=PATIENCE)
    new_agent.talk.start("worker:0", "sh", "-c", "echo before; read x < $FIFO; echo after", FIFO=str(fifo(new_agent)))
    new_agent.talk.wait_until(lambda: new_agent.talk.output.get(("worker:0", 0)) == b"before\n")
    started = new_agent.talk.wait_for("task_started")
    new_agent.talk.acknowledge(("worker:0", 0, len("before\n"), False), seen=started["seq"])
    new_agent.talk.keep_alive()
    new_agent.talk.wait_for("alive")  # a link that is given up may lose its last messages
    new_agent.link.close()
    (new_agent.directory / "fifo").write_text("go\n")
    again = new_agent.reconnect()
    again.output[("worker:0", 0)] = b"before\n"
    again.hello(lease=PATIENCE, seen=started["seq"])
    assert again.wait_for("task_exited")["code"] == 0
    assert again.text("worker:0") == "before\nafter\n"
    assert not [m for m in again.heard if m["kind"] == "task_started"], "seen events are not told twice"
    again.say("leave", grace=0)
    again.acknowledge(("worker:0", 0, len("before\nafter\n"), True))
    wait_gone(new_agent.guard.pid)  # before the link is given up and this output is lost with it


def fifo(agent: Agent) -> Path:
    """Make a named pipe that a task can wait on."""
    path = agent.directory / "fifo"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(("lease", "grace"), [(0, 10**6), (1, 0.2)])
def test_without_a_supervisor_everything_ends_with_the_lease(new_agent: Agent, lease: int, grace: float) -> None:
    """Without one at once, as no supervisor will return; or else the stop ladder runs on the host."""
    new_agent.talk.hello(lease=lease and PATIENCE, grace=grace)
    new_agent.talk.start("worker:0", "sh", "-c", "trap '' TERM; " + PRINT_PIDS)
    pids = pids_of(new_agent.talk, "worker:0")
    if lease:
        again = new_agent.reconnect()
        again.hello(lease=lease, grace=grace)  # not before, as a busy machine may take a second for the start
        again.connection.close()
    new_agent.link.close()
    for pid in (*pids, *new_agent.pids()):
        wait_gone(pid)


def test_a_drained_agent_starts_no_further_task(new_agent: Agent) -> None:
    """The order may have been sent before the drain was heard of."""
    new_agent.talk.hello(grace=PATIENCE)
    new_agent.talk.start("worker:0", "sh", "-c", "trap '' TERM; " + PRINT_PIDS)
    leader = pids_of(new_agent.talk, "worker:0")[1]
    os.kill(new_agent.pids()[1], signal.SIGTERM)
    new_agent.talk.wait_for("host_leaving")
    new_agent.talk.start("worker:1", "sleep", "9999")
    exited = new_agent.talk.wait_for("task_exited", "worker:1")
    assert (exited["signal"], exited["was_told"]) == (signal.SIGTERM, True)
    new_agent.talk.say("stop_task", task="worker:0", attempt=0, grace=0)
    new_agent.talk.wait_for("task_gone", "worker:0")
    wait_gone(leader)


@pytest.mark.parametrize(
    ("is_in_tree", "stop"), [(True, "TERM"), (True, "INT"), (False, "TERM")], ids=["slurmstepd", "int", "another"]
)
def test_a_task_gets_its_stop_signal_once(new_agent: Agent, tmp_path: Path, is_in_tree: bool, stop: str) -> None:
    """Slurm's daemon may send it to all that descend from it; others to the agent's processes only.

    A task that has begun just now is sent one in any case, so it waits before it says that it is there.
    """
    new_agent.talk.hello(grace=2)  # time to hear it twice
    script = f"trap '' TERM; trap 'echo heard' {stop}; sleep 0.4; echo $$; while :; do sleep 0.05; done"
    new_agent.talk.start("worker:0", "sh", "-c", script, order={"stop_signal": signal.Signals[f"SIG{stop}"]})
    task = pids_of(new_agent.talk, "worker:0")[0]
    sender = tmp_path / ("slurmstepd" if is_in_tree else "another")
    sender.symlink_to("/bin/sh")
    guard_pid, agent_pid = new_agent.pids()
    told = [*([task] if is_in_tree else []), agent_pid, guard_pid]
    script = f"kill -TERM {' '.join(map(str, told))}; read end"
    with subprocess.Popen([sender, "-c", script], stdin=subprocess.PIPE):  # it lives until its name has been read
        exited = new_agent.talk.wait_for("task_exited", "worker:0")
    assert (exited["signal"], exited["was_told"]) == (signal.SIGKILL, True)
    assert new_agent.talk.text("worker:0").count("heard") == 1


DEEP = """
import os, time
os.chdir(os.environ["TFLAUNCH_TASK_DIR"])
for _ in range(1200):
    os.mkdir("directory")
    os.chdir("directory")
print("deep", flush=True)
time.sleep(9999)
"""


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_agent_leaves_no_file(agent: Agent, is_killed: bool) -> None:
    """Its socket and its tasks' directories, however deep, are removed with it, even if it is killed."""
    agent.talk.start("worker:0", sys.executable, "-c", DEEP)
    agent.talk.wait_until(lambda: b"deep" in agent.talk.output.get(("worker:0", 0), b""))
    files = {file.name for file in agent.directory.iterdir()}
    assert files >= {SOCKET_NAME, LOCK_NAME, TASKS_NAME}
    assert stat.S_IMODE((agent.directory / SOCKET_NAME).stat().st_mode) & 0o077 == 0
    guard_pid, agent_pid = agent.pids()
    if is_killed:
        os.kill(agent_pid, signal.SIGKILL)
    else:
        agent.link.close()
    wait_gone(guard_pid)
    assert not agent.directory.exists()


def test_a_supervisor_of_another_version_is_refused(new_agent: Agent) -> None:
    """With both versions in one sentence; neither side guesses what the other may mean."""
    terms = {"run": "test", "lease": 0, "grace": 0, "seen": 0, "clock": "test", "sent": 0.0}
    new_agent.talk.say("hello", protocol=99, **terms)
    assert new_agent.talk.wait_for("refused")["reason"] == f"this agent speaks protocol {wire.PROTOCOL}, not 99"

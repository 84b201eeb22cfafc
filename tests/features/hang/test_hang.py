"""The verdict on tasks that do not go on, from evidence alone; when an agent takes it, and why tasks do not listen."""

import functools
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.job_history import HERE, RUN, TASK, History
from support.joined_host import joined_host
from support.specs import clustered
from support.still_loop import StillLoop
from support.ungreeted_run import StillMailbox
from tflaunch.core import policy
from tflaunch.core.events import HostJoined, PortsHeld, TaskStarted, TimePassed
from tflaunch.core.states import Progress
from tflaunch.explain.run_status import TaskStatus
from tflaunch.features.hang import hang
from tflaunch.features.hang.evidence import Evidence, Frame, Process, Socket, Thread
from tflaunch.features.hang.evidence_collector import Collector
from tflaunch.features.hang.hang import Verdict
from tflaunch.features.hang.position import Kind
from tflaunch.records import as_json, read_record
from tflaunch_worker.features.hang.evidence import BETWEEN, TaskEvidence

LIBRARY = "/venv/lib/python3.11/site-packages"
EXECUTE = Frame(f"{LIBRARY}/tensorflow/python/eager/execute.py", 53, "quick_execute")
FIT = Frame(f"{LIBRARY}/keras/src/engine/training.py", 1804, "Model.fit")
CALL_PYTHON = Frame(f"{LIBRARY}/tensorflow/python/ops/script_ops.py", 269, "FuncRegistry.__call__")
FORM = Frame(f"{LIBRARY}/tensorflow/python/distribute/x.py", 9, "CollectiveAllReduceExtended._initialize_multi_worker")
JOIN = Frame(f"{LIBRARY}/tensorflow/python/training/server_lib.py", 5, "Server.join")
NEXT = Frame(f"{LIBRARY}/tensorflow/python/data/ops/iterator_ops.py", 7, "next")
PDB = Frame("/usr/lib/python3.11/pdb.py", 100, "Pdb.interaction")
GATHER = Frame(f"{LIBRARY}/jax/experimental/multihost_utils.py", 99, "process_allgather")
REDUCE = Frame(f"{LIBRARY}/torch/distributed/distributed_c10d.py", 9, "all_reduce")
LOAD_BATCH = Frame(f"{LIBRARY}/torch/utils/data/dataloader.py", 9, "_MultiProcessingDataLoaderIter._try_get_data")
TRAIN, DATA = Frame("/code/train.py", 28, "<module>"), Frame("/code/data.py", 40, "batches")
IN_STEP = (EXECUTE, FIT, TRAIN)


def thread(*frames: Frame, wchan: str = "futex_do_wait", target: str = "", has_moved: bool = False) -> Thread:
    return Thread(7, "S", wchan, target, has_moved, frames)


def evidence(task: str, *threads: Thread, state: str = "S", cpu: float = 0.0, **about: Any) -> Evidence:
    process = Process(7, "python", state, cpu, "", threads, about.get("sockets", ()), cpu_wait=about.get("cpu_wait", 0))
    progress = None
    if "step" in about:
        progress = Progress(about["step"], None, None, None, about.get("speed"), {}, about.get("age"))
    return Evidence(task, 0, about.get("silence"), progress, (process,))


def chief(*threads: Thread, **about: Any) -> Evidence:
    return evidence("chief:0", *threads, **about)


def w0(*threads: Thread, task: str = "worker:0", **about: Any) -> Evidence:
    return evidence(task, *(threads or (STEP,)), **about)


w1, w2 = functools.partial(w0, task="worker:1"), functools.partial(w0, task="worker:2")


def judge(*found: Evidence, **others: TaskStatus) -> Verdict:
    """Return the verdict on tasks that listen, and on ``others`` as they are."""
    listening = [TASK._replace(task=each.task, role=each.task.partition(":")[0], listening=True) for each in found]
    tasks = [others.get(task.task.replace(":", "_"), task) for task in listening]
    tasks += [task for name, task in others.items() if name.replace("_", ":") not in {each.task for each in found}]
    return hang.verdict(RUN._replace(tasks=tuple(tasks)), {each.task: each for each in found})


def does(found: Verdict, task: str) -> str:
    (group,) = (group for group in found.groups if task in group.tasks)
    return group.does


NANOSLEEP = "hrtimer_nanosleep"
FORMS = thread(FORM, TRAIN)
STEP, MOVING_STEP = thread(*IN_STEP), thread(*IN_STEP, has_moved=True)
GATHERS, REDUCES, LOADS = thread(GATHER, TRAIN), thread(REDUCE, TRAIN), thread(LOAD_BATCH, TRAIN)
LOCKED, SLEEPS = thread(TRAIN), thread(DATA, wchan=NANOSLEEP)
RUNS, POLLS = thread(DATA, has_moved=True), SLEEPS._replace(has_moved=True)
GENERATOR = thread(DATA, CALL_PYTHON, wchan=NANOSLEEP)
JOINS, OPENS = thread(JOIN, TRAIN), thread(wchan="wait_for_partner")
EVALUATES = thread(EXECUTE, FIT._replace(function="Model.evaluate"), TRAIN._replace(line=31))
CUT = Socket("established", "10.0.0.1:5", "10.0.0.2:6", 700, is_stuck=True)
LISTENS = Socket("listening", "127.0.0.1:99", "0.0.0.0:0", 0, is_stuck=False)


def with_child(found: Evidence, state: str = "T", cpu: float = 0.0) -> Evidence:
    """Return evidence of a task with a second process."""
    return found._replace(processes=(*found.processes, Process(8, "sleep", state, cpu, "it runs no Python", (), ())))


def on_host(index: int) -> Evidence:
    """Return evidence of a worker whose code and packages are elsewhere than those of others."""
    code, library = (f"/home/ann{index}/{path}" for path in (f"runs/r/agents/h{index}/code", f"lib/python3.1{index}"))
    execute = EXECUTE._replace(file=EXECUTE.file.replace("/venv/lib/python3.11", library))
    return evidence(f"worker:{index}", thread(execute, TRAIN._replace(file=f"{code}/train.py")))


# Evidence, the names of culprits, which may be none, and what the sentence contains.
VERDICTS: dict[str, tuple[tuple[Evidence, ...], str, str]] = {
    "a generator tells apart a task whose main thread waits like all": (
        (w0(step=1564), w1(STEP, GENERATOR, step=1563), w2(step=1564)), "worker:1",
        "worker:1 has read no batch since step 1563 (data.py, line 40): the generator sleeps; "
        "worker:0, worker:2 wait for it in train.py, line 28"),
    "a task of JAX that sleeps in its own code": (
        (w0(GATHERS), w1(SLEEPS), w2(GATHERS)), "worker:1",
        "worker:1 sleeps (data.py, line 40); worker:0, worker:2 wait for it in train.py, line 28"),
    "none of those in one collective of torch": (
        (w0(REDUCES), w1(REDUCES), w2(REDUCES)), "", "wait for each other in the same call (train.py, line 28)"),
    "a loader of torch that waits for its own processes": (
        (w0(REDUCES), w1(LOADS), w2(REDUCES)), "worker:1", "worker:1 has read no batch (train.py"),
    "a stopped task is worse than a sleep": (
        (w0(), w1(SLEEPS), w2(RUNS, state="T")), "worker:2",
        "worker:2 is stopped (SIGSTOP) (data.py, line 40); worker:0 waits for it in train.py, line 28; "
        "`tflaunch kill -s CONT worker:2` continues it"),
    "so is a debugger": (
        (w0(), w1(SLEEPS), w2(thread(PDB, TRAIN))), "worker:2", "worker:2 waits for commands in a debugger (train.py"),
    "a collective that one task alone calls must be called by all": (
        (w0(EVALUATES), w1(), w2()), "worker:0",
        "; worker:1, worker:2 wait for it in train.py, line 28; if all tasks take part in Model.evaluate, as in a "
        "collective operation, each of them must call it"),
    "a connection without an answer tells apart what the stacks do not": (
        (w0(sockets=(CUT,)), w1()), "worker:0", "the connection of worker:0 to 10.0.0.2:6 is not answered"),
    "the minority in TensorFlow": ((w0(), w1(), w2(thread(EXECUTE, DATA, TRAIN))), "worker:2", ""),
    "then the lower step, which is no collective": ((w0(step=4), w1(step=5)), "worker:0", ""),
    "where nothing tells apart, no task is accused": (
        (w0(), w1(), w2()), "", "worker:0, worker:1, worker:2 wait for each other in the same call"),
    "a slow run: it computes": ((w0(), w1(RUNS, cpu=1.0)), "", ""),
    "a slow run: it sleeps now and then": ((w0(), w1(POLLS)), "", ""),
    "a slow run: it is in the same step": ((w0(), w1(MOVING_STEP)), "", ""),
    "a slow run: it is no later than usual": ((w0(), w1(SLEEPS, step=5, speed=0.2, age=6.0)), "", ""),
    "a slow run: its generator goes on": (
        (w0(), w1(thread(NEXT, *IN_STEP), GENERATOR._replace(has_moved=True))), "", ""),
    "an endless loop is named after a while": (
        (w0(), w1(RUNS, cpu=1.0, silence=20.0)), "worker:1", "works (1.0 CPUs) (data.py, line 40), silent for 20 s"),
    "tasks that wait at different lines are all named if others wait for them": (
        (w0(), w1(SLEEPS), w2(LOCKED)), "worker:1 worker:2",
        "worker:1 sleeps (data.py, line 40); worker:0 waits for it in train.py, line 28; "
        "worker:2: waits for a lock or another thread (train.py, line 28)"),
    "if not, the fewest": ((w0(LOCKED), w1(LOCKED), w2(SLEEPS)), "worker:2", ""),
    "nothing shows which of two that wait in their own code waits for the other": (
        (w0(LOCKED), w1(SLEEPS)), "",
        "worker:0 waits for a lock or another thread (train.py, line 28); worker:1: sleeps (data.py, line 40)"),
    "copies of the same file on several hosts are one place": (
        (on_host(0), on_host(1)), "", "worker:0, worker:1 wait for each other in the same call (train.py, line 28)"),
    "while another task works, no sleep is accused": ((w0(), w1(RUNS, cpu=1.0), w2(SLEEPS, silence=5.0)), "", ""),
    "but after a while": ((w0(), w1(RUNS, cpu=1.0), w2(SLEEPS, silence=20.0)), "worker:2", ""),
    "servers that wait for work are not accused": ((w0(JOINS), chief(RUNS, cpu=1.0)), "", ""),
    "but their coordinator": ((w0(JOINS), chief(SLEEPS)), "chief:0", ""),
    "a server without a CPU does not make a job that waits": (
        (chief(STEP), w0(JOINS, cpu=0.1, cpu_wait=0.8)), "", "no task is stuck: worker:0 ran just now"),
    "a closure without an end is named after a while": (
        (chief(STEP, silence=40.0), w0(JOINS, cpu=1.0), w1(JOINS)), "worker:0", "; chief:0 waits for it in train.py"),
    "and not early, or while the coordinator writes": (
        (chief(STEP, silence=20.0), w0(JOINS, cpu=1.0, silence=60.0), w1(JOINS)), "", "worker:0 ran just now"),
    "a coordinator whose servers do nothing": (
        (chief(STEP), w0(JOINS), w1(JOINS)), "",
        "chief:0 waits in TensorFlow (Model.fit) (train.py, line 28); worker:0, worker:1 serve, without a step that"),
    "all wait": ((w0(),), "", "all tasks wait, and none holds up the rest"),
    "a task that has just written output": (
        (w0(silence=60.0), w1(SLEEPS, silence=4.0)), "",
        "no verdict yet: the last output or step was 4 s ago; ask again in 4 s"),
    "whose last output is old": ((w0(silence=60.0), w1(SLEEPS, silence=9.0)), "worker:1", ""),
    "a training whose steps go on": ((w0(silence=60.0, step=4, age=5.0), w1(SLEEPS, silence=60.0)), "", ""),
    "a program that waits for a child is told with the line that does": (
        (w0(), with_child(w1(thread(TRAIN, wchan="do_wait")))), "worker:1",
        "worker:1 waits for a process that it started (train.py, line 28)"),
    "it holds up nobody while the program trains": ((w0(), with_child(w1(MOVING_STEP))), "", ""),
    "children of one that waits in TensorFlow, as of its input, do not excuse others": (
        (with_child(w0(), state="S", cpu=1.0), w1(thread(DATA))), "worker:1", ""),
    "a program that does not get out of Python": (
        (w0(), w1(thread(wchan=NANOSLEEP))), "worker:1",
        "worker:1 is leaving Python and sleeps; worker:0 waits for it in train.py, line 28"),
    "all may be ending": ((w0(thread()), w1(thread(wchan=NANOSLEEP))), "", ""),
    "tasks for which nobody waits are accused late": (
        (w0(SLEEPS, silence=20.0), w1(SLEEPS, silence=20.0)), "worker:0 worker:1", ""),
    "and not early": ((w0(SLEEPS, silence=10.0), w1(SLEEPS, silence=10.0)), "", ""),
    "a coordinator that polls waits for a file of a server": (
        (chief(POLLS, silence=20.0), w0(JOINS, OPENS)), "worker:0", "; chief:0 waits for it in data.py, line 40"),
    "until a while has passed, another server may work": ((chief(POLLS, silence=10.0), w0(JOINS, OPENS)), "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_names_who_holds_up_the_others(name: str) -> None:
    found, culprits, words = VERDICTS[name]
    verdict = judge(*found)
    assert verdict.culprits == tuple(culprits.split()), verdict.sentence
    assert words in verdict.sentence
    assert "collective" not in name or ("in a collective operation" in verdict.sentence) is ("called by all" in name)


@pytest.mark.parametrize(
    ("wchan", "target", "words"),
    [
        ("hrtimer_nanosleep", "", "sleeps"),
        ("futex_do_wait", "", "waits for a lock or another thread"),
        ("do_wait", "", "waits for a process that it started"),
        ("request_wait_answer", "", "waits for a file system that does not answer"),
        ("locks_lock_inode_wait", "/d/lock, locked by pid 9", "waits for /d/lock, locked by pid 9"),
        ("anon_pipe_read", "pipe:[5]", "reads from a pipe, where nothing arrives"),
        ("anon_pipe_write", "pipe:[5]", "writes to a pipe, which no process reads"),
        ("wait_for_partner", "", "opens a named pipe that has no other end"),
        ("wait_woken", "connection to 10.0.0.1:80", "reads from connection to 10.0.0.1:80, where nothing arrives"),
    ],
)
def test_what_a_task_waits_for_in_its_own_code_is_told(wchan: str, target: str, words: str) -> None:
    waits = thread(DATA, TRAIN, wchan=wchan, target=target)
    found = judge(w0(), w1(waits))
    assert found.culprits == ("worker:1",)
    assert found.sentence.startswith(f"worker:1 {words} (data.py, line 40); worker:0 waits for it")


def test_tasks_that_wait_for_different_things_at_one_line_stand_apart() -> None:
    locked = thread(DATA, wchan="locks_lock_inode_wait", target="/d/lock, locked by pid 9")
    found = judge(w0(SLEEPS), w1(locked))
    assert [does(found, task) for task in ("worker:0", "worker:1")] == ["sleeps", "waits for /d/lock, locked by pid 9"]


@pytest.mark.parametrize(
    ("waits", "others", "culprits", "words"),
    [
        # Uneven data: TensorFlow waits for it without end.
        ([w0()], {"state": "succeeded", "exit_code": 0}, "worker:1",
         "worker:1 has ended with exit code 0; worker:0 waits for it in train.py, line 28"),
        ([w0(FORMS), w1(SLEEPS, sockets=(LISTENS,))], {"address": "a:2222"}, "worker:1",
         "worker:1 does not listen on its port 2222, but at 127.0.0.1:99: it sleeps"),
        # One that is still busy is not accused until it is overdue.
        ([w0(FORMS), w1(POLLS, cpu=1.0)], {}, "", ""),
        ([w0(FORMS), w1(POLLS, cpu=1.0)], {"waiting_since": 1.0}, "worker:1", ""),
        # A poll that is sampled while it runs uses hardly any CPU, whatever its state.
        ([w0(FORMS), w1(Thread(7, "R", "", "", True, (DATA,)), cpu=0.02)], {"waiting_since": 1.0}, "worker:1",
         "it runs from time to time (data.py, line 40); worker:0 waits for it"),
    ],
)  # fmt: skip
def test_a_task_that_has_ended_or_does_not_listen(
    waits: list[Evidence], others: dict[str, Any], culprits: str, words: str
) -> None:
    found = judge(*waits, worker_1=TASK._replace(task="worker:1", **{"listening": False, **others}))
    assert found.culprits == tuple(culprits.split())
    assert words in found.sentence


def test_servers_that_run_the_program_of_the_chief_are_named() -> None:
    tasks = ("chief:0", "worker:0", "ps:0")
    silent = {
        task.replace(":", "_"): TASK._replace(task=task, role=task.partition(":")[0], listening=task == "chief:0")
        for task in tasks
    }
    cut = CUT._replace(state="connecting", unsent=1)
    found = judge(*[evidence(task, FORMS, sockets=(cut,)) for task in tasks], **silent)
    assert found.culprits == ("worker:0", "ps:0")
    assert found.sentence == (
        "worker:0, ps:0 never started a server, but run the chief's program (train.py, line 28); chief:0 waits for it "
        'in train.py, line 28; set "server": true for these roles'
    )
    mirrored = {name: silent[name] for name in ("chief_0", "worker_0")}
    assert judge(*[evidence(task, FORMS) for task in ("chief:0", "worker:0")], **mirrored).culprits == ()


@pytest.mark.parametrize("waits", [JOINS, thread(EXECUTE, TRAIN)], ids=["a server", "a step"])
def test_a_thread_of_tensorflow_that_waits_for_a_file_is_named(waits: Thread) -> None:
    """Its main thread shows nothing of it; threads of a program that have just run, or wait on a pipe, may go on."""
    chief, ps = evidence("chief:0", thread(EXECUTE, DATA)), evidence("ps:0", JOINS)
    reads = thread(wchan="pipe_read", target="/data/x")
    for words, held in {
        "opens a named pipe that has no other end": OPENS,
        "reads from /data/x, where nothing arrives": reads,
        "waits for a disk or a network file system (/data/x)": reads._replace(state="D", wchan="rpc_wait_bit_killable"),
    }.items():
        found = judge(chief, w0(waits, held), ps)
        assert found.culprits == ("worker:0",)
        assert found.sentence == (
            f"worker:0 has a thread in TensorFlow that {words} (train.py, line 28); "
            "chief:0 waits for it in data.py, line 40"
        )
    for idle in (OPENS._replace(has_moved=True), reads._replace(target="pipe:[5]"), thread(DATA, target="/data/x")):
        assert judge(chief, w0(JOINS, idle), ps).culprits == ()


@pytest.mark.parametrize("is_polling", [False, True])
def test_the_only_task_in_a_collective_is_named_if_several_sleep_at_one_line(is_polling: bool) -> None:
    """They may wait for it there, for example at a barrier of files; one that sleeps is named itself."""
    alone = w0(silence=20.0)
    sleeps = [each(POLLS if is_polling else SLEEPS, silence=20.0) for each in (w1, w2)]
    found = judge(alone, *sleeps)
    assert found.culprits == ("worker:0",)
    assert found.sentence.startswith("worker:0 waits in TensorFlow (Model.fit) (train.py, line 28), silent for 20 s")
    assert found.sentence.endswith("; worker:1, worker:2 wait for it in data.py, line 40")
    assert judge(alone, sleeps[0]).culprits == ("worker:1",)
    assert judge(alone, alone._replace(task="worker:3"), *sleeps).culprits == ("worker:1", "worker:2")
    assert judge(alone, w1(thread(DATA)), w2(thread(DATA))).culprits == ("worker:1", "worker:2")


@pytest.mark.parametrize(
    ("wchan", "has_moved", "words"),
    [
        ("hrtimer_nanosleep", False, "has ended but for a thread (batches), which sleeps"),
        ("futex_do_wait", True, "has ended but for a thread (batches), which runs from time to time"),
    ],
)
def test_the_thread_for_which_an_ended_program_waits_is_named(wchan: str, has_moved: bool, words: str) -> None:
    shutdown = Frame("/usr/lib/python3.11/threading.py", 1590, "_shutdown")
    bootstrap = Frame("/usr/lib/python3.11/threading.py", 1002, "Thread._bootstrap")
    of_library = thread(Frame("/usr/lib/python3.11/queue.py", 171, "Queue.get"), bootstrap)
    left = thread(DATA, bootstrap, wchan=wchan, has_moved=has_moved)
    found = judge(w0(), w1(thread(shutdown), of_library, left))
    assert does(found, "worker:1") == words
    said = f"worker:1 {words} (data.py, line 40); worker:0 waits for it in train.py, line 28"
    assert has_moved or found.sentence == said


@pytest.mark.parametrize(
    ("cpus", "waits", "words"),
    [
        ((0.0, 0.9, 0.8), (0.0, 0.0, 0.0), "works (1.7 CPUs in 2 processes)"),
        ((0.0, 0.1, 0.15), (0.0, 0.0, 0.0), "works (0.2 CPUs in 2 processes)"),
        ((0.0, 0.06, 0.0), (0.0, 0.6, 0.0), "waits for a CPU, which other programs use (0.1 CPUs)"),
        ((0.04,), (0.7,), "waits for a CPU, which other programs use (0.0 CPUs)"),
        ((0.05, 0.02), (0.1, 0.1), "waits for a lock or another thread"),
    ],
)
def test_all_processes_of_a_task_count_as_work(cpus: tuple[float, ...], waits: tuple[float, ...], words: str) -> None:
    processes = [
        Process(7 + number, "python", "S", cpu, "", (LOCKED,) if number == 0 else (), (), cpu_wait=wait)
        for number, (cpu, wait) in enumerate(zip(cpus, waits, strict=True))
    ]
    found = judge(w0(), w1()._replace(processes=tuple(processes)))
    (group,) = (group for group in found.groups if group.tasks == ("worker:1",))
    assert group.does == words
    assert found.culprits == (() if group.kind is Kind.WORKS else ("worker:1",))


LOAD = Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load")
MODULE = Frame(f"{LIBRARY}/tensorflow/__init__.py", 49, "<module>")
COMPILES = Frame(f"{LIBRARY}/tensorflow/python/eager/polymorphic_function/tracing_compilation.py", 132, "call_function")
TRACE = COMPILES._replace(line=178, function="trace_function")


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ((LOAD, MODULE, LOAD), "imports tensorflow"),
        (
            (LOAD, EXECUTE, Frame("/usr/lib/python3.11/importlib/__init__.py", 126, "import_module"), LOAD),
            "imports tensorflow",
        ),
        ((LOAD, Frame("/usr/lib/python3.11/json/decoder.py", 5, "<module>"), LOAD), "imports json"),
        ((LOAD, LOAD), "imports a module"),
        # The call of a function that was traced before passes through the same file.
        ((EXECUTE, COMPILES), "works"),
        ((TRACE, COMPILES), "traces a function"),
    ],
)
def test_what_a_task_that_works_does(frames: tuple[Frame, ...], words: str) -> None:
    assert does(judge(w0(thread(*frames, TRAIN), cpu=0.9)), "worker:0") == f"{words} (0.9 CPUs)"
    assert "imports" not in words or does(judge(w0(thread(*frames, TRAIN))), "worker:0") == words


def test_tasks_that_all_do_not_listen_are_not_accused() -> None:
    """No task waits for them: they may not be TensorFlow programs, and may sleep as long as they like."""
    silent = TASK._replace(role="worker", listening=False, waiting_since=1.0)
    waits = thread(TRAIN, wchan="do_wait")
    tasks = {"worker_0": silent._replace(task="worker:0"), "worker_1": silent._replace(task="worker:1")}
    assert judge(w0(waits, cpu=1.0), w1(waits, cpu=1.0), **tasks).culprits == ()
    alone = {name: TASK._replace(task=task.task, role="worker") for name, task in tasks.items()}
    assert judge(w0(SLEEPS, silence=20.0), w1(SLEEPS, silence=20.0), **alone).culprits == ()


def test_a_stopped_sidecar_is_named_if_all_that_train_wait() -> None:
    service = TASK._replace(task="data", role="sidecar")
    stopped = evidence("data", thread(DATA), state="T")
    found = judge(w0(), w1(), stopped, data=service)
    assert found.culprits == ("data",)
    assert found.sentence.startswith("data is stopped (SIGSTOP) (data.py, line 40); worker:0, worker:1 wait for it")
    assert judge(w0(), w1(thread(*IN_STEP, has_moved=True)), stopped, data=service).culprits == ()


@pytest.mark.parametrize(
    ("found", "is_listening", "is_over", "culprits"),
    [
        # At the limit `stall`, also in a job without a cluster, and before twenty seconds.
        ([w0(SLEEPS, silence=3.0), w1(SLEEPS, silence=3.0)], None, True, "worker:0 worker:1"),
        ([w0(SLEEPS, silence=3.0), w1(SLEEPS, silence=3.0)], None, False, ""),
        # Who sets five seconds knows that no step takes longer: what runs on is accused, if nothing sleeps.
        ([w0(POLLS, silence=6.0), w1(silence=6.0)], True, True, "worker:0"),
        ([w0(POLLS, silence=6.0, cpu=1.0), w1(silence=6.0)], True, True, "worker:0"),
        ([w0(POLLS, silence=6.0), w1(SLEEPS, silence=6.0)], True, True, "worker:1"),
        ([w0(POLLS, silence=6.0, cpu=1.0), w1(SLEEPS, silence=6.0)], True, True, "worker:1"),
    ],
)
def test_at_a_limit_of_the_job_someone_is_accused(
    found: list[Evidence], is_listening: bool | None, is_over: bool, culprits: str
) -> None:
    tasks = [TASK._replace(task=each.task, role="worker", listening=is_listening) for each in found]
    tasks[0] = tasks[0]._replace(listening=is_listening if is_listening is None else True)
    known = {each.task: each for each in found}
    assert hang.verdict(RUN._replace(tasks=tuple(tasks)), known, is_over).culprits == tuple(culprits.split())


IMPORTS = (LOAD, MODULE, LOAD, TRAIN)
READS = (DATA._replace(function="read"), TRAIN)


def late(strategy: str, frames: tuple[Frame, ...], cpu: float = 0.0, step: int | None = None) -> str:
    """Return the hint about a job whose tasks, which all stand there, have not listened for a minute."""
    cluster = {"worker": 2} if strategy == "multi_worker_mirrored" else {"chief": 1, "ps": 1, "worker": 1}
    history = History(clustered(cluster, strategy=strategy)).happens(HostJoined(HERE))
    names = [task.task for task in history.job.plan.tasks]
    history.happens(PortsHeld(HERE, {name: 20000 + number for number, name in enumerate(names)}))
    history.happens(*(TaskStarted(HERE, name, 0, 1, 0.0) for name in names))
    history.now += policy.WARN_AFTER
    history.happens(TimePassed())
    about: dict[str, Any] = {} if step is None else {"step": step, "age": 1.0}
    found = {name: evidence(name, thread(*frames), cpu=cpu, **about) for name in names}
    return hang.explain_late_start(history.job, history.status(), found)


SERVERS, MIRRORED = "parameter_server", "multi_worker_mirrored"


@pytest.mark.parametrize(
    ("strategy", "frames", "cpu", "step", "words"),
    [
        (MIRRORED, IMPORTS, 0.9, None, "worker:0, worker:1 still import tensorflow (0.9 CPUs): that"),
        (MIRRORED, IMPORTS, 0.0, None, "worker:0, worker:1 still import tensorflow: that takes minutes"),
        (SERVERS, IMPORTS, 0.5, None, "chief:0, worker:0, ps:0 still import tensorflow (0.5 CPUs)"),
        (MIRRORED, READS, 0.9, None,
         "worker:0, worker:1 have not made a strategy or server yet: works (0.9 CPUs) (data.py, line 40)"),
        (SERVERS, READS, 0.9, None, "chief:0, worker:0, ps:0 have not made a strategy or"),
        (MIRRORED, (EXECUTE, TRAIN), 0.9, None, "no task has opened its port of TF_CONFIG"),
        (MIRRORED, READS, 0.9, 7, "no task has opened its port of TF_CONFIG"),
        (SERVERS, (EXECUTE, TRAIN), 0.0, None, "worker:0, ps:0 run the same command as the chief"),
    ],
)  # fmt: skip
def test_a_program_is_not_doubted_before_it_has_come_to_its_strategy(
    strategy: str, frames: tuple[Frame, ...], cpu: float, step: int | None, words: str
) -> None:
    """Importing and loading data take as long as they take; only who trains may ignore TF_CONFIG."""
    assert late(strategy, frames, cpu, step).startswith(words)


def test_two_samples_are_taken_with_a_pause() -> None:
    loop, pids = StillLoop(), {"worker:0": os.getpid()}
    service = TaskEvidence(cast("Any", SimpleNamespace(loop=loop, pids=lambda: pids)))
    answers: list[Any] = []
    sent = w0(sockets=(LISTENS,), step=5, silence=2.0)
    assert read_record(Evidence, as_json(sent)) == sent
    began = loop.now()
    service.ask(answers.append)
    service.ask(answers.append)
    while not answers:
        loop.next()
    assert loop.now() - began == pytest.approx(BETWEEN)
    assert len(answers) == 2
    assert answers[0] is answers[1]
    assert os.getpid() in [process["pid"] for process in answers[0]["worker:0"]]
    pids.clear()
    service.ask(answers.append)
    loop.next()
    assert answers[2] == {}, "no task was alive"


def test_only_evidence_of_tasks_that_it_was_asked_to_start_is_passed_on() -> None:
    host = joined_host()
    told: list[tuple[list[str], tuple[str, ...]]] = []
    collector = Collector({"a": host.session}, StillMailbox(), "gather_evidence")
    for call, known, attempt in ((1, "worker:0", 0), (2, "worker:0", 1), (3, "worker:1", 0)):
        collector.collect(lambda evidence, silent: told.append(([*evidence], silent)))
        about = {"task": known, "attempt": attempt, "silence": None, "progress": None, "processes": []}
        host.tells("told", call=call, **about)
        host.tells("answered", call=call)
    assert told == [(["worker:0"], ()), ([], ()), ([], ())]
    assert not host.lost()

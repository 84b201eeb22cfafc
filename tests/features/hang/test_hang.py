"""The verdict on tasks that do not go on, from evidence alone."""

from __future__ import annotations

from typing import Any

import pytest

from support.statuses import RUN, TASK
from tflaunch.core.measures import Progress
from tflaunch.explain.run_status import TaskStatus
from tflaunch.features.hang import hang
from tflaunch.features.hang.evidence import Evidence, Frame, Process, Socket, Thread
from tflaunch.features.hang.hang import Verdict
from tflaunch.features.hang.position import Kind
from tflaunch.records import as_json, read_record

pytestmark = pytest.mark.unit

LIBRARY = "/venv/lib/python3.11/site-packages"
EXECUTE = Frame(f"{LIBRARY}/tensorflow/python/eager/execute.py", 53, "quick_execute")
FIT = Frame(f"{LIBRARY}/keras/src/engine/training.py", 1804, "Model.fit")
CALL_PYTHON = Frame(f"{LIBRARY}/tensorflow/python/ops/script_ops.py", 269, "FuncRegistry.__call__")
FORM = Frame(f"{LIBRARY}/tensorflow/python/distribute/x.py", 9, "CollectiveAllReduceExtended._initialize_multi_worker")
JOIN = Frame(f"{LIBRARY}/tensorflow/python/training/server_lib.py", 5, "Server.join")
PDB = Frame("/usr/lib/python3.11/pdb.py", 100, "Pdb.interaction")
TRAIN, DATA = Frame("/code/train.py", 28, "<module>"), Frame("/code/data.py", 40, "batches")
IN_STEP = (EXECUTE, FIT, TRAIN)


def thread(*frames: Frame, wchan: str = "futex_do_wait", target: str = "", has_moved: bool = False) -> Thread:
    """Return a thread that waits."""
    return Thread(7, "S", wchan, target, has_moved, frames)


def evidence(
    task: str, *threads: Thread, state: str = "S", cpu: float = 0.0, sockets: tuple[Socket, ...] = (), **about: Any
) -> Evidence:
    """Return evidence of a task with one process."""
    process = Process(7, "python", state, cpu, "", threads, sockets)
    progress = None
    if "step" in about:
        progress = Progress(about["step"], None, None, None, about.get("speed"), {}, about.get("age"))
    return Evidence(task, 0, about.get("silence"), progress, (process,))


def judge(*found: Evidence, **others: TaskStatus) -> Verdict:
    """Return the verdict on tasks that listen, and on ``others`` as they are."""
    listening = [TASK._replace(task=each.task, role=each.task.partition(":")[0], listening=True) for each in found]
    tasks = [others.get(task.task.replace(":", "_"), task) for task in listening]
    tasks += [task for name, task in others.items() if name.replace("_", ":") not in {each.task for each in found}]
    return hang.verdict(RUN._replace(tasks=tuple(tasks)), {each.task: each for each in found})


def test_the_task_that_reads_no_batch_is_named_with_its_line() -> None:
    """Its main thread waits in TensorFlow like the others; the thread of its generator tells them apart."""
    generator = thread(DATA, CALL_PYTHON, wchan="hrtimer_nanosleep")
    found = judge(
        evidence("worker:0", thread(*IN_STEP), step=1564),
        evidence("worker:1", thread(*IN_STEP), generator, step=1563),
        evidence("worker:2", thread(*IN_STEP), step=1564),
    )
    assert found.culprits == ("worker:1",)
    assert found.sentence == (
        "worker:1 has read no batch since step 1563 (data.py, line 40): the generator sleeps; "
        "worker:0, worker:2 wait for it in train.py, line 28"
    )
    assert [group.tasks for group in found.groups] == [("worker:1",), ("worker:0", "worker:2")]


@pytest.mark.parametrize(
    ("wchan", "target", "words"),
    [
        ("hrtimer_nanosleep", "", "sleeps"),
        ("futex_do_wait", "", "waits for a lock or another thread"),
        ("do_wait", "", "waits for a process that it started"),
        (
            "locks_lock_inode_wait",
            "/d/lock, which python (pid 9) has locked",
            "waits for /d/lock, which python (pid 9) has locked",
        ),
        ("anon_pipe_read", "pipe:[5]", "reads from a pipe, where nothing arrives"),
        ("anon_pipe_write", "pipe:[5]", "writes to a pipe, which no process reads"),
        ("wait_for_partner", "", "opens a named pipe that has no other end"),
        ("wait_woken", "connection to 10.0.0.1:80", "reads from connection to 10.0.0.1:80, where nothing arrives"),
    ],
)
def test_what_a_task_waits_for_in_its_own_code_is_told(wchan: str, target: str, words: str) -> None:
    """By the function of the kernel in which it waits."""
    waits = thread(DATA, TRAIN, wchan=wchan, target=target)
    found = judge(evidence("worker:0", thread(*IN_STEP)), evidence("worker:1", waits))
    assert found.culprits == ("worker:1",)
    assert found.sentence.startswith(f"worker:1 {words} (data.py, line 40); worker:0 waits for it")


def test_a_stopped_task_and_a_debugger_are_worse_than_a_sleep() -> None:
    """The remedy for a stopped one can be pasted."""
    waits = evidence("worker:0", thread(*IN_STEP))
    sleeps = evidence("worker:1", thread(DATA, wchan="hrtimer_nanosleep"))
    stopped = evidence("worker:2", thread(TRAIN, has_moved=True), state="T")
    found = judge(waits, sleeps, stopped)
    assert found.culprits == ("worker:2",)
    assert "is stopped (SIGSTOP) (train.py, line 28)" in found.sentence
    assert found.sentence.endswith("`tflaunch kill -s CONT worker:2` continues it")
    debugged = evidence("worker:2", thread(PDB, TRAIN))
    assert judge(waits, sleeps, debugged).sentence.startswith("worker:2 waits for commands in a debugger (train.py")


def test_a_collective_that_one_task_alone_calls_must_be_called_by_all() -> None:
    """The chief alone evaluates or saves, and the others are in the next step."""
    evaluates = Frame(f"{LIBRARY}/keras/src/engine/training.py", 2300, "Model.evaluate")
    alone = evidence("worker:0", thread(EXECUTE, evaluates, TRAIN._replace(line=31)))
    found = judge(alone, evidence("worker:1", thread(*IN_STEP)), evidence("worker:2", thread(*IN_STEP)))
    assert found.culprits == ("worker:0",)
    said = "; if all tasks take part in Model.evaluate, as in a collective operation, each of them must call it"
    assert found.sentence.endswith(f"worker:1, worker:2 wait for it in train.py, line 28{said}")
    by_step = judge(evidence("worker:0", thread(*IN_STEP), step=4), evidence("worker:1", thread(*IN_STEP), step=5))
    assert "collective" not in by_step.sentence


def test_a_task_that_has_ended_is_the_one_that_others_wait_for() -> None:
    """Uneven data: TensorFlow waits for it without end."""
    ended = TASK._replace(task="worker:1", state="succeeded", exit_code=0)
    found = judge(evidence("worker:0", thread(*IN_STEP)), worker_1=ended)
    assert found.culprits == ("worker:1",)
    assert found.sentence == "worker:1 has ended with exit code 0; worker:0 waits for it in train.py, line 28"


def test_a_task_that_does_not_listen_is_named_with_the_port_at_which_it_does() -> None:
    """One that is still busy is not, until it is overdue."""
    waits = evidence("worker:0", thread(FORM, TRAIN))
    listens = Socket("listening", "127.0.0.1:99", "0.0.0.0:0", 0, is_stuck=False)
    missing = TASK._replace(task="worker:1", listening=False, address="a:2222")
    found = judge(
        waits, evidence("worker:1", thread(DATA, wchan="hrtimer_nanosleep"), sockets=(listens,)), worker_1=missing
    )
    assert found.culprits == ("worker:1",)
    assert found.sentence.startswith("worker:1 does not listen on its port 2222, but at 127.0.0.1:99: it sleeps")
    busy = evidence("worker:1", thread(DATA, has_moved=True), cpu=1.0)
    assert judge(waits, busy, worker_1=missing).culprits == ()
    assert judge(waits, busy, worker_1=missing._replace(waiting_since=1.0)).culprits == ("worker:1",)
    at_the_limit = RUN._replace(tasks=(TASK._replace(listening=True), missing))
    both = {"worker:0": waits, "worker:1": busy}
    assert hang.verdict(at_the_limit, both, "start").culprits == ("worker:1",)


def test_a_poll_that_is_sampled_while_it_runs_is_not_called_work() -> None:
    """It uses hardly any CPU, whatever its state in the sample."""
    polls = Thread(7, "R", "", "", True, (DATA,))
    starting = TASK._replace(task="worker:1", listening=False, waiting_since=1.0)
    found = judge(evidence("worker:0", thread(FORM, TRAIN)), evidence("worker:1", polls, cpu=0.02), worker_1=starting)
    assert "it runs from time to time (data.py, line 40); worker:0 waits for it" in found.sentence


def test_a_connection_without_an_answer_tells_apart_what_the_stacks_do_not() -> None:
    """A cable was cut."""
    cut = Socket("established", "10.0.0.1:5", "10.0.0.2:6", 700, is_stuck=True)
    found = judge(evidence("worker:0", thread(*IN_STEP), sockets=(cut,)), evidence("worker:1", thread(*IN_STEP)))
    assert found.sentence.startswith("the connection of worker:0 to 10.0.0.2:6 is not answered")


def test_the_minority_and_then_the_lower_step_tell_apart_those_that_wait_in_tensorflow() -> None:
    """And where nothing does, no task is accused."""
    saves = thread(EXECUTE, DATA, TRAIN)
    three = [evidence(f"worker:{index}", thread(*IN_STEP)) for index in range(3)]
    assert judge(*three[:2], evidence("worker:2", saves)).culprits == ("worker:2",)
    behind = [evidence(f"worker:{index}", thread(*IN_STEP), step=4 + index) for index in range(2)]
    assert judge(*behind).culprits == ("worker:0",)
    alike = judge(*three)
    assert alike.culprits == ()
    assert alike.sentence.startswith("worker:0, worker:1, worker:2 wait for each other in the same call")


@pytest.mark.parametrize(
    "other",
    [
        evidence("worker:1", thread(DATA, has_moved=True), cpu=1.0),
        evidence("worker:1", thread(DATA, has_moved=True, wchan="hrtimer_nanosleep")),
        evidence("worker:1", thread(*IN_STEP, has_moved=True)),
        evidence("worker:1", thread(DATA, wchan="hrtimer_nanosleep"), step=5, speed=0.2, age=6.0),
    ],
    ids=["computes", "sleeps now and then", "is in the same step", "is no later than usual"],
)
def test_a_slow_run_is_not_accused(other: Evidence) -> None:
    """A task that ran between the samples, or whose step usually takes longer."""
    found = judge(evidence("worker:0", thread(*IN_STEP)), other)
    assert found.culprits == ()


def test_a_task_that_runs_on_without_a_step_is_named_after_a_while() -> None:
    """It may be in an endless loop, in which it never sleeps."""
    loops = evidence("worker:1", thread(DATA, has_moved=True), cpu=1.0, silence=20.0)
    found = judge(evidence("worker:0", thread(*IN_STEP)), loops)
    assert found.culprits == ("worker:1",)
    assert "works (1.0 CPUs) (data.py, line 40), silent for 20 s" in found.sentence


def test_tasks_that_wait_at_different_lines_are_all_named() -> None:
    """If others wait for them; if not, the fewest."""
    waits = evidence("worker:0", thread(*IN_STEP))
    sleeps, locked = thread(DATA, wchan="hrtimer_nanosleep"), thread(TRAIN)
    found = judge(waits, evidence("worker:1", sleeps), evidence("worker:2", locked))
    assert found.culprits == ("worker:1", "worker:2")
    assert found.sentence == (
        "worker:1 sleeps (data.py, line 40); worker:0 waits for it in train.py, line 28; "
        "worker:2: waits for a lock or another thread (train.py, line 28)"
    )
    alike = [evidence(f"worker:{index}", locked) for index in range(2)]
    assert judge(*alike, evidence("worker:2", sleeps)).culprits == ("worker:2",)


def test_none_of_two_tasks_that_wait_in_their_own_code_is_accused() -> None:
    """Nothing shows which one waits for the other."""
    sleeps, locked = thread(DATA, wchan="hrtimer_nanosleep"), thread(TRAIN)
    found = judge(evidence("worker:0", locked), evidence("worker:1", sleeps))
    assert found.culprits == ()
    assert found.sentence == (
        "worker:0 waits for a lock or another thread (train.py, line 28); worker:1: sleeps (data.py, line 40)"
    )


def test_copies_of_the_same_file_on_several_hosts_are_one_place() -> None:
    """The directory of `sync` and that of Python's packages have other names on each host."""
    alike = []
    for index in range(2):
        home = f"/home/ann{index}"
        train = Frame(f"{home}/runs/r/agents/h{index}/code/train.py", 28, "<module>")
        execute = Frame(f"{home}/lib/python3.1{index}/site-packages/tensorflow/python/eager/execute.py", 53, "x")
        alike.append(evidence(f"worker:{index}", thread(execute, train)))
    found = judge(*alike)
    assert found.sentence.startswith("worker:0, worker:1 wait for each other in the same call (train.py, line 28)")
    assert [group.tasks for group in found.groups] == [("worker:0", "worker:1")]


def test_while_another_task_works_one_that_sleeps_is_not_accused_at_once() -> None:
    """The step may only be slow."""
    waits, works = evidence("worker:0", thread(*IN_STEP)), evidence("worker:1", thread(DATA, has_moved=True), cpu=1.0)
    sleeps = evidence("worker:2", thread(DATA, wchan="hrtimer_nanosleep"), silence=5.0)
    assert judge(waits, works, sleeps).culprits == ()
    assert judge(waits, works, sleeps._replace(silence=20.0)).culprits == ("worker:2",)


def test_servers_that_run_the_program_of_the_chief_are_named() -> None:
    """TensorFlow waits for an hour, in each of them for the others; a mirrored worker forms its cluster like this."""
    tasks = ("chief:0", "worker:0", "ps:0")
    silent = {
        task.replace(":", "_"): TASK._replace(task=task, role=task.partition(":")[0], listening=task == "chief:0")
        for task in tasks
    }
    cut = Socket("connecting", "10.0.0.1:5", "10.0.0.2:6", 1, is_stuck=True)
    found = judge(*[evidence(task, thread(FORM, TRAIN), sockets=(cut,)) for task in tasks], **silent)
    assert found.culprits == ("worker:0", "ps:0")
    assert found.sentence == (
        "worker:0, ps:0 never started a server, but run the chief's program (train.py, line 28); chief:0 waits for it "
        'in train.py, line 28; set "server": true for these roles'
    )
    mirrored = {name: silent[name] for name in ("chief_0", "worker_0")}
    forming = [evidence(task, thread(FORM, TRAIN)) for task in ("chief:0", "worker:0")]
    assert judge(*forming, **mirrored).culprits == ()


@pytest.mark.parametrize(
    "waits",
    [
        thread(JOIN, TRAIN),
        thread(EXECUTE, TRAIN),
    ],
    ids=["a server", "a step"],
)
def test_a_thread_of_tensorflow_that_waits_for_a_file_is_named(waits: Thread) -> None:
    """Its main thread shows nothing of it; threads of a program that have just run, or wait on a pipe, may go on."""
    chief = evidence("chief:0", thread(EXECUTE, DATA))
    opens, reads = thread(wchan="wait_for_partner"), thread(wchan="pipe_read", target="/data/x")
    disk = reads._replace(state="D", wchan="rpc_wait_bit_killable")
    told = {
        "opens a named pipe that has no other end": opens,
        "reads from /data/x, where nothing arrives": reads,
        "waits for a disk or a network file system (/data/x)": disk,
    }
    for words, held in told.items():
        found = judge(chief, evidence("worker:0", waits, held), evidence("ps:0", thread(JOIN, TRAIN)))
        assert found.culprits == ("worker:0",)
        assert found.sentence == (
            f"worker:0 has a thread in TensorFlow that {words} (train.py, line 28); "
            "chief:0 waits for it in data.py, line 40"
        )
    for idle in (opens._replace(has_moved=True), reads._replace(target="pipe:[5]"), thread(DATA, target="/data/x")):
        found = judge(chief, evidence("worker:0", thread(JOIN, TRAIN), idle), evidence("ps:0", thread(JOIN, TRAIN)))
        assert found.culprits == ()


def test_a_coordinator_that_polls_waits_for_a_file_of_a_server_too() -> None:
    """After a while: until then, another server may work."""
    opens = evidence("ps:0", thread(JOIN, TRAIN), thread(wchan="wait_for_partner"))
    polls = evidence("chief:0", thread(DATA, wchan="hrtimer_nanosleep", has_moved=True), silence=20.0)
    found = judge(polls, opens)
    assert found.culprits == ("ps:0",)
    assert found.sentence.endswith("; chief:0 waits for it in data.py, line 40")
    assert judge(polls._replace(silence=10.0), opens).culprits == ()


@pytest.mark.parametrize("is_polling", [False, True])
def test_the_only_task_in_a_collective_is_named_if_several_sleep_at_one_line(is_polling: bool) -> None:
    """They may wait for it there, for example at a barrier of files; one that sleeps is named itself."""
    alone = evidence("worker:0", thread(*IN_STEP), silence=20.0)
    sleeps = [
        evidence(f"worker:{index}", thread(DATA, wchan="hrtimer_nanosleep", has_moved=is_polling), silence=20.0)
        for index in (1, 2)
    ]
    found = judge(alone, *sleeps)
    assert found.culprits == ("worker:0",)
    assert found.sentence.startswith("worker:0 waits in TensorFlow (Model.fit) (train.py, line 28), silent for 20 s")
    assert found.sentence.endswith("; worker:1, worker:2 wait for it in data.py, line 40")
    assert judge(alone, sleeps[0]).culprits == ("worker:1",)
    asleep = tuple(each.task for each in sleeps)
    assert judge(alone, alone._replace(task="worker:3"), *sleeps).culprits == asleep
    locked = [evidence(name, thread(DATA)) for name in asleep]
    assert judge(alone, *locked).culprits == asleep


def test_a_step_is_not_called_tracing() -> None:
    """Although the call of a function that was traced before passes through the same file."""
    compilation = f"{LIBRARY}/tensorflow/python/eager/polymorphic_function/tracing_compilation.py"
    call, trace = Frame(compilation, 132, "call_function"), Frame(compilation, 178, "trace_function")
    for frames, words in (
        ((EXECUTE, call, TRAIN), "works (0.9 CPUs)"),
        ((trace, call, TRAIN), "traces a function (0.9 CPUs)"),
    ):
        found = judge(evidence("worker:0", thread(*frames), cpu=0.9))
        assert found.groups[0].does == words


def test_servers_that_wait_for_work_are_not_accused() -> None:
    """Parameter servers and workers of a coordinator wait without limit; the chief decides."""
    servers = [evidence(task, thread(JOIN, TRAIN)) for task in ("worker:0", "ps:0")]
    works = evidence("chief:0", thread(TRAIN, has_moved=True), cpu=1.0)
    assert judge(works, *servers).culprits == ()
    sleeps = evidence("chief:0", thread(DATA, wchan="hrtimer_nanosleep"))
    assert judge(sleeps, *servers).culprits == ("chief:0",)


def test_evidence_survives_the_way_to_another_command() -> None:
    """As JSON."""
    listens = Socket("listening", "127.0.0.1:99", "0.0.0.0:0", 0, is_stuck=False)
    sent = evidence("worker:0", thread(*IN_STEP), sockets=(listens,), step=5, silence=2.0)
    assert read_record(Evidence, as_json(sent)) == sent


def test_a_task_that_has_just_written_output_is_not_accused() -> None:
    """Nor one of a training whose steps go on."""
    sleeps = thread(TRAIN, wchan="hrtimer_nanosleep")
    waits = evidence("worker:0", thread(*IN_STEP), silence=60.0)
    found = judge(waits, evidence("worker:1", sleeps, silence=4.0))
    assert found.culprits == ()
    assert found.sentence == "no verdict yet: the last output or step was 4 s ago; ask again in 4 s"
    steps = evidence("worker:0", thread(*IN_STEP), silence=60.0, step=4, age=5.0)
    assert judge(steps, evidence("worker:1", sleeps, silence=60.0)).culprits == ()
    assert judge(waits, evidence("worker:1", sleeps, silence=9.0)).culprits == ("worker:1",)


def test_a_child_process_that_is_stopped_is_told_with_the_line_that_waits_for_it() -> None:
    waits = evidence("worker:1", thread(TRAIN, wchan="do_wait"))
    child = Process(8, "sleep", "T", 0.0, "it does not run Python", (), ())
    found = judge(evidence("worker:0", thread(*IN_STEP)), waits._replace(processes=(*waits.processes, child)))
    assert found.sentence.startswith(
        "worker:1 waits for a process that it started: sleep, which is stopped (SIGSTOP, pid 8) (train.py, line 28)"
    )


def test_a_helper_that_is_stopped_holds_up_nobody_while_the_program_trains() -> None:
    """Until something waits for it."""
    trains = evidence("worker:1", thread(*IN_STEP, has_moved=True))
    child = Process(8, "sleep", "T", 0.0, "it does not run Python", (), ())
    found = judge(evidence("worker:0", thread(*IN_STEP)), trains._replace(processes=(*trains.processes, child)))
    assert found.culprits == ()


def test_a_program_that_does_not_get_out_of_python_is_named() -> None:
    """If others wait for it; else all may be ending."""
    ends = evidence("worker:1", thread(wchan="hrtimer_nanosleep"))
    found = judge(evidence("worker:0", thread(*IN_STEP)), ends)
    assert found.sentence == "worker:1 is leaving Python and sleeps; worker:0 waits for it in train.py, line 28"
    assert judge(evidence("worker:0", thread(wchan="futex_do_wait")), ends).culprits == ()


@pytest.mark.parametrize(
    ("wchan", "has_moved", "words"),
    [
        ("hrtimer_nanosleep", False, "has ended but for a thread (batches), which sleeps"),
        ("futex_do_wait", False, "has ended but for a thread (batches), which waits for a lock or another thread"),
        ("futex_do_wait", True, "has ended but for a thread (batches), which runs from time to time"),
    ],
)
def test_the_thread_for_which_an_ended_program_waits_is_named(wchan: str, has_moved: bool, words: str) -> None:
    """And that the program has ended; the main thread is in `threading._shutdown`."""
    shutdown = Frame("/usr/lib/python3.11/threading.py", 1590, "_shutdown")
    bootstrap = Frame("/usr/lib/python3.11/threading.py", 1002, "Thread._bootstrap")
    of_library = thread(Frame("/usr/lib/python3.11/queue.py", 171, "Queue.get"), bootstrap)
    left = thread(DATA, bootstrap, wchan=wchan, has_moved=has_moved)
    ends = evidence("worker:1", thread(shutdown), of_library, left)
    found = judge(evidence("worker:0", thread(*IN_STEP)), ends)
    (group,) = (group for group in found.groups if group.tasks == ("worker:1",))
    assert (group.does, group.place) == (words, "data.py, line 40")
    said = f"worker:1 {words} (data.py, line 40); worker:0 waits for it in train.py, line 28"
    assert has_moved or found.sentence == said


@pytest.mark.parametrize(
    ("cpus", "waits", "does"),
    [
        ((0.0, 0.9, 0.8), (0.0, 0.0, 0.0), "works (1.7 CPUs in 2 processes)"),
        ((0.0, 0.1, 0.15), (0.0, 0.0, 0.0), "works (0.2 CPUs in 2 processes)"),
        ((0.0, 0.06, 0.0), (0.0, 0.6, 0.0), "waits for a CPU, which other programs use (0.1 CPUs)"),
        ((0.04,), (0.7,), "waits for a CPU, which other programs use (0.0 CPUs)"),
        ((0.05, 0.02), (0.1, 0.1), "waits for a lock or another thread"),
    ],
)
def test_all_processes_of_a_task_count_as_its_work(
    cpus: tuple[float, ...], waits: tuple[float, ...], does: str
) -> None:
    """A pool or a command computes for it; on a crowded machine, what has no CPU waits for one."""
    processes = [
        Process(7 + number, "python", "S", cpu, "", (thread(TRAIN),) if number == 0 else (), (), cpu_wait=wait)
        for number, (cpu, wait) in enumerate(zip(cpus, waits, strict=True))
    ]
    maps = evidence("worker:1", thread(TRAIN))._replace(processes=tuple(processes))
    found = judge(evidence("worker:0", thread(*IN_STEP)), maps)
    (group,) = (group for group in found.groups if group.tasks == ("worker:1",))
    assert group.does == does
    assert found.culprits == (() if group.kind is Kind.WORKS else ("worker:1",))


def test_tasks_that_wait_for_different_things_at_one_line_stand_apart() -> None:
    """One holds a lock and sleeps, and the next waits for the lock."""
    locked = thread(DATA, wchan="locks_lock_inode_wait", target="/d/lock, which python (pid 9) has locked")
    found = judge(evidence("worker:0", thread(DATA, wchan="hrtimer_nanosleep")), evidence("worker:1", locked))
    assert {group.does for group in found.groups} == {"sleeps", "waits for /d/lock, which python (pid 9) has locked"}


def test_a_task_that_waits_in_tensorflow_is_not_excused_by_its_children() -> None:
    """They may be those of its input, which poll."""
    child = Process(8, "python", "S", 1.0, "", (), ())
    waits = evidence("worker:0", thread(*IN_STEP))
    found = judge(waits._replace(processes=(*waits.processes, child)), evidence("worker:1", thread(DATA)))
    assert found.culprits == ("worker:1",)


def test_servers_without_a_cpu_do_not_make_a_job_that_waits() -> None:
    """Under ParameterServerStrategy only threads of C++ compute; other programs may leave them little."""
    chief, worker = evidence("chief:0", thread(*IN_STEP)), evidence("worker:0", thread(JOIN, TRAIN))
    starved = worker._replace(processes=(worker.processes[0]._replace(cpu=0.1, cpu_wait=0.8),))
    assert judge(chief, worker).sentence == "all tasks wait, and none holds up the rest"
    assert judge(chief, starved).sentence == "no task is stuck: worker:0 ran just now"


@pytest.mark.parametrize(
    ("inside", "does"),
    [
        ((Frame(f"{LIBRARY}/tensorflow/__init__.py", 49, "<module>"),), "imports tensorflow"),
        ((EXECUTE, Frame("/usr/lib/python3.11/importlib/__init__.py", 126, "import_module")), "imports tensorflow"),
        ((Frame("/usr/lib/python3.11/json/decoder.py", 5, "<module>"),), "imports json"),
        ((), "imports a module"),
    ],
)
@pytest.mark.parametrize("cpu", [0.0, 0.9])
def test_a_task_that_imports_is_said_to_import(inside: tuple[Frame, ...], does: str, cpu: float) -> None:
    """A task that imports TensorFlow does not wait for other tasks."""
    load = Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load")
    found = judge(evidence("worker:0", thread(load, *inside, load, TRAIN), cpu=cpu))
    assert found.groups[0].does == (f"{does} (0.9 CPUs)" if cpu else does)


def test_tasks_that_all_do_not_listen_are_not_accused() -> None:
    """No task waits for them: they may not be TensorFlow programs."""
    waits = thread(TRAIN, wchan="do_wait")
    tasks = {
        name.replace(":", "_"): TASK._replace(task=name, role="worker", listening=False, waiting_since=1.0)
        for name in ("worker:0", "worker:1")
    }
    found = judge(evidence("worker:0", waits, cpu=1.0), evidence("worker:1", waits, cpu=1.0), **tasks)
    assert found.culprits == ()


def test_a_stopped_sidecar_is_named_if_all_that_train_wait() -> None:
    """A data service, for example; while one of them works, it is not to blame."""
    service = TASK._replace(task="data", role="sidecar")
    stopped = evidence("data", thread(DATA), state="T")
    waiting = evidence("worker:1", thread(*IN_STEP))
    found = judge(evidence("worker:0", thread(*IN_STEP)), waiting, stopped, data=service)
    assert found.culprits == ("data",)
    assert found.sentence.startswith("data is stopped (SIGSTOP) (data.py, line 40); worker:0, worker:1 wait for it")
    works = evidence("worker:1", thread(*IN_STEP, has_moved=True))
    assert judge(evidence("worker:0", thread(*IN_STEP)), works, stopped, data=service).culprits == ()


def test_a_task_whose_generator_goes_on_is_slow_and_not_stuck() -> None:
    """Although its step takes longer than it was observed."""
    generator = thread(DATA, CALL_PYTHON, wchan="hrtimer_nanosleep", has_moved=True)
    awaits = thread(Frame(f"{LIBRARY}/tensorflow/python/data/ops/iterator_ops.py", 7, "next"), *IN_STEP)
    found = judge(evidence("worker:0", thread(*IN_STEP)), evidence("worker:1", awaits, generator))
    assert found.culprits == ()


def test_tasks_for_which_nobody_waits_are_accused_late_and_in_clusters_only() -> None:
    """Programs without TensorFlow may sleep as long as they like."""
    sleeps = thread(TRAIN, wchan="hrtimer_nanosleep")
    both = [evidence(name, sleeps, silence=20.0) for name in ("worker:0", "worker:1")]
    assert judge(*both).culprits == ("worker:0", "worker:1")
    assert judge(*[each._replace(silence=10.0) for each in both]).culprits == ()
    alone = {each.task.replace(":", "_"): TASK._replace(task=each.task, role="worker") for each in both}
    assert judge(*both, **alone).culprits == ()


def test_tasks_that_are_silent_for_longer_than_allowed_are_accused() -> None:
    """At the limit `stall`, also in a job without a cluster, and before twenty seconds."""
    tasks = tuple(TASK._replace(task=name, role="worker") for name in ("worker:0", "worker:1"))
    sleeps = thread(TRAIN, wchan="hrtimer_nanosleep")
    found = {each.task: evidence(each.task, sleeps, silence=3.0) for each in tasks}
    assert hang.verdict(RUN._replace(tasks=tasks), found, "stall").culprits == ("worker:0", "worker:1")
    assert hang.verdict(RUN._replace(tasks=tasks), found).culprits == ()


@pytest.mark.parametrize("cpu", [0.0, 1.0], ids=["polls", "loops"])
@pytest.mark.parametrize("other", [IN_STEP, (TRAIN,)], ids=["in a step", "asleep"])
def test_a_short_limit_of_silence_has_a_verdict(cpu: float, other: tuple[Frame, ...]) -> None:
    """Who sets five seconds knows that no step takes longer."""
    runs = evidence("worker:0", thread(DATA, has_moved=True), cpu=cpu, silence=6.0)
    waits = evidence("worker:1", thread(*other, wchan="hrtimer_nanosleep"), silence=6.0)
    tasks = tuple(TASK._replace(task=name, role="worker", listening=True) for name in ("worker:0", "worker:1"))
    found = hang.verdict(RUN._replace(tasks=tasks), {"worker:0": runs, "worker:1": waits}, "stall")
    assert found.culprits == (("worker:0",) if other == IN_STEP else ("worker:1",))

"""Say where a task is, from the stacks and the state of its processes. Pure."""

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from tflaunch.explain.run_status import TaskStatus
from tflaunch.features.hang.evidence import Evidence, Frame, Place, Process, Thread
from tflaunch_worker import failures
from tflaunch_worker.readable import signal_name

LONG = 30.0
"""Seconds without a step or output, after which tasks that compute keep others waiting too long."""

IDLE = ("sleeps", "runs from time to time")
"""What a task does that may wait for something to happen elsewhere."""

_BUSY = 0.2  # CPUs
_STARVED = 0.5  # CPUs that a task uses or waits for; what waits for other things wakes up for less, on any machine
_STEPS = 2.0  # a step that takes less than this many times the usual is not late

_GENERATED = re.compile(r"^<(?!string>)")
_FRAMEWORK = re.compile(
    r"/(?:site|dist)-packages/(?:(?P<JAX>jax|jaxlib)|(?P<torch>torch)(?!/utils/data)|(?P<Horovod>horovod)"
    r"|(?P<TensorFlow>tensorflow|(?:tf_)?keras))/|/(?:tensorflow/python|(?:tf_)?keras/src)/"
)
"""Libraries whose calls wait for other tasks; TensorFlow and Keras also where `pip install --target` puts them."""
_DEBUGGERS = ("/bdb.py", "/pdb.py", "/cmd.py", "/debugpy/", "/pydevd")
_ON_ITS_HOST = re.compile(r".*/(?:agents/[^/]+/code|site-packages|dist-packages|lib(?:64)?/python\d[^/]*)/")
"""The part of a path that differs between hosts: a copy made by `sync`, or where Python is installed."""
_GENERATOR = "/tensorflow/python/ops/script_ops.py"  # calls Python from a graph: a generator of tf.data, py_function
_TRACES = ("trace_function", "func_graph_from_py_func")  # not `call_function`, which runs in every step
_FORMS = re.compile(
    r":(?:.*\.)?(?:_initialize_multi_worker|ensure_initialized|_start_check_health_thread|configure_collective_ops"
    r"|init_process_group)$|/jax/_src/distributed\.py:.*initialize$"
)
"""Files and functions in which tasks wait until all are there."""
_LOADER = "/torch/utils/data/"  # waits for its own processes
_IMPORTER = "importlib._bootstrap"
_MODULE = re.compile(
    r"(?:/(?:site|dist)-packages/|/lib(?:64)?/python3[^/]*/(?!site-|dist-|lib-dynload|importlib))([A-Za-z]\w{0,60})"
)
_SERVES = ("server_lib.py",)


class Kind(Enum):
    """What a task does."""

    STOPPED = "stopped"
    DEBUGGED = "in a debugger"
    ENDED = "ended"
    OWN = "waits in its own code"
    EXITS = "ends"
    INPUT = "waits for its input"
    FILE = "waits for a file"
    FORMS = "waits for the cluster to form"
    LIBRARY = "waits in a library for others"
    SERVES = "serves others"
    TRACES = "traces"
    WORKS = "works"
    UNKNOWN = "unknown"


_WAITS_FOR_CHILDREN = (Kind.OWN, Kind.INPUT, Kind.UNKNOWN)
"""What a task does that other processes of it may hold up: those of a pool, or a command."""

_MAY_WORK = (Kind.OWN, Kind.EXITS, Kind.LIBRARY, Kind.UNKNOWN, Kind.INPUT)


class Position(NamedTuple):
    """A task's position: ``place`` is its own innermost line, ``does`` a predicate."""

    task: str
    kind: Kind
    is_stuck: bool
    own: Frame | None
    inner: Frame | None
    does: str
    depth: int = 0
    """Number of frames of the user's code in its stack."""
    call: str = ""
    """The function of a library that its own code has called."""
    caller: int | None = None
    """The process that has called a library whose calls wait for other tasks."""

    @property
    def place(self) -> str:
        """Return ``data.py, line 40``; "" if it is unknown."""
        return _place(self.own or self.inner)


class Group(NamedTuple):
    """Tasks at the same place; ``own_frame``: the user's, ``inner_frame``: innermost."""

    tasks: tuple[str, ...]
    kind: Kind
    is_stuck: bool
    does: str
    own_frame: Place | None
    inner_frame: Place | None

    @property
    def place(self) -> str:
        """Return ``data.py, line 40``; "" if it is unknown."""
        return _place(self.own_frame or self.inner_frame)


def position_of(task: TaskStatus, evidence: Evidence | None) -> Position:
    """Return where a task is, as far as the evidence about it shows."""
    if evidence is None or not evidence.processes:
        if task.exit_code is not None or task.signal is not None:
            how = f"exit code {task.exit_code}" if task.signal is None else signal_name(task.signal)
            return Position(task.task, Kind.ENDED, True, None, None, f"has ended with {how}")
        return Position(task.task, Kind.UNKNOWN, False, None, None, f"is {task.state}")
    process = _program(evidence.processes)
    thread = _telling(process)
    own, inner, depth = _own(thread.frames), next(iter(thread.frames), None), sum(map(_is_own, thread.frames))
    kind = _kind(process, thread, own)
    caller = process.pid if kind is Kind.LIBRARY else None
    working = evidence.processes if kind in _WAITS_FOR_CHILDREN else [process]
    is_stuck = kind in (Kind.STOPPED, Kind.DEBUGGED) or not (
        thread.has_moved or _wants_cpu(working) or (kind is Kind.LIBRARY and _is_fed(process))
    )
    if not is_stuck and (kind in _MAY_WORK or (kind is Kind.SERVES and _wants_cpu(working))):
        kind = Kind.WORKS
    is_stuck = is_stuck and not _is_in_time(evidence)
    does = _does(kind, working, process, thread, own)
    does = _left(thread, does) if thread in _left_threads(process) else does
    if is_stuck and kind in (Kind.SERVES, Kind.LIBRARY) and (held := _held_by_file(process)):
        kind, does = Kind.FILE, f"has a thread in TensorFlow that {_waits_for(held)}"
    return Position(task.task, kind, is_stuck, own, inner, does, depth, _call(thread.frames, own), caller)


def _wants_cpu(processes: Sequence[Process]) -> bool:
    """Whether processes compute, or would if other programs left them a CPU."""
    used = sum(process.cpu for process in processes)
    return used >= _BUSY or used + sum(process.cpu_wait for process in processes) >= _STARVED


def is_in_library(process: Process) -> bool:
    """Return whether a process's main thread is in a library that trains, or serves."""
    return any(_library(thread.frames) for thread in process.threads[:1])


def _held_by_file(process: Process) -> Thread | None:
    """Return the thread, main or without Python, that waits for a file in the kernel."""
    for thread in process.threads:
        is_tensorflow = thread is process.threads[0] or not thread.frames
        is_held = thread.state == "D" or thread.target.startswith("/") or any(at in thread.wchan for at in _ON_FILE)
        if is_tensorflow and is_held and not thread.has_moved:
            return thread
    return None


def _program(processes: Sequence[Process]) -> Process:
    """Return the user's program: the first process with Python stacks, else the first."""
    return next((process for process in processes if any(thread.frames for thread in process.threads)), processes[0])


def _telling(process: Process) -> Thread:
    """Return the thread that explains a process: the main one or one that makes input.

    The input is made by a thread of its own; it explains a stop if it has stopped as well.
    """
    main = process.threads[0] if process.threads else Thread(process.pid, process.state, "", "", False, ())
    if left := _left_threads(process):
        return left[0]
    makers = [thread for thread in process.threads[1:] if _makes_input(thread) and not thread.has_moved]
    return makers[0] if makers and not main.has_moved else main


def _left_threads(process: Process) -> list[Thread]:
    """Return threads that keep an ended program alive, those in the user's code first."""
    main = process.threads[0].frames if process.threads else ()
    if not main or main[-1].function != "_shutdown":
        return []
    left = [thread for thread in process.threads[1:] if thread.frames and "/threading.py" in thread.frames[-1].file]
    return sorted(left, key=lambda thread: _own(thread.frames) is None)


def _left(thread: Thread, does: str) -> str:
    """Return that a program has ended but for a thread, and what that does."""
    called = next((frame for frame in reversed(thread.frames) if "/threading.py" not in frame.file), thread.frames[-1])
    return f"has ended but for a thread ({called.function}), which {does}"


def _is_fed(process: Process) -> bool:
    """Whether input is being made for the step that the main thread awaits."""
    return any(_makes_input(thread) and thread.has_moved for thread in process.threads[1:])


def _makes_input(thread: Thread) -> bool:
    return _own(thread.frames) is not None and any(_GENERATOR in frame.file for frame in thread.frames)


def _kind(process: Process, thread: Thread, own: Frame | None) -> Kind:
    if process.state in ("T", "t"):
        return Kind.STOPPED
    if not thread.frames:
        is_python = not process.unread and process.cpu < _BUSY
        return Kind.EXITS if is_python else Kind.UNKNOWN if process.cpu < _BUSY else Kind.WORKS
    inside = _inside(thread.frames, own)
    if any(name in frame.file for frame in inside for name in _DEBUGGERS):
        return Kind.DEBUGGED
    if _makes_input(thread) or any(_LOADER in frame.file for frame in inside):
        return Kind.INPUT
    if any(name in frame.file for frame in inside for name in _SERVES) and inside[0].function.endswith("join"):
        return Kind.SERVES
    if any(_FORMS.search(f"{frame.file}:{frame.function}") for frame in inside):
        return Kind.FORMS
    if process.cpu >= _BUSY and any(map(_traces, thread.frames)):
        return Kind.TRACES
    return Kind.LIBRARY if _library(inside) and not _imports(thread, own) else Kind.OWN


def _does(kind: Kind, working: Sequence[Process], process: Process, thread: Thread, own: Frame | None) -> str:
    used = sum(each.cpu for each in working)
    number = len([each for each in working if each.cpu >= _BUSY / 2])
    works = f"{used:.1f} CPUs" + (f" in {number} processes" if number > 1 else "")
    unread = f"; {process.unread}" if process.unread else ""
    maker = "generator" if _makes_input(thread) else "data loader"
    where = f" in the kernel's {thread.wchan}" if thread.wchan else ""
    return {
        Kind.STOPPED: "is traced by a debugger" if process.state == "t" else "is stopped (SIGSTOP)",
        Kind.DEBUGGED: "waits for commands in a debugger",
        Kind.INPUT: f"reads no input: the {maker} {_waits_for(thread)}",
        Kind.OWN: _imports(thread, own) or _waits_for(thread),
        Kind.EXITS: f"is leaving Python and {_waits_for(thread)}",
        Kind.SERVES: "serves others",
        Kind.FORMS: "waits for the other tasks to form the cluster",
        Kind.LIBRARY: f"waits in {_library(_inside(thread.frames, own))} ({_call(thread.frames, own)})",
        Kind.TRACES: f"traces a function ({works})",
        Kind.WORKS: _works(working, used, works, _imports(thread, own)),
    }.get(kind, f"waits{where} (process {process.name}{unread})")


def _works(working: Sequence[Process], used: float, works: str, imports: str) -> str:
    if imports:
        return f"{imports} ({works})"
    if used >= _BUSY:
        return f"works ({works})"
    return f"waits for a CPU, which other programs use ({works})" if _wants_cpu(working) else IDLE[1]


def _imports(thread: Thread, own: Frame | None) -> str:
    """Return ``imports tensorflow`` if the user's innermost line does; else ""."""
    inside = _inside(thread.frames, own)
    if not any(_IMPORTER in frame.file for frame in inside):
        return ""
    found = (_MODULE.search(frame.file) for frame in reversed(inside))
    return f"imports {next((each[1] for each in found if each is not None), 'a module')}"


_ON_FILE = ("wait_for_partner", "flock", "locks_lock", "setlk", "request_wait")  # the last one is FUSE's
_LOCKED = "waits for a locked file"
_WAITS = {
    "futex": "waits for a lock or another thread",
    "nanosleep": IDLE[0],
    "wait_for_partner": "opens a named pipe that has no other end",
    "do_wait": "waits for a process that it started",
    "request_wait": "waits for a file system that does not answer",
    "flock": _LOCKED,
    "locks_lock": _LOCKED,
    "setlk": _LOCKED,
}


def _waits_for(thread: Thread) -> str:
    """Name the wait of a thread by the kernel's function in which it sleeps."""
    known = next((words for part, words in _WAITS.items() if part in thread.wchan), "")
    if known:
        return f"waits for {thread.target}" if known == _LOCKED and thread.target else known
    if thread.state == "D":
        return f"waits for a disk or a network file system{f' ({_thing(thread.target)})' if thread.target else ''}"
    if "write" in thread.wchan or "sendmsg" in thread.wchan:
        return f"writes to {_thing(thread.target)}, which no process reads"
    if thread.target:
        return f"reads from {_thing(thread.target)}, where nothing arrives"
    if "poll" in thread.wchan or "select" in thread.wchan:
        return "waits for a connection or a pipe"
    return "waits" + (f" in the kernel's {thread.wchan}" if thread.wchan else "")


def _thing(target: str) -> str:
    return {"pipe": "a pipe", "socket": "a socket"}.get(target.partition(":")[0], target or "a file")


def _is_in_time(evidence: Evidence) -> bool:
    """Return whether the next step, by the usual speed, is not late yet."""
    progress = evidence.progress
    if progress is None or progress.age is None or not progress.steps_per_second:
        return False
    return progress.age < min(_STEPS / progress.steps_per_second, LONG)


# ---- frames


def _is_own(frame: Frame) -> bool:
    return not (failures.LIBRARY.search(frame.file) or _GENERATED.search(frame.file))


def _own(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's code."""
    return next((frame for frame in frames if _is_own(frame)), None)


def _inside(frames: Sequence[Frame], own: Frame | None) -> Sequence[Frame]:
    """Return the frames that the innermost line of the user's code has called."""
    return frames if own is None else frames[: list(frames).index(own)]


def _library(frames: Sequence[Frame]) -> str:
    """Return the innermost library in a stack that waits for other tasks, or ""."""
    match = next((match for frame in frames if (match := _FRAMEWORK.search(frame.file))), None)
    return "" if match is None else match.lastgroup or "TensorFlow"


def _traces(frame: Frame) -> bool:
    return frame.function.rpartition(".")[2] in _TRACES and _library([frame]) == "TensorFlow"


def _call(frames: Sequence[Frame], own: Frame | None) -> str:
    """Return the function of a library that the user's code has called."""
    inside = [frame for frame in _inside(frames, own) if "traceback_utils" not in frame.file]
    return inside[-1].function.rpartition("<locals>.")[2] if inside else "a call"


def _place(frame: Place | None) -> str:
    return "" if frame is None else f"{frame.file.rpartition('/')[2]}, line {frame.line}"


def _on_any_host(frame: Frame | None) -> Frame | None:
    return frame and frame._replace(file=_ON_ITS_HOST.sub("", frame.file))


def grouped(positions: Sequence[Position]) -> tuple[Group, ...]:
    """Group tasks by place, the smallest group first."""
    found: dict[object, list[Position]] = {}
    for at in positions:
        waits = at.does if at.is_stuck and at.does.startswith("waits for ") else ""  # one line may lock and sleep
        found.setdefault((at.kind, _on_any_host(at.own), _on_any_host(at.inner), at.is_stuck, waits), []).append(at)
    return tuple(map(_group_of, sorted(found.values(), key=lambda each: (len(each), -each[0].depth))))


def _group_of(positions: Sequence[Position]) -> Group:
    at, tasks = positions[0], tuple(each.task for each in positions)
    return Group(tasks, at.kind, at.is_stuck, at.does, at.own and Place(*at.own), at.inner and Place(*at.inner))

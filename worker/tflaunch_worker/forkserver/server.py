"""A process that has imported slow modules once, and of which tasks are forked.

It runs in the tasks' own interpreter, started by the agent (`nursery`) as::

    python -c 'import sys; sys.path[…] = [ROOT]; from … import server; server.main()' SOCKET MODULES

What it forks is a child of the agent, not of this process; it tells the agent its number, waits for its word, and
becomes what the interpreter would have become if it had been started with that command (`likeness`). What
must not be forked is refused, with the reason.

A fork is only good as long as nothing but the main thread runs (TensorFlow is not fork-safe once it has run
something: tensorflow/tensorflow#2448, #5448), so threads are counted before each one.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import array
import gc
import importlib
import importlib.machinery
import json
import os
import socket
import sys
import tempfile

from tflaunch_worker.forkserver import become, clone, program_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LENGTH = 4
_MOST_SAID = 64 * 1024
_LONGEST_REASON = 500
_NEVER = 2**31 - 1  # objects to be made until garbage is looked for; not 0, which a module might set
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


def main() -> None:
    """Import, serve, and in each fork be the task. The zygote itself never returns from here."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)  # it was given to us, not to the tasks
    del sys.path[0]  # where we are; a program will have its own place there
    modules_before = set(sys.modules)
    modules = sys.argv[2].split(",")
    said = _import(modules)
    failure = said if isinstance(said, str) else ""
    while True:
        request, (output, report) = _receive(link)
        names: set[str] = set()
        reason = failure or _reason_against(request, modules_before, names)
        agent = os.getppid()
        try:
            pid = -1 if reason else clone.fork()
        except OSError as error:
            pid, reason = -1, f"no process: {error.strerror}"
        if pid == 0:
            link.close()
            assert isinstance(said, bytes)
            if not any(module.partition(".")[0] in names for module in modules):
                said = b""  # the program does not import them itself
            become.become(request, output, socket.socket(fileno=report), agent, said)
            return
        if reason:
            _refuse(report, reason)
        os.close(output)
        os.close(report)


def _import(modules: list[str]) -> bytes | str:
    """Import modules and return what they wrote, which every task shall write in turn; or why it failed.

    Garbage is not looked for meanwhile, which takes a fifth of an import of TensorFlow. What there is stays, as what is
    used does: a collection in a task would otherwise copy all the memory that they share.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_NEVER, *usual[1:])
    try:
        return _import_each(modules)
    finally:
        gc.freeze()
        if gc.get_threshold()[0] == _NEVER:  # else a module has decided otherwise, for the tasks as well
            gc.set_threshold(*usual)


def _import_each(modules: list[str]) -> bytes | str:
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        module = ""
        try:
            for module in modules:
                importlib.import_module(module)
        except BaseException as error:
            return f"{module} could not be imported: {type(error).__name__}: {error}".rstrip(": ")
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number in (2, 1):
                copy = kept.pop()
                os.dup2(copy, number)
                os.close(copy)
        file.seek(0)
        return file.read(_MOST_SAID)


def _reason_against(request: dict[str, Any], modules_before: set[str], names: set[str]) -> str:
    """Say why a task must not be forked from here; "" for no reason. ``names`` takes what its program imports."""
    argv, workdir = request["argv"], request["workdir"]
    if not clone.is_possible():
        return "this system cannot fork a process for another one"
    reason = _reason_in_process()
    if reason:
        return reason
    python_path = [os.path.abspath(place) for place in os.environ.get("PYTHONPATH", "").split(":") if place]
    kind, place = program_source.of(argv) or ("", 0)
    path = [*sys.path, *_directories_of(argv[place])] if kind == program_source.MODULE else sys.path
    reason = program_source.reason_in_text(argv, workdir, python_path, path, names, request["env"])
    if reason:
        return reason
    if kind == program_source.MODULE:
        name = argv[place]
        if name in sys.modules or f"{name}.__main__" in sys.modules:
            return f"{name} itself has been imported"
        return _reason_in_directory(workdir, modules_before)
    if kind == program_source.TEXT:
        return _reason_in_directory(workdir, modules_before)
    return _reason_in_directory(os.path.dirname(os.path.realpath(os.path.join(workdir, argv[place]))), modules_before)


def _directories_of(module: str) -> list[str]:
    """Return where finders have the package of a module that is not on the path: an editable install has one."""
    package = module.partition(".")[0]
    found: list[str] = []
    for finder in sys.meta_path:
        spec = finder.find_spec(package, None) if hasattr(finder, "find_spec") else None
        locations = spec.submodule_search_locations or () if spec is not None else ()
        found += [os.path.dirname(place) for place in locations if os.path.basename(place) == package]
    return found


def _reason_in_process() -> str:
    """Say why nothing may be forked from here."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"the modules have started {threads - 1} threads"
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the one that listed them
        if target.startswith(_DEVICES):
            return f"the modules have opened {target}"
    context = sys.modules.get("tensorflow.python.eager.context")
    if getattr(context, "_context", None) is not None:
        return "the modules have made TensorFlow run something"
    return ""


def _reason_in_directory(directory: str, modules_before: set[str]) -> str:
    """Say whether a program would have found some module in its own directory, which we have from elsewhere."""
    if getattr(sys.flags, "safe_path", False):
        return ""
    try:
        names = os.listdir(directory)
    except OSError:
        return ""  # its own start will say so
    suffixes = importlib.machinery.all_suffixes()
    for name in names:
        stem = name.partition(".")[0]
        module = sys.modules.get(stem)
        if module is None or stem in sys.builtin_module_names or stem in ("__main__", become.OWN):
            continue
        place = os.path.join(directory, name)
        is_module = any(name == stem + suffix for suffix in suffixes)
        is_package = name == stem and any(os.path.exists(os.path.join(place, "__init__" + end)) for end in suffixes)
        origin = getattr(module, "__file__", None) or ""
        if (is_module or is_package) and not os.path.realpath(origin).startswith(os.path.realpath(place)):
            known = "preloading needs it, too" if stem in modules_before else "it would hide the one that was imported"
            return f"its directory has a module {stem} of its own: {known}"
    return ""


def _refuse(report: int, reason: str) -> None:
    line = " ".join(reason.split())[:_LONGEST_REASON]
    try:
        os.write(report, f"no: {line}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # nobody waits for it any more


def _receive(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for the next request and its descriptors; the end of the agent is the end of this process."""
    head, ancillary, _, _ = link.recvmsg(_LENGTH, socket.CMSG_SPACE(2 * array.array("i").itemsize))
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if len(head) < _LENGTH:
        head += _read(link, _LENGTH - len(head))
    return json.loads(_read(link, int.from_bytes(head, "big"))), list(descriptors)


def _read(link: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more:
            os._exit(0)
        data += more
    return bytes(data)

"""The zygote: a process with slow modules imported, from which tasks are forked.

It runs in the tasks' own interpreter, started by the agent (`pool`) as::

    python -c 'import sys; sys.path[…] = [ROOT]; from ….zygote_server import main; main()' SOCKET RECORD MODULES PLACE…

where RECORD is a file of `refusals`, and modules are searched in the places after those of the interpreter. MODULES may
have NAME=VALUE, a variable to be set before the next import, or be `-m NAME`: what this program imports first.
It may also be a fork of a warm server (`warm_server`), which it may become itself at the end of the run.

A fork is a child of the agent, not of this process. It sends the agent its pid, waits for permission, and takes on the
state that the interpreter would have if it had been started with the task's command (`become`). Tasks that must not be
forked are refused with the reason (`fork_checks`).
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import tempfile
import time

from tflaunch_worker.features.preload import become, clone, fork_checks, refusals, source_checks
from tflaunch_worker.socket_messages import receive_message

_MAX_IMPORT_OUTPUT = 64 * 1024
_MAX_REASON = 500
_NEVER = 2**31 - 1  # a threshold that the collector never reaches; not 0, which a module might set


def main() -> None:
    """Import modules, then serve; return only in forks, after the task's program."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)  # it is not for the tasks
    del sys.path[0]  # our own entry; a program gets its own first entry
    modules_before = set(sys.modules)
    added = [place for place in sys.argv[4:] if place not in sys.path]  # as `tflaunch_worker.function` does it
    sys.path += added
    imported_at = time.time_ns()
    watch = fork_checks.ImportWatch()
    modules, import_output, failure = _prepare_and_remember(sys.argv[3], watch, sys.argv[2])
    while True:
        try:
            request, descriptors = receive_message(link)
        except EOFError:
            os._exit(0)  # the agent has ended
        if request["kind"] == "stay":
            if failure:
                os._exit(0)
            # Not before: what it imports would be imported in every task.
            from tflaunch_worker.features.preload import warm_server

            link = warm_server.stay(link, request, modules, imported_at)
            continue
        output, report = descriptors
        reason, imported = (
            (failure, set()) if failure else fork_checks.check_program(request, modules, modules_before, added, watch)
        )
        agent = os.getppid()
        pid = -1
        if not reason:
            try:
                pid = clone.fork_as_sibling()
            except OSError as error:
                reason = f"no process: {error.strerror}"
        if pid == 0:
            link.close()
            if not any(module.partition(".")[0] in imported for module in modules):
                import_output = b""  # the program does not import these modules itself
            request["env"][source_checks.PRELOAD] = ",".join(module for module in modules if "=" not in module)
            become.become_task(request, output, socket.socket(fileno=report), agent, import_output)
            return
        if reason:
            _refuse(report, reason)
        os.close(output)
        os.close(report)


def _prepare_and_remember(words: str, watch: fork_checks.ImportWatch, record: str) -> tuple[list[str], bytes, str]:
    """Do as `_prepare`, and record if the imports forbid forks; return modules, too."""
    modules, failure, output = words.split(","), "", b""
    if words.startswith("-m "):
        modules, failure = fork_checks.find_modules(["python", *words.split()], os.getcwd(), os.environ)
    places = refusals.search_places()
    if not failure:
        output, failure = _prepare(modules, watch)
    if not failure:
        refusals.remember(record, fork_checks.reason_in_process(watch.started_by), places)
    return modules, output, failure


def _prepare(modules: list[str], watch: fork_checks.ImportWatch) -> tuple[bytes, str]:
    """Import modules, watched; return output, and the reason against forks, or ""."""
    if not clone.is_fork_supported():
        return b"", "this system cannot fork a process for another one"
    try:
        become.set_process_title([f"tflaunch-forkserver: {','.join(modules)}"], os.environ)
    except OSError:
        return b"", "this kernel cannot change what /proc shows of a process"
    # The collector is off during imports, because it takes a fifth of the time of importing TensorFlow. Afterwards all
    # objects are frozen, because a collection in a task would copy the pages that tasks share.
    thresholds = gc.get_threshold()
    gc.set_threshold(_NEVER, *thresholds[1:])
    sys.meta_path.insert(0, watch)
    try:
        return _import_modules(modules)
    finally:
        sys.meta_path.remove(watch)
        watch.look()
        gc.freeze()
        if gc.get_threshold()[0] == _NEVER:  # otherwise a module has changed it, which applies to the tasks as well
            gc.set_threshold(*thresholds)


def _import_modules(modules: list[str]) -> tuple[bytes, str]:
    with tempfile.TemporaryFile() as file:
        saved = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        module = ""
        try:
            for module in modules:
                name, is_variable, value = module.partition("=")
                if is_variable:
                    os.environ[name] = value
                else:
                    importlib.import_module(module)
        except BaseException as error:
            return b"", f"{module} could not be imported: {type(error).__name__}: {error}".rstrip(": ")
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number in (2, 1):
                copy = saved.pop()
                os.dup2(copy, number)
                os.close(copy)
        file.seek(0)
        return file.read(_MAX_IMPORT_OUTPUT), ""


def _refuse(report: int, reason: str) -> None:
    line = " ".join(reason.split())[:_MAX_REASON]
    try:
        os.write(report, f"no: {line}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # the task was cancelled

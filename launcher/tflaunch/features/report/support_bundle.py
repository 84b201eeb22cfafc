"""`report`: pack plan, events and output of a run into one file, without secrets."""

from __future__ import annotations

import io
import os
import platform
import stat
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any, NamedTuple

import click
import psutil

from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import say
from tflaunch.client import runs
from tflaunch.client.secret_values import find_secrets
from tflaunch.core import replay
from tflaunch.core.job_state import Phase
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.explain import summary
from tflaunch.explain.wording import counted, memory
from tflaunch.features.report.redaction import HIDDEN, Redactor, secrets_in_command, secrets_in_environment
from tflaunch.plan.model import SecretSource
from tflaunch.store import journal
from tflaunch.store.log_writer import path_of, tail
from tflaunch_worker import wire

_LOG_TAIL = 4 * 1024 * 1024
_MOST_PLAN = 256 * 1024 * 1024
_PACKAGES = ("tensorflow", "tf-keras", "keras", "tensorboard", "click", "paramiko", "psutil", "pydantic")
BLIND = (
    "those in other forms, such as cookies, lines of .netrc and arguments of curl -u or sshpass -p, are not found:"
    " look with --show before you share"
)
"""Which secrets stay."""


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write to FILE, in place of what is there; - is stdout. Default: a new file RUN-report.tar.gz here.",
)
@click.option("--logs", "with_logs", is_flag=True, help="Also pack the last 4 MiB of what each task has printed.")
@click.option("--dry-run", is_flag=True, help="Only list what would be packed.")
@click.option("--show", is_flag=True, help="Only print the text that would be packed.")
def report(run: str | None, output: str | None, with_logs: bool, dry_run: bool, show: bool) -> None:
    """Pack what tflaunch knows about RUN into one file for a question; print its path.

    It contains the spec, the plan, the journal and a description of this machine, and the output of tasks only with
    --logs. Secrets are replaced by ***: values of variables, options and fields whose names say so, such as API_KEY or
    password, passwords in URLs, private keys, and what has the form of a known token. Each file is listed with the
    number of replaced secrets. Secrets in any other form stay, such as cookies, lines of .netrc and arguments of
    curl -u or sshpass -p, so look with --show before you share. RUN is the name of a run or job, or a prefix of one:
    the live run is used, or else the newest.

    \b
    Example:
      tflaunch report --logs --show | less
      tflaunch report -o question.tar.gz
    """
    if output is not None and (dry_run or show):
        raise click.UsageError("-o writes a report; --dry-run and --show write none; leave out one of them")
    directory = runs.find_run(run)
    diagnosis = diagnose(directory, with_logs)
    if dry_run or show:
        entries = []
        for entry, data in _contents(directory, diagnosis, with_logs):
            entries.append(entry)
            if show and data is not None:
                sys.stdout.buffer.write(f"==> {entry.name} <==\n".encode() + data + b"\n")
        _list(entries, is_result=not show)
        return
    if output == "-" and sys.stdout.isatty():
        raise TflaunchError("stdout is a terminal; name a file with -o", EXIT_USAGE)
    if output == "-":
        _list(pack(directory, diagnosis, sys.stdout.buffer, with_logs))
    else:
        path = Path(output or f"{directory.name}-report.tar.gz")
        _list(pack_file(directory, diagnosis, path, with_logs, replace=output is not None))
    say(f"secrets that were found are replaced; {BLIND}")
    if output != "-":
        click.echo(path)


def _list(entries: Sequence[Entry], is_result: bool = False) -> None:
    """List a report's entries, on stdout if the list is the requested result."""
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        hidden = f"{counted(entry.hidden, 'secret')} replaced" if entry.hidden else ""
        remarks = ", ".join(filter(None, [hidden, entry.note]))
        line = f"{entry.name:<{width}}  {memory(entry.size):>6}  {remarks}".rstrip()
        click.echo(line, err=not is_result)


class Entry(NamedTuple):
    """A file of a report; ``size``: in bytes; ``hidden``: number of replaced secrets.

    ``note`` says which part of the file is included, "" for all of it.
    """

    name: str
    size: int
    hidden: int
    note: str


def diagnose(directory: Path, with_logs: bool) -> str:
    """Return the state or the end of a run, according to its journal.

    ``with_logs``: also the last lines of its output.
    """
    head = f"run {directory.name} {'is live' if runs.is_live(directory) else 'has no supervisor'}"
    try:
        records, job = journal.read_job(directory)
    except TflaunchError as error:
        return f"{head}; its journal cannot be read: {error}"
    if job.phase is not Phase.ENDED:
        tasks = "\n".join(f"{task.task}: {task.phase.value}, attempt {task.attempt}" for task in job.tasks.values())
        return f"{head}; it is {job.phase.value}\n{tasks}"
    logs, known = Path(records[0]["logs"]), replay.annotations_in(records)
    text = summary.summary(job, str(logs), lambda *about: tail(logs, *about) if with_logs else [], known=known)
    return f"{head}\n{text}"


def pack_file(run: Path, diagnosis: str, path: Path, with_logs: bool, *, replace: bool) -> list[Entry]:
    """Write a run's report to a file as `pack`, in place of one if ``replace``.

    Raises:
        OSError: something cannot be read or written; an incomplete file is removed.
        TflaunchError: the file exists.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if replace else os.O_EXCL)
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        raise TflaunchError(f"{path} exists; remove it, or name a file with -o", EXIT_USAGE) from None
    with open(descriptor, "wb") as file:
        try:
            entries = pack(run, diagnosis, file, with_logs)
            file.flush()
        except BaseException:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                path.unlink(missing_ok=True)
            raise
    return entries


def pack(run: Path, diagnosis: str, out: IO[bytes], with_logs: bool) -> list[Entry]:
    """Write a run's report, a .tar.gz file, to a stream; return its entries."""
    entries = []
    with tarfile.open(fileobj=out, mode="w|gz") as archive:
        for entry, data in _contents(run, diagnosis, with_logs):
            entries.append(entry)
            if data is not None:
                _add(archive, f"{run.name}-report/{entry.name}", data)
        lines = [f"{entry.name}{f': {entry.note}' if entry.note else ''}" for entry in entries]
        lines.append(f"\nSecrets that were found are replaced by {HIDDEN.decode()}; {BLIND}.\n")
        _add(archive, f"{run.name}-report/contents.txt", "\n".join(lines).encode("utf-8", "surrogateescape"))
    return entries


def _contents(run: Path, diagnosis: str, with_logs: bool) -> Iterator[tuple[Entry, bytes | None]]:
    """Yield the files of a report without secrets; unreadable ones lack data."""
    values = secrets_of(run)
    for name, text in (("diagnosis.txt", diagnosis), ("machine.txt", _machine())):
        redactor = Redactor(values)
        data = redactor.redact(text.rstrip("\n") + "\n")
        yield Entry(name, len(data), redactor.hidden, ""), data
    for name, path, most in _sources(run):
        if most is not None and not with_logs:
            yield Entry(name, 0, 0, "not packed, --logs adds it"), None
            continue
        redactor = Redactor(values)
        try:
            data, note = _read(path, most, redactor)
        except OSError as error:
            yield Entry(name, 0, 0, f"not packed, {error.strerror}"), None
            continue
        yield Entry(name, len(data), redactor.hidden, note), data


def _sources(run: Path) -> Iterator[tuple[str, Path, int | None]]:
    """Yield files of a run, and how many bytes at their ends are packed, None for all."""
    for path in [*sorted(run.glob("spec.*")), run / "plan.json", run / "events.jsonl"]:
        yield path.name, path, None
    logs = sorted(run.glob("logs/*"))
    if (run / "logs").is_symlink():  # --log-dir, which may contain other files
        names = {path_of(run, _field(task, "task", str)).name for task in _tasks(run)}
        logs = [path for path in logs if path.name in names]
    for path in logs:
        yield f"logs/{path.name}", path, _LOG_TAIL


def _read(path: Path, most: int | None, redactor: Redactor) -> tuple[bytes, str]:
    """Return a file without secrets, and a note on the part that is included.

    Cutting off the beginning of a file may cut a secret in half, which is then not recognized: the text before the
    first complete line is left out, too. OSError: it cannot be read, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(0, "it is not a regular file")
        start = 0 if most is None else max(state.st_size - most, 0)
        file.seek(start)
        shown = redactor.redact(file.read(state.st_size - start))  # the file may be growing
    if not start:
        return shown, ""
    line = shown.find(b"\n", 0, redactor.longest)
    doubtful = redactor.longest if line < 0 else line + 1
    return shown[doubtful:], f"the last {_LOG_TAIL // 2**20} MiB of {state.st_size / 2**20:.0f}"


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mtime = int(time.time())
    entry.mode = 0o600
    archive.addfile(entry, io.BytesIO(data))


def secrets_of(run: Path) -> set[str]:
    """Return the secret values of the plan and of this process's environment."""
    found = secrets_in_environment(os.environ) | _declared_secrets(run)
    for task in _tasks(run):
        found |= secrets_in_environment(_field(task, "env", dict)) | secrets_in_command(_field(task, "argv", list))
    return found


def _declared_secrets(run: Path) -> set[str]:
    try:
        sources = {name: SecretSource(**source) for name, source in _plan(run).get("secrets", {}).items()}
        secrets, _ = find_secrets(sources)
    except (AttributeError, TypeError):
        return set()
    return {value for value in secrets.values() if value is not None}


def _tasks(run: Path) -> list[Any]:
    plan = _plan(run)
    return [*_field(plan, "tasks", list), *_field(plan, "sidecars", list)]


def _plan(run: Path) -> Any:
    """Return the plan, an empty object if it is missing or damaged."""
    try:
        with (run / "plan.json").open("rb") as file:
            return wire.parse(file.read(_MOST_PLAN), max_values=_MOST_PLAN)
    except (OSError, ValueError):
        return {}


def _field(task: Any, name: str, kind: type[Any]) -> Any:
    """Return a field of a plan or a task, empty if it is damaged."""
    value = task.get(name) if isinstance(task, dict) else None
    return value if isinstance(value, kind) else kind()


def _machine() -> str:
    """Describe this machine and the versions of packages, without imports."""
    memory = psutil.virtual_memory()
    lines = [
        _version("tflaunch"),
        f"Python {platform.python_version()} ({platform.python_implementation()})",
        f"platform {platform.platform()}",
        f"kernel {platform.release()} {platform.version()}",
        f"cores {psutil.cpu_count()}, physical {psutil.cpu_count(logical=False)}",
        f"memory {memory.total:,} bytes, available {memory.available:,}",
        *map(_version, _PACKAGES),
    ]
    return "\n".join(lines)


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} is not installed here"

"""Keep a second copy of a run directory at the other end of a command, such as `kubectl exec` into another pod.

The journal is copied before the supervisor acts on what it says: one that takes over from the copy knows every command
that agents have got. Other files follow within a second. Supervisors are numbered; the copy takes changes from the
last one alone.

A change is a line of JSON with path, offset and size, and the bytes, or, for a checkpoint that is not kept any longer,
with its path and `is_removed`. It is answered by a line.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import stat
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from tflaunch import private_files
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.store.checkpoint_copies import PARTS_NAME
from tflaunch.store.run_dir import CHECKPOINTS_NAME, JOURNAL_NAME, RESERVE_NAME, SOCKET_NAME
from tflaunch_worker import wire

_NUMBER_NAME = "supervisor-number"
_RUN = "run"  # the run directory in the copy
_NOT_COPIED = (SOCKET_NAME, RESERVE_NAME, "lock", "agents", PARTS_NAME)
_APPENDED = ("events.jsonl", "marks.jsonl", "samples.jsonl", "supervisor.log")
_APPENDED_IN = ("logs", "times")
_PART = 256 * 1024
_ANSWER_PATIENCE = 3.0  # seconds in which the copy must take a change
_CONNECT_PATIENCE = 20.0
_BETWEEN_ROUNDS = 1.0  # seconds
_YIELD = 0.001  # seconds, in which the journal can be sent between other files
_OLDER = "superseded"


class CopyError(Exception):
    """Raised when the copy cannot be reached or does not answer; the message is one sentence."""


class SupersededError(CopyError):
    """Raised when a later supervisor has taken the copy over."""


# ---- where the copy is


def put_copy(state: Path, secrets: Path, stream: IO[bytes]) -> None:
    """Store the first content of a copy: a line with the values of secrets, and a tar archive of the run directory."""
    private_files.write_text(secrets, stream.readline().decode())
    unpack_copy(stream, state, _RUN)
    (state / _NUMBER_NAME).write_text("0")


def take_copy(state: Path, secrets: Path | None, stream: IO[bytes]) -> None:
    """Write a copy as a tar archive.

    A supervisor that takes the copy over gives the file with the values of secrets: it also gets a line before the
    archive, with its number and these values.

    Raises:
        TflaunchError: there is no copy.
    """
    try:
        number = int((state / _NUMBER_NAME).read_text())
    except (OSError, ValueError):
        raise TflaunchError("there is no copy of the run here", EXIT_INTERNAL) from None
    if secrets is not None:
        number += 1
        (state / _NUMBER_NAME).write_text(str(number))
        values = wire.parse(secrets.read_bytes()) if secrets.exists() else {}
        stream.write(json.dumps({"number": number, "secrets": values}).encode() + b"\n")
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        archive.add(state / _RUN, _RUN)
    stream.flush()


def take_changes(state: Path, number: int, source: IO[bytes], answers: IO[bytes]) -> None:
    """Apply the changes of a supervisor with this number, until it hangs up or another takes over."""
    run = state / _RUN
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (state / _NUMBER_NAME).exists():  # the pod of the copy is a new one
        (state / _NUMBER_NAME).write_text(str(number))

    def is_current() -> bool:
        return int((state / _NUMBER_NAME).read_text()) == number

    sizes = {str(path.relative_to(run)): path.stat().st_size for path in run.rglob("*") if path.is_file()}
    _answer(answers, {"sizes": sizes} if is_current() else {_OLDER: True})
    for line in source:
        change = wire.parse(line)
        data = source.read(int(change["size"]))
        if not is_current():
            _answer(answers, {_OLDER: True})
            return
        if change.get("is_removed"):
            _remove(run, str(change["path"]))
        else:
            _apply(run, str(change["path"]), int(change["offset"]), data)
        _answer(answers, {})


def _answer(answers: IO[bytes], answer: Mapping[str, object]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _apply(run: Path, name: str, offset: int, data: bytes) -> None:
    path = run / _checked(name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, offset)
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)


def _remove(run: Path, name: str) -> None:
    """Remove a file, and the directories that it leaves empty."""
    path = run / _checked(name)
    path.unlink(missing_ok=True)
    for directory in itertools.takewhile(lambda parent: parent != run, path.parents):
        try:
            directory.rmdir()
        except OSError:
            return


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is not a path inside the run directory")
    return path


def pack_run(archive: tarfile.TarFile, source: Path, name: str) -> None:
    """Add a file to the archive of a run directory, as ``name`` in it; a link as the file to which it leads."""
    archive.add(source, f"{_RUN}/{name}")


def unpack_copy(stream: IO[bytes], parent: Path, name: str) -> None:
    """Unpack the archive of a run directory as ``parent``/``name``.

    Raises:
        CopyError: it is incomplete or damaged.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                member.name = str(PurePosixPath(name) / _checked(member.name).relative_to(_RUN))
                if hasattr(tarfile, "tar_filter"):
                    archive.extract(member, parent, filter="tar")
                else:  # before Python 3.11.4
                    archive.extract(member, parent)
    except (ValueError, tarfile.TarError, EOFError) as error:
        raise CopyError(f"the copy of the run cannot be read: {error}") from None


# ---- at the supervisor


class _Known(NamedTuple):
    """How far the copy has a file: bytes, and the time of the last change that it has."""

    size: int
    changed: int


class RunCopy:
    """Sends the changes of a run directory to its copy."""

    def __init__(
        self,
        directory: Path,
        command: Sequence[str],
        say: Callable[[str], None],
        tell_superseded: Callable[[], None],
    ) -> None:
        """Prepare to send.

        Args:
            directory: the run directory.
            command: runs `take_changes` where the copy is.
            say: shows a message.
            tell_superseded: called when a later supervisor has taken the copy over.
        """
        self._directory = directory
        self._command = command
        self._say = say
        self._tell_superseded = tell_superseded
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._known: dict[str, _Known] = {}
        self._is_connected = False
        self._is_told = False
        self._is_superseded = False

    @property
    def is_superseded(self) -> bool:
        """Whether a later supervisor has taken the copy over."""
        return self._is_superseded

    def start(self) -> None:
        """Send all changes, and from now on those of each second."""
        self.push()
        threading.Thread(target=self._push_repeatedly, daemon=True).start()

    def push_journal(self) -> None:
        """Send what was appended to the journal, and wait until the copy has it; unless it cannot be reached."""
        while self._is_connected and self._try(lambda: self._send_part(JOURNAL_NAME)):
            pass

    def push(self) -> bool:
        """Send all changes; return whether the copy has them."""
        if self._is_superseded:
            return False
        if not self._is_connected:
            self._try(self._connect)
        for name in list(self._changed_files()):
            while self._is_connected and self._try(lambda name=name: self._send_part(name)):  # type: ignore[misc]
                time.sleep(_YIELD)
        for name in [name for name in self._known if _is_removable(name) and self._state(name) is None]:
            if self._is_connected:
                self._try(lambda name=name: self._send_removal(name))  # type: ignore[misc]
        if self._is_connected and self._is_told:
            self._say("the copy of the run directory is complete again")
            self._is_told = False
        return self._is_connected

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._hang_up()

    def _push_repeatedly(self) -> None:
        while not self._is_superseded:
            time.sleep(_BETWEEN_ROUNDS)
            self.push()

    def _try(self, send: Callable[[], bool]) -> bool:
        """Call ``send`` with the lock held; return what it returns, False if the copy cannot be reached."""
        with self._lock:
            try:
                return send()
            except SupersededError:
                self._is_superseded = True
                self._hang_up()
                self._tell_superseded()
            except (CopyError, OSError, ValueError, KeyError) as error:
                self._hang_up()
                if not self._is_told:
                    self._say(f"warning: the copy of the run directory is behind: {error}; still trying")
                self._is_told = True
            return False

    def _connect(self) -> bool:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, bufsize=0,
        )  # fmt: skip
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        sizes = dict(self._hear(_CONNECT_PATIENCE)["sizes"])
        # Files that are only appended to are continued where the copy ends; others of another size are sent again.
        self._known = {}
        for name, size in sizes.items():
            state = self._state(name)
            if state is not None and _is_appended(name):
                self._known[name] = _Known(int(size), 0)
            elif state is not None and state.size == size:
                self._known[name] = state
            elif state is None and _is_removable(name):
                self._known[name] = _Known(int(size), 0)
        self._is_connected = True
        return True

    def _changed_files(self) -> Iterator[str]:
        """Yield the files with changes, the journal first."""
        names = [JOURNAL_NAME] if (self._directory / JOURNAL_NAME).exists() else []
        for directory, directories, files in os.walk(self._directory):
            directories[:] = [name for name in directories if name not in _NOT_COPIED]
            where = os.path.relpath(directory, self._directory)
            names += [os.path.normpath(os.path.join(where, name)) for name in files if name not in _NOT_COPIED]
        for name in dict.fromkeys(names):
            if self._state(name) != self._known.get(name):
                yield name

    def _state(self, name: str) -> _Known | None:
        try:
            status = (self._directory / name).lstat()
        except OSError:
            return None
        return _Known(status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None

    def _send_part(self, name: str) -> bool:
        """Send the next part of a file that has changed; return whether that was not all."""
        state, known = self._state(name), self._known.get(name)
        if state is None or state == known:
            return False
        # A changed time of 0 marks a file that was sent in part.
        is_going_on = known is not None and known.size <= state.size and (_is_appended(name) or known.changed == 0)
        offset = known.size if known is not None and is_going_on else 0
        try:
            with (self._directory / name).open("rb") as file:
                file.seek(offset)
                data = file.read(min(_PART, state.size - offset))
        except FileNotFoundError:
            return False  # it was removed in this moment
        self._write(json.dumps({"path": name, "offset": offset, "size": len(data)}).encode() + b"\n" + data)
        self._hear(_ANSWER_PATIENCE)
        offset += len(data)
        is_last = offset >= state.size or not data
        self._known[name] = _Known(offset, state.changed if is_last else 0)
        return not is_last

    def _send_removal(self, name: str) -> bool:
        """Have a file removed that is here no longer."""
        self._write(json.dumps({"path": name, "size": 0, "is_removed": True}).encode() + b"\n")
        self._hear(_ANSWER_PATIENCE)
        del self._known[name]
        return False

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        descriptor, end = self._process.stdin.fileno(), time.monotonic() + _ANSWER_PATIENCE
        while data:
            if not select.select([], [descriptor], [], max(end - time.monotonic(), 0))[1]:
                raise CopyError(f"it took nothing for {_ANSWER_PATIENCE:g} s")
            data = data[os.write(descriptor, data) :]

    def _hear(self, patience: float) -> dict[str, Any]:
        """Return the next answer; there is never more than one."""
        assert self._process is not None
        assert self._process.stdout is not None
        line, end = b"", time.monotonic() + patience
        while not line.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
                raise CopyError(f"no answer within {patience:g} s")
            data = os.read(self._process.stdout.fileno(), _PART)
            if not data:
                raise CopyError("its pod does not answer")
            line += data
        answer: dict[str, Any] = wire.parse(line)
        if _OLDER in answer:
            raise SupersededError
        return answer

    def _hang_up(self) -> None:
        self._is_connected = False
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process = None


def _is_removable(name: str) -> bool:
    """Return whether a file that is here no longer is removed from the copy: old checkpoints would fill its disk."""
    return name.partition("/")[0] == CHECKPOINTS_NAME


def _is_appended(name: str) -> bool:
    return name in _APPENDED or name.partition("/")[0] in _APPENDED_IN

"""Parse why a program failed from its last lines: exception, cause, user's line.

A frame is the user's own unless it is in a library or in a file that AutoGraph has generated, whose name is random.
AutoGraph, Keras and TensorFlow wrap exceptions: the message of the outer one contains the inner traceback, whose frames
and text are those that count. In::

    Traceback (most recent call last):
      File "train.py", line 7, in <module>
      File "/tmp/__autograph_generated_filedm1m_uei.py", line 15, in tf__train_function
    ValueError: in user code:

        File "train.py", line 3, in loss  *
        ValueError: Shapes (None, 3) and (None, 10) are incompatible

the sentence is the last line, and the place is line 3. Of chained exceptions the last one ended the program, and the
one above it is its cause. Output is hostile: lines are cut, patterns are bounded, and each line is read a few times.

Standard library only, Python >= 3.8: this module runs on hosts, too.
"""

from __future__ import annotations

import hashlib
import re
from typing import Iterable, NamedTuple, Sequence

from tflaunch_worker import OUTPUT_SIGNATURE, USAGE_ERROR

HEAD = "Traceback (most recent call last):"
LOG_LINE = re.compile(
    r"[IWEF]\d{4} |\d{4}-\d\d-\d\d[ T]|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL):|---- tflaunch: "
    r"|WARNING: All log messages before absl"
)
LONGEST = 200
"""Maximum number of characters of a signature."""
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")

CAUSED_BY, WHILE_HANDLED = "caused by", "while it handled"
"""How an exception followed from another: raised from it, or while it was handled."""

_DIRECT = CHAINED[1]
_MOST_LINES = 1000
_MOST_SIGNS = 2000  # characters of one line
_MESSAGE_LINES = 40
_WRAPPED_LINES = 400  # the traceback inside the message of a wrapped exception may be long
_MOST_CAUSES = 5
_SHORT = 200
_COMPARED_LINES = 3

_EXCEPTION = re.compile(r"[^\W\d]\w{0,80}(?:\.(?:\w{1,80}|<locals>)){0,9}(?:: .*|:?)$", re.DOTALL)
_INNER = re.compile(
    r"(?:\w{1,80}\.){0,9}(?P<kind>[^\W\d]\w{0,80}(?:Error|Exception|Exit|Interrupt|Iteration|Warning|Group))"
    r"(?:: (?P<text>.*)|:?$)",
    re.DOTALL,
)
_FRAME = re.compile(r' {0,80}File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})')
_RAISED_AT = re.compile(r'  File "[^"]{1,1000}", line \d{1,9}(?:, in |$)')  # faulthandler's frames have no comma
# Code, carets and, in Python 3.13, empty lines of code. A library that filters frames takes a frame's present
# instruction for that of the call, as tf_keras does; from Python 3.11 on the carets are then at any column.
_IN_TRACEBACK = re.compile(r"  |[~^ ]*$")
LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|/tensorflow/(?:python|dtensor)/|/(?:tf_)?keras/src/"
    r"|/tflaunch_worker/(?!examples/)|\.p(?:yx|xd|xi)$"
)
"""Files that are not the user's; TensorFlow and Keras are known in any directory, as `pip install --target` fills."""
_OF_PEER = re.compile(
    r"tensorflow\.CoordinationServiceError|/gloo/transport/tcp/|^(?:UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED): "
)
"""In messages of what a peer has caused, whatever the exception: of TensorFlow's coordination service (an InternalError
in every task, coordination_service_error_util.h), of gloo (a RuntimeError of torch), at the beginning of JAX's.
"""
_GENERATED = re.compile(r"(?:^|/)__autograph_generated_file|^<")
_TYPED_IN = ("<string>", "<stdin>")
_RANDOM_NAME = re.compile(r"\btmp[a-z0-9_]{8}(?![a-z0-9_])")
_STYLE = re.compile(r"\x1b\[[0-9;]{0,20}m|^\[rank\d{1,9}\]: ?")  # torch begins each line of a traceback with its rank
_WRAPPERS = re.compile(
    r"in user code:$|Graph execution error:$|Exception encountered when calling |.{0,1500}Error encountered:$"
    r"|Detected at node |<stack traces|Stack trace for op|\[\[\{\{|\d{1,9} root error\(s\) found|Traceback \(most"
)
_STATUS = re.compile(r"\(\d{1,3}\) [A-Z_]{1,40}:\s{1,4}")
_NODE = re.compile(r"\{\{function_node [^}]{0,500}\}\} ?")
_OPERATION = re.compile(r" \[Op:\w{1,200}\](?: name:)? ?$")
_FATAL = re.compile(
    r"F\d{4} [^\]]{0,200}\] (?P<logged>.+)|(?P<python>Fatal Python error: .+)"
    r"|terminate called (?:after throwing an instance of '(?P<thrown>[^']{1,200})'|without an active exception)"
    r"|(?P<of_libc>(?:\*\*\* stack smashing detected|double free or corruption|corrupted (?:size|double-linked)"
    r"|(?:free|malloc|realloc|munmap_chunk)\(\): ).{0,200}|libc\+\+abi: terminating.{0,1000})"
)
_PYTHON_LOG = re.compile(r" (?P<file>[^\s/]{1,200}\.py):(?P<line>\d{1,9})\]")
_IGNORED, _IN_THREAD = "Exception ignored ", "Exception in thread "
_LONGEST_NAME = 60
_ONLY_TRACES = ("SimplifiedTraceback", "UnfilteredStackTrace", "JaxStackTraceBeforeTransformation")  # of JAX
_MARGIN = re.compile(r" {2,80}(?:\| ?|\+-.*)")  # of the members of an exception group; the last one counts
_USAGE = re.compile(r"[Uu]sage: ")
_REFUSED = re.compile(r"(?:\S.{0,200}: error|Error): (?P<text>.+)|FATAL Flags parsing error: (?P<of_absl>.+)")
_AFTER_REFUSAL = "Pass --help"  # of absl
_USAGE_LINES = 60
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]*\d[0-9a-fA-F]*")


class Frame(NamedTuple):
    """A line of code: the path as Python wrote it, and the line's number."""

    file: str
    line: int

    @property
    def is_own(self) -> bool:
        """Whether it is in a file of the user."""
        return not (LIBRARY.search(self.file) or _GENERATED.search(self.file))


class Failure(NamedTuple):
    """Why a program failed.

    Attributes:
        kind: the name of the exception, without its module, or `USAGE_ERROR`; "" if neither ended the program.
        text: its message in one line, without what TensorFlow, Keras and AutoGraph put around it.
        frame: the innermost frame of the user's code, or else of any code; None if none is known.
        cause: the exception that this one followed from, None without one.
        link: how ``cause`` led to it: raised ``from`` it, while it was handled, or after it had ended a thread.
        start: the index of the traceback's first line, or of what is left of it.
        exception: the index of the line with the exception.
        end: the index after its message.
    """

    kind: str
    text: str
    frame: Frame | None
    cause: Failure | None = None
    link: str = CAUSED_BY
    start: int = 0
    exception: int = 0
    end: int = 0

    @property
    def sentence(self) -> str:
        """Kind and text, as ``ValueError: Shapes are incompatible``, up to 200 characters."""
        sentence = f"{self.kind}: {self.text}" if self.kind and self.text else self.kind or self.text
        return sentence if len(sentence) <= _SHORT else sentence[: _SHORT - 1] + "…"

    @property
    def place(self) -> str:
        """``train.py, line 7``; "" if it is not known."""
        return "" if self.frame is None else f"{self.frame.file.rpartition('/')[2]}, line {self.frame.line}"

    @property
    def identity(self) -> str:
        """What equal failures of tasks and attempts share: ``ValueError at train.py:7``.

        The message is not part of it: it may contain numbers that differ, and values that belong into logs only. But it
        tells what a peer has caused, which is an ``UnavailableError``.
        """
        kind = "UnavailableError" if _OF_PEER.search(self.text) else self.kind
        if self.frame is None:
            return kind
        file = _RANDOM_NAME.sub("tmp#", self.frame.file.rpartition("/")[2])
        return f"{kind} at {file}:{self.frame.line}"


def bounded(lines: Sequence[str]) -> list[str]:
    """Return the last lines without colors and ranks, each cut for patterns."""
    lines = [line.rstrip().rpartition("\r")[2][:_MOST_SIGNS] for line in lines[-_MOST_LINES:]]
    return [_STYLE.sub("", line).rstrip() for line in lines]


def find_failure(lines: Sequence[str]) -> Failure | None:
    """Return the failure that a program's last lines tell, None if they tell none.

    The lines are `bounded`; indexes in the result refer to them.
    """
    lines = [_MARGIN.sub("", line, 1) for line in lines]
    raised = _raised(lines, len(lines), _MOST_CAUSES)
    fatal = _fatal(lines, raised.end if raised is not None else 0)
    if raised is not None and fatal is not None:  # C++ may abort while the interpreter exits
        between = lines[raised.end : fatal.start]
        return fatal if any(line and not LOG_LINE.match(line) for line in between) else raised
    return fatal or _usage_error(lines, raised.end if raised is not None else 0) or raised


def failure_signature(tail: bytes) -> str:
    """Return a signature such as ``ValueError at train.py:41``, or "" without output.

    The supervisor compares signatures to decide whether a restart is worthwhile. ``tail``: the last few KiB of output.
    """
    lines = bounded(tail.decode("utf-8", "replace").split("\n"))
    failure = find_failure(lines)
    if failure is not None and failure.kind:
        return failure.identity[:LONGEST]
    said = [failure.sentence, failure.place] if failure is not None else lines
    last = [line.strip() for line in said if line.strip()][-_COMPARED_LINES:]
    if not last:
        return ""
    same = _CHANGING.sub("#", _RANDOM_NAME.sub("tmp#", "\n".join(last)))  # times, ports, pids, temporary files' names
    return OUTPUT_SIGNATURE + hashlib.sha256(same.encode("utf-8", "replace")).hexdigest()[:12]


def frames_in(lines: Iterable[str]) -> list[Frame]:
    """Return the frames of a traceback's lines."""
    found = (_FRAME.match(line) for line in lines)
    return [Frame(match["file"], int(match["line"])) for match in found if match is not None]


def innermost(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's, else library, else any code, or None."""
    own = [frame for frame in frames if frame.is_own]
    typed_in = [frame for frame in frames if frame.file in _TYPED_IN]
    written = [frame for frame in frames if not _GENERATED.search(frame.file)]
    return next((found[-1] for found in (own, typed_in, written, list(frames)) if found), None)


def _usage_error(lines: Sequence[str], after: int) -> Failure | None:
    """Return the error of a parser of arguments in the last lines."""
    said = [number for number in range(after, len(lines)) if lines[number] and not LOG_LINE.match(lines[number])]
    last = next((number for number in reversed(said) if not lines[number].startswith(_AFTER_REFUSAL)), None)
    refused = None if last is None else _REFUSED.match(lines[last])
    if last is None or refused is None:
        return None
    if refused["of_absl"]:
        return Failure(USAGE_ERROR, refused["of_absl"], None, start=last, exception=last, end=last + 1)
    start = next((number for number in said[-2:-_USAGE_LINES:-1] if _USAGE.match(lines[number])), None)
    if start is None:
        return None
    return Failure(USAGE_ERROR, refused["text"], None, start=start, exception=last, end=last + 1)


def _raised(lines: Sequence[str], stop: int, most: int) -> Failure | None:
    """Return the last exception with frames before ``stop``; at most ``most`` causes."""
    place, of_thread = _decisive_exception(lines, stop)
    if place is None:
        return None
    failure = _read_exception(lines, place, stop)
    marker_at = next((number for number in range(failure.start - 1, 0, -1) if lines[number]), 0)
    if lines[marker_at].startswith(CHAINED):
        cause = _raised(lines, marker_at, most - 1) if most else None
        is_real = cause is not None and cause.kind not in _ONLY_TRACES
        link = CAUSED_BY if lines[marker_at].startswith(_DIRECT) else WHILE_HANDLED
        return failure._replace(cause=cause if is_real else None, link=link)
    if of_thread is None:
        return failure
    name = lines[of_thread[0] - 1][len(_IN_THREAD) :].rstrip(":")[:_LONGEST_NAME]
    link = f"after thread {name} had failed with"
    return failure._replace(cause=_read_exception(lines, of_thread, failure.start), link=link)


def _read_exception(lines: Sequence[str], place: tuple[int, int], stop: int) -> Failure:
    start, exception = place
    end = _message_end(lines, exception, stop)
    kind, text, inner = _unwrapped(lines[exception:end])
    frames = frames_in(line for line in lines[start:exception] if not LOG_LINE.match(line))
    own = [frame for frame in inner if frame.is_own]
    return Failure(kind, text, own[-1] if own else innermost(frames), start=start, exception=exception, end=end)


def _decisive_exception(lines: Sequence[str], stop: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Return positions of the last decisive exception, and of a thread's before it.

    What a destructor or a thread raises may come after it, but does not end a program; that of a thread counts if there
    is no other.
    """
    decisive, last_of_thread = None, None
    place = _last_exception(lines, stop)
    while place is not None:
        above = lines[place[0] - 1] if place[0] else ""
        if above.startswith(_IN_THREAD):
            if decisive is not None:
                return decisive, place
            last_of_thread = last_of_thread or place
        elif decisive is None and not above.startswith(_IGNORED):
            decisive = place
        place = _last_exception(lines, place[0])
    return decisive or last_of_thread, None


def _last_exception(lines: Sequence[str], stop: int) -> tuple[int, int] | None:
    """Return the line indexes of the last traceback, maybe cut, and its exception."""
    for number in range(stop - 1, 0, -1):
        if _EXCEPTION.match(lines[number]) and not LOG_LINE.match(lines[number]):
            start = _first_line(lines, number)
            if any(_RAISED_AT.match(line) for line in lines[start:number]):
                return start, number
    return None


def _first_line(lines: Sequence[str], exception: int) -> int:
    """Return where an exception's traceback begins: its head, or the first kept line."""
    start = exception
    while start and (_IN_TRACEBACK.match(lines[start - 1]) or LOG_LINE.match(lines[start - 1])):
        start -= 1
    if start and lines[start - 1].endswith(HEAD) and lines[start]:
        return start - 1
    # Elsewhere an empty line is not code: TensorFlow has one behind each frame of a traceback in a message.
    return next((number + 1 for number in range(exception - 1, start - 1, -1) if not lines[number]), start)


def _message_end(lines: Sequence[str], exception: int, stop: int) -> int:
    """Return the index after an exception's message lines, without later log lines."""
    first = lines[exception]
    follows = lines[exception + 1 : exception + 3] == [HEAD, ""]  # TensorFlow tells an exception of its callback so
    is_wrapped = follows or _WRAPPERS.match(first.partition(": ")[2]) is not None
    is_open = is_wrapped or first.endswith(":")
    end = exception + 1
    while end < min(stop, exception + (_WRAPPED_LINES if is_wrapped else _MESSAGE_LINES)):
        line = lines[end]
        is_next = line == HEAD and lines[end + 1 : end + 2] != [""]
        is_chained = line.startswith(CHAINED) and not follows
        if (not line and not is_open) or is_next or is_chained or LOG_LINE.match(line) or _FATAL.match(line):
            break
        end += 1
        if " [Op:" in line:
            break
    while end > exception + 1 and not lines[end - 1].strip():
        end -= 1
    return end


def _unwrapped(message: Sequence[str]) -> tuple[str, str, list[Frame]]:
    """Return kind and text of the innermost exception in a message, and all frames."""
    name, _, text = message[0].partition(": ")
    kind = name.rstrip(":").rpartition(".")[2]
    frames: list[Frame] = []
    depth = -1  # of the frames that were read last
    is_wanted, told = _WRAPPERS.match(text) is not None, 0
    for number, line in enumerate(message[1:], 1):
        words = line.strip()
        found = _FRAME.match(line)
        if found is not None:
            frames.append(Frame(found["file"], int(found["line"])))
            depth = len(line) - len(line.lstrip())
        elif words and (is_wanted or depth >= 0) and not len(line) - len(line.lstrip()) > depth >= 0:
            inner = _INNER.match(words)
            words = words if inner is None else inner["text"] or ""
            kind = kind if inner is None else inner["kind"]
            is_wanted, depth = _WRAPPERS.match(words) is not None, -1
            text, told = (text, told) if is_wanted else (words, number)
    if text.endswith(":") or (not text and name.endswith(":")):  # what it announces comes in the next line
        text += "".join([f" {line.strip()}" for line in message[told + 1 :] if line.strip()][:1])
    return kind, _OPERATION.sub("", _STATUS.sub("", _NODE.sub("", text.strip()))).strip(), frames


def _fatal(lines: Sequence[str], start: int) -> Failure | None:
    """Find an end without an exception: a fatal log line, an abort or a crash."""
    for number in range(start, len(lines)):
        found = _FATAL.match(lines[number])
        if found is None:
            continue
        text, frame = found["logged"] or found["python"] or found["of_libc"], None
        if text is None:
            said = lines[number + 1] if number + 1 < len(lines) else ""
            what = said.partition("what():")[2].strip()
            text = ": ".join(filter(None, [found["thrown"] or "terminate called", what]))
        logged = _PYTHON_LOG.search(lines[number][:_SHORT]) if found["logged"] else None
        if logged is not None:
            frame = Frame(logged["file"], int(logged["line"]))
        place = frame or _crashed_at(lines[number:])
        return Failure("", text, place, start=number, exception=number, end=number + 1)
    return None


def _crashed_at(lines: Sequence[str]) -> Frame | None:
    """Return the innermost frame of the crashed thread in `faulthandler` output."""
    heads = [number for number, line in enumerate(lines) if line.startswith(("Current thread 0x", "Thread 0x"))]
    if not heads:
        return None
    begin = 1 + next((number for number in heads if lines[number].startswith("Current")), heads[0])
    end = next((number for number in range(begin, len(lines)) if not lines[number].startswith("  ")), len(lines))
    return innermost(frames_in(lines[begin:end])[::-1])

"""The frames of an agent: a run with two hosts, one of them sending arbitrary frames."""

import itertools
import json
import random
import struct
from pathlib import Path
from typing import Any, get_args

from fuzz.any_record import any_record
from fuzz.borders import Border
from fuzz.mutations import Raw, any_value, as_json, mutate, mutate_bytes, mutate_order
from fuzz.stages import AgentConnector, FileStore, Finished, Line, OutputWriter, Records, StillMailbox, check_sentence
from support.job_history import RUN, TASK
from support.specs import planned
from tflaunch.agents.link_state import Terms
from tflaunch.agents.session import Session
from tflaunch.core import step
from tflaunch.core.events import AgentEvent
from tflaunch.core.states import Measure
from tflaunch.errors import TflaunchError
from tflaunch.explain.run_status import Status
from tflaunch.explain.status import StatusInputs, status
from tflaunch.features.checkpoints.checkpoint_link import CheckpointLink
from tflaunch.features.code.user_code import Code, File
from tflaunch.features.debug import LINK_LOST
from tflaunch.features.debug.debugger_relay import REASONS, Debugging
from tflaunch.features.hang import hang
from tflaunch.features.hang.evidence import Evidence
from tflaunch.features.hang.evidence_collector import Collector
from tflaunch.features.memory.memory_growth import HostVitals, MemoryGrowth, watch_memory
from tflaunch.features.metrics.metrics import families
from tflaunch.features.profile.profiler import profile
from tflaunch.features.uploads import HashedFile
from tflaunch.records import as_json as record_as_json
from tflaunch.records import read_record
from tflaunch.runtime import usage_sampler
from tflaunch.runtime.loop import Collaborators, Run
from tflaunch_worker import wire
from tflaunch_worker.function import OUTCOME

_SPEC = {
    "cluster": {"worker": ["a:2222", "a:2223", "b:2224"]},
    "command": ["train"],
    "sync": {},
    "restart": {"max": 1, "backoff": [0, 0]},
    "timeouts": {"lease": 30, "heartbeat": 5},
}
_PLAN = planned(_SPEC)._replace(function="/function")
_WITHOUT_RESTART = planned({**_SPEC, "restart": {"max": 0}})
_HASH = "ab" * 32
_CODE = Code(Path("/dev"), (File("null", 0o644, _HASH, 0),), ())
_SIZE = struct.Struct("!I")
_PULSE = {"obeyed": 0, "sent": 0.0, "time": 7.5}
_GREETING = {
    "kind": "greeted", "protocol": wire.PROTOCOL, "pid": 9, "is_leaving": False, "streams": [], "gpus": 2, **_PULSE,
    "addresses": ["10.0.0.1", "::1"], "no_way_out": "pasta is not installed there",
}  # fmt: skip
_FOUND = {"number": 1, "name": "ckpt-1", "step": 1, "age": 2.5, "files": [["ckpt-1.index", 5, _HASH]]}

Message = tuple[dict[str, Any], bytes]

_FRAMES = {"frames": [["/code/train.py", 40, "read"]]}
_THREAD = {"id": 7, "state": "S", "wchan": "pipe_read", "target": "pipe:[12]", "has_moved": False, **_FRAMES}
_SOCKET = {"state": "listening", "local": "[::]:1", "peer": "[::]:0", "unsent": 0, "is_stuck": False}
_PROCESS = {"pid": 7, "name": "python", "state": "S", "cpu": 0.5, "unread": ""}
_EVIDENCE: dict[str, Any] = {
    "silence": 2.5,
    "progress": {"step": 3, "age": 0.5},
    "processes": [{**_PROCESS, "threads": [_THREAD], "sockets": [_SOCKET]}],
}


def generate(chance: random.Random) -> bytes:
    """Return what host a sends: mostly a valid session with a few changes."""
    frames: list[bytes] = [_frame(message, body) for message, body in _mutated(_script("a", (0, 1)), chance)]
    if chance.random() < 0.15:
        place = chance.randrange(len(frames))
        frames[place] = mutate_bytes(frames[place], chance)
    return b"".join(_SIZE.pack(len(frame)) + frame for frame in frames)


def check(case: bytes) -> None:
    is_restarted = len(case) % 2 == 0
    words, said = OutputWriter(), list[str]()
    plan = _PLAN if is_restarted else _WITHOUT_RESTART
    links = {"a": [Line() for _ in range(4)], "b": [Line()]}
    mailbox = StillMailbox([line for lines in links.values() for line in lines])
    frames = {"a": _cut(case), "b": [_frame(*message) for message in _script("b", (2,))]}
    sessions: dict[str, Any] = {}
    terms = Terms("run", plan.lease, plan.timeouts.grace, plan.timeouts.heartbeat)
    for host, lines in links.items():
        way, later = AgentConnector(lines[1:], lines[0]), mailbox.call
        sessions[host] = Session(host, way, terms, mailbox, words, FileStore(), later)  # type: ignore[arg-type]
        watch_memory(sessions[host], _check_vitals)
    run = Run(
        step.begin_job("run", plan, mailbox.now()),
        Collaborators(mailbox, Records(), words, sessions, said.append, "logs", _CODE),  # type: ignore[arg-type]
    )

    def go_on() -> bool:
        has_served = False
        for host, waiting in frames.items():
            line = next((line for line in links[host] if not line.is_closed), None)
            if line is None or line.serve is None:
                continue  # its next link is still being established
            if line is not links[host][0] and not line.has_begun:
                line.arrive(_frame(_GREETING))
            line.has_begun = True
            if sessions[host].started_attempts and host not in called:
                called.add(host)
                _call(sessions[host], mailbox)
            line.arrive(waiting.pop(0) if waiting else b"")
            line.serve()
            has_served = True
        return has_served

    called: set[str] = set()
    mailbox.idle = go_on
    try:
        run.execute()
        assert 0 <= run.exit_code <= 255, run.exit_code
    except (Finished, TflaunchError) as error:
        check_sentence(str(error))
    for sentence in said:
        check_sentence(sentence)
    _check_status(run, mailbox)


def _call(session: Session, mailbox: Any) -> None:
    usage_sampler.measure(session, _check_measures, lambda: None)
    Collector({"h1": session}, mailbox, "gather_evidence").collect(lambda found, _: _check_evidence(*found.values()))
    profile(session.calls, "worker:0", 0, 1.0, lambda problem, _: check_sentence(problem))
    Debugging(session.calls, "worker:0", 0, _Caller(), lambda: None)  # type: ignore[arg-type]
    link = CheckpointLink("h1", session.calls.begin, lambda: None)
    link.find("/w", "state", "", lambda *told: check_sentence(told[-1]), wait=True)
    files = [HashedFile("ckpt-1.index", 5, _HASH)]
    link.place(["/w"], "state", files, 1.5, lambda *told: check_sentence(told[-1]))


class _Caller:
    """A terminal that shows nothing."""

    def say(self, kind: str, **about: Any) -> None:
        """Check the place where a process waits, and why it is left; commands remove escape sequences of output."""
        if kind == "debugger_attached":
            check_sentence(about["file"] + about["function"])
        elif kind == "debugger_left":
            assert about["reason"] in (*REASONS, LINK_LOST)


def _check_status(run: Run, mailbox: StillMailbox) -> None:
    current = status(run.job, StatusInputs(0.0, "logs", True, mailbox.now()))
    assert read_record(Status, wire.parse(json.dumps(record_as_json(current), allow_nan=False))) == current
    families(current, mailbox.now())


def _check_evidence(*found: Evidence) -> None:
    """The verdict on any evidence is one printable line."""
    tasks = tuple(TASK._replace(task=f"worker:{index}", listening=bool(index)) for index in range(3))
    for evidence in found:
        verdict = hang.verdict(RUN._replace(tasks=tasks), {evidence.task: evidence})
        assert read_record(Evidence, record_as_json(evidence)) == evidence
        assert verdict.sentence.isprintable()
        assert set(verdict.culprits) <= {task.task for task in tasks}


def _check_vitals(vitals: HostVitals, moment: float) -> None:
    for task in vitals.tasks.values():
        growth = MemoryGrowth()
        growth.add(moment, task.rss)
        growth.rate(vitals.room or 0)


def _check_measures(taken: dict[str, Measure], moment: float) -> None:
    wire.parse(json.dumps([taken, moment], allow_nan=False))


def _cut(case: bytes) -> list[bytes]:
    frames, start = [], 0
    while start + _SIZE.size <= len(case):
        (size,) = _SIZE.unpack_from(case, start)
        start += _SIZE.size
        frames.append(case[start : start + size])
        start += size
    return frames


def _frame(message: Any, body: bytes = b"") -> bytes:
    head = as_json(message)
    return struct.pack("!II", len(head), len(body)) + head + body


def _mutated(script: list[Message], chance: random.Random) -> list[Message]:
    if chance.random() < 0.4:
        script = mutate_order(script, chance)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 6))):
        place = chance.randrange(len(script))
        message, body = script[place]
        script[place] = (mutate(message, chance), body if chance.random() < 0.8 else chance.randbytes(9))
    if chance.random() < 0.1:
        script = script[: chance.randrange(len(script)) + 1]
    if chance.random() < 0.2:
        extra: dict[str, Any] = chance.choice(_EXTRAS)
        places = range(chance.choice((1, 1, 1, 3, 40)))
        where = chance.randrange(len(script) + 1)
        script[where:where] = [(mutate(extra, chance), b"") for _ in places]
    if chance.random() < 0.2:
        script = _with_events(script, chance)
    return script


def _with_events(script: list[Message], chance: random.Random) -> list[Message]:
    """Return a script with events that its agent might send at that time, or must not; their numbers follow."""
    events: list[Message] = []
    for _ in range(chance.choice((1, 1, 2, 5))):
        event = any_record(chance.choice(get_args(AgentEvent)), chance)
        del event["host"]
        events.append(({**event, "seq": 0}, b""))
    where = chance.randrange(len(script) + 1)
    number = itertools.count(1)
    longer = [*script[:where], *events, *script[where:]]
    return [
        ({**each, "seq": next(number)}, body) if isinstance(each, dict) and "seq" in each else (each, body)
        for each, body in longer
    ]


def _script(host: str, indices: tuple[int, ...]) -> list[Message]:
    """Return the messages of a valid agent whose tasks train and end successfully."""
    tasks = [f"worker:{index}" for index in indices]
    said: list[dict[str, Any]] = [
        dict(_GREETING),
        {"kind": "answered", "call": 2, "wanted": [[_HASH, 0]]},
        {"kind": "answered", "call": 3},
        {"kind": "host_prepared", "seq": 0, "what": "code"},
        {"kind": "names_resolved", "seq": 0, "found": {"b" if host == "a" else "a": "10.0.0.7"}},
        {"kind": "ports_held", "seq": 0, "ports": {f"worker:{index}": 2222 + index for index in indices}},
        {"kind": "peer_seen", "seq": 0, "source": "10.0.0.9"},
        {"kind": "peers_probed", "seq": 0, "failed": {}},
        {"kind": "alive", **_PULSE},
    ]
    bodies: dict[int, bytes] = {}
    for task in tasks:
        about = {"seq": 0, "task": task, "attempt": 0}
        bodies[len(said) + 4] = b"step 1\nstep 2\n"
        said += [
            {"kind": "task_started", **about, "pid": 77, "at": 3.5, "preload": ""},
            {"kind": "port_opened", **about},
            {"kind": "outsider_refused", "seq": 0, "task": task, "source": "10.9.9.9"},
            {"kind": "port_unfenced", "seq": 0, "task": task, "reason": "not allowed"},
            {"kind": "output", "task": task, "attempt": 0, "offset": 0, "times": [[0, 3.5], [7, 3.75]]},
            {"kind": "breakpoint_reached", **about, "file": "/code/train.py", "line": 40, "function": "step"},
            {"kind": "breakpoint_left", **about, "is_quit": False},
        ]
    figures = {"attempt": 0, "cpu_seconds": 1.5, "rss_bytes": 1000, "progress": {"step": 3, "metrics": {"loss": 0.5}}}
    said.append({"kind": "answered", "call": 4, "time": 8.0, "tasks": dict.fromkeys(tasks, figures)})
    vitals = {"attempt": 0, "rss": 1000}
    said.append({"kind": "told", "call": 1, "time": 8.5, "room": 10**9, "tasks": dict.fromkeys(tasks, vitals)})
    said += [{"kind": "told", "call": 5, "task": task, "attempt": 0, **_EVIDENCE} for task in tasks]
    said.append({"kind": "answered", "call": 5})
    for task in tasks:
        about = {"seq": 0, "task": task, "attempt": 0}
        ended = {"code": 0, "signal": None, "at": 9.5, "was_told": False, "evidence": ""}
        said.append({"kind": "task_exited", **about, **ended})
        said.append({"kind": "output_lost", "task": task, "attempt": 0, "offset": 14, "size": 5})
        said.append({"kind": "output_ended", "task": task, "attempt": 0, "offset": 19})
        left = {"task": f"{task}/{OUTCOME}", "attempt": 0}
        bodies[len(said)] = b"value"
        said.append({"kind": "output", **left, "offset": 0, "times": [[0, 9.5]]})
        said.append({"kind": "output_ended", **left, "offset": 5})
        said.append({"kind": "task_gone", **about})
    seq = 0
    for message in said:
        if "seq" in message:
            seq += 1
            message["seq"] = seq
    return [(message, bodies.get(place, b"")) for place, message in enumerate(said)]


_EXTRAS: tuple[dict[str, Any], ...] = (
    {"kind": "superseded", "by": 3},
    {"kind": "refused", "reason": "no"},
    {"kind": "answered", "call": 2, "wanted": [[_HASH, 0]] * 9},
    {"kind": "answered", "call": 3},
    {"kind": "answered", "call": 99},
    {"kind": "output", "task": "worker:0/../../x", "attempt": 0, "offset": 0, "times": []},
    {"kind": "output_lost", "task": f"worker:0/{OUTCOME}", "attempt": 0, "offset": 2**40, "size": 5},
    {"kind": "answered", "call": 6, "problem": ""},
    {"kind": "told", "call": 7, "what": "attached", "file": "a", "line": 1, "function": "f"},
    {"kind": "told", "call": 7, "what": "output"},
    {"kind": "told", "call": 7, "what": "asks"},
    {"kind": "answered", "call": 7, "reason": "ended"},
    {"kind": "answered", "call": 8, "found": _FOUND, "problem": ""},
    {"kind": "answered", "call": 8, "found": None, "problem": "no room"},
    {"kind": "answered", "call": 9, "missing": [[_HASH, 0]], "problem": ""},
    {"kind": "interrupted", "signal": 2, "seq": 5},
    {"kind": "host_lost", "host": "b", "reason": "x", "seq": 5},
    {"kind": any_value(random.Random(1)), "seq": Raw("1e999")},
)

BORDER = Border(generate, check)

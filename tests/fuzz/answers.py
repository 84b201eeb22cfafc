"""Borders whose input is one small object or text, with what is read from it."""

import asyncio
import json
import random
import socket
import struct
import tempfile
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from wcwidth import wcswidth

from fuzz.borders import MEMORY, Border
from fuzz.mutations import TEXTS, as_json, mutate, mutate_bytes
from fuzz.stages import AgentConnector, Line, check_sentence
from support.job_history import RUN, TASK
from support.played_agent import PlayedAgent, agent_parts
from tflaunch.agents import snapshot
from tflaunch.explain.run_status import HostStatus, Status
from tflaunch.features.files import collect
from tflaunch.features.kubernetes import kubectl, pod_state
from tflaunch.features.kubernetes.kubectl import KubectlError
from tflaunch.features.preload import warm_servers
from tflaunch.features.profile import flame_graph
from tflaunch.features.profile.profiler import profile
from tflaunch.features.queue import tickets
from tflaunch.features.web.server import Access, Guarded
from tflaunch.records import as_json as record_as_json
from tflaunch.records import read_record
from tflaunch.tui import formatting, layout
from tflaunch_worker import wire
from tflaunch_worker.agent.calls import Calls
from tflaunch_worker.features.debug import FEATURE, breakpoints

_SERVER = {"pid": 1, "python": "python3", "modules": ["json"], "memory_bytes": 2, "uses": 3, "idle_left": 4.5}
_LISTING = {"files": [["out/a.txt", 3, "ab" * 32]], "problem": "", "directory": "/work", "left_out": 0}
_STATES: dict[str, Any] = {"state": {"running": {}}, "lastState": {"terminated": {}}}
_CONTAINER = {"name": "task", "containerID": "x", "image": "i", **_STATES}
_UNPLACED = {"type": "PodScheduled", "status": "False", "message": "m"}
_POD_STATUS = {"phase": "Pending", "reason": "r", "conditions": [_UNPLACED], "containerStatuses": [_CONTAINER]}
_POD = {"kind": "Pod", "metadata": {"name": "w-0", "uid": "u"}, "status": _POD_STATUS}
_WARNING = {"involvedObject": {"uid": "u"}, "reason": "Failed", "message": "no image"}
_PODS = [[_POD, {"kind": "StatefulSet", "metadata": {"name": "w", "uid": "s"}}], [_WARNING]]
_NEEDS = {"here": {"gpus": 2, "devices": ["0", "1"]}, "h1": {"gpus": None, "devices": []}}
_ENTRY = {"needs": _NEEDS, "values": {"lr": 1}, "ticket": f"{1:020}-7"}
_STATUS = record_as_json(RUN._replace(hosts=(HostStatus("h1", "connected"),), tasks=(TASK,), outsiders=("192.0.2.1",)))


def _objects(value: Any, chance: random.Random) -> bytes:
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        value = mutate(value, chance)
    return mutate_bytes(as_json(value), chance) if chance.random() < 0.1 else as_json(value)


def _check(read: Callable[[Any], Any], *allowed: type[Exception]) -> Callable[[bytes], None]:
    """Return a check that a message is read, or refused with one of these exceptions."""
    refused: tuple[type[Exception], ...] = (ValueError, *allowed)

    def check(case: bytes) -> None:
        try:
            read(wire.parse(case))
        except refused as error:
            check_sentence(str(error))

    return check


def _warm(value: Any) -> None:
    server = warm_servers.read_server("h1", value)
    check_sentence(warm_servers.table([server]))


def _collected(value: Any) -> None:
    listing = collect.Listing.read(value if isinstance(value, dict) else {}, ["out/*"])
    check_sentence(listing.problem)
    for path, size, _ in listing.files:
        assert path.startswith("out/"), path
        assert ".." not in path.split("/"), path
        assert size >= 0


def _status(value: Any) -> None:
    """Any status is the same after it was sent, and fits any terminal."""
    of = read_record(Status, value)
    assert read_record(Status, wire.parse(json.dumps(record_as_json(of), allow_nan=False))) == of
    width, height = 1 + len(str(value)) % 200, 1 + len(str(value)) % 50
    lines = layout.render(of, width, height, 1e6)
    assert len(lines) <= height
    for line in (*(formatting.plain(each, 10_000) for each in lines), *layout.table(of, width, 1e6).splitlines()):
        assert 0 <= wcswidth(line) <= width, line
    layout.table(of, None, 1e6)


def _check_kubectl(case: bytes) -> None:
    try:
        with kubectl.readable_answer():
            found = kubectl.parse_answer("get", case.decode("utf-8", "replace"))
            states = pod_state.read_pods(found["items"][0], found["items"][1], ["w-0", "w-1", "x-0"])
            assert len(states) == 3
    except KubectlError as error:
        check_sentence(str(error))


def _check_queue(case: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        Path(directory, tickets.QUEUED).write_bytes(case)
        entry = tickets.read_entry(Path(directory))
        assert entry is None or entry.queued >= 0


_STOPS = (
    {"kind": "stopped", "file": "/code/train.py", "line": 40, "function": "step"},
    {"kind": "resumed"}, {"kind": "output", "text": "(Pdb) "}, {"kind": "asks"}, {"kind": "quit"}, {"kind": "left"},
)  # fmt: skip


def _breakpoint(_: Any, chance: random.Random) -> bytes:
    said = chance.choices(_STOPS, k=chance.choice((1, 2, 5, 50, 500)))
    frames = [as_json(mutate(each, chance) if chance.random() * len(said) < 1 else each) for each in said]
    data = b"".join(struct.pack("!II", len(frame), 0) + frame for frame in frames)
    return mutate_bytes(data, chance) if chance.random() < 0.1 else data


def _check_breakpoint(case: bytes) -> None:
    said, watched = list[str](), dict[int, Callable[[], None]]()
    timer = SimpleNamespace(cancel=lambda: None)  # the clock does not move
    loop = SimpleNamespace(
        watch=watched.__setitem__, forget=lambda fd: watched.pop(fd, None), now=lambda: 1000.0, call_at=lambda *_: timer
    )
    link = SimpleNamespace(
        say=lambda kind, **about: said.append(json.dumps([kind, about])),
        answer=lambda *kind, **about: json.dumps([kind[0], about]),
    )
    attach = Calls(link).served_by  # type: ignore[arg-type]
    task: Any = SimpleNamespace(name="worker:0", attempt=0)
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory, socket.socket(socket.AF_UNIX) as process:
        host = SimpleNamespace(task_directory=lambda _: directory)
        points = breakpoints.HostBreakpoints(agent_parts(loop=loop, link=link, host=host))
        env = {name: variable.value for name, variable in FEATURE.variables.items()}
        points.begin_task(task, SimpleNamespace(env=env))  # type: ignore[arg-type]
        process.connect(f"{directory}/{breakpoints.SOCKET_NAME}")
        (accept,) = watched.values()
        accept()
        process.setblocking(False)
        process.send(case)  # as much as there is room for
        for number in range(6):
            for call in list(watched.values()):
                call()
            attach(points.attach_debugger)({"call": number, "task": "worker:0", "attempt": 0})
        points.stop_task("worker:0")
    assert len(said) <= 42  # 20 times reached and left, and a quit each


_HEADERS = ("host", "origin", "cookie", "sec-fetch-site", "sec-fetch-mode")
_VALUES = (
    "localhost:7575", "127.0.0.1", "http://localhost:7575", "tflaunch-7575=x", "tflaunch-7575", "=;;=", "none",
    "same-origin", "navigate", "[::1]:7575", ":", "null", *TEXTS[:30],
)  # fmt: skip


def _browser(_: Any, chance: random.Random) -> bytes:
    headers = [[chance.choice(_HEADERS), chance.choice(_VALUES)] for _ in range(chance.randrange(6))]
    asked = {"method": chance.choice(("GET", "POST", "HEAD", "X")), "path": chance.choice(("/", "/api/live", "/x"))}
    query = chance.choice(("", "token=x", "token=", "token=%ff", "token=\xff&token", "&&=", "token=x" * 9))
    return json.dumps({**asked, "query": query, "headers": headers}).encode()


def _check_browser(case: bytes) -> None:
    async def app(*_: Any) -> None:
        raise AssertionError("a request without the cookie reaches the page")

    async def nothing() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    asked, sent = json.loads(case), list[dict[str, Any]]()
    headers = [(name.encode(), value.encode("utf-8", "surrogatepass")) for name, value in asked["headers"]]
    scope = {"type": "http", "method": asked["method"], "path": asked["path"], "headers": headers}
    scope["query_string"] = asked["query"].encode("latin-1")
    with ThreadPoolExecutor(1) as thread:  # Playwright's loop runs in the main one for as long as its tests do
        thread.submit(asyncio.run, Guarded(app, Access(lambda _: None), 7575)(scope, nothing, send)).result()
    assert sent[0]["status"] == 403


_FRAMES = (
    "main thread", "f (a.py:1)", "g\x1b]0;x\x07", "\u202eevil", "<script>", "\ud800", "", " 0", " 1e9", "a\rb", "\x85",
)  # fmt: skip
_COUNTS = ("1", "7", "0", "-1", "9" * 400, "1_0", "\u0663", "", "nan", "1 2")


def _profile(_: Any, chance: random.Random) -> bytes:
    lines = [
        ";".join(chance.choices(_FRAMES, k=chance.choice((1, 2, 3, 300)))) + " " + chance.choice((*_COUNTS, "3", "4"))
        for _ in range(chance.choice((0, 1, 1, 2, 5)))
    ]
    text = "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")
    packed = zlib.compress(mutate_bytes(text, chance) if chance.random() < 0.3 else text)
    return mutate_bytes(packed, chance) if chance.random() < 0.1 else packed


def _check_profile(case: bytes) -> None:
    if len(case) > wire.MAX_BODY:
        return
    taken = list[str]()
    agent = PlayedAgent()
    profile(agent.calls, "worker:0", 0, 2.0, lambda problem, text: taken.append(problem or text))
    try:
        agent.answer(1, case, problem="")
        stacks = flame_graph.read_stacks(taken[0])
    except ValueError:
        return
    check_sentence(flame_graph.hottest(stacks))
    assert flame_graph.samples_of(stacks) > 0
    assert all(
        text is None or text.replace("\n", "").isprintable()
        for text in ET.fromstring(flame_graph.draw("t", stacks)).itertext()
    )


_SEEN = {"kind": "seen", "tasks": {"worker:0": {"attempt": 0, "pid": 7}}, "lease_left": 3.5, "is_leaving": False}


def _snapshot(_: Any, chance: random.Random) -> bytes:
    head = _objects(_SEEN, chance)
    data = struct.pack("!II", len(head), 0) + head
    return mutate_bytes(data, chance) if chance.random() < 0.3 else data


def _check_snapshot(case: bytes) -> None:
    line = Line()
    for start in range(0, len(case), 997):
        line.arrive(case[start : start + 997])
    line.arrive(b"")
    (seen,) = snapshot.look_at({"a": AgentConnector([line])}).values()
    check_sentence(seen.reason)
    wire.parse(json.dumps(seen, allow_nan=False))
    assert line.is_closed


BORDERS = {
    "warm": Border(partial(_objects, _SERVER), _check(_warm)),
    "collected": Border(partial(_objects, _LISTING), _check(_collected)),
    "run_status": Border(partial(_objects, _STATUS), _check(_status)),
    "kubectl": Border(partial(_objects, {"items": _PODS}), _check_kubectl),
    "queue": Border(partial(_objects, _ENTRY), _check_queue),
    "breakpoint": Border(partial(_breakpoint, None), _check_breakpoint),
    "browser": Border(partial(_browser, None), _check_browser),
    "profiles": Border(partial(_profile, None), _check_profile),
    "snapshot": Border(partial(_snapshot, None), _check_snapshot),
}

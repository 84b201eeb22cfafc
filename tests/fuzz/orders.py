"""A supervisor's orders: the real agent on a simulated host, which must serve the next supervisor."""

import random
import struct
from typing import Any

from fuzz.borders import Border
from fuzz.mutations import as_json, mutate, mutate_bytes, mutate_order
from simulator import kernel
from simulator.hosts import SimHost
from simulator.processes import Process
from simulator.world import World
from tflaunch_worker import wire

_SECONDS = 20.0
_ENV = {"TFLAUNCH_RUN": "run", "TFLAUNCH_TASK": "worker:0", "TFLAUNCH_ATTEMPT": "0"}
_COMMAND = {"argv": ["train"], "env": _ENV, "unset": ["http_proxy"], "workdir": "/", "inherit": True}
_CLUSTER = {"worker": ["a:2222", "a:2223"]}
_ADDRESSES = ["10.0.0.1", "fd00::1"]
_TF_CONFIG = {"roles": ["chief", "worker"], "role": "worker", "index": 1}
_KEEPS = {"left_files": {"outcome": 1000}, "secrets": {"API_KEY": "v"}}
_SHARES = {"search": ["/home/user"], "warm": {"recipe": "4f", "idle": 60.0}, "tf_config": _TF_CONFIG}
_PORTS = {"worker:0": 2222, "worker:1": 2223}
_HELLO = {
    "kind": "hello", "protocol": wire.PROTOCOL, "run": "run", "lease": 30.0, "grace": 1.0, "seen": 0, "fencing": 0,
    "clock": "clock", "sent": 0.0, "private": True,
}  # fmt: skip
_ATTACHED = 17
_HASH = "ab" * 32
_FIRST = {"task": "worker:0", "attempt": 0}


def _says(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, **fields}


_SCRIPT: tuple[dict[str, Any], ...] = (
    _says("offer_files", is_first=True, is_last=True, files=[["a.py", 420, _HASH]], links=[]),
    _says("write_file", sha256=_HASH, offset=0, is_last=True),
    _says("set_up", setup="7", files=["requirements.txt"], limit=60.0, **_COMMAND),
    _says("look_up_names", order=1, names=["b"]),
    _says("hold_ports", order=2, ports=_PORTS, private=False),
    _says("probe_peers", order=3, ports=_PORTS, peers={"worker:2": ["b", 2224]}, run="run", secret="s", patience=5),
    _says("set_cluster", order=4),
    _says("set_fence", order=5),
    _says("start_task", order=7, **_FIRST, **_COMMAND, port=2222, **_KEEPS),
    _says("start_task", order=8, task="worker:1", attempt=0, **_COMMAND, port=2223, preload=[], **_SHARES),
    _says("import_modules", order=8, task="worker:1", preload=["json"], **_COMMAND),
    _says("keep_alive", sent=1.0),
    _says("acknowledge", seen=2, streams=[["worker:0", 0, 0, False]]),
    _says("measure"),
    _says("watch_memory"),
    _says("profile_task", task="worker:1", attempt=0, seconds=1.0),
    _says("end_call", call=14),
    _says("gather_evidence"),
    _says("attach_debugger", **_FIRST),
    _says("tell_call", call=_ATTACHED, what="line", text="p loss"),
    _says("tell_call", call=_ATTACHED, what="read_on"),
    _says("tell_call", call=_ATTACHED, what="continue"),
    _says("acknowledge", seen=2, streams=[["worker:0/outcome", 0, 5, True]]),
    _says("signal_task", **_FIRST, signal=10),
    _says("stop_task", order=9, **_FIRST, grace=1.0, with_stacks=False),
    _says("find_checkpoint", workdir="/w", directory="state", known=_HASH, wait=True),
    _says("read_checkpoint", sha256=_HASH, offset=0),
    _says("store_checkpoint", kept=[], digests=[_HASH]),
    _says("write_checkpoint", sha256=_HASH, offset=0, is_last=True),
    _says("place_checkpoint", workdirs=["/w"], directory="state", files=[["ckpt-1.index", 5, _HASH]], age=1.5),
    _says("leave_marks", token="token", directories=[]),
    _says("look", order=10),
)
_CALLS = ("measure", "watch_memory", "profile_task", "gather_evidence", "attach_debugger",
          "offer_files", "write_file", "set_up", "find_checkpoint", "read_checkpoint", "store_checkpoint",
          "write_checkpoint", "place_checkpoint", "leave_marks")  # fmt: skip
_BODIES = (({"kind": "set_cluster", "order": 4}, _CLUSTER), ({"kind": "set_fence", "order": 5}, _ADDRESSES))


def generate(chance: random.Random) -> bytes:
    """Return what a supervisor sends: mostly valid orders with a few changes."""
    messages: list[Any] = [_HELLO, *(_numbered(number, message) for number, message in enumerate(_SCRIPT))]
    if chance.random() < 0.4:
        messages = mutate_order(messages, chance)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        place = chance.randrange(len(messages))
        messages[place] = mutate(messages[place], chance)
    frames = []
    for message in messages:
        head = as_json(message)
        carried: Any = next((body for about, body in _BODIES if message == about), None)
        if carried is not None:
            body = as_json(mutate(carried, chance) if chance.random() < 0.3 else carried)
        else:
            body = chance.randbytes(9) if chance.random() < 0.1 else b""
        frames.append(struct.pack("!II", len(head), len(body)) + head + body)
    data = b"".join(frames)
    return mutate_bytes(data, chance) if chance.random() < 0.2 else data


def _numbered(number: int, message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "call": number} if message["kind"] in _CALLS else message


def check(case: bytes) -> None:
    """Send it to an agent; then act as another supervisor, if the agent is still there."""
    with kernel.installed():
        world = World(len(case))
        nothing: Any = _Unjudged()
        host = _Host("a", False, world, nothing, nothing)
        first = host.start_agent()
        for start in range(0, len(case), 4096):
            first.sendall(case[start : start + 4096])
        world.run_until(_SECONDS / 2)
        agent = host.agent
        if agent is None or agent.has_ended or agent.agent is None:
            return  # it was told to leave, or its lease was over
        answer = _ask(world, host)
        assert answer in ("greeted", "superseded"), answer


def _ask(world: World, host: SimHost) -> str:
    second = host.connect()
    second.sendall(wire.encode({**_HELLO, "fencing": 2**31, "lease": 0.0}))
    decoder = wire.Decoder()
    for _ in range(20):
        world.run_until(world.now + 0.5)
        while second.is_readable:
            data = second.recv(1 << 20)
            for message, _ in decoder.feed(data):
                return str(message["kind"])
            if not data:
                return "hung up"
    return "no answer"


class _Unjudged:
    """Replaces the oracle and the stage: the behaviour of processes is not checked."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def left_file(self, task: str, name: str) -> bytes:
        return b"value"


class _Host(SimHost):
    def fork(self, env: dict[str, str]) -> Process:
        process = Process(self, {**env, "TFLAUNCH_TASK": "worker:0", "TFLAUNCH_ATTEMPT": "0"}, None)
        self.world.after(0.01, lambda: process.report_start(b""))
        return process


BORDER = Border(generate, check)

"""A host's output before the agent runs: noise of a login, and responses of the bootstrap program."""

import json
import random
import re
from typing import Any

from fuzz.borders import Border
from fuzz.mutations import as_json, mutate, mutate_bytes, mutate_order
from fuzz.stages import check_sentence
from tflaunch.features.bootstrap import BootConnectors
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import AgentGoneError, LinkError

HOST = HostPlan("a", is_local=False)
CONNECTORS = BootConnectors("run", 10.0)
_MARKER = b"<MARKER>"
_ANSWERS: tuple[dict[str, Any], ...] = (
    {"kind": "send"},
    {"kind": "ready"},
    {"kind": "gone", "words": "MemoryError"},
    {"kind": "failed", "reason": "/home/ann can be written to by others"},
)
_MOST_RECEIVES = 2000


def generate(chance: random.Random) -> bytes:
    """Return a host's output: pieces, exit code and errors, as JSON with bytes in Latin-1."""
    lines = [b"Welcome\n", _MARKER + b"\n"]
    for answer in chance.choices(_ANSWERS, k=chance.choice((1, 1, 2, 2, 3))):
        said = mutate(answer, chance) if chance.random() < 0.7 else answer
        lines.append(as_json(said) + b"\n")
    if chance.random() < 0.3:
        lines = mutate_order(lines, chance)
    data = b"".join(lines)
    if chance.random() < 0.4:
        data = mutate_bytes(data, chance)
    if chance.random() < 0.02:
        data += b"x" * 2_000_000
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(4)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    case = {
        "pieces": [piece.decode("latin-1") for piece in pieces],
        "code": chance.choice((-1, 0, 1, 38, 127, 255, 10**30)),
        "errors": mutate_bytes(b"3.7.2 (default)\nsh: python3: not found\n", chance).decode("latin-1"),
        "silence": chance.random() < 0.2,
    }
    return json.dumps(case).encode()


def check(case: bytes) -> None:
    try:
        CONNECTORS.bring(Stream(json.loads(case)), "start", HOST, end=1e12)
    except (AgentGoneError, LinkError) as error:
        check_sentence(str(error), longest=2000)


class Stream:
    """A command with the output of the case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._pieces = [piece.encode("latin-1") for piece in case["pieces"]]
        self._case = case
        self._receives = 0

    def execute(self, command: str) -> None:
        """Extract the marker that the command would print."""
        found = re.search(r'printf "%s%s\\n" (\w+) (\w+)', command)
        assert found is not None
        marker = f"{found[1]}{found[2]}".encode()
        self._pieces = [piece.replace(_MARKER, marker) for piece in self._pieces]

    def send(self, data: bytes, patience: float) -> None:
        """Accept everything."""

    def receive(self, patience: float) -> bytes:
        self._receives += 1
        assert self._receives < _MOST_RECEIVES, "it reads without end"
        while self._pieces:
            piece = self._pieces.pop(0)
            if piece:
                return piece
        if self._case["silence"]:
            raise TimeoutError
        return b""

    def errors(self) -> bytes:
        return str(self._case["errors"]).encode("latin-1")

    def exit_code(self, patience: float) -> int:
        return int(self._case["code"])

    def failure(self, code: int, said: str) -> str:
        return f"it ended with code {code}: {said}"


BORDER = Border(generate, check)

"""An editor, as far as a debugger notices: a client of the debug adapter protocol."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.launch import PATIENCE


class DapClient:
    """A connection to a debugger, with the requests that VS Code makes."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        self.connection = connection
        self._file = connection.makefile("rwb")
        self._seq = 0
        self._events: list[dict[str, Any]] = []

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request, and return its number."""
        self._seq += 1
        request = {"seq": self._seq, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request, ensure_ascii=False).encode()
        self._file.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._file.flush()
        return self._seq

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request, and return what its response contains."""
        return self.wait_for_response(self.send(command, **arguments))

    def wait_for_response(self, number: int) -> dict[str, Any]:
        """Return the content of the response to a request."""
        while True:
            message = self._read()
            if message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                return dict(message.get("body") or {})
            self._events.append(message)

    def wait_for_event(self, name: str) -> dict[str, Any]:
        """Return the content of the next event of a kind."""
        while True:
            for event in self._events:
                if event.get("event") == name:
                    self._events.remove(event)
                    return dict(event.get("body") or {})
            self._events.append(self._read())

    def attach(self, breakpoints: Mapping[Path | str, Sequence[int]], **configuration: Any) -> int:
        """Attach with these breakpoints in lines of files, and return the thread that has stopped."""
        self.ask("initialize", adapterID="debugpy", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        self.send("attach", **configuration)
        self.wait_for_event("initialized")
        for file, lines in breakpoints.items():
            self.ask("setBreakpoints", source={"path": str(file)}, breakpoints=[{"line": line} for line in lines])
        self.ask("configurationDone")
        return self.wait_stopped()

    def wait_stopped(self) -> int:
        """Wait until a thread has stopped; return it."""
        return int(self.wait_for_event("stopped")["threadId"])

    def frames(self, thread: int) -> list[tuple[str, str, int]]:
        """Return source file, function and line of the frames of a thread, the innermost first."""
        found = self.ask("stackTrace", threadId=thread)["stackFrames"]
        return [(frame["source"]["path"], frame["name"], frame["line"]) for frame in found]

    def evaluate(self, thread: int, expression: str) -> str:
        """Evaluate an expression, or execute a statement, in the innermost frame of a thread."""
        frame = self.ask("stackTrace", threadId=thread)["stackFrames"][0]["id"]
        return str(self.ask("evaluate", expression=expression, frameId=frame, context="repl")["result"])

    def read_to_end(self) -> None:
        """Wait until the debugger hangs up."""
        while True:
            try:
                self._read()
            except EOFError:
                return

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self.connection.close()

    def _read(self) -> dict[str, Any]:
        length = 0
        while (line := self._file.readline()) != b"\r\n":
            if not line:
                raise EOFError
            if line.startswith(b"Content-Length:"):
                length = int(line.split(b":")[1])
        message: dict[str, Any] = json.loads(self._file.read(length))
        return message


def read_configuration(text: str) -> dict[str, Any]:
    """Return the launch configuration in what `tflaunch debug --debugpy` has printed."""
    found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return found


def connect_editor(configuration: Mapping[str, Any]) -> DapClient:
    """Return an editor that is connected as a launch configuration says."""
    assert (configuration["type"], configuration["request"]) == ("debugpy", "attach")
    address = configuration["connect"]
    return DapClient(socket.create_connection((address["host"], address["port"]), PATIENCE))

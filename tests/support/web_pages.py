"""The server of the page, a client of it, and a simulated run with many tasks."""

import http.client
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from support.launch import PATIENCE, Launch
from support.specs import clustered
from tflaunch.explain.run_status import HostStatus, Status, TaskStatus
from tflaunch.mailbox import Mailbox
from tflaunch.plan import serialize
from tflaunch.plan.model import HostPlan
from tflaunch.records import as_json
from tflaunch.runtime.control_server import Caller, ControlServer
from tflaunch.store import run_dir
from tflaunch.store.journal import Journal
from tflaunch.store.run_dir import RunDirectory

_LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/\?token=[\w-]+")

TRAINING = """
i=0; trap 'echo heard' USR1
while :; do
  i=$((i + 1)); echo "step $i of $TFLAUNCH_TASK"
  echo "{\\"step\\": $i, \\"metrics\\": {\\"loss\\": 0.5}}" > $TFLAUNCH_PROGRESS
  sleep 0.2
done"""


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: str

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Server:
    """`tflaunch web`, and a browser's cookie for it."""

    def __init__(self, launch: Launch, *arguments: object) -> None:
        self.process = launch.start("web", *arguments, start_new_session=True)
        self.port = 0
        self.cookie = ""
        self.link = self.next_link()

    def next_link(self) -> str:
        """Return the link that the command prints next."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = _LINK.search(line)
        assert found, line + (self.process.stderr.read() if self.process.poll() is not None else "")
        self.port = int(found[1])
        return found[0]

    def sign_in(self) -> Answer:
        """Use the link as a browser does, and keep the cookie."""
        answer = self.ask("GET", "/?" + urlsplit(self.link).query, Cookie="")
        assert answer.status == 200, answer.body
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        self.link = self.next_link()
        return answer

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request, with the cookie and as a page of the server does, unless ``headers`` say otherwise."""
        with closing(self._send(method, path, body, headers)) as connection:
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.data

    def post(self, path: str, body: Any) -> Answer:
        return self.ask("POST", path, body, Origin=f"http://localhost:{self.port}")

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Yield the events of a stream: their names and data."""
        with closing(self._send("GET", path, None, {})) as connection:
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield _events(response)

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE)

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        known = {"Host": f"localhost:{self.port}", "Cookie": self.cookie, **headers}
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {name.replace("_", "-"): value for name, value in known.items()})
        return connection


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in response:
        if line.startswith(b"event: "):
            name = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


def api(run: str, what: str) -> str:
    """Return the path of something about a run."""
    return f"/api/runs/{quote(run)}/{what}"


def status_when(events: Iterator[tuple[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Return the first status with these values."""
    for name, data in events:
        if name == "status" and all(data[field] == value for field, value in wanted.items()):
            found: dict[str, Any] = data
            return found
    raise AssertionError(f"the stream has ended without {wanted}")


class SimulatedRun:
    """A run of many tasks, whose supervisor is a thread of the tests."""

    def __init__(self, home: Path, tasks: int) -> None:
        """Begin the run; ``TFLAUNCH_HOME`` must be ``home``."""
        plan = clustered({"worker": tasks})._replace(name="thousand")
        hosts = [f"gpu{number // 8}" for number in range(tasks)]
        placed = tuple(process._replace(host=host) for process, host in zip(plan.tasks, hosts, strict=True))
        plan = plan._replace(tasks=placed, hosts=tuple(HostPlan(host, False) for host in dict.fromkeys(hosts)))
        directory = RunDirectory("thousand")
        assert directory.path.is_relative_to(home)
        self.name = directory.run
        self._begun = time.time()  # clock: a run has the time of its begin
        self._tasks = tuple(
            TaskStatus(
                process.task, role="worker", host=process.host, address=f"{process.host}:2222",
                state="running", pid=1000 + number, attempt=0, since=self._begun, rss_bytes=1e9 + number * 1e6,
            )
            for number, process in enumerate(plan.tasks)
        )  # fmt: skip
        self._lock = run_dir.take_lock(directory.path)
        journal = Journal(directory, 0)
        kept = serialize.as_json(plan)
        directory.write_plan(kept)
        journal.record_plan(directory, kept, 0.0)
        self._journal = journal
        self._logs = str(directory.logs)
        self._mailbox = Mailbox()
        self._server = ControlServer(directory.path, self._mailbox, self._answer)
        self._has_ended = False
        self.asked = 0
        self.is_left = threading.Event()
        """Whether somebody who followed it has gone."""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._mailbox.call(self._stop)
        self._thread.join(PATIENCE)

    def _stop(self) -> None:
        self._has_ended = True

    def _serve(self) -> None:
        while not self._has_ended:
            self._mailbox.take(self._mailbox.now() + 0.1)
        self._journal.record_end(143, [], "stopped")
        self._server.close(143)
        self._journal.close()
        os.close(self._lock)

    def _answer(self, caller: Caller, message: dict[str, Any]) -> None:
        if message["kind"] == "status":
            self.asked += 1
            caller.say("status", status=as_json(self._status()))
        else:
            caller.follows = message["kind"] == "follow"
            caller.closed = self.is_left.set
            caller.say("changed")

    def _status(self) -> Status:
        step = int((time.time() - self._begun) * 10)  # clock: steps that pages see grow
        tasks = tuple(
            task._replace(step=step, steps_per_second=10.0 + number % 7, cpu_percent=float((step + number) % 100))
            for number, task in enumerate(self._tasks)
        )
        hosts = tuple(HostStatus(host, "connected", silence=0.0) for host in dict.fromkeys(task.host for task in tasks))
        return Status(
            run=self.name, name="thousand", phase="running", state="running", attempt=0, restarts=0, restart=None,
            max_restarts=3, last_failure=None, exit_code=None, culprit=None, reason=None, forming=None,
            supervisor="alive", started=self._begun, logs=self._logs, tensorboard=None, hosts=hosts, tasks=tasks,
        )  # fmt: skip


def newest(place: Launch, name: str) -> str:
    return max(path.name for path in (place.home / "runs").iterdir() if path.name.startswith(f"{name}-"))


def begin(place: Launch, script: str, workers: int = 2, *, name: str, **fields: Any) -> str:
    """Start a run of shell scripts in the background, and return its name."""
    started = place.succeed("up", "-d", place.shell(script, workers, strategy="none", name=f"{name}.json", **fields))
    return started.stdout.strip()


def run_to_end(place: Launch, script: str, workers: int = 1, *, name: str, **fields: Any) -> str:
    """Run shell scripts to their success, and return the name of the run."""
    ended = place.up(place.shell(script, workers, strategy="none", name=f"{name}.json", **fields), "-q")
    assert ended.returncode == 0, ended.stderr
    return newest(place, name)

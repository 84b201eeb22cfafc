"""Files of a run that can be downloaded, and those that cannot, whatever somebody puts in its directory."""

import http.client
import io
import os
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from support.launch import PATIENCE, Launch
from support.waiting import wait_until
from support.web_pages import Server, api, newest, run_to_end

pytestmark = pytest.mark.web

SECRET = "correct-horse-battery"
SCRIPT = "<script>alert(1)<b>.html"
LINES = "two\nlines.txt"
LARGE = 200 * 2**20
PART = 1 << 20
MOST_MEMORY = 60 * 2**20
REFUSED = (
    "collected", "collected/", "collected/worker-0", "collected/worker-0/", "collected//etc/passwd", "collected/none",
    "collected/../plan.json", "collected/%2e%2e/plan.json", "collected/..%2fplan.json", "collected/.%2e%2fplan.json",
    "collected/worker-0/%2fetc%2fpasswd", "collected/worker-0/%00", "collected/./worker-0/model.txt", "/etc/passwd",
    "%2fetc%2fpasswd", "../spec.json", "%2e%2e/%2e%2e/x", "run/../spec.json", "run/logs", "run/lock", "run/marks.jsonl",
    "run/spec.", "run/spec.%2f..%2flock", "run/spec.json/x", "logs/../plan.json", "logs/..%2fplan.json", "logs/lock",
    "logs/worker-0.log/x", "times/worker-0", "agents/localhost", "spec.json", "files/x", "profiles/../../lock",
    "collected/worker-0/link.txt", "collected/worker-0/outside/passwd", "collected/worker-0/fifo",
    "collected/worker-0/loop/loop/model.txt", "collected/.parts/worker-0/half", "run/spec.link",
)  # fmt: skip
"""Paths that lead to no file that is offered."""


class Hostile(NamedTuple):
    """A run with what nobody should be sent."""

    run: str
    directory: Path


@pytest.fixture(scope="module")
def hostile(place: Launch) -> Hostile:
    """A run that has ended, whose directory has been filled by somebody."""
    run = run_to_end(place, "echo hello", 2, name="hostile", env={"API_KEY": SECRET})
    directory = place.home / "runs" / run
    collected = directory / "collected" / "worker-0"
    parts = directory / "collected" / ".parts" / "worker-0"
    for path in (collected, parts):
        path.mkdir(parents=True)
    (parts / "half").write_text("half")
    (collected / "model.txt").write_text("weights")
    (collected / SCRIPT).write_text("<script>alert(1)</script>")
    (collected / LINES).write_text("lines")
    Path(os.fsdecode(os.fsencode(collected) + b"/\xff.txt")).write_text("bytes")
    (collected / "link.txt").symlink_to("/etc/passwd")
    (collected / "outside").symlink_to("/etc")
    (collected / "loop").symlink_to(".")
    (directory / "spec.link").symlink_to(directory / "plan.json")
    os.mkfifo(collected / "fifo")
    with (collected / "large.bin").open("wb") as file:
        file.truncate(LARGE)
    return Hostile(run, directory)


def files_of(server: Server, run: str) -> dict[str, Any]:
    """Return the files that are offered: their names, and what is told of them."""
    return {f"{file['group']}/{file['name']}": file for file in server.get(api(run, "files"))["files"]}


def test_only_regular_files_meant_for_users_are_listed(server: Server, hostile: Hostile) -> None:
    """Each with its size and age; names are shown in one line."""
    found = files_of(server, hostile.run)
    collected = {name for name in found if name.startswith("collected/")}
    assert collected == {
        f"collected/worker-0/{name}" for name in ("model.txt", SCRIPT, "two\\nlines.txt", "\\udcff.txt", "large.bin")
    }
    assert found["collected/worker-0/large.bin"]["size"] == LARGE
    assert found["collected/worker-0/model.txt"]["modified"] == pytest.approx(
        (hostile.directory / "collected/worker-0/model.txt").stat().st_mtime, abs=0.1
    )
    assert {"logs/worker-0.log", "logs/worker-1.log"} == {name for name in found if name.startswith("logs/")}
    assert {"run/spec.json", "run/plan.json", "run/events.jsonl"} <= found.keys()
    assert "run/lock" not in found


def test_a_file_is_sent_as_something_to_store(server: Server, hostile: Hostile) -> None:
    """So that no page among the files runs as a part of this one; names cannot add headers."""
    found = files_of(server, hostile.run)
    for shown, name, text in (
        (SCRIPT, "%3Cscript%3Ealert%281%29%3Cb%3E.html", "<script>alert(1)</script>"),
        ("two\\nlines.txt", "two%0Alines.txt", "lines"),
        ("\\udcff.txt", "%FF.txt", "bytes"),
    ):
        answer = server.ask("GET", api(hostile.run, f"files/{found[f'collected/worker-0/{shown}']['path']}"))
        assert (answer.status, answer.body) == (200, text)
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Disposition"] == f"attachment; filename*=utf-8''{name}"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Length"] == str(len(text))
    assert server.ask("GET", api(hostile.run, "files/logs/worker-0.log")).body.count("hello") == 1


def test_other_paths_lead_to_no_file(server: Server, hostile: Hostile) -> None:
    """Whatever they look like, encoded or not; a pipe is not waited for, and what was opened is closed."""
    process, opened = psutil.Process(server.process.pid), []
    for _ in range(12):
        for path in REFUSED:
            answer = server.ask("GET", api(hostile.run, f"files/{path}"))
            assert (answer.status, "root:" in answer.body) == (404, False), path
        opened.append(process.num_fds())
    assert opened[-1] < opened[0] + 15


def test_a_report_is_that_of_the_command(server: Server, hostile: Hostile) -> None:
    """Without secrets, as is each file of tflaunch; with logs if they are asked for; its name is the run's."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as connection:
        headers = {"Host": f"localhost:{server.port}", "Cookie": server.cookie}
        connection.request("GET", api(hostile.run, "report?logs=1"), headers=headers)
        response = connection.getresponse()
        assert response.headers["Content-Disposition"].endswith(f"{hostile.run}-report.tar.gz")
        with tarfile.open(fileobj=io.BytesIO(response.read())) as report:
            texts = {name: file.read() for name in report.getnames() if (file := report.extractfile(name))}
    assert b"hello" in texts[f"{hostile.run}-report/logs/worker-0.log"]
    assert not any(SECRET.encode() in text for text in texts.values())
    for name in ("spec.json", "plan.json", "events.jsonl"):
        assert SECRET in (hostile.directory / name).read_text()
        answer = server.ask("GET", api(hostile.run, f"files/run/{name}"))
        assert (answer.status, SECRET in answer.body, '"API_KEY"' in answer.body) == (200, False, True)


def test_a_large_file_is_streamed(server: Server, hostile: Hostile) -> None:
    """The server needs no memory for it, and closes it, also if the browser goes away."""
    process = psutil.Process(server.process.pid)
    files_of(server, hostile.run)
    before, opened = process.memory_info().rss, len(process.open_files())
    path = api(hostile.run, "files/collected/worker-0/large.bin")
    headers = {"Host": f"localhost:{server.port}", "Cookie": server.cookie}
    for wanted in (LARGE, PART):
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as connection:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            assert response.headers["Content-Length"] == str(LARGE)
            buffer, got = memoryview(bytearray(PART)), 0
            while got < wanted and (size := response.readinto(buffer)):
                got += size
            assert got >= wanted
            assert process.memory_info().rss - before < MOST_MEMORY
    wait_until(lambda: len(process.open_files()) <= opened)


def test_logs_in_a_directory_of_the_user_are_found(server: Server, place: Launch) -> None:
    logs = place.directory / "elsewhere"
    logs.mkdir()
    (logs / "diary.log").write_text("private")
    spec = place.shell("echo there", 1, name="logged.json", strategy="none")
    assert place.up(spec, "--log-dir", logs).returncode == 0
    run = newest(place, "logged")
    assert [name for name in files_of(server, run) if name.startswith("logs/")] == ["logs/worker-0.log"]
    assert "there" in server.ask("GET", api(run, "files/logs/worker-0.log")).body
    assert server.ask("GET", api(run, "files/logs/diary.log")).status == 404

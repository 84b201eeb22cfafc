"""What the page gets: streams of the status that `ps --json` shows, logs, plan and spec, and requests that act."""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.launch import PATIENCE, Launch
from support.signals import SURVIVED
from support.waiting import wait_gone, wait_until
from support.web_pages import TRAINING, Server, api, begin, newest, status_when

pytestmark = pytest.mark.web

VIEWERS = 300
SECRETS = ("correct-horse-battery", "staple-horse-battery")


def test_logs_and_stacks_are_asked_for(server: Server, place: Launch, failed_run: str) -> None:
    live_run = begin(place, TRAINING, name="live")
    found = server.get(api(live_run, "search?text=STEP+1+&logs=worker:0"))
    assert [line[1:] for line in found["lines"]] == [["worker:0", 0, "step 1 of worker:0"]]
    assert not found["has_more"]
    everywhere = server.get(api(failed_run, "search?text=IndexError"))
    assert [line[1] for line in everywhere["lines"]] == ["worker:2"]
    stacks = server.get(api(live_run, "stacks"))
    assert (stacks["sentence"] != "", {task["task"] for task in stacks["tasks"]}) == (True, {"worker:0", "worker:1"})
    place.succeed("down", "-t", "0", live_run)


def test_requests_reach_the_supervisor(server: Server, place: Launch) -> None:
    """A signal, a restart, a stop; afterwards, and for requests that make no sense, a sentence."""
    run = begin(place, TRAINING, name="asked", restart={"backoff": [0, 0]})
    place.wait_for_log("worker:1", "step 2", run=run)
    bodies: list[Any] = [{"tasks": ["worker:0"], "signal": "SIGNOTHING"}, {"tasks": "worker:0"}, []]
    for body in bodies:
        assert server.post(api(run, "signal"), body).status == 400
    assert server.post(api(run, "signal"), {"tasks": ["worker:7"], "signal": "SIGTERM"}).status == 409
    with server.stream(api(run, "live")) as events:
        assert server.post(api(run, "signal"), {"tasks": ["worker:0"], "signal": "SIGUSR1"}).status == 200
        place.wait_for_log("worker:0", "heard", run=run)
        assert server.post(api(run, "restart"), {"tasks": []}).status == 200
        status_when(events, attempt=1, state="running")
        assert server.post(api(run, "stop"), {}).status == 200
        assert status_when(events, state="stopped")["exit_code"] == 143
        assert any(name == "over" for name, _ in events)  # its supervisor has exited, too
    refused = server.post(api(run, "stop"), {})
    assert (refused.status, refused.data) == (409, {"error": f"run {run} has ended with exit code 143"})


def test_the_list_of_runs_is_that_of_ls(server: Server, place: Launch, failed_run: str) -> None:
    (listed,) = [run for run in json.loads(place.run("ls", "--json").stdout) if run["run"] == failed_run]
    with server.stream("/api/live") as events:
        name, shown = next(events)
    assert (name, [run for run in shown if run["run"] == failed_run]) == ("runs", [listed])


def test_up_shows_the_page_of_its_run(place: Launch) -> None:
    """As long as it runs; a second way to ask for it makes no sense and is refused."""
    place.env["SSH_CONNECTION"] = "10.0.0.9 50000 10.0.0.5 2222"
    try:
        up = place.start("up", "--web", place.shell(TRAINING, strategy="none", name="shown.json"))
    finally:
        del place.env["SSH_CONNECTION"]
    assert up.stderr is not None
    port = re.match(r"tflaunch: open http://127\.0\.0\.1:(\d+)/\?token=[\w-]{40,}\n", up.stderr.readline())
    assert port is not None
    tunnel = up.stderr.readline()
    assert f"ssh -N -L {port[1]}:127.0.0.1:{port[1]} -p 2222 " in tunnel
    assert tunnel.endswith("@10.0.0.5\n")
    begun = wait_until(lambda: [*(place.home / "runs").glob("shown-*/events.jsonl")])
    place.wait_for_log("worker:0", "step 1", run=begun[0].parent.name)
    (page,) = [child for child in psutil.Process(up.pid).children() if "web" in child.cmdline()]
    for number in (*SURVIVED, signal.SIGUSR1):  # the page ends, and the run goes on
        page.send_signal(number)
    wait_gone(page.pid)
    up.send_signal(signal.SIGINT)
    _, err = up.communicate(timeout=PATIENCE)
    assert f"to look at it again: tflaunch web {newest(place, 'shown')}" in err
    for arguments in (["-d"], ["--on", "slurm"]):
        refused = place.run("up", "--web", *arguments, place.shell("true", name="refused.json"), code=2)
        assert "--web goes with a run in this terminal" in refused.stderr


def test_a_page_that_cannot_start_is_said(place: Launch, tmp_path: Path) -> None:
    """With what its process said last; the run goes on."""
    (tmp_path / "uvicorn.py").write_text("import sys\nif '--owner' in sys.argv: sys.exit('no such port')\n")
    place.env["PYTHONPATH"] = str(tmp_path)
    try:
        up = place.run("up", "--web", place.shell("true", name="unseen.json"))
    finally:
        del place.env["PYTHONPATH"]
    assert "warning: the page cannot be shown, and the run goes on without it: no such port\n" in up.stderr
    assert (up.returncode, "to look at it again" in up.stderr) == (0, False)


def test_no_page_is_refused_for_the_number_of_others(server: Server) -> None:
    with ExitStack() as open_pages:
        for _ in range(VIEWERS):
            events = open_pages.enter_context(server.stream("/api/live"))
            assert next(events)[0] == "runs"


def test_a_later_page_gets_the_same_output(server: Server, place: Launch) -> None:
    """All that there was, and then each line once, although the output is read once for all pages."""
    run = begin(place, TRAINING.replace("0.2", "0.05"), name="read")
    with ExitStack() as open_pages:
        pages = [open_pages.enter_context(server.stream(api(run, "live?logs=*")))]
        seen: list[dict[str, list[int]]] = [{}]
        read_until_line(pages[0], seen[0], 10)
        for _ in range(2):
            pages.append(open_pages.enter_context(server.stream(api(run, "live?logs=*"))))
            seen.append({})
            read_until_line(pages[-1], seen[-1], 20)
        assert place.run("down", "-t", "0", run).returncode == 0
        for page, lines in zip(pages, seen, strict=True):
            read_until_line(page, lines, None)
    assert seen[1] == seen[2] == seen[0]
    for numbers in seen[0].values():
        assert numbers[0] == 1
        assert all(after == before + 1 for before, after in pairwise(numbers))


def read_until_line(events: Iterator[tuple[str, Any]], seen: dict[str, list[int]], last: int | None) -> None:
    """Collect the numbers of the lines of each task up to a number at least, or all."""
    for name, data in events:
        if name == "lines":
            for _, task, _, text in data:
                seen.setdefault(task, []).append(int(text.split()[1]))
        if name == "over" or (last and seen and max(map(max, seen.values())) >= last):
            return


def test_a_difference_between_secrets_does_not_tell_them(server: Server, place: Launch) -> None:
    """In a variable, or in a command; that they differ is told."""
    runs = []
    for number, secret in enumerate(SECRETS):
        command = ["true", f"--password={secret}"]
        spec = place.spec(
            f"secret{number}.json", cluster={"worker": 1}, strategy="none", command=command, env={"API_KEY": secret}
        )
        assert place.up(spec).returncode == 0
        runs.append(newest(place, f"secret{number}"))
    answer = server.ask("GET", "/api/compare?" + "&".join(f"run={run}" for run in runs))
    rows = {row["name"]: row["values"] for row in answer.data["differences"]}
    assert rows["tasks.worker:0.env.API_KEY"] == ["***", "***"]
    assert not any(secret in answer.body for secret in SECRETS)

"""What ran and where, on the page and in its data: commands, code, hosts with their GPUs, and what is waited for."""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.browser_pages import fits_a_phone, press, show
from support.launch import Launch
from support.web_pages import Server, api, begin, newest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.web

SECRET = "correct-horse-battery"
ROLES = {"chief": ["chief:0"], "worker": ["worker:0", "worker:1"]}


class Ran(NamedTuple):
    """A run of code in a repository of git, and its commit."""

    run: str
    commit: str


@pytest.fixture(scope="module")
def ran(place: Launch) -> Ran:
    """A run of a chief and two workers, whose program has changed since the commit."""
    directory = place.directory / "repository"
    directory.mkdir()
    program = directory / "train.py"
    program.write_text('print("as it was")\n')

    def git(*arguments: str) -> str:
        settings = ("-c", "user.name=Ann", "-c", "user.email=ann@localhost")
        done = subprocess.run(["git", *settings, *arguments], cwd=directory, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    program.write_text(f'print("as it is <b>now</b>")\nAPI_KEY = "{SECRET}"\n')
    (directory / "notes.txt").write_text("new")
    command = ["python3", "-S", "train.py", "--part", "{task.index}"]
    about = {"env": {"API_KEY": SECRET, "PART": "{task.index}"}, "workdir": str(directory)}
    spec = directory / "shelf.json"
    spec.write_text(json.dumps({"cluster": {"chief": 1, "worker": 2}, "command": command, **about}))
    assert place.up(spec).returncode == 0
    return Ran(newest(place, "shelf"), git("rev-parse", "HEAD"))


def test_what_ran_is_shown(page: Page, ran: Ran) -> None:
    """With the difference between the commit and the code that ran, as text."""
    show(page, f"/#/{ran.run}", ".table .row:has-text('worker:1')")
    press(page, "6", f".ran dd:text-is('{ran.commit}')")
    assert page.locator(".ran .named a").all_text_contents() == [task for tasks in ROLES.values() for task in tasks]
    assert page.locator(".diff .added").all_text_contents()[0] == '+print("as it is <b>now</b>")\n'
    assert page.locator(".diff .removed").all_text_contents() == ['-print("as it was")\n']
    assert page.locator(".ran pre", has_text="notes.txt").count() == 1
    assert page.locator(".ran tr", has_text="API_KEY").first.text_content() == "API_KEY***"
    reasons = page.locator(".ran th:text-is('TFLAUNCH_TASK') + td + td").all_text_contents()
    assert ["differs between tasks" in reason for reason in reasons] == [False, True]
    assert page.locator(".ran dt:text-is('Cores') + dd").count() == 1
    assert page.locator(".ran pre", has_text='"cluster"').count() >= 1
    assert SECRET not in (page.text_content("main") or "")
    assert fits_a_phone(page)


TIMER = ".waits [role=timer]"
LESS = """([selector, text]) => {
  const shown = document.querySelector(selector)?.textContent;
  return shown && shown !== text && parseInt(shown) < parseInt(text);
}"""
"""Whether a number of seconds has become smaller."""


def serve_events(page: Page, **pieces: Any) -> None:
    """Answer the page's next streams with these events."""
    body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in pieces.items())
    page.route("**/live**", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def status_of(server: Server, run: str) -> dict[str, Any]:
    """Return the status of a run that has ended, as the page gets it."""
    with server.stream(api(run, "live")) as events:
        found: dict[str, Any] = next(data for name, data in events if name == "status")
    return found


def test_a_backoff_is_counted_down(page: Page, place: Launch) -> None:
    """Every second, until the run goes on or is stopped, whatever the view."""
    fails, restart = place.directory / "fails", {"max": 3, "backoff": [9999, 9999]}
    run = begin(place, f"until test -e {fails}; do sleep 0.02; done; exit 3", 1, name="backing", restart=restart)
    fails.touch()
    show(page, f"/#/{run}/hosts", f"{TIMER}:visible")
    assert "The backoff before attempt 1" in (page.text_content(".waits") or "")
    assert "then attempt 1 starts" in (page.text_content(".waits") or "")
    shown = page.text_content(TIMER) or ""
    assert re.fullmatch(r"\d+ h \d+ min more", shown), shown
    assert place.run("down", "-t", "0", run).returncode == 0
    page.wait_for_selector(".waits", state="hidden")


def test_lost_hosts_are_named_with_the_time_that_is_left(page: Page, server: Server, failed_run: str) -> None:
    """What ends the wait, and when they are tried next; the rest of the page stays."""
    now = time.time()  # clock: the page counts down from now
    status = status_of(server, failed_run)
    end = "then the run ends with exit code 125"
    lost = {"what": "gpu1 is lost: no route", "until": now + 37_000, "again": now + 2500, "then": end}
    last = {"what": "gpu2 is lost", "until": now + 50, "again": None, "then": "then the run goes on without it"}
    status |= {"exit_code": None, "supervisor": "alive", "phase": "waiting for hosts", "now": now}
    status |= {"waits": [lost, last], "last_failure": "worker:2 exited with code 1"}
    serve_events(page, status=status)
    show(page, f"/#/{failed_run}", ".waits li b:text-is('gpu1 is lost: no route')")
    assert page.is_visible(".waits p:text-is('The last attempt failed: worker:2 exited with code 1')")
    assert page.locator(".panel:visible").count() == 1
    assert page.text_content("h1 + .badge") == "waiting for hosts"
    assert (page.locator(TIMER).first.text_content() or "").startswith("10 h")
    text = page.locator(".waits li").first.text_content() or ""
    assert re.search(r"tried again in \d+ min.*; then the run ends with exit code 125\.$", text), text
    page.wait_for_function(LESS, arg=[".waits li:last-child [role=timer]", "49 s more"])
    page.keyboard.press("2")
    assert page.is_visible(TIMER)
    assert fits_a_phone(page)


def test_hosts_have_their_gpus_and_what_tasks_use(page: Page, server: Server, failed_run: str) -> None:
    """Number, load and memory of GPUs, and which tasks are given which; processors and memory where they are known."""
    status = status_of(server, failed_run)
    (host,) = status["hosts"]
    status["hosts"] = [host, {**host, "host": "gpu2", "is_spare": True}]
    for number, task in enumerate(status["tasks"]):
        task |= {"cpu_percent": 50.0, "rss_bytes": 2**30, "gpu_percent": 20.0 * number, "gpu_bytes": 2**31}
    known = {"cores": 16, "memory": 64 * 2**30, "gpus": 4, "gpu_models": ["NVIDIA A100"] * 4}
    known["devices"] = {"worker:0": "0,1", "worker:1": "-1"}
    serve_events(page, machines={host["host"]: known, "gpu2": {"gpus": 8, "devices": {}}}, status=status)
    show(page, f"/#/{failed_run}/hosts", ".table .row:has-text('gpu2 (spare)')")
    titles = page.locator(".table .head button").all_text_contents()
    cells = page.locator(".table .space .row:not([hidden])").first.locator("> span").all_text_contents()
    shown = dict(zip(titles, cells, strict=True))
    assert (shown["CPU"], shown["Memory"]) == ("200% of 16 cores", "4.0G of 64G")
    assert (shown["GPUs"], shown["GPU load"], shown["GPU memory"]) == ("4", "30%", "8.0G")
    assert shown["Model"] == "4 × NVIDIA A100"  # noqa: RUF001 (times, not the letter)
    assert shown["GPUs of tasks"] == "worker:0: 0,1, worker:1: none"
    assert fits_a_phone(page)

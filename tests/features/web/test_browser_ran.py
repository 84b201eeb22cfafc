"""What ran: commands, environment, code with its difference, packages and spec, on the page and in its data."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.launch import Launch
from support.web_pages import Server, api, newest
from tflaunch.store.run_dir import PATCH_NAME, RECORD_NAME

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
    fields: dict[str, Any] = {
        "cluster": {"chief": 1, "worker": 2},
        "command": ["python3", "-S", "train.py", "--part", "{task.index}"],
    }
    spec = directory / "shelf.json"
    fields |= {"env": {"API_KEY": SECRET, "PART": "{task.index}"}, "workdir": str(directory)}
    spec.write_text(json.dumps(fields))
    assert place.up(spec).returncode == 0
    return Ran(newest(place, "shelf"), git("rev-parse", "HEAD"))


def test_tasks_with_the_same_command_are_told_once(server: Server, ran: Ran) -> None:
    """Each role with what its first task gets, the variables that differ between tasks, and no secret."""
    found = server.get(api(ran.run, "ran"))
    assert [command["tasks"] for command in found["commands"]] == [*ROLES.values()]
    command = found["commands"][1]
    assert command["argv"] == ["python3", "-S", "train.py", "--part", "0"]
    assert (command["env"]["PART"], command["env"]["API_KEY"]) == ("0", "***")
    assert "TFLAUNCH_TASK" in command["varies"]
    assert "API_KEY" not in command["varies"]
    assert json.loads(command["env"]["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert (found["record"]["code"]["commit"], found["left_out"]) == (ran.commit, 0)
    assert "+print" in found["patch"]
    assert json.loads(found["spec"]["text"])["cluster"] == {"chief": 1, "worker": 2}
    assert SECRET not in json.dumps(found)


def test_what_ran_is_shown(page: Page, ran: Ran) -> None:
    """With the difference between the commit and the code that ran, as text."""
    page.goto(f"/#/{ran.run}")
    page.wait_for_selector(".table .row:has-text('worker:1')")
    page.keyboard.press("6")
    page.wait_for_selector(f".ran dd:text-is('{ran.commit}')")
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
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_run_without_a_record_says_so(page: Page, place: Launch) -> None:
    """And so does a run without a spec; its command is known."""
    started = place.run("run", "--workers", "1", "--", "sh", "-c", "true")
    assert started.returncode == 0, started.stderr
    run = newest(place, "sh")
    for name in (RECORD_NAME, PATCH_NAME, "spec.json"):
        (place.home / "runs" / run / name).unlink(missing_ok=True)
    page.goto(f"/#/{run}/ran")
    page.wait_for_selector("text=This run has no record of its code")
    page.wait_for_selector("text=The run was started without a spec.")
    assert page.locator(".ran pre", has_text="sh -c true").count() == 1

"""Every command in README and docs works, and prints what is shown there; and what they state in words."""

import itertools
import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import click
import pytest

from support.documents import Block, blocks, check_usage, difference, pages, run_block, shell_of, shown_commands
from support.fixed_ports import free_ports
from support.launch import PATIENCE, Launch
from support.specs import REPOSITORY
from tflaunch.clusterspec.schema import json_schema
from tflaunch.clusterspec.values import parse_duration
from tflaunch.features.bootstrap import build_archive


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    """Return the marks for a test that runs the blocks of a page."""
    needs_tensorflow = any(block.file and "import tensorflow" in block.text for block in blocks(page))
    return [pytest.mark.tensorflow] if needs_tensorflow else []


PORTS = ("5678", "6009")
"""Those that programs of the pages listen on, which several runs of these tests on one machine cannot have at once."""


def with_free_ports(page: Path) -> list[Block]:
    """Return the blocks of a page, which use free ports instead."""
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    return [each._replace(text=re.sub("|".join(PORTS), lambda m: str(ports[m[0]]), each.text)) for each in blocks(page)]


PAGES = [page for page in pages() if page.name != "tutorial.md"]  # tests/docker runs it, on two machines


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=marks_of(page), id=str(page)) for page in PAGES if any(b.is_run for b in blocks(page))],
)
def test_commands_print_what_the_page_shows(page: Path, launch: Launch) -> None:
    """In a directory with the example specs, in which the page's own files appear as one reads on."""
    shutil.copytree(REPOSITORY / "cluster_specs", launch.directory / "cluster_specs")

    def write(name: str, text: str) -> None:
        (launch.directory / name).write_text(text)

    for block in with_free_ports(page):
        run_block(block, write, shell_of(launch))


class Editor:
    """A client of the debug adapter protocol."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._numbers = itertools.count(1)

    def request(self, command: str, wait_for: str, **arguments: Any) -> None:
        """Make a request, and wait for an event or a successful response."""
        request = {"seq": next(self._numbers), "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._stream.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._stream.flush()
        while wait_for not in ((message := self._read()).get("event"), message.get("command")):
            assert message.get("success", True), message

    def _read(self) -> dict[str, Any]:
        head = b"".join(iter(self._stream.readline, b"\r\n"))
        message: dict[str, Any] = json.loads(self._stream.read(int(head.rpartition(b"Content-Length:")[2])))
        return message


def test_an_editor_attaches_to_a_task_as_the_page_shows(launch: Launch) -> None:
    files = {block.file: block.text for block in with_free_ports(REPOSITORY / "docs/how_do_i.md")}
    for name in ("cluster.json", "debugged.py"):
        (launch.directory / name).write_text(files[name])
    running = launch.start("up", "cluster.json", "--", "python3", "debugged.py", until="waits for an editor")
    (configuration,) = json.loads(files["launch.json"])["configurations"]
    address = configuration["connect"]["host"], configuration["connect"]["port"]
    with socket.create_connection(address, PATIENCE) as connection, connection.makefile("rwb") as stream:
        editor = Editor(stream)
        editor.request("initialize", "initialize", adapterID=configuration["type"])
        editor.request("attach", "initialized", pathMappings=configuration["pathMappings"])
        editor.request("configurationDone", "attach")
        editor.request("disconnect", "disconnect")
    out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, "worker:0 | trains" in out) == (0, True), err


def test_readme_begins_with_the_two_commands_of_a_checkout() -> None:
    """Below its picture, each with the time that it takes; the second is what must pass before a change lands."""
    readme = REPOSITORY / "README.md"
    first = next(block for block in blocks(readme) if block.kind == "sh")
    assert [line.partition("#")[0].split() for line in first.text.splitlines()] == [["make", "demo"], ["make", "test"]]
    assert [re.search(r"# about \d+ minutes", line) is not None for line in first.text.splitlines()] == [True, True]
    section = readme.read_text().split("\n## ")[1]
    assert first.text in section
    targets = re.findall(r"^(\w+): .*## ", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    assert (REPOSITORY / ".ci" / "run").read_text().splitlines()[-2:] == ["make test", "make test-thorough"]


def test_one_page_is_the_skill_and_what_help_prints(launch: Launch) -> None:
    """It has the front matter that assistants look for, and is short; the tests of pages run what is in it."""
    page = (REPOSITORY / "skills/tflaunch/SKILL.md").read_text()
    assert launch.succeed("help", "--agent").stdout == page, "cp launcher/tflaunch/cli/SKILL.md skills/tflaunch/"
    assert page.count("\n") <= 150
    assert re.match(r"---\nname: tflaunch\ndescription: \S.{100,1000}\n---\n", page)
    harmful = {"down", "kill", "prune", "restart"}
    places = [part for part in page.split("\n## ") if any(f"`tflaunch {verb}" in part for verb in harmful)]
    assert [place.partition(" ")[0] for place in places] == ["Never", "Exit"]


@pytest.mark.parametrize("page", pages(), ids=str)
def test_what_is_not_run_says_why(page: Path) -> None:
    reasons = [block.mark for block in blocks(page) if block.kind in ("console", "sh") and not block.is_run]
    assert [reason for reason in reasons if len(reason.split()) < 5] == []


@pytest.mark.parametrize("page", [page for page in pages() if page.name != "extending.md"], ids=str)
def test_every_command_that_is_shown_has_such_options(page: Path) -> None:
    """Those that are not run, too; docs/extending.md has a command of its own (test_extending.py)."""
    wrong = []
    for line in shown_commands(page):
        try:
            check_usage(line)
        except (click.UsageError, ValueError, AssertionError) as error:
            wrong.append(f"{line}: {error}")
    assert wrong == []


def test_a_difference_is_noticed() -> None:
    """Else all the others could not fail."""
    shown = ["worker:0 | one", "tflaunch: done: 2 tasks in 0.3 s"]
    assert difference(shown, ["tflaunch: done: 2 tasks in 12 s", "worker:0 | one"]) == ""
    assert difference(shown, ["tflaunch: done: 3 tasks in 0.3 s", "worker:0 | one"]).startswith("missing: tflaunch")
    assert difference(shown, [*shown, "worker:1 | two"]) == "not expected: worker:1 | two"
    assert difference(["worker:0 | …", "…"], ["worker:0 | 17", "more"]) == ""


DOCS = REPOSITORY / "docs"
ALONE = ("-n", "1", "--set", "strategy=none", "--set", "restart.max=0", "--")


@pytest.mark.parametrize("code", [2, 3])
def test_a_program_may_exit_with_any_code(launch: Launch, code: int) -> None:
    """docs/commands.md: 2 and 3 do not tell that nothing was started."""
    assert launch.run("run", *ALONE, "sh", "-c", f"exit {code}").returncode == code
    (run,) = json.loads(launch.run("ls", "--json").stdout)
    assert (run["state"], run["exit_code"]) == ("failed", code)


def test_the_page_of_fields_has_the_defaults_of_the_code() -> None:
    page = (DOCS / "spec.md").read_text()
    parts = json_schema()["$defs"]
    (row,) = [line for line in page.splitlines() if line.startswith("| `timeouts` |")]
    shown = {name: parse_duration(text) for name, text in re.findall(r"`(\w+)` \((\w+)", row)}
    limits = {name: about.get("default") for name, about in parts["Timeouts"]["properties"].items()}
    assert shown.pop("lease") == 30
    assert shown == {name: limits[name] for name in ("connect", "grace", "heartbeat", "lost_host", "setup")}
    assert {name for name, default in limits.items() if default is None} == {*off(row), "lease"}
    assert written(page, "restart") == {"max": 3, "window": "10m", "backoff": ["1s", "1m"]}
    assert parts["Restart"]["properties"]["window"]["default"] == 600
    assert written(page, "retention") == {"keep": 10, "older_than": "30d"}
    assert parts["Retention"]["properties"]["older_than"]["default"] == 30 * 86400


def off(row: str) -> set[str]:
    """Return the fields that a row calls off by default."""
    return set(re.findall(r"`(\w+)`", row.partition("Off by default")[2]))


def written(page: str, field: str) -> dict[str, object]:
    """Return the example in the row of a field."""
    (text,) = re.findall(rf"^\| `{field}` \| `(\{{.*?\}})`", page, re.MULTILINE)
    found: dict[str, object] = json.loads(text)
    return found


def test_the_agent_is_as_small_as_the_page_says() -> None:
    assert "its agent (less than 1 MB)" in (DOCS / "ssh.md").read_text()
    assert len(build_archive().data) < 1_000_000

"""`init`, through the installed command: by options and by questions."""

from __future__ import annotations

import json
import os

import pytest

from support.launch import Launch
from support.terminals import Terminal
from tflaunch.errors import EXIT_USAGE

pytestmark = pytest.mark.cli

COMMAND = ("--", "sh", "-c", "echo trained")


def test_a_first_spec_can_be_checked_and_run_as_it_is_told(launch: Launch) -> None:
    """One line says what to type next, and that works."""
    made = launch.run("init", "--worker", 2, *COMMAND)
    told = "tflaunch: wrote cluster.yaml; run it with: "
    assert (made.returncode, made.stdout, made.stderr) == (0, "", f"{told}tflaunch up cluster.yaml\n")
    assert launch.run("check", "cluster.yaml").stdout == "cluster.yaml: ok\n"
    ended = launch.run(*made.stderr.removeprefix(told).split()[1:])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("trained") == 2


def test_the_spec_goes_to_stdout_alone(launch: Launch) -> None:
    """And can be read from there; with hosts as `run` places them."""
    made = launch.run("init", "-", "-H", "h1,h2", "-n", 3, "--ps", 1, "--chief", "--evaluator", *COMMAND)
    assert (made.returncode, made.stderr) == (0, "")
    assert '\n  worker: ["h1", "h1", "h2"]\n' in made.stdout
    assert os.listdir(launch.directory) == []
    saved = json.loads(
        launch.run("run", "-H", "h1,h2", "-n", 3, "--ps", 1, "--chief", "--evaluator", "--save", *COMMAND).stdout
    )
    made = launch.run("init", "a b.json", "-H", "h1,h2", "-n", 3, "--ps", 1, "--chief", "--evaluator", *COMMAND)
    assert made.stderr.endswith("tflaunch up 'a b.json'\n")
    written = json.loads((launch.directory / "a b.json").read_text())
    assert written.pop("$schema").startswith("https://")
    assert written == saved


@pytest.mark.parametrize(
    ("program", "is_needed"),
    [("import tensorflow as tf\n", True), ("tf.distribute.Server(spec).join()\n", False), (None, False)],
)
def test_servers_are_for_programs_that_start_none(launch: Launch, program: str | None, is_needed: bool) -> None:
    """Without one, worker and ps would run the chief's code, and the job would hang; every format can be checked."""
    if program is not None:
        (launch.directory / "train.py").write_text(program)
    for name in ("a.yaml", "b.toml", "c.json"):
        assert launch.run("init", name, "--ps", 1, "--chief", "--", "python", "train.py").returncode == 0
        assert launch.run("check", name).returncode == 0
        tasks = json.loads(launch.run("plan", name, "--json").stdout)["tasks"]
        served = {task["task"].partition(":")[0] for task in tasks if task["argv"][-1].endswith("server.py")}
        assert served == ({"worker", "ps"} if is_needed else set())


def test_a_number_is_no_host(launch: Launch) -> None:
    """`-H 2` means `-n 2`."""
    refused = launch.run("init", "-H", "2", *COMMAND)
    assert refused.returncode == 2
    assert "for 2 workers here, write -n 2" in refused.stderr


def test_a_file_is_replaced_only_by_force(launch: Launch) -> None:
    """Also one that a link only names."""
    for path in (launch.directory / "cluster.yaml", launch.directory / "link.yaml"):
        if path.name == "link.yaml":
            path.symlink_to("nowhere.yaml")
        else:
            path.write_text("mine")
        refused = launch.run("init", path.name, *COMMAND)
        message = f"tflaunch: {path.name} exists; replace it with --force, or give another FILE\n"
        assert (refused.returncode, refused.stderr) == (EXIT_USAGE, message)
    assert (launch.directory / "cluster.yaml").read_text() == "mine"
    assert not (launch.directory / "nowhere.yaml").exists()
    assert launch.run("init", "--force", *COMMAND).returncode == 0
    assert launch.run("check", "cluster.yaml").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none/a.yaml", *COMMAND], "there is no directory none; create it, or give another FILE"),
        ([".", *COMMAND], ". has no ending of a spec; end it in one of .yaml, .yml, .toml, .json"),
        (["dir.yaml", *COMMAND], "dir.yaml is a directory; give the path of a file in it"),
        (["/proc/a.yaml", *COMMAND], "/proc/a.yaml cannot be written: No such file or directory; give another FILE"),
        (["a.txt", *COMMAND], "a.txt has no ending of a spec"),
        (["-H", "a_b!", *COMMAND], "cluster.worker[0]: 'a_b!' names no host"),
        (["--name", "a b", *COMMAND], "name: "),
        (["a.toml", "--", "echo", "{task.indx}"], "command[1]: {task.indx} is not a known placeholder"),
        (["--ps", "1", *COMMAND], "--ps needs a chief"),
        (["-n", "0", *COMMAND], "-n 0 leaves nothing that trains"),
        (["-n", "-1", *COMMAND], "is not a whole number from 0 on"),
        (["-n", "2"], "Missing COMMAND: what the tasks run, after `--`: tflaunch init -- python train.py"),
        ([], "Missing COMMAND"),
        (["a.yaml", "python", "train.py"], "a COMMAND goes after `--`"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(launch: Launch, arguments: list[str], message: str) -> None:
    """And nothing is written."""
    (launch.directory / "dir.yaml").mkdir()
    refused = launch.run("init", *arguments)
    assert refused.returncode == EXIT_USAGE
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert os.listdir(launch.directory) == ["dir.yaml"]


def test_a_command_for_a_shell_is_warned_about(launch: Launch) -> None:
    """As `check` does; the spec is written."""
    made = launch.run("init", "--", "python", "train.py", ">", "log")
    assert made.returncode == 0
    assert "tflaunch: cluster.yaml: warning: command: '>' is shell syntax" in made.stderr


def test_without_options_it_asks(launch: Launch) -> None:
    """What cannot be used is asked again; the defaults need only Enter."""
    (launch.directory / "fit.py").touch()
    terminal = Terminal(launch, "exec tflaunch init")
    terminal.answer(b"Which command trains? [python fit.py] ", b"python 'fit\n")
    terminal.answer(b"Which command trains? ", b"\n")
    terminal.answer(b"On which hosts, such as h1,h2? [this machine] ", b"h 1\n")
    terminal.answer(b"On which hosts", b"h1:2,h2\n")
    terminal.answer(b"How many workers? [3] ", b"many\n")
    terminal.answer(b"How many workers? ", b"\n")
    terminal.answer(b"How many parameter servers? [0] ", b"1\n")
    said, code = terminal.read_to_end()
    assert code == 0
    assert "a chief is added" in said
    text = (launch.directory / "cluster.yaml").read_text()
    assert '\n  chief: ["h1"]\n  worker: ["h1", "h1", "h2"]\n  ps: ["h1"]\n' in text
    assert '\ncommand: ["python", "fit.py"]\n' in text
    assert launch.run("check", "cluster.yaml").stdout == "cluster.yaml: ok\n"


def test_only_defaults_are_two_workers_here(launch: Launch) -> None:
    """The spec on stdout has no question in it."""
    terminal = Terminal(launch, "exec tflaunch init - > out.yaml")
    terminal.answer(b"[python train.py] ", b"\n")
    terminal.answer(b"[this machine] ", b"\n")
    terminal.answer(b"[2] ", b"\n")
    terminal.answer(b"[0] ", b"\n")
    assert terminal.read_to_end()[1] == 0
    assert "\ncluster:\n  worker: 2\n" in (launch.directory / "out.yaml").read_text()
    assert launch.run("check", "out.yaml").returncode == 0


@pytest.mark.parametrize("key", [b"\x03", b"\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_giving_up_at_a_question_writes_nothing(launch: Launch, key: bytes) -> None:
    """And says so."""
    terminal = Terminal(launch, "exec tflaunch init")
    terminal.answer(b"trains? [python train.py] ", b"\n")
    terminal.read_until(b"[this machine] ")
    said, code = terminal.read_to_end(key)
    assert (said.splitlines()[-1], code) == ("tflaunch: nothing was written", 130)
    assert os.listdir(launch.directory) == []


def test_a_file_that_exists_is_refused_before_the_questions(launch: Launch) -> None:
    """Answers are not lost."""
    (launch.directory / "cluster.yaml").touch()
    said, code = Terminal(launch, "exec tflaunch init").read_to_end()
    assert (said.strip(), code) == (
        "tflaunch: cluster.yaml exists; replace it with --force, or give another FILE",
        EXIT_USAGE,
    )

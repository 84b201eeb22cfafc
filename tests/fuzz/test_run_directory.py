"""Damaged run directories: whatever a file contains, every command that reads it succeeds, or fails with one sentence.

Set TFLAUNCH_FUZZ to the number of mutations for a longer run, and TFLAUNCH_FUZZ_SEED for others.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from fuzz.recorded_run import record
from tflaunch.agents.snapshot import AgentSnapshot
from tflaunch.cli.main import run_command_line
from tflaunch.client import status
from tflaunch.errors import TflaunchError
from tflaunch.features.slurm import batch
from tflaunch.runtime import launch
from tflaunch.store import journal, run_dir

pytestmark = pytest.mark.unit

COUNT = int(os.environ.get("TFLAUNCH_FUZZ", "600"))
SEED = int(os.environ.get("TFLAUNCH_FUZZ_SEED", "0"))
FILES = ("events.jsonl", "events.jsonl", "events.jsonl", "plan.json", "marks.jsonl", "times/worker-0")
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 3, 256, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, 1e999, float("nan"), "", "x",
    "0", "\0", "\n", "\x1b[2J", "\ud800", "\udc80", "\u202e", "é" * 300, "worker:9", "../..", [], [[]], {}, {"": {}},
    [None], {"kind": []}, ["worker:0", 0, 0, 0],
]  # fmt: skip
COMMANDS = (
    ["events"], ["events", "--json"], ["ps"], ["ps", "--json"], ["ls"], ["ls", "--json"], ["wait"], ["logs"],
    ["logs", "-t", "--tail", "2", "worker:0"], ["logs", "--attempt", "1"], ["logs", "--since", "1h"],
)  # fmt: skip


class Mutator:
    """Damages a file at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, items: Any) -> Any:
        """Return one of some items."""
        return self._random.choice(items)

    def mutated(self, data: bytes) -> bytes:
        """Return the content of a file with some damage."""
        for _ in range(self._random.choice((1, 1, 1, 2, 5))):
            damage: Callable[[bytes], bytes] = self._random.choice((self._value, self._value, self._lines, self._bytes))
            data = damage(data)
        return data

    def _value(self, data: bytes) -> bytes:
        """Replace, remove or add a value somewhere in a line of JSON."""
        lines = data.split(b"\n")
        number = self._random.randrange(len(lines))
        try:
            value = json.loads(lines[number])
        except (ValueError, RecursionError):
            return self._bytes(data)
        place: Any = value
        while isinstance(place, dict | list) and place:
            key = self._random.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or self._random.random() < 0.25:
                if self._random.random() < 0.2:
                    del place[key]
                else:
                    place[key] = self._random.choice(ODD)
                break
            place = inner
        lines[number] = json.dumps(value, separators=(",", ":")).encode()
        return b"\n".join(lines)

    def _lines(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        first, second = self._random.randrange(len(lines)), self._random.randrange(len(lines))
        match self._random.randrange(4):
            case 0:
                del lines[first]
            case 1:
                lines.insert(first, lines[second])
            case 2:
                lines[first], lines[second] = lines[second], lines[first]
            case _:
                lines[first] = b"[" * 2000
        return b"\n".join(lines)

    def _bytes(self, data: bytes) -> bytes:
        place = self._random.randrange(len(data) + 1)
        length = self._random.choice((1, 1, 2, 8, 100))
        junk = self._random.choice((b"", b"\0", b"\xff" * 8, b'"', b"\\ud800", b"9" * 20, b"\n", b"}", b"\xf8\x7f" * 8))
        return data[:place] + junk + data[place + length :] if self._random.random() < 0.8 else data[:place]


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it wrote to stderr."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["tflaunch", *arguments])
        code = run_command_line()
        out.flush()
    return code, err.getvalue()


@pytest.fixture
def no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query no agent, start no supervisor."""
    monkeypatch.setattr(
        status, "look_at", lambda connectors: {host: AgentSnapshot(host, None, 0.0, "silent") for host in connectors}
    )
    monkeypatch.setattr(launch, "_supervise", lambda *_: 0)


def check(commands: list[list[str]], run: Path) -> None:
    """Check every command."""
    for arguments in commands:
        code, err = run_command(arguments)
        assert 0 <= code <= 255, arguments
        for line in err.splitlines():
            assert line.startswith("tflaunch: ") or arguments[0] in ("wait", "report"), (arguments, err)
        assert "\x1b" not in err.replace("\x1b[2J", ""), arguments
    assert run.is_dir()


@pytest.mark.usefixtures("no_hosts")
@pytest.mark.parametrize("has_ended", [True, False])
def test_damaged_files_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """Never with a traceback, whichever file of a run is damaged and however."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    run = record(has_ended)
    commands = [[*arguments, run.name] if arguments[0] not in ("ls", "logs") else arguments for arguments in COMMANDS]
    commands += [["up", "--resume", run.name], ["report", "--dry-run"], ["prune", "--dry-run", run.name]]
    commands += [["prune", "--dry-run", "--keep", "0", "--older-than", "0s"]]
    whole = {name: (run / name).read_bytes() for name in set(FILES)}
    check(commands, run)
    for number in range(COUNT // 2):
        seed = f"{SEED}-{has_ended}-{number}"
        mutator = Mutator(hash_of(seed))
        name = mutator.choose(FILES)
        (run / name).write_bytes(mutator.mutated(whole[name]))
        few = commands if COUNT <= 100 else [mutator.choose(commands) for _ in range(3)]
        try:
            check(few, run)
        except BaseException:
            print(f"\nseed {seed}: {name}, saved as {tmp_path}/damaged")
            shutil.copy(run / name, tmp_path / "damaged")
            raise
        (run / name).write_bytes(whole[name])


def hash_of(seed: str) -> int:
    """Return a number for a seed, the same in every process."""
    return int.from_bytes(seed.encode(), "big")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"job": 17}', '{"job": "17; rm"}', '{"job": "\\ud800"}', "[" * 9000])
def test_a_damaged_note_of_a_job_is_none(tmp_path: Path, text: str) -> None:
    """Slurm is queried for job numbers only."""
    (tmp_path / "slurm.json").write_text(text)
    assert batch.job_of(tmp_path) is None
    batch.note_job(tmp_path, "17_4")
    assert batch.job_of(tmp_path) == "17_4"


def test_text_that_is_not_unicode_is_shown_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may contain any byte, and a journal stores it as a lone surrogate."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    run = record(has_ended=False)
    path = run / run_dir.JOURNAL_NAME
    path.write_bytes(path.read_bytes().replace(b'"host":"localhost"', b'"host":"localhost","note":"\\udc80"'))
    assert run_command(["events"]) == (0, "")
    assert run_command(["events", "--json"]) == (0, "")


def test_a_line_that_was_cut_off_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor was killed while writing it."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    run = record(has_ended=False)
    path = run / run_dir.JOURNAL_NAME
    records = journal.read_journal(run)
    with path.open("ab") as file:
        file.write(b'{"seq":')
    assert journal.read_journal(run) == records


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda line: line[:-5], "column"),
        (lambda line: line.replace(b'"time":', b'"tame":'), "has no time"),
        (lambda line: line.replace(b'"kind":"host_joined"', b'"kind":["x"]'), "has no kind"),
        (
            lambda line: line.replace(b'"localhost"', b'"elsewhere"'),
            "is about host 'elsewhere', which the plan does not",
        ),
        (lambda line: line.replace(b'"localhost"', b"1e999"), "number"),
    ],
)
def test_damage_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes], reason: str
) -> None:
    """The run, the line, the file, the cause, and where the logs are; other runs are still listed."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    sound, run = record(has_ended=True), record(has_ended=False)
    path = run / run_dir.JOURNAL_NAME
    lines = path.read_bytes().split(b"\n")
    lines[1] = damage(lines[1])
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(TflaunchError) as caught:
        journal.read_job(run)
    told = str(caught.value)
    assert told.startswith(f"run {run.name}: line 2 of {path} is damaged (")
    assert reason in told
    assert told.endswith(f"what its tasks wrote is in {run / 'logs'}")
    out = io.StringIO()
    with redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["tflaunch", "ls", "--json"])
        assert run_command_line() == 0
    assert {entry["run"]: entry["state"] for entry in json.loads(out.getvalue())} == {
        sound.name: "succeeded",
        run.name: "unreadable",
    }

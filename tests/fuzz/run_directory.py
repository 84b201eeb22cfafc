"""Damaged run directories: a command reads what an earlier version, a full disk or a hand has left there.

Whatever a file contains, every command that reads it succeeds, or fails with one sentence.
"""

import atexit
import functools
import io
import json
import os
import random
import shutil
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, get_args
from unittest import mock

from fuzz.any_record import any_record
from fuzz.borders import MEMORY, Border
from fuzz.mutations import as_json, mutate, mutate_bytes, mutate_order
from fuzz.recorded_run import record
from fuzz.stages import check_sentence
from tflaunch.agents.snapshot import AgentSnapshot
from tflaunch.cli.main import run_command_line
from tflaunch.core.actions import Action
from tflaunch.core.annotations import Annotation
from tflaunch.core.events import Event
from tflaunch.errors import TflaunchError
from tflaunch.explain.status import StatusInputs, status
from tflaunch.records import as_json as record_as_json
from tflaunch.store import journal
from tflaunch.store.journal import first_and_last_record
from tflaunch.store.run_dir import JOURNAL_NAME
from tflaunch_worker import wire

_FILES = (*[JOURNAL_NAME] * 6, "plan.json", "marks.jsonl", "marks.jsonl", "times/worker-0")
_COMMANDS = (
    "events RUN", "events --json RUN", "ps RUN", "ps --json RUN", "ls", "ls --json", "wait RUN", "logs",
    "logs -t --tail 2 worker:0", "logs --attempt 1", "logs --since 1h", "up --resume RUN", "report --dry-run",
    "prune --dry-run RUN", "prune --dry-run --keep 0 --older-than 0s",
)  # fmt: skip
_FREE = ("wait", "report")  # commands whose stderr has other lines, too


@functools.cache
def recorded(has_ended: bool) -> Path:
    """Return the directory of the only run of a home, which ends with this process."""
    home = tempfile.mkdtemp(prefix="tflaunch-fuzz-", dir=MEMORY)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with mock.patch.dict(os.environ, TFLAUNCH_HOME=home):
        return record(has_ended)


def generate(chance: random.Random) -> bytes:
    """Return a file with damage in values, lines or bytes, and a command that reads it."""
    has_ended, name = chance.random() < 0.5, chance.choice(_FILES)
    lines = (recorded(has_ended) / name).read_bytes().splitlines()
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        action = chance.random()
        if action < 0.15 and len(lines) > 1:
            lines = mutate_order(lines, chance)
        elif action < 0.3:
            kind = chance.choice(get_args(Event | Annotation | Action))
            known = {"seq": len(lines), "time": 1e9, "now": chance.uniform(0, 100)}
            lines.insert(chance.randrange(1, len(lines) + 1), as_json({**known, **any_record(kind, chance)}))
        else:
            place = chance.choice((0, chance.randrange(len(lines))))  # the first has the plan
            lines[place] = _damaged(lines[place], chance)
    data = b"\n".join(lines) + b"\n"
    data = mutate_bytes(data, chance) if chance.random() < 0.1 else data
    data = b"" if chance.random() < 0.01 else data
    command = chance.choice(_COMMANDS) if name != JOURNAL_NAME or chance.random() < 0.5 else ""
    return json.dumps([has_ended, name, command, data.decode("latin-1")]).encode()


def _damaged(line: bytes, chance: random.Random) -> bytes:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return mutate_bytes(line, chance)
    return as_json(mutate(value, chance)).replace(b"\n", b" ")


def check(case: bytes) -> None:
    has_ended, name, command, text = json.loads(case)
    run = recorded(has_ended)
    whole = (run / name).read_bytes()
    (run / name).write_bytes(text.encode("latin-1"))
    try:
        _check_journal(run)
        if command:
            _check_command(run, command.replace("RUN", run.name).split())
    finally:
        (run / name).write_bytes(whole)


def _check_journal(run: Path) -> None:
    try:
        records, job = journal.read_job(run)
        found = first_and_last_record(run)
    except TflaunchError as error:
        check_sentence(str(error))
        return
    assert records
    if found is not None:
        check_sentence(str(found[1].get("state")))  # which `ls` and `prune` show as it is
    shown = status(job, StatusInputs(epoch=0.0, logs="logs", is_alive=False, now=1e6))
    check_sentence(shown.reason or "")
    wire.parse(json.dumps(record_as_json(shown), allow_nan=False), max_values=1 << 20)


def _check_command(run: Path, arguments: list[str]) -> None:
    """Check a command that reaches no agent and starts no supervisor."""
    with (
        mock.patch.dict(os.environ, TFLAUNCH_HOME=str(run.parents[1])),
        mock.patch(
            "tflaunch.agents.snapshot.look_at",
            lambda hosts: {host: AgentSnapshot(host, None, 0.0, "silent") for host in hosts},
        ),
        mock.patch("tflaunch.runtime.launch._supervise", return_value=0),
    ):
        code, said = run_command(arguments)
    assert 0 <= code <= 255, arguments
    for line in said.splitlines():
        assert line.startswith("tflaunch: ") or arguments[0] in _FREE, (arguments, said)
    assert "\x1b" not in said, arguments


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it wrote to stderr."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), mock.patch("sys.argv", ["tflaunch", *arguments]):
        code = run_command_line()
        out.flush()
    return code, err.getvalue()


BORDER = Border(generate, check)

"""Journals: a command reads what an earlier version, a full disk or a hand has left there."""

from __future__ import annotations

import functools
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any, get_args
from unittest import mock

from fuzz.any_record import any_record
from fuzz.borders import MEMORY, Border
from fuzz.mutations import as_json, mutate, mutate_bytes, mutate_order
from fuzz.recorded_run import record
from fuzz.stages import check_sentence
from tflaunch.core.actions import Action
from tflaunch.core.annotations import Annotation
from tflaunch.core.events import Event
from tflaunch.errors import TflaunchError
from tflaunch.explain.status import StatusInputs, status
from tflaunch.store import journal
from tflaunch.store.journal_reader import first_and_last_record
from tflaunch.store.run_dir import JOURNAL_NAME
from tflaunch_worker import wire


@functools.cache
def _lines(has_ended: bool) -> tuple[bytes, ...]:
    """Return the lines of a sound journal."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as home, mock.patch.dict(os.environ, TFLAUNCH_HOME=home):
        return tuple((record(has_ended) / JOURNAL_NAME).read_bytes().splitlines())


def generate(chance: random.Random) -> bytes:
    """Return a journal with damage: in values, lines, or bytes."""
    lines = list(_lines(chance.random() < 0.5))
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        action = chance.random()
        if action < 0.15:
            lines = mutate_order(lines, chance)
        elif action < 0.3:
            kind = chance.choice(get_args(Event | Annotation | Action))
            known = {"seq": len(lines), "time": 1e9, "now": chance.uniform(0, 100)}
            lines.insert(chance.randrange(1, len(lines) + 1), as_json({**known, **any_record(kind, chance)}))
        else:
            place = chance.randrange(len(lines))
            lines[place] = _damaged(lines[place], chance)
    data = b"\n".join(lines) + b"\n"
    return mutate_bytes(data, chance) if chance.random() < 0.1 else data


def _damaged(line: bytes, chance: random.Random) -> bytes:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return mutate_bytes(line, chance)
    return as_json(mutate(value, chance)).replace(b"\n", b" ")


def check(case: bytes) -> None:
    """Read the journal, and show the job that it leads to."""
    with tempfile.TemporaryDirectory(prefix="fuzz-journal-", dir=MEMORY) as name:
        path = Path(name)
        (path / JOURNAL_NAME).write_bytes(case)
        try:
            records, job = journal.read_job(path)
            found = first_and_last_record(path)
        except TflaunchError as error:
            check_sentence(str(error))
            return
    assert records
    if found is not None:
        check_sentence(str(found[1].get("state")))  # which `ls` and `prune` show as it is
    shown = status(job, StatusInputs(epoch=0.0, logs="logs", is_alive=False, now=1e6))
    check_sentence(shown.reason or "")
    wire.parse(json.dumps(shown.as_json(), allow_nan=False), max_values=1 << 20)


BORDER = Border(generate, check)

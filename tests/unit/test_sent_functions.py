"""Functions that are sent to tasks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.specs import SMALLEST_LOCAL, planned
from tflaunch.api.functions import Call

pytestmark = pytest.mark.unit


def test_what_only_this_program_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it matters, and the interpreter tells: then tasks share a process with those of other programs."""
    command = [sys.executable, "train.py"]
    own = subprocess.check_output([sys.executable, "-c", "import sys; print(*sys.path[1:], sep='\\n')"], text=True)
    monkeypatch.setattr(sys, "path", ["/mine", *own.splitlines(), "/other", "__editable__.finder.__path_hook__"])
    call = Call(print, (), {})
    plan = planned({**SMALLEST_LOCAL, "command": command, "workdir": "/"})._replace(preload=("json",))
    assert call.places_beside(plan) == ["/mine", "/other"]
    assert call.places_beside(planned({**SMALLEST_LOCAL, "command": command})) == call.searched
    without = planned({**SMALLEST_LOCAL, "command": ["/missing/python", "train.py"]})._replace(preload=("json",))
    assert call.places_beside(without) == call.searched

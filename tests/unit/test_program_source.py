"""What a command runs with Python, as far as that is certain, and where functions find their modules."""

import subprocess
import sys

import pytest

from support.specs import SMALLEST_LOCAL, planned
from tflaunch.api.functions import Call
from tflaunch_worker.features import program_source


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("python train.py --x 1", ("script", 1)),
        ("python3 -u ./a/train.py", ("script", 2)),
        ("/opt/py/bin/python3.12 -u -u -m pack.train -m x", ("module", 4)),
        ("python -c pass -c", ("text", 2)),
        ("python -c", None),
        ("python -m ../train", None),
        ("python -X dev train.py", None),
        ("python -mtrain", None),
        ("python", None),
        ("python -x.py", None),
        ("python trainer.zip", None),
    ],
)
def test_what_a_command_runs(words: str, found: tuple[str, int] | None) -> None:
    """Only if it is certain that the interpreter parses it the same way."""
    assert program_source.find_program(words.split()) == found
    assert (program_source.check_command(words.split()) == "") == (found is not None)
    for other in ("sh -c x", "pythonw train.py", "env python train.py", "ipython train.py", ""):
        assert program_source.check_command(other.split()) == "its command does not start with a Python"


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

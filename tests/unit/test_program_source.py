"""What a command runs with Python, as far as that is certain."""

import pytest

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

"""Why programs failed: real outputs of TensorFlow 2.21, tf_keras, Keras 3 and Python, each with what must be shown.

A file in failures/ has a program in comments, and what it wrote last; failures/expected.yaml says what must be shown.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tflaunch.core import restart_rules
from tflaunch.explain.tracebacks import clipped, failure_words, last_traceback
from tflaunch_worker.failures import Frame, bounded, failure_signature, find_failure

pytestmark = pytest.mark.unit

OUTPUTS = Path(__file__).with_name("failures")
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((OUTPUTS / "expected.yaml").read_text())


def output_of(name: str) -> str:
    """Return what a program wrote last."""
    return (OUTPUTS / f"{name}.txt").read_text().split("----\n", 1)[1]


def test_each_output_has_its_expectation() -> None:
    assert sorted(EXPECTED) == sorted(path.stem for path in OUTPUTS.glob("*.txt"))
    assert len(EXPECTED) >= 40


@pytest.mark.parametrize("name", EXPECTED)
def test_the_sentence_and_the_line_of_the_user_are_found(name: str) -> None:
    """Not those of a library, of generated code, or of what wraps the exception."""
    wanted, lines = EXPECTED[name], output_of(name).splitlines()
    found = find_failure(bounded(lines))
    assert (found and found.sentence) == wanted["sentence"]
    if found is None:
        return
    assert found.place == wanted.get("place", "")
    words = failure_words(lines) or ""
    assert words.startswith(", ".join(filter(None, [wanted["sentence"], wanted.get("place")])))
    assert re.split("; caused by |; while it handled |; after thread |$", words)[1] == wanted.get("cause", "")


@pytest.mark.parametrize(
    ("shown", "pythons", "text"),
    [
        pytest.param(row["shown"], output["pythons"], output["text"], id=f"{row['name']} {output['pythons']}")
        for row in yaml.safe_load(OUTPUTS.with_name("tracebacks.yaml").read_text())
        for output in row["outputs"]
    ],
)
def test_the_tracebacks_of_every_python_are_read(shown: str, pythons: str, text: str) -> None:
    """Carets at any column, empty lines of code, groups, notes, threads, colors, local classes, crashes."""
    assert failure_words(text.splitlines()) == shown, pythons
    assert last_traceback(text.splitlines()) or shown.startswith(("Fatal", "usage error", "free()"))


def test_tensorflow_is_no_code_of_the_user_in_whatever_directory() -> None:
    """`pip install --target` makes directories with names of their own."""
    for file in ("tensorflow/dtensor/python/api.py", "tensorflow/python/a.py", "tf_keras/src/engine/training.py"):
        assert not Frame(f"/root/site/{file}", 64).is_own
    assert Frame("/root/site/train.py", 64).is_own


@pytest.mark.parametrize("name", EXPECTED)
def test_the_failure_is_the_same_in_every_task_and_attempt(name: str) -> None:
    """Whatever random names, addresses, pids and times are in it, and whatever colors."""
    output, draw = output_of(name), random.Random(name)
    signature = failure_signature(output.encode())
    assert signature
    assert restart_rules.is_own_error(signature) is not EXPECTED[name]["may_be_retried"]
    for _ in range(3):
        name, address, pid = "".join(draw.choices("abc_019xyz", k=8)), hex(draw.getrandbits(48)), draw.randint(1, 99999)
        other = re.sub(r"(?<=__autograph_generated_file)\w{8}", name, output)
        other = re.sub(r"0x[0-9a-f]+", address, other)
        other = re.sub(r"(?<=:)\d{10}\.\d+ +\d+", f"{draw.random() * 1e10:.6f} {pid}", other)
        assert failure_signature(other.encode()) == signature


@pytest.mark.parametrize("name", [name for name, wanted in EXPECTED.items() if "place" in wanted])
def test_four_lines_of_a_traceback_show_both(name: str) -> None:
    """The screen has room for them beside the output."""
    traceback = last_traceback(output_of(name).splitlines())
    if len(traceback) <= 4:  # a crash has none
        return
    shown = "\n".join(clipped(traceback, 4))
    file, line = EXPECTED[name]["place"].split(", ")
    assert f'{file}", {line}' in shown
    assert EXPECTED[name]["sentence"].partition(": ")[2][:60].rstrip("…") in shown.replace("\n  ", " ")
    assert len(shown.splitlines()) <= 5
    assert "in None" not in shown, "AutoGraph's name of a lambda"


def test_an_abort_while_the_interpreter_exits_is_not_the_cause() -> None:
    """Threads of TensorFlow may still run; an abort of a program that went on is another failure."""
    raised = output_of("key-error").splitlines()
    aborted = ["terminate called without an active exception", "Fatal Python error: Aborted"]
    at_exit = find_failure([*raised, "", "W0000 00:00:1.2 3 a.cc:4] bye", *aborted])
    later = find_failure([*raised, "", "epoch 2", *aborted])
    assert at_exit is not None
    assert later is not None
    assert (at_exit.kind, later.kind, later.text) == ("KeyError", "", "terminate called")


class Lines(list[str]):
    """Lines that count how often they are read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.reads += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[str]:
        self.reads += len(self)
        return super().__iter__()


@pytest.mark.parametrize(
    "part",
    [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "ValueError: in user code:",
        "",
        "a" * 3000,
        "a." * 900,
        "E: " + "Error encountered:" * 90,
        "The above exception was the direct cause",
        "F0000 [" + "]" * 900,
        "  + Exception Group Traceback (most recent call last):",
        "    | x",
        "terminate called after throwing an instance of '" + "'" * 900,
    ],
)
def test_of_hostile_output_each_line_is_read_a_few_times(part: str) -> None:
    """Not once for each other line; a pattern that is not bounded would not even end."""
    for lines in ([part] * 2000, [part, '  File "a.py", line 1', "E: x"] * 700, ['  File "a.py", line 1', part] * 900):
        counted = Lines(bounded(lines))
        found = find_failure(counted)
        assert counted.reads < 50 * len(counted)
        assert found is None or len(found.sentence) <= 200
        assert len(failure_signature("\n".join(lines).encode()[-16384:])) <= 200

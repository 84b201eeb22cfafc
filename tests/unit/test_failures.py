"""Why programs failed: real outputs of TensorFlow 2.21, tf_keras, Keras 3 and Python, each with what must be shown.

A file in failures/ has a program in comments, and what it wrote last; failures/expected.yaml says what must be shown.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tflaunch.core import restart_rules
from tflaunch.explain.causes import clipped, failure_words, last_traceback
from tflaunch_worker.agent.last_output import KEPT, LastOutput
from tflaunch_worker.failures import Frame, bounded, failure_signature, find_failure

OUTPUTS = Path(__file__).with_name("failures")
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((OUTPUTS / "expected.yaml").read_text())


def output_of(name: str) -> str:
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
    """`pip install --target` makes directories of any name."""
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
def test_six_lines_of_a_traceback_show_both(name: str) -> None:
    """The screen has room for them beside the output."""
    traceback = last_traceback(output_of(name).splitlines())
    if not traceback:  # a crash has none
        return
    shown = "\n".join(clipped(traceback, 6))
    file, line = EXPECTED[name]["place"].split(", ")
    assert f'{file}", {line}' in shown
    assert EXPECTED[name]["sentence"].partition(": ")[2][:60].rstrip("…") in shown.replace("\n  ", " ")
    assert len(shown.splitlines()) <= 6
    assert "in None" not in shown, "AutoGraph's name of a lambda"


def test_an_abort_while_the_interpreter_exits_is_not_the_cause() -> None:
    """Threads of TensorFlow may still run; an abort of a program that went on is another failure."""
    raised = output_of("key-error").splitlines()
    aborted = ["terminate called without an active exception", "Fatal Python error: Aborted"]
    at_exit = find_failure([*raised, "", "W0000 00:00:1.2 3 a.cc:4] bye", *aborted])
    later = find_failure([*raised, "", "epoch 2", *aborted])
    assert (at_exit.kind, later.kind, later.text) == ("KeyError", "", "terminate called")


class Lines(list[str]):
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


TRACEBACK = """Traceback (most recent call last):
  File "/home/ann/train.py", line 41, in <module>
    model.fit(data)
  File "/opt/venv/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
    raise e.with_traceback(filtered_tb) from None
ValueError: Input 0 of layer "dense" is incompatible: got (32, 784)
"""

TF_KERAS = "\b\b\b\r{done}/{steps} [=====>....] - ETA: 3s - loss: {loss}"
KERAS_3 = "\b\b\b\r\x1b[1m{done}/{steps}\x1b[0m \x1b[32m━━\x1b[37m━━\x1b[0m 3s 4ms/step - loss: {loss}"
ALL_AT_ONCE = "{done}/{steps} - 3s - loss: {loss} - 3s/epoch - 6ms/step\n"


OWN = '  File "/home/ann/data.py", line 7, in load\n    raise ValueError\n'
LIBRARY = '  File "/opt/venv/'
CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\n"
OF_TENSORFLOW = "tensorflow.python.framework.errors_impl.UnavailableError"


@pytest.mark.parametrize(
    ("output", "signature"),
    [
        ("step 7\n" + TRACEBACK, "ValueError at train.py:41"),
        (TRACEBACK.replace(LIBRARY, OWN + LIBRARY), "ValueError at data.py:7"),
        (TRACEBACK.replace("ValueError", OF_TENSORFLOW), "UnavailableError at train.py:41"),
        (TRACEBACK + "2026-01-01 W tensorflow: bye\n" * 50, "ValueError at train.py:41"),
        (TRACEBACK + CHAINED + TRACEBACK.replace("ValueError", "KeyError"), "KeyError at train.py:41"),
        ("\n".join(["Traceback (most recent call last):", *TRACEBACK.splitlines()[3:]]),
         "ValueError at traceback_utils.py:122"),
        ("\n \n", ""),
    ],
    ids=["own line", "innermost", "module", "threads", "chained", "no own line", "blank"],
)  # fmt: skip
def test_failures_that_are_the_same_to_a_person_have_equal_signatures(output: str, signature: str) -> None:
    """An exception is its type and the user's innermost own line, not its message, which may contain numbers."""
    assert failure_signature(output.encode()) == signature


def test_without_an_exception_the_last_lines_count_but_for_numbers() -> None:
    """Times, addresses and ports differ between attempts."""
    first = failure_signature(b"begin\n12:00:01 cannot open 0x7f00 on port 2222\nbye\n")
    assert first == failure_signature(b"long ago\nbegin\n12:59:07 cannot open 0x7fab on port 2301\nbye\n\n")
    assert first != failure_signature(b"12:59:07 cannot read 0x7fab on port 2301\nbye\n")
    assert first.startswith("output ")
    for output in (b"\xff\xfe" * 100, b"Traceback (most recent call last):\n", b"\r" * 20000):
        assert len(failure_signature(output)) <= 200


def progress_after(*pieces: bytes) -> dict[str, Any]:
    output = LastOutput()
    for piece in pieces:
        output.note(piece)
    return output.progress()


OF_2 = {"epoch": 2, "epochs": 5}


@pytest.mark.parametrize(
    ("text", "progress"),
    [
        (
            "Epoch 2/5\n\r120/469 [=====>......] - ETA: 3s - loss: 0.3120 - accuracy: 0.9\r121/469 "
            "[=====>......] - ETA: 3s - loss: 0.3 - accuracy: 0.91",
            {**OF_2, "step": 590, "steps_per_epoch": 469, "metrics": {"loss": 0.3, "accuracy": 0.91}},
        ),
        (
            "Epoch 2/5\n\x1b[1m  1/469\x1b[0m \x1b[37m━━━━\x1b[0m \x1b[1m3:10\x1b[0m 407ms/step - loss: 2.3"
            "\x08\x08\x08\r\x1b[1m 12/469\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━\x1b[0m \x1b[1m1s\x1b[0m 4ms/step"
            " - loss: 1.9",
            {**OF_2, "step": 481, "steps_per_epoch": 469, "metrics": {"loss": 1.9}},
        ),
        (
            "Epoch 2/5\n469/469 - 3s - loss: 0.3 - val_loss: 1.2e-05 - 3s/epoch - 6ms/step\n",
            {**OF_2, "step": 938, "steps_per_epoch": 469, "metrics": {"loss": 0.3, "val_loss": 1.2e-05}},
        ),
        ("Epoch 2/5\n", OF_2),
        ("Epoch 2/3\n10/10 [======] - loss: 0.5\nEpoch 2/5\n", OF_2),
        (
            "Epoch 2/5\n3/9 [==>...] - ETA: 3s - loss: 1e999 - mae: 0.5\n  print('Epoch 3/9')\n",
            {**OF_2, "step": 12, "steps_per_epoch": 9, "metrics": {"mae": 0.5}},
        ),
        ("\r 8192/11490434 [......] - ETA: 0s\b\b\r11490434/11490434 [====] - 0s 0us/step\n", {}),
        ("\r20/20 [======] - 0s 1ms/step\n", {}),
        ("read 3/10 [files]\n1/2 [==]\nEpoch of dinosaurs\nEpoch 3/10 starts\n", {}),
    ],
    ids=["tf_keras", "Keras 3", "verbose=2", "no bar", "another fit", "overflow", "download", "prediction", "others"],
)
def test_progress_is_that_of_the_bar_drawn_last(text: str, progress: dict[str, Any]) -> None:
    """As Keras of both generations draws it; a read may end within a line."""
    lines = b"loading\n" + text.encode()
    assert progress_after(lines) == progress
    for size in (1, 7, 100):
        assert progress_after(*(lines[start : start + size] for start in range(0, len(lines), size))) == progress
    bars = [b"\r 7/10 [====>..] - loss: 0.5".ljust(KEPT, b" ")] * 10
    assert progress_after(b"Epoch 4/9\n", *bars)["step"] == 37, "an epoch is known long after its line"


def test_what_was_known_stays_until_the_next_bar() -> None:
    """With verbose=2, an epoch draws one bar, at its end, and the line of the next one follows at once."""
    output = LastOutput()
    for epoch in (1, 2):
        output.note(f"Epoch {epoch}/3\n10/10 - 3s - loss: {0.5 / epoch} - 3s/epoch\n".encode())
    output.note(b"Epoch 3/3\n")
    known = {"epochs": 3, "steps_per_epoch": 10}
    assert output.progress() == {**known, "epoch": 3, "step": 20, "metrics": {"loss": 0.25}}
    output.note(b"20/20 - 3s - loss: 0.1 - 3s/epoch\n")
    assert output.progress() == {**known, "epoch": 3, "step": 60, "steps_per_epoch": 20, "metrics": {"loss": 0.1}}


@pytest.mark.parametrize("bar", [TF_KERAS, KERAS_3], ids=["tf_keras", "Keras 3"])
def test_a_fit_of_one_epoch_is_progress_without_the_line(bar: str) -> None:
    """Keras writes "Epoch 1/1" nowhere; a loop of fits counts on, and evaluations between them are not read."""
    output = LastOutput()
    for done, loss in ((1, 0.9), (40, 0.8), (100, 0.7)):
        output.note(bar.format(done=done, steps=100, loss=loss).encode())
        assert output.progress() == {"epoch": 1, "step": done, "steps_per_epoch": 100, "metrics": {"loss": loss}}
    output.note(b"\n" + bar.format(done=20, steps=20, loss=0.1).encode() + b"\n")
    assert output.progress()["step"] == 100
    for done in (1, 100):
        output.note(bar.format(done=done, steps=100, loss=0.6).encode())
    assert output.progress() == {"epoch": 2, "step": 200, "steps_per_epoch": 100, "metrics": {"loss": 0.6}}


@pytest.mark.parametrize("steps", [20, 100])
@pytest.mark.parametrize("bar", [TF_KERAS, KERAS_3, ALL_AT_ONCE], ids=["tf_keras", "Keras 3", "verbose=2"])
def test_an_evaluation_after_epochs_is_not_their_progress(bar: str, steps: int) -> None:
    """Even of as many steps, and of more output than is kept; a callback may write between a bar and its last."""
    output = LastOutput()
    shown = [bar.format(done=100, steps=100, loss=0.9), "saved\n", bar.format(done=100, steps=100, loss=0.7), "\n"]
    output.note(f"Epoch 2/2\n{''.join(shown[2:] if bar is ALL_AT_ONCE else shown)}".encode())
    for done in (1, *range(1, steps + 1), *([steps] * 500)):
        output.note(bar.format(done=done, steps=steps, loss=0.1).encode())
    output.note(b"\n")
    progress = {"epoch": 2, "epochs": 2, "step": 200, "steps_per_epoch": 100, "metrics": {"loss": 0.7}}
    assert output.progress() == progress


def test_empty_lines_cost_no_more_than_others() -> None:
    """A search that began again at each of a million would take minutes."""
    assert progress_after(b"\n" * 1_000_000 + b" - \r" + b" " * 1_000_000) == {}

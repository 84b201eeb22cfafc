"""Lines on the screen: complete, with names and times, and progress bars as a terminal would leave them."""

import io
import time
from functools import partial

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from support.emulator import Emulator
from support.readable import AGES, DURATIONS, SIGNALS
from tflaunch.explain import startup_messages
from tflaunch.explain.startup_messages import NOTE, StartupMessages
from tflaunch.store.log_reader import Line
from tflaunch.tui.fold import LogPrinter, local_time
from tflaunch.tui.screen import Screen, TaskLines
from tflaunch.tui.terminal import Region
from tflaunch_worker.readable import age_words, duration_words, exit_words, signal_name


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((b"o", b"n", b"e\ntw", b"o\n\nno end"), b"w:0 | one\nw:0 | two\nw:0 | \nw:0 | no end\n"),
        ((b"10%\r50%\r", b"100%\nnext\n"), b"w:0 | 100%\nw:0 | next\n"),
        ((b"dos\r\nline\r\n",), b"w:0 | dos\nw:0 | line\n"),
        ((b"\xff\x00\n",), b"w:0 | \xff\x00\n"),
    ],
)
def test_lines_are_whole_and_prefixed(pieces: tuple[bytes, ...], expected: bytes) -> None:
    """A line without end does not grow in memory."""
    lines = TaskLines(b"w:0 | ")
    assert b"".join(lines.feed(piece) for piece in pieces) + lines.flush() == expected
    assert sum(len(lines.feed(b"x" * 500_000)) for _ in range(20)) > 5_000_000


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((), ""),
        ((b"one\ntwo",), "two"),
        ((b"one\n\n \n", b"\n"), "one"),
        ((b"10%\r50%\r",), "50%"),
        ((b"one\n", b"\r"), "one"),
        ((b"\xff\n",), "\ufffd"),
    ],
)
def test_the_last_line_is_the_one_that_says_something(pieces: tuple[bytes, ...], expected: str) -> None:
    lines = TaskLines(b"w:0 | ")
    for piece in pieces:
        lines.feed(piece)
    assert lines.last() == expected


def test_a_message_cannot_act_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """It may quote output of a host or a program; colours are removed, the rest is escaped."""
    screen = Screen(["worker:0"])
    screen.say("failed:\n\tx = \x1b[31m1\x1b[0m\x1b]0;PWNED\x07\x1b[2J\ud800\r\ndone\x85\u202e")
    screen.close()
    said = capfd.readouterr().err
    assert said.splitlines() == [
        "tflaunch: failed:",
        r"tflaunch:         x = 1\x1b]0;PWNED\x07\x1b[2J\ud800",
        r"tflaunch: done\x85\u202e",
    ]


STARTUP = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795398408.233515    5284 port.cc:153] oneDNN custom operations are on. You may see slightly different
I0000 00:00:1795398408.235246    5284 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be
I0000 00:00:1795398408.294531    5284 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available CPU
To enable the following instructions: AVX2 AVX512F, in other operations, rebuild TensorFlow with the appropriate flags.
E0000 00:00:1795398412.101161    5284 cuda_platform.cc:52] failed call to cuInit: INTERNAL: UNKNOWN ERROR (303)
I0000 00:00:1795398412.111867    5284 grpc_server_lib.cc:467] Started server with target: grpc://localhost:13101
I0000 00:00:1795398412.525343    5416 coordination_service.h:529] /job:worker/replica:0/task:0 has connected
I0000 00:00:1795398412.527848    5416 coordination_service.cc:505] Example stragglers:
/job:worker/replica:0/task:1
I0000 00:00:1795398413.000001    5416 generator_dataset_op.cc:122] Memory patch applied: M_TRIM_THRESHOLD=128 kb
W0000 00:00:1795398413.228541    5416 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized because
I0000 00:00:1795398419.000001    5416 preemption_notifier.cc:110] Preemption notifier is being deleted.
/venv/lib/python3.11/site-packages/tensorflow/python/data/ops/dataset_ops.py:463: UserWarning: To make it possible to \
preserve tf.data options across serialization boundaries, their implementation has moved to be part of the graph.
  warnings.warn("To make it possible to preserve tf.data options across "
2024-03-01 10:20:30.123456: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.
""".splitlines()
TELLING = """\
E0000 00:00:1795398412.101161    5284 cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_NO_DEVICE (100)
E0000 00:00:1795398412.101161    5284 coordination_service_agent.cc:245] Failed to connect
W0000 00:00:1795398412.101161    5284 gpu_device.cc:2342] Cannot dlopen some GPU libraries.
epoch 1: WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
saved /job:worker/replica:0/task:1
""".splitlines()


def test_start_up_messages_are_hidden_and_that_is_said_once() -> None:
    messages = StartupMessages()
    assert messages.without("w:0", "\n".join(TELLING).encode()) == "\n".join(TELLING).encode()
    assert messages.note() == b""
    lines = TaskLines(b"", shown=partial(messages.without, "w:0"))
    shown = []
    for hidden, told in zip(STARTUP * 2, [*TELLING, "", "1"] * 4, strict=False):
        shown.append(lines.feed(f"{hidden}\n{told}\n{hidden}\n".encode()).decode())
        shown.append(messages.note().decode())
        assert lines.feed(f"{hidden}\n".encode()) == b""
    assert shown[::2] == [f"{told}\n" for told in ([*TELLING, "", "1"] * 4)[: len(STARTUP) * 2]]
    assert list(filter(None, shown[1::2])) == [f"tflaunch: {NOTE}\n"]
    assert lines.last()


OPTIONS = """\
I0000 00:00:1795877957.436397   28566 eager_service_impl.cc:349] Creating sync eager service context with rendezvous_id
I0000 00:00:1795877957.436458   28566 eager_service_impl.cc:355] SessionOptions: goo.gle/debugproto
device_count {
  key: "CPU"
  value: 1
}
gpu_options {
  experimental {
  }
}
allow_soft_placement: true

"""
INFERENCE = """\
W0000 00:00:1795877957.641584   28565 type_inference.cc:340] Type inference failed. Error message: INVALID_ARGUMENT: exp
type_id: TFT_ANY

\twhile inferring type of node 'AutoShardDataset'
"""


def shown_in_pieces(text: str, size: int) -> list[str]:
    """Return what is shown of a worker's output that comes in pieces, while a ps writes the same."""
    messages = StartupMessages()
    worker, ps = (TaskLines(b"", shown=partial(messages.without, task)) for task in ("worker:0", "ps:0"))
    shown = b""
    for start in range(0, len(text), size):
        piece = text[start : start + size].encode()
        shown += worker.feed(piece)
        ps.feed(piece)
    return (shown + worker.flush()).decode().splitlines()


@pytest.mark.parametrize("size", [1, 40, 10_000])
@pytest.mark.parametrize("block", [OPTIONS, INFERENCE])
def test_messages_of_several_lines_are_hidden_as_a_whole(block: str, size: int) -> None:
    """But nothing that a program writes after or between them, even in their form; TensorFlow 2.21 wrote these."""
    assert shown_in_pieces(block, size) == []
    assert shown_in_pieces(f"{block}loss: 0.5\n\n{block}}}\n", size) == ["loss: 0.5", "", "}"]
    head, _, _ = block.partition("}" if block is OPTIONS else "type_id")
    assert shown_in_pieces(f"{head}Epoch 1/3\nloss: 0.5\n", size) == ["Epoch 1/3", "loss: 0.5"]
    assert len(shown_in_pieces(head + "loss: 0.5\n" * 100, size)) > 30
    assert startup_messages.own_lines([*block.splitlines(), "loss: 0.5"]) == ["loss: 0.5"]


# ---- `tflaunch logs`

MINUTE = 1_800_000_000.0
CLOCK = "%H:%M:%S"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(55.0, "55.000"), (55.0004, "55.000"), (55.9994, "55.999"), (55.9999, "56.000"), (59.99951, "00.000")],
)
def test_a_time_is_rounded_to_the_nearest_millisecond(seconds: float, text: str) -> None:
    """Rounding up may carry into the seconds."""
    minute = time.strftime("%H:%M:", time.localtime(round(MINUTE + seconds)))
    assert local_time(MINUTE + seconds, CLOCK) == minute + text


def test_lines_have_the_times_at_which_they_were_written(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = [Line(MINUTE + 0.9999, "worker:0", 0, b"one"), Line(MINUTE + 1.5, "worker:10", 0, b"two")]
    LogPrinter(["worker:0", "worker:10"], True, False).print(lines)
    day = time.strftime("%Y-%m-%dT", time.localtime(MINUTE))
    clock = time.strftime("%H:%M:", time.localtime(MINUTE))
    assert capfdbinary.readouterr().out.decode().splitlines() == [
        f"{day}{clock}01.000 worker:0  | one",
        f"{day}{clock}01.500 worker:10 | two",
    ]


def test_a_terminal_gets_text_and_colours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets the task's output unchanged."""
    line = Line(MINUTE, "worker:0", 0, b"\x1b]0;title\x07a\x1b[2J\x1b[31mb")
    for is_terminal, shown in ((True, b"a\x1b[31mb\x1b[0m\n"), (False, line.text + b"\n")):
        out = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr(out, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr("sys.stdout", out)
        LogPrinter(["worker:0"], False, False).print([line])
        assert out.buffer.getvalue() == shown


# ---- durations, ages and signals


@pytest.mark.parametrize(("seconds", "words"), DURATIONS.items())
def test_a_duration_has_at_most_two_units(seconds: float, words: str) -> None:
    """Tenths below ten seconds, and nothing that is zero."""
    assert duration_words(seconds) == words


@pytest.mark.parametrize(("seconds", "words"), AGES.items())
def test_an_age_has_one_unit(seconds: float, words: str) -> None:
    """At least two of it, unless they are seconds."""
    assert age_words(seconds) == words


@pytest.mark.parametrize(("number", "name"), SIGNALS.items())
def test_a_signal_has_its_name(number: int, name: str) -> None:
    assert (signal_name(number), exit_words(7)) == (name, "exited with code 7")
    assert number == 0 or exit_words(-number) == f"was killed by {name}"


# ---- the region at the bottom of a terminal, byte by byte


SIZE = (20, 10)


def shown(*frames: bytes) -> list[str]:
    emulator = pyte.Screen(*SIZE)
    stream = pyte.ByteStream(emulator)
    for frame in frames:
        stream.feed(frame.replace(b"\n", b"\r\n"))
    return "\n".join(line.rstrip() for line in emulator.display).rstrip("\n").split("\n")


def test_a_region_moves_down_grows_and_shrinks() -> None:
    region = Region()
    frames = [region.frame(b"1\n", ["a", "b"])]
    assert shown(*frames) == ["1", "a", "b"]
    frames.append(region.frame(b"2\n3\n", ["a", "b", "c"]))
    assert shown(*frames) == ["1", "2", "3", "a", "b", "c"]
    frames.append(region.frame(b"", ["z"]))
    assert shown(*frames) == ["1", "2", "3", "z"]
    frames.append(region.frame(b"4\n", []))
    assert shown(*frames) == ["1", "2", "3", "4"]
    assert not region.is_drawn
    assert region.frame(b"5\n", []) == b"5\n"
    frames = [region.frame(b"", ["a", "b"]), region.left(), region.left(), region.frame(b"", ["c"])]
    assert shown(*frames) == ["a", "b", "c"]


STEPS = some.lists(
    some.one_of(
        some.tuples(some.integers(12, 40), some.integers(4, 20)),
        some.integers(0, 30),
        some.sampled_from([b"^C", b"^C^C", b"typed"]),
    ),
    max_size=20,
)
"""New sizes of a terminal, numbers of lines to print above the region, and keys."""


@pytest.mark.parametrize("wraps", [True, False], ids=["terminals that wrap", "terminals that cut"])
@settings(max_examples=50)
@given(steps=STEPS, rows=some.integers(1, 8))
def test_no_resize_and_no_key_leaves_a_piece_of_the_region(
    wraps: bool, steps: list[tuple[int, int] | int | bytes], rows: int
) -> None:
    """Every line above it is there, once, in order; wide characters take two columns."""
    size, printed, typed, region = (30, 8), 0, 0, Region()
    emulator = Emulator(*size, wraps)
    for step in [0, *steps]:
        if isinstance(step, tuple):
            size = step
            emulator.resize(*size)
        elif isinstance(step, bytes):
            typed += len(step)
            emulator.feed(step if typed < 12 else b"")  # less than a line until the next frame
        else:
            above = b"".join(b"line %d\r\n" % (printed + number) for number in range(step))
            printed, typed = printed + step, 0
            lines = ["日本" + "─" * (size[0] - 5), *["frame".ljust(size[0] - 1, "x")] * (rows - 1)]
            emulator.feed(region.frame(above, lines[: size[1] - 1]))
    emulator.feed(region.frame(b"", []))
    assert emulator.lines() == ([f"line {number}" for number in range(printed)] or [""])


def test_colours_of_what_is_above_do_not_run_into_the_region() -> None:
    """Nor do the region's colours run into what follows."""
    frame = Region().frame(b"\x1b[31mred\n", ["a"])
    assert frame.index(b"\x1b[0m") < frame.index(b"a\x1b")

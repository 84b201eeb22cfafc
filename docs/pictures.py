# ruff: noqa: INP001 (a script, run on purpose)
"""Pictures of real terminals: each scene runs a command in one and saves what is on it as docs/pictures/NAME.svg.

    python docs/pictures.py [--only NAME]

Needs tflaunch with its `dev` and `tensorflow` requirements.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import itertools
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parent.parent
PICTURES = REPOSITORY / "docs" / "pictures"
PATIENCE = 180.0  # seconds
TRAINING = (
    f"up {REPOSITORY}/cluster_specs/mnist_multi_worker.json --set env.TF_CPP_MIN_LOG_LEVEL=3"
    " -- python -m tflaunch_worker.examples.mnist_multi_worker --epochs 9"
)
PLACE, HOME = "/home/you/train", "/home/you/.local/state/tflaunch"
"""What pictures show in place of the temporary directories, whose paths are as long: no line breaks elsewhere."""
_TEMPORARY = "/tmp"  # noqa: S108 (its length is known, and TemporaryDirectory makes the rest)
_RANDOM = 8  # characters that Python adds to the name of a temporary directory
IN_TRAINING = r"worker:1 +running.* 7/9 "
FRAMES = (r"tasks, logs in", *(rf"worker:1 +running.* {epoch}/9 " for epoch in (1, 3, 5, 7, 9)), None)
FRAME_SECONDS = 2.0

BROKEN = """
import json, os

def load(shard):
    images = ["image"] * shard
    return images[1]

task = json.loads(os.environ["TF_CONFIG"])["task"]
shard = 2 - task["index"]
print(f"loading shard {shard}", flush=True)
load(shard)
import time; time.sleep(60)
"""


class Scene(NamedTuple):
    """A picture: what is typed, and when it is taken.

    ``until``: a pattern that is on the terminal at that moment; without it, when the command has ended. ``frames``:
    such patterns, for a picture that moves. ``beside``: a command that runs at the same time in another terminal, and
    the pattern to wait for there.
    """

    name: str
    command: str
    columns: int = 100
    rows: int = 40
    until: str | None = None
    frames: tuple[str | None, ...] = ()
    beside: tuple[str, str] | None = None


SCENES = (
    Scene("help", "--help", rows=60),
    Scene("up", TRAINING, columns=120, rows=20, frames=FRAMES),
    Scene("failure", "up broken.json"),
    Scene("ps", "ps", columns=120, beside=(TRAINING, IN_TRAINING)),
)


class Directories(NamedTuple):
    """Where a scene is played, and TFLAUNCH_HOME there."""

    place: Path
    home: Path

    def hidden(self, text: str) -> str:
        """Return a text with the paths that pictures show."""
        return text.replace(str(self.home), HOME).replace(str(self.place), PLACE)


@contextmanager
def directories() -> Iterator[Directories]:
    """Make the temporary directories, with paths as long as those that pictures show."""
    prefix = "t" * (len(PLACE) - len(_TEMPORARY) - 1 - _RANDOM)
    with tempfile.TemporaryDirectory(dir=_TEMPORARY, prefix=prefix) as name:
        made = Directories(Path(name), Path(name, "h" * (len(HOME) - len(name) - 1)))
        assert (len(str(made.place)), len(str(made.home))) == (len(PLACE), len(HOME))
        yield made


class Emulator(pyte.Screen):
    """A terminal that shows what is dim in grey: pyte knows no dim."""

    def select_graphic_rendition(self, *attributes: int, **options: Any) -> None:
        """Change how characters look from here on."""
        super().select_graphic_rendition(*(90 if number == 2 else number for number in attributes), **options)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, command: str, scene: Scene, where: Directories) -> None:
        """Start `tflaunch COMMAND`."""
        self._where = where
        self.screen = Emulator(scene.columns, scene.rows)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", scene.rows, scene.columns, 0, 0))
        env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        self._process = subprocess.Popen(
            [Path(sys.executable).with_name("tflaunch"), *command.split()],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=where.place,
            env={**env, "TERM": "xterm-256color", "TFLAUNCH_HOME": str(where.home)},
            start_new_session=True,
        )
        os.close(slave)

    def run(self, until: str | None) -> None:
        """Show its output until a pattern is there, or to its end.

        Raises:
            SystemExit: the pattern did not come.
        """
        deadline = time.monotonic() + PATIENCE
        while until is None or not re.search(until, "\n".join(self.screen.display)):
            if not select.select([self._master], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise SystemExit(f"nothing came for {PATIENCE:.0f} s: {until}")
            try:
                self._stream.feed(self._where.hidden(os.read(self._master, 65536).decode("latin-1")).encode("latin-1"))
            except OSError:  # the last one who could write has ended
                if until is None:
                    return
                raise SystemExit("\n".join([*self.screen.display, f"did not come: {until}"])) from None

    def end(self) -> None:
        """Interrupt the command if it still runs, and read the rest."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        with suppress(OSError):
            while os.read(self._master, 65536):
                pass
        self._process.wait()
        os.close(self._master)


@contextmanager
def running(command: str, scene: Scene, where: Directories) -> Iterator[Terminal]:
    """Run a command as long as the context is open."""
    terminal = Terminal(command, scene, where)
    try:
        yield terminal
    finally:
        terminal.end()


def style(character: Any) -> Style:
    """Return the look of a character of pyte's as rich names it."""

    def colour(name: str) -> str | None:
        if name == "default":
            return None
        if re.fullmatch("[0-9a-f]{6}", name):
            return f"#{name}"
        return name.replace("brown", "yellow").replace("bright", "bright_")

    return Style(
        color=colour(character.fg),
        bgcolor=colour(character.bg),
        bold=character.bold,
        italic=character.italics,
        underline=character.underscore,
        reverse=character.reverse,
    )


def picture(screen: pyte.Screen, scene: Scene, frame: int = 0) -> str:
    """Return what is on a terminal as SVG; empty lines below are left out, except in frames, which have one size."""
    typed = Text(f"$ tflaunch {shortened(scene.command)}", style="bold")
    lines = [typed] if scene.until is None and not scene.frames else []
    for row in range(screen.lines):
        cells = (screen.buffer[row][column] for column in range(screen.columns))
        pieces = itertools.groupby(cells, style)
        lines.append(Text.assemble(*(("".join(cell.data for cell in piece), look) for look, piece in pieces)))
    while lines and not lines[-1].plain.strip() and not scene.frames:
        lines.pop()
    console = Console(record=True, width=scene.columns, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in lines:
        line.rstrip()
        console.print(line, no_wrap=True, overflow="crop", highlight=False)
    return console.export_svg(title=f"tflaunch {shortened(scene.command)}", unique_id=f"tflaunch-{scene.name}-{frame}")


def animated(frames: list[str]) -> str:
    """Return a picture that shows frames of one size one after the other; only the last where nothing is to move."""
    box = re.search(r'viewBox="[^"]*"', frames[0])
    assert box is not None
    length, share = FRAME_SECONDS * len(frames), 100 / len(frames)
    look = (
        f"@keyframes shown {{ 0% {{ visibility: visible }} {share:.4f}%, 100% {{ visibility: hidden }} }} "
        f".frame {{ visibility: hidden; animation: shown {length}s step-end infinite }} "
        "@media (prefers-reduced-motion) { .frame { animation: none } .frame:last-of-type { visibility: visible } }"
    )
    shown = [
        f'<g class="frame" style="animation-delay: {number * FRAME_SECONDS}s">{frame}</g>'
        for number, frame in enumerate(frames)
    ]
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]}><style>{look}</style>\n' + "\n".join(shown) + "\n</svg>\n"


def shortened(command: str) -> str:
    """Return a command as one types it in the repository."""
    return command.partition(" --set")[0].replace(f"{REPOSITORY}/", "")


def take(scene: Scene) -> None:
    """Play one scene and save its picture."""
    with directories() as where:
        (where.place / "train.py").write_text(BROKEN)
        spec = {"cluster": {"worker": 2}, "command": ["python", "train.py"], "restart": {"max": 0}}
        (where.place / "broken.json").write_text(json.dumps(spec))
        if scene.beside is None:
            svg = _play(scene, where)
        else:
            with running(scene.beside[0], scene, where) as beside:
                beside.run(scene.beside[1])
                svg = _play(scene, where)
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{scene.name}.svg").write_text(svg)


def _play(scene: Scene, where: Directories) -> str:
    with running(scene.command, scene, where) as terminal:
        if not scene.frames:
            terminal.run(scene.until)
            return picture(terminal.screen, scene)
        shots = []
        for number, pattern in enumerate(scene.frames):
            terminal.run(pattern)
            shots.append(picture(terminal.screen, scene, number))
        return animated(shots)


def main() -> None:
    """Take the pictures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=[scene.name for scene in SCENES], help="the one picture to take")
    only = parser.parse_args().only
    for scene in SCENES:
        if only in (None, scene.name):
            take(scene)


if __name__ == "__main__":
    main()

"""A wall clock that tests step for some processes; this machine's own stays as it is, and so does CLOCK_MONOTONIC."""

import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")


class WallClock:
    """The clock of all programs that are started with `environ`, and of those that they start."""

    def __init__(self, directory: Path) -> None:
        """Compile what these programs load; the directory is created."""
        directory.mkdir()
        self.library = directory / "wall_clock.so"
        self._offset = directory / "offset"
        self.environ = {"LD_PRELOAD": str(self.library), "TFLAUNCH_TEST_CLOCK": str(self._offset)}
        self._write(0)
        command = ["gcc", "-O2", "-Wall", "-shared", "-fPIC", str(_SOURCE), "-o", str(self.library), "-ldl"]
        subprocess.run(command, check=True)

    def step(self, seconds: float) -> None:
        """Let the clock jump to where it differs from this machine's by so much."""
        self._write(round(seconds * 1e9))

    def is_read_by(self, pid: int) -> bool:
        try:
            return str(self.library) in Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            return False

    def _write(self, offset: int) -> None:
        with self._offset.open("r+b" if self._offset.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("=q", offset))  # at once, and in place: it is mapped

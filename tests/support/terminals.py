"""Terminals that the test can close."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from contextlib import suppress

import psutil

from support.launch import PATIENCE, Launch

_PAUSE = 10.0  # seconds between two presses of a key: the first ends a slow program, too


class Terminal:
    """A terminal with a session of its own that runs a shell script."""

    def __init__(self, launch: Launch, script: str, until: bytes = b"") -> None:
        """Start it, and wait until it shows some text."""
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "sh", "-c", script],
            stdin=slave, stdout=slave, stderr=slave, cwd=launch.directory, env=launch.env, text=True,
        )  # fmt: skip
        launch.started.append(self.process)
        os.close(slave)
        self.read_until(until)

    def read_until(self, words: bytes) -> str:
        """Wait until it shows this text, and return what it has shown until then."""
        said = b""
        while words not in said:
            said += os.read(self.master, 4096)
        return said.decode()

    def answer(self, question: bytes, words: bytes) -> None:
        self.read_until(question)
        self.type(words)

    def type(self, words: bytes, until: bytes = b"") -> str:
        """Type, and return what it shows until this text."""
        os.write(self.master, words)
        return self.read_until(until)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def read_to_end(self, key: bytes = b"") -> tuple[str, int]:
        """Return the rest of what it shows, and the script's exit code.

        ``key`` is pressed until then: a Python that is just about to read may not notice the first Ctrl-C.
        """
        said = bytearray()
        with suppress(OSError):  # EIO: no process has it open any more
            while True:
                os.write(self.master, key)
                while select.select([self.master], [], [], _PAUSE if key else None)[0]:
                    said += os.read(self.master, 4096)
        os.close(self.master)
        return said.decode(), self.process.wait(PATIENCE)

    def hang_up(self) -> None:
        """Close it, and kill the processes that it started and knows of: its user has logged out."""
        shell = psutil.Process(self.process.pid)
        session = [shell, *shell.children(recursive=True)]
        os.close(self.master)
        for process in session:
            if process.is_running():
                process.kill()
        self.process.wait(PATIENCE)

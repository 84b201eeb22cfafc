"""Terminals that the test can close."""

from __future__ import annotations

import os
import pty
import subprocess

import psutil

from support.launch import PATIENCE, Launch


class Terminal:
    """A terminal with a session of its own that runs a shell script."""

    def __init__(self, launch: Launch, script: str) -> None:
        self._master, slave = pty.openpty()
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", "sh", "-c", script],
            stdin=slave, stdout=slave, stderr=slave, cwd=launch.directory, env=launch.env, text=True,
        )  # fmt: skip
        launch.started.append(self._shell)
        os.close(slave)

    def read_until(self, words: bytes) -> None:
        """Wait until it shows this text."""
        said = b""
        while words not in said:
            said += os.read(self._master, 4096)

    def hang_up(self) -> None:
        """Close it, and kill the processes that it started and knows of: its user has logged out."""
        shell = psutil.Process(self._shell.pid)
        session = [shell, *shell.children(recursive=True)]
        os.close(self._master)
        for process in session:
            if process.is_running():
                process.kill()
        self._shell.wait(PATIENCE)

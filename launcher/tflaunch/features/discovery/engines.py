"""Find hosts by DNS, in a file, or by a program that prints them."""

from __future__ import annotations

import ipaddress
import os
import selectors
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

from tflaunch.clusterspec.values import bracketed, split_address
from tflaunch.discovery.base import Engine, Found, NotFoundError
from tflaunch.user_text import UserTextError, decode_user_text, read_user_text
from tflaunch_worker.printable import printable
from tflaunch_worker.readable import duration_words, exit_words

_PATIENCE = 30.0  # seconds until a program times out
_MOST_BYTES = 1024 * 1024
_READ = 64 * 1024
_MOST_SHOWN = 200


class Dns(Engine):
    """``dns:NAME`` or ``dns:NAME:PORT``."""

    def find(self, where: str, directory: Path) -> Found:
        """Return a name's addresses in numerical order, for the same cluster each time.

        Raises:
            NotFoundError: the name has none.
        """
        host, port = split_address(where)
        try:
            found = socket.getaddrinfo(host or ".", None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            message = f"DNS knows no {host!r}: {getattr(error, 'strerror', None) or error}"
            raise NotFoundError(message, "start its service first, or correct the name") from None
        addresses = {ipaddress.ip_address(str(entry[4][0])) for entry in found}
        ordered = sorted(addresses, key=lambda address: (address.version, address.packed))
        # Only the first kind: a host with an IPv4 and an IPv6 address is one host.
        hosts = [bracketed(str(address)) for address in ordered if address.version == ordered[0].version]
        return Found([host if port is None else f"{host}:{port} slots=1" for host in hosts])


class File(Engine):
    """``file:PATH``, relative to the spec's file."""

    def find(self, where: str, directory: Path) -> Found:
        """Return the lines of a file.

        Raises:
            NotFoundError: it cannot be read.
        """
        path = directory / where
        try:
            return Found(read_user_text(path, _MOST_BYTES).splitlines())
        except UserTextError as error:
            raise NotFoundError(f"{path} {error}", error.hint or "write one host per line into it") from None


class Exec(Engine):
    """``exec:COMMAND``: a program run without a shell in the directory of the spec."""

    def find(self, where: str, directory: Path) -> Found:
        """Return the lines that a program prints.

        Raises:
            NotFoundError: it cannot be run, fails, or does not exit.
        """
        remedy = "let it print hosts and end with 0"
        try:
            program = _Program(shlex.split(where), directory)
        except (OSError, ValueError, IndexError) as error:
            raise NotFoundError(
                f"{where!r} cannot be run: {error}", "name a program that prints one host per line"
            ) from None
        try:
            program.run(_PATIENCE)
        except TimeoutError:
            raise NotFoundError(f"{where!r} did not end within {duration_words(_PATIENCE)}", remedy) from None
        except OverflowError:
            raise NotFoundError(f"{where!r} printed more than {_MOST_BYTES >> 20} MiB", remedy) from None
        finally:
            code = program.end()
        if code != 0:
            said = program.errors.decode("utf-8", "replace").strip().splitlines()
            last = printable(said[-1], _MOST_SHOWN) if said else ""
            raise NotFoundError(f"{where!r} {exit_words(code)}{last and f': {last}'}", remedy)
        try:
            return Found(decode_user_text(bytes(program.output)).splitlines())
        except UserTextError as error:
            raise NotFoundError(f"what {where!r} printed {error}", remedy) from None


class _Program:
    """A program in its own process group, with limited run time and kept output."""

    def __init__(self, argv: list[str], directory: Path) -> None:
        """Start the program.

        Raises:
            OSError, ValueError, IndexError: it cannot be started.
        """
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            argv, cwd=directory, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self.output = bytearray()
        self.errors = bytearray()

    def run(self, patience: float) -> None:
        """Read until the program has closed its output and exited.

        Raises:
            TimeoutError: that takes longer than ``patience`` seconds.
            OverflowError: the output is too large.
        """
        end = time.monotonic() + patience
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ, self.output)
            selector.register(self._process.stderr, selectors.EVENT_READ, self.errors)
            while selector.get_map():
                ready = selector.select(max(end - time.monotonic(), 0))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    self._take(key, selector)
        try:
            self._process.wait(max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def _take(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        kept: bytearray = key.data
        data = os.read(key.fd, _READ)
        kept += data
        if not data:
            selector.unregister(key.fileobj)
        if kept is self.errors:
            del kept[:-_READ]  # only its end is shown
        elif len(kept) > _MOST_BYTES:
            raise OverflowError

    def end(self) -> int:
        """Kill what is left of the program and its children, and return its exit code."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        with self._process:  # closes the pipes and waits
            pass
        return self._process.returncode

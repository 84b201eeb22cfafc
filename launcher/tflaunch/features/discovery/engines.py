"""Find hosts by DNS, in a file, or by a program that prints them."""

import ipaddress
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from tflaunch.clusterspec.values import bracketed, split_address
from tflaunch.discovery.base import Engine, Found, NotFoundError
from tflaunch.user_text import UserTextError, decode_user_text, read_user_text
from tflaunch_worker.readable import duration_words, exit_words, printable

_PATIENCE = 30.0  # seconds until a program times out
_MOST_BYTES = 1024 * 1024
_POLL_INTERVAL = 0.01  # seconds
_MOST_SHOWN = 200


class Dns(Engine):
    """``dns:NAME`` or ``dns:NAME:PORT``."""

    def find(self, where: str, directory: Path) -> Found:
        """Return a name's addresses in numerical order, for the same cluster each time."""
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
        """Return the lines of a file."""
        path = directory / where
        try:
            return Found(read_user_text(path, _MOST_BYTES).splitlines())
        except UserTextError as error:
            raise NotFoundError(f"{path} {error}", error.hint or "write one host per line into it") from None


class Exec(Engine):
    """``exec:COMMAND``: a program run without a shell in the directory of the spec."""

    def find(self, where: str, directory: Path) -> Found:
        """Return the lines that a program prints, which must end by itself."""
        remedy = "let it print hosts and end with 0"
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    shlex.split(where),
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
            except (OSError, ValueError, IndexError) as error:
                raise NotFoundError(
                    f"{where!r} cannot be run: {error}", "name a program that prints one host per line"
                ) from None
            try:
                end = time.monotonic() + _PATIENCE
                while process.poll() is None and time.monotonic() < end and not _is_large(output, errors):
                    time.sleep(_POLL_INTERVAL)
                has_ended = process.poll() is not None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it has left, too
                code = process.wait()  # no limit: it gets KILL
            if _is_large(output, errors):
                raise NotFoundError(f"{where!r} printed more than {_MOST_BYTES >> 20} MiB", remedy)
            if not has_ended:
                raise NotFoundError(f"{where!r} did not end within {duration_words(_PATIENCE)}", remedy)
            printed, said = (os.pread(file.fileno(), _MOST_BYTES, 0) for file in (output, errors))
        if code != 0:
            lines = said.decode("utf-8", "replace").strip().splitlines()
            last = printable(lines[-1], _MOST_SHOWN) if lines else ""
            raise NotFoundError(f"{where!r} {exit_words(code)}{last and f': {last}'}", remedy)
        try:
            return Found(decode_user_text(printed).splitlines())
        except UserTextError as error:
            raise NotFoundError(f"what {where!r} printed {error}", remedy) from None


def _is_large(*files: IO[bytes]) -> bool:
    return any(os.fstat(file.fileno()).st_size > _MOST_BYTES for file in files)

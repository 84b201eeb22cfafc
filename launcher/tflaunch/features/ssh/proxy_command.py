"""Run a ProxyCommand, whose input and output carry a connection.

Own code instead of `paramiko.ProxyCommand`, which starts no shell, spins when the command exits, cannot wait for
descriptors above 1023, and leaves the command running when tflaunch is killed.
"""

import os
import socket
import subprocess
import threading

from tflaunch.transport.base import LinkError

_MAX_LINES = 2
_MAX_ERRORS = 4096  # bytes kept of a command's last messages

# A shell watches the command, and ends it when tflaunch closes the pipe to the shell's input, or is killed.
# Only the command holds the socket, so the connection ends when it exits. ssh, too, ends a ProxyCommand with HUP.
_WATCH = """\
"$1" -c "exec $2" <&1 &
command=$!
exec >&2
trap '' HUP
read -r line
kill -HUP 0
for try in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 "$command" 2>/dev/null || break
    sleep 0.1
done
kill -KILL 0
"""


class WakingSocket(socket.socket):
    """A socket whose close wakes its connection's thread; the kernel does not do so.

    Its descriptor stays open until that thread has ended: the thread may be about to wait for it, and its number could
    by then belong to another connection.
    """

    def close(self) -> None:
        """Shut the connection down, but keep the descriptor until `release`."""
        try:
            self.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected, or no longer

    def release(self) -> None:
        """Close the descriptor."""
        super().close()


class ProxySocket(WakingSocket):
    """A connection through a ProxyCommand, which ends with it or with tflaunch."""

    def __init__(self, command: str) -> None:
        """Start a command in the user's shell, as `ssh` does; all its tokens are expanded.

        Raises:
            LinkError: the system allows no more processes or threads.
        """
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        lifeline, self._lifeline = os.pipe()
        errors, errors_in = os.pipe()
        self._said = b""
        self._over = threading.Event()
        shell = os.environ.get("SHELL") or "/bin/sh"
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "sh", shell, command],
                stdin=lifeline,
                stdout=theirs.fileno(),
                stderr=errors_in,
                start_new_session=True,  # a process group to kill, and no terminal to prompt on
            )
            threading.Thread(target=self._read_errors, args=(process, errors), name="proxy", daemon=True).start()
        except (OSError, RuntimeError) as error:  # no more processes, no more threads
            os.close(errors)
            self.release()
            raise LinkError(f"the ProxyCommand cannot be started: {error}") from None
        finally:
            theirs.close()
            os.close(lifeline)
            os.close(errors_in)

    def release(self) -> None:
        """Close the connection, and end the command."""
        super().release()
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)

    def last_words(self, patience: float) -> bytes:
        """Return the last lines of standard error, on exit or after ``patience`` seconds."""
        self._over.wait(patience)
        return b"; ".join(self._said.split(b"\n")[-_MAX_LINES - 1 :]).strip(b"; \r")

    def _read_errors(self, process: subprocess.Popen[bytes], errors: int) -> None:
        """Read all of the command's standard error, so that it never blocks; then reap it."""
        with open(errors, "rb", buffering=0) as stream:
            while data := stream.read(_MAX_ERRORS):
                self._said = (self._said + data)[-_MAX_ERRORS:]
        process.wait()  # no limit: in a thread of its own
        self._over.set()

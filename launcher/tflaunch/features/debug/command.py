"""`debug`: use the debugger of a task that waits at a `breakpoint()`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tflaunch.cli.arguments.select import choose_tasks, run_and_tasks_argument
from tflaunch.cli.arguments.spec import say
from tflaunch.client.control_client import ControlClient
from tflaunch.core.states import Breakpoint
from tflaunch.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE, TflaunchError
from tflaunch.features.debug import LINK_LOST
from tflaunch.interruptible import wait_readable
from tflaunch.tui import formatting
from tflaunch_worker import fields
from tflaunch_worker.features.debug.breakpoints import LONGEST_LINE


class DebuggerClient:
    """A terminal for the debugger of one task."""

    def __init__(self, directory: Path, tasks: Sequence[str]) -> None:
        """Ask to debug the first of ``tasks``, by default of all, at a breakpoint.

        Raises:
            TflaunchError: the run has no supervisor.
        """
        self.task = ""
        """The task whose debugger this is, "" while none waits."""
        # Without a buffer: what has arrived of the commands must be seen in its descriptor.
        self._commands = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
        self._is_asked = False
        self._has_passed = False
        self._client = ControlClient(directory)
        self._client.say("debug", tasks=list(tasks))

    def run(self) -> str:
        """Pass on commands and output until the terminal is detached; return the reason.

        They are `LINK_LOST` and those of `debugger_relay.REASONS`. At the end of the commands, the task continues.

        Raises:
            TflaunchError: no task has this name, or the supervisor has exited.
        """
        try:
            while True:
                message = self._next_message()
                if message is None:
                    self._pass_command()
                elif message["kind"] == "debugger_left":
                    self.task = self.task or str(message.get("task"))
                    return str(message.get("reason"))
                else:
                    self._obey(message)
        finally:
            self._client.close()

    def _next_message(self) -> dict[str, Any] | None:
        """Return the next message, None if one is asked for and a command is there."""
        own = self._client.descriptor
        while self._is_asked:
            if not self._client.has_message and own not in wait_readable([own, self._commands.fileno()]):
                return None
            if (message := self._client.hear(0)) is not None:
                return message
        return self._client.hear()

    def _obey(self, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "refused":
                raise TflaunchError(str(message.get("reason")), EXIT_USAGE)
            case "debugger_waits":
                say("no task waits at a breakpoint yet; waiting for one (Ctrl-C ends the wait)")
            case "debugger_attached":
                self.task = str(message.get("task"))
                file, function = fields.text(message, "file"), fields.text(message, "function")
                where = Breakpoint(file, fields.integer(message, "line"), function)
                keys = "c continues it, q ends the run, Ctrl-C leaves it waiting"
                say(f"{self.task} waits in {where}; {keys}")
            case "debugger_output":
                text = fields.text(message, "text").encode("utf-8", "replace")
                sys.stdout.buffer.write(formatting.without_commands(text))  # that could control the terminal
                sys.stdout.buffer.flush()
                self._client.say("debug_read")
            case "debugger_asks":
                self._is_asked = True
            case _:
                pass  # of a later version

    def _pass_command(self) -> None:
        line = self._commands.readline().decode("utf-8", "replace")  # "" at the end; after Ctrl-D, more may follow
        if len(line) > LONGEST_LINE:
            say(f"a command has at most {LONGEST_LINE} characters")
            return
        self._is_asked = False
        if not (line or self._has_passed or self._commands.isatty()):
            raise KeyboardInterrupt  # no user types, as from /dev/null: the task waits for one
        self._has_passed = True
        if line:
            self._client.say("debug_line", text=line.rstrip("\n"))
        else:
            self._client.say("debug_continue")


@click.command()
@run_and_tasks_argument
def debug(words: tuple[str, ...]) -> int:
    """Attach this terminal to the debugger (pdb) of a TASK of RUN at a breakpoint().

    Without TASK, to the first one that waits; if none does, wait for one. `c` continues the task, and so does Ctrl-D;
    `q` ends the run; after Ctrl-C, and without input, the task keeps waiting. Time limits for what hangs (stall,
    finish) are suspended while it waits.

    \b
    Example:
      tflaunch debug worker:1
    """
    directory, tasks = choose_tasks(words)
    run = directory.name
    client = DebuggerClient(directory, tasks)
    try:
        reason = client.run()
    except KeyboardInterrupt:
        click.echo(err=True)
        if client.task:
            say(f"{client.task} keeps waiting: tflaunch debug {run} {client.task} returns to it")
        return EXIT_INTERRUPTED
    say(_farewell(run, client.task, reason))
    return EXIT_INTERNAL if reason == LINK_LOST else 0


def _farewell(run: str, task: str, reason: str) -> str:
    back = f"tflaunch debug {run} {task}"
    known = {
        "continued": f"{task} continues",
        "quit": f"ending {run}, as its debugger asks",
        "stopped": f"{task} is being stopped",
        "replaced": f"another terminal debugs {task} now",
        "link_lost": f"the link to the host of {task} was lost; the task keeps waiting: {back}",
    }
    return known.get(reason, f"{task} waits no longer: the thread that did has ended, or goes on")

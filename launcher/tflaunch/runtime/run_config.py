"""How to run a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tflaunch.agents.transfer import UserCode
from tflaunch.client.secret_values import NO_SECRETS, Secrets
from tflaunch.store.log_sink import OutputSink
from tflaunch.store.run_dir import RunDirectory
from tflaunch.tui.screen import Screen


class RunConfig(NamedTuple):
    """How one run is supervised.

    ``code``: the user's code, if hosts need a copy; ``extras``: what features were asked for, by the names of options;
    ``is_detached``: in a separate process that survives this terminal; ``owner``: the PID of a parent process with
    which the run ends. ``say`` shows the messages about a detached run until its tasks are running; with ``is_quiet``,
    only warnings and a failure. For an attached run, ``sink`` builds the output sink from the names of the tasks, and
    ``begun`` is called once other terminals can see the run. ``secrets`` are the values that tasks get beside the
    plan's environment. ``lock`` is that of the run, if it is held already. ``explain_term`` returns why this process
    got TERM, "" if that is not known.
    """

    directory: RunDirectory
    code: UserCode | None
    say: Callable[[str], None]
    extras: Mapping[str, Any] = {}
    is_detached: bool = False
    is_quiet: bool = False
    owner: int | None = None
    sink: Callable[[Sequence[str]], OutputSink] = Screen
    begun: Callable[[], None] = lambda: None
    secrets: Secrets = NO_SECRETS
    lock: int | None = None
    explain_term: Callable[[], str] | None = None

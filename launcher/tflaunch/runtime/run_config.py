"""How to run a plan, and what an engine gets that checks or submits a spec."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tflaunch.agents.calls import UserCode
from tflaunch.client.secret_values import NO_SECRETS, Secrets
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.errors import Problem
from tflaunch.feature import engines, load
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


class SpecOrder(NamedTuple):
    """Arguments of `up --on`; the spec's file in ``directory`` ends in ``suffix``."""

    directory: str
    suffix: str
    settings: Sequence[str] = ()
    name: str | None = None
    command: Sequence[str] = ()
    log_dir: str | None = None
    preflight: bool = True
    extras: Mapping[str, Any] = {}


class Submitted(NamedTuple):
    """A submitted run: directory, name in its engine, warnings about its spec."""

    directory: RunDirectory
    name: str
    warnings: list[Problem]


def problems_on(engine: str, file: SpecFile, settings: Sequence[str], command: Sequence[str]) -> list[Problem]:
    """Return the problems of a spec on an engine (``--on``) that can be known now.

    ``settings`` include those that the engine means; ``command`` replaces the spec's, if it is not empty.

    Raises:
        SpecError: the spec is invalid anywhere; lists all problems.
        TflaunchError: the engine cannot be asked.
    """
    place = engines()[engine].check
    if not place:
        from tflaunch.discovery import prepare  # reads specs, with pydantic, which most commands do without

        return prepare.read_spec(file, settings, command=command, is_offline=True)[1]
    order = SpecOrder(str(file.directory.absolute()), file.suffix, settings, None, command)
    found: list[Problem] = load(place)(file, order)
    return found

"""Declare what a feature adds to tflaunch, and find features.

The rest of tflaunch names none. A feature is a package in `tflaunch/features`, or an entry point of the group
`tflaunch.features` in a distribution with ``tflaunch`` in its name. Its `FEATURE` declares what it adds. Declarations
are imported by every command that asks for them, so they import nothing but this module; what they name is imported
when it is used.
"""

from __future__ import annotations

import functools
import glob
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tflaunch import feature_faults
from tflaunch.plan.task_starter import TaskStarter
from tflaunch_worker import feature as features_of_agents

if TYPE_CHECKING:
    from tflaunch.clusterspec.model import Spec
    from tflaunch.plan.host_maker import HostMaker
    from tflaunch.plan.model import Plan

_FEATURES = "tflaunch.features"  # a package, and entry points

load = features_of_agents.load


class Verb(NamedTuple):
    """A command of the command line.

    Args:
        place: where its click command is.
        group: the heading of `tflaunch --help` under which it is listed; ``More``: by `tflaunch help --all` only;
            ``""``: nowhere, as only programs of the feature call it.
        summary: what it does, for that list.
        output: where the type of what it prints with --json is, or an `Output`.
    """

    place: str
    group: str = ""
    summary: str = ""
    output: str = ""


class Output(NamedTuple):
    """What a command prints with --json.

    Args:
        shape: the type of the one document.
        printed_with: fields that are printed in addition to those of a type.
    """

    shape: Any
    printed_with: Mapping[Any, Mapping[str, Any]] = {}


ALWAYS = "always"


class Watching(NamedTuple):
    """A watcher of a run that is supervised.

    Args:
        place: where its class is, a `tflaunch.runtime.watchers.Watcher`.
        wanted_by: what makes it watch a run from the start on: `ALWAYS`, the name of an option, the field of an engine,
            or a field of `Plan` or `RunConfig`. Without that it is made for its first request.
        requests: the kinds of requests from other processes that it answers.
        prepares: what it prepares on hosts (`tflaunch.core.events.NEEDS`); if it fails, that is refused.
    """

    place: str
    wanted_by: str = ""
    requests: tuple[str, ...] = ()
    prepares: str = ""


class Location(NamedTuple):
    """Where runs can live other than on this machine.

    Args:
        marks: names of files; the directory of a run that lives there has one of them.
        finder: where the function is that returns its `RunLocation`, given the directory, or None if the mark cannot be
            read. It is imported for such runs only.
    """

    marks: tuple[str, ...]
    finder: str


class Engine(NamedTuple):
    """What runs tasks instead of the hosts of a spec: a value of ``--on``.

    Args:
        summary: how tasks run there, such as "as a Slurm job".
        settings: settings of the spec that choosing it means.
        submit: where the function is that submits a run: takes the `SpecFile`, a `SpecOrder` and what writes the
            function that tasks call, and returns a `Submitted`. Without one, runs are supervised as others are.
        check: where the function is that asks it what can be known before a run waits there for hosts: takes the
            `SpecFile` and a `SpecOrder`, and returns `Problem`s, errors among them. It raises a `SpecError` for what
            is wrong with the spec anywhere.
        runs: where the function is that returns the directories of the runs that this user has there: takes settings of
            a spec. It makes those of runs that were started on another machine, or with another TFLAUNCH_HOME. Without
            one, `ls` refuses the engine.
        is_elsewhere: whether its hosts have none of the files of this machine.
        field: the field of a spec, and of its plan, that chooses it, too.
        host_maker: where the `HostMaker` class is that makes the hosts of a spec with this field.
        detach: where the function is that starts a run for ``-d``, given a `Launching`, and returns the exit code;
            without one, its supervisor is detached on this machine.
    """

    summary: str
    settings: tuple[str, ...] = ()
    submit: str = ""
    check: str = ""
    runs: str = ""
    is_elsewhere: bool = False
    field: str = ""
    host_maker: str = ""
    detach: str = ""


class Option(NamedTuple):
    """An option of `up` that a feature adds.

    Its value is in the ``extras`` of `LaunchOptions` and `RunConfig`.

    Args:
        summary: what it does, for `tflaunch up --help`.
        metavar: the name of its value there; "" for an option without a value.
        is_repeated: whether it can be given several times; its value is then a tuple of texts.
        read: where the function is that returns the value of a text, or raises `click.UsageError`; else it is the text.
        check: where the function is that raises `click.UsageError` or `TflaunchError`, given a value and `Launching`,
            if the value does not go with how the run is started.
        engine: the value of ``--on`` that it goes with; "" for any or none.
        setting: the field of the spec that it sets; its value is then no extra of the run.
        is_for_ls: whether `ls` has it, too, because it says where on an engine runs are.
        value: the value of an option without a metavar.
        goes_with_resume: whether it goes with `up --resume`.
        start: where the function is that then starts the run, given a `Launching`, and returns the exit code: another
            process begins it, so that it goes on without this terminal.
    """

    summary: str
    metavar: str = ""
    is_repeated: bool = False
    read: str = ""
    check: str = ""
    engine: str = ""
    setting: str = ""
    is_for_ls: bool = False
    value: Any = True
    goes_with_resume: bool = False
    start: str = ""


class Feature(NamedTuple):
    """What a feature adds to tflaunch.

    A place is ``package.module:name``, or ``.module:name`` in the folder of a feature in `tflaunch/features`.

    Args:
        needs: the features without which it is left out, as if its folder were deleted, too.
        uses: the features that it does without, though not as well: it imports theirs where `features` has them.
        verbs: commands by their names.
        help: what commands of others say of it in their help: a paragraph, and examples, which begin with two blanks.
        watchers: what takes part in the supervision of a run.
        options: options of `up` by the names of their values: ``metrics_port`` for ``--metrics-port``.
        columns: where the function is that returns the values of columns of `ps` and of the page: given the run's
            directory and its `Status`, a mapping from task to title to number.
        hints: where the function is that returns a sentence about why a task ended and what helps, or None: given its
            last lines and `tflaunch.explain.hints.Facts`.
        problems: where the function is that finds what is wrong with a spec, or with the files that it names: given it
            and the directory of its relative paths, an iterable of `Problem`s.
        fields: fields of a spec, or values of them, that have an effect only with this feature.
        locations: where runs can live.
        engines: values of ``--on``.
        discover: how hosts are found: names in a spec, and the places of each `tflaunch.discovery.base.Engine`.
        connectors: kinds of hosts (`HostPlan.kind`), and the `Connectors` class that reaches the hosts of each.
        code: where the function is that returns the `UserCode` of a plan with ``sync``, given that and the directory of
            its run, or None.
        task_starters: fields of a spec, and the `TaskStarter` class for the tasks of a spec that has the field.
    """

    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    verbs: Mapping[str, Verb] = {}
    help: Mapping[str, str] = {}
    watchers: tuple[Watching, ...] = ()
    options: Mapping[str, Option] = {}
    columns: str = ""
    hints: str = ""
    problems: str = ""
    fields: tuple[str, ...] = ()
    locations: tuple[Location, ...] = ()
    engines: Mapping[str, Engine] = {}
    discover: Mapping[str, str] = {}
    connectors: Mapping[str, str] = {}
    code: str = ""
    task_starters: Mapping[str, str] = {}


@functools.cache
def features() -> Mapping[str, Feature]:
    """Return the features by their names.

    Those of tflaunch come first, in the order of the alphabet. A feature that needs a missing one is missing, too.
    """
    ours = features_of_agents.find_features(_FEATURES, feature_faults.leave_out)
    found: dict[str, Feature] = {
        **{name: _with_whole_places(declared, f"{_FEATURES}.{name}") for name, declared in ours.items()},
        **_features_of_others(),
    }
    while gone := [name for name, feature in found.items() if not found.keys() >= {*feature.needs}]:
        for name in gone:
            del found[name]
    return found


def _with_whole_places(declared: Any, package: str) -> Any:
    """Return a declaration, or a part of it, with its package in each place."""
    if isinstance(declared, str) and declared.startswith(".") and ":" in declared:
        return package + declared
    if isinstance(declared, Mapping):
        return {name: _with_whole_places(part, package) for name, part in declared.items()}
    if isinstance(declared, tuple):
        parts = [_with_whole_places(part, package) for part in declared]
        return getattr(declared, "_make", tuple)(parts)
    return declared


@functools.cache
def feature_verbs() -> frozenset[str]:
    """Return the commands that features add."""
    return frozenset(verb for feature in features().values() for verb in feature.verbs)


def engines() -> Mapping[str, Engine]:
    """Return the values of ``--on``."""
    return {name: engine for feature in features().values() for name, engine in feature.engines.items()}


def find_host_maker(made: Spec | Plan) -> HostMaker | None:
    """Return the maker of the hosts of a spec or plan; None if they exist."""
    for engine in engines().values():
        chosen = getattr(made, "host_maker", None)  # by the spec of a plan
        is_meant = getattr(made, engine.field, None) is not None if chosen is None else chosen == engine.field
        if engine.host_maker and is_meant:
            maker: HostMaker = load(engine.host_maker)()
            return maker
    return None


def task_starters() -> list[TaskStarter]:
    """Return the task starters of all features."""
    places = dict.fromkeys(place for feature in features().values() for place in feature.task_starters.values())
    return [load(place)() for place in places]


def find_task_starter(made: Spec | Plan) -> TaskStarter:
    """Return the task starter of a spec or plan."""
    starters = (item for feature in features().values() for item in feature.task_starters.items())
    place = next((place for field, place in starters if getattr(made, field, None)), None)
    starter: TaskStarter = TaskStarter() if place is None else load(place)()
    return starter


def _features_of_others() -> dict[str, Feature]:
    """Return the features of other packages, apart from those that cannot be imported."""
    offers = os.path.join("*tflaunch*-info", "entry_points.txt")  # to read all would take a quarter of an `up`
    files = (file for path in sys.path for file in glob.iglob(os.path.join(glob.escape(path), offers)))
    if not any(f"[{_FEATURES}]" in Path(file).read_text("utf-8", "replace") for file in files):
        return {}
    from importlib.metadata import entry_points  # takes 15 ms, and hardly anybody has one

    found = {}
    for point in entry_points(group=_FEATURES):
        try:
            found[point.name] = point.load()
            feature_faults.note_modules(point.name, point.value.partition(":")[0].partition(".")[0])
        except Exception as error:  # noqa: BLE001 (whatever it is, runs must remain within reach)
            feature_faults.leave_out(point.name, error)
    return found


def ask(name: str, place: str, *about: Any) -> Any:
    """Call a function of a feature; if it fails, leave that out, and return None."""
    with feature_faults.isolated(name):
        return load(place)(*about)
    return None

"""`drill`: train twice, once with a fault, and say whether the training resumes."""

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click

from tflaunch.cli.arguments.cluster import ClusterOptions, cluster_of, cluster_options, name_from
from tflaunch.cli.arguments.spec import (
    STDIN,
    CommandAfterDashes,
    WholeNumber,
    json_option,
    print_json,
    read_file,
    require_program,
    say,
    set_option,
    specs_here,
    usual_spec,
    warn,
)
from tflaunch.clusterspec.spec_file import SUFFIXES, SpecFile
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, Problem, TflaunchError
from tflaunch.explain.wording import counted
from tflaunch.features.drill.findings import NOT_PROVED, PROVED, UNKNOWN, Verdict
from tflaunch.features.drill.records import KINDS, Fault, Rehearsal
from tflaunch.features.drill.rehearsal import Training, find_fault, rehearse
from tflaunch.features.drill.verdict import judge
from tflaunch.features.drill.working_copy import copy_directory, drill_directory, require_copyable
from tflaunch.interruptible import handle_signals
from tflaunch.plan.model import Plan
from tflaunch_worker import file_trees, signals
from tflaunch_worker.training.progress import DRILL

_SLOWER, _PATIENCE = 4.0, 120.0  # times an undisturbed training, and seconds: what takes longer does not go on
_NO_STEPS = (
    "no step was seen, so the drill cannot tell where the training goes on: steps are read from the bars of "
    "Keras and tqdm, from lines such as `step 120: loss 0.31`, below one such as `epoch 2` if they begin again, "
    "and from tflaunch_worker.training.report"
)


class Drill(NamedTuple):
    """What `drill --json` prints, with a verdict for each fault.

    ``verdict`` is ``proved`` if all are; ``problem``: why there is none, None if there is one.
    """

    name: str
    verdict: str
    drills: tuple[Verdict, ...] = ()
    problem: str | None = None


class _Drill(CommandAfterDashes):
    """A command that takes a spec, or options and a program as `run` does."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse options up to the first word; after a spec, too."""
        context.allow_interspersed_args = False
        end = args.index("--") if "--" in args else len(args)
        left = click.Command.parse_args(self, context, args[:end])
        words = context.params["words"]
        if _begin_with_spec(words):
            context.allow_interspersed_args = True
            click.Command.parse_args(self, context, args[:end])
            if len(context.params["words"]) > 1:
                extra = " ".join(context.params["words"][1:])
                remedy = f"a COMMAND goes after `--`: -- {extra}"
                raise click.UsageError(f"{extra!r} is not expected here; {remedy}", context)
        context.params["command"] = tuple(args[end + 1 :])
        return left


def _begin_with_spec(words: Sequence[str]) -> bool:
    return bool(words) and (words[0] == str(STDIN) or Path(words[0]).suffix in SUFFIXES)


@click.command(cls=_Drill)
@click.argument("words", nargs=-1, metavar="[SPEC | COMMAND...]", type=click.UNPROCESSED)
@cluster_options
@click.option(
    "--fault",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="What is done: KILL or TERM to a worker, KILL to all tasks of its host, KILL to the chief; default: kill.",
)
@click.option("--all", "every", is_flag=True, help="Do all of these, one after the other.")
@click.option("--task", metavar="TASK", help="The task that it is done to; default: the last worker.")
@click.option(
    "--at", type=WholeNumber(1), metavar="STEP", help="The step at which it is done; default: half of the steps seen."
)
@click.option("--steps", type=WholeNumber(2), metavar="N", help="End each training after N steps, by TERM.")
@click.option("--twice", is_flag=True, help="Train undisturbed twice, to see how far such trainings differ.")
@click.option("--keep", is_flag=True, help="Keep the directories and runs of the drill.")
@click.option(
    "--here",
    is_flag=True,
    help="Train in the directory itself, and write where the program wants, instead of in copies.",
)
@set_option
@json_option
def drill(
    words: tuple[str, ...],
    command: tuple[str, ...],
    roles: ClusterOptions,
    kinds: tuple[str, ...],
    every: bool,
    task: str | None,
    at: int | None,
    steps: int | None,
    twice: bool,
    keep: bool,
    here: bool,
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Train with a fault, and say whether the training goes on from where it was.

    SPEC, or COMMAND with options as in `run`, is trained twice, each time in a copy of its directory: once undisturbed,
    and once with a worker that is killed at half of the steps. The verdict says where it resumed, from which
    checkpoint, how many steps were lost, and what was not restored, with what helps. A short training is enough.

    The exit code is 0 if the training resumes, 1 if it does not, and 125 if that could not be seen.

    \b
    Example:
      tflaunch drill cluster.json
      tflaunch drill -n 2 --steps 200 python train.py
      tflaunch drill cluster.json --all --json
    """
    file, command = _file_of(words, command, roles)
    plan, warnings = plan_for_drill(file, settings, command)
    warn(file.source, warnings)
    tasks = [each.task for each in plan.tasks]
    if task is not None and task not in tasks:
        raise TflaunchError(f"--task {task}: there is no such task; they are {', '.join(tasks)}", EXIT_USAGE)
    if plan.restart.max == 0:
        raise TflaunchError("restart.max is 0, so nothing resumes; drill with --set restart.max=1", EXIT_USAGE)
    if not here:
        require_copyable(plan, file.directory)
    elif not as_json:
        say("--here: the trainings use this directory, one after the other")
    verdicts: list[Verdict] = []
    problem = None
    with ExitStack() as stack:
        # So that all is removed then, too.
        stack.enter_context(handle_signals(signals.ending_here(), signal.default_int_handler))
        scratch = stack.enter_context(drill_directory(is_kept=keep and not here))
        training = Training(file, plan, file.directory.absolute(), scratch, is_kept=keep, steps=steps)
        runs = _Rehearsals(training, settings, command, is_here=here)
        try:
            verdicts.extend(_play(runs, plan, KINDS if every else kinds or ("kill",), task, at, twice))
        except _CannotTellError as error:
            problem = str(error)
    worst = [verdict for verdict in (NOT_PROVED, UNKNOWN) if verdict in {each.verdict for each in verdicts}]
    found = Drill(plan.name, UNKNOWN if problem else [*worst, PROVED][0], tuple(verdicts), problem)
    if as_json:
        print_json(found)
    else:
        click.echo(_text_of(found), nl=False)
    return {PROVED: 0, UNKNOWN: EXIT_INTERNAL}.get(found.verdict, 1)


def _file_of(
    words: tuple[str, ...], command: tuple[str, ...], roles: ClusterOptions
) -> tuple[SpecFile, tuple[str, ...]]:
    """Return the spec, and the command in place of its own."""
    if _begin_with_spec(words):
        if roles != ClusterOptions():
            raise click.UsageError(
                "-n, -H, --ps, --chief and --evaluator go with a COMMAND; a SPEC has its own cluster."
            )
        return read_file(Path(words[0])), command
    if not words and roles == ClusterOptions() and (not command or specs_here()):
        return read_file(usual_spec()), command
    words = (*words, "--", *command) if words and command else words or command
    if not words:
        raise click.UsageError("Missing COMMAND: what each task runs, as in: tflaunch drill -n 2 python train.py")
    require_program(words)
    data = {"name": name_from(words), "cluster": cluster_of(roles), "command": list(words)}
    return SpecFile("command line", Path(), ".json", json.dumps(data, indent=2) + "\n"), ()


class _CannotTellError(Exception):
    """Raised if the drill can show nothing; its message is one sentence."""


class _Rehearsals:
    """The trainings of a drill, each in a copy of the directory, or in the original."""

    def __init__(self, base: Training, settings: Sequence[str], command: Sequence[str], *, is_here: bool) -> None:
        self._base, self._settings, self._command, self._is_here = base, settings, command, is_here
        self._count = 0
        self._left_out: list[str] | None = []

    def play(self, fault: Fault | None) -> Rehearsal:
        """Train once; raises as `rehearse`."""
        training = self._base._replace(fault=fault)
        if not self._is_here:
            self._count += 1
            copy = training.scratch / str(self._count)
            left_out = copy_directory(training.directory, copy, with_single=self._left_out is None)
            if self._left_out == [] and left_out:
                self._left_out = left_out
                more = f" and {counted(len(left_out) - 1, 'other file')}" if left_out[1:] else ""
                say(f"the trainings begin without the checkpoints of earlier ones: {left_out[0]}{more}")
            plan, _ = plan_for_drill(training.file._replace(directory=copy), self._settings, self._command)
            training = training._replace(plan=plan, directory=copy)
        begun = time.monotonic()
        seen = rehearse(training)
        if not self._is_here and not training.is_kept:
            file_trees.remove_tree(str(training.directory))
        if fault is None:
            limit = _SLOWER * (time.monotonic() - begun) + _PATIENCE
            self._base = self._base._replace(calm=seen, limit=limit)
        return seen

    def play_undisturbed(self) -> Rehearsal:
        """Train undisturbed, with earlier checkpoints only if it fails without them.

        Raises:
            _CannotTellError: it fails, or tells no steps.
        """
        calm = self.play(None)
        if calm.exit_code and not calm.is_stopped and not calm.source() and self._left_out:
            say("it fails without these checkpoints, so it gets those that are not one of several")
            self._left_out = None
            calm = self.play(None)
        if calm.exit_code and not calm.is_stopped:
            lines = [line for line in calm.summary.split("\n") if not line.startswith(("logs: ", "next: "))]
            raise _CannotTellError("the undisturbed training failed in a copy of its directory: " + "\n".join(lines))
        if not calm.source():
            text = "; it may have gone on from a checkpoint in the directory, where it was at its end"
            raise _CannotTellError(_NO_STEPS + (text if self._left_out is None else ""))
        return calm


def plan_for_drill(file: SpecFile, settings: Sequence[str], command: Sequence[str]) -> tuple[Plan, Sequence[Problem]]:
    """Return a plan without `notify` whose training reports each step, and warnings."""
    plan, warnings = prepare.plan_spec(file, settings, command=command)
    tasks = (task._replace(env={**task.env, DRILL: "1"}) for task in plan.tasks)
    timeouts = plan.timeouts._replace(deadline=None)  # a restart takes time, and we have a limit of our own
    return plan._replace(tasks=tuple(tasks), timeouts=timeouts, notify=None), warnings


def _play(
    runs: _Rehearsals, plan: Plan, kinds: Sequence[str], task: str | None, at: float | None, twice: bool
) -> Iterator[Verdict]:
    """Train undisturbed and with each fault; yield a verdict for each."""
    calm = runs.play_undisturbed()
    first, last = calm.range()
    if at is not None and at > last:
        raise TflaunchError(f"--at {at}: the training has only {last:g} steps; choose an earlier one", EXIT_USAGE)
    second = runs.play_undisturbed() if twice else None
    faults: dict[object, Fault] = {}
    for kind in kinds:  # the host of a single worker, which is the chief, too, has the same tasks
        fault = find_fault(kind, plan, task, at or (first + last) / 2)
        faults.setdefault((fault.signal, fault.tasks), fault)
    for fault in faults.values():
        struck = runs.play(fault)
        began = {"epochs": first, "": last}.get(struck.source(), struck.range()[0])
        if began > 2 * first + 1:  # some print by the clock
            raise _CannotTellError(
                f"the training with the fault began at step {began:g}, where an earlier one had stopped: "
                "let the program write to a directory with {run} in its name"
            )
        yield judge(calm, struck, fault, second)


def _text_of(found: Drill) -> str:
    text = f"{found.name}: {found.problem}\n" if found.problem else ""
    for each in found.drills:
        text += f"{each.fault}: {'it resumes' if each.verdict == PROVED else each.verdict}\n"
        for finding in each.findings:
            text += f"  {finding.sentence}\n" + (f"    help: {finding.remedy}\n" if finding.remedy else "")
    return text

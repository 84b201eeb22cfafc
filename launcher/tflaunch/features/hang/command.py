"""`stacks`: show where a live run's tasks are, and which task the others wait for."""

from collections.abc import Iterator, Mapping

import click

from tflaunch.cli.arguments.select import choose_tasks, run_and_tasks_argument
from tflaunch.cli.arguments.spec import json_option, print_json, say
from tflaunch.explain.wording import listed
from tflaunch.features.hang.evidence import Evidence
from tflaunch.features.hang.evidence_collector import request_stacks
from tflaunch.features.hang.position import Group
from tflaunch_worker.readable import age_words


@click.command()
@click.option("-v", "--verbose", is_flag=True, help="Show whole stacks, and what each thread waits for.")
@json_option
@run_and_tasks_argument
def stacks(verbose: bool, as_json: bool, words: tuple[str, ...]) -> None:
    """Show where the TASKs of RUN are; without TASK, all.

    If the run hangs, the first line names the task that the others wait for. Tasks at the same place follow together,
    the smallest group first. The tasks are observed for three seconds; they are neither stopped nor signalled.

    \b
    Example:
      tflaunch stacks
    """
    directory, tasks = choose_tasks(words)
    seen = request_stacks(directory)
    shown = [each for each in seen.tasks if not tasks or each.task in tasks]
    if as_json:
        print_json(seen._replace(tasks=shown))
        return
    evidence = {each.task: each for each in shown}
    click.echo(seen.sentence)
    for group in seen.groups:
        names = [name for name in group.tasks if not tasks or name in tasks]
        if names:
            click.echo(f"\n{listed(names)}\n" + "\n".join(_described(group, names, evidence)))
    for each in shown if verbose else ():
        click.echo(f"\n{each.task}\n" + "\n".join(_stacks(each)))
    if seen.silent_hosts:
        say(f"not heard from: {listed(seen.silent_hosts)}")


def _described(group: Group, names: list[str], evidence: Mapping[str, Evidence]) -> Iterator[str]:
    own, inner = group.own_frame, group.inner_frame
    place = own or inner
    yield f"    {group.does}" + (f" at {place.file}:{place.line}, in {place.function}" if place else "")
    if own and inner and own != inner:
        yield f"    innermost: {inner.file}:{inner.line}, in {inner.function}"
    for name in names:
        known = evidence.get(name)
        if known is None:
            continue
        step = known.progress.step if known.progress else None
        facts = [f"{sum(process.cpu for process in known.processes):.1f} CPUs"]
        facts += [] if step is None else [f"step {step:.0f}"]
        facts += ["no output"] if known.silence is None else [f"last output {age_words(known.silence)}"]
        yield f"    {name}: {', '.join(facts)}"


def _stacks(evidence: Evidence) -> Iterator[str]:
    """Yield lines on a task's processes and threads, innermost frames first."""
    for process in evidence.processes:
        unread = f": {process.unread}" if process.unread else ""
        yield f"    process {process.pid} ({process.name}, state {process.state}, {process.cpu:.1f} CPUs){unread}"
        for socket in process.sockets:
            stuck = f", {socket.unsent} bytes without an answer" if socket.is_stuck else ""
            peer = "" if socket.state == "listening" else f" to {socket.peer}"
            yield f"        {socket.state} at {socket.local}{peer}{stuck}"
        for thread in process.threads:
            waits = f", in {thread.wchan}" if thread.wchan else ""
            target = f" on {thread.target}" if thread.target else ""
            yield f"        thread {thread.id or '?'}{waits}{target}{', running' if thread.has_moved else ''}"
            yield from (f"            {frame.file}:{frame.line}, in {frame.function}" for frame in thread.frames)

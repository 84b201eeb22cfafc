"""Judge a drill by its files, exit code and samples of the process table, without any code of tflaunch."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REFUSED = 3
"""The exit code of a job whose tasks could not be started."""

_SAID = re.compile(r"said (\S+) (\d+) (\d+)$")
_LATE = 5.0
"""Seconds after which a refusal may come to the supervisor; no other fault happens while ports are taken."""
_PORT = re.compile(r"port (\d+) is in use")


class Taken(NamedTuple):
    """Ports that another program had on a host.

    ``since`` and ``until``: by `time.monotonic`. ``is_early``: from before the start on. ``is_to_the_end``: at least
    until the supervisor had exited.
    """

    host: str
    ports: frozenset[int]
    since: float
    until: float
    is_early: bool
    is_to_the_end: bool


class Evidence(NamedTuple):
    """What was seen of a run.

    ``code``: the exit code of its last supervisor, None if it did not end. ``clashes``: when two attempts of a task
    lived at once. ``left``: processes that outlived it. ``said`` and ``logged``: the lines of each task, as it kept
    them itself, and in the run's logs. ``results``: of the tasks that write one. ``journal``: its lines.
    ``has_started``: a task was seen. ``may_lose``: a fault may have destroyed output that was not sent yet.
    ``errors``: what the supervisors have written to stderr. ``taken``: by another program. ``has_fixed_ports``: the
    spec names the tasks' ports.
    """

    code: int | None
    clashes: Sequence[object]
    left: Sequence[object]
    said: Mapping[str, Sequence[str]]
    logged: Mapping[str, Sequence[str]]
    results: Mapping[str, float]
    journal: Sequence[str]
    has_started: bool
    may_lose: bool
    errors: str
    taken: Sequence[Taken]
    has_fixed_ports: bool


def gather(directory: Path, run: Path, **seen: Any) -> Evidence:
    said = {path.name.partition(".")[2]: path.read_text().splitlines() for path in directory.glob("said.*")}
    results = {path.name.partition(".")[2]: float(path.read_text()) for path in directory.glob("result.*")}
    logged = {}
    for path in (run / "logs").glob("*.log"):
        lines = path.read_text(errors="replace").splitlines()
        logged[path.stem.replace("-", ":")] = [found[0] for line in lines if (found := _SAID.search(line))]
    kept = run / "events.jsonl"  # a supervisor may be killed before it
    journal = kept.read_text().splitlines() if kept.exists() else []
    return Evidence(said=said, logged=logged, results=results, journal=journal, **seen)


def violations(evidence: Evidence, expected: float, finishers: Iterable[str]) -> list[str]:
    """Return what is wrong, as sentences that begin with the invariant.

    Args:
        evidence: of the drill.
        expected: the result of the undisturbed training.
        finishers: the tasks that write a result.
    """
    found = [f"I1: two attempts of a task lived at once: {clash}" for clash in evidence.clashes]
    found += [f"I2: left running: {process}" for process in evidence.left]
    if evidence.code is None:
        found.append("I5: it did not end")
    elif evidence.code == REFUSED and not evidence.has_started:
        pass  # a job that loses a host or a port before its tasks have started is not tried again
    elif not evidence.journal and not evidence.has_started:
        pass  # its supervisor was killed before it began, so that it cannot be resumed
    elif evidence.code != 0:
        found.append(f"I3: exit code {evidence.code}, but no fault of this drill justifies a failure")
    else:
        for task in finishers:
            if evidence.results.get(task) != expected:
                found.append(f"I8: {task} has the result {evidence.results.get(task)}, not {expected}")
    for task, lines in evidence.logged.items():
        found += _wrong_lines(task, lines, evidence.said.get(task, ()), evidence.may_lose)
    return found + (_wrong_journal(evidence.journal) or _wrong_ports(evidence))


def _wrong_lines(task: str, logged: Sequence[str], said: Sequence[str], may_lose: bool) -> list[str]:
    """I6: each line once, in order, and none is missing but the last one of an attempt that was killed."""
    kept = {line: number for number, line in enumerate(said)}
    unknown = [line for line in logged if line not in kept]
    if unknown:
        return [f"I6: the log of {task} has a line that was not written: {unknown[0]!r}"]
    places = [kept[line] for line in logged]
    if places != sorted(set(places)):
        return [f"I6: the log of {task} has lines twice or out of order"]
    last = {_attempt(line): line for line in said}
    missing = [line for line in said if line not in set(logged) and line != last[_attempt(line)]]
    what = f"I6: the log of {task} lacks {len(missing)} lines, the first is {missing[:1]}"
    return [what] if missing and not may_lose else []


def _attempt(line: str) -> str:
    return line.split()[2]


def _wrong_journal(lines: Sequence[str]) -> list[str]:
    """I7: whole records with consecutive numbers."""
    try:
        numbers = [json.loads(line)["seq"] for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        return [f"I7: a record of the journal is damaged: {error}"]
    return [] if numbers == list(range(len(numbers))) else ["I7: the journal's records are not consecutive"]


def _wrong_ports(evidence: Evidence) -> list[str]:
    """I3 and I14: a port that another program has is refused if the spec names it, and otherwise not chosen."""
    records = [json.loads(line) for line in evidence.journal]
    refusals = [(one, why) for one in records if one.get("kind") == "ports_refused" for why in one["refused"].values()]
    refused = [(one, int(port)) for one, why in refusals for port in _PORT.findall(why)]
    found = [
        f"I3: port {port} was refused on {record['host']}, but no other program had it"
        for record, port in refused
        if not any(one.since <= record["now"] <= one.until + _LATE for one in _takers(evidence, record["host"], port))
    ]
    found += [
        f"I14: {task} was to use port {port} of {record['host']}, which another program had"
        for record in records
        if record.get("kind") == "ports_held"
        for task, port in record["ports"].items()
        if any(one.since <= record["now"] <= one.until for one in _takers(evidence, record["host"], port))
    ]
    found = found[:1]  # they come with every attempt
    if refused and not evidence.has_fixed_ports and not evidence.has_started:
        found.append("I3: ports were refused, but the spec names none")  # later, a worker that restarts alone needs its
    if evidence.has_fixed_ports and any(one.is_early and one.is_to_the_end and one.ports for one in evidence.taken):
        if evidence.code != REFUSED or evidence.has_started:
            found.append(f"I3: exit code {evidence.code}, but another program had ports that the spec names")
        elif not any(f"port {port} is in use by" in evidence.errors for _, port in refused):
            found.append("I3: no message names the port that another program had")
    return found


def _takers(evidence: Evidence, host: str, port: int) -> list[Taken]:
    return [one for one in evidence.taken if one.host == host and port in one.ports]

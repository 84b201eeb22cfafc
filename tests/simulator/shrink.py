"""Shrink a history that violates an invariant: fewer faults, fewer tasks, simpler programs."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from simulator.case import Case
from simulator.history import Result, play
from simulator.programs import Script

_SIMPLER = ("troubles", "slow_share", "hang_share", "epochs", "evaluator", "term", "lines", "starting", "duration")
"""The fields of the behaviour of programs in which the default is tried, in this order."""
_SEEDS = 30  # that are tried in place of the one of the history
_PLAINER: tuple[dict[str, Any], ...] = ({"worker": 2}, {"worker": ["a"]}, {"worker": ["a", "b"]})
"""Clusters that are tried in place of the one of the history."""


def shrink(result: Result, tries: int | None = None) -> Result:
    """Return the smallest history that violates the same invariant and is found in so many others, if that is given."""
    assert result.violation is not None
    invariant, left = result.violation.invariant, itertools.repeat(None) if tries is None else iter(range(tries))

    def violates(found: Result) -> bool:
        return found.violation is not None and found.violation.invariant == invariant

    while (smaller := _smaller(result, violates, left)) is not None:
        result = smaller
    return result


def _smaller(result: Result, violates: Callable[[Result], bool], left: Iterator[object]) -> Result | None:
    """Return the first simpler or shorter history that still violates the invariant, None if none is left to try."""
    simpler, others = ((case, True) for case in _simpler(result.case)), ((case, False) for case in _others(result.case))
    for (case, is_simpler), _ in zip(itertools.chain(simpler, others), left, strict=False):
        found = play(case) if _is_valid(case) else None
        if found is not None and violates(found) and (is_simpler or found.steps < result.steps):
            return found
    return None


def _is_valid(case: Case) -> bool:
    try:
        case.plan()
    except (AssertionError, ValueError):
        return False  # what is left of the spec makes no job
    return True


def _simpler(case: Case) -> Iterator[Case]:
    """Yield what is simpler than a case in one respect, the largest simplifications first."""
    for cluster in _PLAINER:
        spec = json.dumps({**json.loads(case.spec), "cluster": cluster})
        if _size(spec) < _size(case.spec):
            yield _with_spec(case, spec)
    for number in range(len(case.faults)):
        yield case._replace(faults=case.faults[:number] + case.faults[number + 1 :])
    for spec in _simpler_specs(json.loads(case.spec)):
        yield _with_spec(case, spec)
    if case.has_function:
        yield case._replace(has_function=False)
    for script in _simpler_scripts(case.script):
        yield case._replace(script=script)


def _others(case: Case) -> Iterator[Case]:
    """Yield cases that are no simpler, but may violate the invariant after fewer steps."""
    troubles = case.script.troubles
    for number, trouble in enumerate(troubles):
        sooner = (*troubles[:number], trouble._replace(after=trouble.after / 2), *troubles[number + 1 :])
        yield case._replace(script=case.script._replace(troubles=sooner))
    yield case._replace(script=case.script._replace(duration=case.script.duration / 2))
    for seed in range(_SEEDS):
        yield case._replace(seed=seed)


def _simpler_scripts(script: Script) -> Iterator[Script]:
    troubles = script.troubles
    for number in range(len(troubles)):
        yield script._replace(troubles=troubles[:number] + troubles[number + 1 :])
    for field in _SIMPLER:
        change: dict[str, Any] = {field: getattr(Script(), field)}
        if script._replace(**change) != script:
            yield script._replace(**change)
    for number, trouble in enumerate(troubles):
        if trouble.attempts not in (None, (0,)):
            simpler = trouble._replace(attempts=(0,))
            yield script._replace(troubles=(*troubles[:number], simpler, *troubles[number + 1 :]))


def _simpler_specs(spec: dict[str, Any]) -> Iterator[str]:
    cluster = spec["cluster"]
    for role, tasks in cluster.items():
        if len(cluster) > 1:
            yield json.dumps({**spec, "cluster": {name: value for name, value in cluster.items() if name != role}})
        fewer = tasks - 1 if isinstance(tasks, int) else tasks[:-1]
        if fewer:
            yield json.dumps({**spec, "cluster": {**cluster, role: fewer}})
    for name in spec:
        if name not in ("cluster", "command"):
            yield json.dumps({field: value for field, value in spec.items() if field != name})
    for name, value in spec.items():
        if name in ("timeouts", "restart"):
            for left_out in value:
                yield json.dumps({**spec, name: {key: each for key, each in value.items() if key != left_out}})


def _size(spec: str) -> int:
    """Return the number of tasks, in which a host that is not this machine counts for one more."""
    cluster = json.loads(spec)["cluster"]
    return sum(tasks if isinstance(tasks, int) else 2 * len(tasks) for tasks in cluster.values())


def _with_spec(case: Case, spec: str) -> Case:
    """Return the case with another spec, without the troubles of tasks that it does not have."""
    case = case._replace(spec=spec)
    names = {process.task for process in case.plan().processes()} if _is_valid(case) else set()
    troubles = tuple(trouble for trouble in case.script.troubles if trouble.task in names)
    return case._replace(script=case.script._replace(troubles=troubles))

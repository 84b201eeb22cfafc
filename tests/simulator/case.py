"""What a history is made of: a job, the behaviour of its programs, and faults; drawn from a seed, or given."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, NamedTuple

from simulator import shapes

if TYPE_CHECKING:
    from simulator.programs import Script
    from tflaunch.plan.model import Plan

_WITHIN = (4.0, 15.0, 40.0)  # seconds from the start
_COUNTS = (0, 1, 1, 2, 3)
_SHARE_OF_RARER = 0.25  # of the cases that are drawn
_SHARE_OF_HUNG = 0.15  # of the cases that are drawn: the watch of silences says so once or more
_SHARE_OF_SYNCED = 0.15  # of those with other hosts than this machine: they need a copy of the code


class Moment(NamedTuple):
    """A step of the supervisor: the job's phase before it, and the name of the event."""

    phase: str
    event: str


class Fault(NamedTuple):
    """A fault outside the programs: ``at`` a number of seconds from the start, or ``after`` the first such moment.

    ``kind`` is the name of a method of `faults.Faults`; ``number`` distinguishes the random values of faults.
    """

    kind: str
    number: int
    at: float | None = None
    after: Moment | None = None


class Case(NamedTuple):
    """Determines a history completely, to the last message and digit.

    ``seed``: of all random values that are not given here. ``spec``: the job's spec as JSON. ``has_function``: its
    tasks call a function, and so leave files.
    """

    seed: int
    spec: str
    script: Script
    faults: tuple[Fault, ...] = ()
    has_function: bool = False

    def plan(self) -> Plan:
        plan = shapes.planned_spec(self.spec)
        return plan._replace(function="/function") if self.has_function else plan

    def as_test(self, violation: object) -> str:
        """Return a test of this history, to be pasted."""
        faults = [f"        {fault!r}," for fault in self.faults]
        lines = [
            f"def test_history_{self.seed}() -> None:",
            f'    """{str(violation).splitlines()[0]}."""',
            f"    spec = {self.spec!r}",
            f"    script = {self.script!r}",
            *(["    faults = (", *faults, "    )"] if faults else ["    faults = ()"]),
            f"    assert play(Case({self.seed}, spec, script, faults, {self.has_function})).violation is None",
        ]
        return "\n".join([*lines, ""])


def draw_case(seed: int) -> Case:
    from simulator.faults import KINDS, KINDS_OF_FAR, RARER_KINDS, RARER_KINDS_OF_FAR

    chance = random.Random(f"case {seed}")
    spec = shapes.draw_spec(chance)
    plan = shapes.planned_spec(spec)
    script = shapes.draw_script(chance, plan)
    is_far = any(not host.is_local for host in plan.hosts)
    kinds = {**KINDS_OF_FAR, **KINDS} if is_far else KINDS
    drawn = chance.choices([*kinds], [*kinds.values()], k=chance.choice(_COUNTS))
    within = chance.choice(_WITHIN)
    faults = tuple(Fault(kind, number, round(chance.uniform(0, within), 3)) for number, kind in enumerate(drawn))
    has_function = chance.random() < 0.25
    rarely = random.Random(f"rarer {seed}")  # apart from the others, which stay what they are without these
    if rarely.random() < _SHARE_OF_RARER:
        rarer = {**RARER_KINDS_OF_FAR, **RARER_KINDS} if is_far else RARER_KINDS
        kind = rarely.choices([*rarer], [*rarer.values()])[0]
        faults += (Fault(kind, len(drawn), round(rarely.uniform(0, within), 3)),)
    hung = random.Random(f"hung {seed}")
    if hung.random() < _SHARE_OF_HUNG:
        times = [hung.uniform(0, 3 * within) for _ in range(hung.choice((1, 2, 3, 4)))]
        faults += tuple(Fault("hung", len(faults) + number, round(at, 3)) for number, at in enumerate(times))
    if is_far and rarely.random() < _SHARE_OF_SYNCED:
        spec = json.dumps({**json.loads(spec), "sync": {}})
    return Case(seed, spec, script, faults, has_function)

"""Draw a drill: a training, where it runs, and the faults that it suffers."""

import random
from collections.abc import Sequence
from typing import NamedTuple

STEPS = 80
WORKERS = 2
STARTED = 0
"""The "step" at which the first task has started; an earlier one is that at which the run has begun."""

OF_PROCESSES = ("task", "agent", "guard", "agent and guard", "supervisor")
"""Whose processes are killed or stopped."""
_STOPPED = (1.0, 6.0, 14.0, 40.0)  # seconds; the last one is longer than lease and fence
_CUT = (1.0, 6.0, 14.0, 40.0)
_TAKEN = (1.0, 6.0, 14.0)
_LOCAL = (*(f"kill {who}" for who in OF_PROCESSES), *(f"stop {who}" for who in OF_PROCESSES), "follow and stop")
_FAR = (*_LOCAL, "kill sshd", "cut", "black hole", "flap", "slow", "power off", "full disk")
_LATER = {1: "take ports", 3: "exceed memory", 7: "step clock", 9: "hang"}
"""Kinds that were added later, by the last digit of the seeds that have one; the others have what they had before."""
KINDS = (*_FAR, *_LATER.values())
"""The kinds of faults; those of `_FAR` beyond `_LOCAL` need other hosts than this machine."""


class Fault(NamedTuple):
    """A fault: after the training has reached ``step``, and ``delay`` seconds later, lasting ``seconds``.

    ``choice`` selects the task or host.
    """

    step: int
    delay: float
    kind: str
    choice: int
    seconds: float


def is_early(fault: Fault) -> bool:
    """Whether a fault is injected before the run begins."""
    return fault.kind == "take ports" and fault.step < STARTED


class Drill(NamedTuple):
    """What a seed determines.

    ``is_far``: on three hosts over SSH. ``preload``: tasks are forked from a process that has imported TensorFlow.
    ``is_read``: somebody reads the supervisor's output; otherwise its pipe is full until the end. ``has_fixed_ports``:
    the spec names the tasks' ports.
    """

    seed: int
    strategy: str
    is_far: bool
    preload: bool
    is_read: bool
    faults: tuple[Fault, ...]
    has_fixed_ports: bool

    def __str__(self) -> str:
        words = [f"{self.strategy} on {'3 hosts over SSH' if self.is_far else 'this machine'}"]
        words += ["preloaded"] if self.preload else []
        words += [] if self.is_read else ["unread"]
        words += ["fixed ports"] if self.has_fixed_ports else []
        return ", ".join(words)


def draw(seed: int, *, only: str = "", without: Sequence[str] = ()) -> Drill:
    """Draw a drill.

    ``only``: "local" or "ssh", by default any. ``without``: kinds that were added later, and cannot be played here.
    """
    chance = random.Random(f"chaos {seed}")
    is_far = {"local": False, "ssh": True}.get(only, chance.random() < 0.6)
    steps = sorted(
        chance.choice((-1, *[STARTED] * 3, *[chance.randrange(1, STEPS - 15)] * 4))
        for _ in range(chance.choice((1, 1, 2, 3)))
    )
    faults = []
    for step in steps:
        kind = chance.choice(_FAR if is_far else _LOCAL)
        seconds = chance.choice(_STOPPED if kind.startswith("stop") else _CUT)
        delay = round(chance.uniform(0, 4 if step <= STARTED else 0.3), 2)
        faults.append(Fault(step, delay, kind, chance.randrange(100), seconds))
    strategy = chance.choice(("multi_worker_mirrored", "parameter_server"))
    rest = chance.random() < 0.5, chance.random() < 0.8, tuple(faults), _chance(seed, "ports").random() < 0.4
    drill = Drill(seed, strategy, is_far, *rest)
    kind = _LATER.get(seed % 10, "")
    return drill if kind in ("", *without) else _with_later_kind(drill, kind)


def _with_later_kind(drill: Drill, kind: str) -> Drill:
    """Replace a fault by one of a kind that was added later."""
    chance = _chance(drill.seed, kind)
    number = chance.randrange(len(drill.faults))
    changed = drill.faults[number]._replace(kind=kind, seconds=chance.choice(_TAKEN))
    may_be_early = drill.is_far or drill.has_fixed_ports  # to take half of this machine's ports would hurt others
    if number == 0 and kind == "take ports" and (changed.step < STARTED or chance.random() < 0.3):
        changed = changed._replace(step=STARTED - may_be_early)
    return drill._replace(faults=(*drill.faults[:number], changed, *drill.faults[number + 1 :]))


def _chance(seed: int, what: str) -> random.Random:
    """Return a generator of its own, so that what was drawn before stays the same."""
    return random.Random(f"chaos {seed}: {what}")

"""Draw a drill: a training, where it runs, and the faults that it suffers."""

from __future__ import annotations

import random
from typing import NamedTuple

STEPS = 80
WORKERS = 2
STARTED = 0
"""The "step" at which the first task has started; an earlier one is that at which the run has begun."""

OF_PROCESSES = ("task", "agent", "guard", "agent and guard", "supervisor")
"""Whose processes are killed or stopped."""
_STOPPED = (1.0, 6.0, 14.0, 40.0)  # seconds; the last one is longer than lease and fence
_CUT = (1.0, 6.0, 14.0, 40.0)
_LOCAL = (*(f"kill {who}" for who in OF_PROCESSES), *(f"stop {who}" for who in OF_PROCESSES), "follow and stop")
KINDS = (*_LOCAL, "kill sshd", "cut", "black hole", "flap", "slow", "power off", "full disk")
"""The kinds of faults; those beyond `_LOCAL` need other hosts than this machine."""


class Fault(NamedTuple):
    """A fault: after the training has reached ``step``, and ``delay`` seconds later, lasting ``seconds``.

    ``choice`` selects the task or host.
    """

    step: int
    delay: float
    kind: str
    choice: int
    seconds: float


class Drill(NamedTuple):
    """What a seed determines.

    ``is_far``: on three hosts over SSH. ``preload``: tasks are forked from a process that has imported TensorFlow.
    ``is_read``: somebody reads the supervisor's output; otherwise its pipe is full until the end.
    """

    seed: int
    strategy: str
    is_far: bool
    preload: bool
    is_read: bool
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        where = "3 hosts over SSH" if self.is_far else "this machine"
        return f"{self.strategy} on {where}{', preloaded' if self.preload else ''}{'' if self.is_read else ', unread'}"


def draw(seed: int, *, only: str = "") -> Drill:
    """Draw a drill; ``only``: "local" or "ssh", else both."""
    chance = random.Random(f"chaos {seed}")
    is_far = {"local": False, "ssh": True}.get(only, chance.random() < 0.6)
    steps = sorted(
        chance.choice((-1, *[STARTED] * 3, *[chance.randrange(1, STEPS - 15)] * 4))
        for _ in range(chance.choice((1, 1, 2, 3)))
    )
    faults = []
    for step in steps:
        kind = chance.choice(KINDS if is_far else _LOCAL)
        seconds = chance.choice(_STOPPED if kind.startswith("stop") else _CUT)
        faults.append(
            Fault(
                step, round(chance.uniform(0, 4 if step <= STARTED else 0.3), 2), kind, chance.randrange(100), seconds
            )
        )
    strategy = chance.choice(("multi_worker_mirrored", "parameter_server"))
    return Drill(seed, strategy, is_far, chance.random() < 0.5, chance.random() < 0.8, tuple(faults))

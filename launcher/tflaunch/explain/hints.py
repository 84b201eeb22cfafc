"""Ask features why a task ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tflaunch import feature_faults
from tflaunch.feature import ask, features


class Facts(NamedTuple):
    """Facts about an ended task, other than its output.

    ``recurs``: the attempt before has failed alike, so that what an attempt began with is not the cause. ``code`` is
    None if a signal killed it, and ``host`` "" for this machine; ``legacy_keras``: whether its environment selects
    tf_keras; ``python`` is its interpreter. ``hosts`` is their number; ``proxies`` are names of proxy variables in its
    environment. ``cluster_formed``: in this attempt or an earlier one; ``finished``: tasks that had exited with code 0
    before; ``others``: for the task that failed first, other failed tasks and their last lines, which may tell what it
    blames. What is not known is None or "".
    """

    strategy: str
    task: str = ""
    role: str = "worker"
    attempt: int = 0
    recurs: bool = False
    code: int | None = None
    signal: int | None = None
    legacy_keras: bool | None = None
    python: str = ""
    host: str = ""
    hosts: int = 1
    proxies: tuple[str, ...] = ()
    cluster_formed: bool = True
    finished: tuple[str, ...] = ()
    others: Iterable[tuple[Facts, Sequence[str]]] | None = None


def find_hint(lines: Sequence[str], facts: Facts) -> str | None:
    """Return why a task ended and what to do, None if no feature knows."""
    for name, feature in features().items():
        if feature.hints and name not in feature_faults.left_out() and (hint := ask(name, feature.hints, lines, facts)):
            return str(hint)
    return None

"""Ask features why a task ended, and whether it blames a peer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tflaunch import feature_faults
from tflaunch.core.restart_rules import is_error_of_peer
from tflaunch.feature import ask, features
from tflaunch_worker import failures
from tflaunch_worker.failures import Failure

_LAST_WORDS = 20  # lines examined for a task that ended without a traceback

CUT_OFF = (
    r"(?:Connection reset by peer|Connection refused|Broken pipe|Socket closed|failed to connect to all addresses)"
)
ONE_GPU = r"NCCL:? invalid usage|Duplicate GPU detected"
_OWN_CAUSE = re.compile(rf"{ONE_GPU}|a group with incompatible device type|No (?:blas|BLAS) support")
_ABORTED = "Collective ops is aborted by"
VANISHED = re.compile(
    r"The following tasks are unhealthy"
    r"|Failed to send RPC to coordination service"
    r"|tried to connect with a different incarnation"
    rf"|{_ABORTED}: (?!(?:{_ABORTED}: ){{0,20}}(?:Collective instance|Shape mismatch))"
    r"|This could happen if the remote target has been disconnected"
    rf"|{CUT_OFF}[\s\S]{{0,300}}?/job:\w"
    r"|PSUnavailableError"
)


class Facts(NamedTuple):
    """Facts about an ended task, other than its output.

    Attributes:
        strategy: as in the spec.
        task: its name.
        role: its role.
        attempt: the number of the attempt.
        recurs: the attempt before has failed alike, so that what an attempt began with is not the cause.
        code: its exit code, None if it was killed or has not ended.
        signal: the number of the signal that killed it.
        legacy_keras: whether its environment selects tf_keras, None if unknown.
        python: the interpreter that it ran, "" if unknown.
        host: where it ran, "" for this machine.
        hosts: the number of hosts of the job.
        proxies: names of the proxy variables in its environment.
        cluster_formed: whether the cluster had formed, in this attempt or an earlier one.
        finished: tasks that had exited with code 0 before.
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


def find_hint(lines: Sequence[str], facts: Facts) -> str | None:
    """Return why a task ended and what to do, None if no feature knows."""
    for name, feature in features().items():
        if feature.hints and name not in feature_faults.left_out() and (hint := ask(name, feature.hints, lines, facts)):
            return str(hint)
    return None


def saw_peer_vanish(lines: Sequence[str]) -> bool:
    """Whether a task's last lines say that a peer vanished."""
    lines = failures.bounded(lines)
    ended_by = failures.find_failure(lines)
    said = VANISHED.search("\n".join(last_words(lines, ended_by)))
    if said is None or _OWN_CAUSE.search("\n".join(lines)) is not None:
        return False
    return may_be_of_peer(ended_by) or said[0].startswith(_ABORTED)


def may_be_of_peer(ended_by: Failure | None) -> bool:
    """Whether a peer or the network may have caused how a task ended."""
    return ended_by is None or not ended_by.kind or is_error_of_peer(ended_by.kind)


def last_words(lines: list[str], ended_by: Failure | None) -> list[str]:
    """Return the last traceback with those chained to it, or else the last lines."""
    if ended_by is None or not ended_by.kind:
        return lines[-_LAST_WORDS:]
    first = ended_by
    while first.cause is not None and first.cause.start < first.start:
        first = first.cause
    return lines[first.start : ended_by.end]

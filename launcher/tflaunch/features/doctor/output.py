"""What `doctor` prints with --json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from tflaunch.cli.json_output import Output
from tflaunch.clusterspec.values import Address
from tflaunch.features.doctor.findings import Finding, Host


class _ExaminedHost(NamedTuple):
    """The facts about one host; `reason`: why it was not reached; `reachable_by`: where each task is reachable from."""

    host: str
    reason: str | None
    programs: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]
    offset: float
    names: Mapping[str, str]
    refused: Mapping[str, str]
    unreached: Mapping[str, str]
    unshared: tuple[str, ...]
    reachable_by: Mapping[str, str]


class _Doctor(TypedDict):
    """What would keep a spec from running; `not_checked`: checks that could not be made, and what they need."""

    ok: bool
    findings: Sequence[Finding]
    not_checked: Mapping[str, str]
    hosts: Sequence[_ExaminedHost]


DOCTOR = Output(_Doctor, {Host: _ExaminedHost, Address: str})

"""Match a task's last lines against the known problems."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from tflaunch.explain.hints import Facts, last_words, may_be_of_peer
from tflaunch.features.hints.hint_rules import RULES, HintRule
from tflaunch_worker import failures


@functools.cache
def _table() -> list[tuple[re.Pattern[str], HintRule]]:
    return [(re.compile(rule.pattern), rule) for rule in RULES]


def find_hint(lines: Sequence[str], facts: Facts) -> str | None:
    """Explain a task's end and its remedy in a sentence; None for an unknown problem."""
    lines = failures.bounded(lines)
    ended_by = failures.find_failure(lines)
    log, error = "\n".join(lines), "\n".join(last_words(lines, ended_by))
    is_maybe_of_peer = may_be_of_peer(ended_by)
    python = facts.python or "its python"
    known = {
        "python": f"{python} on {facts.host}" if facts.host else python,
        "host": facts.host or "X",
        "proxies": " and ".join(facts.proxies),
        "finished": " and ".join(facts.finished[:2]) + (" and others" if len(facts.finished) > 2 else ""),
    }
    for pattern, rule in _table():
        if (rule.when is None or rule.when(facts)) and (is_maybe_of_peer or not rule.of_peer):
            found = pattern.search(log if rule.anywhere else error)
            if found and not _names_itself(found.groupdict(), facts):
                return rule.sentence.format_map({**known, **found.groupdict()})
    return None


def _names_itself(groups: Mapping[str, str], facts: Facts) -> bool:
    return "role" in groups and f"{groups['role']}:{groups['index']}" == facts.task

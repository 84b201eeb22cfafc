"""Patterns of names, as OpenSSH's files write them."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable


def matches(patterns: Iterable[str], name: str) -> bool:
    """Return whether a name fits at least one of some patterns, and none of those that begin with "!"."""
    is_match = False
    for pattern in patterns:
        is_negated = pattern.startswith("!")
        if _compiled(pattern[is_negated:]).fullmatch(name):
            if is_negated:
                return False
            is_match = True
    return is_match


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern, in which "*" stands for anything and "?" for one sign."""
    # In what `translate` returns each "*" takes the shortest text and never tries again: the time stays linear.
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))

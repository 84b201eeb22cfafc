"""Find secrets of a known form, such as AWS keys and GitHub tokens, by the patterns of detect-secrets."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import RegexBasedDetector

BEFORE, AFTER = 80, 120
"""How many bytes before and after a word its form can depend on."""

_NOT_SECRET = frozenset({"Public IP (ipv4)"})
_SHORTEST_VALUE = 12  # a shorter group of a pattern is part of the form, such as its prefix
_WORD = re.compile(rb"[A-Za-z0-9_-]{16,2000}")
_DIGIT, _RUN = re.compile(rb"[0-9]"), re.compile(rb"[A-Za-z0-9]{16}")
_MIXED_CASE = re.compile(rb"[a-z].*[A-Z]|[A-Z].*[a-z]")


def words(text: bytes, begin: int) -> Iterator[re.Match[bytes]]:
    """Yield the words from ``begin`` on that may be a secret or its main part: only a few in a log."""
    for match in _WORD.finditer(text, begin):
        word = match[0]
        if _DIGIT.search(word) and (_RUN.search(word) or _MIXED_CASE.search(word)):
            yield match


@functools.lru_cache(1 << 16)
def spans(text: bytes) -> tuple[tuple[int, int], ...]:
    """Return the start and end of each secret in a short text, in order of their starts."""
    shown = text.decode("latin-1")  # byte for character
    return tuple(sorted(_value(match) for pattern in _patterns() for match in pattern.finditer(shown)))


def _value(match: re.Match[str]) -> tuple[int, int]:
    """Return the span of the value in a match: its longest group if long enough, else the whole match."""
    groups = [match.span(number) for number in range(1, match.re.groups + 1)]
    start, end = max(groups, key=lambda span: span[1] - span[0], default=(0, 0))
    return (start, end) if end - start >= _SHORTEST_VALUE else match.span()


@functools.cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    detectors: dict[str, Any] = get_mapping_from_secret_type_to_class()
    kinds = [kind for name, kind in sorted(detectors.items()) if name not in _NOT_SECRET]
    return tuple(
        pattern for kind in kinds if issubclass(kind, RegexBasedDetector) for pattern in vars(kind)["denylist"]
    )

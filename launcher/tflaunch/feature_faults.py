"""Keep the faults of features from runs.

A feature that raises is left out for the rest of the process, in one line. Only what decides (the core, orders,
sessions, the stores) may end a run. Who calls a feature does so in `isolated`; callbacks of features are recognized by
the modules in the traceback.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tflaunch_worker.feature import RAISE_FAULTS, describe_error, name_of_raiser

_FEATURES = "tflaunch.features"
_left_out: dict[str, str] = {}
_modules_of_others: dict[str, str] = {}  # the prefixes of their modules


def _print(feature: str, reason: str) -> None:
    print(f"tflaunch: warning: {sentence(feature, reason)}", file=sys.stderr)


_tell: Callable[[str, str], None] = _print


def tell_with(tell: Callable[[str, str], None] | None) -> None:
    """Report faults by a function of name and reason; with None, on stderr again."""
    global _tell  # noqa: PLW0603 (a process supervises one run)
    _tell = tell or _print


def note_modules(feature: str, package: str) -> None:
    """Recognize the callbacks of a feature of another distribution by its package."""
    _modules_of_others[package] = feature


def left_out() -> Mapping[str, str]:
    """Return the features that have failed in this process, each with the reason."""
    return _left_out


def sentence(feature: str, reason: str, run: str = "", host: str = "") -> str:
    """Return one sentence about a feature that is left out, here or on a host."""
    where = f" on {host}" if host else ""
    goes_on = f"; run {run} goes on without it" if run else ""
    return f"the feature {feature} has failed{where} and is left out: {reason}{goes_on}"


@contextmanager
def isolated(feature: str = "", *expected: type[Exception]) -> Iterator[None]:
    """Leave out a feature if the block raises anything unexpected.

    What is ``expected`` is raised. Without the name of a feature, it is the one whose function has raised the error;
    others' errors are raised.
    """
    try:
        yield
    except expected:
        raise
    except Exception as error:
        if feature:
            leave_out(feature, error)
        elif not excuse(error):
            raise


def excuse(error: BaseException) -> bool:
    """Leave out the feature that has raised an error; return whether one has."""
    feature = name_of_raiser(error, {_FEATURES: "", **_modules_of_others})
    if feature:
        leave_out(feature, error)
    return bool(feature)


def leave_out(feature: str, error: BaseException) -> None:
    """Leave out a feature after an error, which is raised where tests want that."""
    if os.environ.get(RAISE_FAULTS):
        raise error
    if feature not in _left_out:
        _left_out[feature] = reason = describe_error(error)
        _tell(feature, reason)

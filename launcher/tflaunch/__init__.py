"""tflaunch: start, monitor and stop distributed TensorFlow training from one spec."""

from __future__ import annotations

TYPE_CHECKING = False  # instead of that of `typing`, whose import would delay the handling of Ctrl-C

if TYPE_CHECKING:
    from typing import Any

    from tflaunch.api import (
        Event,
        Figures,
        JobFailed,
        LogLine,
        Moment,
        Result,
        Run,
        Spec,
        TaskResult,
        attach,
        run,
        run_async,
        start,
    )
    from tflaunch.errors import Problem, SpecError, TflaunchError

__version__ = "0.2.0"

__all__ = [
    "Event",
    "Figures",
    "JobFailed",
    "LogLine",
    "Moment",
    "Problem",
    "Result",
    "Run",
    "Spec",
    "SpecError",
    "TaskResult",
    "TflaunchError",
    "__version__",
    "attach",
    "run",
    "run_async",
    "start",
]


def __getattr__(name: str) -> Any:
    """Import the API on demand: the command line and the supervisor do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tflaunch import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""tflaunch: start, monitor and stop distributed TensorFlow training from one spec."""

from __future__ import annotations

TYPE_CHECKING = False  # instead of that of `typing`, whose import would delay the handling of Ctrl-C

if TYPE_CHECKING:
    from typing import Any

    from tflaunch.api.launch import attach, run, run_async, start
    from tflaunch.api.runs import Run
    from tflaunch.api.spec import Spec
    from tflaunch.api.values import Event, JobFailed, LogLine, Result, TaskResult
    from tflaunch.errors import Problem, SpecError, TflaunchError
    from tflaunch.store.history import Figures, Moment

__version__ = "0.2.0"

_MODULES = ("api.launch", "api.runs", "api.spec", "api.values", "errors", "store.history")

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
    from importlib import import_module

    modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

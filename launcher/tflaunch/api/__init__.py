"""The Python API: what `import tflaunch` gives to programs."""

from tflaunch.api.launch import attach, run, run_async, start
from tflaunch.api.runs import Run
from tflaunch.api.spec import Spec, SpecLike
from tflaunch.api.values import Event, JobFailed, LogLine, Result, TaskResult
from tflaunch.errors import Problem, SpecError, TflaunchError
from tflaunch.store.history import Figures, Moment

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
    "SpecLike",
    "TaskResult",
    "TflaunchError",
    "attach",
    "run",
    "run_async",
    "start",
]

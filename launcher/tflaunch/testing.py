"""The pytest plugin: tests in all tasks, or commands as clusters, on this machine.

pytest loads this module when it starts, so it imports the rest of the package where it needs it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tflaunch.clusterspec.templates import quote_in_spec
from tflaunch.clusterspec.values import ROLES
from tflaunch_worker.readable import duration_words

if TYPE_CHECKING:
    from tflaunch.api.values import Result
    from tflaunch.plan.task_starter import SessionPart


MARKER = "tflaunch"
_IN_TASK = "TFLAUNCH_TEST"
"""Variable of a task that runs a test: where it reports, and when it is late."""
_TIMEOUT = 60.0  # seconds
_TIME_FOR_STACKS = 2.0  # seconds between the dump of all stacks and the end of the job
_SHOWN_LINES = 200
_DEADLINE = "deadline"  # the culprit of a job that exceeds its limit

_RUNS = pytest.StashKey[list["Result"]]()
_PARTS = pytest.StashKey[list["SessionPart"]]()
_OUTCOME = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(tryfirst=True)  # before pytest reads its options for temporary directories
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; in a task, use its own temporary directories."""
    if _IN_TASK in os.environ:  # by default pytest would remove those of the user's earlier sessions
        config.option.basetemp = str(_report_of_this_task().with_suffix(""))
    usage = f"{MARKER}(worker=1, ps=0, chief=0, evaluator=0, timeout={_TIMEOUT:g}, **fields of a spec)"
    config.addinivalue_line("markers", f"{usage}: run the test in every task of a cluster on this machine")


@pytest.fixture
def tflaunch_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> Path:
    """A directory for the runs of this test alone."""
    home = tmp_path_factory.mktemp("tflaunch", numbered=True)
    monkeypatch.setenv("TFLAUNCH_HOME", str(home))
    if _PARTS not in pytestconfig.stash:
        from tflaunch.feature import task_starters

        made = (starter.join_tests(tmp_path_factory.mktemp("tflaunch-session")) for starter in task_starters())
        pytestconfig.stash[_PARTS] = [part for part in made if part is not None]
    for part in pytestconfig.stash[_PARTS]:
        for name, value in part.environ().items():
            monkeypatch.setenv(name, value)
    return home


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let features end what they have begun in the session."""
    for part in session.config.stash.get(_PARTS, []):
        part.end()


@pytest.fixture
def tflaunch_cluster(request: pytest.FixtureRequest, tflaunch_home: Path) -> Callable[..., Result]:
    """A function that runs a command as a local cluster and returns the result.

    Its arguments: ``workers``, ``ps``, ``chiefs`` and ``evaluators`` are numbers of tasks; ``command`` is that of each
    task; ``timeout`` is the limit for the job, in seconds; others are fields of a spec. A failed job is not restarted,
    unless ``restart`` says so. The output of all tasks is part of the report of a failed test.
    """
    runs = request.node.stash.setdefault(_RUNS, [])

    def run(
        workers: int = 1,
        ps: int = 0,
        *,
        chiefs: int = 0,
        evaluators: int = 0,
        command: str | Sequence[str],
        timeout: float = _TIMEOUT,
        **fields: Any,
    ) -> Result:
        result = _run((chiefs, workers, ps, evaluators), command, timeout, fields)
        runs.append(result)
        return result

    return run


@pytest.fixture
def assert_resumes(tflaunch_home: Path) -> Callable[..., None]:
    """A function that fails the test if a training does not resume after a fault.

    Its arguments: ``spec`` is a file, or ``command`` is what ``workers`` tasks run; ``steps`` ends each training after
    that many; ``fault`` is one of `tflaunch drill --fault`.
    """

    def check(
        spec: str | Path | None = None,
        *,
        command: str | Sequence[str] = (),
        workers: int = 1,
        steps: int | None = None,
        fault: str = "kill",
    ) -> None:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        options = ["--fault", fault, *([] if steps is None else ["--steps", str(steps)])]
        what = [str(spec)] if spec is not None else ["-n", str(workers), *words]
        drill = [sys.executable, "-m", "tflaunch", "drill", *options, *what]
        ended = subprocess.run(drill, capture_output=True, text=True, check=False)  # no limit: it has its own
        if ended.returncode:
            pytest.fail(f"{shlex.join(['tflaunch', *drill[3:]])}\n{ended.stdout}{ended.stderr}", pytrace=False)

    return check


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a marked test a home of its own, before its fixtures are set up."""
    if _is_for_cluster(item) and isinstance(item, pytest.Function) and "tflaunch_home" not in item.fixturenames:
        item.fixturenames.insert(0, "tflaunch_home")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Run a marked test in the tasks of a cluster instead of here."""
    if not _is_for_cluster(pyfuncitem):
        return None
    marker = pyfuncitem.get_closest_marker(MARKER)
    assert marker is not None
    fields = dict(marker.kwargs)
    if marker.args:
        pytest.fail(f"@pytest.mark.{MARKER} takes names only, such as worker=2", pytrace=False)
    if plural := next((f"{role}s" for role in ROLES if f"{role}s" in fields), None):
        pytest.fail(f"@pytest.mark.{MARKER}: unknown field {plural!r}; did you mean {plural[:-1]!r}?", pytrace=False)
    timeout = float(fields.pop("timeout", _TIMEOUT))
    counts = tuple(int(fields.pop(role, int(role == "worker"))) for role in ROLES)
    reports = Path(os.environ["TFLAUNCH_HOME"], "reports")
    reports.mkdir()
    order = {"reports": str(reports), "late": time.time() + timeout}
    fields["env"] = {**fields.get("env", {}), _IN_TASK: quote_in_spec(json.dumps(order))}
    for part in pyfuncitem.config.stash[_PARTS]:
        fields |= part.fields_for(pyfuncitem, fields)
    result = _run(counts, _command_in_task(pyfuncitem), timeout + _TIME_FOR_STACKS, fields)
    pyfuncitem.stash.setdefault(_RUNS, []).append(result)
    if result.culprit == _DEADLINE:
        sentence = f"not finished within {duration_words(timeout)}; the stacks of the tasks are in their output"
        pytest.fail(f"{sentence} (@pytest.mark.{MARKER}(timeout=...) is the limit)", pytrace=False)
    _adopt_outcome(result, reports)
    return True


def _is_for_cluster(item: pytest.Item) -> bool:
    """Whether a test is marked, and this is not one of the tasks that run it."""
    return item.get_closest_marker(MARKER) is not None and _IN_TASK not in os.environ


def _run(counts: Sequence[int], command: str | Sequence[str], timeout: float, fields: dict[str, Any]) -> Result:
    """Run a command as a cluster of that many tasks of each role."""
    import tflaunch

    cluster = {role: count for role, count in zip(ROLES, counts, strict=True) if count}
    data = {"name": "test", "restart": {"max": 0}, **fields, "cluster": cluster, "command": command}
    try:
        return tflaunch.run(data, timeout=timeout)
    except (tflaunch.SpecError, tflaunch.TflaunchError) as error:
        mistake = str(error)
    pytest.fail(mistake, pytrace=False)  # outside `except`, or the report would show both errors


def _command_in_task(item: pytest.Function) -> list[str]:
    """Return the command that runs one test with the same configuration as here."""
    config = item.config
    words = [sys.executable, "-m", "pytest", "--capture=no", "-q", "--no-header", "--no-summary"]
    words += ["-p", "tflaunch.testing"] if not config.pluginmanager.hasplugin("tflaunch") else []
    words += ["--runxfail"]  # what is expected to fail is judged here
    words += ["-p", "no:cacheprovider", f"--rootdir={config.rootpath}"]
    words += ["-n", "0"] if config.pluginmanager.hasplugin("xdist") else []
    words += ["-c", str(config.inipath)] if config.inipath is not None else []
    return [*words, f"{item.path}{item.nodeid[len(item.nodeid.split('::')[0]) :]}"]


def _adopt_outcome(result: Result, reports: Path) -> None:
    """Fail or skip the test here if it failed or was skipped in the tasks."""
    outcomes = {path.stem: json.loads(path.read_text()) for path in reports.glob("*.json")}
    if result.exit_code:
        culprit = (result.culprit or "").replace(":", "-")
        told = outcomes.get(culprit, {})
        is_told = told.get("outcome") == "failed"
        pytest.fail(f"{result.culprit}: {told['text']}" if is_told else result.summary, pytrace=False)
    if outcomes and all(outcome["outcome"] == "skipped" for outcome in outcomes.values()):
        pytest.skip(next(iter(outcomes.values()))["text"])


# ---- reports


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add tasks' output to a failed test's report; in a task, note the outcome."""
    report = yield
    if _IN_TASK in os.environ:
        _note_outcome(item, report)
    elif report.failed:
        report.sections += [section for run in item.stash.get(_RUNS, []) for section in _sections(run)]
    return report


def _sections(result: Result) -> Iterator[tuple[str, str]]:
    for task in result.tasks.values():
        lines = task.log.splitlines()
        shown = lines[-_SHOWN_LINES:]
        left_out = f", the last {len(shown)} of {len(lines)} lines" if len(shown) < len(lines) else ""
        yield f"output of {task.task}{left_out}", "\n".join(shown)


def _note_outcome(item: pytest.Item, report: pytest.TestReport) -> None:
    """Write the outcome of a test in a task: of its first phase that did not pass."""
    noted = item.stash.setdefault(_OUTCOME, {"outcome": "passed", "text": ""})
    if noted["outcome"] != "passed":
        return
    if not report.passed:
        noted.update(outcome=report.outcome, text=_text_of(report))
    _report_of_this_task().write_text(json.dumps(noted))


def _report_of_this_task() -> Path:
    name = os.environ["TFLAUNCH_TASK"].replace(":", "-")
    return Path(json.loads(os.environ[_IN_TASK])["reports"], f"{name}.json")


def _text_of(report: pytest.TestReport) -> str:
    """Return a skip's reason, or a failure's line followed by its traceback."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message.partition("\n")[0] + "\n\n" if crash is not None else ""
    return f"{message}{report.longreprtext}"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """In a task, dump the stacks of all threads into its log when the test is late."""
    if _IN_TASK in os.environ:
        left = json.loads(os.environ[_IN_TASK])["late"] - time.time()
        faulthandler.dump_traceback_later(max(left, 0.1), file=2)

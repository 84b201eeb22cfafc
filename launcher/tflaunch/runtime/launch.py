"""Start a run, or take over one whose supervisor was killed."""

import json
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from tflaunch.agents.calls import UserCode
from tflaunch.agents.snapshot import look_at
from tflaunch.client import follow, runs
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import locate_run
from tflaunch.client.secret_values import find_secrets, read_secrets
from tflaunch.core.events import StopRequested
from tflaunch.core.job_state import Phase
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, EXIT_USAGE, TflaunchError, missing_feature
from tflaunch.explain.wording import counted
from tflaunch.feature import features, find_host_maker, load
from tflaunch.own_process import end_process, own_process
from tflaunch.plan import placeholders, serialize
from tflaunch.plan.model import Plan
from tflaunch.runtime import daemon, foreground
from tflaunch.runtime.run_config import RunConfig
from tflaunch.store import log_writer, run_dir
from tflaunch.store.journal import first_record, read_job
from tflaunch.store.log_sink import OutputSink
from tflaunch.transport.base import AgentConnector, Link, LinkError, LoginBound
from tflaunch.transport.connect import connectors_for
from tflaunch.tui.screen import Screen
from tflaunch_worker import wire
from tflaunch_worker.readable import duration_words, printable

_SUPERVISE = (
    "import json; order = json.load(sys.stdin); from tflaunch.runtime import launch; launch.supervise_order(order)"
)
_UNRECORDED_PROTOCOL = 5  # that of 0.2.0, whose journals do not name it
_DESCRIPTORS_OF_TASK = 2  # its log, and the index of the log's times
_DESCRIPTORS_OF_HOST = 1  # its link
_OTHER_DESCRIPTORS = 100


def start(plan: Plan, config: RunConfig) -> int:
    """Run a plan; return tflaunch's exit code, or 0 once a detached run runs.

    Raises:
        TflaunchError: the run cannot begin; one of its secrets cannot be read, for instance.
    """
    config = config._replace(secrets=read_secrets(plan.secrets))
    maker = find_host_maker(plan)
    if maker is not None:
        plan = maker.create_hosts(plan, config.directory.run)
    if config.code is not None:
        config = config._replace(code=config.code.keep(config.directory.path))
    connectors = connectors_for(plan, config.directory.path)

    if config.is_detached:
        bound = (connector for connector in connectors.values() if isinstance(connector, LoginBound))
        if warning := next(filter(None, (connector.login_warning() for connector in bound)), ""):
            config.say(f"warning: {warning}")

    def supervise(config: RunConfig) -> int:
        with _without_leftovers(plan, config), ExitStack() as unused:
            links = _open_early(plan, connectors, unused)

            def begun() -> None:
                unused.pop_all()
                config.begun()

            return foreground.execute(plan, config._replace(begun=begun), connectors, links)

    return _supervise(config, supervise)


@contextmanager
def new_directory(plan: Plan, log_directory: Path | None, suffix: str, spec: bytes) -> Iterator[run_dir.RunDirectory]:
    """Create the directory of a run, if this machine can supervise it.

    It is deleted if an exception, Ctrl-C included, leaves the context before the run has begun.

    ``spec`` is what the user wrote, in the format of a file with this ``suffix``.

    Raises:
        TflaunchError: a value of a matrix is missing, a secret cannot be read, there are too few open files, or the
            directory cannot be created.
    """
    placeholders.require_matrix_values(plan)
    read_secrets(plan.secrets)
    require_descriptors(len(plan.hosts), len(plan.processes()))
    if log_directory is not None:
        log_writer.require_own_logs(log_directory, [process.task for process in plan.processes()])
    directory = run_dir.RunDirectory(plan.name, log_directory)
    try:
        directory.keep_spec(suffix, spec)
        yield directory
    except BaseException:
        if first_record(directory.path) is None and locate_run(directory.path).has_files_here:  # it has not begun
            directory.discard()
        raise


def take_over(
    path: Path,
    say: Callable[[str], None],
    extras: Mapping[str, Any] = {},
    is_detached: bool = False,
    stop: StopRequested | None = None,
    sink: Callable[[Sequence[str]], OutputSink] = Screen,
) -> int:
    """Continue the run in a directory, or end it; arguments as in `RunConfig`.

    Raises:
        TflaunchError: the run has a supervisor, or none of its tasks can still be alive.
    """
    records, job = read_job(path)
    if runs.is_live(path):
        raise run_dir.already_supervised(path)
    if job.phase is Phase.ENDED and records[-1]["kind"] == "ended":  # otherwise its supervisor was killed just before
        raise TflaunchError(f"run {path.name} has ended with exit code {job.exit_code}", EXIT_USAGE)
    locate_run(path).require_verb("resume")
    _require_same_protocol(path, records[0], job.plan)
    directory = run_dir.RunDirectory.existing(path, Path(records[0]["logs"]))
    if job.plan.lease == 0 and job.phase is not Phase.ENDED:
        look_at(connectors_for(job.original, path))  # also kills tasks of killed agents, so the message is true
        why = "ended with its supervisor, because timeouts.lease is 0"
        raise TflaunchError(f"the tasks of {path.name} {why}; start its spec again", EXIT_INTERNAL)
    require_descriptors(len(job.original.hosts), len(job.original.processes()))
    secrets, problems = find_secrets(job.original.secrets)
    if stop is None:
        for problem in problems:
            say(f"warning: {problem.sentence()}; tasks go on, and fail if they are restarted")
    config = RunConfig(
        directory,
        code_for_hosts(job.original, path),
        say,
        extras=extras,
        is_detached=is_detached,
        sink=sink,
        secrets=secrets,
    )
    connectors = connectors_for(job.original, path)
    runs.kill_orphans(path)  # the fence of this machine may have passed, so that its tasks count as gone at once

    def supervise(config: RunConfig) -> int:
        with _without_leftovers(job.original, config):
            return foreground.resume(records, config, connectors, stop)

    return _supervise(config, supervise)


def _require_same_protocol(path: Path, first: Mapping[str, Any], plan: Plan) -> None:
    """Raise an error if the agents of a run do not understand this version."""
    protocol = first.get("protocol") or _UNRECORDED_PROTOCOL
    if protocol == wire.PROTOCOL:
        return
    version = printable(first.get("version") or "", 40) or "0.2.0 or earlier"
    raise TflaunchError(
        f"run {path.name} was started by tflaunch {version}, whose agents speak protocol {protocol}, not "
        f"{wire.PROTOCOL}: only that version can resume or stop it; without a supervisor its tasks end "
        f"after {duration_words(plan.lease)} (timeouts.lease)",
        EXIT_USAGE,
    )


def _without_leftovers(plan: Plan, config: RunConfig) -> AbstractContextManager[None]:
    """Delete the hosts that were made for the run once its supervision has ended."""
    maker = find_host_maker(plan)
    return nullcontext() if maker is None else maker.deleted_after(plan, config.directory.run, config.say)


def require_descriptors(hosts: int, tasks: int) -> None:
    """Raise `TflaunchError` if the hard limit of open files is too low for a run."""
    needed = _DESCRIPTORS_OF_HOST * hosts + _DESCRIPTORS_OF_TASK * tasks + _OTHER_DESCRIPTORS
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and needed > most:
        message = (
            f"{counted(tasks, 'task')} on {counted(hosts, 'host')} need {needed} open files, "
            f"and this process may have {most}; raise the hard limit (`ulimit -Hn`, LimitNOFILE, limits.conf)"
        )
        raise TflaunchError(message, EXIT_PREFLIGHT)


def _supervise(config: RunConfig, supervise: Callable[[RunConfig], int]) -> int:
    """Call ``supervise`` in this process, or in one that survives this terminal."""
    if not config.is_detached:
        return supervise(config)
    path = config.directory.path
    with daemon.launched(path, lambda begun: supervise(config._replace(sink=daemon.Notes, begun=begun))):
        return follow.until_running(Observer(path), config.say, config.is_quiet) or 0


def _open_early(plan: Plan, connectors: Mapping[str, AgentConnector], unused: ExitStack) -> dict[str, Link]:
    """Start this machine's agents while the rest is imported; ``unused`` ends them."""
    links = {}
    for host in plan.hosts:
        if host.is_local:
            connector = connectors[host.host]
            with suppress(LinkError):  # retried, and reported, together with the other hosts
                link = links[host.host] = connector.open()
                unused.callback(connector.end)
                unused.callback(link.close)
    return links


def code_for_hosts(plan: Plan, directory: Path | None = None) -> UserCode | None:
    """Return the user's code if some host needs a copy of it.

    Raises:
        TflaunchError: part of it cannot be read, or no feature copies code.
    """
    if plan.sync is None or all(host.is_like_here for host in plan.hosts):
        return None
    place = next((feature.code for feature in features().values() if feature.code), "")
    if not place:
        raise TflaunchError(missing_feature("sync").sentence(), EXIT_USAGE)
    code: UserCode = load(place)(plan, directory)
    return code


def start_supervisor(plan: Plan, directory: run_dir.RunDirectory, *, is_owned: bool) -> None:
    """Start a supervisor for a plan; return once other processes can see the run.

    It has an interpreter of its own: a program may have threads, which a fork does not copy, and another interpreter.
    With ``is_owned``, the run ends when this process ends. Raises as `daemon.await_beginning`.
    """
    order = {
        "plan": serialize.as_json(plan),
        "run": str(directory.path),
        "logs": str(directory.logs),
        "owner": os.getpid() if is_owned else None,
    }
    process = subprocess.Popen(
        own_process(_SUPERVISE, directory.run),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the program's terminal is for the program
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(order).encode("ascii"))
        daemon.await_beginning(process.stdout.fileno(), process.wait, directory.path)
    except BaseException:
        end_process(process)
        raise
    finally:
        process.stdout.close()
    threading.Thread(target=process.wait, daemon=True, name=f"tflaunch {directory.run}").start()  # leaves no zombie


def supervise_order(order: dict[str, Any]) -> None:
    """Supervise the run that `start_supervisor` describes; never returns."""
    directory = run_dir.RunDirectory.existing(Path(order["run"]), Path(order["logs"]))
    plan = serialize.from_json(order["plan"])

    def run(begun: Callable[[], None]) -> int:
        code = code_for_hosts(plan)
        config = RunConfig(directory, code, daemon.Notes().say, owner=order["owner"], sink=daemon.Notes, begun=begun)
        return start(plan, config)

    daemon.be_supervisor(directory.path, run, os.dup(1))

"""Serve a run's Prometheus metrics on this machine's loopback address."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import psutil
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tflaunch.cli.arguments.spec import WholeNumber
from tflaunch.core.job_state import Phase
from tflaunch.errors import EXIT_PREFLIGHT, TflaunchError
from tflaunch.explain.run_status import HostStatus, Status, TaskStatus
from tflaunch.port_holder import LOOPBACK, why_unusable
from tflaunch.runtime.watchers import Supervision, Watcher

_END_PATIENCE = 3.0  # seconds
_PATIENCE = 3.0  # seconds that a scrape waits for the supervisor's answer

_OF_TASKS: tuple[tuple[str, Callable[[TaskStatus], float | None], str], ...] = (
    ("resident_memory_bytes", lambda task: task.rss_bytes, "Memory in use."),
    ("gpu_memory_bytes", lambda task: task.gpu_bytes, "Memory in use on GPUs."),
    ("gpu_busy_percent", lambda task: task.gpu_percent, "Utilization of the GPUs on which the task runs."),
    ("step", lambda task: task.step, "Training step, as the task reports it."),
    ("steps_per_second", lambda task: task.steps_per_second, "Training steps per second."),
    ("epoch", lambda task: task.epoch, "Epoch, as the task reports it."),
    ("memory_growth_bytes_per_second", lambda task: task.memory_growth, "Steady growth of its memory."),
    ("memory_full_timestamp_seconds", lambda task: task.memory_full_at, "When its host's memory is full at that rate."),
    ("refused_connections", lambda task: task.refused_connections, "Connections from outside the cluster, refused."),
)


def read_port(text: str) -> int:
    """Return the port that a text names.

    Raises:
        click.UsageError: it names none.
    """
    return int(WholeNumber(0, 65535).convert(text, None, None))


class Metrics(Watcher):
    """Serves ``/metrics``; tasks are measured at each scrape."""

    def __init__(self, supervision: Supervision) -> None:
        """Listen on a port of the loopback address, 0 for any free one.

        Raises:
            TflaunchError: the port is in use, or not permitted.
        """
        self._supervision = supervision
        port: int = supervision.config.extras["metrics_port"]
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, LOOPBACK, registry)
        except OSError as error:
            why = why_unusable(port, error)
            raise TflaunchError(f"--metrics-port {port} {why}; choose another port", EXIT_PREFLIGHT) from None
        supervision.say(f"metrics on http://{LOOPBACK}:{self._server.server_port}/metrics")

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_END_PATIENCE)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect metrics yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics (prometheus_client calls this in threads of its own)."""
        status = self._status()
        return (*families(status, time.time()), *_of_supervisor(status.run)) if status is not None else ()

    def _status(self) -> Status | None:
        answered = threading.Event()
        answers: list[Status] = []

        def take(status: Status) -> None:
            answers.append(status)
            answered.set()

        self._supervision.mailbox.call(lambda: self._supervision.measured(take))
        answered.wait(_PATIENCE)
        return answers[0] if answers else None


def families(status: Status, now: float) -> list[Metric]:
    """Return a status as metric families; ``now`` is in seconds since the epoch."""
    run, tasks = status.run, status.tasks
    phase = GaugeMetricFamily("tflaunch_job_phase", "1 for the phase of the job.", labels=["run", "phase"])
    for known in Phase:
        phase.add_metric([run, known.value], float(known.value == status.phase))
    restarts = CounterMetricFamily("tflaunch_restarts", "Restarts of the gang.", labels=["run"])
    restarts.add_metric([run], status.restarts)
    waiting = GaugeMetricFamily(
        "tflaunch_cluster_waiting_seconds",
        "Seconds since the start of an attempt whose cluster has not formed.",
        labels=["run"],
    )
    forming = status.forming
    waiting.add_metric([run], 0.0 if forming is None else max(now - forming.since, 0.0))
    return [phase, restarts, waiting, *_of_hosts(run, status.hosts), *_of_tasks(run, tasks), _own(run, tasks)]


def _of_supervisor(run: str) -> list[Metric]:
    """Return what the supervisor itself, which is this process, uses."""
    process = psutil.Process()
    times = process.cpu_times()
    cpu = CounterMetricFamily("tflaunch_supervisor_cpu_seconds", "CPU time used by tflaunch.", labels=["run"])
    cpu.add_metric([run], times.user + times.system)
    memory = GaugeMetricFamily("tflaunch_supervisor_resident_memory_bytes", "Memory of tflaunch.", labels=["run"])
    memory.add_metric([run], process.memory_info().rss)
    return [cpu, memory]


def _of_hosts(run: str, hosts: Iterable[HostStatus]) -> list[Metric]:
    labels = ["run", "host"]
    up = GaugeMetricFamily("tflaunch_agent_up", "Whether the host's agent is connected.", labels=labels)
    silence = GaugeMetricFamily("tflaunch_link_silence_seconds", "Seconds since its last message.", labels=labels)
    for host in hosts:
        up.add_metric([run, host.host], float(host.state == "connected"))
        if host.silence is not None:
            silence.add_metric([run, host.host], host.silence)
    return [up, silence]


def _of_tasks(run: str, tasks: Iterable[TaskStatus]) -> list[Metric]:
    labels = ["run", "task", "host"]
    up = GaugeMetricFamily("tflaunch_task_up", "Whether the task runs.", labels=labels)
    cpu = CounterMetricFamily("tflaunch_task_cpu_seconds", "CPU time used.", labels=labels)
    listening = GaugeMetricFamily("tflaunch_task_listening", "Whether the task listens on its port.", labels=labels)
    found: list[Metric] = [up, listening, cpu]
    for task in tasks:
        about = [run, task.task, task.host]
        up.add_metric(about, float(task.state == "running" or task.waiting_since is not None))
        if task.listening is not None:
            listening.add_metric(about, float(task.listening))
        if task.cpu_seconds is not None:
            cpu.add_metric(about, task.cpu_seconds)
    for name, value_of, text in _OF_TASKS:
        gauge = GaugeMetricFamily(f"tflaunch_task_{name}", text, labels=labels)
        for task in tasks:
            value = value_of(task)
            if value is not None:
                gauge.add_metric([run, task.task, task.host], value)
        found.append(gauge)
    return found


def _own(run: str, tasks: Iterable[TaskStatus]) -> Metric:
    """Return the metrics that programs report under their own names, such as a loss."""
    own = GaugeMetricFamily("tflaunch_task_metric", "As the task reports it.", labels=["run", "task", "name"])
    for task in tasks:
        for name, value in (task.metrics or {}).items():
            own.add_metric([run, task.task, name], value)
    return own

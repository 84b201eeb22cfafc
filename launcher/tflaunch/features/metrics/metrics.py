"""Serve a run's Prometheus metrics on this machine's loopback address."""

import queue
import time
from collections.abc import Callable, Iterable, Sequence

import psutil
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tflaunch.cli.arguments.spec import WholeNumber
from tflaunch.core.job_state import Phase
from tflaunch.errors import EXIT_PREFLIGHT, TflaunchError
from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.features.port_holder import LOOPBACK, why_unusable
from tflaunch.runtime.watchers import Supervision, Watcher

_END_PATIENCE = 3.0  # seconds
_PATIENCE = 3.0  # seconds that a scrape waits for the supervisor's answer

_OF_TASKS: tuple[tuple[str, Callable[[TaskStatus], float | None], str], ...] = (
    ("up", lambda task: task.state == "running" or task.waiting_since is not None, "Whether the task runs."),
    ("listening", lambda task: task.listening, "Whether the task listens on its port."),
    ("cpu_seconds", lambda task: task.cpu_seconds, "CPU time used."),
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
read_port = WholeNumber(0, 65535)
_COUNTERS = ("tflaunch_restarts", "tflaunch_task_cpu_seconds", "tflaunch_supervisor_cpu_seconds")

_Samples = Iterable[tuple[tuple[str, ...], "float | None"]]
"""Values of a metric, each after those of its labels; None for one that is unknown."""


class Metrics(Watcher):
    """Serves ``/metrics``; tasks are measured at each scrape."""

    def __init__(self, supervision: Supervision) -> None:
        """Listen on a port of the loopback address, 0 for any free one.

        Raises:
            TflaunchError: the port is in use, or not permitted.
        """
        super().__init__(supervision)
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
        answers: queue.SimpleQueue[Status] = queue.SimpleQueue()
        self.supervision.mailbox.call(lambda: self.supervision.measured(answers.put))
        try:
            return answers.get(timeout=_PATIENCE)
        except queue.Empty:
            return None


def families(status: Status, now: float) -> list[Metric]:
    """Return a status as metric families; ``now`` is in seconds since the epoch."""
    run, forming = (status.run,), status.forming
    waiting = 0.0 if forming is None else max(now - forming.since, 0.0)
    of_job = status.state if status.exit_code is None else Phase.STOPPING.value  # its code is known before the end
    phase = Phase.ENDED.value if status.phase == Phase.ENDED.value else of_job
    phases = [((*run, each.value), each.value == phase) for each in Phase]
    up = [((*run, host.host), host.state == "connected") for host in status.hosts]
    silences = [((*run, host.host), host.silence) for host in status.hosts]
    tasks = [(*run, task.task, task.host) for task in status.tasks]
    own = [((*run, task.task, name), value) for task in status.tasks for name, value in (task.metrics or {}).items()]
    about = "Seconds since the start of an attempt whose cluster has not formed."
    return [
        _family("job_phase", "1 for the phase of the job.", ("run", "phase"), phases),
        _family("restarts", "Restarts of the gang.", ("run",), [(run, status.restarts)]),
        _family("cluster_waiting_seconds", about, ("run",), [(run, waiting)]),
        _family("agent_up", "Whether the host's agent is connected.", ("run", "host"), up),
        _family("link_silence_seconds", "Seconds since its last message.", ("run", "host"), silences),
        *(
            _family(f"task_{name}", text, ("run", "task", "host"), zip(tasks, map(value_of, status.tasks), strict=True))
            for name, value_of, text in _OF_TASKS
        ),
        _family("task_metric", "As the task reports it.", ("run", "task", "name"), own),
    ]


def _of_supervisor(run: str) -> list[Metric]:
    process = psutil.Process()
    times, memory = process.cpu_times(), process.memory_info().rss
    used = times.user + times.system
    return [
        _family("supervisor_cpu_seconds", "CPU time used by tflaunch.", ("run",), [((run,), used)]),
        _family("supervisor_resident_memory_bytes", "Memory of tflaunch.", ("run",), [((run,), memory)]),
    ]


def _family(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    name = f"tflaunch_{name}"
    kind = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
    family = kind(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, float(value))
    return family

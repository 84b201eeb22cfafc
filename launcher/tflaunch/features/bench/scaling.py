"""Say how a training scales with its workers, and what limits it. Pure.

The speed of a run, in steps per second, is measured without any other load on it. What limits it follows from figures
of the same time (CPU) and from samples of the stacks that were taken afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from statistics import median
from typing import NamedTuple

from tflaunch.explain.wording import counted, listed
from tflaunch.features.hang.evidence import Evidence
from tflaunch.features.hang.position import Activity, activity_of
from tflaunch_worker.readable import duration_words

_FEWEST = 10  # samples of a task's stacks: shares of fewer tell little
_LATE = 0.3  # how much larger a share of time outside TensorFlow makes a task a straggler
_MORE_CPU = 1.5  # times the demand for CPU of the others, for the same
_WAITS = 0.5  # share of samples in which tasks wait for their input, or run Python code of the program
_SATURATED = 0.8  # share of a host's cores
_FULL, _CROWDED = 0.9, 0.25  # shares of a host's cores: of all programs, and of the others
_POOR = 0.75  # efficiency
_BUSY_GPU = 70.0  # percent
_COMPUTES = 0.5  # cores
_LONG_START, _LONG_START_STEPS = 30.0, 5.0  # seconds; times the time of the measured steps


class Limit(Enum):
    """What limits the speed of a run."""

    INPUT = "input"
    CPU = "CPU"
    COMMUNICATION = "communication"
    STRAGGLERS = "stragglers"
    START = "start-up"
    NONE = "none found"


class TaskUse(NamedTuple):
    """What a task did in a run that was measured.

    ``cpu`` is in cores, and ``cpu_wait`` how many of its threads waited for a core, on average. ``input``, ``own`` are
    the shares of samples in which it waited for its input, or ran or waited in Python code outside TensorFlow, most
    often at ``place``. None for what is not known.
    """

    task: str
    host: str
    cpu: float | None = None
    cpu_wait: float | None = None
    gpu_percent: float | None = None
    input: float | None = None
    own: float | None = None
    place: str = ""

    @property
    def outside(self) -> float:
        """Return the share of samples in which it was not in TensorFlow."""
        return (self.input or 0.0) + (self.own or 0.0)


class HostUse(NamedTuple):
    """How many cores of a host the run and all other programs used."""

    host: str
    cores: float
    used: float
    others: float


class Measured(NamedTuple):
    """A run that was measured. Times are in seconds.

    ``steps`` and ``seconds`` are those of the measurement, ``start_up`` is the time from the start of the run to the
    first step. ``examples`` is the number in a step of all workers, and ``training`` how long the whole training
    takes, as far as known. ``is_synchronous``: a step is one of all workers, not of one (parameter servers).
    """

    workers: int
    run: str
    steps: float
    seconds: float
    start_up: float
    examples: float | None
    training: float | None
    is_synchronous: bool
    tasks: tuple[TaskUse, ...]
    hosts: tuple[HostUse, ...]

    @property
    def steps_per_second(self) -> float:
        """Return the measured speed."""
        return self.steps / self.seconds

    @property
    def examples_per_second(self) -> float | None:
        """Return the examples of all workers together per second, None if it is not known how many a step has."""
        return None if self.examples is None else self.examples * self.steps_per_second


class Efficiency(NamedTuple):
    """The share of the ideal speed, which grows with the number of workers.

    ``value`` is None if it is not known whether the examples of a step grow with the workers; then it is ``weak`` if
    each worker's batch stays the same, and ``strong`` if that of all workers together does.
    """

    value: float | None
    weak: float
    strong: float

    @property
    def shown(self) -> float:
        """Return the efficiency, of unknown batches the better one, so that nothing is blamed without need."""
        return self.weak if self.value is None else self.value


class Finding(NamedTuple):
    """What limits a run, why that is known, and what to do about it."""

    limit: Limit
    reason: str
    advice: str


def efficiency(run: Measured, base: Measured) -> Efficiency:
    """Return the efficiency of a run, relative to that with the fewest workers.

    It is (examples per second / workers) / (the same of ``base``). A step of parameter servers is one of a single
    worker, so the steps of all workers are counted there.
    """
    steps = run.steps_per_second / base.steps_per_second
    more = run.workers / base.workers
    weak, strong = steps, steps / more
    if not run.is_synchronous:
        return Efficiency(strong, strong, strong)
    if run.examples is None or base.examples is None:
        return Efficiency(1.0 if run is base else None, weak, strong)
    return Efficiency(steps * run.examples / base.examples / more, weak, strong)


def scaling_of(runs: Sequence[Measured]) -> str:
    """Return ``weak`` or ``strong``: whether each worker's batch stays the same, or that of all; "" if unknown."""
    first, last = runs[0], runs[-1]
    if first is last or not first.is_synchronous or first.examples is None or last.examples is None:
        return ""
    grown = last.examples / first.examples
    return "strong" if grown == 1 else "weak" if grown == last.workers / first.workers else ""


# ---- shares of time


def shares_of(samples: Iterable[Evidence]) -> tuple[float, float, str] | None:
    """Return the shares of a task's samples in its input and in its own code, and its most frequent line there.

    None if its stack could be read in too few samples.
    """
    found = [activity for activity in map(activity_of, samples) if activity.kind is not Activity.UNKNOWN]
    if len(found) < _FEWEST:
        return None
    count = Counter(activity.kind for activity in found)
    places = Counter(activity.place for activity in found if activity.kind is not Activity.TENSORFLOW)
    place = places.most_common(1)[0][0] if places else ""
    return count[Activity.INPUT] / len(found), count[Activity.OWN] / len(found), place


# ---- what limits a run


def find_limit(run: Measured, base: Measured, steps: float) -> Finding:
    """Return what limits a run; ``steps`` is the number for which the user asked."""
    trainers = [task for task in run.tasks if task.task.partition(":")[0] in ("chief", "worker")]
    if run.training is not None and run.start_up >= run.training:
        return _start(run, f"the whole training takes {duration_words(run.training)}")
    finders: tuple[Callable[[], Finding | None], ...] = (
        lambda: _straggler(run, trainers),
        lambda: _saturated(run, base),
        lambda: _input(trainers),
        lambda: _crowded(run, trainers),
        lambda: _slower_steps(run, base),
        lambda: _idle(run, base, trainers),
    )
    for find in finders:
        found = find()
        if found is not None:
            return found
    measured = steps / run.steps_per_second
    if run.training is None and run.start_up >= max(_LONG_START, _LONG_START_STEPS * measured):
        return _start(run, f"{steps:g} steps take {duration_words(measured)}")
    return _nothing(run, base, trainers)


def _start(run: Measured, other: str) -> Finding:
    return Finding(
        Limit.START,
        f"the first step came after {duration_words(run.start_up)}, and {other}",
        "train longer per start; `--preload` or `tflaunch warm` save the import of TensorFlow, and fewer traced "
        "functions the rest",
    )


def _straggler(run: Measured, trainers: Sequence[TaskUse]) -> Finding | None:
    """Find one task for which the others wait."""
    if not run.is_synchronous or len(trainers) < 2:
        return None
    return _does_other_things(trainers) or _needs_more_cpu(run, trainers)


def _does_other_things(trainers: Sequence[TaskUse]) -> Finding | None:
    """Find one task that is outside TensorFlow while the others wait in it."""
    sampled = [task for task in trainers if task.input is not None]
    if len(sampled) < 2:
        return None
    worst = max(sampled, key=lambda task: task.outside)
    rest = median(task.outside for task in sampled if task is not worst)
    if worst.outside - rest < _LATE:
        return None
    what = "waits for its input" if (worst.input or 0) >= (worst.own or 0) else "is in Python code"
    at = f" ({worst.place})" if worst.place else ""
    return Finding(
        Limit.STRAGGLERS,
        f"{worst.task} {what}{at} {worst.outside:.0%} of the time, the others {rest:.0%}",
        f"look at what {worst.task} does there, and only there: the others wait for it in every step",
    )


def _needs_more_cpu(run: Measured, trainers: Sequence[TaskUse]) -> Finding | None:
    """Find one task that wants more CPU time than the others for the same steps."""
    needs = {task.task: (task.cpu or 0.0) + (task.cpu_wait or 0.0) for task in trainers}
    first = max(trainers, key=lambda task: needs[task.task])
    usual = median(needs[task.task] for task in trainers if task is not first)
    if needs[first.task] < max(_MORE_CPU * usual, _COMPUTES) or _share_full_host(run, trainers):
        return None
    waits = first.cpu_wait is not None and first.cpu_wait >= needs[first.task] / 2
    why = "waits for a core that it does not get" if waits else "needs more CPU time for the same steps"
    return Finding(
        Limit.STRAGGLERS,
        f"{first.task} on {first.host} {why} ({needs[first.task]:.1f} cores wanted, {usual:.1f} by the others)",
        f"give {first.task} as many free cores as the others: look for a limit (cgroup, nice) or other programs on "
        f"{first.host}",
    )


def _share_full_host(run: Measured, trainers: Sequence[TaskUse]) -> bool:
    """Whether all that train compete for the cores of one host, so that chance decides which one waits."""
    hosts = {task.host for task in trainers}
    return len(hosts) == 1 and any(
        host.host in hosts and host.used + host.others >= _SATURATED * host.cores for host in run.hosts
    )


def _saturated(run: Measured, base: Measured) -> Finding | None:
    full = [host for host in run.hosts if host.used >= _SATURATED * host.cores]
    if not full:
        return None
    first = full[0]
    tasks = [task.task for task in run.tasks if task.host == first.host]
    reason = f"{listed(tasks)} {'use' if len(tasks) > 1 else 'uses'} {first.used:.1f} of {first.cores:g} cores"
    if len(tasks) == 1:
        return Finding(Limit.CPU, f"{reason} of {first.host}", "use hosts with more cores or GPUs, or more hosts")
    return Finding(
        Limit.CPU,
        f"{reason} of {first.host}, which they share",
        "place them on hosts of their own; on one host, more workers share the same cores",
    )


def _input(trainers: Sequence[TaskUse]) -> Finding | None:
    known = [task for task in trainers if task.input is not None]
    if not known:
        return None
    reads = sum(task.input or 0.0 for task in known) / len(known)
    own = sum(task.own or 0.0 for task in known) / len(known)
    if reads + own < _WAITS:
        return None
    place = next((task.place for task in known if task.place), "")
    at = f" ({place})" if place else ""
    if reads >= own:
        return Finding(
            Limit.INPUT,
            f"workers wait for their input or make it in Python{at} {reads:.0%} of the time",
            "make it faster or in parallel: map(..., num_parallel_calls=tf.data.AUTOTUNE) instead of a generator, "
            "then prefetch(tf.data.AUTOTUNE)",
        )
    return Finding(
        Limit.INPUT,
        f"between the steps, workers are in Python code outside TensorFlow{at} {own:.0%} of the time",
        "move this into tf.data or out of the loop, so that it does not delay the next step",
    )


def _crowded(run: Measured, trainers: Sequence[TaskUse]) -> Finding | None:
    """Find cores that are busy with other programs, while threads of the run wait for them."""
    for host in run.hosts:
        here = [task for task in trainers if task.host == host.host]
        if not here:
            continue
        waits, cpu = sum(task.cpu_wait or 0.0 for task in here), sum(task.cpu or 0.0 for task in here)
        is_full = host.used + host.others >= _FULL * host.cores and host.others >= _CROWDED * host.cores
        if is_full and waits >= cpu / 2 and waits + cpu >= _COMPUTES * len(here):
            return Finding(
                Limit.CPU,
                f"other programs use {host.others:.1f} of {host.cores:g} cores of {host.host}, "
                f"and the run {host.used:.1f}",
                f"end the other programs on {host.host}, and measure again",
            )
    return None


def _slower_steps(run: Measured, base: Measured) -> Finding | None:
    if run is base or efficiency(run, base).shown >= _POOR:
        return None
    return Finding(
        Limit.COMMUNICATION,
        f"a step takes {base.steps_per_second / run.steps_per_second:.3g} times as long with "
        f"{counted(run.workers, 'worker')} as with {base.workers}, and neither input nor CPU explains it: workers wait "
        "for each other's answers",
        "do more per exchange: larger batches per worker, or steps_per_execution, as each exchange costs a fixed time",
    )


def _idle(run: Measured, base: Measured, trainers: Sequence[TaskUse]) -> Finding | None:
    """Find tasks that compute little and wait in TensorFlow: for an input that is not made in Python, or each other."""
    known = [task for task in trainers if task.cpu is not None]
    if not known or any((task.gpu_percent or 0.0) >= _BUSY_GPU for task in known):
        return None
    cpu = sum(task.cpu or 0.0 for task in known) / len(known)
    if cpu + sum(task.cpu_wait or 0.0 for task in known) / len(known) >= _COMPUTES:
        return None
    reason = f"workers wait in TensorFlow with {cpu:.1f} cores in use each"
    if base.workers > 1 or not run.is_synchronous:  # only a worker without peers shows that they wait for its input
        return Finding(
            Limit.NONE,
            f"{reason}, for their input or for each other",
            "look at what the input waits for (disk, network file system), and compare with a single worker",
        )
    return Finding(
        Limit.INPUT,
        f"{reason}, and not for each other",
        "look at what the input waits for (disk, network file system), and read in parallel: "
        "interleave(..., num_parallel_calls=tf.data.AUTOTUNE), prefetch",
    )


def _nothing(run: Measured, base: Measured, trainers: Sequence[TaskUse]) -> Finding:
    gpus = [task.gpu_percent for task in trainers if task.gpu_percent is not None]
    if gpus and min(gpus) >= _BUSY_GPU:
        return Finding(Limit.NONE, f"the GPUs are busy ({min(gpus):.0f} %)", "more workers with GPUs of their own")
    cpu = sum(task.cpu or 0.0 for task in trainers) / max(len(trainers), 1)
    value = efficiency(run, base).shown
    return Finding(
        Limit.NONE,
        f"workers compute with {cpu:.1f} cores each, and no other limit was found",
        "more workers on hosts of their own" if value >= _POOR else "measure again on idle hosts, with more --steps",
    )


def notes(runs: Sequence[Measured], wanted_steps: float) -> list[str]:
    """Return sentences on how to read the figures."""
    said = []
    first, last = runs[0], runs[-1]
    kind = scaling_of(runs)
    if kind:
        same = "each worker's batch" if kind == "weak" else "the batch of all workers together"
        said.append(f"{kind} scaling: {same} stays the same")
    elif not first.is_synchronous:
        said.append("parameter servers: a step is one of a single worker")
    elif first is not last and (first.examples is None or last.examples is None):
        said.append(
            "the batch is not known, so efficiency is given for both cases: WEAK if each worker's batch stays the "
            "same, STRONG if that of all workers together does"
        )
    if any(run.examples is None for run in runs):
        said.append(
            "no examples/s: give --batch N (per step of all workers) or --worker-batch N (per worker), or report "
            "them: progress.report(step, examples=N)"
        )
    slow = [run for run in runs if run.training is None and run.start_up > 2 * wanted_steps / run.steps_per_second]
    if slow:
        step = slow[-1].start_up * slow[-1].steps_per_second
        said.append(f"start-up is not in these figures: with {slow[-1].workers} it took as long as {step:.0f} steps")
    return said

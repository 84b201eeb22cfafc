"""Compare the speed of runs by number of workers, as data and as a table. Pure."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypedDict

from tflaunch.client.run_list import aligned
from tflaunch.clusterspec.model import Restart, Spec
from tflaunch.clusterspec.values import EVERY_HOST, LOCALHOST, Address
from tflaunch.errors import Problem, SpecError
from tflaunch.explain.wording import significant
from tflaunch_worker.readable import duration_words

_COLUMNS = ("WORKERS", "STEPS/S", "EXAMPLES/S", "SPEED-UP", "PER WORKER", "START-UP")
_UNKNOWN = "-"
_LEFT_OUT = {
    "restart": Restart(max=0),
    "notify": None,
    "collect": (),
    "checkpoints": None,
    "elastic": None,
    "spares": 0,
    "tensorboard": None,
}
"""What concerns a run as a whole, and not its speed."""


class ScaledRun(NamedTuple):
    """A run that was measured; times are in seconds.

    `start_up` is the time to the first step, `examples` the number in a step, null if unknown. `is_synchronous`: a
    step is one of all workers, not of one (parameter servers). `speed_up` is relative to the run with the fewest
    workers, in examples per second, or else in steps per second; `efficiency` is the speed-up per worker, null if it
    is not known how the examples of a step change with the workers.
    """

    workers: int
    run: str
    steps: float
    seconds: float
    steps_per_second: float
    examples: float | None
    examples_per_second: float | None
    start_up: float
    is_synchronous: bool
    speed_up: float = 1.0
    efficiency: float | None = 1.0


class Scale(TypedDict):
    """How a training scales; `problem` says why it was not measured to the end."""

    name: str
    runs: Sequence[ScaledRun]
    problem: str | None


def compare(run: ScaledRun, base: ScaledRun) -> ScaledRun:
    """Return a run with its speed relative to that of the run with the fewest workers.

    A step of parameter servers is one of a single worker, so the steps of all workers are counted there.
    """
    speed_up, is_known = run.steps_per_second / base.steps_per_second, not run.is_synchronous
    if run.is_synchronous and run.examples is not None and base.examples is not None:
        speed_up, is_known = speed_up * run.examples / base.examples, True
    return run._replace(speed_up=speed_up, efficiency=speed_up * base.workers / run.workers if is_known else None)


def text_of(runs: Sequence[ScaledRun]) -> str:
    """Return a table with a line per run."""
    return aligned([_COLUMNS, *map(_row, runs)])


def _row(run: ScaledRun) -> tuple[str, ...]:
    return (
        str(run.workers),
        significant(run.steps_per_second),
        _UNKNOWN if run.examples_per_second is None else significant(run.examples_per_second),
        f"{run.speed_up:.2f}",
        _UNKNOWN if run.efficiency is None else f"{run.efficiency:.0%}",
        duration_words(run.start_up),
    )


def with_workers(source: str, spec: Spec, count: int, local_names: Collection[str]) -> Spec:
    """Return the spec with ``count`` workers, including a chief that trains.

    They are its first ones, and more of them only if all are on this machine, which has ``local_names``. The job's name
    gets their number; restarts, a deadline, copies of files and the like are left out. ``source`` is for messages.

    Raises:
        SpecError: there are not that many workers, or none.
    """
    if "worker" not in spec.cluster and not _chiefs(spec):
        message = "has no worker, whose number could change"
        raise SpecError(source, [Problem("error", "cluster", message, 'write for example "worker": 2')])
    workers, wanted = spec.cluster.get("worker", ()), count - _chiefs(spec)
    if wanted > len(workers):
        trainers = (*spec.cluster["chief"], *workers) if _chiefs(spec) else workers
        if not all(address.host in local_names for address in trainers):
            message = f"has {len(trainers)} of the {count} workers of --workers"
            hint = f"measure at most {len(trainers)}, or name more hosts; only local workers can be added"
            raise SpecError(source, [Problem("error", "cluster.worker", message, hint)])
        host = trainers[-1].host if trainers else LOCALHOST
        workers = (*workers, *[Address(host, None)] * (wanted - len(workers)))
    cluster = {role: each for role, each in {**spec.cluster, "worker": workers[:wanted]}.items() if each}
    used = {address.host for addresses in cluster.values() for address in addresses} | {EVERY_HOST}
    used |= {sidecar.host for sidecar in spec.sidecars.values()}
    return spec.model_copy(
        update={
            **_LEFT_OUT,
            "name": f"{spec.name[:50]}-{count}w",
            "cluster": cluster,
            "hosts": {name: host for name, host in spec.hosts.items() if name in used},
            "timeouts": spec.timeouts.model_copy(update={"deadline": None}),
        }
    )


def _chiefs(spec: Spec) -> int:
    """Return the number of chiefs that train: all, unless there are parameter servers."""
    return 0 if spec.effective_strategy() == "parameter_server" else len(spec.cluster.get("chief", ()))

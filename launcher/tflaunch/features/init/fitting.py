"""Fit a first spec to its program: which tasks it needs, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tflaunch.cli.arguments.cluster import ClusterOptions
from tflaunch.features.programs.program_reader import MIRRORED, MULTI_WORKER, PARAMETER_SERVER, Program, Use

WORKERS = 2
"""A usual number of workers on this machine."""

_IN_ONE_PROCESS = {
    MIRRORED: "mirrored",
    "TPUStrategy": "tpu",
    "CentralStorageStrategy": None,
    "OneDeviceStrategy": None,
}
"""Strategies that need one task, and their names in a spec."""

_ESTIMATOR = "tf.estimator"


def fit_roles(roles: ClusterOptions, program: Program | None) -> ClusterOptions:
    """Return the requested tasks, and those that the program's strategy needs."""
    name = _strategy(program)
    ps = roles.ps or int(name == PARAMETER_SERVER)
    usual = 1 if name in _IN_ONE_PROCESS else WORKERS
    workers = usual if roles.workers is None and roles.hosts is None else roles.workers
    is_asked = program is not None and program.asks_for_chief and not program.others and usual > 1
    return roles._replace(workers=workers, ps=ps, chief=roles.chief or ps > 0 or is_asked)


def strategy_field(program: Program | None, cluster: dict[str, Any]) -> str | None:
    """Return the `strategy` of a spec, None for that which its roles imply."""
    tasks = sum(each if isinstance(each, int) else len(each) for each in cluster.values())
    return _IN_ONE_PROCESS.get(_strategy(program)) if tasks == 1 else None


def starts_no_server(program: Program | None) -> bool:
    """Return whether the program starts no server for worker and ps."""
    return program is not None and not program.problem and not program.has_server


def first_steps(program: Program | None) -> list[str]:
    """Return the lines by which a program that trains alone trains in all workers."""
    if program is None or program.alone is None:
        return []
    return [
        f"for one model, add to {program.file.name} (documents: From a Keras script to a cluster):",
        "  strategy = tf.distribute.MultiWorkerMirroredStrategy()  # first of all",
        "  with strategy.scope():                            # around model and compile",
        "  batch_size = 64 * strategy.num_replicas_in_sync   # the batch of all workers",
        "  model.save(path)   # in all workers; each but the first to a path of its own",
    ]


def describe_strategy(program: Program) -> str:
    """Return the program's strategy and its consequence, "" without one."""
    use, name = _made(program), program.file.name
    if program.problem:
        return f"{name} cannot be read ({program.problem}), so its strategy is not known"
    if _ESTIMATOR in program.others:
        return f"{name} uses {_ESTIMATOR}, which TensorFlow 2.16 has removed"
    if program.others:
        return f"{name} uses {', '.join(sorted(program.others))}, so its cluster may not be that of TF_CONFIG"
    if use is None:
        known = " and ".join(sorted(program.mentioned))
        return f"{name} knows {known}; for parameter servers, give --ps 1" if known else ""
    seen = f"{use.place(Path())} makes a {use.name}"
    if use.name == PARAMETER_SERVER:
        servers = ", whose server tflaunch runs, as the program starts none" * starts_no_server(program)
        return f"{seen}, so the workers get a chief and a ps beside them{servers}"
    if use.name != MULTI_WORKER:
        return f"{seen}, so one task is enough"
    roles = "a chief, for which it asks, and workers" if program.asks_for_chief else "workers only"
    return f"{seen}, so there are {roles}"


def _made(program: Program | None) -> Use | None:
    return None if program is None else program.only_strategy()


def _strategy(program: Program | None) -> str:
    use = _made(program)
    return "" if use is None else use.name

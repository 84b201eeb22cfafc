"""What is wrong with `checkpoints` in a spec."""

from collections.abc import Iterator
from pathlib import Path

from tflaunch.clusterspec import templates
from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.plan import placeholders


def find_problems(spec: Spec, directory: Path) -> Iterator[Problem]:
    """Yield what keeps its field from doing what it is for."""
    if spec.checkpoints is None:
        return
    place = spec.checkpoints.dir
    parts = [part for part in place.split("/") if part not in ("", ".")]
    if ".." in parts or not parts or parts == ["~"]:
        message = f"{place!r} is not a directory of checkpoints only"
        yield Problem.error("checkpoints.dir", message, 'write for example "state", and have the program write there')
    for field in ("copies", "keep"):
        if not getattr(spec.checkpoints, field):
            yield Problem.error(f"checkpoints.{field}", "0 would keep no checkpoint", "write at least 1")
    for name in placeholders.names(place):
        if name != templates.RUN:
            message = f"{{{name}}} differs among tasks or attempts, and they share their checkpoints"
            yield Problem.error("checkpoints.dir", message, "use {run}, or no placeholder")
    if not {"chief", "worker"} & (spec.cluster.keys() | spec.discover.keys()):
        message = "has no effect: the cluster has neither a chief nor a worker that could write them"
        yield Problem.warning("checkpoints", message, "remove it")
    hosts = {address.host for addresses in spec.cluster.values() for address in addresses}
    is_chosen = "copies" in spec.checkpoints.model_fields_set and not spec.discover and spec.pool is None
    if is_chosen and spec.checkpoints.copies > max(len(hosts), 1):
        message = f"there are {len(hosts)} hosts, so {spec.checkpoints.copies} cannot have a copy"
        hint = f"write {len(hosts)}: the run's directory has one beside them"
        yield Problem.warning("checkpoints.copies", message, hint)

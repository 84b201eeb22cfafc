"""Measure how long a training takes until its first step, and until the next one after a worker was killed."""

import os
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from parts import Bench, Part, own_directory
from peers import TFLAUNCH
from process_tree import cpu_seconds, memory, workshop
from rounds import Found, Sample, in_turn, measured, remarks, table

from training import COORDINATED, ENVIRONMENTS, NO_PRELOAD, ONE_STEP, PACKAGES, SCRIPT, VICTIM, WAYS, Workers

CLUSTERS: dict[str, int | Mapping[str, int]] = {
    "2 workers": 2,
    "4 workers": 4,
    "8 workers": 8,
    "chief, 2 workers, ps": {"chief": 1, "worker": 2, "ps": 1},
}
KILLED = "4 workers"  # one worker is killed in this run
FIGURES = {"seconds": "s", "cpu": "CPU s", "memory": "MB"}
TEXT = f"""\
One unchanged program on this machine, from the start of the command until each of N workers of
MultiWorkerMirroredStrategy has trained its first step, or the chief of ParameterServerStrategy has. The other
launchers get TF_CONFIG as their user would write it. CPU and memory (PSS: what processes share counts once) are those
of all processes at that moment: the tasks, the process that imports for them, agent and launcher. The ratio is to the
shell script. The typical environment also has {", ".join(PACKAGES)}: Keras imports all of them, tf_keras, which
`tflaunch up` selects, pandas and pyarrow.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all ways of starting with each cluster."""
    found = {}
    for environment in ENVIRONMENTS:
        _one("2 workers", environment, bench.peers, SCRIPT)  # warm-up
        for cluster in CLUSTERS:
            what = f"first step, {environment}, {cluster}"
            rounds = in_turn(what, WAYS, bench.repeats, partial(_one, cluster, environment, bench.peers))
            found[f"{environment}: {cluster}"] = Found(rounds, {})
    return found


def _one(cluster: str, environment: str, launchers: Path, way: str) -> Sample:
    what = ONE_STEP if isinstance(CLUSTERS[cluster], int) else COORDINATED
    with workshop("first-step") as (tree, scratch):
        workers = Workers(tree, own_directory(scratch), way, CLUSTERS[cluster], what, environment, launchers)
        seconds = workers.wait_for() - workers.started.begun
        living = tree.living()
        cpu = cpu_seconds(living, with_ended_children=True)
        sample = {"seconds": seconds, "cpu": cpu, "memory": memory(living)}
        if cluster == KILLED and way in {TFLAUNCH, NO_PRELOAD}:
            old = frozenset(workers.by_index.values())
            killed = time.monotonic()
            os.kill(workers.by_index[VICTIM], signal.SIGKILL)
            sample["again"] = workers.wait_for(but=old) - killed
        return sample


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    tables = []
    for environment in ENVIRONMENTS:
        of_clusters = {cluster: found[f"{environment}: {cluster}"] for cluster in CLUSTERS}
        for name, unit in FIGURES.items():
            cells = (cell for cluster in of_clusters for cell in (f"{cluster}, {unit}", "ratio"))
            rows = [[way, *measured(of_clusters.values(), way, SCRIPT, name)] for way in WAYS]
            tables += [*table([f"{environment} environment, until the first step", *cells], rows), ""]
    killed = [found[f"{environment}: {KILLED}"] for environment in ENVIRONMENTS]
    again = [[way, *measured(killed, way, NO_PRELOAD, "again")] for way in (NO_PRELOAD, TFLAUNCH)]
    return [
        *tables,
        f"One of {KILLED} that have trained is killed (SIGKILL), until all of them train again:",
        "",
        *table(["restarted by", *(cell for name in ENVIRONMENTS for cell in (f"{name}, s", "ratio"))], again),
        "",
        *remarks(found),
    ]


PART = Part("First step", TEXT, measure, section, has_peers=True)

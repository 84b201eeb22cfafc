"""Measure what a fenced or private network costs mirrored workers: sums over two workers, on one host and on two.

The two hosts are network namespaces of this machine, joined by virtual cables (tests/support/netns_hosts.py), so both
hosts, both workers and both relays share its cores. That needs root.
"""

import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import peers
import psutil
from parts import Bench, Part, finish, own_directory
from process_tree import workshop
from rounds import Found, Sample, figure, in_turn, median, ratio, remarks, table

LIMIT = 300.0
LOOK_EVERY = 0.1  # seconds
WAYS = ("open", "fenced", "private")
SIZES = {1: 30, 16: 8, 128: 3}
"""Megabytes to the number of sums."""
ONE_HOST, TWO_HOSTS = "one host", "two hosts"
TEXT = """\
Two mirrored workers sum up tensors of 1, 16 and 128 MB, and take the median of each worker's times; the last
columns are the CPU seconds of agents and relays in a whole run, in user mode (TLS, Python) and in the kernel (copying).
On two hosts
workers reach each other through two relays with TLS; both hosts are on this machine, so that the relays take cores
from the workers.
"""
PROGRAM = """
import json
import statistics
import sys
import time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def total(data):
    return strategy.reduce("SUM", strategy.run(lambda: data), axis=None)
found = {}
for size, count in json.loads(sys.argv[1]).items():
    data = tf.ones((int(size) * 1024 * 1024 // 4,))
    times = []
    for _ in range(1 + count):
        begun = time.monotonic()
        assert total(data)[0] == 2
        times.append(time.monotonic() - begun)
    found[size] = statistics.median(times[1:])
print("found", json.dumps(found), flush=True)
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all networks on one host, and the open and the private one on two."""
    found = {ONE_HOST: Found(in_turn(f"network, {ONE_HOST}", WAYS, bench.repeats, partial(_one, None)), {})}
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
    from support.netns_hosts import Bed  # only with root
    from support.sshd import Keyring

    with workshop("network") as (_, scratch):
        keys = scratch / "keys"
        keys.mkdir()
        with Bed(scratch / "bed", Keyring(keys), 2) as bed:
            ways = [way for way in WAYS if way != "fenced"]
            found[TWO_HOSTS] = Found(in_turn(f"network, {TWO_HOSTS}", ways, bench.repeats, partial(_one, bed)), {})
    return found


def _one(bed: Any, way: str) -> Sample:
    """Train once, on this machine or on two hosts; return seconds per sum, and the CPU time of the relays."""
    with workshop("network") as (_, scratch):
        directory = own_directory(scratch)
        (directory / "train.py").write_text(PROGRAM)
        hosts = ["localhost", "localhost"] if bed is None else [bed.name(i) for i in bed.hosts]
        spec = {
            "cluster": {"worker": hosts},
            "hosts": {} if bed is None else {name: {"python": sys.executable} for name in hosts},
            "command": [sys.executable, str(directory / "train.py"), json.dumps(SIZES)],
            "env": {"TF_CPP_MIN_LOG_LEVEL": "2"},
            "network": way,
        }
        (directory / "job.json").write_text(json.dumps(spec))
        env = {**os.environ, "TFLAUNCH_HOME": str(directory / "home")}
        if bed is not None:
            env["HOME"] = str(bed.client_home)
        argv = [*([] if bed is None else bed.run_prefix), peers.tflaunch(), "up", "job.json"]
        with (directory / "output").open("wb") as output:
            started = subprocess.Popen(argv, cwd=directory, env=env, stdout=output, stderr=output)
        relays = _Relays(started)
        finish(started, LIMIT, directory / "output")
        lines = [
            line for log in directory.glob("home/runs/*/logs/worker-*.log") for line in log.read_text().splitlines()
        ]
        seen = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("found ")]
        times = {f"{size} MB": max(float(one[str(size)]) for one in seen) for size in SIZES}
        return {**times, **relays.cpu()}


class _Relays:
    """Notes the CPU time of agents, including the relays that they fork, while a run lasts."""

    def __init__(self, run: subprocess.Popen[bytes]) -> None:
        self._run = run
        self._seen: dict[int, tuple[float, float]] = {}
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        begun = psutil.Process(self._run.pid).create_time()
        while self._run.poll() is None:
            for process in psutil.process_iter(["cmdline", "create_time", "cpu_times"]):
                about = process.info
                is_agent = any(word.startswith("tflaunch-agent") for word in about["cmdline"] or ())
                if is_agent and about["create_time"] >= begun:
                    self._seen[process.pid] = about["cpu_times"].user, about["cpu_times"].system
            time.sleep(LOOK_EVERY)

    def cpu(self) -> Sample:
        """Return the seconds in user mode and in the kernel."""
        self._thread.join()
        user, system = (sum(times[part] for times in self._seen.values()) for part in (0, 1))
        return {"user": user, "system": system}


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    head = [
        "network",
        *(f"{size} MB: {what}" for size in SIZES for what in ("ms", "ratio")),
        "relays: user s",
        "kernel s",
    ]
    lines = []
    for where, one in found.items():
        rows = []
        for way in one.rounds:
            cells = []
            for size in SIZES:
                seconds = median(one, way, f"{size} MB")
                cells += [figure(seconds and 1000 * seconds), figure(ratio(one, way, "open", f"{size} MB"))]
            rows.append(
                [f"{way}, {where}", *cells, figure(median(one, way, "user")), figure(median(one, way, "system"))]
            )
        lines += [*table(head, rows), ""]
    return [*lines, *remarks(found)]


PART = Part("Networks", TEXT, measure, section)

"""Measure what a fenced or private network costs mirrored workers: sums over two workers on this machine."""

import json
import os
import subprocess
import sys

import peers
from parts import Bench, Part, finish, own_directory
from process_tree import workshop
from rounds import Found, Sample, figure, in_turn, median, ratio, remarks, table

LIMIT = 300.0
WAYS = ("open", "fenced", "private")
SIZES = {1: 30, 16: 8, 128: 3}
"""Megabytes to the number of sums."""
ONE_HOST = "one host"
TEXT = """\
Two mirrored workers on one host sum up tensors of 1, 16 and 128 MB, and take the median of each worker's times.
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
    """Measure all networks on one host."""
    return {ONE_HOST: Found(in_turn(f"network, {ONE_HOST}", WAYS, bench.repeats, _train), {})}


def _train(way: str) -> Sample:
    """Train once; return seconds per sum."""
    with workshop("network") as (_, scratch):
        directory = own_directory(scratch)
        (directory / "train.py").write_text(PROGRAM)
        spec = {
            "cluster": {"worker": 2},
            "command": [sys.executable, str(directory / "train.py"), json.dumps(SIZES)],
            "env": {"TF_CPP_MIN_LOG_LEVEL": "2"},
            "network": way,
        }
        (directory / "job.json").write_text(json.dumps(spec))
        env = {**os.environ, "TFLAUNCH_HOME": str(directory / "home")}
        with (directory / "output").open("wb") as output:
            argv = [peers.tflaunch(), "up", "job.json"]
            started = subprocess.Popen(argv, cwd=directory, env=env, stdout=output, stderr=output)
        finish(started, LIMIT, directory / "output")
        lines = [
            line for log in directory.glob("home/runs/*/logs/worker-*.log") for line in log.read_text().splitlines()
        ]
        seen = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("found ")]
        return {f"{size} MB": max(float(one[str(size)]) for one in seen) for size in SIZES}


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    head = ["network", *(f"{size} MB: {what}" for size in SIZES for what in ("ms", "ratio"))]
    lines = []
    for where, one in found.items():
        rows = []
        for way in one.rounds:
            cells = []
            for size in SIZES:
                seconds = median(one, way, f"{size} MB")
                cells += [figure(seconds and 1000 * seconds), figure(ratio(one, way, "open", f"{size} MB"))]
            rows.append([f"{way}, {where}", *cells])
        lines += [*table(head, rows), ""]
    return [*lines, *remarks(found)]


PART = Part("Networks", TEXT, measure, section)

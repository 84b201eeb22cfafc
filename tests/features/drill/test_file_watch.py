"""What happened to the files of a directory, and who did it."""

import os
import subprocess
import sys
from pathlib import Path

from tflaunch.features.drill.file_watch import FileWatch
from tflaunch.features.drill.records import WRITTEN


def test_a_task_that_reads_a_file_does_not_write_it(tmp_path: Path) -> None:
    path = tmp_path / "ckpt/state.pkl"
    path.parent.mkdir()
    path.touch()
    reads = [sys.executable, "-c", "import sys; f = open(sys.argv[1]); print(flush=True); input()", str(path)]
    with subprocess.Popen(reads, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        watch = FileWatch(tmp_path, lambda: {"worker:0": os.getpid(), "worker:1": reader.pid})
        with path.open("wb", buffering=0) as writer:
            writer.write(b"1")
            watch.close()
        reader.communicate(b"\n")
    events = {(event.kind, event.path, event.tasks) for event in watch.events}
    assert (WRITTEN, "ckpt/state.pkl", frozenset({"worker:0"})) in events
    assert not any("worker:1" in event.tasks for event in watch.events)

"""Files come home from the working directories when a job ends, and later by `tflaunch fetch`."""

from __future__ import annotations

import pytest

from support.launch import Launch

pytestmark = pytest.mark.cli

WRITE = "mkdir -p outputs; echo {task.name} of {run} >outputs/{task.index}; echo more >notes; ln -sf notes outputs/link"


def test_outputs_come_home(launch: Launch) -> None:
    """The summary says where they are; what is asked for later comes then, and only what has changed."""
    spec = launch.spec(
        "mine.json", cluster={"worker": 2}, strategy="none", command=["sh", "-c", WRITE], collect=["outputs/**"]
    )
    ended = launch.up(spec)
    assert ended.returncode == 0, ended.stderr
    place = launch.run_directory() / "collected" / "worker-0"
    size = sum(path.stat().st_size for path in (place / "outputs").iterdir())
    said = f"2 files ({size} bytes) of worker:0, worker:1 on localhost: {place} (left out: 1 symbolic link"
    assert said in ended.stderr
    assert (place / "outputs" / "1").read_text() == f"worker:1 of {launch.run_directory().name}\n"
    assert not (place / "notes").exists()

    (place / "outputs" / "1").unlink()
    kept = (place / "outputs" / "0").stat()
    fetched = launch.run("fetch", "mine", "outputs", "notes")
    assert fetched.returncode == 0, fetched.stderr
    assert "3 files" in fetched.stderr
    assert (place / "notes").read_text() == "more\n"
    assert (place / "outputs" / "1").exists()
    assert (place / "outputs" / "0").stat().st_mtime_ns == kept.st_mtime_ns
    assert not launch.survivors()


def test_a_failed_job_brings_its_files_too(launch: Launch) -> None:
    """They may say why it failed."""
    spec = launch.spec(
        cluster={"worker": 1},
        strategy="none",
        command=["sh", "-c", "echo why >reason; exit 3"],
        collect=["reason"],
    )
    ended = launch.up(spec)
    assert ended.returncode == 3, ended.stderr
    assert (launch.run_directory() / "collected" / "worker-0" / "reason").read_text() == "why\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "has no `collect`: name a PATH"),
        (("../secret",), "'../secret' is not a path below the working directory; write it relative"),
    ],
)
def test_what_cannot_be_fetched(launch: Launch, words: tuple[str, ...], said: str) -> None:
    """One sentence with the remedy."""
    launch.up(launch.spec("mine.json", cluster={"worker": 1}, strategy="none", command=["true"]))
    ended = launch.run("fetch", "mine", *words)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1

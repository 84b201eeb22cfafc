"""Files come home from the working directories when a job ends, and later by `tflaunch fetch`."""

import functools

import pytest

from support.launch import Launch, wait_for_end
from support.waiting import wait_until

WRITE = "mkdir -p outputs; echo {task.name} of {run} >outputs/{task.index}; echo more >notes; ln -sf notes outputs/link"


def test_outputs_come_home(launch: Launch) -> None:
    spec = launch.shell(WRITE, name="mine.json", strategy="none", collect=["outputs/**"])
    ended = launch.succeed("up", spec)
    place = launch.run_directory() / "collected" / "worker-0"
    size = sum(path.stat().st_size for path in (place / "outputs").iterdir())
    said = f"2 files ({size}B) of worker:0, worker:1 on localhost: {place} (left out: 1 symbolic link"
    assert said in ended.stderr
    assert (place / "outputs" / "1").read_text() == f"worker:1 of {launch.run_directory().name}\n"
    assert not (place / "notes").exists()

    (place / "outputs" / "1").unlink()
    kept = (place / "outputs" / "0").stat()
    fetched = launch.succeed("fetch", "outputs/", "notes")
    assert "3 files" in fetched.stderr
    assert (place / "notes").read_text() == "more\n"
    assert (place / "outputs" / "1").exists()
    assert (place / "outputs" / "0").stat().st_mtime_ns == kept.st_mtime_ns
    assert not launch.survivors()


@pytest.mark.needs("root")
def test_what_comes_home_belongs_to_who_fetches_it(launch: Launch) -> None:
    """Files of a container or of another user would keep the run from being read and removed."""
    make = "mkdir -p out/in; echo 1 >out/in/a; echo 2 >b; chmod 4444 out/in/a; chmod 555 out/in; chown -R 12345 out b ."
    directory = launch.directory / "theirs"
    directory.mkdir()
    fields = {"strategy": "none", "cluster": {"worker": 1}, "workdir": str(directory), "collect": ["out"]}
    launch.succeed("up", launch.spec("mine.json", command=["sh", "-c", make], **fields))
    launch.succeed("fetch", "mine", "b")
    assert (directory / "b").stat().st_uid == 12345
    found = [path for path in launch.home.rglob("*") if path.name in {"a", "b", "in", "worker-0"}]
    assert len(found) == 4
    assert {path.lstat().st_uid for path in launch.home.rglob("*")} == {0}
    assert not any(path.stat().st_mode & 0o7077 for path in found)
    pruned = launch.run("prune", "--keep", "0", "--older-than", "0s", "--yes")
    assert not list((launch.home / "runs").glob("mine*")), pruned


def test_what_cannot_be_fetched(launch: Launch) -> None:
    spec = launch.spec("mine.json", cluster={"worker": 1}, strategy="none", command=["true"])
    ended = launch.up(spec, "--collect-every", "0")
    assert (ended.returncode, "'0' is not a valid duration" in ended.stderr) == (2, True), ended.stderr
    assert not (launch.home / "runs").exists()
    launch.up(spec)
    for words, said in (
        ((), "has no `collect`: name a PATH"),
        (("../secret",), "'../secret' is not a path below the working directory; write it relative"),
    ):
        ended = launch.run("fetch", "mine", *words)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert said in ended.stderr


def test_outputs_come_home_while_the_job_runs(launch: Launch) -> None:
    """And those of a job that fails: they may say why."""
    script = "mkdir -p outputs; echo one >outputs/a; while [ ! -e seen ]; do sleep 0.05; done; echo two >outputs/a"
    script += "; while [ ! -e enough ]; do sleep 0.05; done; echo three >outputs/b; exit 3"
    spec = launch.spec(cluster={"worker": 1}, strategy="none", command=["sh", "-c", script], collect=["outputs"])
    running = launch.start("up", spec, "--collect-every", "0.2s")

    def has_come(text: str) -> bool:
        return [path.read_text() for path in launch.home.glob("runs/*/collected/worker-0/outputs/a")] == [text]

    for text, then in (("one\n", "seen"), ("two\n", "enough")):
        wait_until(functools.partial(has_come, text), running)
        (launch.directory / then).touch()
    _, err = wait_for_end(running, 3)
    place = launch.run_directory() / "collected" / "worker-0" / "outputs"
    assert {path.name: path.read_text() for path in place.iterdir()} == {"a": "two\n", "b": "three\n"}
    assert "2 files (10B) of worker:0" in err

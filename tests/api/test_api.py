"""The Python API: `tflaunch.run`, `start` and `attach`, in programs."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import tflaunch
import tflaunch.api.spec
from support.api_runs import take_until
from support.launch import Launch
from support.processes import command_of
from support.waiting import PATIENCE, wait_until
from tflaunch.clusterspec import model
from tflaunch.clusterspec.model import written_fields

SLEEP = "echo ready; exec sleep 9999"


def spec(script: str, workers: int = 2, **fields: Any) -> tflaunch.Spec:
    command = ["sh", "-c", script]
    return tflaunch.Spec(cluster={"worker": workers}, strategy="none", command=command, restart={"max": 0}, **fields)


@pytest.fixture
def launch(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """An environment that this process has, too."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(launch.home))
    monkeypatch.chdir(launch.directory)
    return launch


@pytest.mark.usefixtures("launch")
class TestRun:
    def test_a_run_that_succeeds(self, capfd: pytest.CaptureFixture[str]) -> None:
        report = """echo '{"step": 12, "epoch": 2, "metrics": {"loss": 0.5}}' >"$TFLAUNCH_PROGRESS"; """
        result = tflaunch.run(spec(report + 'echo "I am $TFLAUNCH_TASK"'))
        assert (result.state, result.exit_code, result.culprit) == ("succeeded", 0, None)
        assert result.summary.startswith("done: 2 tasks in")
        assert {name: task.log for name, task in result.tasks.items()} == {
            "worker:0": "I am worker:0\n",
            "worker:1": "I am worker:1\n",
        }
        task = result.tasks["worker:0"]
        assert (task.step, task.epoch, dict(task.metrics)) == (12, 2, {"loss": 0.5})
        assert result.check() is result
        assert capfd.readouterr() == ("", "")

    def test_a_run_that_fails(self) -> None:
        script = '[ "$TFLAUNCH_TASK" = worker:0 ] && exec sleep 9999; echo "ValueError: no" >&2; exit 7'
        result = tflaunch.run(spec(script))
        assert (result.state, result.exit_code, result.culprit) == ("failed", 7, "worker:1")
        assert "ValueError: no" in result.summary
        assert result.tasks["worker:1"].exit_code == 7
        assert (result.tasks["worker:0"].exit_code, result.tasks["worker:0"].signal) == (None, signal.SIGTERM)
        with pytest.raises(tflaunch.JobFailed) as failed:
            result.check()
        assert (failed.value.result, failed.value.exit_code) == (result, 7)
        with pytest.raises(tflaunch.JobFailed, match="worker:1 exited with code 7"):
            tflaunch.run(spec(script), check=True)

    def test_a_time_limit(self) -> None:
        result = tflaunch.run(spec(SLEEP), timeout=1)
        assert (result.exit_code, result.culprit) == (124, "deadline")

    def test_a_mapping_relative_paths_and_the_output(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "here").mkdir()
        fields = {"cluster": {"worker": 1}, "command": ["pwd"], "name": "small", "strategy": "none", "workdir": "here"}
        result = tflaunch.run(fields, directory=tmp_path, show=True)
        assert (result.exit_code, result.run.rsplit("-", 3)[0]) == (0, "small")
        shown = capfd.readouterr()
        assert f"{tmp_path}/here" in shown.out
        assert "tflaunch: done: 1 task" in shown.err


def test_a_file(launch: Launch) -> None:
    path = launch.directory / "small.toml"
    path.write_text('command = "true"\n[cluster]\nworker = 1\n')
    for given in (path, str(path)):
        assert tflaunch.run(given).run.startswith("small-")


@pytest.mark.usefixtures("launch")
class TestMistakes:
    @pytest.mark.parametrize(
        "wrong",
        [{"cluster": {"worker": 1}}, {"cluster": {"worker": 1}, "command": "true", "strategy": "no"}, "none.json"],
    )
    def test_a_spec_that_cannot_run(self, wrong: tflaunch.api.spec.SpecLike) -> None:
        with pytest.raises(tflaunch.SpecError):
            tflaunch.start(wrong)
        assert not Path(os.environ["TFLAUNCH_HOME"], "runs").exists()

    def test_what_is_not_data(self) -> None:
        with pytest.raises(tflaunch.TflaunchError, match="cannot be written as JSON"):
            tflaunch.start({"cluster": {"worker": 1}, "command": object()})

    def test_a_supervisor_that_cannot_begin(self, launch: Launch) -> None:
        outside = {"hosts": {"far": {"ssh": "127.0.0.1"}}, "cluster": {"worker": ["far"]}}
        wrong = {**outside, "command": "true", "strategy": "none", "sync": {"paths": ["missing"]}}
        with pytest.raises(tflaunch.TflaunchError, match="missing"):
            tflaunch.start(wrong)
        assert list((launch.home / "runs").iterdir()) == []

    def test_no_such_run(self) -> None:
        with pytest.raises(tflaunch.TflaunchError, match="there is no run 'mnist'"):
            tflaunch.attach("mnist")

    def test_no_such_task(self) -> None:
        with tflaunch.start(spec(SLEEP, name="mine")) as run, tflaunch.attach("mine") as same:
            assert same.name == run.name
            with pytest.raises(tflaunch.TflaunchError, match="ps"):
                same.restart("ps:3")


@pytest.mark.usefixtures("launch")
class TestALiveRun:
    def test_its_events_and_its_end(self) -> None:
        with tflaunch.start(spec(SLEEP)) as run:
            with pytest.raises(TimeoutError, match=f"{run.name} has not ended within 0.1 s"):
                run.wait(0.1)
            started = [event.data["task"] for event in take_until(run, "task_started", 2)]
            status = run.status()
        assert sorted(started) == ["worker:0", "worker:1"]
        assert (status.state, {task.state for task in status.tasks}) == ("running", {"running"})
        assert run.wait().state == "stopped"
        kinds = [event.kind for event in run.events()]
        assert (kinds[0], kinds[-1]) == ("plan", "ended")

    def test_its_output(self) -> None:
        with tflaunch.start(spec("echo one; printf 'two\\nrest'")) as run:
            lines = [(line.task, line.text) for line in run.logs("worker:1", follow=True)]
        assert lines == [("worker:1", "one"), ("worker:1", "two"), ("worker:1", "rest")]
        assert len(list(run.logs())) == 6

    def test_a_restart_and_a_signal(self) -> None:
        with tflaunch.start(spec(SLEEP)) as run:
            list(take_until(run, "task_started", 2))
            run.restart("worker")
            list(take_until(run, "task_started", 4))
            run.signal(signal.SIGKILL, "worker:1")
            result = run.wait()
        assert {task.attempt for task in result.tasks.values()} == {1}
        assert (result.culprit, result.exit_code) == ("worker:1", 128 + signal.SIGKILL)

    def test_an_error_in_the_block_stops_it(self) -> None:
        with pytest.raises(ZeroDivisionError), tflaunch.start(spec(SLEEP)) as run:
            raise ZeroDivisionError
        assert run.wait().state == "stopped"

    def test_a_killed_supervisor(self, launch: Launch) -> None:
        run = tflaunch.start(spec(SLEEP))
        list(take_until(run, "task_started", 2))
        (supervisor,) = [process for process in launch.survivors() if command_of(process)[-1:] == [run.name]]
        supervisor.kill()
        with pytest.raises(tflaunch.TflaunchError, match="was killed, and its tasks with it"):
            run.wait()
        assert not psutil.wait_procs(launch.survivors(), timeout=PATIENCE)[1]

    def test_detached(self, launch: Launch) -> None:
        program = f"import tflaunch; print(tflaunch.start({spec(SLEEP).as_data()!r}, detach=True).name)"
        name = subprocess.check_output([sys.executable, "-c", program], env=launch.env, text=True).strip()
        run = tflaunch.attach(name)
        list(take_until(run, "task_started", 2))
        assert run.stop().state == "stopped"


@pytest.mark.usefixtures("launch")
class TestAsyncio:
    def test_several_runs_at_once(self) -> None:
        async def both() -> list[tflaunch.Result]:
            async with tflaunch.start(spec("exit 4")) as run:
                runs = (tflaunch.run_async(spec(script)) for script in ("exit 3", "true"))
                return [*await asyncio.gather(*runs), await run]

        assert [result.exit_code for result in asyncio.run(both())] == [3, 0, 4]

    def test_a_cancelled_task_stops_its_run(self, launch: Launch) -> None:
        async def cancelled() -> None:
            running = asyncio.create_task(tflaunch.run_async(spec(SLEEP)))
            await asyncio.to_thread(wait_until, lambda: list(launch.home.glob("runs/*/control.sock")))
            running.cancel()
            await running

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())
        assert tflaunch.attach().wait().state == "stopped"


class TestTheProgramEnds:
    """What a program has started does not outlive it."""

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
    def test_by_a_signal(self, launch: Launch, how: signal.Signals) -> None:
        program = f"import tflaunch; tflaunch.run({spec(SLEEP).as_data()!r})"
        process = subprocess.Popen([sys.executable, "-c", program], env=launch.env, stderr=subprocess.PIPE, text=True)
        run = the_run(launch)
        list(take_until(run, "task_started", 2))
        process.send_signal(how)
        _, said = process.communicate(timeout=PATIENCE)
        assert run.wait(PATIENCE).state == "stopped"
        assert launch.survivors() == []
        assert ("KeyboardInterrupt" in said) == (how == signal.SIGINT)

    def test_by_its_last_line(self, launch: Launch) -> None:
        program = f"import tflaunch; run = tflaunch.start({spec(SLEEP).as_data()!r})"
        subprocess.run([sys.executable, "-W", "error", "-c", program], env=launch.env, check=True)
        assert the_run(launch).wait(PATIENCE).state == "stopped"
        assert launch.survivors() == []


def test_type_checkers_know_every_field() -> None:
    assert set(tflaunch.api.spec.SpecFields.__annotations__) == set(written_fields(model.Spec))


def the_run(launch: Launch) -> tflaunch.Run:
    """Wait for the only run to begin."""
    wait_until(lambda: list(launch.home.glob("runs/*/control.sock")))
    return tflaunch.attach()

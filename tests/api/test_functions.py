"""Functions as tasks: `tflaunch.run(function)`."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

import tflaunch
from support.api_runs import take_until
from support.launch import PATIENCE, Launch
from support.processes import all_processes, command_of
from support.specs import REPOSITORY
from tflaunch.api.functions import Values
from tflaunch.features.preload import warm_servers
from tflaunch_worker import function as caller

ALONE: dict[str, Any] = {"cluster": {"worker": 1}, "strategy": "none", "restart": {"max": 0}, "timeout": PATIENCE}
PAIR: dict[str, Any] = {**ALONE, "cluster": {"worker": 2}}


class OwnError(Exception):
    """An exception whose class the tasks cannot import."""


class Bomb(Exception):
    """What creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        super().__init__("boom")
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


class Unpicklable:
    """What no pickler takes."""

    def __reduce__(self) -> Any:
        raise TypeError("a live connection")


def own_name(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return os.environ["TFLAUNCH_TASK"], args, kwargs


def wait_or_fail() -> None:
    """Fail in worker:1; the others wait."""
    if os.environ["TFLAUNCH_TASK"] == "worker:1":
        raise OwnError("no data in shard 1")
    signal.pause()


@pytest.fixture(autouse=True)
def _surroundings(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLAUNCH_HOME", str(launch.home))
    monkeypatch.chdir(launch.directory)


class TestValues:
    def test_what_each_task_returned(self, capfd: pytest.CaptureFixture[str]) -> None:
        result = tflaunch.run(own_name, args=(1, "two"), kwargs={"three": [3]}, **PAIR)
        given = (1, "two"), {"three": [3]}
        assert dict(result.values) == {"worker:0": ("worker:0", *given), "worker:1": ("worker:1", *given)}
        assert result.run.startswith("own_name-")
        assert capfd.readouterr() == ("", "")

    def test_a_closure_and_an_instance_of_an_own_class(self) -> None:
        base = bytes(range(256)) * 20_000  # larger than a frame
        result = tflaunch.run(lambda more: OwnError(base + more), args=(b"more",), **ALONE)
        (value,) = result.values.values()
        assert (type(value), value.args) == (OwnError, (base + b"more",))
        assert result.run.startswith("lambda-")

    def test_a_task_that_does_not_return_has_none(self) -> None:
        def serve_or_return() -> str:
            if os.environ["TFLAUNCH_TASK"].startswith("ps"):
                signal.pause()
            return "trained"

        cluster = {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}
        result = tflaunch.run(serve_or_return, **{**ALONE, "cluster": cluster, "strategy": "parameter_server"})
        assert (result.values["chief:0"], result.exit_code) == ("trained", 0)
        with pytest.raises(KeyError):
            result.values["ps:0"]

    def test_the_last_attempt_counts(self) -> None:
        """The first attempt leaves values and then dies; in the second one, only worker:1 returns one."""

        def leave_once() -> str:
            if os.environ["TFLAUNCH_ATTEMPT"] == "0":
                Path(os.environ["TFLAUNCH_TASK_DIR"], caller.OUTCOME).write_bytes(b'{"kind": "returned"}\nN.')
                os.kill(os.getpid(), signal.SIGKILL)
            if os.environ["TFLAUNCH_TASK"] == "worker:0":
                sys.exit(0)
            return os.environ["TFLAUNCH_ATTEMPT"]

        result = tflaunch.run(leave_once, **{**PAIR, "restart": {"max": 1, "backoff": [0, 0]}})
        assert (result.exit_code, dict(result.values)) == (0, {"worker:1": "1"})


class TestFailures:
    def test_the_culprit_s_own_exception(self) -> None:
        with pytest.raises(OwnError, match="no data in shard 1") as raised:
            tflaunch.run(wait_or_fail, **PAIR)
        failed = raised.value.__cause__
        assert isinstance(failed, tflaunch.JobFailed)
        assert (failed.result.culprit, failed.exit_code) == ("worker:1", 1)
        assert "in wait_or_fail\n" in str(failed)
        assert caller.PROGRAM not in str(failed)
        with tflaunch.start(wait_or_fail, **PAIR) as run:
            result = run.wait()
        with pytest.raises(OwnError):
            result.check()

    def test_an_exception_that_cannot_be_pickled_or_unpickled(self) -> None:
        class Picky(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__(f"{one} and {two}")

        def fail() -> None:
            raise ValueError(Unpicklable()) if os.environ["TFLAUNCH_TASK"] == "worker:0" else Picky(1, 2)

        result = tflaunch.run(fail, check=False, **PAIR)
        with pytest.raises(tflaunch.JobFailed, match=r"ValueError: <|Picky: 1 and 2"):
            result.check()
        assert len(result.values) == 0

    def test_a_signal(self) -> None:
        with pytest.raises(tflaunch.JobFailed, match="worker:0 was killed by SIGKILL") as failed:
            asyncio.run(tflaunch.run_async(lambda: os.kill(os.getpid(), signal.SIGKILL), **ALONE))
        assert failed.value.__cause__ is None


class TestMistakes:
    """Each ends in one sentence with place and remedy."""

    def test_a_function_that_cannot_be_pickled(self, launch: Launch) -> None:
        lock = threading.Lock()
        with pytest.raises(tflaunch.TflaunchError, match=r"train cannot be sent to the tasks: .*lock.*; create what"):
            tflaunch.run(named("train", lambda: lock), **ALONE)
        assert not (launch.home / "runs").exists()

    @pytest.mark.parametrize(
        ("function", "sentence"),
        [
            (lambda: [Unpicklable()], r"what train returned \(list\) cannot be pickled: a live connection; return"),
            (lambda: bytes(65 * 2**20), r"what train returned is too large \(65 MiB, and the limit is 63 MiB\); save"),
        ],
    )
    def test_a_value_that_cannot_be_sent(self, function: Callable[[], Any], sentence: str) -> None:
        with pytest.raises(tflaunch.JobFailed, match=sentence) as failed:
            tflaunch.run(named("train", function), **ALONE)
        assert "Traceback" not in str(failed.value)

    def test_a_value_that_cannot_be_used_here(self) -> None:
        def strange() -> Any:
            sys.path.insert(0, os.environ["TFLAUNCH_TASK_DIR"])
            Path(os.environ["TFLAUNCH_TASK_DIR"], "only_there.py").write_text("class Thing: pass")
            import only_there  # type: ignore[import-not-found]

            return only_there.Thing()

        result = tflaunch.run(strange, **ALONE)
        with pytest.raises(tflaunch.TflaunchError, match=r"worker:0 returned cannot be used here: .*only_there"):
            result.values["worker:0"]

    def test_another_version_of_python(self, tmp_path: Path) -> None:
        other = tmp_path / "python3.8"
        program = "import sys, runpy; sys.version_info = (3, 8, 1); runpy.run_path(sys.argv[1], run_name='__main__')"
        other.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
        other.chmod(0o755)
        with pytest.raises(tflaunch.JobFailed, match=r"is Python 3\.8, and a function sent by .*hosts\.X\.python"):
            tflaunch.run(own_name, command=str(other), **ALONE)

    def test_cloudpickle_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(tflaunch.TflaunchError, match=r"not installed here: pip install 'tflaunch\[functions\]'"):
            tflaunch.run(own_name, **ALONE)

    def test_a_module_that_the_tasks_lack(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "helpers.py").write_text("def half(x): return x / 2")
        monkeypatch.syspath_prepend(tmp_path / "lib")
        import helpers  # type: ignore[import-not-found]

        assert tflaunch.run(lambda: helpers.half(4), **ALONE).values["worker:0"] == 2  # found as it is here
        monkeypatch.setattr(sys, "path", sys.path[1:])
        with pytest.raises(tflaunch.JobFailed, match=r"cannot be called on .*'helpers'; install it there, or copy"):
            tflaunch.run(lambda: helpers.half(4), **ALONE)

    def test_fields_beside_a_spec(self) -> None:
        with pytest.raises(tflaunch.TflaunchError, match="args, cluster: only a function"):
            tflaunch.run({"command": "true"}, args=(1,), cluster={"worker": 1})

    def test_a_wrong_field(self) -> None:
        with pytest.raises(tflaunch.SpecError, match="did you mean 'cluster'"):
            tflaunch.run(own_name, clutser={"worker": 1})  # type: ignore[call-arg]


class TestPreloaded:
    """A function that is forked from a process with modules finds what it would find otherwise."""

    @pytest.fixture(autouse=True)
    def own_module(self, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """A module where this program finds it, and tasks only because they search there, too.

        This one is found, too, as by `python -m pytest`; no task imports it.
        """
        monkeypatch.syspath_prepend(REPOSITORY)
        write_mine(launch.directory / "lib", "first")
        monkeypatch.syspath_prepend(launch.directory / "lib")
        sys.modules.pop("mine", None)
        yield
        launch.run("warm", "--stop")

    def test_it_cannot_tell(self) -> None:
        def about_itself() -> object:
            import __main__

            places = [place.replace(os.environ["TFLAUNCH_RUN"], "RUN") for place in [*sys.argv, *sys.path]]
            known = os.getcwd(), sorted(os.listdir("/proc/self/fd")), tuple(sys.flags), os.getsid(0) == os.getpid()
            return os.environ.get("TFLAUNCH_PRELOAD"), places, known, sorted(vars(__main__)), __name__

        ways: list[dict[str, Any]] = [{}, {"preload": ["mine"]}]
        cold, forked = (tflaunch.run(about_itself, **ALONE, **fields) for fields in ways)
        assert (cold.values["worker:0"][0], forked.values["worker:0"][0]) == (None, "mine")
        assert cold.values["worker:0"][1:] == forked.values["worker:0"][1:]

    def test_a_second_run_is_warm(self, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
        """Unless `sys.path` has changed."""
        assert [run_warm() for _ in range(2)] == [("first", "forked")] * 2
        assert [server.uses for server in warm_servers.on_this_machine()] == [1]
        write_mine(launch.directory / "other", "second")
        monkeypatch.syspath_prepend(launch.directory / "other")
        assert run_warm()[0] == tflaunch.run(imported, **ALONE).values["worker:0"][0] == "second"


def write_mine(directory: Path, value: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "mine.py").write_text(f"import os\npid = os.getpid()\nvalue = {value!r}\n")


def imported() -> tuple[str, str]:
    """Return what the module says, and whether another process has imported it."""
    import mine  # type: ignore[import-not-found]

    return mine.value, "started" if mine.pid == os.getpid() else "forked"


def run_warm() -> Any:
    """Run `imported` with a warm server."""
    return tflaunch.run(imported, **ALONE, preload=["mine"], warm="10m").values["worker:0"]


SCRIPT = """
import tflaunch
def train(): return helper()
def helper(): return 7
if __name__ == "__main__":
    print(dict(tflaunch.run(train, cluster={"worker": 1}, strategy="none").values))
"""


def test_a_script_calls_its_own_function(launch: Launch) -> None:
    (launch.directory / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py"]
    assert subprocess.check_output(command, env=launch.env, text=True, timeout=PATIENCE) == "{'worker:0': 7}\n"


class TestHosts:
    """Hosts that are not like this machine: `docker exec` is this machine with another environment."""

    EXEC = '#!/bin/sh\nshift 3\nexec env -i HOME={home} PATH=/usr/bin:/bin TFLAUNCH_HOME={home}/own "$@"\n'

    @pytest.fixture
    def fields(self, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        home = launch.directory / "container"
        home.mkdir()
        launch.install("docker", self.EXEC.format(home=home))
        monkeypatch.setenv("PATH", launch.env["PATH"])
        hosts = {name: {"docker": name, "python": os.path.realpath(sys.executable)} for name in ("c1", "c2")}
        return {**PAIR, "cluster": {"worker": ["c1", "c2"]}, "hosts": hosts}

    def test_nothing_needs_to_be_installed_there(self, launch: Launch, fields: dict[str, Any]) -> None:
        """Own modules are copied by `sync`."""
        (launch.directory / "shared.py").write_text("def half(x): return x / 2")

        def look() -> tuple[str, float, str]:
            import cloudpickle
            import shared  # type: ignore[import-not-found]

            return os.environ["TFLAUNCH_TASK"], shared.half(4), cloudpickle.__file__

        values = tflaunch.run(look, **fields, sync={"paths": ["shared.py"]}).values.values()
        assert [value[:2] for value in values] == [("worker:0", 2), ("worker:1", 2)]
        assert all("/.tflaunch-function/cloudpickle/" in path for _, _, path in values)

    def test_another_supervisor_brings_the_value_home(self, launch: Launch, fields: dict[str, Any]) -> None:
        """The task ends while the run has no supervisor."""
        go = launch.directory / "go"

        def return_when_told() -> bytes:
            fcntl.flock(os.open(go, os.O_RDONLY), fcntl.LOCK_SH)
            return b"x" * 1_000_000

        lock = go.open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = tflaunch.start(return_when_told, detach=True, **{**fields, "timeouts": {"lease": PATIENCE}})
        for _ in take_until(run, "task_started", 2):
            pass
        (supervisor,) = [process for process in launch.survivors() if command_of(process)[-1:] == [run.name]]
        tasks = [process for process in all_processes() if f"{launch.directory}/container" in calling(process)]
        supervisor.kill()
        lock.close()
        assert len(tasks) == 2
        assert not psutil.wait_procs(tasks, timeout=PATIENCE)[1]
        launch.succeed("up", "--resume", run.name)
        assert {len(value) for value in run.wait().values.values()} == {1_000_000}
        assert launch.survivors() == []

    @pytest.mark.parametrize("is_raised", [False, pytest.param(True, marks=pytest.mark.thorough)])
    def test_code_is_not_unpickled_here(self, fields: dict[str, Any], tmp_path: Path, *, is_raised: bool) -> None:
        def leave_code() -> None:
            if is_raised:
                raise Bomb(str(tmp_path / "ran"))
            return Bomb(str(tmp_path / "ran"))  # type: ignore[return-value]

        result = tflaunch.run(leave_code, check=False, **fields)
        with pytest.raises(tflaunch.TflaunchError, match=r"Bomb: boom" if is_raised else r"'io.open'.*trust_hosts"):
            _ = result.check().values["worker:0"]
        assert not (tmp_path / "ran").exists()
        with pytest.raises(tflaunch.JobFailed) if is_raised else nullcontext():
            _ = tflaunch.attach(trust_hosts=True).wait().check().values["worker:0"]
        assert (tmp_path / "ran").exists()

    def test_plain_data_and_exceptions_of_python_come(self, fields: dict[str, Any]) -> None:
        plain = [None, True, 2**70, 1.5, 2j, "a", b"b", bytearray(b"c"), (1, {2}), {"d": frozenset({3})}]
        assert tflaunch.run(lambda: plain, **fields).values["worker:0"] == plain

        def fail() -> None:
            raise FileNotFoundError(2, "No such file", "data.csv")

        with pytest.raises(FileNotFoundError, match=r"data\.csv") as raised:
            tflaunch.run(fail, **fields)
        assert isinstance(raised.value.__cause__, tflaunch.JobFailed)


def test_what_a_host_sends_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "outcome"
    for content in (b"", b"{", b"[]\n", b'{"kind": "returned"', b'{"kind": 3}\nN.', b'{"kind": "raised"}\nN.'):
        path.write_bytes(content)
        values = Values({"worker:0": path})
        assert (len(values), values.raised_by("worker:0")) == (0, (None, ""))
    path.write_bytes(b'{"kind": "raised", "traceback": "te\\u001bxt"}\nN.')
    assert Values({"worker:0": path}).raised_by("worker:0") == (None, r"te\x1bxt")
    path.write_bytes(b'{"kind": "returned"}\nnothing')
    with pytest.raises(tflaunch.TflaunchError, match="worker:0 returned cannot be used here"):
        Values({"worker:0": path})["worker:0"]


def test_any_callable_of_python_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "outcome"
    for name in ("eval", "exec", "getattr", "bytearray", "range", "type", "SystemExit", "ValueError.mro", "nothing"):
        call = b"c" + f"builtins\n{name}\n".encode() + b"V1\n\x85R."
        path.write_bytes(b'{"kind": "returned"}\n' + call)
        with pytest.raises(tflaunch.TflaunchError, match="from another machine"):
            _ = Values({"worker:0": path})["worker:0"]


def named(name: str, function: Callable[[], Any]) -> Callable[[], Any]:
    function.__name__ = name
    return function


def calling(process: psutil.Process) -> str:
    """Return the program of a process that calls a function, else ""."""
    return next((word for word in command_of(process) if word.endswith(f"/{caller.PROGRAM}")), "")

"""Third-party programs run unchanged under `tflaunch up`: a small one per habit, in programs/others.

Each docstring there names its habit. The assertions here are what the programs' authors rely on, and what
tflaunch prints where a habit cannot work.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.fixed_ports import free_ports
from support.launch import Launch, read_until
from support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.tensorflow

OTHERS = Path(__file__).parent / "programs" / "others"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
NEVER = {"max": 0}
SERVERS = {"worker": {"server": True}, "ps": {"server": True}}
ALONE: dict[str, Any] = {"cluster": {"worker": 1}, "strategy": "none"}
SILENCE = "60s"
"""Longer than two tasks need to import TensorFlow, even on a busy machine."""


def command(program: str, *arguments: object) -> list[str]:
    """Return the command line of one of the programs."""
    return ["python", str(OTHERS / program), *map(str, arguments)]


def spec(launch: Launch, program: str, *arguments: object, **fields: Any) -> Path:
    """Write a spec, by default of two workers, that run one of the programs without restarts."""
    chosen = {"cluster": {"worker": 2}, "command": command(program, *arguments), "env": QUIET, "restart": NEVER}
    return launch.spec(**{**chosen, **fields})


def up(launch: Launch, program: str, *arguments: object, **fields: Any) -> subprocess.CompletedProcess[str]:
    """Run one of the programs to completion, whatever bytes it writes."""
    process = launch.start("up", spec(launch, program, *arguments, **fields), errors="surrogateescape")
    out, err = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def succeeds(launch: Launch, program: str, *arguments: object, **fields: Any) -> dict[str, str]:
    """Run a program that must succeed; return each task's output, without tflaunch's separators."""
    ended = up(launch, program, *arguments, **fields)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return said(launch)


def said(launch: Launch) -> dict[str, str]:
    """Return each task's output in the only run."""
    return {
        path.stem: path.read_text(errors="surrogateescape") for path in (launch.run_directory() / "logs").glob("*.log")
    }


def lines_of(text: str, beginning: str) -> list[str]:
    """Return the rest of the lines that start with this text."""
    return re.findall(rf"^{re.escape(beginning)} (.*)$", text, re.MULTILINE)


# ---- Chief and number of workers


@pytest.mark.usefixtures("shared_import")
def test_the_tutorial_counts_its_workers_and_worker_0_saves(launch: Launch) -> None:
    """Two workers: the global batch is that of both; only the chief's model remains, at the real path."""
    logs = succeeds(launch, "mwms_tutorial.py", "--model_dir", launch.directory / "model")
    for log in logs.values():
        assert lines_of(log, "global batch") == ["128 on 2 replicas"]
    assert lines_of(logs["worker-0"], "saved") == ["model.keras"]
    assert lines_of(logs["worker-1"], "saved") == ["workertemp_1/model.keras"]
    assert [path.name for path in (launch.directory / "model").iterdir()] == ["model.keras"]


@pytest.mark.usefixtures("shared_import")
def test_beside_a_chief_the_tutorial_counts_one_too_few(launch: Launch) -> None:
    """It trains, but with one worker's batch for two replicas, and the chief task is not its chief."""
    cluster = {"chief": 1, "worker": 1}
    logs = succeeds(launch, "mwms_tutorial.py", "--model_dir", launch.directory / "model", cluster=cluster)
    for log in logs.values():
        assert lines_of(log, "global batch") == ["64 on 2 replicas"]
    assert lines_of(logs["chief-0"], "saved") == ["workertemp_0/model.keras"]
    assert lines_of(logs["worker-0"], "saved") == ["model.keras"]


@pytest.mark.parametrize(
    ("cluster", "writers"),
    [({"worker": 3}, {"worker:0"}), ({"chief": 1, "worker": 2}, {"chief:0", "worker:0"})],
    ids=["workers", "chief and workers"],
)
def test_who_takes_worker_0_for_a_chief_too(launch: Launch, cluster: dict[str, int], writers: set[str]) -> None:
    """A single chief among workers; with a separate chief task, two that write the same file."""
    succeeds(launch, "chief_by_name_or_index.py", launch.directory / "written", cluster=cluster)
    assert sorted((launch.directory / "written").read_text().split()) == sorted(writers)


# ---- ParameterServerStrategy


@pytest.mark.usefixtures("shared_import")
def test_fit_for_the_chief_alone(launch: Launch) -> None:
    """tf_keras, DatasetCreator, sharded variables; tflaunch runs and ends the servers of worker and ps."""
    cluster = {"chief": 1, "worker": 2, "ps": 2}
    logs = succeeds(launch, "pss_fit_for_the_chief_only.py", cluster=cluster, roles=SERVERS)
    assert "2 epochs, 10 steps" in logs["chief-0"].splitlines()
    ends = {record["task"]: (record["was_told"], record["signal"]) for record in launch.records("task_exited")}
    assert ends.pop("chief:0") == (False, None)
    assert ends == dict.fromkeys(("worker:0", "worker:1", "ps:0", "ps:1"), (True, signal.SIGTERM))


@pytest.mark.usefixtures("shared_import")
def test_one_program_for_all_roles_and_an_evaluator_that_never_ends(launch: Launch) -> None:
    """The evaluator sees checkpoints; after the chief it has `finish`, then it ends with the servers."""
    checkpoints = launch.directory / "checkpoints"
    cluster = {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}
    fields = {"env": {**QUIET, "GRPC_FAIL_FAST": "use_caller"}, "timeouts": {"finish": "100ms"}}
    written = spec(launch, "pss_one_program_for_all_roles.py", checkpoints, cluster=cluster, **fields)
    running = launch.start("up", written)
    read_until(running, "evaluated ['loss', 'mae']")
    (checkpoints / "stop").touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    logs = said(launch)
    assert "trained 0 over full epochs" in logs["chief-0"]
    assert [logs[f"{role}-0"].count("serving\n") for role in ("worker", "ps")] == [1, 1]
    ends = {record["task"]: (record["was_told"], record["signal"]) for record in launch.records("task_exited")}
    assert ends.pop("chief:0") == (False, None)
    assert ends == dict.fromkeys(("worker:0", "ps:0", "evaluator:0"), (True, signal.SIGTERM))


# ---- tf.data service


@pytest.mark.usefixtures("shared_import")
def test_a_data_service_beside_mirrored_workers(launch: Launch) -> None:
    """Dispatcher and data workers are sidecars: they see each element once in total; nothing is left."""
    (port,) = free_ports(1)  # tflaunch gives a sidecar no address: the author of the spec must choose it
    address = f"localhost:{port}"
    sidecars = {
        "dispatcher": {"command": command("data_service.py", "dispatcher", address)},
        "reader-a": {"command": command("data_service.py", "worker", address)},
        "reader-b": {"command": command("data_service.py", "worker", address)},
    }
    env = {**QUIET, "DATA_SERVICE_ADDRESS": address}
    logs = succeeds(launch, "data_service_training.py", sidecars=sidecars, env=env)
    for worker in ("worker-0", "worker-1"):
        assert lines_of(logs[worker], "all saw") == [str(sum(range(0, 200, 2)))]
    assert lines_of(logs["dispatcher"], "dispatching at") == [f"grpc://{address}"]
    ends = {record["task"]: record["was_told"] for record in launch.records("task_exited")}
    assert ends == {"worker:0": False, "worker:1": False, **dict.fromkeys(sidecars, True)}


# ---- Evaluators that end at once


@pytest.mark.parametrize(("code", "starts"), [(0, 1), (1, 3)], ids=["well", "badly"])
def test_an_evaluator_that_ends_at_once(launch: Launch, code: int, starts: int) -> None:
    """With 0 it is done; otherwise it is retried within its budget. The training continues, and decides."""
    restart = {"max": 2, "backoff": [0, 0]}
    written = spec(launch, "exits_at_once.py", code, cluster={"worker": 2, "evaluator": 1}, restart=restart)
    running = launch.start("up", written)
    wait_until(lambda: len(launch.records("task_exited", task="evaluator:0", code=code)) == starts, running)
    (launch.directory / "enough").touch()
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert out.count("trained\n") == 2
    assert ("evaluator:0 exited with code 1; the job goes on without it" in err) == (code == 1)
    started = [record["task"] for record in launch.records("task_started")]
    assert {task: started.count(task) for task in started} == {"worker:0": 1, "worker:1": 1, "evaluator:0": starts}


# ---- Programs that ignore tflaunch's TF_CONFIG


@pytest.mark.usefixtures("shared_import")
def test_a_program_that_drops_tf_config_trains_alone_in_every_task(launch: Launch) -> None:
    """The silent failure: each task believes it is the whole job, and all succeed."""
    ended = up(launch, "drops_tf_config.py")
    assert ended.returncode == 0, ended.stderr
    assert [lines_of(log, "replicas") for log in said(launch).values()] == [["1"], ["1"]]


@pytest.mark.usefixtures("shared_import")
def test_training_alone_is_not_quiet(launch: Launch) -> None:
    """A cluster of one, hard-coded in the program: exit 0, but tflaunch reports what it has seen.

    Each has its own address: with the same one, it is random which of two simultaneous starts gets connections.
    """
    places = zip(("chief", "worker"), free_ports(2), strict=True)
    roles = {role: {"command": command("overwrites_tf_config.py", port)} for role, port in places}
    ended = up(launch, "overwrites_tf_config.py", cluster={"chief": 1, "worker": 1}, roles=roles)
    assert ended.returncode == 0, ended.stderr
    assert [lines_of(log, "replicas") for log in said(launch).values()] == [["1"], ["1"]]
    assert "never opened" in ended.stderr
    assert "TF_CONFIG" in ended.stderr


@pytest.mark.usefixtures("shared_import")
def test_the_addresses_of_the_tutorial_written_into_a_program(launch: Launch) -> None:
    """Each task is worker 0 of a foreign cluster: they wait, or one notices the duplicate.

    TF_GRPC_REUSE_PORT lets both listen on the same port, and the kernel distributes the connections, so either
    can happen at random. In both cases the job fails, and tflaunch says what is wrong.
    """
    ended = up(launch, "overwrites_tf_config.py", *free_ports(2), timeouts={"start": SILENCE})
    if ended.returncode == 124:
        assert "worker:0, worker:1 did not listen" in ended.stderr
        for log in said(launch).values():
            assert "collective_all_reduce_strategy.py" in log.partition("Fatal Python error: Aborted")[2]
    else:
        assert ended.returncode == 1, ended.stderr
        assert "two tasks call themselves worker:0: the program sets TF_CONFIG itself" in ended.stderr
    assert "replicas" not in ended.stdout


def test_flags_of_tensorflow_1_need_a_shell(launch: Launch) -> None:
    """All tasks of a role have the same command; a shell builds the flags from each task's environment."""
    one_liner = "import json, os; print(','.join(json.loads(os.environ['TF_CONFIG'])['cluster']['worker']))"
    program = shlex.join(command("flags_of_tensorflow_1.py"))
    script = f"""exec {program} --worker_hosts="$(python -c {shlex.quote(one_liner)})" \
        --job_name="${{TFLAUNCH_TASK%:*}}" --task_index="${{TFLAUNCH_TASK#*:}}" """
    logs = succeeds(launch, "", command=["sh", "-c", script])
    ports = {task: port for record in launch.records("ports_held") for task, port in record["ports"].items()}
    assert logs == {f"worker-{i}": f"worker {i} of 2 is localhost:{ports[f'worker:{i}']}\n" for i in range(2)}


# ---- Command lines and directories

ARGUMENTS = [
    "--learning_rate=-0.5", "--shift", "-3", "--name", "", "--tag=two words", "--tag", 'it\'s "quoted"',
    "--tag=$HOME ${HOME} * \\ ü", "--", "--not-a-flag", "-x",
]  # fmt: skip
UNDERSTOOD: dict[str, Any] = {
    "learning_rate": -0.5,
    "shift": -3,
    "name": "",
    "tag": ["two words", 'it\'s "quoted"', "$HOME ${HOME} * \\ ü"],
    "rest": ["--not-a-flag", "-x"],
}


@pytest.mark.parametrize("way", ["list", "text", "after --"])
def test_arguments_arrive_as_they_were_written(launch: Launch, way: str) -> None:
    """From a list, from text that is split like in a shell, and from the command line of `up`."""
    words = command("says_its_arguments.py", *ARGUMENTS)
    given = {"list": words, "text": shlex.join(words), "after --": ["false"]}[way]
    ended = launch.up(launch.spec(**ALONE, command=given), *(["--", *words] if way == "after --" else []))
    assert ended.returncode == 0, ended.stderr
    assert json.loads(launch.log("worker:0")) == {**UNDERSTOOD, "cwd": launch.directory.name}


@pytest.mark.parametrize(
    "words",
    [["python", "train.py"], ["python", "-m", "package.train"], ["./package/train.py"], ["sh", "run.sh"]],
    ids=["script", "module", "executable", "wrapper"],
)
def test_relative_paths_start_at_workdir(launch: Launch, words: list[str]) -> None:
    """Wherever `up` is called: scripts, modules of a package next to them, executables and shell wrappers."""
    package = launch.directory / "project" / "package"
    package.mkdir(parents=True)
    program = (OTHERS / "says_its_arguments.py").read_text()
    (package.parent / "train.py").write_text(program)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(f"#!/usr/bin/env python\n{program}")
    (package / "train.py").chmod(0o755)
    (package.parent / "run.sh").write_text('python package/train.py "$@"\n')
    written = launch.spec(**ALONE, command=[*words, "--shift=-1"], workdir="project")
    launch.directory = package  # where `up` runs
    ended = launch.up(written)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(launch.log("worker:0"))["cwd"] == "project"
    assert json.loads(launch.log("worker:0"))["shift"] == -1


# ---- Fixed paths


def test_a_fixed_path_is_shared_and_a_task_directory_is_not(launch: Launch) -> None:
    """Of two workers' writes to one path, one remains; each also has a directory of its own."""
    shared = launch.directory / "model"
    logs = succeeds(launch, "fixed_paths.py", shared, "overwrite")
    assert shared.read_text() in ("worker:0", "worker:1")
    own = {task: lines_of(log, "own")[0].split() for task, log in logs.items()}
    assert [own["worker-0"][1], own["worker-1"][1]] == ["worker:0", "worker:1"]
    assert own["worker-0"][0] != own["worker-1"][0]


def test_who_makes_a_fixed_directory_second_is_named(launch: Launch) -> None:
    """It may be either of the two."""
    ended = up(launch, "fixed_paths.py", launch.directory / "made", "mkdir", strategy="none")
    assert ended.returncode == 1, ended.stderr
    (failed,) = launch.records("task_exited", code=1)
    assert f"{failed['task']} exited with code 1" in ended.stderr
    assert "FileExistsError" in ended.stderr


# ---- Programs that never end

SHORT = {"grace": "200ms"}


def after(file: str, pattern: str, task: str, argv: list[str], launch: Launch) -> list[str]:
    """Return a command whose program one task starts only when a line of a file of the run matches."""
    is_there = f"grep -qs {shlex.quote(pattern)} {launch.home}/runs/*/{file}"
    wait = f"[ $TFLAUNCH_TASK = {task} ] && until {is_there}; do sleep 0.1; done"
    return ["sh", "-c", f"{wait}; exec {shlex.join(argv)}"]


@pytest.mark.parametrize(("how", "place"), [("thread", "poll_the_gpu"), ("loop", "never_ends.py")])
def test_a_task_that_stays_after_training_is_named_with_its_stacks(launch: Launch, how: str, place: str) -> None:
    """`success: all`, the default: `finish` stops it some time after the first has ended, 124."""
    words = after("logs/worker-1.log", "training done", "worker:0", command("never_ends.py", "worker:1", how), launch)
    ended = up(launch, "", command=words, timeouts={"grace": "20s", "finish": "5s"})
    assert ended.returncode == 124, ended.stderr
    assert "stopped: worker:1 still ran 5 s after the first task had finished" in ended.stderr
    assert place in said(launch)["worker-1"].partition("Fatal Python error: Aborted")[2]


def test_a_worker_that_waits_for_its_peers_does_not_keep_a_chief(launch: Launch) -> None:
    """`success: chief`: the job is done when the chief is; the worker gets `grace`, and is stopped."""
    cluster = {"chief": 1, "worker": 2}
    exited = '"task_exited".*"worker:0"'  # or the grace may be too short for it
    words = after("events.jsonl", exited, "chief:0", command("never_ends.py", "worker:1", "peer"), launch)
    succeeds(launch, "", command=words, cluster=cluster, success="chief", timeouts=SHORT)
    ends = {record["task"]: (record["was_told"], record["code"]) for record in launch.records("task_exited")}
    assert ends == {"chief:0": (False, 0), "worker:0": (False, 0), "worker:1": (True, None)}


def test_a_chief_that_stays_after_all_workers_have_ended(launch: Launch) -> None:
    """docs/supervision.md: `finish` ends a job if a task still runs that long after the first finished."""
    timeouts = {**SHORT, "finish": "500ms", "deadline": "10m"}
    cluster = {"chief": 1, "worker": 1}
    ended = up(launch, "never_ends.py", "chief:0", "loop", cluster=cluster, success="chief", timeouts=timeouts)
    assert ended.returncode == 124
    assert "stopped: chief:0 still ran" in ended.stderr


# ---- Child processes


def is_alive(pid: int) -> bool:
    """Return whether there is a process that has not ended; its new parent may take a moment to notice its end."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_pools_execs_and_children_left_behind(launch: Launch) -> None:
    """Fork and spawn both work, exec keeps the task, and no child outlives the run, whatever it ignores."""
    logs = succeeds(launch, "has_children.py", strategy="none", timeouts=SHORT)
    for log in logs.values():
        assert log.startswith("fork 285\nspawn 285\nleft ")
        left = lines_of(log, "left")[0].split()
        assert len(left) == 4
        assert not [pid for pid in left if is_alive(int(pid))]
    assert not launch.survivors()
    assert [record["code"] for record in launch.records("task_exited")] == [0, 0]


# ---- Output


def wrote(launch: Launch, what: str) -> tuple[str, bytes]:
    """Run `says_things.py` alone; return the output of `up`, and the log's bytes."""
    ended = up(launch, "says_things.py", what, **ALONE)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, (launch.run_directory() / "logs" / "worker-0.log").read_bytes()


def test_both_streams_are_one_in_their_order(launch: Launch) -> None:
    """A hundred lines on each, alternating."""
    out, log = wrote(launch, "streams")
    lines = [f"{stream} {number}" for number in range(100) for stream in ("out", "err")]
    assert log.decode().splitlines() == lines
    assert out.splitlines() == [f"worker:0 | {line}" for line in lines]


def test_a_progress_bar_is_a_line_with_its_last_state(launch: Launch) -> None:
    """In the log, every byte."""
    out, log = wrote(launch, "bar")
    assert out == f"worker:0 | 50/50 [{'=' * 50}]\n"
    assert log.count(b"\r") == 50


@pytest.mark.parametrize(
    ("what", "written"),
    [
        ("bytes", bytes(range(256)) * 40 + b"\n"),
        ("long", b"x" * 3_000_000 + b"\nafter\n"),
        ("open end", b"no newline at the end"),
    ],
)
def test_bytes_are_kept(launch: Launch, what: str, written: bytes) -> None:
    """Whatever they are."""
    out, log = wrote(launch, what)
    assert log == written
    assert out.endswith("\n")


# ---- Ways to end


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("message", 1, "cannot find the data"),
        ("os._exit", 9, "exited with code 9"),
        ("stdin", 1, "EOFError: EOF when reading a line"),
        ("fork", 1, "ValueError: the child ended with 1"),
        ("abort", 134, "was killed by SIGABRT"),
        ("thread", 0, "done: 1 task"),
    ],
)
def test_unusual_ends(launch: Launch, how: str, code: int, words: str) -> None:
    """The exit code is the task's own, and the explanation includes the program's own message."""
    ended = up(launch, "ends_badly.py", how, **ALONE)
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr
    assert ("hint: it reads from stdin" in ended.stderr) == (how == "stdin")


def test_who_saves_on_ctrl_c_must_be_sent_it(launch: Launch) -> None:
    """`tflaunch kill -s INT` lets it save and succeed; Ctrl-C for `up` sends TERM, which does not."""
    running = launch.start("up", spec(launch, "saves_on_ctrl_c.py", strategy="none"))
    read_until(running, "training", 2)
    assert launch.run("kill", "-s", "INT", "worker:1").returncode == 0
    read_until(running, "worker:1 | saved")
    wait_until(lambda: launch.records("task_gone", task="worker:1"), running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, err
    assert "saved" not in said(launch)["worker-0"]
    ends = {record["task"]: (record["code"], record["signal"]) for record in launch.records("task_exited")}
    assert ends == {"worker:0": (None, signal.SIGTERM), "worker:1": (0, None)}


@pytest.mark.usefixtures("shared_import")
def test_own_handlers_of_term(launch: Launch) -> None:
    """Installed after the strategy, it is called and the task ends as it likes; before, KILL follows."""
    running = launch.start("up", spec(launch, "own_handlers.py", timeouts={"grace": "15s"}))
    read_until(running, "sum 2.0", 2)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 143, err
    assert {task: "saved by my handler" in log for task, log in said(launch).items()} == {
        "worker-0": False,
        "worker-1": True,
    }
    ends = {record["task"]: (record["code"], record["signal"]) for record in launch.records("task_exited")}
    assert ends == {"worker:0": (None, signal.SIGKILL), "worker:1": (0, None)}


# ---- Keras 3


@pytest.mark.usefixtures("shared_import")
def test_a_loop_of_its_own_with_keras_3(launch: Launch) -> None:
    """`legacy_keras: false`: both workers learn, and end with the same weights."""
    logs = succeeds(launch, "keras_3_loop.py", legacy_keras=False)
    assert [lines_of(log, "Keras") for log in logs.values()] == [["3 learned"]] * 2
    first, second = (lines_of(log, "weights") for log in logs.values())
    assert first == second
    assert len(first) == 1


@pytest.mark.usefixtures("shared_import")
@pytest.mark.parametrize(
    ("program", "fields", "advice"),
    [
        ("imports_keras.py", {}, "use tf.keras or tf_keras"),
        ("mwms_tutorial.py", {"legacy_keras": False}, "leave legacy_keras at auto and install tf_keras"),
    ],
    ids=["import keras", "legacy_keras: false"],
)
def test_fit_of_keras_3_fails_with_advice(launch: Launch, program: str, fields: Any, advice: str) -> None:
    """The hint names the remedy, even where legacy_keras does not help."""
    arguments = ["--model_dir", launch.directory / "model"] if program == "mwms_tutorial.py" else []
    ended = up(launch, program, *arguments, **fields)
    assert ended.returncode == 1, ended.stderr
    assert re.search(r"worker:[01] exited with code 1", ended.stderr)
    assert re.search(rf"hint: .*{advice}", ended.stderr), ended.stderr

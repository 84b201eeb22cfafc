"""`tflaunch up --on slurm`, and `up` in an allocation: on the nodes of a real Slurm."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.launch import LONG, Launch, read_errors_until, read_until, wait_for_end
from support.mnist import digests, example
from support.needs import need
from support.netns_hosts import Bed
from support.processes import command_of
from support.rendering import TRAINING
from support.slurm_cluster import SlurmBed
from support.waiting import PATIENCE

STUBBORN = "trap 'echo told' TERM; touch up.$TFLAUNCH_TASK; while :; do sleep 0.1; done"
LIMIT = 90  # seconds until Slurm ends a job with a time limit of a minute, which it looks for each 30 s
ON_TWO = {"cluster": {"worker": ["a", "b"]}, "strategy": "none"}


def shell(launch: Launch, script: str, **fields: Any) -> Path:
    """Write a spec with a task on each of two hosts that runs a shell script."""
    return launch.spec(**{**ON_TWO, "command": ["sh", "-c", script], **fields})


def job_of(launch: Launch) -> str:
    return str(json.loads((launch.run_directory() / "slurm.json").read_text())["job"])


def wait_for_files(slurm: SlurmBed, launch: Launch, *names: str) -> None:
    slurm.wait_until(lambda: all((launch.directory / name).exists() for name in names), f"no {names}")


@pytest.mark.needs("apptainer")
def test_tasks_and_their_setup_run_in_an_image(nodes: SlurmBed, launch: Launch) -> None:
    """With the directories of the node, the PATH of the image and the job's environment; their agents start there."""
    (launch.directory / "data").mkdir()
    (launch.directory / "data" / "name").write_text("mounted")
    shown = "in $(cat /data/name) $APPTAINER_NAME on $SLURMD_NODENAME $(pwd) $A $PATH"
    script = f"trap 'echo told; exit 0' TERM; echo {shown}; while :; do sleep 0.1; done"
    image = {"image": os.environ["TFLAUNCH_TEST_IMAGE"], "volumes": {"/data": str(launch.directory / "data")}}
    launch.env["A"] = "given"
    spec = shell(launch, script, container=image, setup=["python3 -m venv --without-pip .venv"])
    up = launch.start("up", spec, "--on", "slurm")
    text = read_until(up, " in mounted image ", 2)
    given = rf" in mounted image on h(\d) {launch.directory} given \S+/\.venv/bin:/usr/local/sbin:"
    assert len(set(re.findall(given, text))) == 2, text
    launch.succeed("down")
    assert up.communicate(timeout=PATIENCE)[0].count("| told") == 2


@pytest.mark.tensorflow
def test_training_on_three_nodes(nodes: SlurmBed, launch: Launch) -> None:
    """From cluster_specs/: tasks given as a count are spread over the nodes, and train together."""
    fields = json.loads(example(launch, "slurm_multi_worker").read_text())
    ended = launch.succeed("up", launch.spec(**{**fields, "command": TRAINING}), "--on", "slurm")
    assert len(digests(ended.stdout)) == 3
    assert len(set(digests(ended.stdout))) == 1
    assert [host["host"] for host in launch.status()["hosts"]] == ["h1", "h2", "h3"]


def test_a_command_runs_on_nodes_without_a_spec(nodes: SlurmBed, launch: Launch) -> None:
    """With the options of `up`; what they cannot mean there is said."""
    program = ["sh", "-c", "echo $SLURM_JOB_PARTITION $TFLAUNCH_TASK"]
    ended = launch.succeed("run", "--on", "slurm", "-n", "3", "--nodes", "3", *program)
    for task in range(3):
        assert re.search(rf"\S+ worker:{task}$", ended.stdout, re.MULTILINE), ended.stdout
    refused = launch.run("run", "--on", "slurm", "-H", "a,b", *program, code=2)
    assert "-H names hosts, and --on slurm gives the tasks hosts of its own" in refused.stderr
    assert "add --on slurm" in launch.run("run", "--partition", "p", "--save", "-", *program).stderr


API = """
import tflaunch
command = ["sh", "-c", "echo from $TFLAUNCH_TASK; exit ${TFLAUNCH_TASK#*:}"]
spec = tflaunch.Spec(cluster={"worker": 2}, strategy="none", command=command, restart={"max": 0}, slurm={"nodes": 2})
result = tflaunch.run(spec, on="slurm")
print(result.exit_code, result.culprit, sorted(task.host for task in result.tasks.values()))
print(result.tasks["worker:1"].log, end="")
"""


def test_a_job_of_the_python_api_tells_its_result(nodes: SlurmBed, launch: Launch) -> None:
    words = [*launch.prefix, sys.executable, "-c", API]
    ended = subprocess.run(words, cwd=launch.directory, env=launch.env, text=True, capture_output=True, check=False)
    assert (ended.stdout, ended.stderr) == ("1 worker:1 ['h1', 'h2']\nfrom worker:1\n", "")


@pytest.mark.thorough
def test_tasks_are_on_the_nodes_as_the_spec_names_hosts(nodes: SlurmBed, launch: Launch) -> None:
    """With the environment, secrets and directory of the submission, and TF_CONFIG with the nodes' names."""
    launch.env |= {"GIVEN": "by the user", "KEY_OF_ANN": "hush"}
    (launch.directory / "token").write_text("quiet\n")
    secrets = {"API_KEY": {"env": "KEY_OF_ANN"}, "TOKEN": {"file": "token"}}
    (launch.directory / "json.py").write_text("raise SystemExit('not what tflaunch imports')")
    where = (
        'echo "$TFLAUNCH_TASK $SLURMD_NODENAME $SLURM_CPUS_PER_TASK of $SLURM_CPUS_ON_NODE $GIVEN $(pwd) $TF_CONFIG"'
    )
    tell = f'{where}; [ "$API_KEY+$TOKEN" = hush+quiet ]'
    cluster = {"chief": ["a"], "worker": ["a", "b:2222"], "ps": ["b"]}
    spec = shell(launch, tell, cluster=cluster, strategy="parameter_server", success="all", secrets=secrets)
    ended = launch.succeed("up", spec, "--on=slurm", "--set=slurm.cpus-per-task=2")
    said = dict(re.findall(r"\| (\w+:\d) (h\d 2 of 4 by the user \S+)", ended.stdout))
    where = f"2 of 4 by the user {launch.directory.resolve()}"
    assert said == {
        "chief:0": f"h1 {where}",
        "worker:0": f"h1 {where}",
        "worker:1": f"h2 {where}",
        "ps:0": f"h2 {where}",
    }
    assert re.search(r'"worker":\["h1:\d+","h2:2222"\]', ended.stdout)


@pytest.mark.thorough
def test_roles_with_resources_of_their_own_get_nodes_of_their_own(nodes: SlurmBed, launch: Launch) -> None:
    """In one job of two parts, which `down` ends: each task sees the other part's under one TF_CONFIG."""
    tell = "echo $TFLAUNCH_TASK $SLURMD_NODENAME $SLURM_CPUS_ON_NODE $SLURM_JOB_ID; sleep $LASTS"
    spec = shell(
        launch, tell, cluster={"chief": 1, "worker": 2, "ps": 1}, strategy="parameter_server", success="all",
        roles={"worker": {"resources": {"cpu": 3}}}, env={"LASTS": "0"}, timeouts={"grace": 0.5},
    )  # fmt: skip
    ended = launch.succeed("up", spec, "--on", "slurm")
    said = {task: (node, int(cores)) for task, node, cores in re.findall(r"\| (\w+:\d) (h\d) (\d)", ended.stdout)}
    assert said["chief:0"] == said["ps:0"] == ("h1", 2)
    assert said["worker:0"] == said["worker:1"] == ("h2", 6)
    assert len(set(re.findall(r"h\d \d (\d+)$", ended.stdout, re.MULTILINE))) == 1
    up = launch.start("up", spec, "--on", "slurm", "--set", "env.LASTS=9999")
    read_until(up, "worker:1 h2")
    assert launch.run("down").returncode == 0
    assert up.wait(PATIENCE) == 143


@pytest.mark.thorough
def test_nodes_are_set_up_once_before_the_first_task(nodes: SlurmBed, launch: Launch) -> None:
    """They share TFLAUNCH_HOME, and so what was made, with each other and with the next run."""
    make = ["echo made >>$SEEN", "mkdir -p .venv/bin", "ln -s /bin/echo .venv/bin/say"]
    spec = shell(launch, "say $SLURMD_NODENAME", setup=make, env={"SEEN": f"{launch.directory}/seen"})
    for _ in range(2):
        assert set(re.findall(r"\| (h\d)$", launch.succeed("up", spec, "--on", "slurm").stdout, re.MULTILINE)) == {
            "h1",
            "h2",
        }
    assert (launch.directory / "seen").read_text() == "made\n"


@pytest.mark.thorough
def test_what_is_typed_goes_before_the_environment(nodes: SlurmBed, launch: Launch) -> None:
    """With an output of its own, from which the cause is read; nothing of the environment reaches the tasks."""
    variables = {"PARTITION": "none", "JOB_NAME": "other", "TIMELIMIT": "0", "ARRAY_INX": "0-1", "WAIT": "1"}
    launch.env |= {f"SBATCH_{name}": value for name, value in variables.items()} | {"GIVEN": "by the user"}
    options = {"time": "9", "export": "NONE", "output": f"{launch.directory}/out-%j"}
    spec = shell(launch, 'echo "given ${GIVEN:-nothing}"; touch up.$TFLAUNCH_TASK; exec sleep 9999', slurm=options)
    up = launch.start("up", spec, "--on", "slurm", "--partition", "all")
    wait_for_files(nodes, launch, "up.worker:0", "up.worker:1")
    job = job_of(launch)
    fields = nodes.asked("scontrol", "--oneliner", "show", "job", job)
    assert re.search(r"JobName=job .*TimeLimit=00:09:00 .*Partition=all ", fields), fields
    assert nodes.asked("squeue", "--noheader", "--format=%A") == job
    nodes.asked("scancel", job)
    out, errors = up.communicate(timeout=PATIENCE)
    assert out.count("given nothing") == 2
    assert "the job was cancelled with scancel" in errors
    assert (launch.directory / f"out-{job}").samefile(launch.run_directory() / "supervisor.log")


def test_the_first_failure_is_the_result_of_run_and_job(nodes: SlurmBed, launch: Launch) -> None:
    """Not the 143 of the tasks that are stopped because of it."""
    fail = "until [ -e up.worker:0 ]; do sleep 0.05; done; exit 7"
    script = f'[ "$TFLAUNCH_TASK" = worker:1 ] && {{ {fail}; }}; {STUBBORN}'
    spec = shell(launch, script, timeouts={"grace": 0.5}, restart={"max": 0}, slurm={"comment": "it's two words"})
    ended = launch.up(spec, "--on", "slurm", code=7)
    assert re.search(r"worker:1( on h\d)? exited with code 7", ended.stderr)
    shown = nodes.asked("scontrol", "show", "job", job_of(launch))
    assert " ExitCode=7:0" in shown
    assert "Comment=it's two words" in shown


def test_an_allocation_is_found(nodes: SlurmBed, launch: Launch) -> None:
    """By `up` in it, which uses each node as many times as it has tasks."""
    script = "echo $TFLAUNCH_TASK $SLURMD_NODENAME; exit $CODE"
    spec = launch.shell(script, 3, hosts={"discover": "slurm"}, strategy="none", env={"CODE": "0"})
    launch.prefix = [*launch.prefix, "salloc", "--quiet", "--nodes=2", "--ntasks=3", "--distribution=block"]
    ended = launch.succeed("up", spec)
    assert set(re.findall(r"\| (worker:\d h\d)", ended.stdout)) == {"worker:0 h1", "worker:1 h1", "worker:2 h2"}
    assert launch.up(spec, "--set", "env.CODE=9", "--set", "restart.max=0").returncode == 9


@pytest.mark.thorough
def test_a_supervisor_in_an_allocation_is_replaced(nodes: SlurmBed, launch: Launch) -> None:
    """After kill -9: the steps that hold the agents outlive it, and the tasks do not notice."""
    script = "touch up.$TFLAUNCH_TASK; until [ -e go ]; do sleep 0.05; done; echo went $TFLAUNCH_ATTEMPT"
    spec = shell(launch, script, hosts={"discover": "slurm"}, cluster={"worker": 2})
    prefix = launch.prefix
    resume = f'"$0" "$@"; touch killed; "$0" up -d --resume "$(ls {launch.home}/runs)" && touch go && "$0" wait'
    launch.prefix = [*prefix, "salloc", "--quiet", "--nodes=2", "sh", "-c", resume]
    both = launch.start("up", spec)
    wait_for_files(nodes, launch, "up.worker:0", "up.worker:1")
    words = {process.pid: command_of(process) for process in launch.survivors()}
    (wrapper,) = [pid for pid, command in words.items() if command[:1] == ["sh"] and resume in command]
    (supervisor,) = psutil.Process(wrapper).children()
    supervisor.kill()
    wait_for_end(both)
    launch.prefix = prefix
    assert launch.run("logs").stdout.count("went 0") == 2


@pytest.mark.thorough
def test_a_role_has_a_task_per_task_of_the_allocation(nodes: SlurmBed, launch: Launch) -> None:
    """`discover.worker` does the same for one role."""
    spec = launch.spec(discover={"worker": "slurm"}, strategy="none", command=["sh", "-c", "echo on $SLURMD_NODENAME"])
    launch.prefix = [*launch.prefix, "salloc", "--quiet", "--nodes=3"]
    ended = launch.succeed("up", spec)
    assert set(re.findall(r"on (h\d)", ended.stdout)) == {"h1", "h2", "h3"}


@pytest.mark.thorough
def test_a_job_that_fails_before_the_run_says_why(nodes: SlurmBed, launch: Launch) -> None:
    """For example because its spec cannot be read there."""
    spec = shell(launch, "true")
    run = launch.up(spec, "--on", "slurm", "-d", "--set", "slurm.begin=now+1hour").stdout.strip()
    (launch.run_directory() / "spec.json").write_text("{")
    following = launch.start("wait", run)
    nodes.asked("scontrol", "update", f"jobid={job_of(launch)}", "StartTime=now")
    _, said = wait_for_end(following, 2)
    assert "before the run began" in said
    assert "JSON" in said


def cancelled(launch: Launch, slurm: SlurmBed, process: subprocess.Popen[str]) -> None:
    slurm.asked("scancel", job_of(launch))


def down(launch: Launch, slurm: SlurmBed, process: subprocess.Popen[str]) -> None:
    launch.succeed("down", "-t", "5")


def interrupted(launch: Launch, slurm: SlurmBed, process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("end", "codes", "why"),
    [
        (cancelled, {143}, "the job was cancelled with scancel"),
        pytest.param(down, {143}, "`tflaunch down`", marks=pytest.mark.thorough),
        pytest.param(interrupted, {130}, "interrupted by Ctrl-C", marks=pytest.mark.thorough),
    ],
    ids=["scancel", "down", "ctrl-c"],
)
def test_an_end_that_is_asked_for_leaves_nothing(
    nodes: SlurmBed, launch: Launch, end: Callable[..., None], codes: set[int], why: str
) -> None:
    """Whatever the tasks do about TERM, which each of them gets once from us; and the cause is named."""
    up = launch.start("up", shell(launch, STUBBORN, timeouts={"grace": 5}), "--on", "slurm")
    wait_for_files(nodes, launch, "up.worker:0", "up.worker:1")
    end(launch, nodes, up)
    out, said = up.communicate(timeout=PATIENCE)
    assert up.returncode in codes, said
    told = re.findall(r"(\S+) +\| told", out)
    assert set(told) == {"worker:0", "worker:1"}, out
    # With proctrack/linuxproc, Slurm itself signals the tasks of a job that is cancelled, too.
    assert end is cancelled or len(told) == 2, out
    assert why in said, said
    assert why in launch.run("explain").stdout
    nodes.wait_until(lambda: not launch.survivors(), "something was left")


@pytest.mark.thorough
def test_a_run_is_found_with_another_home(nodes: SlurmBed, launch: Launch) -> None:
    """By Slurm, which has its directory in the job's comment; there it ends, and here only a link is removed."""
    spec = shell(launch, "echo up; sleep 9999", slurm={"comment": "it's mine"}, timeouts={"grace": 0.5})
    run = launch.run("up", "--on", "slurm", "-d", spec).stdout.strip()
    home = launch.env["TFLAUNCH_HOME"]
    launch.env["TFLAUNCH_HOME"] = f"{home}-2"
    (listed,) = json.loads(launch.run("ls", "--on", "slurm", "--json").stdout)
    assert listed["run"] == run
    assert listed["exit_code"] is None
    following = launch.start("attach")
    read_until(following, "up", 2)
    assert launch.run("down").returncode == 0
    assert following.wait(PATIENCE) == 143
    assert launch.run("prune", "--yes", "--keep", "0", "--older-than", "0s").returncode == 0
    assert launch.run("ls", "--json").stdout.strip() == "[]"
    launch.env["TFLAUNCH_HOME"] = home
    (listed,) = json.loads(launch.run("ls", "--json").stdout)
    assert listed["exit_code"] == 143
    assert launch.run("ls", "--on", "slurm").stderr == "tflaunch: you have no runs on slurm\n"


def test_a_job_in_the_queue(nodes: SlurmBed, launch: Launch) -> None:
    """It is listed by `ls`, `ps` says what it waits for, and `down` cancels it."""
    ended = launch.up(shell(launch, "true"), "--on", "slurm", "-d", "--set", "slurm.begin=now+1hour")
    run = ended.stdout.strip()
    assert ended.returncode == 0, ended.stderr
    (listed,) = json.loads(launch.run("ls", "--json").stdout)
    assert (listed["run"], listed["state"]) == (run, "queued")
    for verb in ("ps", "logs", "events"):
        shown = launch.run(verb, run)
        assert shown.returncode == 125, verb
        assert f"job {job_of(launch)} is PENDING (BeginTime)" in shown.stderr
        assert "Traceback" not in shown.stderr
    assert f"run {run} has not begun" in launch.run("queue").stderr
    waiting = launch.start("wait", run)
    taken_back = launch.succeed("down", run)
    assert "cancelled before it began" in taken_back.stderr
    _, said = wait_for_end(waiting, 125)
    assert "CANCELLED" in said
    (listed,) = json.loads(launch.run("ls", "--json").stdout)
    assert listed["state"] == "stopped"


@pytest.mark.thorough
def test_a_job_that_waits_for_a_person_is_said_to_wait_for_ever(nodes: SlurmBed, launch: Launch) -> None:
    """With the reason, and how to cancel it."""
    up = launch.start("up", shell(launch, "true"), "--on", "slurm", "--set", "slurm.hold=true")
    line = read_errors_until(up, "(JobHeldUser)")
    run = launch.run_directory().name
    assert "it is held; `scontrol release` lets it start" in line
    assert f"`tflaunch down {run}`" in line
    assert "it is held" in launch.run("ps").stderr
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=PATIENCE)


@pytest.mark.thorough
def test_from_another_machine(nodes: SlurmBed, launch: Launch) -> None:
    """Local sockets and locks of its node mean nothing here: its supervisor is reached through the job.

    An overlay stands in for a network file system: files are visible, sockets and locks are not.
    """
    script = "echo began; touch up.$TFLAUNCH_TASK; until [ -e go ]; do sleep 0.1; done; echo went"
    started = launch.up(shell(launch, script), "--on", "slurm", "-d")
    run = started.stdout.strip()
    wait_for_files(nodes, launch, "up.worker:0", "up.worker:1")
    (launch.directory / "nothing").mkdir()
    mount = f"mount -t overlay overlay -o lowerdir={launch.home}:{launch.directory / 'nothing'} {launch.home}"
    launch.prefix = [*launch.prefix, "unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    connect = "import os, socket; os.chdir({!r}); socket.socket(socket.AF_UNIX).connect('control.sock')"
    program = [sys.executable, "-c", connect.format(str(launch.run_directory()))]
    refused = subprocess.run([*launch.prefix, *program], capture_output=True, text=True, check=False)
    assert "ConnectionRefusedError" in refused.stderr
    shown = launch.status(run)
    assert {task["state"] for task in shown["tasks"]} == {"running"}
    assert shown["supervisor"] == "alive"
    waiting, following = launch.start("wait", run), launch.start("logs", "-f", run)
    read_until(following, "began", 2)
    assert json.loads(launch.run("ls", "--json").stdout)[0]["state"] == "running"
    assert launch.run("kill", "-s", "CONT", run, "worker:0").returncode == 0
    (launch.directory / "go").touch()
    out, _ = following.communicate(timeout=PATIENCE)
    assert out.count("went") == 2
    wait_for_end(waiting)


SERVED = {"cluster": {"chief": 1, "worker": 2, "ps": 1}, "strategy": "parameter_server", "success": "all"}
SPREAD = {"cluster": {"worker": 4}, "strategy": "none"}
GPUS: tuple[tuple[dict[str, Any], dict[str, str], list[str]], ...] = (
    ({**SERVED, "roles": {"worker": {"gpus": 1}}}, {}, ["", "0", "1", ""]),
    (SERVED, {"gpus-per-node": "2"}, ["-1", "0", "1", "-1"]),
    (SPREAD, {"nodes": "2", "gpus-per-task": "1"}, ["0", "1", "0", "1"]),
    (SPREAD, {"nodes": "2", "gpus": "4"}, ["0", "1", "0", "1"]),
    (SPREAD, {"nodes": "2", "gres": "gpu:2"}, ["0", "1", "0", "1"]),
    ({**SPREAD, "cluster": {"worker": 2}}, {"nodes": "2", "gpus": "3"}, ["0,1", "0"]),
)
"""A spec, its `slurm`, and which GPUs its tasks see on nodes with two; "" if that is not decided."""


@pytest.mark.thorough
def test_tasks_share_the_gpus_of_their_node(tmp_path: Path, launch: Launch) -> None:
    """However they are asked for; each task has the rank that srun would give it. `check` tells what no node has."""
    need("slurm")
    tell = (
        "echo $TFLAUNCH_TASK sees $CUDA_VISIBLE_DEVICES as $SLURM_PROCID/$SLURM_NTASKS, $SLURM_LOCALID in $SLURM_NODEID"
    )
    with SlurmBed.on_this_machine(tmp_path / "slurm", 2, gpus=2) as slurm:
        launch.env |= slurm.env | {"SLURM_LABELIO": "1", "SLURM_EXPORT_ENV": "NONE"}
        for fields, options, seen in GPUS:
            spec = launch.spec(command=["sh", "-c", tell], slurm=options, **fields)
            ended = launch.succeed("up", spec, "--on", "slurm")
            said = re.findall(r"\w+:\d sees (\S*) as (\d)/(\d), (\d) in (\d)", ended.stdout)
            said.sort(key=lambda each: each[1])
            assert [mine if wanted else "" for (mine, *_), wanted in zip(said, seen, strict=True)] == seen, options
            on_each = len(seen) // len({node for *_, node in said})
            assert [tuple(map(int, rank)) for _, *rank in said] == [
                (number, len(seen), number % on_each, number // on_each) for number in range(len(seen))
            ]
        checked = launch.run("check", spec, "--on", "slurm", "--gpus-per-node", "3")
    assert "slurm: Slurm does not take the job: " in checked.stdout


SAVING = "trap 'echo saved; exit 0' TERM; sleep 1; echo up; while true; do sleep 0.1; done"
"""It is up when it has something to save: a task that ends with 0 within `policy.SETTLES_WITHIN` is done at once."""
PREEMPTING = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=60",
    "PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF",
)


@pytest.mark.thorough
def test_a_job_is_preempted_with_time_to_save(tmp_path: Path, launch: Launch) -> None:
    """Slurm tells the nodes only, and not why; the run ends as soon as its tasks have saved."""
    need("slurm")
    spec = launch.spec(
        cluster={"worker": 2}, command=["bash", "-c", SAVING], slurm={"partition": "low", "exclusive": True}
    )
    with SlurmBed.on_this_machine(tmp_path / "slurm", 1, options=PREEMPTING) as slurm:
        launch.env |= slurm.env
        up = launch.start("up", spec, "--on", "slurm")
        read_until(up, " | up", 2)
        slurm.asked("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=sleep 0")
        out, said = wait_for_end(up, 128 + signal.SIGTERM)
    assert "the job was preempted by another one" in said
    assert out.count("saved") == 2


RESUMING = """
echo "$TFLAUNCH_TASK began"
if [ -e checkpoint ]; then echo "$TFLAUNCH_TASK went on"; exit 0; fi
touch up.$TFLAUNCH_TASK
until [ -e save ]; do sleep 0.1; done
"""


def test_a_job_that_is_requeued_resumes(nodes: SlurmBed, launch: Launch) -> None:
    """It is the same run, also for commands that follow it."""
    up = launch.start("up", shell(launch, RESUMING), "--on", "slurm")
    wait_for_files(nodes, launch, "up.worker:0", "up.worker:1")
    waiting, attached, following = (launch.start(*words) for words in (("wait",), ("attach",), ("logs", "-f")))
    read_until(attached, "worker:1 began")
    read_until(following, "worker:1 began")
    (launch.directory / "checkpoint").touch()
    nodes.asked("scontrol", "requeue", job_of(launch))
    nodes.wait_until(lambda: "PENDING" in nodes.asked("squeue", "--noheader", "--format=%T"), "not requeued")
    assert json.loads(launch.run("ls", "--json").stdout)[0]["state"] == "queued"
    assert "begins again: job" in launch.run("ps").stderr
    for process in (up, attached, following):
        out, _ = wait_for_end(process)
        assert "worker:0 went on" in out
        assert "worker:1 went on" in out
    wait_for_end(waiting)
    assert (launch.run_directory() / "earlier-1" / "events.jsonl").exists()
    shown = launch.run("logs", "worker:0")  # the shell may add "Terminated"
    lines = [line for line in shown.stdout.splitlines() if line.startswith("worker:0")]
    assert lines == ["worker:0 began", "worker:0 began", "worker:0 went on"]
    assert "Slurm started the job again (restart 1)" in shown.stderr
    assert launch.run("logs", "worker:0", "--attempt", "0").stdout == "worker:0 began\nworker:0 went on\n"
    assert launch.run("ps").returncode == 0


@pytest.mark.thorough
def test_a_controller_that_is_away_for_a_while_is_waited_for(make_nodes: tuple[Bed, SlurmBed], launch: Launch) -> None:
    """Jobs continue without it, and so do commands that follow them."""
    _, slurm = make_nodes
    up = launch.start("up", shell(launch, "true"), "--on", "slurm", "--set", "slurm.begin=now+1hour")
    slurm.wait_until(lambda: bool(slurm.asked("squeue", "--noheader")), "no job")
    slurm.stop_controller()
    read_errors_until(up, "still trying")
    slurm.start_controller()
    slurm.wait_until(lambda: bool(slurm.asked("squeue", "--noheader")), "no controller")
    slurm.asked("scontrol", "update", f"jobid={job_of(launch)}", "StartTime=now")
    wait_for_end(up)


@pytest.mark.thorough
def test_when_the_time_is_over_tasks_may_save(nodes: SlurmBed, launch: Launch) -> None:
    """Slurm sends TERM before KILL, or earlier if asked; for its own tools both jobs have reached their limit."""
    spec = shell(launch, "trap 'echo saved; exit 0' TERM; while :; do sleep 0.1; done")
    begin = ("up", spec, "--on", "slurm", "--time", "1")
    for up, reason in (
        (launch.start(*begin), "is reached"),
        (launch.start(*begin, "--set", "slurm.signal=TERM@40"), "will soon be reached"),
    ):
        out, said = up.communicate(timeout=LIMIT + PATIENCE)
        assert (up.returncode, out.count("| saved")) == (143, 2), said
        assert f"the time limit of 00:01:00 {reason} (slurm.time)" in said, said
        (job,) = re.findall(r" is job (\d+)", said)
        assert (f"Slurm ends job {job} at its time limit, in " in said) == ("soon" in reason), said
        assert not re.search("emptied|restart", said), said
        assert "JobState=TIMEOUT" in nodes.asked("scontrol", "show", "job", job)


@pytest.mark.thorough
def test_a_node_fails_and_the_job_goes_on_elsewhere(make_nodes: tuple[Bed, SlurmBed], launch: Launch) -> None:
    """Slurm requeues it, and it resumes on the remaining nodes."""
    bed, slurm = make_nodes
    up = launch.start("up", shell(launch, RESUMING), "--on", "slurm")
    wait_for_files(slurm, launch, "up.worker:0", "up.worker:1")
    (launch.directory / "checkpoint").touch()
    bed.power_off(2)
    out, _ = wait_for_end(up)
    assert "worker:1 went on" in out
    assert [host["host"] for host in launch.status()["hosts"]] == ["h1", "h3"]
    slurm.wait_until(lambda: not launch.survivors(), "something was left")


@pytest.mark.thorough
def test_a_node_fails_and_nothing_may_start_again(make_nodes: tuple[Bed, SlurmBed], launch: Launch) -> None:
    """Then the job has failed, and the node is to blame."""
    bed, slurm = make_nodes
    up = launch.start("up", shell(launch, RESUMING, restart={"max": 0}), "--on", "slurm")
    wait_for_files(slurm, launch, "up.worker:0", "up.worker:1")
    bed.power_off(1)  # where the supervisor runs
    _, said = wait_for_end(up, 125)
    assert "NODE_FAIL" in said
    slurm.wait_until(lambda: not launch.survivors(), "something was left")


@pytest.mark.thorough
def test_doctor_looks_at_the_nodes_of_an_allocation(nodes: SlurmBed, launch: Launch) -> None:
    """Through its own agents."""
    spec = shell(launch, "true", hosts={"discover": "slurm"}, cluster={"worker": 2})
    launch.prefix = [*launch.prefix, "salloc", "--quiet", "--nodes=2"]
    ended = launch.succeed("doctor", spec)
    assert "2 of 2 hosts reached" in ended.stdout


@pytest.mark.thorough
def test_commands_run_on_the_nodes_of_a_job(nodes: SlurmBed, launch: Launch) -> None:
    """From where it was submitted, through a step of the job; their processes end with who has started them."""
    launch.succeed("up", shell(launch, "touch up.$TFLAUNCH_TASK; sleep 9999"), "-d", "--on", "slurm")
    wait_for_files(nodes, launch, "up.worker:0", "up.worker:1")
    tell = 'echo "$TFLAUNCH_TASK $SLURMD_NODENAME $(pwd)"; cat; exit 6'
    on_all = launch.run("exec", "--all", "--", "sh", "-c", tell)
    where = launch.directory.resolve()
    expected = [f"h{number + 1} | worker:{number} h{number + 1} {where}" for number in range(2)]
    assert (sorted(on_all.stdout.splitlines()), on_all.returncode) == (expected, 6), on_all.stderr
    left = launch.start(
        "exec", "worker:1", "--", "sh", "-c", "trap 'touch was-told; exit' TERM; echo up; sleep 654 & wait"
    )
    read_until(left, "up")
    left.kill()
    wait_for_files(nodes, launch, "was-told")
    assert launch.run("down").returncode == 0


GOING_ON = """
import os, pathlib, signal, sys, time
from tflaunch_worker.training import progress
saved = pathlib.Path("model-" + os.environ["TFLAUNCH_TASK"][-1] + ".ckpt")
step = int(saved.read_text()) if saved.exists() and os.environ["READS"] else 0
print("began at step", step, flush=True)
def save(*_):
    saved.write_text(str(step))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
while step < int(os.environ["STEPS"]):
    time.sleep(0.1)
    step += 1
    progress.report(step)
print("trained to the end", flush=True)
"""


def up_to_limits(launch: Launch, directory: Path, steps: int, code: int = 0, reads: str = "1") -> tuple[str, str]:
    """Train with a time limit of a minute; return stdout and stderr."""
    need("slurm")
    (launch.directory / "train.py").write_text(GOING_ON)
    env = {"STEPS": str(steps), "READS": reads}
    command = ["python", "train.py"]
    spec = launch.spec(cluster={"worker": 2}, strategy="none", command=command, env=env, timeouts={"grace": 3})
    with SlurmBed.on_this_machine(directory, 1) as slurm:
        launch.env |= slurm.env
        up = launch.start("up", spec, "--on", "slurm", "--time", "1")
        out, said = up.communicate()
        assert up.returncode == code, out + said
        return out, said


@pytest.mark.thorough
@pytest.mark.timeout(0)
def test_a_run_goes_on_after_its_time_limit(tmp_path: Path, launch: Launch) -> None:
    """With what it has saved, as the same run, and without a charge."""
    limits = 12 if LONG else 1  # more than ten lives also where one is longer than its limit
    out, said = up_to_limits(launch, tmp_path / "slurm", 500 + 600 * limits)
    assert out.count("trained to the end") == 2
    lives = len(list(launch.run_directory().glob("earlier-*")))
    assert said.count("goes back into the queue, to go on from there") == lives >= 1
    began = [int(step) for step in re.findall(r"worker:0 \| began at step (\d+)", out)]
    assert began == sorted(set(began))
    assert launch.status()["state"] == "succeeded"


@pytest.mark.thorough
@pytest.mark.skipif(not LONG, reason="waits for two time limits: TFLAUNCH_TEST_LONG=1")
def test_a_program_that_reads_nothing_ends_at_its_second_limit(tmp_path: Path, launch: Launch) -> None:
    out, said = up_to_limits(launch, tmp_path / "slurm", 10**6, 128 + signal.SIGTERM, reads="")
    assert out.count("began at step 0") == 4
    assert "the run does not go on after its time limit: it began anew in this job; let the program save" in said

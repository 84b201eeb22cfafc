"""Hints about a task's last lines, and of runs. last_lines.txt beside this file has those of real programs."""

import ast
import functools
import re
import time
from pathlib import Path
from typing import Any

import pytest

from support.job_history import History, mirrored
from support.specs import MACHINE, REPOSITORY, planned
from tflaunch.core.annotations import NOTHING
from tflaunch.core.job_state import Cause, Culprit
from tflaunch.explain import summary
from tflaunch.explain.causes import last_traceback
from tflaunch.explain.hints import Facts, find_hint
from tflaunch.features.hints import hint_rules
from tflaunch.features.hints.hint_rules import saw_peer_vanish
from tflaunch_worker import failures

MIRRORED = Facts("multi_worker_mirrored", task="worker:0", legacy_keras=True)
SERVERS = Facts("parameter_server", task="chief:0", role="chief", legacy_keras=True)
ALONE = Facts("none", task="worker:0", python="/opt/py/bin/python")
KERAS_3 = {"legacy_keras": False}


def exception_line(lines: list[str]) -> str | None:
    """Return ``SomeError: text`` of the last failure, None without one."""
    found = failures.find_failure(failures.bounded(lines))
    return None if found is None else found.sentence


def real() -> dict[str, list[str]]:
    """Return the last lines of programs that failed under TensorFlow 2.21, with frames and log lines thinned out."""
    text = Path(__file__).with_name("last_lines.txt").read_text()
    sections = re.split(r"^==== (.+)\n", text, flags=re.MULTILINE)[1:]
    return {name: lines.splitlines() for name, lines in zip(sections[::2], sections[1::2], strict=True)}


REAL = real()
UNFIT = "TF_CONFIG does not fit its task"
SAID = {
    "port busy": (MIRRORED, "its port is in use"),
    "tf_keras missing": (MIRRORED, "tf_keras is not installed for its python"),
    "no module": (ALONE, "no_such_package is not installed for /opt/py/bin/python"),
    "no program": (ALONE, "the program was not found"),
    "windows interpreter": (ALONE, "a script has line endings of Windows"),
    "windows script": (ALONE, "a script has line endings of Windows"),
    "no stdin": (ALONE, "pass the answer as an argument"),
    "two dispatchers": (ALONE, "several dispatchers of a tf.data service share a port"),
    "no tensorboard": (ALONE, "install tensorboard for /opt/py/bin/python"),
    "tensorboard missing": (ALONE, "install tensorboard there, with pip or uv"),
    "tensorboard before 2.21": (ALONE._replace(task="tensorboard"), "install 'setuptools<82' there"),
    "tf_config no json": (MIRRORED, "TF_CONFIG is not valid JSON"),
    **{f"tf_config {part}": (MIRRORED, UNFIT) for part in ("role", "task", "index", "port")},
    "strategy too late": (MIRRORED, "create the strategy first"),
    "estimator": (ALONE, "2.16 removed estimators"),
    "legacy name": (MIRRORED._replace(legacy_keras=False), "set legacy_keras to true"),
    "keras 3 mirrored": (MIRRORED._replace(legacy_keras=False), "Keras 3 cannot `fit` under MultiWorkerMirrored"),
    "keras 3 servers": (SERVERS._replace(legacy_keras=False), "Keras 3 cannot `fit` under ParameterServer"),
    "verbose": (SERVERS, "verbose=2"),
    "no steps": (SERVERS, "steps_per_epoch"),
    "no steps creator": (SERVERS, "steps_per_epoch"),
    "data ended on a worker": (SERVERS, "a worker ran out of data"),
    "no slurm": (MIRRORED, "SlurmClusterResolver needs SLURM_PROCID, which only `srun` sets"),
    "two save": (MIRRORED, "another task saves to the same path"),
    "two save data": (MIRRORED, "another task saves to the same path"),
    "few files": (MIRRORED, "fewer data files than workers"),
    "empty share": (MIRRORED, "it ran out of data before the last step"),
    "data ran out": (MIRRORED, "it ran out of data before the last step"),
    "disk full in tensorflow": (MIRRORED, "a disk that it writes to is full"),
    "disk full in python": (ALONE, "a disk that it writes to is full"),
    "checkpoint garbage": (ALONE, "the checkpoint that it restores is damaged"),
    "checkpoint cut off": (ALONE, "name an earlier one as model_checkpoint_path"),
    "checkpoint changed": (ALONE, "ck/ckpt-1 is damaged: name an earlier one as model_checkpoint_path"),
    "weights cut off": (ALONE, "the model or weights that it loads are damaged"),
    "record changed": (ALONE, "a TFRecord file that it reads is damaged"),
    "file too large": (ALONE, "larger than `ulimit -f`"),
    "file too large in tensorflow": (SERVERS, "larger than `ulimit -f`"),
    "password": (ALONE, "a task has no terminal: pass it in `secrets`"),
    "backup not shared": (MIRRORED._replace(attempt=1), "directory of BackupAndRestore"),
    "not the same steps": (MIRRORED._replace(attempt=1, recurs=True), "the tasks do not run the same steps"),
    "one saves": (MIRRORED, "the tasks reduce tensors of different shapes"),
    "one saves, elsewhere": (MIRRORED._replace(task="worker:2"), "the tasks reduce tensors of different shapes"),
    "one variable more, elsewhere": (MIRRORED._replace(task="worker:2"), "the tasks do not run the same steps"),
    "no checkpoint": (MIRRORED._replace(hosts=2), "does not have the checkpoint"),
    "too much memory": (ALONE, "more memory than there is"),
    "unknown operation": (MIRRORED, "the same TensorFlow on every host"),
    "unknown attribute": (MIRRORED, "the same TensorFlow on every host"),
    "worker lost": (MIRRORED, "it lost worker:1, so the cause is whatever ended that task"),
    "leader lost": (MIRRORED._replace(task="worker:1"), "it lost worker:0"),
    "new incarnation": (MIRRORED, "let tflaunch restart all tasks"),
    "tf_config of another program": (
        MIRRORED._replace(task="worker:1", cluster_formed=False),
        "two tasks call themselves worker:0: the program sets TF_CONFIG itself",
    ),
    "finished early": (MIRRORED._replace(finished=("worker:1",)), "worker:1 had already ended"),
    "ps lost": (SERVERS, "ps:0 was lost with its variables"),
    "worker of servers lost": (SERVERS, "it lost worker:0"),
}
VICTIMS = {
    "worker lost", "leader lost", "tf_config of another program", "new incarnation", "finished early", "ps lost",
    "worker of servers lost",
}  # fmt: skip
EXCEPTIONS = {
    "port busy": "UnknownError: Could not start gRPC server",
    "no tensorboard": "TBNotInstalledError: TensorBoard is not installed, missing implementation for tf.summary.scalar",
    "keras 3 mirrored": "ValueError: Attempt to convert a value (PerReplica:{",
    "disk full in python": "OSError: [Errno 28] No space left on device",
    "ps lost": "UnavailableError: recvmsg:Connection reset by peer",
    "data ran out": None,
    "no program": None,
}


@pytest.mark.parametrize("name", REAL)
def test_real_last_lines_get_their_sentence(name: str) -> None:
    facts, words = SAID[name]
    sentence = find_hint(REAL[name], facts)
    assert sentence is not None
    assert words in sentence
    assert "{" not in sentence
    assert len(sentence) < 200
    assert saw_peer_vanish(REAL[name]) is (name in VICTIMS), "only a task that lost a peer is a victim"


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_the_exception_is_found(name: str) -> None:
    """Of a graph, TensorFlow reports first an error, then its location, and last its cause."""
    assert exception_line(REAL[name]) == EXCEPTIONS[name]
    cause = "InvalidArgumentError: Could not apply FILE based sharding: the dataset only has 1 file(s)"
    assert (exception_line(REAL["few files"]) or "").startswith(cause)
    found = last_traceback(REAL["no tensorboard"])
    assert found[0] == "Traceback (most recent call last):"
    assert found[-1].startswith("tensorflow.python.summary.tb_summary.TBNotInstalledError: ")
    assert not any("ModuleNotFoundError" in line for line in found), "the one that it was chained to"


def test_what_cpp_code_logs_behind_a_traceback_does_not_hide_it() -> None:
    """After the exception TensorFlow may log hundreds of lines."""
    noise = [line for line in REAL["ps lost"] if line.startswith("E0000")] * 100
    found = last_traceback(REAL["ps lost"] + noise)
    assert found[0] == "Traceback (most recent call last):"
    assert found[-1].endswith("[Op:Identity] name:")
    assert find_hint(REAL["new incarnation"] + noise, MIRRORED) == find_hint(REAL["new incarnation"], MIRRORED)


WITH_OTHERS = [
    "Traceback (most recent call last):",
    '  File "train.py", line 1, in <module>',
    "E0000 00:00:1795247827.872337   19180 cuda_platform.cc:52] failed call to cuInit",
    "    main()",
    "ValueError: no",
]
WITHOUT_BEGINNING = ["    main()", '  File "train.py", line 1, in main', "    fail()", "train.Failure: it is", "so"]
OF_SYNTAX = ['  File "train.py", line 1', "    x = = 1", "        ^", "SyntaxError: invalid syntax"]


@pytest.mark.parametrize(
    ("lines", "traceback", "exception"),
    [
        (WITH_OTHERS, [*WITH_OTHERS[:2], *WITH_OTHERS[3:]], "ValueError: no"),
        (WITHOUT_BEGINNING, [], "Failure: it is"),
        (["words", *OF_SYNTAX], OF_SYNTAX, "SyntaxError: invalid syntax"),
    ],
    ids=["lines of other threads are left out", "without its beginning", "a syntax error has no head"],
)
def test_an_unusual_traceback(lines: list[str], traceback: list[str], exception: str) -> None:
    assert last_traceback(lines) == traceback
    assert exception_line(lines) == exception


CAUGHT = ["a", "ValueError: was caught", "epoch 2"]


@pytest.mark.parametrize("lines", [[], [""], ["done"], ["Traceback (most recent call last):"], CAUGHT, ["  x", "y:"]])
def test_there_may_be_no_traceback(lines: list[str]) -> None:
    assert last_traceback(lines) == []
    assert exception_line(lines) is None
    assert find_hint(lines, MIRRORED) is None
    assert not saw_peer_vanish(lines)


OF_PEERS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
OWN = ("InvalidArgumentError", "ResourceExhaustedError", "UnknownError", "InternalError")


@pytest.mark.parametrize("kind", [*OF_PEERS, *OWN])
def test_only_errors_of_peers_name_a_lost_peer(kind: str) -> None:
    mirrored = [line.replace("UnavailableError", kind) for line in REAL["worker lost"]]
    hint = find_hint(mirrored, MIRRORED) or ""
    assert ("it lost worker:1" in hint) is (kind in OF_PEERS)
    servers = [line.replace("UnavailableError", kind) for line in REAL["ps lost"]]
    assert ("ps:0 was lost" in (find_hint(servers, SERVERS) or "")) is (kind in OF_PEERS)
    assert saw_peer_vanish(servers) is (kind in OF_PEERS)


def test_an_error_of_a_closure_names_no_lost_peer() -> None:
    closure = Path(__file__).parents[2] / "unit" / "failures" / "closure-in-fit.txt"
    lines = closure.read_text().partition("----\n")[2].splitlines()
    assert find_hint(lines, SERVERS) is None
    assert not saw_peer_vanish(lines)


def test_keras_3_is_named_with_all_that_leads_to_it() -> None:
    # The plan does not know which it was: with legacy_keras at auto, the host chooses by what is installed there.
    for lines, facts in (("keras 3 mirrored", MIRRORED), ("keras 3 servers", SERVERS)):
        hint = find_hint(REAL[lines], facts) or ""
        assert all(remedy in hint for remedy in ("`keras` is always Keras 3", "install tf_keras"))
    assert find_hint(REAL["keras 3 mirrored"], ALONE) is None


REDUCTION = "ValueError: Invalid reduction dimension 0 for input with 0 dimensions. for '{{node Mean}}'"
OOM = (
    "ResourceExhaustedError: OOM when allocating tensor with shape[9,9] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Fill]"
)
SHARED_MEMORY = (
    "gpu1:168:168 [0] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment "
    "/dev/shm/nccl-UbzKZ9 (size 9637888), error: No space left on device (28)"
)
LOCKED = "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
ABORTED = "tensorflow.python.framework.errors_impl.InternalError: Collective ops is aborted by: "
ONE_GPU = f"{ABORTED}NCCL: invalid usage. Set NCCL_DEBUG=WARN for detail."
NO_GPU = (
    f"{ABORTED}Device /job:worker/replica:0/task:1/device:CPU:0 is joining a group with incompatible device type CPU "
    "(group type GPU) Additional GRPC error information from remote target /job:worker/replica:0/task:0"
)


@pytest.mark.parametrize(
    ("line", "facts", "words"),
    [
        # No summary tells of a sidecar.
        ("ImportError: Error while finding module specification for 'tensorboard.main' (ModuleNotFoundError: …)",
         Facts("none", "tensorboard"), "install tensorboard"),
        (REDUCTION, MIRRORED._replace(legacy_keras=False), "Keras 3 cannot `fit`"),
        (OOM, ALONE, "its GPU is out of memory"),
        ("cuda_driver.cc] failed to allocate 2.00GiB: CUDA_ERROR_OUT_OF_MEMORY", ALONE, "its GPU is out of memory"),
        ("RuntimeError: Mismatched number of GPUs per worker", SERVERS, "the same number of GPUs"),
        (SHARED_MEMORY, MIRRORED, "too little space in /dev/shm"),
        (LOCKED, MIRRORED, "`ulimit -l` must be unlimited"),
        ("[0] NCCL WARN Bootstrap : no socket interface found", MIRRORED, "correct or remove NCCL_SOCKET_IFNAME"),
        ("OSError: [Errno 98] Address already in use", ALONE, "its port is in use"),
        (ONE_GPU, MIRRORED, "two tasks use one GPU, which NCCL forbids"),
        (NO_GPU, MIRRORED._replace(task="worker:1"), "some tasks see a GPU and others none"),
        ("InternalError: No blas support for stream [Op:MatMul]", MIRRORED, "often by another task"),
        ("No module named 'tflaunch_worker'", ALONE, "run `/opt/py/bin/python -m pip install tflaunch`"),
        ("No module named 'tflaunch_worker'", ALONE._replace(host="h2"), "at the end of PYTHONPATH"),
    ],
)  # fmt: skip
def test_words_that_this_machine_cannot_bring_about(line: str, facts: Facts, words: str) -> None:
    assert words in (find_hint([line], facts) or "")
    assert not saw_peer_vanish(['  File "train.py", line 9', line])
    assert len({(rule.sentence, rule.pattern) for rule in hint_rules.RULES}) == len(hint_rules.RULES)
    assert all(len(rule.sentence) < 200 and not rule.sentence.endswith(".") for rule in hint_rules.RULES)


def test_what_is_known_of_a_task_is_used() -> None:
    """Proxies when tasks never met, a signal, and that a task's own error may be reported back to it."""
    proxies = MIRRORED._replace(proxies=("http_proxy", "HTTP_PROXY"), cluster_formed=False)
    assert (find_hint([], proxies) or "").startswith("its environment has http_proxy and HTTP_PROXY")
    assert find_hint([], proxies._replace(cluster_formed=True)) is None
    assert "AVX" in (find_hint([], ALONE._replace(signal=4)) or "")
    assert find_hint(REAL["worker lost"], MIRRORED._replace(task="worker:1")) is None
    missed = REAL["no module"]  # and done without
    assert find_hint([*missed, *REAL["verbose"]], SERVERS) == find_hint(REAL["verbose"], SERVERS)
    braces = ALONE._replace(python="/opt/{python}/{0}")
    assert "/opt/{python}/{0}" in (find_hint(REAL["no module"], braces) or "")


@pytest.mark.parametrize("sign", ["a", "0", " ", "/job:", "OOM when allocating ", "Connection refused", "'"])
def test_hostile_lines_take_no_time(sign: str) -> None:
    """Patterns are bounded, and so is their input."""
    lines = [(sign * 5000)[:5000]] * 1000
    began = time.process_time()
    find_hint(lines, MIRRORED._replace(finished=("worker:1",)))
    find_hint(['  File "x"', *lines[:1], "E: tfconfig_cluster_resolver.py" * 60], SERVERS)
    exception_line(lines)
    saw_peer_vanish(lines)
    assert time.process_time() - began < 20, "seconds of CPU: where one is not, it is minutes"


HEAD = "Traceback (most recent call last):"
ON_H1 = MACHINE._replace(local_names=frozenset({"h1"}))
TWO_HOSTS = {
    "cluster": {"worker": ["h1:1", "h2:2"]},
    "command": ["python", "train.py"],
    "hosts": {"h2": {"python": "/opt/py/bin/python"}},
}


def test_a_module_missing_elsewhere_is_told_with_host_and_interpreter() -> None:
    job = History(planned(TWO_HOSTS, ON_H1)).job
    log = [HEAD, '  File "train.py", line 1, in <module>', "ModuleNotFoundError: No module named 'tensorflow'"]
    here, there = (summary.hint_for(job, task, lambda *_: log) for task in ("worker:0", "worker:1"))
    assert here == (
        "tensorflow is not installed for python: python -m pip install it, or if it is your own module, set "
        "`env.PYTHONPATH` to its directory"
    )
    assert there == (
        "tensorflow is not installed for /opt/py/bin/python on h2: install it there (`setup`), or set "
        "hosts.h2.python to a Python that has it; `sync` copies modules of your own"
    )
    culprit = Culprit(Cause.TASK, "worker:1", 0, host="h2", code=1)
    text = summary.summary(job._replace(culprit=culprit, exit_code=1), "/logs", lambda *_: log)
    assert "\ntraceback of worker:1 (/opt/py/bin/python on h2):\n" in text


def test_of_tasks_that_blame_each_other_the_one_that_names_a_cause_is_believed() -> None:
    """The first to exit may only have heard of it."""
    history = mirrored(2, restart={"max": 0}).ends("worker:0", 1).ends("worker:1", 1)
    heard = "UnavailableError: Collective ops is aborted by: Error reported from /job:worker/replica:0/task:1: failed"
    cause = "InternalError: Collective ops is aborted by: NCCL: invalid usage"
    frame = '  File "train.py", line 9, in <module>'
    logs = {"worker:0": [HEAD, frame, heard], "worker:1": [HEAD, frame, cause]}
    hint = summary.failure(history.job, lambda task, _: logs[task], history.known).hint or ""
    assert hint.startswith("worker:1 tells the cause: two tasks use one GPU")


@pytest.mark.parametrize(
    ("earlier", "words"),
    [
        ({"code": None, "signal": 9}, "the tasks continued from different steps"),
        ({"code": 1, "failure": "InternalError at train.py:9"}, "the tasks do not run the same steps"),
    ],
)
def test_what_an_attempt_began_with_is_not_blamed_for_what_recurs(earlier: dict[str, Any], words: str) -> None:
    history = mirrored(2, restart={"max": 1, "backoff": [1, 1]})
    history.ends("worker:0", **earlier).ends("worker:1", None, 9).wait().start()
    history.ends("worker:0", 1, failure="InternalError at train.py:7").ends("worker:1", None, 9)
    said = "InternalError: Collective instance 104 expected type 0 and data_type 1 but got type 1 and data_type 1"
    hint = summary.failure(history.job, lambda *_: [HEAD, '  File "train.py", line 7, in fit', said], NOTHING).hint
    assert (hint or "").startswith(words)


# ---- docs/troubleshooting.md: each heading is the text of a message of tflaunch

PAGE = REPOSITORY / "docs" / "troubleshooting.md"
HEADINGS = re.findall(r"^### (.+)$", PAGE.read_text(), re.MULTILINE)


@functools.cache
def texts() -> list[str]:
    """Return all texts in the code, with an ellipsis for each value in them."""
    found = []
    for path in [*REPOSITORY.glob("launcher/**/*.py"), *REPOSITORY.glob("worker/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"\{\w+\}", "…", node.value))
    return found


def is_printed(heading: str) -> bool:
    """Return whether one text of the code has all parts of a heading, in their order."""
    parts = [part for part in re.split(r"\s*…\s*", heading) if part]
    pattern = re.compile("[\\s\\S]*".join(map(re.escape, parts)))
    return any(pattern.search(text) for text in texts())


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_is_a_message(heading: str) -> None:
    assert is_printed(heading)

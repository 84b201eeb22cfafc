"""Known problems, by what tasks write last.

The patterns fit TensorFlow 2.21, tf_keras 2.21 and Keras 3.15; a test has real last lines for each.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tflaunch.core.restart_rules import is_error_of_peer
from tflaunch.explain.causes import failure_words
from tflaunch.explain.hints import Facts
from tflaunch_worker import failures
from tflaunch_worker.readable import printable

_LAST_WORDS = 20  # lines examined for a task that ended without a traceback

_CUT_OFF = (
    r"(?:Connection reset by peer|Connection refused|Broken pipe|Socket closed|failed to connect to all addresses)"
)
_ONE_GPU = r"NCCL:? invalid usage|Duplicate GPU detected"
_OWN_CAUSE = re.compile(rf"{_ONE_GPU}|a group with incompatible device type|No (?:blas|BLAS) support")
_ABORTED = "Collective ops is aborted by"
_VANISHED = re.compile(
    r"The following tasks are unhealthy"
    r"|Failed to send RPC to coordination service"
    r"|tried to connect with a different incarnation"
    rf"|{_ABORTED}: (?!(?:{_ABORTED}: ){{0,20}}(?:Collective instance|Shape mismatch))"
    r"|This could happen if the remote target has been disconnected"
    rf"|{_CUT_OFF}[\s\S]{{0,300}}?/job:\w"
    r"|PSUnavailableError"
)


class HintRule(NamedTuple):
    """A hint, the pattern that triggers it, and the condition under which it applies.

    The pattern is searched in the task's last exceptions, or ``anywhere`` in its last lines. ``of_peer``: an exception
    that the lines end with must be one that a peer or the network causes; TensorFlow names a peer in errors of the
    program, too.
    """

    pattern: str
    sentence: str
    when: Callable[[Facts], bool] | None = None
    anywhere: bool = False
    of_peer: bool = False


_PEER = r"/job:(?P<role>\w{1,20})/(?:replica:\d{1,5}/)?task:(?P<index>\d{1,5})"


def _mirrored(facts: Facts) -> bool:
    return facts.strategy == "multi_worker_mirrored"


def _on_servers(facts: Facts) -> bool:
    return facts.strategy == "parameter_server"


_EARLIER = (
    ": name an earlier one as model_checkpoint_path in the file `checkpoint` beside it, or delete that to start over"
)
_KERAS_3 = (
    "import tf.keras (`keras` is always Keras 3), install tf_keras and leave legacy_keras at auto, "
    "or write the training loop without `fit`"
)
_NOT_OURS = ", so it is not the one that tflaunch set: remove the code that sets it"
_PER_REPLICA = r"Invalid reduction dimension 0 for input with 0 dimensions|convert a value \(PerReplica:"
_PER_WORKER = r"pass this dataset to ClusterCoordinator\.create_per_worker_dataset"
_NO_STEPS = r"you must specify the number of steps to run|`steps_per_epoch`[^\n]{0,100} must be (?:provided|specified)"

RULES = [
    # They are tried in this order.
    # Before the cluster: the program, its modules, its TF_CONFIG, its port.
    HintRule(
        r"No module named 'tf_keras'|you do not have the tf_keras package|Keras cannot be imported",
        "tf_keras is not installed for {python}: install it in TensorFlow's version, or set legacy_keras to false",
        lambda facts: facts.legacy_keras is not False,
        anywhere=True,
    ),
    HintRule(
        r"TBNotInstalledError",
        "summaries need a package that TensorFlow no longer includes: install tensorboard for {python}",
    ),
    HintRule(
        r"Error while finding module specification for 'tensorboard\.|: No module named tensorboard\b",
        "there is no TensorBoard for {python}: install tensorboard there, with pip or uv, or set hosts.{host}.python",
        anywhere=True,
    ),
    HintRule(
        r"No module named 'pkg_resources'",
        "TensorBoard before 2.21 needs what setuptools 82 has removed: install 'setuptools<82' there, with pip or uv",
        lambda facts: facts.task == "tensorboard",
    ),
    HintRule(
        r"No module named 'tflaunch_worker\b",
        "the library comes with the agent, at the end of PYTHONPATH, which the program or its shell has replaced: add "
        "to it instead",
        lambda facts: bool(facts.host),
    ),
    HintRule(
        r"No module named 'tflaunch_worker\b",
        "tflaunch is installed elsewhere, such as by uv or pipx, and not for {python}: run `{python} -m pip install "
        "tflaunch`, or uv pip install --python {python} tflaunch",
    ),
    HintRule(
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]{1,100})'",
        "{module} is not installed for {python}: install it there (`setup`), or set hosts.{host}.python to a Python "
        "that has it; `sync` copies modules of your own",
        lambda facts: bool(facts.host),
    ),
    HintRule(
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]{1,100})'",
        "{module} is not installed for {python}: {python} -m pip install it, or if it is your own module, set "
        "`env.PYTHONPATH` to its directory",
    ),
    HintRule(
        r"can't open file '[^'\n]{1,500}': \[Errno 2\]",
        "the program was not found: paths are relative to `workdir`, and `sync` copies files to other hosts",
    ),
    HintRule(
        r"\\r\W: (?:No such file or directory|command not found)",
        "a script has line endings of Windows: convert it, for example with dos2unix",
    ),
    HintRule(
        r"/getpass\.py\", line \d{1,6}, in [\s\S]{1,2000}EOFError",
        "it asks for a password, but a task has no terminal: pass it in `secrets`, or in a file that it reads",
    ),
    HintRule(
        r"EOFError: EOF when reading a line",
        "it reads from stdin, which is empty for a task: pass the answer as an argument",
    ),
    HintRule(r"tfconfig_cluster_resolver\.py[\s\S]{1,4000}?JSONDecodeError", "TF_CONFIG is not valid JSON" + _NOT_OURS),
    HintRule(
        r"Disallowed task type found in cluster spec|`task_type` [^\n]{1,80} not found in cluster_spec"
        r"|The `task_id` \d{1,9} exceeds the maximum id|you must also specify `task_type` and `task_id`"
        r"|Could not parse port for local server",
        "TF_CONFIG does not fit its task" + _NOT_OURS,
    ),
    HintRule(
        r"Could not start gRPC server|No address added out of total|Address already in use",
        "its port is in use by another process, or by this one if it creates its server or strategy twice or sets "
        "TF_CONFIG itself; without ports in the spec, tflaunch chooses free ones",
        anywhere=True,
    ),
    HintRule(
        r"Collective ops must be configured at program startup",
        "the program runs a TensorFlow operation before it creates the strategy: create the strategy first",
    ),
    HintRule(
        r"module 'tensorflow' has no attribute 'estimator'",
        "TensorFlow 2.16 removed estimators: the program needs an older version",
    ),
    HintRule(
        r"module 'keras\.[\w.]{1,80}' has no attribute '\w{1,80}'",
        "Keras 3 does not have this name, tf_keras may: set legacy_keras to true",
        lambda facts: facts.legacy_keras is False,
    ),
    HintRule(
        r"(?P<variable>SLURM_\w{1,60}) not found in environment",
        "SlurmClusterResolver needs {variable}, which only `srun` sets: under tflaunch, create the strategy without a "
        "resolver, and it reads TF_CONFIG",
    ),
    # Keras and its strategies.
    HintRule(_PER_REPLICA, "Keras 3 cannot `fit` under MultiWorkerMirroredStrategy: " + _KERAS_3, _mirrored),
    HintRule(_PER_WORKER, "Keras 3 cannot `fit` under ParameterServerStrategy: " + _KERAS_3, _on_servers),
    HintRule(
        r"`verbose=1` is not allowed with `ParameterServerStrategy`",
        "call `fit` with verbose=2 (one line per epoch): the chief does not see the single steps of its workers",
    ),
    HintRule(
        _NO_STEPS, "under ParameterServerStrategy `fit` needs steps_per_epoch, and a dataset that repeats", _on_servers
    ),
    HintRule(
        r"End of sequence",
        "a worker ran out of data: under ParameterServerStrategy, .repeat() the dataset and set steps_per_epoch",
        _on_servers,
        anywhere=True,
    ),
    HintRule(
        r"Mismatched number of GPUs per worker",
        "all workers must see the same number of GPUs: see `gpus` of the role and of the hosts",
    ),
    # Data.
    HintRule(
        r"Could not apply FILE based sharding",
        "there are fewer data files than workers: set the dataset's auto_shard_policy to DATA, or write more files",
    ),
    HintRule(
        # Their servers silently share a port (gRPC's SO_REUSEPORT), and the kernel distributes the connections.
        r"Dataset id \d{1,20} not found\. It must be registered",
        "several dispatchers of a tf.data service share a port: run one, in a sidecar or in one task, or give "
        "each its own port",
    ),
    HintRule(
        r"Your input ran out of data|Unexpected result of `train_function` \(Empty logs\)",
        "it ran out of data before the last step: .repeat() the dataset and set the same steps_per_epoch in every task",
        anywhere=True,
    ),
    # Storage and memory.
    HintRule(
        r"_temp/part-\d{1,5}-of-\d{1,5}[^\n]{0,300}(?:did not exist|No such file)",
        "another task saves to the same path at the same time: only the chief may save there, and each other task "
        "needs a path of its own (tflaunch_worker.training.save_path)",
    ),
    HintRule(
        r"shared memory segment /dev/shm/nccl|(?:fallocate|extend) /dev/shm/nccl",
        "NCCL has too little space in /dev/shm: enlarge it, in containers with `shm_size` (Compose), --shm-size "
        "(Docker) or a volume in memory (Kubernetes)",
        anywhere=True,
    ),
    HintRule(
        r"TensorBundle at (?P<path>[^\n]{1,300}?) shard \d{1,9}[^\n]{0,80}: Checksum does not match",
        "{path} is damaged" + _EARLIER,
    ),
    HintRule(
        r"\ban sstable\b|: bad block handle|ength checksum does not match|: Read less bytes than requested",
        "the checkpoint that it restores is damaged or incomplete" + _EARLIER,
    ),
    HintRule(
        r"truncated file: eof =|\(file signature not found\)|BadZipFile: |Error parsing message with type 'tensorflow",
        "the model or weights that it loads are damaged or incomplete: load an earlier file; a program that writes to "
        "another name and renames leaves none incomplete",
    ),
    HintRule(
        r"corrupted record at \d{1,20}|truncated record at \d{1,20}",
        "a TFRecord file that it reads is damaged or incomplete: write it again, or call .ignore_errors() on the "
        "dataset, which skips such records",
    ),
    HintRule(
        r"\[Errno 27\]|File too large",
        "a file that it writes is larger than `ulimit -f` or its file system allows: raise the limit, or write several "
        "files",
        anywhere=True,
    ),
    HintRule(r"No space left on device|Disk quota exceeded", "a disk that it writes to is full", anywhere=True),
    HintRule(
        r"Collective instance \d{1,20} expected type",
        "the tasks continued from different steps: the directory of BackupAndRestore or of the checkpoints must be one "
        "that all of them share",
        lambda facts: facts.attempt > 0 and not facts.recurs,
    ),
    HintRule(
        r"Collective instance \d{1,20} expected type",
        "the tasks do not run the same steps: each must train, evaluate and save as often as the others",
    ),
    HintRule(
        r"Shape mismatch in the collective instance",
        "the tasks reduce tensors of different shapes: each must have the same model, and train, evaluate and save as "
        "often as the others",
    ),
    HintRule(
        r"Failed to find any matching files for",
        "this host does not have the checkpoint: all hosts must share its directory",
        lambda facts: facts.hosts > 1,
    ),
    HintRule(
        r"CUDA_ERROR_OUT_OF_MEMORY|OOM when allocating [^\n]{1,300} by allocator GPU|CUDA_OUT_OF_MEMORY",
        "its GPU is out of memory: use smaller batches, and give each task its own GPUs with `gpus`",
        anywhere=True,
    ),
    HintRule(
        r"OOM when allocating|\bMemoryError\b",
        "it needs more memory than there is: use smaller batches or a smaller model",
    ),
    HintRule(
        r"NCCL WARN Call to ibv_(?:reg_mr|create_cq|create_qp)\w{0,40} failed[^\n]{0,80}Cannot allocate memory",
        "NCCL may not lock enough memory for InfiniBand: `ulimit -l` must be unlimited there (memlock in limits.conf; "
        "docker run --ulimit memlock=-1)",
        anywhere=True,
    ),
    HintRule(
        r"NCCL WARN [^\n]{0,100}[Nn]o (?:usable )?socket interface found",
        "NCCL finds no network interface to use: correct or remove NCCL_SOCKET_IFNAME in `env`; `ip addr` lists those "
        "of a host",
        anywhere=True,
    ),
    HintRule(
        _ONE_GPU,
        "two tasks use one GPU, which NCCL forbids: give each its own with `gpus`, or choose the communication RING, "
        "which is many times slower",
        anywhere=True,
    ),
    HintRule(
        r"a group with incompatible device type",
        "some tasks see a GPU and others none: give each the same number with `gpus`, and no host more than it has",
        anywhere=True,
    ),
    HintRule(
        r"No (?:blas|BLAS) support for stream",
        "the memory of its GPU is taken, often by another task: give each its own GPUs with `gpus`, or set "
        "TF_FORCE_GPU_ALLOW_GROWTH to true",
        anywhere=True,
    ),
    # Versions.
    HintRule(
        r"Op type not registered '|is not in the op definition|GraphDef-interpreting binary",
        "the versions of TensorFlow differ: install the same TensorFlow on every host",
        anywhere=True,
    ),
    # Peers.
    HintRule(
        rf"{_CUT_OFF}[\s\S]{{0,300}}?/job:ps/(?:replica:\d{{1,5}}/)?task:(?P<index>\d{{1,5}})",
        "ps:{index} was lost with its variables: only a checkpoint can restore them",
        _on_servers,
        of_peer=True,
    ),
    HintRule(
        r"/job:(?P<kind>\w{1,20})/(?:replica:\d{1,5}/)?task:(?P<number>\d{1,5}) unexpectedly tried to connect",
        "two tasks call themselves {kind}:{number}: the program sets TF_CONFIG itself; remove that code",
        lambda facts: not facts.cluster_formed,
        anywhere=True,
    ),
    HintRule(
        r"tried to connect with a different incarnation",
        "a task was restarted while the others continued, which TensorFlow forbids: let tflaunch restart all tasks",
    ),
    HintRule(
        _VANISHED.pattern,
        "{finished} had already ended while this task continued: every task must run the same number of steps",
        lambda facts: _mirrored(facts) and bool(facts.finished),
        of_peer=True,
    ),
    HintRule(
        rf"(?:Error reported from|remote target) {_PEER}",
        "it lost {role}:{index}, so the cause is whatever ended that task",
        lambda facts: facts.strategy in ("multi_worker_mirrored", "parameter_server"),
        of_peer=True,
    ),
    # Problems that leave no trace in the output.
    HintRule(
        r"",
        "its environment has {proxies}, which gRPC also uses between the tasks: remove it from `env`",
        lambda facts: bool(facts.proxies) and not facts.cluster_formed,
    ),
    HintRule(
        r"",
        "this CPU lacks an instruction that the program was built for, such as AVX in TensorFlow",
        lambda facts: facts.signal == 4,
    ),
]


def find_hint(lines: Sequence[str], facts: Facts) -> str | None:
    """Explain a task's end with its remedy, by the peer that it blames, if known."""
    hint = _own_hint(lines, facts)
    if facts.others is None or not saw_peer_vanish(lines):
        return hint
    for other, words in facts.others:
        if words and not saw_peer_vanish(words) and (remedy := _own_hint(words, other) or failure_words(words)):
            return f"{other.task} tells the cause: {printable(remedy)}"
    return hint or "it says that a peer had vanished, though no other task failed before it"


def _own_hint(lines: Sequence[str], facts: Facts) -> str | None:
    lines = failures.bounded(lines)
    ended_by = failures.find_failure(lines)
    log, error = "\n".join(lines), "\n".join(_last_words(lines, ended_by))
    is_maybe_of_peer = _may_be_of_peer(ended_by)
    python = facts.python or "its python"
    known = {
        "python": f"{python} on {facts.host}" if facts.host else python,
        "host": facts.host or "X",
        "proxies": " and ".join(facts.proxies),
        "finished": " and ".join(facts.finished[:2]) + (" and others" if len(facts.finished) > 2 else ""),
    }
    for rule in RULES:
        if (rule.when is None or rule.when(facts)) and (is_maybe_of_peer or not rule.of_peer):
            found = re.search(rule.pattern, log if rule.anywhere else error)
            groups = found.groupdict() if found else {}
            names_itself = "role" in groups and f"{groups['role']}:{groups['index']}" == facts.task
            if found and not names_itself:
                return rule.sentence.format_map({**known, **groups})
    return None


def saw_peer_vanish(lines: Sequence[str]) -> bool:
    """Whether a task's last lines say that a peer vanished."""
    lines = failures.bounded(lines)
    ended_by = failures.find_failure(lines)
    said = _VANISHED.search("\n".join(_last_words(lines, ended_by)))
    if said is None or _OWN_CAUSE.search("\n".join(lines)) is not None:
        return False
    return _may_be_of_peer(ended_by) or said[0].startswith(_ABORTED)


def _may_be_of_peer(ended_by: failures.Failure | None) -> bool:
    """Whether a peer or the network may have caused how a task ended."""
    return ended_by is None or not ended_by.kind or is_error_of_peer(ended_by.kind)


def _last_words(lines: list[str], ended_by: failures.Failure | None) -> list[str]:
    """Return the last traceback with those chained to it, or else the last lines."""
    if ended_by is None or not ended_by.kind:
        return lines[-_LAST_WORDS:]
    first = ended_by
    while first.cause is not None and first.cause.start < first.start:
        first = first.cause
    return lines[first.start : ended_by.end]

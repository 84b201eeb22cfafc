"""What a drill can say about a training, and what helps. Pure."""

from typing import NamedTuple

PROVED, NOT_PROVED, UNKNOWN = "proved", "not proved", "unknown"


class Finding(NamedTuple):
    """One sentence about a drill.

    Args:
        kind: what it is, for programs.
        sentence: with figures.
        remedy: what helps, "" if nothing has to be done.
        is_fault: whether the training does not resume as it should because of it.
    """

    kind: str
    sentence: str
    remedy: str = ""
    is_fault: bool = True


def finding_of(kind: str, sentence: str) -> Finding:
    """Return a finding of a kind, with its remedy."""
    return Finding(kind, sentence, _REMEDIES.get(kind, ""), kind not in _NO_FAULTS)


class Verdict(NamedTuple):
    """What a drill has shown: `PROVED`, `NOT_PROVED` or `UNKNOWN`, and why."""

    fault: str
    verdict: str
    findings: tuple[Finding, ...]


_NO_FAULTS = (
    *("resumed", "not_struck", "not_seen", "not_compared", "differs"),
    *("in_place", "term", "not_joined_unknown", "best_unknown"),
)
_REMEDIES = {
    "not_struck": "choose an earlier step with --at, or train longer",
    "not_seen": "print or report every step, or train longer",
    "not_compared": "print the loss of each step, or train longer",
    "began_again": "save while training, and restore the newest checkpoint at the start; without a shared disk, name "
    'its directory in "checkpoints" of the spec',
    "no_checkpoint": "save one while training: keras.callbacks.BackupAndRestore(directory) for fit, or a "
    "tf.train.CheckpointManager in a loop; where it saves every N steps, lower N",
    "none_before": "save more often: save_freq of BackupAndRestore or ModelCheckpoint, or every N steps of a loop",
    "never_read": "restore the newest one at the start: BackupAndRestore does both, as does "
    "checkpoint.restore(manager.latest_checkpoint)",
    "other_directory": "save to a path that is the same at each start, such as one without time and process number",
    "read_late": "restore before the first step, after the variables are made",
    "counter": "keep the step in the checkpoint (tf.train.Checkpoint(step=...)), and give fit its initial_epoch; "
    "BackupAndRestore restores the epoch itself",
    "not_used": "see what restore() matched: checkpoint.restore(path).assert_existing_objects_matched()",
    "tasks_differ": "restore in every task the newest checkpoint of one directory that all of them can read",
    "weights_only": "save the optimizer, too: tf.train.Checkpoint(model=model, optimizer=optimizer), or model.save() "
    "instead of save_weights()",
    "optimizer": "restore the optimizer with its iterations, on which the learning rate depends: "
    "tf.train.Checkpoint(model=model, optimizer=optimizer)",
    "rate": "let the learning rate follow from the restored step: optimizer.iterations, or initial_epoch of fit",
    "data": "keep the place in the data: save the iterator in the checkpoint, or skip what was seen: "
    "dataset.skip(step), with a shuffle of a fixed seed",
    "several_writers": "let each task but the chief save to a temporary path of its own: "
    "tflaunch_worker.training.save_path, or one directory per task",
    "not_joined": "call coordinator.join() before counting and saving steps that were scheduled",
    "best_unknown": "print lines such as `best accuracy 0.81`, or train longer",
    "best": "save its best metric with what it has seen so far, and read it at the start",
    "in_place": "write to another name and rename it when it is whole, or keep two in turn (double_checkpoint=True of "
    "BackupAndRestore)",
    "term": "save at TERM: tf.distribute.experimental.PreemptionCheckpointHandler, or "
    "tflaunch_worker.training.preemption",
    "exits_0": "exit with another code than 0 after saving at TERM, such as 42: 0 says that the training is finished",
    "not_recovered": "its last lines say why: `tflaunch drill --keep` keeps the logs",
}
_REMEDIES |= {
    "differs": _REMEDIES["optimizer"],
    "not_joined_unknown": _REMEDIES["not_joined"],
    "other_end": _REMEDIES["counter"],
    "end": _REMEDIES["data"],
}

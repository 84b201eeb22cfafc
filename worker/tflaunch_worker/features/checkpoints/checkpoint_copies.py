"""Calls about checkpoints: notice finished ones, transfer files, and place them.

Reading and comparing happen in forks.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, ClassVar

from tflaunch_worker import CHECKPOINTS_NAME, host_vars, offload, schema
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.services import Service
from tflaunch_worker.features import background
from tflaunch_worker.features.checkpoints.checkpoint_store import NOTHING, CheckpointStore
from tflaunch_worker.features.file_parts import FilesError

if TYPE_CHECKING:
    from tflaunch_worker.agent.calls import Call
    from tflaunch_worker.agent.services import AgentParts


class CheckpointCopies(Service):
    """Copies checkpoints from and to this host."""

    CALLS: ClassVar = {
        "find_checkpoint": {
            "workdir": orders.word,
            "directory": orders.word,
            "known": orders.word,
            "wait": schema.flag,
        },
        "read_checkpoint": {"sha256": orders.digest, "offset": schema.integer()},
        "store_checkpoint": {"kept": orders.digests, "digests": orders.digests},
        "write_checkpoint": orders.PART,
        "place_checkpoint": {
            "workdirs": orders.argv,
            "directory": orders.word,
            "files": schema.list_of(schema.row(orders.path, schema.integer(), orders.digest)),
            "age": orders.seconds,
        },
    }

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._expand = agent.host.expand_path
        self._store = CheckpointStore(os.path.join(agent.host.directory, CHECKPOINTS_NAME))
        self._end_watch: Callable[[], None] = lambda: None

    def leave(self) -> None:
        """Stop looking for checkpoints, and remove all copies: the run has ended."""
        self._end_watch()
        self._store.remove()

    def find_checkpoint(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with the newest checkpoint, with ``wait`` once its mark is another one."""
        self._end_watch()
        self._store.retain(())
        try:
            directory = os.path.join(self._expand(message["workdir"]), self._expand(message["directory"]))
        except host_vars.UnknownValueError as unknown:
            call.answer(**{**NOTHING, "problem": str(unknown)})
            return

        def answer(captured: dict[str, Any] | None) -> None:
            call.answer(**(captured or NOTHING))

        if message["wait"]:
            watch = lambda: self._store.watch(directory, message["known"])  # noqa: E731
            self._end_watch = call.when_ended = background.run_in_background(self.agent.loop, watch, answer)
        else:
            offload.run_in_fork(self.agent.loop, lambda: self._store.look(directory), answer)

    def read_checkpoint(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with a part of a file, empty if it is not here any more."""
        call.answer(self._store.read(message["sha256"], message["offset"]))

    def store_checkpoint(self, call: Call, message: dict[str, Any]) -> None:
        """Prepare to keep files instead of all others, and answer with what is missing."""
        self._store.retain(message["kept"])
        call.answer(missing=self._store.lacks(message["digests"]), problem="")

    def write_checkpoint(self, call: Call, message: dict[str, Any]) -> None:
        """Store a part of a file.

        Raises:
            ValueError: it does not follow the part before.
        """
        problem = ""
        try:
            self._store.take(message["sha256"], message["offset"], message["body"], message["is_last"])
        except FilesError as error:
            problem = str(error)
        call.answer(problem=problem)

    def place_checkpoint(self, call: Call, message: dict[str, Any]) -> None:
        """Put a checkpoint into working directories; answer with the missing files."""
        try:
            own = self._expand(message["directory"])
            directories = [os.path.realpath(os.path.join(self._expand(path), own)) for path in message["workdirs"]]
        except host_vars.UnknownValueError as unknown:
            call.answer(missing=[], problem=str(unknown))
            return
        directories = list(dict.fromkeys(directories))

        def answer(done: dict[str, Any] | None) -> None:
            done = done or {"missing": [], "problem": f"{directories[0]} cannot be written"}
            call.answer(missing=self._store.lacks(done["missing"]), problem=done["problem"])

        files, age = message["files"], message["age"]
        offload.run_in_fork(self.agent.loop, lambda: self._store.place(directories, files, age), answer)

"""Handle the orders about checkpoints: notice finished ones, send and receive their files, put them into directories.

Reading and comparing happen in forks. Answers are lost with the link; the supervisor then asks again.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os

from tflaunch_worker import CHECKPOINTS_NAME, host_vars, offload
from tflaunch_worker.agent.checkpoint_store import CheckpointStore
from tflaunch_worker.agent.files import FilesError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.event_loop import Loop


class CheckpointCopies:
    """Serves the supervisor's orders about checkpoints on this host."""

    def __init__(self, directory: str, loop: Loop, link: SupervisorLink, expand: Callable[[str], str]) -> None:
        """Serve orders for the agent with this directory; ``expand`` raises `UnknownValue` for a path."""
        self._loop = loop
        self._link = link
        self._expand = expand
        self._store = CheckpointStore(os.path.join(directory, CHECKPOINTS_NAME))
        self._end_watch: Callable[[], None] = lambda: None
        self._last: dict[str, Any] = {}
        self._found_count = 0

    def obey(self, message: dict[str, Any], body: bytes) -> None:
        """Handle a checked order.

        Raises:
            ValueError: a part of a file does not follow the one before.
        """
        kind = message["kind"]
        if kind == "checkpoint_part":
            self._take(message, body)
        elif kind == "read_checkpoint":
            digest, offset = message["sha256"], message["offset"]
            self._link.answer_with(self._store.read(digest, offset), "checkpoint_read", sha256=digest, offset=offset)
        elif kind == "store_checkpoint":
            self._store.retain(message["kept"])
            missing = self._store.lacks(message["digests"])
            self._link.answer("checkpoint_wanted", request=message["request"], missing=missing, problem="")
        elif kind == "place_checkpoint":
            self._place(message)
        else:
            self._find(message)

    def end(self) -> None:
        """Stop looking for checkpoints, and remove all copies: the run has ended."""
        self._end_watch()
        self._store.remove()

    def _find(self, message: dict[str, Any]) -> None:
        """Answer with the newest checkpoint: at once, or with ``wait`` when there is a new one."""
        self._end_watch()
        self._store.retain(message["kept"])
        request = message["request"]
        try:
            directory = os.path.join(self._expand(message["workdir"]), self._expand(message["directory"]))
        except host_vars.UnknownValue as unknown:
            self._link.answer("checkpoint_found", request=request, found=None, problem=str(unknown))
            return

        def answer(found: dict[str, Any] | None) -> None:
            self._last = {}
            if found is not None:
                self._found_count += 1
                number = None if "problem" in found else self._found_count
                self._last = {"number": number, "directory": directory, "stamps": found.pop("stamps")}
            problem = "" if found is None else found.pop("problem", "")
            told = {"number": self._found_count, **found} if found else None
            self._link.answer("checkpoint_found", request=request, found=told, problem=problem)

        if message["wait"]:
            last = self._last.get("number")  # None for one that could not be copied, which is not tried again
            is_known = self._last.get("directory") == directory and last in (None, message["known"])
            seen = self._last["stamps"] if is_known else None
            watch = lambda: self._store.watch(directory, seen)  # noqa: E731
            self._end_watch = offload.run_in_background(self._loop, watch, answer)
        else:
            offload.run_in_fork(self._loop, lambda: self._store.look(directory), answer)

    def _take(self, message: dict[str, Any], body: bytes) -> None:
        digest, problem = message["sha256"], ""
        try:
            self._store.take(digest, message["offset"], body, message["is_last"])
        except FilesError as error:
            problem = str(error)
        size = message["offset"] + len(body)
        self._link.answer("checkpoint_part_taken", sha256=digest, size=size, problem=problem)

    def _place(self, message: dict[str, Any]) -> None:
        request = message["request"]
        try:
            own = self._expand(message["directory"])
            directories = [os.path.realpath(os.path.join(self._expand(path), own)) for path in message["workdirs"]]
        except host_vars.UnknownValue as unknown:
            self._link.answer("checkpoint_placed", request=request, missing=[], problem=str(unknown))
            return
        directories = list(dict.fromkeys(directories))

        def answer(done: dict[str, Any] | None) -> None:
            done = done or {"missing": [], "problem": f"{directories[0]} cannot be written"}
            missing = self._store.lacks(done["missing"])
            self._link.answer("checkpoint_placed", request=request, missing=missing, problem=done["problem"])

        files, age = message["files"], message["age"]
        offload.run_in_fork(self._loop, lambda: self._store.place(directories, files, age), answer)

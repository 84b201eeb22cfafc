"""Follow a run in a thread for all its pages: status, timeline, messages, output."""

import asyncio
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tflaunch import records
from tflaunch.client.observer import Observer, current_status
from tflaunch.client.runs import Outcome
from tflaunch.core.events import HostJoined
from tflaunch.core.replay import Transition
from tflaunch.errors import TflaunchError
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.features.explain.explanation import explain_run
from tflaunch.features.web.inspection import machines_of
from tflaunch.features.web.timeline import Timeline, waits_of
from tflaunch.store.log_reader import Line, LogReader
from tflaunch.store.log_writer import tail
from tflaunch.tui.formatting import as_text

_POLL = 1.0  # seconds between two reads of a run in which nothing changes
_MIN_INTERVAL = 0.3  # seconds between two reads of a run in which much changes
_PER_TASK = 0.002  # seconds more for each task: their status takes time to make, to send and to draw
_POLL_LOST = 10.0  # seconds between two reads of a run without supervisor, which query its hosts
_MOST_MESSAGES = 500
_FIRST_LINES = 2000  # of all tasks together
_LEAST_LINES = 5  # of each task
_MOST_LINES = 4000  # at once; of more, the last ones are sent

ShownLine = tuple[float, str, int, str]
"""Time, task, attempt and text of a line."""


def encode_event(name: str, text: str) -> bytes:
    """Return an event of a stream; ``text`` is JSON."""
    return f"event: {name}\ndata: {text}\n\n".encode()


class RunFeed:
    """Feed of one run until it ends or has no page any more; calls ``forget`` then.

    ``pieces`` are the newest events of a stream: ``status``, ``timeline``, ``machines`` (what is known of each host)
    and, if the run cannot be read, ``trouble``. Pages enter and leave in the server's event loop, which alone decides
    that no page is left any more.
    """

    def __init__(self, directory: Path, forget: Callable[[], object]) -> None:
        self.directory = directory
        self.pieces: dict[str, bytes] = {}
        self.is_over = False
        """Whether nothing will change any more."""
        self._loop = asyncio.get_running_loop()
        self._forget = forget
        self._is_forgotten = threading.Event()
        self._pages: set[asyncio.Event] = set()
        self._messages: list[tuple[float, str]] = []
        self._timeline = Timeline()
        self._gpus: dict[str, int | None] = {}
        self._thread = threading.Thread(target=self._watch, name=f"watch {directory.name}", daemon=True)
        self._thread.start()

    def enter(self) -> asyncio.Event:
        """Return an event, set after each change of a piece or new output of a task."""
        changed = asyncio.Event()
        self._pages.add(changed)
        return changed

    def leave(self, changed: asyncio.Event) -> None:
        """Forget a page, and after the last one the run."""
        self._pages.discard(changed)
        if not self._pages:
            self._forget()
            self._is_forgotten.set()

    # ---- in the thread

    def _watch(self) -> None:
        try:
            while not self.is_over and not self._is_forgotten.is_set():
                try:
                    self._follow()
                except (TflaunchError, OSError) as error:
                    self._publish("trouble", {"sentence": str(error)})
                    self.is_over = not self.directory.exists()  # it was removed
                if not self.is_over:
                    self._is_forgotten.wait(_POLL)
        finally:
            self._wake()

    def _follow(self) -> None:
        """Follow the run until it ends, is lost or forgotten; raise without a journal."""
        observer = Observer(self.directory)
        self._timeline, self._messages = Timeline(), []
        try:
            while not self._is_forgotten.is_set():
                self._take(observer)
                if observer.outcome is not Outcome.LIVE:
                    self.is_over = observer.outcome is Outcome.ENDED
                    if not self.is_over:
                        self._is_forgotten.wait(_POLL_LOST)
                    return
                observer.wait(_POLL)
        finally:
            if observer.client is not None:
                observer.client.close()

    def _take(self, observer: Observer) -> None:
        steps = self._catch_up(observer)
        outcome, current = observer.outcome, current_status(self.directory)
        steps += self._catch_up(observer)
        if observer.outcome is not outcome:  # it has ended in between, and there will be no later status
            current = current_status(self.directory)
        logs = observer.logs
        explained = explain_run(observer.job, current, partial(tail, logs), observer.known)
        if steps or "timeline" not in self.pieces:
            self._publish("timeline", {**self._timeline.as_json(), "messages": self._messages[-_MOST_MESSAGES:]})
            self._publish("machines", machines_of(self.directory, observer.job, self._gpus))
        waits = records.as_json(waits_of(observer.job, observer.epoch)) if observer.outcome is Outcome.LIVE else []
        more = {"explanation": records.as_json(explained), "waits": waits}
        self._publish("status", {**records.as_json(current), **more, "now": time.time()})
        self.pieces.pop("trouble", None)
        if observer.outcome is Outcome.LIVE:
            self._is_forgotten.wait(_MIN_INTERVAL + _PER_TASK * len(current.tasks))

    def _catch_up(self, observer: Observer) -> list[Transition]:
        steps, logs = observer.catch_up(), Logs(str(observer.logs), partial(tail, observer.logs))
        for step in steps:
            self._timeline.add(step.before, step.event, step.job, step.now, observer.epoch)
            if isinstance(step.event, HostJoined):
                self._gpus[step.event.host] = step.event.gpus
            said = messages_about(step.before, step.event, step.job, step.now, logs, step.known)
            self._messages += [(round(step.now + observer.epoch, 3), message) for message in said]
        return steps

    def _publish(self, name: str, value: dict[str, Any]) -> None:
        event = encode_event(name, json.dumps(value, separators=(",", ":")))
        if self.pieces.get(name) != event:
            self.pieces[name] = event
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._wake_pages)

    def _wake_pages(self) -> None:
        for changed in self._pages:
            changed.set()


class Feeds(dict[Path, RunFeed]):
    """The feeds of all runs that pages show, by the directories of the runs."""

    def __missing__(self, directory: Path) -> RunFeed:
        """Begin to follow a run, in the event loop."""
        feed = self[directory] = RunFeed(directory, partial(self.pop, directory))
        return feed


class LogFeed:
    """The output of some tasks for one page, from their last lines on."""

    def __init__(self, reader: LogReader, tasks: Sequence[str]) -> None:
        """Prepare to read; ``reader`` is one of ``tasks``."""
        self._reader = reader
        self._tail = max(_FIRST_LINES // len(tasks), _LEAST_LINES)
        self._is_begun = False

    def events(self, is_over: bool) -> list[bytes]:
        """Return what was written since the last call; at first, the last lines.

        These have ``cut`` behind them if there are lines before them. Of much that is new, only the end is returned.
        """
        is_first, self._is_begun = not self._is_begun, True
        if is_first:
            lines = deque(shown(self._reader.read(tail=self._tail + 1)))
        else:
            lines = deque(shown(self._reader.new_lines()), _MOST_LINES)
        is_cut = is_first and any(count > self._tail for count in Counter(line[1] for line in lines).values())
        if is_over:
            lines.extend(shown(self._reader.rest()))
        events = [encode_event("lines", json.dumps(list(lines), separators=(",", ":")))] if lines or is_first else []
        return [*events, encode_event("cut", "{}")] if is_cut else events


def shown(lines: Iterable[Line]) -> Iterator[ShownLine]:
    """Return lines as pages get them."""
    return ((round(line.time, 3), line.task, line.attempt, as_text(line.text)) for line in lines)

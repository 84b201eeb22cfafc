"""The page's routes: data of commands with --json, streams of it, and actions."""

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote_to_bytes

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from tflaunch.client import runs
from tflaunch.client.observer import Observer
from tflaunch.client.run_list import Listing, RunEntry, entry_of
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.features.hang.evidence_collector import request_stacks
from tflaunch.features.report.redaction import Redactor
from tflaunch.features.web import actions, inspection, run_files
from tflaunch.features.web.actions import named_run, run_called
from tflaunch.features.web.feed import Feeds, LogFeed, encode_event, shown
from tflaunch.plan import selectors
from tflaunch.records import as_json
from tflaunch.store import run_dir
from tflaunch.store.history import Figures, read_history
from tflaunch.store.log_reader import LogReader
from tflaunch.tui.formatting import as_text

STATIC = Path(__file__).parent / "static"
_KEEPALIVE = 15.0  # seconds without an event after which a stream sends a comment
_BETWEEN_LISTS = 2.0  # seconds between two reads of the list of runs
_MOST_FOUND = 1000  # lines that a search returns
_MOST_COMPARED = 8
_ALL = "*"
_STILL_HERE = b": still here\n\n"


class _AnyPath(PathConvertor):
    """Matches the path of a file, also one with newlines."""

    regex = "(?s:.*)"


def make_app() -> Starlette:
    """Return the application; `access.Guarded` lets only the user's browser reach it."""
    register_url_convertor("any", _AnyPath())
    server = _Server()
    run = "/api/runs/{run}"
    return Starlette(
        routes=[
            Route("/", server.show_index),
            Route("/api/live", server.stream_list),
            Route("/api/compare", server.compare),
            Route(f"{run}/live", server.stream_run),
            Route(f"{run}/plan", server.show_plan),
            Route(f"{run}/ran", server.show_what_ran),
            Route(f"{run}/files", server.list_files),
            Route(f"{run}/files/{{path:any}}", server.send_file),
            Route(f"{run}/report", server.send_report),
            Route(f"{run}/history", server.show_history),
            Route(f"{run}/stacks", server.show_stacks),
            Route(f"{run}/search", server.search_logs),
            *actions.routes(run),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={TflaunchError: _explain_refusal},
    )


async def _explain_refusal(request: Request, error: Exception) -> Response:
    is_usage = isinstance(error, TflaunchError) and error.exit_code == EXIT_USAGE
    return JSONResponse({"error": str(error)}, 409 if is_usage else 500)


class _Server:
    """Handles requests; those that read files or call a supervisor run in threads."""

    def __init__(self) -> None:
        self._feeds = Feeds()
        self._runs = RememberedRuns()

    # ---- all runs

    async def stream_list(self, request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            sent = ""
            while True:
                listed = await run_in_threadpool(self._runs.overview)
                text = json.dumps(as_json(listed), separators=(",", ":"))
                yield encode_event("runs", text) if text != sent else _STILL_HERE
                sent = text
                await asyncio.sleep(_BETWEEN_LISTS)

        return _stream(events())

    async def show_index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    def compare(self, request: Request) -> Response:
        """Return the differences between the runs of ?run=RUN&run=RUN."""
        wanted = request.query_params.getlist("run")[:_MOST_COMPARED]
        if len(wanted) < 2:
            raise TflaunchError("there is nothing to compare: name two runs", EXIT_USAGE)
        return JSONResponse({"differences": inspection.compare_runs(list(map(run_called, wanted)))})

    # ---- one run

    async def stream_run(self, request: Request) -> Response:
        """Stream ``status``, ``timeline`` and, with ?logs=TASK,TASK (* is all), ``lines``."""
        directory = await run_in_threadpool(named_run, request)
        wanted = request.query_params.get("logs")
        logs = None if wanted is None else LogFeed(*await run_in_threadpool(_open_logs, directory, wanted))
        return _stream(_run_events(self._feeds, directory, logs))

    def show_plan(self, request: Request) -> Response:
        directory = named_run(request)
        observer = _observer(directory)
        return JSONResponse(inspection.task_plan(directory, observer.job, request.query_params.get("task", "")))

    def show_what_ran(self, request: Request) -> Response:
        directory = named_run(request)
        return JSONResponse(inspection.what_ran(directory, _observer(directory).job))

    def list_files(self, request: Request) -> Response:
        directory = named_run(request)
        return JSONResponse(run_files.list_files(directory, runs.plan_of(directory)))

    def send_file(self, request: Request) -> Response:
        directory = named_run(request)
        _, _, path = request.scope["raw_path"].partition(b"/files/")
        parts = list(map(unquote_to_bytes, path.split(b"/")))  # in this order, so that %2f separates nothing
        try:
            file, redactor = run_files.open_file(directory, runs.plan_of(directory), parts)
        except OSError:
            return JSONResponse({"error": f"{directory.name} offers no such file"}, 404)
        return _download(file, parts[-1], redactor)

    def send_report(self, request: Request) -> Response:
        """Send what `tflaunch report` writes; ?logs=1 for `--logs`."""
        directory = named_run(request)
        file = run_files.make_report(directory, with_logs="logs" in request.query_params)
        return _download(file, f"{directory.name}-report.tar.gz", None)

    def show_history(self, request: Request) -> Response:
        moments = read_history(named_run(request))
        return JSONResponse({"fields": Figures._fields, "moments": moments})

    def show_stacks(self, request: Request) -> Response:
        return JSONResponse(as_json(request_stacks(named_run(request))))

    def search_logs(self, request: Request) -> Response:
        """Return the last lines of chosen tasks that contain a text, whatever its case."""
        text = request.query_params.get("text", "").lower()
        directory = named_run(request)
        reader, _ = _open_logs(directory, request.query_params.get("logs", _ALL))
        found = deque((line for line in reader.read() if text in as_text(line.text).lower()), _MOST_FOUND + 1)
        return JSONResponse({"lines": list(shown(found))[-_MOST_FOUND:], "has_more": len(found) > _MOST_FOUND})


async def _run_events(feeds: Feeds, directory: Path, logs: LogFeed | None) -> AsyncIterator[bytes]:
    sent: dict[str, bytes] = {}
    feed = feeds[directory]
    changed = feed.enter()
    try:
        while True:
            changed.clear()
            is_over = feed.is_over
            for name, event in list(feed.pieces.items()):
                if sent.get(name) is not event:
                    sent[name] = event
                    yield event
            if logs is not None:
                for event in await run_in_threadpool(logs.events, is_over):
                    yield event
            if is_over:
                yield encode_event("over", "{}")
            try:
                # no limit: the browser closes the stream
                await asyncio.wait_for(changed.wait(), None if is_over else _KEEPALIVE)
            except asyncio.TimeoutError:
                yield _STILL_HERE
    finally:
        feed.leave(changed)


def _download(file: IO[bytes], name: str | bytes, redactor: Redactor | None) -> Response:
    """Send a file as a download: a page in it must not run as a part of ours."""
    size = os.fstat(file.fileno()).st_size
    headers = {"content-disposition": f"attachment; filename*=utf-8''{quote(name, safe='')}"}
    if redactor is None:
        headers["content-length"] = str(size)
    return _Download(file, run_files.read_file(file, size, redactor), headers)


class _Download(StreamingResponse):
    """Response with a file that it closes at once, even if the browser goes away."""

    def __init__(self, file: IO[bytes], content: Iterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(content, media_type="application/octet-stream", headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")


def _observer(directory: Path) -> Observer:
    observer = Observer(directory)
    observer.catch_up()
    if observer.client is not None:
        observer.client.close()
    return observer


def _open_logs(directory: Path, wanted: str) -> tuple[LogReader, list[str]]:
    """Open the logs of comma-separated tasks; raise `TflaunchError` if one is unknown."""
    tasks = selectors.select_tasks(runs.plan_of(directory), [] if wanted == _ALL else wanted.split(","))
    return LogReader(directory, _observer(directory).logs, tasks), tasks


class RememberedRuns:
    """Lists all runs; reads the journal of an ended one only if it has changed."""

    def __init__(self) -> None:
        self._ended: dict[Path, tuple[tuple[int, ...], RunEntry]] = {}

    def overview(self) -> Listing:
        """Return the overview of all runs. Thread-safe."""
        seen = {path: self._look_at(path) for path in run_dir.newest_first()}
        self._ended = {path: (mark, entry) for path, (mark, entry) in seen.items() if entry.ended is not None}
        return [entry for _, entry in seen.values()]

    def _look_at(self, path: Path) -> tuple[tuple[int, ...], RunEntry]:
        try:
            written = os.stat(path / run_dir.JOURNAL_NAME)
        except OSError:
            return (), entry_of(path)
        mark = (written.st_ino, written.st_size, written.st_mtime_ns)
        known = self._ended.get(path)
        return known if known is not None and known[0] == mark else (mark, entry_of(path))

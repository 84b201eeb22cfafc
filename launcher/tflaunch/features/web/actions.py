"""The page's actions: stop, restart or signal a live run, rerun an ended one."""

import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tflaunch.client import control_client, runs
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.own_process import own_command
from tflaunch_worker import fields, wire

_LONGEST_REQUEST = 64 * 1024  # bytes


def routes(run: str) -> list[Route]:
    """Return the routes below that of a run."""
    acts = {"stop": _stop, "restart": _restart, "signal": _send_signal, "rerun": _rerun}
    return [Route(f"{run}/{name}", _answering(act), methods=["POST"]) for name, act in acts.items()]


def named_run(request: Request) -> Path:
    """Return a run's directory by its full name in a request; raise as `run_called`."""
    return run_called(request.path_params["run"])


def run_called(name: str) -> Path:
    """Return the directory of a run by its full name, or raise `TflaunchError`."""
    directory = runs.find_run(name)
    if directory.name != name:
        raise TflaunchError(f"there is no run {name!r}", EXIT_USAGE)
    return directory


def _answering(act: Callable[[Path, dict[str, Any]], dict[str, str]]) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a request that acts on a run and answers ``act``'s result."""

    async def answer(request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _LONGEST_REQUEST:
                return JSONResponse({"error": "the request is too long"}, 413)
        directory = await run_in_threadpool(named_run, request)
        try:
            asked = fields.mapping({"body": wire.parse(body)}, "body")
            return JSONResponse(await run_in_threadpool(act, directory, asked))
        except (ValueError, KeyError) as error:
            return JSONResponse({"error": f"malformed request: {error}"}, 400)

    return answer


def _stop(directory: Path, asked: dict[str, Any]) -> dict[str, str]:
    if not runs.is_live(directory):
        raise runs.NoSupervisorError(directory)
    control_client.request_stop(directory, None)
    return {}


def _restart(directory: Path, asked: dict[str, Any]) -> dict[str, str]:
    control_client.request_restart(directory, fields.texts(asked, "tasks"))
    return {}


def _send_signal(directory: Path, asked: dict[str, Any]) -> dict[str, str]:
    number = signal.Signals[fields.text(asked, "signal")]
    control_client.request_signal(directory, number, fields.texts(asked, "tasks"))
    return {}


def _rerun(directory: Path, asked: dict[str, Any]) -> dict[str, str]:
    """Rerun in the background; return the new run's name once its tasks run."""
    # A session of its own, so that Ctrl-C for the page does not reach a run that begins.
    # no limit: in a thread of its request
    ended = subprocess.run(
        own_command("rerun", "-d", directory.name),
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    if ended.returncode:
        said = [line.removeprefix("tflaunch: ") for line in ended.stderr.splitlines()]
        raise TflaunchError("\n".join(said) or f"it ended with exit code {ended.returncode}", EXIT_USAGE)
    return {"run": ended.stdout.strip()}

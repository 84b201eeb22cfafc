"""The first lines of a status: the run, its state, and what went wrong. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from tflaunch.explain.wording import listed
from tflaunch.tui import formatting, rows
from tflaunch.tui.rows import Status

_STYLES = {"running": "green", "ended": "", "joining": "cyan", "preparing": "cyan"}


class Part(NamedTuple):
    """A text and its rich style."""

    text: str
    style: str = ""


def headline(status: Status, now: float) -> list[Part]:
    """Return the parts of the first line.

    Args:
        status: what `tflaunch ps --json` prints.
        now: seconds since the epoch.
    """
    name = formatting.plain(status.get("run")) or formatting.plain(status.get("name")) or "tflaunch"
    parts = [Part(name, "bold"), _phase(status)]
    forming = _forming(status, now) if status.get("phase") == "running" else ""
    parts.append(Part(forming, "bold yellow"))
    if status.get("supervisor") == "dead" and status.get("phase") != "ended":
        parts.append(Part("its supervisor is dead", "bold red"))
    parts.append(Part(formatting.plain(status.get("restart"))))
    started = formatting.number(status.get("started"))
    if started is not None:
        parts.append(Part(formatting.duration(_end(status, now) - started)))
    return [part for part in parts if part.text]


def news(status: Status) -> list[Part]:
    """Return the lines below the headline: failure reason, TensorBoard address, missing hosts."""
    parts = []
    reason, culprit = formatting.plain(status.get("reason")).strip(), formatting.plain(status.get("culprit"))
    if reason or culprit:
        sentence = reason if culprit in reason else f"{culprit}: {reason}".removesuffix(": ")
        parts.append(Part(sentence, "red" if status.get("phase") == "ended" else "yellow"))
    last = formatting.plain(status.get("last_failure")).strip()
    if last and not parts:
        parts.append(Part(f"last restart: {last}", "yellow"))
    parts += _not_formed(status)
    board = status.get("tensorboard")
    if isinstance(board, dict) and formatting.plain(board.get("url")):
        parts.append(Part(_board(board), "cyan"))
    hosts = _hosts(status)
    if hosts:
        parts.append(Part(hosts, "yellow"))
    return parts


def _forming(status: Status, now: float) -> str:
    """Return which tasks keep the cluster from forming, and for how long; "" if none does."""
    found = status.get("forming")
    if not isinstance(found, dict):
        return ""
    since = formatting.number(found.get("since"))
    waits = "" if since is None else f"waiting {formatting.duration(now - since)} for "
    return f"cluster not formed: {waits}{_missing(found)}"


def _not_formed(status: Status) -> list[Part]:
    """Return advice on a cluster that does not form; after the end, also which tasks were missing."""
    found = status.get("forming")
    if not isinstance(found, dict) or status.get("exit_code") == 0:
        return []
    parts = [] if status.get("phase") == "running" else [Part(f"cluster not formed: {_missing(found)} never listened")]
    hint = formatting.plain(found.get("hint"))
    return [*parts, Part(f"hint: {hint}")] if hint else parts


def _missing(found: dict[str, Any]) -> str:
    names = found.get("missing")
    known = [formatting.plain(name) for name in names] if isinstance(names, list | tuple) else []
    return listed([name for name in known if name]) or "its tasks"


def _phase(status: Status) -> Part:
    phase, code = formatting.plain(status.get("phase")), formatting.number(status.get("exit_code"))
    if phase == "ended" and code is not None:
        state = formatting.plain(status.get("state")) or ("failed" if code else "succeeded")
        if state == "failed":
            return Part(f"failed ({code:.0f})", "bold red")
        return Part(state, "yellow" if code else "green")
    return Part(phase.replace("_", " "), _STYLES.get(phase, "yellow"))


def _end(status: Status, now: float) -> float:
    """Return when the job ended, judging by its tasks; ``now`` if it has not."""
    if status.get("phase") != "ended":
        return now
    tasks = [task for task in rows.tasks_of(status) if task.get("role") != "sidecar"]
    return max((at for task in tasks if (at := formatting.number(task.get("since")))), default=now)


def _hosts(status: Status) -> str:
    """Return which hosts are not connected while the run needs them."""
    found: Any = status.get("hosts")
    hosts = [host for host in found if isinstance(host, dict)] if isinstance(found, list) else []
    missing = [host for host in hosts if host.get("state") in ("down", "joining", "disconnected", "leaving")]
    if not missing or status.get("phase") == "ended":
        return ""
    count = f"{len(hosts) - len(missing)} of {len(hosts)} hosts connected: " if len(hosts) > 1 else ""
    return count + ", ".join(_host(host) for host in missing)


def _board(board: dict[str, Any]) -> str:
    """Return TensorBoard's address, and how to forward its port here."""
    host, way = formatting.plain(board.get("host")), formatting.plain(board.get("ssh"))
    where = f" on {host}" if host else ""
    return f"TensorBoard: {formatting.plain(board.get('url'))}{where}{f', after {way}' if way else ''}"


def _host(host: dict[str, Any]) -> str:
    words = [formatting.plain(host.get("host")), formatting.plain(host.get("state"))]
    silence = formatting.number(host.get("silence"))
    if silence is not None and host.get("state") == "disconnected":
        words.append(f"for {formatting.duration(silence)}")
    reason = formatting.plain(host.get("reason")).strip()
    return " ".join(words) + (f" ({reason})" if reason else "")

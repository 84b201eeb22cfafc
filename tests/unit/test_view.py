"""The view of a status in a terminal emulator: it fits, it is aligned, and it shows what matters first."""

import functools
import json
from typing import Any

import pyte
import pytest

from support.job_history import RUN, TASK
from tflaunch.explain import wording
from tflaunch.explain.assessment import assessed
from tflaunch.explain.cluster_formation import Forming
from tflaunch.explain.run_status import HostStatus, Status, TaskStatus
from tflaunch.plan.tensorboard import Reach
from tflaunch.records import as_json, read_record
from tflaunch.tui import formatting, live
from tflaunch.tui import layout as view

NOW = 1_000_000.0
WIDE = "Epoch 3/10 — \x1b[32m━━━━\x1b[0m 日本語\t🎉 👨\u200d👩\u200d👧 🇩🇪 e\u0301 loss: 0.3\x07"


BARE_RUN = RUN._replace(run="mnist-7f3k", started=NOW - 200)


def task(number: int, role: str = "worker", **fields: Any) -> TaskStatus:
    """Return a training task about which everything is known."""
    progress: dict[str, Any] = {"step": 1200 + number, "steps_per_second": 35.12, "steps_per_epoch": 500}
    progress |= {"epoch": 3, "epochs": 10, "metrics": {"accuracy": 0.91234, "loss": 0.30123}}
    used = {"host": f"host-{number % 3}", "since": NOW - 192, "cpu_percent": 98.2, "rss_bytes": 1_200_000_000}
    return TASK._replace(task=f"{role}:{number}", role=role, **{**used, **progress, "last_line": WIDE, **fields})


def status(tasks: list[TaskStatus], **fields: Any) -> Status:
    return assessed(BARE_RUN._replace(tasks=tuple(tasks), **fields), NOW)


def on_screen(lines: list[str], width: int) -> list[str]:
    """Return what a terminal of this width shows; a line that is too long takes an additional row."""
    emulator = pyte.Screen(width, len(lines) + 5)
    pyte.Stream(emulator).feed("\r\n".join(lines))
    return "\n".join(line.rstrip() for line in emulator.display).rstrip("\n").split("\n")


def shown(of: Status, width: int = 120, height: int = 40) -> list[str]:
    lines = view.render(of, width, height, NOW)
    assert len(lines) <= height
    seen = on_screen(lines, width)
    assert len(seen) <= len(lines), "a line was wrapped"
    return seen


def test_a_job_that_trains() -> None:
    few: dict[str, Any] = {"rss_bytes": None, "cpu_percent": None}
    two = status([task(0, **few, last_line="a"), task(1, **few, metrics={"loss": 12}, last_line="b")])
    assert shown(two, 130)[1:] == [
        "TASK      STATE    HOST            UP  STEP    RATE  EPOCH         ETA           DONE    LOSS  ACCURACY"
        "  LAST LINE",
        "worker:0  running  host-0  3 min 12 s  1200  35.1/s   3/10  1 min 48 s  ━───────  24%  0.3012    0.9123  a",
        "worker:1  running  host-1  3 min 12 s  1201  35.1/s   3/10  1 min 48 s  ━───────  24%   12.00            b",
    ]


def test_columns_of_features_follow_the_metrics_and_a_step_that_was_read_from_output_is_marked() -> None:
    """It has not been reported, and without a speed nothing is known about the end."""
    few: dict[str, Any] = {"is_progress_from_output": True, "steps_per_second": None, "rss_bytes": None}
    titles, row = shown(status([task(0, **few, columns={"warnings": 2, "share": 0.5})]))[1:]
    assert "WARNINGS   SHARE" in titles
    assert "       2  0.5000" in row
    assert "  ~1200  " in row
    assert "ETA" not in titles


def test_columns_that_nobody_fills_are_left_out() -> None:
    """For a job without progress reports, the last lines are shown."""
    bare = TASK._replace(since=NOW - 3700, last_line="step 5")
    assert shown(status([bare]), 80) == [
        "── mnist-7f3k · first step · 3 min 20 s " + "─" * 40,
        "TASK      STATE            UP  LAST LINE",
        "worker:0  running  1 h 01 min  step 5",
    ]
    assert shown(status([])) == ["── mnist-7f3k · ending · 3 min 20 s " + "─" * 84]


@pytest.mark.parametrize("count", [1, 17])
@pytest.mark.parametrize(
    ("width", "titles"), [(40, {"STEP"}), (80, {"STEP", "RATE", "LOSS"}), (200, {"STEP", "RATE", "MEM"})]
)
def test_narrow_terminals_lose_what_matters_least(width: int, titles: set[str], count: int) -> None:
    """Lines never wrap."""
    lines = shown(status([task(number) for number in range(count)]), width)
    found = next(line for line in lines if line.startswith("TASK")).split()
    assert set(found) >= {"TASK", "STATE"} | (titles - {"LOSS"} if count > 16 else titles)
    assert len(lines) == 2 + (count if count <= 16 else 1)


def test_many_tasks_are_folded_by_role() -> None:
    """Tasks with problems are listed below the roles, the worst first."""
    tasks = [task(number, "ps", step=None) for number in range(2)] + [task(number) for number in range(60)]
    tasks += [
        task(60, state="restarting", attempt=2),
        task(61, state="disconnected"),
        task(62, state="failed", signal=9, exit_code=None),
        task(63, state="starting", since=NOW - 61),
        task(64, state="starting", since=NOW - 5),
    ]
    lines = [line.split("  ") for line in shown(status(tasks), 200)]
    firsts = ["ps \u00d72", "worker \u00d765", "worker:62", "worker:61", "worker:60", "worker:63"]
    assert [line[0] for line in lines[2:]] == firsts
    assert "1 failed, 1 disconnected, 1 restarting, 2 starting, 60 running" in "".join(lines[3])
    assert "1200\u20131264" in "".join(lines[3])
    assert [cell.strip() for cell in lines[4][1:] if cell.strip()][:2] == ["failed", "SIGKILL"]


def test_what_does_not_fit_the_height_is_counted() -> None:
    """A low terminal folds earlier, and never shows more lines than it has."""
    assert [line.split("  ")[0] for line in shown(status([task(n) for n in range(9)]), 80, 8)][2:] == ["worker \u00d79"]
    failed = status([task(number, state="failed") for number in range(30)])
    assert shown(failed, 80, 10)[-1] == "… 24 more"
    for height in range(1, 10):
        shown(failed, 80, height)


def test_what_all_tasks_share_is_left_out() -> None:
    """Their only host, and their attempt, which the headline shows; but not because few tasks are shown."""
    again = [task(number, host="a", attempt=1) for number in range(2)]
    assert not {"HOST", "ATTEMPT"} & set(shown(status(again))[1].split())
    many = [task(number) for number in range(20)] + [task(20, state="restarting", attempt=1)]
    assert {"HOST", "ATTEMPT"} <= set(shown(status(many), 200)[1].split())


def test_why_it_failed_stands_below_the_headline() -> None:
    """With the name of the culprit, on at most three lines."""
    reason = "exited with code 3: " + "a long story " * 20
    tasks = [task(0, state="failed", exit_code=3), task(1, state="stopped", since=NOW - 150)]
    lines = shown(status(tasks, state="failed", exit_code=3, culprit="worker:0", reason=reason), 60)
    assert lines[0].startswith("── mnist-7f3k · failed (3) · 50 s ─")
    assert lines[1].startswith("worker:0: exited with code 3: a long story")
    assert lines[3].endswith("…")
    assert lines[4] == "next: `tflaunch logs mnist-7f3k worker:0`"
    assert lines[6].split()[:3] == ["worker:0", "failed", "3"]


def test_a_cluster_that_does_not_form_is_in_the_headline() -> None:
    """It shows which tasks are missing and since when; the remedy is below, and the tasks have a state of their own."""
    forming = Forming(NOW - 75, missing=("worker:1",), listening=("worker:0",), hint="do this")
    tasks = [task(0), task(1, state="waiting", listening=False), task(2, state="waiting")]
    lines = shown(status(tasks, forming=forming), 120)
    next_line = "next: `tflaunch logs mnist-7f3k worker:1`"
    assert "· forming ·" in lines[0]
    assert lines[1:4] == ["cluster not formed: waiting 1 min 15 s for worker:1", next_line, "hint: do this"]
    assert [line.split("  ")[1].strip() for line in lines[5:]] == ["running", "not listening", "waiting"]
    stopped = [task._replace(state="stopped") for task in tasks]
    ended = shown(status(stopped, forming=forming, state="failed", exit_code=1, reason="late"), 120)
    assert ended[3:5] == ["cluster not formed: worker:1 never listened", "hint: do this"]


def test_states_of_runs_and_tasks_have_the_same_words_everywhere() -> None:
    """A separate column shows how a task ended, and the share that is done is kept longer than the memory."""
    tasks = [task(0, state="failed", exit_code=3), task(1, state="stopped", signal=15), task(2, state="lost")]
    for state in ("interrupted", "stopped", "succeeded"):
        assert f" · {state} · " in shown(status(tasks, state=state, exit_code=143))[0]
    assert " · failed (3) · " in shown(status(tasks, state="failed", exit_code=3))[0]
    table = shown(status(tasks), 90)[1:]
    assert [line.split()[1:3] for line in table[:3]] == [["STATE", "EXIT"], ["failed", "3"], ["stopped", "SIGTERM"]]
    assert "DONE" in table[0]
    assert "MEM" not in table[0]
    assert "1200" in table[1]
    assert "98%" not in table[1]  # a dead task no longer uses resources


HOSTS = (HostStatus("a", "connected"), HostStatus("b", "disconnected", since=NOW - 12.7, until=NOW + 32.3))
OUTSIDERS = ("10.0.0.9", "10.0.0.7")


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        (
            {"restart": "restart 1 of 3", "restarts": 1, "last_failure": "worker:1 was killed"},
            ["step 1200 of 5000, reported 0 s ago, after 1 restart; the last attempt failed: worker:1 was killed"],
        ),
        (
            {"hosts": HOSTS, "reason": "worker:0 exited with code 1"},
            ["b silent for 13 s; its tasks count as dead in 32 s", "1 of 2 hosts connected: b disconnected"],
        ),
        ({"hosts": HOSTS, "exit_code": 0}, ["TASK"]),
        ({"hosts": (HostStatus("a", "joining", "no way"),), "state": "joining"}, ["a joining (no way)"]),
        ({"outsiders": OUTSIDERS[:1], "exit_code": 0}, ["port fence: connections from 10.0.0.9 refused"]),
        (
            {"state": "interrupted", "exit_code": 130, "culprit": "tflaunch", "reason": "interrupted by SIGINT"},
            ["interrupted by SIGINT"],
        ),
        (
            {"attempt": 2, "supervisor": "dead", "state": "backing_off"},
            ["its supervisor was killed; its tasks may live on", "next: `tflaunch up -d --resume mnist-7f3k`"],
        ),
    ],
)
def test_what_a_reader_must_know_stands_below_the_headline(fields: dict[str, Any], lines: list[str]) -> None:
    """As long as it matters; tflaunch itself, as the culprit, is not named."""
    state = "stopped" if "exit_code" in fields else "running"
    found = shown(status([task(0, state=state)], **fields))[1 : 1 + len(lines)]
    assert [line.partition("  ")[0] for line in found] == lines


def test_refused_connections_are_counted() -> None:
    """In the table of `ps`, too; restarts and a dead supervisor are in the headline."""
    (line,) = shown(status([], attempt=2, restart="restart 1 of 3", supervisor="dead", state="backing_off"))[:1]
    assert line.startswith("── mnist-7f3k · ended · its supervisor is dead · restart 1 of 3 · 3 min 20 s ─")
    tasks = [task(0), task(1, refused_connections=12.0), task(2, refused_connections=1.0)]
    line = "port fence: 13 connections from 10.0.0.9, 10.0.0.7 refused (worker:1, worker:2)"
    assert shown(status(tasks, outsiders=OUTSIDERS))[1] == line
    assert view.table(status(tasks, outsiders=OUTSIDERS), now=NOW).splitlines()[1] == line


def test_a_state_is_coloured_and_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of the state is shown in any case."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32mrunning" in "".join(view.render(status([task(0)]), 80, 10, NOW))
    monkeypatch.setenv("NO_COLOR", "1")
    plain = "".join(view.render(status([task(0)]), 80, 10, NOW))
    assert "running" in plain
    assert "\x1b[32m" not in plain


def test_the_table_is_plain_and_complete() -> None:
    """Every task, no escape sequences, no last lines; a narrow width drops columns, as in a terminal."""
    many = status([task(number) for number in range(64)])
    lines = view.table(many, now=NOW).splitlines()
    assert lines[0] == "mnist-7f3k · training · 3 min 20 s"
    assert len(lines) == 2 + 64
    assert "LAST LINE" not in lines[1]
    assert "\x1b" not in "".join(lines)
    assert {len(line) for line in lines[1:]} == {len(lines[1])}
    assert max(map(len, view.table(many, 40, NOW).splitlines())) <= 40


def test_without_a_terminal_a_watch_prints_each_status(capfd: pytest.CaptureFixture[str]) -> None:
    """One table after the other, even when only figures have changed."""
    statuses = [status([task(0, step=step)]) for step in (5, 5, 6)]
    live.watch(iter([*statuses, status([task(0, state="failed")], exit_code=1)]))
    out, _ = capfd.readouterr()
    first, same, later, last = out.split("\n\n")
    assert first == same != later
    assert "failed" in last


SIGNIFICANT = {0.00096021: "9.60e-04", 0: "0.000", -999.96: "-1000", 123456.7: "123457", 1e300: "1.00e+300"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((wording.memory(size), text) for size, text in ((999, "999B"), (1000, "1.0K"), (1.5 * 2**40, "1.5T"))),
        (wording.count(123456789), "123.46M"),
        *((wording.rate(rate), text) for rate, text in ((0.0213, "0.0213/s"), (34, "34.0/s"), (1234.5, "1234/s"))),
        *((wording.significant(each), text) for each, text in SIGNIFICANT.items()),
        *((formatting.bar(share, width), text) for share, width, text in ((0.5, 4, "━━──  50%"), (7, 2, "━━ 100%"))),
        (formatting.plain("\x1b]0;title\x07a\x1b[1mb\r\n\x00c"), "abc"),
        (formatting.plain(None), ""),
    ],
)
def test_figures_are_short(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["run"], 5), (["run"], None), (["attempt"], True), (["attempt"], 1.5), (["started"], None),
        (["tasks"], {}), (["tasks"], [None]), (["tasks", 0, "listening"], 1), (["tasks", 0, "metrics"], []),
        (["tasks", 0, "metrics", "loss"], "low"), (["tasks", 0, "metrics", "loss"], 1e301), (["forming"], []),
        (["forming", "missing"], "worker:0"), (["forming", "missing"], [1]), (["tensorboard", "url"], None),
    ],
)  # fmt: skip
def test_a_malformed_status_is_refused(place: list[str | int], value: object) -> None:
    forming = Forming(NOW, ("worker:1",), (), "do this")
    good = status([task(0)], hosts=(HostStatus("a", "connected"),), forming=forming, tensorboard=Reach("http://a/"))
    sent = json.loads(json.dumps(as_json(good)))
    assert read_record(Status, sent) == good
    part = functools.reduce(lambda inside, key: inside[key], place[:-1], sent)
    part[place[-1]] = value
    with pytest.raises(ValueError, match="must"):
        read_record(Status, sent)


def test_a_status_of_another_version_is_read() -> None:
    """Fields that it does not know may be missing, and those that only it knows are ignored."""
    sent = json.loads(json.dumps(as_json(status([task(0)]))))
    del sent["tasks"][0]["last_line"], sent["forming"], sent["outsiders"]
    sent["later"] = sent["tasks"][0]["later"] = 5
    assert read_record(Status, sent) == status([task(0, last_line=None)])


def test_a_failure_is_wrapped_between_words_and_not_inside_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sentences; lines of a log and commands stay in one piece, to be copied."""
    monkeypatch.setenv("NO_COLOR", "1")
    log = "  File " + "x" * 90
    hint = "hint: stop the other program, or its run with `tflaunch down cluster-20260102-030405-6789`, or name a port"
    shown = formatting.failure_panel(["worker:1 on a-host-with-a-long-name exited with code 3", hint, log], 50)
    assert shown == [
        "── tflaunch: worker:1 on a-host-with-a-long-name ",
        "exited with code 3",
        "hint: stop the other program, or its run with",
        "`tflaunch down cluster-20260102-030405-6789`, or",
        "name a port",
        log,
        "─" * 49,
    ]
    assert formatting.failure_panel(["failed"], 30)[0] == "── tflaunch: failed " + "─" * 9

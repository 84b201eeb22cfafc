"""Hundreds of pages at once: each gets what a single one would, and they cost the server and the run little."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import psutil
import pytest

from support.launch import LONG, Launch, read_until
from support.web_pages import Server, api

pytestmark = pytest.mark.web

COUNTING = """
i=0
while [ $i -lt 400 ]; do
  i=$((i + 1)); echo "line $i"
  echo "{\\"step\\": $i, \\"metrics\\": {\\"loss\\": 0.$i, \\"accuracy\\": 0.$i}}" > $TFLAUNCH_PROGRESS
  sleep %s
done"""
TASKS = 64
VIEWERS = 300
WINDOW = 30.0  # seconds
MOST_OF_SUPERVISOR, MOST_OF_SERVER = 2.0, 20.0  # percent of a core
MOST_GROWTH = 50e6  # bytes
PAGES = """
import asyncio, sys
host, run, cookie, count, query = sys.argv[1:]
async def look(number):
    while True:  # as an EventSource does
        try:
            await read(number)
        except OSError:
            pass
        await asyncio.sleep(1)
async def read(number):
    reader, writer = await asyncio.open_connection(*host.split(":"))
    wanted = f"GET /api/runs/{run}/live{query} HTTP/1.1", f"Host: {host}", f"Cookie: {cookie}", "", ""
    writer.write("\\r\\n".join(wanted).encode())
    if number % 30 == 1:  # a page that has stopped
        writer.transport.pause_reading()
        await asyncio.sleep(1e9)
    try:
        while data := await reader.read(2048 if number % 30 == 2 else 1 << 20):
            seen[number] += data.count(b"event: status")
            if number % 30 == 2:  # a slow one
                await asyncio.sleep(0.5)
    finally:
        writer.close()
async def main():
    pages = [asyncio.create_task(look(number)) for number in range(int(count))]
    while True:
        await asyncio.sleep(1)
        print(min(seen[number] for number in seen if number % 30 not in (1, 2)), flush=True)
seen = dict.fromkeys(range(int(count)), 0)
asyncio.run(main())
"""
"""Opens pages of a run; prints each second how many statuses the page has got that has got the fewest."""


class Use(NamedTuple):
    """CPU time in seconds, and memory in bytes."""

    supervisor: float
    server: float
    memory: float


def test_no_page_is_refused_for_the_number_of_others(server: Server) -> None:
    """Only connections without a request are limited."""
    with ExitStack() as open_pages:
        for _ in range(VIEWERS):
            events = open_pages.enter_context(server.stream("/api/live"))
            assert next(events)[0] == "runs"


def test_a_later_page_gets_the_same_output(server: Server, place: Launch) -> None:
    """All that there was, and then each line once, although the output is read once for all pages."""
    run = place.run("up", "-d", place.shell(COUNTING % 0.05, strategy="none", name="read.json")).stdout.strip()
    with ExitStack() as open_pages:
        pages = [open_pages.enter_context(server.stream(api(run, "live?logs=*")))]
        seen: list[dict[str, list[int]]] = [{}]
        read_until_line(pages[0], seen[0], 10)
        for _ in range(2):
            pages.append(open_pages.enter_context(server.stream(api(run, "live?logs=*"))))
            seen.append({})
            read_until_line(pages[-1], seen[-1], 20)
        assert place.run("down", "-t", "0", run).returncode == 0
        for page, lines in zip(pages, seen, strict=True):
            read_until_line(page, lines, None)
    assert seen[1] == seen[2] == seen[0]
    for numbers in seen[0].values():
        assert numbers[0] == 1
        assert all(after == before + 1 for before, after in pairwise(numbers))


def read_until_line(events: Iterator[tuple[str, Any]], seen: dict[str, list[int]], last: int | None) -> None:
    """Collect the numbers of the lines of each task up to a number at least, or all."""
    for name, data in events:
        if name == "lines":
            for _, task, _, text in data:
                seen.setdefault(task, []).append(int(text.removeprefix("line ")))
        if name == "over" or (last and seen and max(map(max, seen.values())) >= last):
            return


@pytest.mark.skipif(not LONG, reason="measures CPU time, so it needs a quiet machine: in `make nightly` only")
@pytest.mark.parametrize("query", ["", "?logs=*"])
def test_hundreds_of_pages_cost_little(launch: Launch, query: str) -> None:
    """Of a run of 64 tasks, some of them slow and some stopped; in percent of a core."""
    run = launch.run("up", "-d", launch.shell(COUNTING % 1, TASKS, strategy="none", name="crowd.json")).stdout.strip()
    supervisor = launch.supervisor()
    server = Server(launch)
    server.sign_in()
    try:
        launch.wait_for_log(f"worker:{TASKS - 1}", "line 5", run=run)
        who = (supervisor, psutil.Process(server.process.pid))
        alone = use_in(WINDOW, *who)
        arguments = [f"127.0.0.1:{server.port}", run, server.cookie, str(VIEWERS), query]
        pages = subprocess.Popen([sys.executable, "-c", PAGES, *arguments], stdout=subprocess.PIPE, text=True)
        try:
            read_until(pages, "5")
            before = who[1].memory_info().rss
            shown = use_in(WINDOW, *who)
        finally:
            pages.kill()
            pages.communicate()
    finally:
        server.stop()
        launch.run("down", "-t", "0", run)
    print(f"pages{query}: {alone} -> {shown}")
    assert shown.supervisor - alone.supervisor <= MOST_OF_SUPERVISOR
    assert shown.server <= MOST_OF_SERVER
    assert shown.memory - before < MOST_GROWTH


def use_in(seconds: float, supervisor: psutil.Process, server: psutil.Process) -> Use:
    """Return what two processes use of a core in some seconds, in percent, and the server's memory at the end."""
    began, before = time.monotonic(), [sum(each.cpu_times()[:2]) for each in (supervisor, server)]
    time.sleep(seconds)
    after = [sum(each.cpu_times()[:2]) for each in (supervisor, server)]
    share = 100 / (time.monotonic() - began)
    first, second = (round(share * (end - begin), 2) for begin, end in zip(before, after, strict=True))
    return Use(first, second, server.memory_info().rss)

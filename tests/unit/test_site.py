"""The documents as a site: built without a warning, complete, and without anything that is loaded from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import tflaunch
from support.install import lacking, need, program
from support.specs import REPOSITORY
from tflaunch.cli.json_output import with_output
from tflaunch.cli.main import tflaunch as command_group
from tflaunch.clusterspec.model import Spec, written_fields
from tflaunch.core import event_records, events
from tflaunch.core.annotations import Annotation

pytestmark = pytest.mark.unit

_BOOST_INSIDE = 0.0005  # that of docs/site_pages.py
_INSIDE = ("architecture", "benchmarks", "borders", "budgets", "contributing", "decisions/", "errors", "reliability")
"""How the locations of pages about how tflaunch is made begin, or some of them."""
_LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc="([^"]*)"|<link[^>]*\shref="([^"]*)"|url\(([^)]*)\)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; `strict` in mkdocs.yml makes every warning an error: links, anchors, pages that no menu has."""
    directory = tmp_path_factory.mktemp("site")
    build(load_config(str(REPOSITORY / "mkdocs.yml"), site_dir=str(directory)))
    return directory


def headings(site: Path, page: str) -> set[str]:
    return set(re.findall(r'<h[23] id="([^"]*)"', (site / page).read_text()))


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    loaded = {next(filter(None, found), "") for page in pages for found in _LOADED.findall(page.read_text())}
    assert len(loaded) > 10
    assert [url for url in loaded if re.match(r"['\"]?(?:\w+:)?//", url)] == []


def entries(site: Path) -> list[dict[str, Any]]:
    """Return what the search knows of each section; the index is a script, as files cannot fetch one another."""
    script = (site / "search" / "search_index.js").read_text()
    found: list[dict[str, Any]] = json.loads(script.removeprefix("var __index = "))["docs"]
    return found


def test_search_works_in_files(site: Path) -> None:
    assert any("TF_CONFIG" in entry["text"] for entry in entries(site))
    assert (site / "site" / "iframe-worker.js").is_file()


def test_pages_about_how_tflaunch_is_made_count_least_in_the_search(site: Path) -> None:
    inside = [entry for entry in entries(site) if entry["location"].startswith(_INSIDE)]
    assert len(inside) > 100
    assert {entry.get("boost") for entry in inside} == {_BOOST_INSIDE}
    guides = [entry for entry in entries(site) if entry["location"].startswith(("tutorial", "running", "supervision"))]
    assert {entry.get("boost", 1) for entry in guides} == {1}


@pytest.mark.web
@pytest.mark.parametrize("words", ["restart", "port", "ssh"])
def test_the_search_finds_pages_for_users_first(site: Path, words: str, tmp_path: Path) -> None:
    """As a browser shows it, which is given the page as a file."""
    need(["chromium"], ["chromium"])
    chromium = program("chromium") or lacking("no chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    patience = ["--virtual-time-budget=20000", "--dump-dom"]  # of the page's time, which passes at full speed
    command = [chromium, *options, *patience, f"{(site / 'index.html').as_uri()}?q={words}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    items = shown.split('<li class="md-search-result__item">')[1:]
    found = [re.sub(r"^.*/site\d*/", "", re.findall(r'href="([^"?#]*)', item)[0]) for item in items]
    assert len(found) > 5, shown[-2000:]
    assert [page for page in found if page.startswith(_INSIDE)] == []


def test_the_reference_has_everything_that_the_code_has(site: Path) -> None:
    verbs = command_group.list_commands(click.Context(command_group))
    assert headings(site, "commands.html") >= {f"tflaunch-{verb}" for verb in verbs}
    assert headings(site, "api.html") >= {name.lower() for name in tflaunch.__all__ if name != "__version__"}
    assert headings(site, "events.html") == {
        event_records.kind_of(kind) for kind in get_args(events.Event | Annotation)
    }
    assert headings(site, "json.html") == {*with_output(), "events"}
    fields = (site / "fields.html").read_text()
    assert [name for name in written_fields(Spec) if f"<code>{name}</code>" not in fields] == []

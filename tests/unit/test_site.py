"""The documents as a site: built without a warning, complete, and without anything that is loaded from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import click
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import tflaunch
from support.specs import REPOSITORY
from tflaunch.cli.json_output import with_output
from tflaunch.cli.main import tflaunch as command_group
from tflaunch.clusterspec.model import Spec, written_fields
from tflaunch.core import event_records, events
from tflaunch.core.annotations import Annotation

pytestmark = pytest.mark.unit

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
    """So it can be read without a network."""
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    loaded = {next(filter(None, found), "") for page in pages for found in _LOADED.findall(page.read_text())}
    assert len(loaded) > 10
    assert [url for url in loaded if re.match(r"['\"]?(?:\w+:)?//", url)] == []


def test_search_works_in_files(site: Path) -> None:
    """The index is a script, as pages that are opened as files cannot fetch it."""
    script = (site / "search" / "search_index.js").read_text()
    found = json.loads(script.removeprefix("var __index = "))
    texts = {entry["location"]: entry["text"] for entry in found["docs"]}
    assert any("TF_CONFIG" in text for text in texts.values())
    assert (site / "site" / "iframe-worker.js").is_file()


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

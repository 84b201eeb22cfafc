"""What is owed to the readers of documents: few words, and pictures of what is printed now."""

from __future__ import annotations

import html
import re
import subprocess

import pytest
import yaml
from click.testing import CliRunner

from support.specs import REPOSITORY
from tflaunch.cli.main import tflaunch

pytestmark = pytest.mark.unit

MOST_WORDS = 36_000
MOST_WORDS_OF_CHANGES = 2_500
AT_TOP = {
    *(".dockerignore", ".env", ".git-blame-ignore-revs", ".gitignore", "LICENSE", "Makefile"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DESCRIPTION.md", "SECURITY.md"),
    *("docker-compose.yml", "docker-compose.gpu.yml", "mkdocs.yml", "pyproject.toml"),
}
AT_ROOT = ("README.md", "CHANGELOG.md", "DESCRIPTION.md", "SECURITY.md")
PICTURES = REPOSITORY / "docs" / "pictures"


class _Menu(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags of Python stay unread."""


_Menu.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
_Menu.add_constructor("!.github", lambda *_: None)


def pages_inside() -> set[str]:
    """Return the pages about how tflaunch is made, which the menu has last."""
    menu = yaml.load((REPOSITORY / "mkdocs.yml").read_text(), _Menu)["nav"]
    assert list(menu[-1]) == ["Inside"]
    return {page for entry in menu[-1]["Inside"] for page in entry.values()}


def words(path: str) -> int:
    return len((REPOSITORY / path).read_text().split())


def picture(name: str) -> list[str]:
    """Return what a picture of a terminal shows, a line each, with one blank between words."""
    lines: dict[tuple[str, str], str] = {}
    svg = (PICTURES / f"{name}.svg").read_text()
    for y, frame, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*-(\d+)-line-\d+\)">([^<]*)<', svg):
        lines[frame, y] = lines.get((frame, y), "") + html.unescape(text)
    return [" ".join(line.split()) for line in lines.values()]


def test_only_what_a_visitor_looks_for_lies_at_the_top() -> None:
    """Output of a trial, added with everything else, would be in the repository from then on."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert {path for path in listed.stdout.splitlines() if "/" not in path} == AT_TOP


def test_documents_for_users_stay_short() -> None:
    """Who finds a number too small says something once that stands twice now."""
    inside = pages_inside()
    pages = [f"docs/{page.name}" for page in REPOSITORY.glob("docs/*.md") if page.name not in inside]
    assert len(pages) > 20
    assert sum(map(words, [*AT_ROOT, *pages])) <= MOST_WORDS
    assert words("CHANGELOG.md") <= MOST_WORDS_OF_CHANGES


def test_changes_have_a_line_each() -> None:
    lines = (REPOSITORY / "CHANGELOG.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("  ") or len(line) > 120] == []


def test_the_picture_of_help_shows_what_help_prints() -> None:
    """To draw it again: python docs/pictures.py --only help (all pictures: make pictures)."""
    output = CliRunner().invoke(tflaunch, ["--help"], prog_name="tflaunch", terminal_width=100).output
    printed = [" ".join(line.split()) for line in output.splitlines()]
    assert [line for line in printed if line and line not in picture("help")] == []


def test_the_picture_of_a_failure_says_what_to_type_next() -> None:
    assert [line for line in picture("failure") if line.startswith("next: tflaunch logs broken-")]


@pytest.mark.parametrize("name", ["up", "failure", "ps", "help"])
def test_no_picture_shows_a_temporary_path(name: str) -> None:
    assert len(picture(name)) > 3
    assert "/tmp" not in (PICTURES / f"{name}.svg").read_text()

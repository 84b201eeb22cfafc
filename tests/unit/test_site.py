"""The documents: what is owed to their readers, and the site that is built from them."""

import ast
import builtins
import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click
import pytest
import yaml
from click.testing import CliRunner
from mkdocs.commands.build import build
from mkdocs.config import load_config

import matrix
import tflaunch
from support.needs import need, program
from support.preload_environments import ENVIRONMENTS, PAGE, refusal
from support.specs import REPOSITORY
from tflaunch.cli.json_output import with_output
from tflaunch.cli.main import tflaunch as command_group
from tflaunch.clusterspec.model import Spec, written_fields
from tflaunch.core import event_records, events
from tflaunch.core.annotations import Annotation

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


def test_search_works_in_files_and_pages_about_how_tflaunch_is_made_count_least(site: Path) -> None:
    assert any("TF_CONFIG" in entry["text"] for entry in entries(site))
    assert (site / "site" / "iframe-worker.js").is_file()
    inside = [entry for entry in entries(site) if entry["location"].startswith(_INSIDE)]
    assert len(inside) > 100
    assert {entry.get("boost") for entry in inside} == {_BOOST_INSIDE}
    guides = [entry for entry in entries(site) if entry["location"].startswith(("tutorial", "running", "supervision"))]
    assert {entry.get("boost", 1) for entry in guides} == {1}


@pytest.mark.web
@pytest.mark.parametrize("words", ["restart", *(pytest.param(w, marks=pytest.mark.thorough) for w in ("port", "ssh"))])
def test_the_search_finds_pages_for_users_first(site: Path, words: str, tmp_path: Path) -> None:
    """As a browser shows it, which is given the page as a file."""
    need("chromium")
    chromium = program("chromium")
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
    assert headings(site, "events.html") == {event_records.kind_of(one) for one in get_args(events.Event | Annotation)}
    assert headings(site, "json.html") == {*with_output(), "events"}
    fields = (site / "fields.html").read_text()
    assert [name for name in written_fields(Spec) if f"<code>{name}</code>" not in fields] == []


# ---- few words, and pictures of what is printed now


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
    changes = (REPOSITORY / "CHANGELOG.md").read_text().splitlines()  # a line each
    assert [line for line in changes if line.startswith("  ") or len(line) > 120] == []


def test_the_picture_of_help_shows_what_help_prints() -> None:
    """To draw it again: python docs/pictures.py --only help (all pictures: make pictures)."""
    output = CliRunner().invoke(command_group, ["--help"], prog_name="tflaunch", terminal_width=100).output
    printed = [" ".join(line.split()) for line in output.splitlines()]
    assert [line for line in printed if line and line not in picture("help")] == []


def test_no_picture_shows_a_temporary_path_and_that_of_a_failure_says_what_to_type_next() -> None:
    for name in ("up", "failure", "ps", "help"):
        assert len(picture(name)) > 3
        assert "/tmp" not in (PICTURES / f"{name}.svg").read_text()
    assert [line for line in picture("failure") if line.startswith("next: tflaunch logs broken-")]


# ---- the table of environments in docs/warm_start.md, which tests/training/test_preload_environments.py writes


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_page_says_what_becomes_of_each_environment(name: str) -> None:
    """All 200 starts, or the module that is refused."""
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |")]
    _, _, packages, result, _ = (cell.strip() for cell in row.split("|"))
    wanted = ENVIRONMENTS[name]
    assert tuple(package.split()[0] for package in packages.split(", ")) == wanted.packages
    assert result == (refusal(wanted.refused) if wanted.refused else "forked, 200 of 200")


# ---- links, the page of errors, and that of compatibility


class Listed(NamedTuple):
    """An exception, as a row of the page begins."""

    name: str
    base: str
    module: str


def exceptions() -> set[Listed]:
    """Return the exceptions of the code: what derives from one, through any number of others."""
    classes = []
    for root in (REPOSITORY / "launcher" / "tflaunch", REPOSITORY / "worker"):
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                    classes += [Listed(node.name, base, str(path.relative_to(root))) for base in bases]
    known = {name for name, it in vars(builtins).items() if isinstance(it, type) and issubclass(it, BaseException)}
    found = set[Listed]()
    while more := {each for each in classes if each.base in known} - found:
        found |= more
        known |= {each.name for each in more}
    return found


def test_the_page_has_all_errors_and_their_names_end_in_error() -> None:
    """Also of those that derive from BaseException, which ruff does not see."""
    page = (REPOSITORY / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `([\w/]+\.py)` \|", page, re.MULTILINE)
    found = exceptions()
    assert {Listed(*row) for row in rows} == found
    assert len(rows) == len(found)
    shown = set(re.findall(r"\w+", page.split("```")[1]))
    assert {name for name, base, _ in rows if base not in ("Exception", "BaseException")} <= shown, "of the tree"
    assert {name for name, *_ in rows if not name.endswith("Error")} == {"JobFailed", "CannotTrain"}


def test_a_cell_is_changed_and_nothing_else() -> None:
    written = matrix.PAGE.read_text()
    (row,) = [line for line in written.splitlines() if line.startswith("| 3.11 |")]
    changed = matrix.with_cell(written, "3.11", "2.21", "tried")
    assert changed.count("tried") == written.count("tried") + 1
    assert matrix.with_cell(changed, "3.11", "2.21", matrix.cells_of(row)[-1]) == written

# ruff: noqa: INP001 (a hook of mkdocs, named in mkdocs.yml)
"""Pages of the site that are not in docs/: documents of the repository's root, and the reference made from code."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))  # mkdocs loads a hook by its path

import reference  # noqa: E402 (beside this file)

FROM_ROOT = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks_method.md",
}
"""Documents elsewhere in the repository, to their pages."""
PAGES = FROM_ROOT | {
    "cluster_specs": "examples.md",
    "docs/decisions": "decisions/index.md",
    "docs/example_project": "example_project/README.md",
    "docs/notebook.ipynb": "notebook_page.md",
}
"""What links in documents lead to, to the page that shows it."""
EXAMPLES = ["docker-compose.yml", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("cluster_specs/*.json"))]
INSIDE = 0.02
"""How much a page of the menu's last part, about how tflaunch is made, counts in the search; other pages count 1."""
SECTION_INSIDE = "Inside"
"""The last part of the menu: how tflaunch is made."""
BOOST_INSIDE = 0.0005
"""How much its pages count in the search, so that they are found last: a match in a title counts 1000, in a text 1."""
BOOST_FOR_PROGRAMS = 0.05
"""The same for pages of names that programs read, which have nearly every word in a title."""
FOR_PROGRAMS = ("events.md", "fields.md", "json.md")
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here to those of docs/."""
    from mkdocs.structure.files import File

    made = {page: (ROOT / name).read_text() for name, page in FROM_ROOT.items()}
    made |= {
        "examples.md": _examples(),
        "decisions/index.md": _decisions(),
        "notebook_page.md": reference.notebook(DOCS / "notebook.ipynb"),
    }
    made |= {"fields.md": reference.fields(), "api.md": reference.api(), "events.md": reference.events()}
    made["json.md"] = reference.json_output()
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to other files of the repository lead to their pages, and the search find pages for users first."""
    here = page.file.src_uri
    if here.startswith("decisions/") or any(section.title == SECTION_INSIDE for section in page.ancestors):
        page.meta["search"] = {"boost": BOOST_INSIDE}
    elif here in FOR_PROGRAMS:
        page.meta["search"] = {"boost": BOOST_FOR_PROGRAMS}
    source = next((name for name, made in FROM_ROOT.items() if made == here), f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(source).parent / match[0])
        return os.path.relpath(_page_of(target), PurePosixPath(here).parent or ".")

    parts = _FENCE.split(markdown)  # code has an odd index
    return "".join(part if number % 2 else _LINK.sub(moved, part) for number, part in enumerate(parts))


def _page_of(target: str) -> str:
    """Return the page of the site for a file of the repository."""
    if target in EXAMPLES:
        return f"examples.md#{_anchor(target)}"
    return PAGES.get(target, target.removeprefix("docs/"))


def _decisions() -> str:
    """Return the list of the decisions that hold; those that are superseded say so below their titles."""
    texts = {path.name: path.read_text() for path in sorted(DOCS.glob("decisions/*.md"))}
    titles = {name: text.partition("\n")[0] for name, text in texts.items() if "\nSuperseded" not in text}
    lines = [f"- [{title.removeprefix('# ')}]({name})" for name, title in titles.items()]
    head = "# Decisions\n\nDesign choices that are hard to reverse, with their reasons and alternatives.\n\n"
    return head + "\n".join(line.replace(". ", "\\. ", 1) for line in lines) + "\n"


def _anchor(name: str) -> str:
    return re.sub(r"[^\w-]", "", name.lower())


def _examples() -> str:
    """Return the page of all example files."""
    parts = ["# Examples\n\nThe files of `cluster_specs/` and the compose file of a checkout."]
    for name in EXAMPLES:
        text = (ROOT / name).read_text().rstrip()
        parts.append(f"## {name}\n\n```{Path(name).suffix[1:]}\n{text}\n```")
    return "\n\n".join(parts) + "\n"

"""Plant each bug and find it: ``python -m mutants``, ``python -m mutants --only fence``.

The simulator plays histories from seed 0 on until the bug's invariant fails. A file of tests must pass without the bug
and fail with it. A bug that neither finds within some minutes has survived.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from mutants.edits import Edit, Suite
from mutants.find import Finding, hunt, why_useless
from mutants.table import MUTANTS
from support.page_tables import read_table, write_table

_TABLE = "planted bugs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--only", default="", help="part of a bug's name or module")
    parser.add_argument("--page", type=Path, help="write the table to this page")
    arguments = parser.parse_args()
    found: dict[str, Finding] = {}
    for name, edit in MUTANTS.items():
        if arguments.only in f"{name} {edit.path}":
            found[name] = _found(edit)
            print(f"{name} | {found[name].by or 'not found'} | {found[name].after}", flush=True)
    survivors = [name for name, finding in found.items() if not finding.by]
    print(f"{len(found) - len(survivors)} of {len(found)} planted bugs were found")
    if arguments.page is not None:
        write_table(arguments.page, _TABLE, table(found, read_table(arguments.page, _TABLE)))
    return 1 if survivors else 0


def _found(edit: Edit) -> Finding:
    useless = _why_useless(edit.found_by) if isinstance(edit.found_by, Suite) else ""
    return Finding("", useless) if useless else hunt(edit)


@cache
def _why_useless(suite: Suite) -> str:
    return why_useless(suite)


def table(found: Mapping[str, Finding], known: list[list[str]]) -> Iterator[str]:
    """Yield the table of the planted bugs in Markdown, by module; those not hunted this time keep their rows."""
    rows = {row[1]: row for row in known if row[1] in MUTANTS}
    for name, finding in found.items():
        by = f"`{finding.by}`" if "::" in finding.by else finding.by or "nothing"
        module = MUTANTS[name].module.removeprefix("tflaunch.").removeprefix("tflaunch_worker.")
        rows[name] = [f"`{module}`", name, by, finding.after]
    yield "| module | planted bug | found by | after |"
    yield "|---|---|---|--:|"
    for row in sorted(rows.values()):
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.exit(main())

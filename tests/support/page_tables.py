"""Tables in documents that commands write: each lies between two comments."""

from collections.abc import Iterable
from pathlib import Path


def write_table(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace what lies between ``<!-- table: NAME -->`` and ``<!-- end -->`` on a page.

    Raises:
        ValueError: the page has no such comments.
    """
    before, begin, rest = page.read_text().partition(f"<!-- table: {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise ValueError(f"{page} has no comments around the table {name!r}")
    page.write_text("".join((before, begin, "\n", *(f"{line}\n" for line in lines), "\n", end, after)))


def read_table(page: Path, name: str) -> list[list[str]]:
    """Return the cells of the rows of a table that `write_table` has written, without its head."""
    _, _, rest = page.read_text().partition(f"<!-- table: {name} -->\n")
    rows = [line for line in rest.partition("<!-- end -->")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]

"""Variables of tasks: words of a command line, and files as Compose and dotenv read them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tflaunch.cli.arguments.env import variables_of

pytestmark = pytest.mark.unit


def read(directory: Path, text: str) -> dict[str, str]:
    path = directory / "job.env"
    path.write_bytes(text.encode())
    return variables_of([], path)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1 2", "1 2"),
        ("A=", ""),
        (" export A = x=y ", "x=y"),
        ("\ufeffA=1", "1"),
        ("A=1\r", "1"),
        ("A='two words'", "two words"),
        ('A="a\\nb\\"c"', 'a\nb"c'),
        ("A=it's", "it's"),
        ("A=1#2", "1#2"),
        ("A=1 # two", "1"),
        ("A='#1' # two", "#1"),
        ("A={run}", "{{run}}"),
        ("A='$${B}${C}'", "$$${B}$${C}"),
    ],
)
def test_a_line_of_a_file(tmp_path: Path, line: str, value: str):
    """Without its quotes; what is filled in elsewhere in a spec is quoted."""
    assert read(tmp_path, f"{line}\n") == {"A": value}


@pytest.mark.parametrize("line", ["A='secret", 'A="secret" more', "two words=secret", "=secret", "secret"])
def test_a_line_that_is_wrong_is_not_shown(tmp_path: Path, line: str):
    """It may be a secret."""
    with pytest.raises(click.UsageError, match=r"job\.env:2: ") as raised:
        read(tmp_path, f"A=1\n{line}\n")
    assert "secret" not in str(raised.value)


def test_what_is_typed_is_text_of_the_spec(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("B", "{run}")
    assert variables_of(["A={run}", "B"], None) == {"A": "{run}", "B": "{{run}}"}

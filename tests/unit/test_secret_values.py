"""Values that this machine has: secrets, which are shown nowhere, and variables as Compose and dotenv write them."""

from pathlib import Path

import click
import pytest

from tflaunch.cli.run import variables_of
from tflaunch.client.secret_values import find_secrets, read_secrets
from tflaunch.errors import TflaunchError
from tflaunch.plan.model import SecretSource


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"key", "key"), (b"key\n", "key"), (b"key\r\n", "key"), (b" a\nb \n", " a\nb "), (b"\xff", "\udcff")],
)
def test_a_file_is_read_without_its_last_line_break(
    tmp_path: Path, content: bytes, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a shell; other bytes arrive as they are. A home is expanded when it is read."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_bytes(content)
    assert dict(read_secrets({"KEY": SecretSource(file="~/key")})) == {"KEY": value}


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty; write the value"), (b"\n", "is empty"), (b"a\0b", "contains a NUL character")],
)
def test_a_file_without_a_usable_value_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(TflaunchError, match=rf"secrets\.KEY: {tmp_path}/key {words}"):
        read_secrets({"KEY": SecretSource(file=str(tmp_path / "key"))})


def test_a_representation_has_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracebacks and debuggers show it."""
    monkeypatch.setenv("SOURCE", "hush")
    secrets, problems = find_secrets({"KEY": SecretSource(env="SOURCE"), "OTHER": SecretSource(env="NOT_SET")})
    assert repr(secrets) == str(secrets) == "Secrets(KEY, OTHER)"
    assert (secrets["KEY"], secrets["OTHER"]) == ("hush", None)
    assert [problem.where for problem in problems] == ["secrets.OTHER"]


def test_more_than_fits_into_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both figures, before an agent has to refuse it."""
    monkeypatch.setenv("SOURCE", "x" * 40_000)
    with pytest.raises(TflaunchError, match="secrets: have 80000 bytes, and at most 65536 fit"):
        read_secrets({"A": SecretSource(env="SOURCE"), "B": SecretSource(env="SOURCE")})


# ---- variables


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
        ("\ufeffA=1\r", "1"),
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

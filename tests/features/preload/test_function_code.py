"""What is found in functions before they are sent: imports, and reasons not to import modules before them."""

import os
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tflaunch.api.functions import Call
from tflaunch_worker.function import ABOUT, read_file


def defined(text: str) -> Callable[..., Any]:
    """Return a function with this body and an argument ``name``."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(f"import os, sys\ndef function(name=None):\n{textwrap.indent(text, ' ')}\n", names)
    function: Callable[..., Any] = names["function"]
    return function


def imports() -> None:
    """Import in every form."""
    import json.tool
    from email import charset

    def later() -> None:
        import wave

        print(wave, json.tool, charset)


def described(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Return what tasks find of a function that was sent."""
    with tempfile.TemporaryDirectory() as directory:
        Call(function, arguments, {}).write(Path(directory, "call"))
        return read_file(str(Path(directory, "call")), ABOUT)


def reason_against(function: Callable[..., Any], *arguments: Any) -> str:
    """Return the reason without the function's name."""
    about = described(function, *arguments)
    return str(about["reason"]).removeprefix(f"{about['name']} ")


MATTERS_NOT = (
    "os.environ['MINE'] = os.environ['TF_CONFIG'] + os.environ.get('OTHER', '1')",
    "os.environ.setdefault('ALSO_MINE', '2')\nos.environ.pop('MINE', None)\ndel os.environ['ALSO_MINE']",
    "from os import environ\nreturn 'MINE' in environ, dict(environ.items()), environ['MINE']",
    "sys.path.append('mine')\nreturn sys.path[0], sys.path, sys.argv, os.path.join('a', 'b')",
)
UNKNOWN_VARIABLES = (
    "os.environ[name] = '1'",
    "os.environ.update(name)",
    "os.environ.setdefault(name, '1')",
    "from os import environ as variables\nvariables[name] = '1'",
    "variables = os.environ\nvariables[name] = '1'",
    "getattr(os, 'environ')[name] = '1'",
    "return lambda: os.putenv(name, '1')",
)
OTHER_PLACES = (
    "sys.path.insert(0, name)",
    "import sys as system\nsystem.path.insert(0, name)",
    "from sys import path\npath.insert(0, name)",
    "sys.path[0] = name",
    "sys.path[:0] = [name]",
    "sys.path = [name]",
    "sys.path += [name]",
    "del sys.path[0]",
)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (MATTERS_NOT, ""),
        (UNKNOWN_VARIABLES, "sets variables whose names cannot be known beforehand"),
        (OTHER_PLACES, "changes where modules are looked for (sys.path)"),
        (["import gevent.monkey\ngevent.monkey.patch_all()"],
         "imports gevent.monkey, which has to be imported before all others"),
    ],
    ids=["nothing", "unknown variables", "where modules are found", "a module that must come first"],
)  # fmt: skip
def test_what_a_function_does_is_a_reason(texts: Sequence[str], reason: str) -> None:
    assert {text: reason_against(defined(text)) for text in texts} == dict.fromkeys(texts, reason)


def test_what_cannot_be_seen_is_a_reason() -> None:
    assert "is part of a package" in reason_against(os.getcwd)
    assert "too many objects" in reason_against(imports, [0] * 500_000)
    assert reason_against(imports, b"0" * 5_000_000) == ""


def test_variables_that_imports_read() -> None:
    """In the code, in what it calls, and in its arguments."""
    reason = "mentions TF_ENABLE_ONEDNN_OPTS, which is read while modules are imported"
    sets = defined("os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'")
    assert reason_against(sets) == reason
    assert reason_against(lambda: [sets()]) == reason
    assert reason_against(imports, {"TF_ENABLE_ONEDNN_OPTS": "0"}) == reason


def test_imports() -> None:
    names = set(described(imports)["imports"])
    assert {"json.tool", "email", "email.charset", "wave"} <= names
    assert "__main__" not in names

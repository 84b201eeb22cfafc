"""What is found in functions before they are sent: imports, and reasons not to import modules before them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tflaunch.api.functions import Call
from tflaunch_worker.function import ABOUT, read_file

pytestmark = pytest.mark.unit

SETS = "sets variables whose names cannot be known beforehand"
CHANGES = "changes where modules are looked for (sys.path)"


def reads_and_sets_known_variables() -> Any:
    """Do nothing that must come before imports."""
    from os import environ

    os.environ["MINE"] = os.environ["TF_CONFIG"] + os.environ.get("OTHER", "1") + environ["MINE"]
    os.environ.setdefault("ALSO_MINE", "2")
    os.environ.pop("MINE", None)
    del os.environ["ALSO_MINE"]
    sys.path.append("mine")
    return "MINE" in environ, dict(environ.items()), sys.argv, os.path.join("a", "b")


def reads_path() -> Any:
    return sys.path[0], sys.path


def sets_item(name: Any) -> None:
    os.environ[name] = "1"


def renames(name: Any) -> None:
    from os import environ as variables

    variables[name] = "1"


def gets_attribute(name: Any) -> None:
    getattr(os, "environ")[name] = "1"  # noqa: B009 - the case


def defines(name: Any) -> Callable[[], None]:
    return lambda: os.putenv(name, "1")


def inserts_by_another_name(name: Any) -> None:
    import sys as system

    system.path.insert(0, name)


def imports_path(name: Any) -> None:
    from sys import path

    path.insert(0, name)


def replaces_slice(name: Any) -> None:
    sys.path[:0] = [name]


def extends(name: Any) -> None:
    sys.path += [name]


def deletes() -> None:
    del sys.path[0]


def sets_variable_of_imports() -> None:
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"


def imports_first() -> None:
    import gevent.monkey  # type: ignore[import-untyped,import-not-found,unused-ignore]

    gevent.monkey.patch_all()


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


def test_what_cannot_matter_is_no_reason() -> None:
    assert reason_against(reads_and_sets_known_variables) == reason_against(reads_path) == ""


@pytest.mark.parametrize(
    "function",
    [
        *(sets_item, renames, gets_attribute, defines),
        lambda name: os.environ.update({name: "1"}),
        lambda name: os.environ.setdefault(name, "1"),
    ],
)
def test_unknown_variables(function: Callable[..., Any]) -> None:
    assert reason_against(function) == SETS


@pytest.mark.parametrize("function", [inserts_by_another_name, imports_path, replaces_slice, extends, deletes])
def test_changes_of_where_modules_are_found(function: Callable[..., Any]) -> None:
    assert reason_against(function) == CHANGES


def test_variables_that_imports_read() -> None:
    reason = "mentions TF_ENABLE_ONEDNN_OPTS, which is read while modules are imported"
    assert reason_against(sets_variable_of_imports) == reason
    assert reason_against(lambda: [sets_variable_of_imports()]) == reason  # type: ignore[func-returns-value]
    assert reason_against(imports, {"TF_ENABLE_ONEDNN_OPTS": "0"}) == reason


def test_what_cannot_be_seen_is_a_reason() -> None:
    assert "is part of a package" in reason_against(os.getcwd)
    assert "too many objects" in reason_against(imports, [0] * 500_000)
    assert reason_against(imports, b"0" * 5_000_000) == ""


def test_modules_that_must_come_first() -> None:
    assert reason_against(imports_first) == "imports gevent.monkey, which has to be imported before all others"


def test_imports() -> None:
    names = set(described(imports)["imports"])
    assert {"json.tool", "email", "email.charset", "wave"} <= names
    assert "__main__" not in names

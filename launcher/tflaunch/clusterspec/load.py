"""Load a spec from JSON, YAML or TOML, within limits; apply `${VAR}` and `--set`."""

import copy
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tflaunch.clusterspec import defaults, templates
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.problems import validate_data
from tflaunch.clusterspec.spec_file import SpecFile, SpecFileError, read_spec_file
from tflaunch.clusterspec.values import WrittenFloat, format_place, show_value
from tflaunch.errors import Problem, SpecError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_DEPTH = 32
MAX_VALUES = 200_000
_TOO_DEEP = "is nested too deeply", f"use at most {MAX_DEPTH} levels"

_EXPANDED = ("env", "workdir", "hosts", "discover", "roles.*.env", "roles.*.workdir", "sidecars.*.env", "tensorboard")
_DOTTED_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""", re.ASCII)
_SHOWN = 30  # characters of an invalid text
_STEP = re.compile(r"([^.\[\]]+)|\[(\d{1,9})\]")


def load_spec(
    given: Path | SpecFile,
    settings: Sequence[str] = (),
    name: str | None = None,
    command: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Spec:
    """Return the spec in a file, with the changes of the command line and `defaults`.

    Args:
        given: the file, or its text; the suffix of its name determines the format.
        settings: ``path=value`` of ``--set``; a value is parsed as JSON if possible, else it is text.
        name: replaces the spec's name.
        command: replaces the spec's command if not empty.
        environ: the environment for ``${VAR}`` and for locating the user's defaults; without it, neither is used.

    Raises:
        SpecError: the spec is invalid; lists all problems.
    """
    file = read_spec_file(given) if isinstance(given, Path) else given
    data = parse_spec_file(file)
    if isinstance(data, dict):
        data = apply_settings(file.source, data, settings)
        data.setdefault("name", job_name_from(Path(file.source).stem))
        if name is not None:
            data["name"] = name
        if command:
            data["command"] = list(command)
    return spec_from_data(file.source, data, environ, file.directory)


def parse_spec_file(file: SpecFile) -> Any:
    """Parse the text of a file into plain data, within limits.

    Raises:
        SpecError: the text is not valid in its format, or too large.
    """
    parsers = {".json": _parse_json, ".yaml": _parse_yaml, ".yml": _parse_yaml, ".toml": _parse_toml}
    try:
        parse = parsers.get(file.suffix.lower())
        if parse is None:
            raise _unknown_format(file)
        data = parse(file.text)
        _check_size(data)
    except SpecFileError as error:
        raise SpecError(file.source, [error.problem]) from None
    except RecursionError:
        raise SpecError(file.source, [Problem.error("", *_TOO_DEEP)]) from None
    return data


def spec_from_data(source: str, data: Any, environ: Mapping[str, str] | None, directory: Path) -> Spec:
    """Return the spec in data of a JSON parser, completed by the user's defaults.

    ``source`` is the origin of the data, for messages; ``environ`` is as in `load_spec`, and ``directory`` the base of
    relative paths.

    Raises:
        SpecError: the spec is invalid; lists all problems.
    """
    origins: dict[str, str] = {}
    if environ is not None and isinstance(data, dict):
        for path in defaults.files_of(directory, environ):
            data, places = defaults.complete(data, _defaults_in(path, environ))
            origins |= dict.fromkeys(places, str(path))
    return _spec_of(source, data, environ or {}).model_copy(update={"origins": origins})


def _spec_of(source: str, data: Any, environ: Mapping[str, str]) -> Spec:
    """Return the spec in plain data; raises as `spec_from_data`."""
    unset: list[Problem] = []
    data = _expand(data, (), environ, unset)
    result = validate_data(data)
    if unset or isinstance(result, list):
        raise SpecError(source, [*unset, *(result if isinstance(result, list) else [])])
    return result


def _defaults_in(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    defaults.check_owner(path)
    file = read_spec_file(path, or_empty=True)
    data: dict[str, Any] = parse_spec_file(file) if file.text.strip() else {}
    named = [name for name in defaults.OF_ONE_JOB if isinstance(data, dict) and name in data]
    problems = [Problem("error", name, "belongs to one job", "write it into the spec") for name in named]
    try:
        _spec_of(str(path), {"cluster": {}, **data} if isinstance(data, dict) else data, environ)
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError(str(path), problems)
    return data


def apply_settings(source: str, data: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return plain data with the ``path=value`` of `--set` applied.

    Raises:
        SpecError: a setting is malformed, its path does not exist, or the data became too large.
    """
    if not settings:
        return data
    changed: dict[str, Any] = copy.deepcopy(data)
    problems = []
    for setting in settings:
        try:
            _assign_setting(changed, setting)
            _check_size(changed)
        except SpecFileError as error:
            problems.append(error.problem)
    if problems:
        raise SpecError(source, problems)
    return changed


def job_name_from(text: str) -> str:
    """Return a valid job name derived from a text."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:63] or "job"


def _unknown_format(file: SpecFile) -> SpecFileError:
    if file.suffix == ".py":
        return SpecFileError("is a program, not a spec", f"try: tflaunch run -n 2 -- python {shlex.quote(file.source)}")
    if file.suffix == ".ipynb":
        command = f"jupyter nbconvert --to script {shlex.quote(file.source)}"
        return SpecFileError("is a notebook, not a spec", f"`{command}` writes a program, which `tflaunch run` takes")
    what = f"the unknown extension {file.suffix!r}" if file.suffix else "no extension, so its format is unknown"
    return SpecFileError(f"has {what}", "use .json, .yaml, .yml or .toml")


def _load_json(text: str, parse_constant: Callable[[str], object]) -> Any:
    return json.loads(
        text,
        object_pairs_hook=_without_duplicates,
        parse_constant=parse_constant,
        parse_float=WrittenFloat,
        parse_int=lambda number: WrittenFloat(number) if number == "-0" else int(number),
    )


def _parse_json(text: str) -> Any:
    try:
        return _load_json(text, _refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        found = text[error.pos : error.pos + _SHOWN].partition("\n")[0].strip()
        near = f" at {found!r}" if found else ""
        hint = "correct the syntax there"
        if found.startswith(("//", "#", "/*")):
            hint = "JSON has no comments: remove it, or write YAML"
        elif found.startswith("'"):
            hint = "put text in double quotes"
        elif found[:1] in ("}", "]") and text[: error.pos].rstrip().endswith(","):
            hint = "remove the comma before it"
        raise SpecFileError(f"is not valid JSON: {error.msg}{near}", hint, place) from None
    except ValueError as error:  # a number with thousands of digits
        raise SpecFileError(f"is not usable JSON: {error}", "write a smaller number") from None


def _refuse_constant(word: str) -> None:
    raise SpecFileError(f"contains {word}, which is not valid JSON", "write a number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise SpecFileError(f"has the key {key!r} twice in one object", "keep one of them")
        result[key] = value
    return result


def _parse_toml(text: str) -> Any:
    if _DOTTED_KEY.search(text):  # tomllib's memory grows with the square of a key's parts
        raise SpecFileError(*_TOO_DEEP)
    try:
        return tomllib.loads(text, parse_float=WrittenFloat)
    except tomllib.TOMLDecodeError as error:
        hint = 'text needs quotes: "…"' if "Invalid value" in str(error) else "correct the syntax there"
        raise SpecFileError(f"is not valid TOML: {error}", hint) from None
    except ValueError as error:
        raise SpecFileError(f"is not usable TOML: {error}", "write a smaller number") from None


def _parse_yaml(text: str) -> Any:
    from tflaunch.clusterspec import yaml  # takes 13 ms, and most specs are JSON

    return yaml.parse_yaml(text)


def _check_size(data: Any) -> None:
    """Reject data that is too deep, cyclic, or too large with aliases expanded."""
    count = 0
    stack = [(data, 1)]
    while stack:
        value, depth = stack.pop()
        count += 1
        if depth > MAX_DEPTH:
            raise SpecFileError("is nested too deeply or refers to itself", f"use at most {MAX_DEPTH} levels")
        if count > MAX_VALUES:
            raise SpecFileError(f"has more than {MAX_VALUES} values", "a cluster spec is a page of text")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise SpecFileError(f"has the key {key!r:.40}, which is not text", "put it in quotes")
            stack.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list):
            stack.extend((item, depth + 1) for item in value)


def _assign_setting(data: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    steps = [name or int(index) for name, index in _STEP.findall(path)]
    if not equals or not steps or isinstance(steps[0], int):
        raise SpecFileError(f"--set {setting!r:.60} is not PATH=VALUE", "for example --set restart.max=0")
    try:
        value = _load_json(text, str)  # JSON has neither NaN nor Infinity: they are texts
    except (ValueError, RecursionError):
        value = text
    _assign(data, steps, value, setting)


def _assign(data: Any, steps: list[str | int], value: Any, setting: str) -> None:
    """Set the value at the end of a path, creating missing objects on the way."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        fits = isinstance(data, dict) if isinstance(step, str) else isinstance(data, list) and step < len(data)
        if not fits:
            inside = f", as {show_value(data)} has no fields" if not isinstance(data, dict | list) else ""
            message = f"--set {setting!r:.60} leads through {step!r}, which is not there{inside}"
            raise SpecFileError(message, f"end the path before .{step}" if inside else "check the path")
        if following is None:
            data[step] = value
        elif isinstance(step, str):
            data = data.setdefault(step, {})
        else:
            data = data[step]


def _expand(value: Any, location: tuple[str | int, ...], environ: Mapping[str, str], problems: list[Problem]) -> Any:
    """Replace ``${VAR}`` in the fields of `_EXPANDED`; ``$${`` is a literal ``${``.

    The values are quoted where placeholders are filled in later, because they are no part of the user's text.
    """
    if isinstance(value, dict):
        return {key: _expand(item, (*location, key), environ, problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, (*location, index), environ, problems) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value or not _is_expanded(location):
        return value
    is_final = location[0] in ("hosts", "discover") and location[2:3] not in (("env",), ("workdir",))

    def replacement(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match["host"] or "${"
        if name not in environ:
            hint = "set it, or write $${ for a literal ${"
            if re.search(r"[^A-Za-z0-9_]", name):  # such as a default
                hint = "only ${NAME} and ${host:NAME} are known here"
            problems.append(Problem("error", format_place(location), f"environment variable {name!r} is not set", hint))
            return ""
        return environ[name] if is_final else templates.quote(environ[name])

    return templates.VARIABLE.sub(replacement, value)


def _is_expanded(location: tuple[str | int, ...]) -> bool:
    for pattern in _EXPANDED:
        parts = pattern.split(".")
        if len(location) >= len(parts) and all(p in ("*", str(at)) for p, at in zip(parts, location, strict=False)):
            return True
    return False

"""What a message about a spec proposes is accepted, for every field and many wrong values."""

import copy
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from tflaunch.clusterspec.model import Host, Resources, Role, Spec, written_fields
from tflaunch.clusterspec.problems import FOREIGN_FIELDS, validate_data
from tflaunch.clusterspec.values import IN_THAT_FORM, format_place
from tflaunch.errors import Problem
from tflaunch.plan.lint import check_spec

SPEC = {"cluster": {"worker": 3}, "command": ["echo"]}
WRONG: tuple[Any, ...] = (
    None, True, False, 0, 5, -1, 2.5, "", "on-failure", "30d", ".", "h1,h2", "2", [], [1], ["a"], ["sh", "n.sh"],
    [2, 2],    ["2"], {}, {"a": 1}, [["a"]],
)  # fmt: skip
NEEDED = {"checkpoints": {"dir": "state"}, "elastic": {"min_workers": 2}, "notify": {"exec": ["true"]}}
"""What parts of a spec must have."""
KEYS = {"cluster": "worker", "discover": "worker", "roles": "worker", "slurm": "partition", "volumes": "/data"}
"""Keys of the objects that do not take any key."""
AS_WRITTEN = {
    "put it in quotes": lambda value: str(value).lower() if isinstance(value, bool) else str(value),
    "put it in quotes, or leave it out": lambda _: "null",
    "write its JSON as text": json.dumps,
    "remove the quotes": json.loads,
    "write a whole number such as 3": lambda _: 3,
    "write true or false, without quotes": lambda _: True,
    "write text, or true for an option without a value": lambda _: True,
}
"""Remedies in words, and what they make of a value."""
AS_CHOICE = {"true": True, "false": False}


def places(declared: Any = Spec, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield every place at which a spec can have a value."""
    while not isinstance(declared, type) and get_origin(declared) not in (dict, list, tuple, _MAPPING):
        options = [each for each in get_args(declared) if each is not type(None)]
        if not options:
            return
        declared = options[0]
    if isinstance(declared, type) and issubclass(declared, BaseModel):
        for name in written_fields(declared):
            yield (*at, name)
            yield from places(declared.model_fields[name].annotation, (*at, name))
    elif get_origin(declared) is tuple:
        yield (*at, 0)
    elif get_origin(declared) is _MAPPING:
        inside = (*at, KEYS.get(str(at[-1]), "KEY"))
        yield inside
        yield from places(get_args(declared)[1], inside)


_MAPPING = get_origin(Spec.model_fields["env"].annotation)


def with_value(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """Return a spec with a value at a place."""
    data: Any = copy.deepcopy({**SPEC, **{name: NEEDED[name] for name in NEEDED if name == place[0]}})
    if place[0] == "sidecars" and len(place) > 2:
        data["sidecars"] = {"KEY": {"command": ["true"]}}
    here = data
    for part, following in itertools.pairwise(place):
        if isinstance(following, int):
            here[part] = [value]
            return dict(data)
        here = here.setdefault(part, {})
    here[place[-1]] = value
    return dict(data)


def problems(place: tuple[str | int, ...], value: Any) -> list[Problem]:
    result = validate_data(with_value(place, value))
    if isinstance(result, list):
        return result
    is_object = isinstance(value, dict)  # how other values fit together is not the matter here
    return [each for each in check_spec(result) if is_object and each[:2] == ("error", place[0])]


def proposals(problem: Problem, value: Any) -> Iterator[Any]:
    """Yield what a problem proposes to write in place of a value."""
    if problem.hint in AS_WRITTEN:
        yield AS_WRITTEN[problem.hint](value)
    if found := re.match(r'write (?:for example )?(?=[\[{"\d])', problem.hint):
        yield json.JSONDecoder().raw_decode(problem.hint[found.end() :])[0]
    for found in re.finditer(r'(?:such as|example|", "|" or) (?=[\[{"\d])', problem.message):
        yield json.JSONDecoder().raw_decode(problem.message[found.end() :])[0]
    if problem.hint == "write one of them":
        choices = re.search("must be (.*), not", problem.message)
        assert choices is not None
        yield from (AS_CHOICE.get(word, word) for word in re.split(", | or ", choices[1]))
    if found := re.match("did you mean '(.*)'", problem.hint):
        yield found[1]


ALL = list(places())
SOME = {("restart",), ("restart", "max"), ("notify", "on", 0), ("hosts", "KEY", "ssh"), ("cluster", "worker", 0)}
assert {*ALL} >= SOME, "fields, parts, lists and objects are not all tried"


@pytest.mark.parametrize("place", ALL, ids=lambda place: ".".join(map(str, place)))
def test_what_is_proposed_is_accepted(place: tuple[str | int, ...]) -> None:
    for value in WRONG:
        for problem in problems(place, value):
            assert problem.hint, problem.sentence()
            proposed = list(proposals(problem, value))
            assert proposed or problem.hint != IN_THAT_FORM, problem.sentence()
            if problem.where == format_place(place):  # a part of the value has its own turn
                refused = {str(each): found for each in proposed if (found := problems(place, each))}
                assert refused == {}, problem.sentence()


PARTS: dict[Any, tuple[str, ...]] = {
    Spec: (),
    Host: ("hosts", "h1"),
    Role: ("roles", "worker"),
    Resources: ("container", "resources"),
}
FOREIGN = [(model, name) for model, remedies in FOREIGN_FIELDS.items() for name in remedies]


@pytest.mark.parametrize(("model", "name"), FOREIGN, ids=lambda each: getattr(each, "__name__", each))
def test_a_field_of_another_tool_is_answered_with_what_is_accepted(model: Any, name: str) -> None:
    (problem,) = problems((*PARTS[model], name), 1)
    assert problem.message == f"unknown field {name!r}"
    is_beside = problem.hint.startswith('write beside "roles": ')
    written = re.search(r'"[^"]*": .*', problem.hint.removeprefix('write beside "roles": '))
    if written is None:
        return
    (field, value), *_ = json.JSONDecoder().raw_decode("{" + re.split("; |, and ", written[0])[0] + "}")[0].items()
    place = (field,) if is_beside else (*PARTS[model], field)
    assert problems(place, value) == []

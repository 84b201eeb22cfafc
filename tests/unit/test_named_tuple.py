"""`NamedTuple` of this project behaves as that of `typing`."""

from __future__ import annotations

import copy
import pickle
import typing
from collections.abc import Callable
from typing import Any

import pytest

from tflaunch_worker import named_tuple

pytestmark = pytest.mark.unit


class Ours(named_tuple.NamedTuple):
    """A record of this project."""

    name: str
    number: int = 2
    rest: tuple[str, ...] = ()

    @property
    def doubled(self) -> int:
        """A property."""
        return 2 * self.number


class Theirs(typing.NamedTuple):
    """The same record of `typing`."""

    name: str
    number: int = 2
    rest: tuple[str, ...] = ()

    @property
    def doubled(self) -> int:
        """A property."""
        return 2 * self.number


class Narrower(Ours):
    """A record that inherits its fields."""

    __slots__ = ()


class Nothing(named_tuple.NamedTuple):
    """A record without fields."""


def _matched(record: Any) -> Any:
    match record:
        case Ours(name, number) | Theirs(name, number):
            return name, number


SAME: dict[str, Callable[[Any], Any]] = {
    "it is a tuple": lambda made: tuple(made("a", rest=("b",))),
    "it equals one": lambda made: made("a") == ("a", 2, ()),
    "it has a hash": lambda made: hash(made("a")),
    "its fields": lambda made: (made("a").name, made("a", 3).number, made("a", number=4).doubled),
    "all by name": lambda made: made(rest=(), number=1, name="b")._asdict(),
    "changed": lambda made: made("a")._replace(number=5, name="c")._asdict(),
    "from a sequence": lambda made: made._make(["a", 1, ()])._asdict(),
    "matched": lambda made: _matched(made("a", 7)),
    "its names": lambda made: (made._fields, made._field_defaults, made.__match_args__),
    "its types": typing.get_type_hints,
    "copied": lambda made: copy.deepcopy(made("a"))._asdict(),
    "pickled": lambda made: type(pickle.loads(pickle.dumps(made("a")))) is made,
    "shown": lambda made: repr(made("a")).replace(made.__name__, "X"),
}


@pytest.mark.parametrize("what", SAME)
def test_it_behaves_as_that_of_typing(what: str) -> None:
    assert SAME[what](Ours) == SAME[what](Theirs)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda made: made(),
        lambda made: made("a", 1, (), 4),
        lambda made: made("a", other=1),
        lambda made: made._make(["a", 1, (), 4]),
        lambda made: setattr(made("a"), "name", "b"),
        lambda made: setattr(made("a"), "other", "b"),
    ],
)
def test_it_refuses_what_that_of_typing_refuses(wrong: Callable[[Any], Any]) -> None:
    for made in (Ours, Theirs):
        with pytest.raises((TypeError, AttributeError)):
            wrong(made)


def test_unknown_names_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="other"):
        Ours("a")._replace(other=1)  # type: ignore[call-arg]


def test_a_class_that_inherits_has_the_same_fields() -> None:
    narrow = Narrower("a", 3)
    assert (type(narrow), narrow.doubled, narrow._replace(name="b")) == (Narrower, 6, ("b", 3, ()))


def test_a_record_may_have_no_fields() -> None:
    assert (Nothing(), repr(Nothing())) == ((), "Nothing()")

"""What values of a spec may be: each kind reads a value, describes itself and gives its JSON Schema.

Reading never stops at the first mistake: whatever is wrong is noted with its place, and reading goes
on. A value that could not be read becomes None; nobody looks at it, because there are problems.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tflaunch.errors import Problem

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(_NUMBER + r"|(?=[0-9])" + "".join(rf"(?:({_NUMBER})\s*{unit}\s*)?" for unit in _UNIT_SECONDS))
_LONGEST_TEXT = 64  # letters of a duration
_EXTENSION = "x-"
"""How a key begins that is the user's own, as in a compose file."""

_LARGEST = 10**300
_LONGEST = 10 * 365 * 86400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Schema = dict[str, Any]


class At:
    """A place in the spec that is being read, and the list of what is wrong in all of it."""

    def __init__(self, problems: list[Problem], location: tuple[str | int, ...] = ()) -> None:
        self.problems = problems
        self.location = location

    def inside(self, part: str | int) -> At:
        """Return the place of a field or an item here."""
        return At(self.problems, (*self.location, part))

    def wrong(self, message: str, hint: str = "") -> None:
        """Note a problem here."""
        self.problems.append(Problem("error", place(self.location), message, hint))


class Kind(Protocol):
    """A kind of value."""

    description: str

    def read(self, value: object, at: At) -> Any:
        """Return what the value means; note what is wrong with it."""

    def schema(self) -> Schema:
        """Return the JSON Schema of such values."""


def place(location: tuple[str | int, ...]) -> str:
    """Return a location as text: ``("cluster", "worker", 1)`` is ``cluster.worker[1]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(value: object) -> str:
    """Return a value as it can stand in a sentence."""
    try:
        text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    except ValueError:  # Python writes no integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(word: str, known: list[str]) -> str | None:
    """Return the known word that a misspelt one probably means."""
    import difflib  # most people spell well

    matches = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return matches[0] if matches else None


class Text:
    """Any text without NUL, which no process could be given."""

    def __init__(self, description: str = "text") -> None:
        self.description = description

    def read(self, value: object, at: At) -> Any:
        """Return the text."""
        if not isinstance(value, str):
            at.wrong(f"must be {self.description}, not {shown(value)}", "put it in quotes")
        elif "\0" in value:
            at.wrong("contains a NUL character", "remove it")
        elif not _is_encodable(value):
            at.wrong(f"{shown(value)} holds half a character", "remove the lone surrogate")
        return value

    def schema(self) -> Schema:
        """Return the schema of text."""
        return {"type": "string"}


def _is_encodable(text: str) -> bool:
    """Whether a process can be given the text: lone surrogates cannot be passed on."""
    try:
        text.encode("utf-8", "surrogateescape")  # what ${VAR} brings may hold bytes that are no text
    except UnicodeEncodeError:
        return False
    return True


class Name(Text):
    """A name that can be part of a file's."""

    def read(self, value: object, at: At) -> Any:
        """Return the name."""
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            hint = "use up to 63 letters, digits, '.', '_' and '-', the first a letter or digit"
            at.wrong(f"{shown(value)} cannot be a name", hint)
        return value


class VariableName(Text):
    """The name of an environment variable."""

    def read(self, value: object, at: At) -> Any:
        """Return the name."""
        if not isinstance(value, str) or not value or "=" in value or "\0" in value:
            at.wrong(f"{shown(value)} cannot be the name of an environment variable", "rename it")
        elif not _is_encodable(value):
            at.wrong(f"{shown(value)} holds half a character", "remove the lone surrogate")
        return value


class VariableValue(Text):
    """The value of an environment variable: text, or a number that stands for its text."""

    def read(self, value: object, at: At) -> Any:
        """Return the text."""
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
            return str(value)
        return super().read(value, at)

    def schema(self) -> Schema:
        """Return the schema of text and numbers."""
        return {"type": ["string", "number"]}


class Matching(Text):
    """Text of a certain form."""

    def __init__(self, pattern: re.Pattern[str], description: str) -> None:
        super().__init__(description)
        self._pattern = pattern

    def read(self, value: object, at: At) -> Any:
        """Return the text."""
        if not isinstance(value, str) or not self._pattern.fullmatch(value):
            at.wrong(f"must be {self.description}, not {shown(value)}", "write it in that form")
        return value

    def schema(self) -> Schema:
        """Return the schema of such text."""
        return {"type": "string", "pattern": f"^{self._pattern.pattern}$"}


class Quantity(Matching):
    """A number, written as such or as text."""

    def read(self, value: object, at: At) -> Any:
        """Return the text."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return super().read(str(value) if is_number else value, at)

    def schema(self) -> Schema:
        """Return the schema of numbers and of such text."""
        return {"anyOf": [{"type": "number", "minimum": 0}, super().schema()]}


class Choice:
    """One of a few values."""

    def __init__(self, *values: str | bool) -> None:
        self._values = values
        self.description = ", ".join(str(value).lower() for value in values[:-1]) + f" or {str(values[-1]).lower()}"

    def read(self, value: object, at: At) -> Any:
        """Return the value."""
        if not any(value is known or (value == known and isinstance(value, str)) for known in self._values):
            known_words = [known for known in self._values if isinstance(known, str)]
            guess = nearest(value, known_words) if isinstance(value, str) else None
            at.wrong(f"must be {self.description}, not {shown(value)}", f"did you mean {guess!r}?" if guess else "")
        return value

    def schema(self) -> Schema:
        """Return the schema of the choice."""
        return {"enum": list(self._values)}


class Count:
    """A whole number, not negative."""

    _MOST = 1_000_000

    def __init__(self, description: str) -> None:
        self.description = description

    def read(self, value: object, at: At) -> Any:
        """Return the number."""
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= self._MOST:
            at.wrong(f"must be {self.description}, not {shown(value)}", "write a whole number such as 3")
        return value

    def schema(self) -> Schema:
        """Return the schema of the number."""
        return {"type": "integer", "minimum": 0, "maximum": self._MOST}


def seconds_of(value: object) -> float | None:
    """Return the seconds that a number or a text such as ``10m`` or ``1h30m`` means, None when it means none."""
    seconds = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if 0 <= value <= _LONGEST else None
    elif isinstance(value, str) and len(value) <= _LONGEST_TEXT and (match := _DURATION.fullmatch(value.strip())):
        parts = [float(part) * unit for part, unit in zip(match.groups(), _UNIT_SECONDS.values(), strict=True) if part]
        seconds = sum(parts) if parts else float(value)
    return None if seconds is None or not 0 <= seconds <= _LONGEST else seconds


class Duration:
    """A duration, in seconds once it is read."""

    description = 'a duration such as "90s" or "1h30m", or seconds'

    def read(self, value: object, at: At) -> Any:
        """Return the seconds."""
        seconds = seconds_of(value)
        if seconds is None:
            at.wrong(f"must be a duration, not {shown(value)}", 'write seconds, or text such as "90s" or "1h30m"')
        return seconds

    def schema(self) -> Schema:
        """Return the schema of numbers and text."""
        return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{_DURATION.pattern}$"}]}


class Command:
    """A command line as a tuple of words."""

    description = 'a list of words such as ["python", "train.py"], or text'
    _word = Text("a word")

    def read(self, value: object, at: At) -> Any:
        """Return the words; text is split as a shell splits it."""
        if isinstance(value, str):
            try:
                value = shlex.split(value)
            except ValueError as error:
                at.wrong(f"cannot be split into words: {error}", "write it as a list of words")
                return None
        if not isinstance(value, list):
            at.wrong(f"must be {self.description}, not {shown(value)}")
            return None
        if not value or value[0] == "":
            at.wrong("is empty", 'write the program and its arguments, for example ["python", "train.py"]')
        return tuple(self._word.read(word, at.inside(index)) for index, word in enumerate(value))

    def schema(self) -> Schema:
        """Return the schema of a list of words or text."""
        words = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        return {"anyOf": [words, {"type": "string", "minLength": 1}]}


class ListOf:
    """A list, a tuple once it is read; of exactly ``size`` items if that is given."""

    def __init__(self, kind: Kind, description: str, size: int | None = None) -> None:
        self._kind = kind
        self._size = size
        self.description = description

    def read(self, value: object, at: At) -> Any:
        """Return the items."""
        if not isinstance(value, list) or (self._size is not None and len(value) != self._size):
            at.wrong(f"must be {self.description}, not {shown(value)}")
            return None
        return tuple(self._kind.read(item, at.inside(index)) for index, item in enumerate(value))

    def schema(self) -> Schema:
        """Return the schema of the list."""
        schema: Schema = {"type": "array", "items": self._kind.schema()}
        return schema if self._size is None else {**schema, "minItems": self._size, "maxItems": self._size}


class MapOf:
    """An object whose keys are the user's words."""

    def __init__(self, kind: Kind, description: str, key: Kind | None = None) -> None:
        self._kind = kind
        self._key = key or Text()
        self.description = description

    def read(self, value: object, at: At) -> Any:
        """Return the entries."""
        if not isinstance(value, dict):
            at.wrong(f"must be {self.description}, not {shown(value)}")
            return None
        entries = {}
        for key, item in value.items():
            inside = at.inside(str(key))
            entries[self._key.read(key, inside)] = self._kind.read(item, inside)
        return entries

    def schema(self) -> Schema:
        """Return the schema of the object."""
        return {"type": "object", "additionalProperties": self._kind.schema()}


class Field(NamedTuple):
    """A field of a record: its kind, and whether it must be there."""

    kind: Kind
    is_required: bool = False


class Record:
    """An object with known fields, read into the named tuple that has these fields."""

    def __init__(
        self,
        into: Any,
        fields: Mapping[str, Field],
        hints: Mapping[str, str] | None = None,
        ignored: Sequence[str] = (),
    ) -> None:
        """Describe a record. Keys that begin with ``x-`` are the user's own, and ignored.

        Args:
            into: a named tuple; its defaults are the defaults of the fields.
            fields: every field that a user may write.
            hints: remedies for fields that users write by mistake.
            ignored: further keys that are ignored.
        """
        self._into = into
        self._fields = fields
        self._hints = hints or {}
        self._ignored = ignored
        self.description = "an object with " + ", ".join(fields)

    def read(self, value: object, at: At) -> Any:
        """Return the named tuple, None when something is missing."""
        if not isinstance(value, dict):
            at.wrong(f"must be {self.description}, not {shown(value)}")
            return None
        read = {}
        for name, item in value.items():
            if name in self._fields:
                read[name] = self._fields[name].kind.read(item, at.inside(name))
            elif not str(name).startswith(_EXTENSION) and name not in self._ignored:
                at.inside(str(name)).wrong(f"unknown field {shown(name)}", self._remedy(str(name)))
        missing = [name for name, field in self._fields.items() if field.is_required and name not in value]
        for name in missing:
            at.inside(name).wrong("is missing", f"add {self._fields[name].kind.description}")
        return None if missing else self._into(**read)

    def _remedy(self, name: str) -> str:
        if name in self._hints:
            return self._hints[name]
        if guess := nearest(name, list(self._fields)):
            return f"did you mean {guess!r}?"
        return "the fields here are " + ", ".join(self._fields)

    def schema(self) -> Schema:
        """Return the schema of the object."""
        return {
            "type": "object",
            "description": (self._into.__doc__ or "").split("\n")[0],
            "properties": {
                name: {"description": field.kind.description, **field.kind.schema()}
                for name, field in self._fields.items()
            }
            | {name: {"description": "ignored"} for name in self._ignored},
            "patternProperties": {f"^{_EXTENSION}": {"description": "your own, ignored"}},
            "required": [name for name, field in self._fields.items() if field.is_required],
            "additionalProperties": False,
        }

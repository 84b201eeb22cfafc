"""Changes to JSON values and to bytes that often break parsers."""

import json
import random
from typing import Any

NUMBERS = (
    "0", "-0", "-1", "1", "2", "64", "65", "255", "256", "65535", "65536", "2147483648", "4294967296",
    "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 400,
    "1e308", "1e999", "-1e999", "0.1", "-0.0", "1e-400", "NaN", "Infinity", "-Infinity", "1.5", "1e3",
)  # fmt: skip
TEXTS = (
    "", " ", "worker:0", "worker:1", "worker:00", "worker:-1", "ps:0", "chief:0", "a", "b", "localhost",
    "../../etc/passwd", "/", "\0", "\n", "x\ntflaunch: done", "\x1b[2J\x1b]0;x\x07", "\u202eabc", "\u2028", "\x85",
    "\ud800", "\udcff", "\U0001f600", "e\u0301", "%s%n{0}", "{task.index}", "${HOME}", "x" * 300, "x" * 70_000,
    "true", "null", "1e999", "-", "--help", "=", "\ufeff", "'; exit 1; '", "$(exit 1)",
)  # fmt: skip
_RAW = (
    "true", "false", "null", "[]", "{}", "[[]]", "[0]", '[""]', "[null]", '{"":{}}', '{"a":[]}', '{"kind":"x"}',
    "[" * 40 + "]" * 40, "[" * 3000, '{"a":' * 40 + "1" + "}" * 40, "[[0,0]]", '[["worker:0",0]]', '"\\ud800"',
    '"\\udc00\\ud800"', '"\xff"', "", "tru", "'x'", "01", "+1", ".5", "1.", "0x10", "1_000", "--1",
)  # fmt: skip


class Raw:
    """Marks text in a value that is inserted unchanged into its JSON."""

    def __init__(self, text: str) -> None:
        self.text = text


def any_value(chance: random.Random) -> Any:
    kind = chance.randrange(4)
    if kind == 0:
        return Raw(chance.choice(NUMBERS))
    if kind == 1:
        return chance.choice(TEXTS)
    if kind == 2:
        return Raw(chance.choice(_RAW))
    return chance.choice((chance.randrange(-5, 300), chance.uniform(-10, 1e6), 2**63 - 1))


def mutate(value: Any, chance: random.Random) -> Any:
    """Return a copy of a JSON value with one change somewhere in it."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        return _mutate_object(dict(value), chance)
    if isinstance(value, list) and value and chance.random() < 0.8:
        return _mutate_list(list(value), chance)
    if isinstance(value, str) and chance.random() < 0.3:
        return _mutate_text(value, chance)
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.4:
        return value + chance.choice((-1, 1, 256, -256, 2**31, 2**53, -(2**40)))
    return any_value(chance)


def _mutate_object(value: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    key = chance.choice(list(value))
    action = chance.random()
    if action < 0.1:
        del value[key]
    elif action < 0.2:
        value[chance.choice(TEXTS)] = any_value(chance)
    elif action < 0.25:
        value[chance.choice(TEXTS)] = value.pop(key)
    else:
        value[key] = mutate(value[key], chance)
    return value


def _mutate_list(value: list[Any], chance: random.Random) -> list[Any]:
    place = chance.randrange(len(value))
    action = chance.random()
    if action < 0.15:
        del value[place]
    elif action < 0.3:
        value.insert(place, any_value(chance))
    elif action < 0.4:
        value *= chance.choice((2, 50))
    elif action < 0.5:
        chance.shuffle(value)
    else:
        value[place] = mutate(value[place], chance)
    return value


def _mutate_text(value: str, chance: random.Random) -> str:
    place = chance.randrange(len(value) + 1)
    return value[:place] + chance.choice(TEXTS) + value[place + chance.randrange(2) :]


def as_json(value: Any) -> bytes:
    """Return the JSON of a value with `Raw` parts in it."""
    raw: list[str] = []

    def place(part: Any) -> str:
        assert isinstance(part, Raw)
        raw.append(part.text)
        return f"<raw {len(raw) - 1}>"

    text = json.dumps(value, default=place)
    for number, part in enumerate(raw):
        text = text.replace(f'"<raw {number}>"', part, 1)
    return text.encode("utf-8", "surrogatepass")


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        start = chance.randrange(len(changed) + 1)
        end = start + chance.choice((0, 1, 1, 4, 40))
        piece = bytes(changed[start:end])
        new = (b"", piece * 3, chance.randbytes(len(piece) or 4), b"\xff" * 4, b"\0" * 4, b"[" * 50, b"\n")
        changed[start:end] = chance.choice(new)
    return bytes(changed)


def mutate_order(items: list[Any], chance: random.Random) -> list[Any]:
    """Return a list with one item missing, duplicated or moved."""
    changed = list(items)
    place = chance.randrange(len(changed))
    action = chance.randrange(3)
    item = changed[place] if action == 0 else changed.pop(place)
    if action != 1:
        changed.insert(chance.randrange(len(changed) + 1), item)
    return changed

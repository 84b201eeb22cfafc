"""Copying of user code: any tree arrives unchanged, without files from outside, and no offer writes elsewhere."""

import hashlib
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from fuzz.borders import MEMORY, Border
from fuzz.mutations import any_value, as_json, mutate
from tflaunch.errors import TflaunchError
from tflaunch.features.code.user_code import gather
from tflaunch.plan.model import SyncPlan
from tflaunch_worker import CODE_NAME, TASKS_NAME, wire
from tflaunch_worker.features.code.received_code import OFFERED, Files
from tflaunch_worker.features.file_parts import FilesError
from tflaunch_worker.schema import check_fields

_NAMES = ("a", "b", "a/b", "a/b/c", "d/e", "*", "-x", " ", "\udcff", "\n", "é", ".git/x", "a.pyc", "x" * 200, "d")
_TARGETS = (
    *("a", "b", "a/b", "..", ".", "../a", "/", "/etc/passwd", "../secret/key", "../../secret/key", "/nowhere", "l0"),
    *("l1", "l2/../b", "../up/a", "ROOT/a", "ROOT/../secret/key", "ROOT/../secret", "d"),
)
_PATHS = (".", "a", "a/b", "l0", "l0/key", "l1/b", "d", "*", "-x")
_BAD_PATHS = ("/etc/x", "../x", "a/../../x", "", ".", "..", "a/..", "a//b", "x\0y", "~/x", "a" * 5000, "\ud800", "l0/x")
_SECRET = b"what lies outside"
_REFUSED = (KeyError, TypeError, ValueError, FilesError)


def generate(chance: random.Random) -> bytes:
    """Return a tree to be gathered, or an offer and its parts as no launcher would send them."""
    if chance.random() < 0.5:
        links = [[f"l{number}", chance.choice(_TARGETS)] for number in range(chance.randrange(4))]
        links += [[f"{chance.choice(_NAMES)}/l", chance.choice(_TARGETS)] for _ in range(chance.randrange(2))]
        tree = {
            "files": [chance.choice(_NAMES) for _ in range(chance.randrange(6))],
            "links": links,
            "paths": [chance.choice(_PATHS) for _ in range(chance.randrange(1, 3))],
        }
        return json.dumps({"tree": tree}).encode()
    contents = [bytes([number]) * number for number in range(chance.randrange(4))]
    files = [[_path(chance), chance.choice((0o644, 0o4777, 0)), _digest(content)] for content in contents]
    links = [[_path(chance), chance.choice(_TARGETS)] for _ in range(chance.randrange(3))]
    parts = [[_digest(content), 0, content.hex(), True] for content in contents]
    offer: Any = {"files": files, "links": links, "parts": parts}
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        offer = mutate(offer, chance)
    if chance.random() < 0.1:
        offer = any_value(chance)
    return as_json({"offer": offer})


def _path(chance: random.Random) -> str:
    return chance.choice(_NAMES if chance.random() < 0.8 else _BAD_PATHS)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check(case: bytes) -> None:
    try:
        data = wire.parse(case)
    except (ValueError, wire.WireError):
        return  # its frame would end the link
    with tempfile.TemporaryDirectory(prefix="fuzz-sync-", dir=MEMORY) as name:
        top = Path(name)
        (top / "secret").mkdir()
        (top / "secret/key").write_bytes(_SECRET)
        agent = top / "home/runs/run/agents/host"
        (agent / TASKS_NAME).mkdir(parents=True)
        if "tree" in data:
            _bring(data["tree"], top, agent)
        else:
            _offer(data["offer"], agent)
        assert sorted(os.listdir(top)) == sorted({"secret", "home", *(["work"] if "tree" in data else [])})
        assert (top / "secret/key").read_bytes() == _SECRET
        assert os.listdir(top / "secret") == ["key"]


def _bring(tree: dict[str, Any], top: Path, agent: Path) -> None:
    root = top / "work"
    root.mkdir()
    for path in tree["files"]:
        _make(lambda path=path: (root / path).write_bytes(path.encode("utf-8", "surrogateescape")), root / path)
    for path, target in tree["links"]:
        _make(lambda path=path, target=target: (root / path).symlink_to(target.replace("ROOT", str(root))), root / path)
    code, problem = None, ""
    try:
        code = gather(SyncPlan(str(root), tuple(tree["paths"]), (".git",)))
    except TflaunchError as error:
        problem = str(error)
    assert len(problem) < 2000
    if code is None:
        return
    offer = {"files": [[each.path, each.mode, each.sha256] for each in code.files], "links": [*map(list, code.links)]}
    files = Files(str(agent), **check_fields(offer, OFFERED))
    files.missing = set(files.compare())
    for part in code.parts(files.wanted()):
        assert _SECRET not in part.body
        files.take(part.about["sha256"], part.about["offset"], part.body, part.about["is_last"])
    assert files.place() == ""
    for file in code.files:
        assert (agent / CODE_NAME / file.path).read_bytes() == (root / file.path).read_bytes()
    assert all((agent / CODE_NAME / path).is_symlink() for path, _ in code.links)


def _make(make: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        make()
    except OSError:
        pass  # the name is taken by another entry


def _offer(offer: Any, agent: Path) -> None:
    try:
        if not isinstance(offer, dict):  # as frames cannot be, either
            return
        files = Files(str(agent), **check_fields(offer, OFFERED))
        files.missing = set(files.compare())
        for digest, offset, data, is_last in offer["parts"]:
            files.take(digest, offset, bytes.fromhex(data), is_last)
    except _REFUSED:
        return
    if files.missing == set():
        assert "\n" not in files.place()


BORDER = Border(generate, check)

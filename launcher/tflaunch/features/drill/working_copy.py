"""Copy the user's directory for a training, and find the places outside of it.

A run of a drill must not find what another one has saved, and must not change what the user has.
"""

import ast
import fcntl
import itertools
import os
import re
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tflaunch import private_files
from tflaunch.cli.arguments.spec import say
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.explain.wording import memory
from tflaunch.features.drill.saved_files import is_note, is_output
from tflaunch.features.prune import drills
from tflaunch.features.prune.prune import remove_left_of_drills
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.store import run_dir
from tflaunch_worker import file_trees

_COPIED = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)  # no pipes, for instance
_MOST_BYTES = 4 << 30
_MOST_ENTRIES = 5000
_LONGEST = 1000  # characters
_EXCLUDED = (".git", "__pycache__", "*.pyc")
_LINKED = (".venv", "venv")  # environments have absolute paths in them, and programs only read them
_OUTSIDE = ("/", "~/", "../")
_SYSTEM = ("/bin/", "/dev/", "/etc/", "/lib", "/opt/", "/proc/", "/run/", "/sbin/", "/sys/", "/usr/")


@contextmanager
def drill_directory(*, is_kept: bool) -> Iterator[Path]:
    """Yield a new directory for the copies of a drill, which is removed at the end.

    What killed drills have left is removed, too.

    Raises:
        TflaunchError: it cannot be made.
    """
    base = run_dir.home() / drills.PLACE
    try:
        private_files.make_directories(base)
        remove_left_of_drills(time.time())
        directory = Path(tempfile.mkdtemp(dir=base))
        lock = os.open(directory / drills.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # no limit: a check holds it for a moment only
    except OSError as error:
        raise TflaunchError(f"{base}: {error.strerror}; set TFLAUNCH_HOME", EXIT_INTERNAL) from None
    try:
        yield directory
    finally:
        if is_kept:
            kept = base / f"{drills.KEPT}{directory.name}"
            directory.rename(kept)
            say(f"the directories of the trainings are in {kept}, until `tflaunch prune` removes them")
        else:
            file_trees.remove_tree(str(directory))
            with suppress(OSError):  # another drill goes on
                base.rmdir()
        os.close(lock)


def copy_directory(source: Path, target: Path, *, with_single: bool) -> list[str]:
    """Copy a directory without caches and checkpoints; links out of it stay links.

    ``with_single``: checkpoints that are not one of several of a training are copied, too.

    Returns:
        The checkpoints that were left out.

    Raises:
        TflaunchError: it is too large, or cannot be read or written.
    """
    root = Path(os.path.realpath(source))
    ignored = shutil.ignore_patterns(*_EXCLUDED, *_LINKED)
    home = os.path.realpath(run_dir.home())
    states: set[str] = set()

    def leave_out(directory: str, names: list[str]) -> set[str]:
        paths = {name: os.path.join(directory, name) for name in names}
        own = {name for name, path in paths.items() if os.path.realpath(path) == home}
        special = {name for name, path in paths.items() if stat.S_IFMT(os.lstat(path).st_mode) not in _COPIED}
        left = _states_of(paths, root, with_single=with_single)
        states.update(left.values())
        return ignored(directory, names) | own | special | set(left)

    try:
        size = _size_of(root, leave_out)
        if size > _MOST_BYTES:
            remedy = "move data to another directory, and give the program its absolute path"
            raise TflaunchError(f"{source} has {memory(size)}, which a drill does not copy; {remedy}", EXIT_USAGE)
        shutil.copytree(root, target, symlinks=True, ignore=leave_out)
        for directory, names, files in os.walk(target):
            original = root / Path(directory).relative_to(target)
            for link in (Path(directory, name) for name in (*names, *files)):
                leads_to = os.path.normpath(original / os.readlink(link)) if link.is_symlink() else ""
                if leads_to and os.path.commonpath([str(root), leads_to]) != str(root):
                    link.unlink()
                    link.symlink_to(leads_to)
        for name in _LINKED:
            if (root / name).is_dir():
                (target / name).symlink_to(root / name)
    except (OSError, shutil.Error) as error:
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else f"{error.filename}: {error.strerror}"
        raise TflaunchError(f"{source} cannot be copied for a drill: {reason}", EXIT_USAGE) from None
    return sorted(states)


def _states_of(paths: Mapping[str, str], root: Path, *, with_single: bool) -> dict[str, str]:
    """Return the checkpoints in a directory, relative to the root, without mere notes."""
    relative = {name: os.path.relpath(path, root) for name, path in paths.items() if not os.path.isdir(path)}
    states = {name: path for name, path in relative.items() if is_output(path)}
    if with_single and "checkpoint" not in states:  # TensorFlow's note of several
        same = Counter(re.sub(r"\d+", "0", name) for name in states)
        states = {name: path for name, path in states.items() if same[re.sub(r"\d+", "0", name)] > 1}
    return {} if all(map(is_note, states)) else states


def _size_of(root: Path, leave_out: Callable[[str, list[str]], set[str]]) -> int:
    size = 0
    for directory, names, files in os.walk(root):
        ignored = leave_out(directory, names + files)
        names[:] = [name for name in names if name not in ignored]
        with suppress(OSError):  # it has just been removed, or is a link to nowhere
            size += sum(os.lstat(os.path.join(directory, name)).st_size for name in files if name not in ignored)
    return size


def require_copyable(plan: Plan, directory: Path) -> None:
    """Raise `TflaunchError` if trainings would share what they write elsewhere."""
    if outside := outside_paths(plan, directory):
        named = "; ".join(f"{path} ({named_by})" for path, named_by in outside)
        remedy = "name a path below the directory, one with {run} in it, or drill with --here"
        text = f"the trainings of a drill would share what they write outside: {named}; {remedy}"
        raise TflaunchError(text, EXIT_USAGE)


def outside_paths(plan: Plan, directory: Path) -> list[tuple[str, str]]:
    """Return where tasks may write outside a directory, and where each place is named.

    These are working directories elsewhere, and absolute paths and those with ``..`` in commands, variables and in the
    text of the program, if nothing is there, an empty directory, or one with checkpoints or event files.
    """
    found: dict[str, tuple[str, str]] = {}
    root = os.path.realpath(directory)
    for task in plan.processes():
        is_copied = plan.sync is not None and not plan.host(task.host).is_like_here
        if not is_copied and not (plan.host(task.host).is_like_here and _is_below(root, task.workdir)):
            found.setdefault(task.workdir, (task.workdir, f"working directory of {task.task}"))
        for text, place in _texts_of(task):
            path = os.path.normpath(os.path.join(task.workdir, os.path.expanduser(text)))
            if _is_below(root, path):  # an absolute one leads to the original
                is_shared = not text.startswith("../") and not os.path.isfile(path) and path != root
            else:
                is_shared = bool(text.strip("./")) and _may_be_written(path)
            if is_shared:
                found.setdefault(path, (text, place))
    for entry in os.scandir(root):  # links in other directories are not looked at
        target = os.path.realpath(entry.path)
        if entry.is_symlink() and entry.name not in _LINKED and not _is_below(root, target) and _may_be_written(target):
            found.setdefault(entry.path, (entry.name, "a link in the directory"))
    return list(found.values())


def _is_below(root: str, path: str) -> bool:
    return os.path.commonpath([root, os.path.realpath(path)]) == root


def _texts_of(task: TaskPlan) -> Iterator[tuple[str, str]]:
    for word in task.argv[1:]:
        text = word.rpartition("=")[2]
        if text.startswith(_OUTSIDE) and "{run}" not in text:
            yield text, f"command of {task.task}"
    for name, text in task.env.items():
        if text.startswith(_OUTSIDE) and name not in task.reasons and ":" not in text and "{run}" not in text:
            yield text, f"variable {name} of {task.task}"
    program = next((word for word in task.argv if word.endswith(".py")), "")
    if program:
        for text, line in _strings_in(Path(task.workdir, program)):
            yield text, f"{program}, line {line}"


def _strings_in(program: Path) -> Iterator[tuple[str, int]]:
    try:
        tree = ast.parse(program.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # its run will tell
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    for text, line in ((node.value, node.lineno) for node in constants if isinstance(node.value, str)):
        if text.startswith(_OUTSIDE) and text.isprintable() and len(text) < _LONGEST:
            yield text, line


def _may_be_written(path: str) -> bool:
    """Whether a path looks like a place for output rather than for data."""
    if path.startswith(_SYSTEM) or os.path.isfile(path):
        return False
    if not os.path.exists(path):
        parent = next(parent for parent in Path(path).parents if parent.exists())
        return parent != Path("/") and os.access(parent, os.W_OK)  # "/job:worker" is no path
    if not os.access(path, os.W_OK):
        return False
    names = list(itertools.islice((name for _, _, files in os.walk(path) for name in files), _MOST_ENTRIES))
    return not names or any(is_output(name) or ".tfevents." in name for name in names)

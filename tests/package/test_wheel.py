"""The wheel: in a fresh environment, outside the checkout, as an ordinary user."""

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import tflaunch
from support.launch import LONG
from support.needs import lack, need
from support.specs import REPOSITORY

TEST_TOOLS = ["pytest", "hypothesis", *(["pyte", "jsonschema", "cloudpickle", "ipykernel", "nbclient"] if LONG else [])]
NOT_SOURCE = (".*", "build", "dist", "__pycache__", "mnist-state")
EXAMPLES = ("trains_and_leaves_nothing[mnist_multi_worker]", "trains_and_leaves_nothing[mnist_parameter_server]")
SUITE = (
    ("agent", "cli", "api", "training/test_training.py", "examples/test_examples.py")
    if LONG
    else ("agent/test_agent.py", "cli/test_command_line.py")
)
"""What is rerun with the wheel: agents and the command as an ordinary user. `make nightly` reruns more, and trains.

Every day's training as an ordinary user with an installed package is that of tests/docker.
"""


class Installed:
    """An environment with the wheel, and the user that runs it."""

    def __init__(self, directory: Path, python: str, user: str | None) -> None:
        self.directory = directory
        self.user = user
        self.bin = directory / "venv" / "bin"
        self.home = directory / "home"
        self.home.mkdir()
        subprocess.run([python, "-m", "venv", directory / "venv"], check=True)
        if user is not None:
            entry = pwd.getpwnam(user)
            os.chown(self.home, entry.pw_uid, entry.pw_gid)

    @property
    def wheel(self) -> Path:
        (path,) = self.directory.glob("*.whl")
        return path

    def pip(self, *arguments: str | Path) -> None:
        command = [self.bin / "python", "-m", "pip", *arguments, "--quiet"]
        ended = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command as the user, with no more of our environment than a login would give."""
        env = {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "TF_CPP_MIN_LOG_LEVEL": "2"}
        env |= {name: os.environ[name] for name in ("CI", "LANG", "TFLAUNCH_TEST_LONG") if name in os.environ}
        return subprocess.run(
            command, user=self.user, group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
            extra_groups=None if self.user is None else [], env=env, cwd=self.home, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def interpreter(user: str | None) -> str:
    """Return a Python that the user may execute; root's own may be out of reach for others."""
    for candidate in (getattr(sys, "_base_executable", sys.executable), "/usr/bin/python3"):
        probe = [candidate, "-c", "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))"]
        with suppress(OSError):
            if subprocess.run(probe, user=user, cwd="/", capture_output=True, check=False).returncode == 0:
                return str(candidate)
    return lack("python")


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    """The wheel, built from a copy of the sources and installed alone, without extras."""
    need("index")
    directory = Path(tempfile.mkdtemp(prefix="tflaunch-wheel-"))  # pytest's directories are private to their owner
    directory.chmod(0o755)
    source = directory / "source"
    shutil.copytree(REPOSITORY, source, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    user = "nobody" if os.getuid() == 0 else None
    try:
        made = Installed(directory, interpreter(user), user)
        made.pip("wheel", "--no-deps", "--wheel-dir", directory, source)
        made.pip("install", made.wheel)
        yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_the_wheel_alone_gives_a_working_command(installed: Installed) -> None:
    """Without extras, checkout or root, the hello example of the README runs."""
    spec = installed.home / "hello.json"
    shutil.copy(REPOSITORY / "cluster_specs" / "hello.json", spec)
    ended = installed.run("tflaunch", "up", spec)
    assert ended.returncode == 0, ended.stderr
    assert sorted(line.split(" | ")[0] for line in ended.stdout.splitlines()) == ["worker:0", "worker:1"]


def test_the_wheel_holds_the_packages_and_nothing_else(installed: Installed) -> None:
    """Every file of the sources; a file that is missing would be noticed late, by who needs it."""
    with zipfile.ZipFile(installed.wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    roots = (REPOSITORY / "launcher", REPOSITORY / "worker")
    sources = {str(path.relative_to(root)) for root in roots for path in root.glob("*/**/*") if path.is_file()}
    assert found == {name for name in sources if "__pycache__" not in name}
    ended = installed.run("python", "-c", "import tflaunch, tflaunch_worker.examples; print(tflaunch.__file__)")
    assert ended.stdout.startswith(str(installed.directory / "venv")), ended.stderr


def test_a_package_index_accepts_the_wheel(installed: Installed) -> None:
    """Its description is rendered, and links to nothing that an index does not have."""
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", installed.wheel],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    with zipfile.ZipFile(installed.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    assert f"\nVersion: {tflaunch.__version__}\n" in metadata
    assert re.findall(r"\]\((?!https://)[^)]*\)", metadata) == []


@pytest.mark.skipif(not LONG, reason="builds everything twice; `make nightly` does")
def test_two_builds_of_a_commit_are_the_same(installed: Installed) -> None:
    """Whatever the times of files, and the umask."""
    clone = installed.directory / "clone"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
    ready = Path(sys.prefix, ".ready")
    command = ["make", f"--old-file={ready}", f"VENV={sys.prefix}", "dist"]  # never rebuilds the environment
    found = []
    for umask in (0o022, 0o077):
        subprocess.run(command, cwd=clone, umask=umask, check=True, capture_output=True)
        found.append({path.name: path.read_bytes() for path in (clone / "dist").iterdir()})
    assert len(found[0]) == 2
    assert found[0] == found[1]


@pytest.mark.thorough
def test_the_suite_passes_with_the_wheel(installed: Installed) -> None:
    """As an ordinary user; the extra `tensorflow` can be installed beside it."""
    installed.pip("install", *([] if LONG else ["--dry-run"]), f"{installed.wheel}[tensorflow]")
    installed.pip("install", *TEST_TOOLS)
    place = installed.directory / "suite"
    for name in ("tests", "cluster_specs", "docs"):
        shutil.copytree(REPOSITORY / name, place / name)
    (place / "pytest.ini").write_text("[pytest]\npythonpath = tests\naddopts = --import-mode=importlib\n")
    tests = [str(place / "tests" / name) for name in SUITE]
    command = [
        *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestUnknownMarkWarning"),
        *("-m", "not ssh"),  # such a user has no login shell
        *("-k", f"not test_examples or ({' or '.join(EXAMPLES)})"),
        *("-c", str(place / "pytest.ini"), f"--basetemp={installed.home / 'basetemp'}"),
    ]
    ended = installed.run(*command, *tests)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]

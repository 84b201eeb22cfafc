"""`env`: what a shell then has is what the task would have."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.rendering import MARK, SPECIAL_VARIABLES
from support.specs import SMALLEST_LOCAL, tflaunch, written
from support.terminals import Terminal

pytestmark = pytest.mark.cli

WITH_PORTS: dict[str, Any] = {"cluster": {"worker": ["localhost:20001", "localhost:20002"]}, "command": ["train"]}
DUMP = "import json, os; print(json.dumps({'cwd': os.getcwd(), 'env': dict(os.environ)}))"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory for runs; nothing here creates one."""
    return tmp_path / "home"


class TestEnv:
    def test_people_are_told_that_their_shell_has_changed_its_directory(self, launch: Launch):
        """On a terminal; output that a script evaluates contains no such message."""
        spec = launch.spec(**WITH_PORTS, workdir="/")
        said, code = Terminal(launch, f"{launch.run('env', spec, 'worker:0').stdout}\ntrue").read_to_end()
        assert (code, "tflaunch: this shell is in / now" in said) == (0, True), said

    @staticmethod
    def environment_after(path: Path, task: str, home: Path, **variables: str) -> dict[str, Any]:
        """Return the environment of a program that is started after the exports, in a plain shell."""
        exports = tflaunch("env", path, task, home=home)
        assert (exports.returncode, exports.stderr) == (0, "")
        script = 'set -e; eval "$1"; shift; exec "$@"'
        arguments = ["sh", "-c", script, "sh", exports.stdout, sys.executable, "-c", DUMP]
        env = {**variables, "TMPDIR": str(path.parent)}
        done = subprocess.run(arguments, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def test_after_the_exports_a_program_sees_what_the_task_would_see(self, tmp_path: Path, home: Path):
        """The plan's environment and working directory, with a run and directory of its own."""
        path = written(tmp_path, WITH_PORTS)
        planned = json.loads(tflaunch("plan", path, "--json", home=home).stdout)["tasks"][1]
        seen = self.environment_after(path, "worker:1", home, http_proxy="http://proxy:3128", HOME="/home/ann")
        own = ("TFLAUNCH_RUN", "TFLAUNCH_TASK_DIR", "TFLAUNCH_PROGRESS", "TFLAUNCH_LEGACY_KERAS")
        expected = {name: value for name, value in planned["env"].items() if name not in own}
        assert {name: seen["env"].get(name) for name in expected} == expected
        assert seen["cwd"] == str(Path(planned["workdir"]).resolve())
        assert (seen["env"]["http_proxy"], seen["env"]["grpc_proxy"]) == ("http://proxy:3128", "")
        assert seen["env"]["HOME"] == "/home/ann"
        assert seen["env"]["TFLAUNCH_RUN"] == "cluster-by-hand"
        assert list(Path(seen["env"]["TFLAUNCH_TASK_DIR"]).iterdir()) == []
        assert "TFLAUNCH_PROGRESS" not in seen["env"]  # it is not read

    def test_any_value_arrives_as_it_is(self, tmp_path: Path, home: Path):
        """Quoting is tflaunch's job; a name that no shell can set spoils no other, and is never run as a command."""
        values = [
            "",
            "a b",
            "it's",
            '"',
            "$HOME `id` $(id)",
            "a\\b",
            "two\nlines",
            "a;b",
            "-n",
            "\u00e9",
            "auto",
            "#",
            "~",
        ]
        env = {f"V{number}": value for number, value in enumerate(values)}
        odd = dict.fromkeys(("spring.config", "A;exit 7;B", "A\nexit 8"), "x")
        command = ["python", "-c", "a = 1\nprint('two lines')", "it's", "\n", ";id"]  # shown in a comment
        path = written(tmp_path, {**WITH_PORTS, "env": {**odd, **env}, "command": command})
        seen = self.environment_after(path, "worker:0", home)["env"]
        assert {name: seen.get(name) for name in env} == env

    def test_what_means_something_to_a_shell_is_left_to_env(self, tmp_path: Path, home: Path):
        """It is neither set in nor evaluated by the user's shell; the command that is shown sets it."""
        env = {name: f"a[$(touch {tmp_path}/{MARK})]" for name in SPECIAL_VARIABLES if name != "cluster"}
        path = written(tmp_path, {**WITH_PORTS, "env": env, "command": ["cat", "/proc/self/environ"]})
        exports = tflaunch("env", path, "worker:0", home=home).stdout
        script = 'set -e; eval "$1"; [ "$TMOUT$OPTIND$CDPATH" = 1 ]; eval "$2"'
        command = "\n".join(line[2:] for line in exports.partition("sets the rest:\n")[2].splitlines())
        done = subprocess.run(["bash", "-c", script, "bash", exports, command], capture_output=True, check=True)
        assert {f"{name}={value}" for name, value in env.items()} <= set(done.stdout.decode().split("\0"))
        assert not (tmp_path / MARK).exists()

    def test_a_port_that_is_not_known_is_warned_about(self, tmp_path: Path, home: Path):
        shown = tflaunch("env", written(tmp_path, SMALLEST_LOCAL), "worker:0", home=home)
        assert shown.returncode == 0
        assert "warning: worker:0: its port is chosen only at the start" in shown.stderr
        assert "export TF_CONFIG=" in shown.stdout

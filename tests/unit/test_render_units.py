"""`render --to systemd`: systemd itself has nothing to say against the units."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from install import need
from rendering import rendered

pytestmark = pytest.mark.unit


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Also with what is hard to quote."""
    need(["systemd-analyze"], ["systemd"])
    data = {
        "cluster": {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1},
        "command": ["python", "-c", 'print("it\'s 100% $HOME")\n'],
        "env": {"QUOTED": 'it\'s 100% "so" \\ $HOME\n', "a-b": "c"},
        "workdir": "/",
        "sidecars": {"feed": {"command": ["serve"], "required": True}},
        "timeouts": {"deadline": "1h"},
    }
    units = tmp_path / "units"
    units.mkdir()
    subprocess.run(["sh", "-s", units], input=rendered(data, "systemd"), text=True, check=True)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    verified = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "verify", *sorted(units.iterdir())],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (verified.returncode, verified.stderr) == (0, "")

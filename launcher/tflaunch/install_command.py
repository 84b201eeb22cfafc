"""Find the command that installs a missing package: with pip, uv or pipx."""

import json
import os
import shlex
import shutil
import sys
import sysconfig
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

_TOOLS = (("uv-receipt.toml", "uv tool install --force"), ("pipx_metadata.json", "pipx install --force"))


def command_for_extra(extra: str) -> str:
    """Return the command that adds an extra of tflaunch to this installation."""
    what = f"tflaunch[{extra}]"
    for note, command in _TOOLS:  # they make the environment again from its requirement, which may be an address
        if os.path.exists(os.path.join(sys.prefix, note)):
            return f"{command} {shlex.quote(what + _address())}"
    return command_for_package(what, sys.executable)


def command_for_package(package: str, python: str) -> str:
    """Return the command that installs a package for a Python, given its path."""
    is_own = os.path.abspath(python) == os.path.abspath(sys.executable)
    prefix = Path(sys.prefix) if is_own else Path(os.path.abspath(python)).parent.parent
    try:
        settings = (prefix / "pyvenv.cfg").read_text("utf-8", "replace")
    except OSError:
        settings = ""
    if "\nuv = " in f"\n{settings}" or (is_own and find_spec("pip") is None):
        return shlex.join(["uv", "pip", "install", "--python", str(prefix), package])
    pip = shutil.which("pip") or ""
    command = ["pip"] if os.path.dirname(pip) == os.path.dirname(os.path.abspath(python)) else [python, "-m", "pip"]
    is_systems = is_own and not settings and os.path.exists(f"{sysconfig.get_path('stdlib')}/EXTERNALLY-MANAGED")
    return shlex.join([*command, "install", *(["--break-system-packages"] if is_systems else []), package])


def _address() -> str:
    """Return tflaunch's origin as part of a requirement; "" if that is an index."""
    try:
        about = json.loads(metadata.distribution("tflaunch").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    if not about.get("url"):
        return ""
    version = about.get("vcs_info", {})
    url = f"{version['vcs']}+{about['url']}" if "vcs" in version else about["url"]
    revision = f"@{version['requested_revision']}" if "requested_revision" in version else ""
    part = f"#subdirectory={about['subdirectory']}" if "subdirectory" in about else ""
    return f" @ {url}{revision}{part}"

"""Make an image of one layer, without a registry or a container engine.

Usage: make_image.py OUT.tar NAME:TAG ROOT.tar COMMAND
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_image(out: Path, name: str, root: Path, command: str) -> None:
    """Write an image in the format of `docker save`."""
    layer = root.read_bytes()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [f"PATH={_PATH}"], "Cmd": [command]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(out, "w") as image:
        for path, data in ((config_name, config), ("layer.tar", layer), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            image.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    make_image(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])

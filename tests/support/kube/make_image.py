"""Make an image, without a registry or a container engine.

Usage: make_image.py OUT.tar NAME:TAG COMMAND LAYER.tar...
"""

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_image(out: Path, name: str, command: str, layers: Sequence[Path]) -> None:
    """Write an image in the format of `docker save`."""
    data = [layer.read_bytes() for layer in layers]
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [f"PATH={_PATH}"], "Cmd": [command]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in data]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"layer-{number}.tar" for number in range(len(data))]
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": names}]).encode()
    with tarfile.open(out, "w") as image:
        for path, content in ((config_name, config), *zip(names, data, strict=True), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            image.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    make_image(Path(sys.argv[1]), sys.argv[2], sys.argv[3], [Path(layer) for layer in sys.argv[4:]])

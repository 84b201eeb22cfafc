"""Make the image of a supervisor in a cluster: Python, tflaunch as it is here with what it needs, and kubectl."""

import io
import re
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

from support.kube.make_image import make_image
from support.specs import REPOSITORY

_PACKAGES = "usr/local/lib/python3.11/dist-packages"  # of Debian bookworm
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_COMMAND = "#!/usr/bin/python3\nfrom tflaunch.__main__ import main\n\nmain()\n"
_OWN = ("launcher/tflaunch", "worker/tflaunch_worker")


def make_launcher_image(cache: Path, out: Path, name: str) -> None:
    """Write the image, from that of the tests' tasks in the cache of the cluster's programs."""
    with tempfile.TemporaryDirectory(dir=out.parent) as directory:
        base, own = Path(directory, "base.tar"), Path(directory, "own.tar")
        with tarfile.open(cache / "images" / "python.tar") as image:
            layer = next(each for each in image.getnames() if each.startswith("layer"))
            source = image.extractfile(layer)
            assert source is not None
            base.write_bytes(source.read())
        with tarfile.open(own, "w") as archive:
            for path, target in _needed_files():
                archive.add(path, f"{_PACKAGES}/{target}")
            for package in _OWN:
                archive.add(REPOSITORY / package, f"{_PACKAGES}/{Path(package).name}", filter=_without_caches)
            archive.add(cache / "bin" / "kubectl", "usr/local/bin/kubectl")
            entry = tarfile.TarInfo("usr/local/bin/tflaunch")
            entry.size, entry.mode = len(_COMMAND), 0o755
            archive.addfile(entry, io.BytesIO(_COMMAND.encode()))
        make_image(out, name, "tflaunch", [base, own])


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


def _needed_files() -> list[tuple[Path, str]]:
    """Return the files of the packages that tflaunch needs, with their paths in a directory of packages."""
    found: dict[str, metadata.Distribution] = {}
    waiting = ["tflaunch"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system, or another version of Python
        needed = [text for text in found[name].requires or [] if "extra ==" not in text]
        waiting += [match[0] for text in needed if (match := _NAME.match(text))]
    del found["tflaunch"]  # installed as a link to this directory
    return [
        (Path(str(file.locate())), str(file))
        for distribution in found.values()
        for file in distribution.files or []
        if ".." not in file.parts and "__pycache__" not in file.parts
    ]

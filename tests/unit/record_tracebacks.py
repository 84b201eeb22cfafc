"""Record what every Python prints when a program fails: `python tests/unit/record_tracebacks.py PYTHON...`.

It runs the programs of tests/unit/tracebacks.yaml with each interpreter, and writes their outputs there. Equal outputs
of several versions are kept once.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("tracebacks.yaml")


def run(python: str, program: str) -> str:
    """Return what a program, ``train.py``, writes before it fails; a shell script begins with ``#!/bin/sh``."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "train.py")
        path.write_text(program, encoding="utf-8")
        command = ["sh", str(path)] if program.startswith("#!/bin/sh") else [python, str(path)]
        environment = {**os.environ, "PYTHON": python, "PYTHONPATH": "", "PYTHONHASHSEED": "0"}
        ended = subprocess.run(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        output = (ended.stdout + ended.stderr).decode("utf-8", "backslashreplace")
    output = output.replace(directory, "/home/ann")
    return re.sub(r"/[^\s\"]*/lib/python(3\.\d+)/", r"/usr/lib/python\1/", output)


def _as_block(dumper: yaml.Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def main(pythons: list[str]) -> None:
    """Write the table again, with the outputs of these interpreters."""
    table: list[dict[str, Any]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    versions = {}
    for python in pythons:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        versions[subprocess.check_output([python, "-c", code], text=True).strip()] = python
    for row in table:
        wanted = [version for version in versions if version not in row.get("without", [])]
        outputs: dict[str, list[str]] = {}
        for version in wanted:
            outputs.setdefault(run(versions[version], row["program"]), []).append(version)
        row["outputs"] = [{"pythons": " ".join(names), "text": text} for text, names in outputs.items()]
    yaml.add_representer(str, _as_block)
    head = "# Recorded by tests/unit/record_tracebacks.py: what each Python prints, and what must be shown of it.\n"
    TABLE.write_text(head + yaml.dump(table, sort_keys=False, allow_unicode=True, width=1000), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Detect a task's TensorFlow by its interpreter, and whether it has tf_keras.

The package directories are searched without starting the interpreter, which would take longer than the rest of a
task's start. If the package is in none of the usual directories, the result is "unknown".
"""

from __future__ import annotations

import glob
import os
import re
from typing import Mapping

CHOICE = "TFLAUNCH_LEGACY_KERAS"
"""Variable of a task that says why it uses tf_keras or not."""

LEFT_TO_THE_HOST = "auto"
"""Value of that variable until the host has decided."""

LOOKED_AT = ("PATH", "PYTHONPATH", "HOME")
"""Variables of a task that determine the result."""

_PYTHON = r"(?:python|pypy)[0-9.]*"
_VERSION = r"(?:tensorflow(?:_(?:cpu|gpu|rocm|intel|aarch64|cpu_aws))?|tf_nightly)-(\d+)\.(\d+)[^-]*\.dist-info"
_KERAS_3_SINCE = (2, 16)  # since this version tf.keras is Keras 3 (tensorflow/RELEASE.md)
_PLACES = ("lib/{}/site-packages", "lib64/{}/site-packages", "lib/python3/dist-packages")
_PLACES_OF_DEBIAN = ("local/lib/{}/dist-packages",)
_MINOR = r"(?:python)?(3\.\d+)"
_ANY = "python3*"


def legacy_keras(argv: list[str], env: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether a task should use tf_keras as tf.keras, and the reason.

    That is TF_USE_LEGACY_KERAS=1. If TensorFlow's version is unknown, the answer is yes: nearly every program for
    several workers needs it, because Keras 3 cannot `fit` there (keras-team/keras#20585). ``env`` is the whole one.
    """
    places = package_directories(find_python(argv[0], env), env)
    version = _tensorflow(places)
    if version is None:
        return True, "it is not known which TensorFlow the task has"
    name = "TensorFlow {}.{}".format(*version)
    if version < _KERAS_3_SINCE:
        return False, f"{name} has Keras 2 itself"
    if any(os.path.exists(os.path.join(place, "tf_keras", "__init__.py")) for place in places):
        return True, f"tf_keras is installed beside {name}"
    return False, f"tf_keras is not installed beside {name}"


def tensorflow(argv: list[str], env: Mapping[str, str]) -> str:
    """Return the TensorFlow that a command would import, such as ``2.21``, or ""."""
    if not re.fullmatch(_PYTHON, os.path.basename(argv[0])):
        return ""
    version = _tensorflow(package_directories(find_python(argv[0], env), env))
    return "" if version is None else "{}.{}".format(*version)


def find_python(program: str, env: Mapping[str, str]) -> str | None:
    """Return the interpreter of a command, or the `python` on PATH for a script."""
    names = [program] if re.fullmatch(_PYTHON, os.path.basename(program)) else ["python", "python3"]
    for name in names:
        if "/" in name:
            return name
        for place in env.get("PATH", os.defpath).split(":"):
            path = os.path.join(place, name)
            if place and os.access(path, os.X_OK):
                return path
    return None


def package_directories(python: str | None, env: Mapping[str, str]) -> list[str]:
    """Return the directories with an interpreter's packages, in search order."""
    found = [place for place in env.get("PYTHONPATH", "").split(":") if place]
    if python is None:
        return found
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    settings = environment_settings(prefix)
    version = directory_name(python, settings or {})
    found += _below(prefix, _PLACES, version)
    if settings is None or settings.get("include-system-site-packages") == "true":
        real = os.path.dirname(os.path.dirname(os.path.realpath(python)))
        found += _below(os.path.join(env.get("HOME", ""), ".local"), _PLACES, version)
        found += _below(real, _PLACES + _PLACES_OF_DEBIAN, version)
    return found


def environment_settings(prefix: str) -> dict[str, str] | None:
    """Return the settings of a virtual environment's pyvenv.cfg, or None without one."""
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file:
            lines = [line.partition("=") for line in file]
    except OSError:
        return None
    return {name.strip().lower(): value.strip().lower() for name, _, value in lines}


def directory_name(python: str, settings: Mapping[str, str]) -> str:
    """Return Python's directory name, such as python3.11, or a pattern if unknown."""
    names = os.path.basename(os.path.realpath(python)), settings.get("version", ""), settings.get("version_info", "")
    for match in (re.match(_MINOR, name) for name in names):
        if match:
            return "python" + match.group(1)
    return _ANY


def _below(prefix: str, places: tuple[str, ...], version: str) -> list[str]:
    return [path for place in places for path in sorted(glob.glob(os.path.join(prefix, place.format(version))))]


def _tensorflow(places: list[str]) -> tuple[int, int] | None:
    """Return the version of the TensorFlow that would be imported, or None if unknown."""
    for place in places:
        if os.path.exists(os.path.join(place, "tensorflow", "__init__.py")):
            names = sorted(glob.glob(os.path.join(place, "t*-*.dist-info")))
            found = [re.fullmatch(_VERSION, os.path.basename(name)) for name in names]
            matches = [match for match in found if match]
            return (int(matches[0].group(1)), int(matches[0].group(2))) if matches else None
    return None

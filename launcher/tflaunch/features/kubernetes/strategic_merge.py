"""Merge fields of Kubernetes objects as `kubectl patch` does it by default. Pure.

Kubernetes declares in its API (`patchStrategy`, `patchMergeKey`) which lists are merged item by item, and by which
field of an item; any other list is replaced as a whole.
"""

from collections.abc import Mapping
from typing import Any

_KEYS = {
    **dict.fromkeys(("env", "imagePullSecrets", "initContainers", "resourceClaims", "schedulingGates"), "name"),
    "hostAliases": "ip",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists of pods and containers that are merged, to the field by which two items are the same."""


def merged(fields: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with those of a patch; null in it removes one."""
    result = dict(fields)
    for name, value in patch.items():
        before = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            result[name] = merged(before if isinstance(before, Mapping) else {}, value)
        elif name in _KEYS and isinstance(value, list) and isinstance(before, list):
            result[name] = _merged_items(before, value, name)
        else:
            result[name] = value
    return result


def _merged_items(before: list[Any], patch: list[Any], name: str) -> list[Any]:
    """Return a list with its items in their order, then those that only the patch has."""
    result = list(before)
    places = {_key(item, name): place for place, item in enumerate(before)}
    for item in patch:
        key = _key(item, name)
        if key not in places:
            result.append(item)
        else:
            old = result[places[key]]
            # A volume and a variable have one source: another one replaces it.
            kept = {key: old[key] for key in item if key in old} if name in ("env", "volumes") else old
            result[places[key]] = merged(kept, item)
    return result


def _key(item: Any, name: str) -> object:
    key = item.get(_KEYS[name]) if isinstance(item, Mapping) else None
    return key if isinstance(key, str | int) else object()  # Kubernetes refuses such an item, and says why

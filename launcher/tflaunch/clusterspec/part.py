"""What all parts of a spec have in common."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

EXTENSION = "x-"
"""Prefix of the user's own keys, as in a compose file."""

# A private name: the documented variable comes too late to spare the import of `importlib.metadata`, and tasks would
# inherit it. Where a version of pydantic has no such module, it looks for plugins, and this takes 20 ms longer.
_PLUGINS = "pydantic.plugin._loader"
_NO_PLUGINS = ModuleType(_PLUGINS)
_NO_PLUGINS.get_plugins = tuple  # type: ignore[attr-defined]


class Part(BaseModel):
    """An immutable part of a spec; unknown fields are errors, except ``x-`` keys."""

    # Built only as part of the spec instead of once more by itself, which halves the time of this import.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """Build the model without pydantic's plugins, a search of all packages' metadata."""
        loader = sys.modules.get(_PLUGINS)
        sys.modules[_PLUGINS] = _NO_PLUGINS
        try:
            return super().model_rebuild(**options)
        finally:
            del sys.modules[_PLUGINS]
            if loader is not None:
                sys.modules[_PLUGINS] = loader

    @model_validator(mode="before")
    @classmethod
    def _drop_extensions(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {str(key): item for key, item in data.items() if not str(key).startswith(EXTENSION)}
        # Lone surrogates are escaped, as pydantic cannot report them.
        return {key.encode("utf-8", "backslashreplace").decode(): item for key, item in kept.items()}

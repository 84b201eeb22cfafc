"""What all parts of a spec have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

EXTENSION = "x-"
"""Prefix of the user's own keys, as in a compose file."""


class Part(BaseModel):
    """An immutable part of a spec; unknown fields are errors, except ``x-`` keys."""

    # Built only as part of the spec instead of once more by itself, which halves the time of this import.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_extensions(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {str(key): item for key, item in data.items() if not str(key).startswith(EXTENSION)}
        # Lone surrogates are escaped, as pydantic cannot report them.
        return {key.encode("utf-8", "backslashreplace").decode(): item for key, item in kept.items()}

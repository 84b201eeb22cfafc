"""Generate the JSON Schema of a spec from its model."""

from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tflaunch.clusterspec.model import DISCOVER, TASK_FIELDS, Spec
from tflaunch.clusterspec.part import EXTENSION

# A path would name a file of one machine, so specs that are shared need a URL. tflaunch has no site of its own; this is
# the address under which editors look for the schemas of tools, once a schema is registered there.
SCHEMA_URL = "https://json.schemastore.org/tflaunch.json"
"""The name of the schema, its ``$id``, which specs give to editors."""

FILE = Path(__file__).with_name("cluster.schema.json")
"""The schema as a file of the package, for programs that read it without running tflaunch."""


class _Generator(GenerateJsonSchema):
    """Generator without field titles, and without null for optional fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return false, because a title would only repeat the field's name."""
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return the schema of a field with its default, unless that is None."""
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of an object, which also allows the user's own keys."""
        own = {f"^{EXTENSION}": {"description": "your own, ignored"}}
        return {**super().model_schema(schema), "patternProperties": own}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec."""
    schema = Spec.model_json_schema(schema_generator=_Generator)
    schema["properties"]["$schema"] = {"description": "for editors, ignored"}
    schema["properties"]["hosts"]["properties"] = {DISCOVER: schema["properties"].pop("pool")}
    del schema["required"]  # any one of `TASK_FIELDS` is enough, see below
    return {
        "$schema": _Generator.schema_dialect,
        "$id": SCHEMA_URL,
        **schema,
        "anyOf": [{"required": [name]} for name in TASK_FIELDS],
    }

"""Schemas of Kubernetes objects, made strict like an API server with strict validation."""

import functools
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from support.needs import lack
from support.specs import REPOSITORY

SCHEMAS = REPOSITORY.parent / "shared" / "schemas"
COMPOSE = Path(__file__).parent.parent / "docker" / "compose-spec.json"
_CRDS = {"JobSet": ("jobset-v0.12.0.crd.yaml", "v1alpha2")}
_TRAINER = ("TrainingRuntime", "TrainJob")
_MARKS = {name: {"type": "object", "additionalProperties": {"type": "string"}} for name in ("labels", "annotations")}
_BUILT_IN = ("Job", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet")


def need_schemas(engine: str) -> None:
    """Require the custom resource definition, which is stored beside the repository."""
    if engine in ("jobset", "trainjob") and not SCHEMAS.is_dir():
        lack("jobset")


def violations(document: dict[str, Any]) -> Iterator[str]:
    """Yield where a manifest violates the schema of its kind."""
    kind = document.get("kind", "")
    if kind in _TRAINER:
        validator = jsonschema.Draft202012Validator(_of_trainer(kind))
        yield from (f"{error.json_path}: {error.message:.200}" for error in validator.iter_errors(document))
        yield from _violations_of_pods(document["spec"].get("template", {}))
    elif kind in _CRDS:
        yield from (f"{error.json_path}: {error.message:.200}" for error in _definition(kind).iter_errors(document))
        yield from _violations_of_pods(document)
    elif kind in _BUILT_IN:
        yield from _built_in(document)
    else:
        yield f"unknown kind {kind!r}"


def _of_trainer(kind: str) -> dict[str, Any]:
    """Return the part that we use of Kubeflow Trainer's API, as its types for trainer.kubeflow.org/v1alpha1 have it."""
    api, name = "trainer.kubeflow.org", {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}
    jobset = _definition("JobSet").schema["properties"]["spec"]
    template = _an_object("spec", metadata=_an_object(**_MARKS), spec=jobset)
    runtime = _an_object("name", name=name, apiGroup={"const": api}, kind={"const": "TrainingRuntime"})
    specs = {"TrainingRuntime": _an_object(template=template), "TrainJob": _an_object("runtimeRef", runtimeRef=runtime)}
    metadata = _an_object("name", name=name, namespace={"type": "string"}, **_MARKS)
    versions = {"apiVersion": {"const": f"{api}/v1alpha1"}, "kind": {"const": kind}}
    return _an_object("apiVersion", "kind", "metadata", "spec", **versions, metadata=metadata, spec=specs[kind])


def _an_object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def violations_of_compose(content: object) -> Iterator[str]:
    """Yield where a Compose file violates the Compose specification."""
    validator = jsonschema.Draft7Validator(json.loads(COMPOSE.read_text()))
    yield from (f"{error.json_path}: {error.message:.200}" for error in validator.iter_errors(content))


def _violations_of_pods(document: dict[str, Any]) -> Iterator[str]:
    """Yield violations by pods. The definitions contain a copy of a pod's schema; Kubernetes' own is more complete."""
    spec = document.get("spec", {})
    for part in spec.get("replicatedJobs", []):
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, **part.get("template", {})}
        yield from _built_in(job)


def _built_in(document: dict[str, Any]) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a version that it does not know
        try:
            kubernetes_validate.validate(document, "1.32", strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{'.'.join(map(str, error.path))}: {error.message:.200}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield str(error)


@functools.cache
def _definition(kind: str) -> jsonschema.Draft202012Validator:
    file, version = _CRDS[kind]
    loaded = yaml.load((SCHEMAS / file).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (found,) = (each for each in loaded["spec"]["versions"] if each["name"] == version)
    schema = found["schema"]["openAPIV3Schema"]
    _make_strict(schema)
    schema["properties"]["kind"]["enum"] = [kind]
    schema["properties"]["apiVersion"]["enum"] = [f"{loaded['spec']['group']}/{version}"]
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return jsonschema.Draft202012Validator(schema)


def _make_strict(schema: dict[str, Any]) -> None:
    """Refuse fields that a schema does not name; accept a number as text where Kubernetes does."""
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    nested = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for part in nested:
        if isinstance(part, dict):
            _make_strict(part)


def expanded(text: str, variables: dict[str, str]) -> str:
    """Return text as Kubernetes passes it to a container: `$(NAME)` is replaced if the name is known, `$$` by `$`."""

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "$"
        return variables.get(name, match[0])

    return re.sub(r"\$(?:\$|\(([^)]*)\))", replacement, text)

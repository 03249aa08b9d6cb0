"""Builds custom resource definitions from the tests' schemas, for an API server that has none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import crd_schemas
import yaml

Object = dict[str, Any]
_KEPT_FIELDS = (
    "type", "required", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "minProperties", "maxProperties",
)  # fmt: skip
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_CLUSTERED = {"GatewayClass"}
_PLURAL = {"HTTPRouteFilter": "httproutefilters", "EnvoyProxy": "envoyproxies", "GatewayClass": "gatewayclasses"}


def definitions() -> dict[tuple[str, str], Object]:
    """Return a definition for every kind of which a schema is here, by API version and kind."""
    definition_by_kind: dict[tuple[str, str], Object] = {}
    for file in sorted(crd_schemas.FOLDER.glob("*.json.gz")):
        schema = json.loads(gzip.decompress(file.read_bytes()))
        version, kind = (schema["properties"][name]["const"] for name in ("apiVersion", "kind"))
        definition_by_kind[version, kind] = definition(version, kind, schema["properties"]["spec"])
    crds = yaml.safe_load((Path(__file__).parent / "crds.yaml").read_text())
    for name, schema in crds.items():
        if name.count("/") == 2:
            version, _, kind = name.rpartition("/")
            definition_by_kind[version, kind] = definition(version, kind, schema)
    return definition_by_kind


def definition(api_version: str, kind: str, spec: Object) -> Object:
    """Return a CustomResourceDefinition whose objects have a status that anybody may write anything into."""
    group, _, version = api_version.partition("/")
    lower = kind.lower()
    plural = _PLURAL.get(kind) or (f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s")
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    whole = {"type": "object", "properties": {"spec": structural(spec), "status": free}}
    metadata: Object = {"name": f"{plural}.{group}"}
    if group.endswith(("k8s.io", "kubernetes.io")):
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": lower},
            "scope": "Cluster" if kind in _CLUSTERED else "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": whole},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def structural(schema: Object) -> Object:
    """Return a schema as definitions may have it; unknown fields are refused by the API server's own strictness."""
    if schema.get("anyOf") == _INT_OR_STRING:
        return {"x-kubernetes-int-or-string": True}
    cleaned = {name: schema[name] for name in _KEPT_FIELDS if name in schema}
    if "const" in schema:
        cleaned |= {"type": "string", "enum": [schema["const"]]}
    if "enum" in cleaned:
        cleaned.setdefault("type", "string")
    if "properties" in schema:
        cleaned |= {
            "type": "object",
            "properties": {name: structural(field) for name, field in schema["properties"].items()},
        }
    elif isinstance(schema.get("additionalProperties"), dict):
        cleaned |= {"type": "object", "additionalProperties": structural(schema["additionalProperties"])}
    elif cleaned.get("type") == "object" or "type" not in cleaned:
        cleaned["x-kubernetes-preserve-unknown-fields"] = True
    if cleaned.get("type") == "array":
        cleaned["items"] = structural(schema.get("items", {}))
    return cleaned

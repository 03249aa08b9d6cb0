"""Kubeflow Pipelines' published API, read from its generated client: paths, query parameters, and bodies.

The client `kfp_server_api` is generated from the API's OpenAPI document, one method per operation and one class per
definition. What a request may say is taken from there and never from what our own code happens to send.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import kfp_server_api
from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2 as kubernetes
from kfp.pipeline_spec import pipeline_spec_pb2 as ir


class Refused(Exception):  # noqa: N818 - as the API says it
    """The request breaks the API."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Operation:
    """One operation of the API."""

    name: str
    method: str
    path: str
    query: frozenset[str]
    body: str
    """Name of the body's definition; empty when it has none."""

    def match(self, method: str, path: str) -> dict[str, str] | None:
        """Return the path's parameters when a request is this operation."""
        pattern = re.sub(
            r"\\\{([\w.]+)\\\}", lambda match: f"(?P<{match[1].replace('.', '_')}>[^/:]+)", re.escape(self.path)
        )
        match = re.fullmatch(pattern, path)
        return match.groupdict() if match and method == self.method else None


@cache
def operations() -> list[Operation]:
    """Return every operation of the published API."""
    all_operations = []
    for api in vars(kfp_server_api).values():
        if not (inspect.isclass(api) and api.__name__.endswith("ServiceApi")):
            continue
        for name, function in inspect.getmembers(api, inspect.isfunction):
            if name.endswith("_with_http_info"):
                source = inspect.getsource(function)
                path, method = re.search(r"call_api\(\s*'([^']+)', '([A-Z]+)'", source).groups()  # type: ignore[union-attr]
                query = frozenset(re.findall(r"query_params\.append\(\('([\w.]+)'", source))
                match = re.search(r"body_params = local_var_params\['(\w+)'\]", source)
                kind = re.search(rf":type {match[1]}: (\w+)", inspect.getdoc(function) or "") if match else None
                all_operations.append(
                    Operation(name.removesuffix("_with_http_info"), method, path, query, kind[1] if kind else "")
                )
    return all_operations


def check(value: Any, kind: str, path: str) -> None:
    """Check a value against a definition, strictly.

    Raises:
        Refused: A field is unknown or of another type.
    """
    if nested := re.fullmatch(r"list\[(.+)\]|dict\(str, (.+)\)", kind):
        items = enumerate(value) if nested[1] and isinstance(value, list) else getattr(value, "items", lambda: None)()
        if items is None:
            raise Refused(400, f"{path}: wanted {kind}")
        for key, item in items:
            check(item, nested[1] or nested[2], f"{path}.{key}")
    elif kind in ("str", "bool", "int"):
        expected_type = {"str": str, "bool": bool, "int": int}[kind]
        if not isinstance(value, expected_type) or (kind == "int" and isinstance(value, bool)):
            raise Refused(400, f"{path}: wanted {kind}, got {value!r}")
    elif kind == "datetime":
        datetime.fromisoformat(str(value))
    elif kind != "object":
        definition = getattr(kfp_server_api, kind)
        if hasattr(definition, "allowable_values"):
            if value not in definition.allowable_values:
                raise Refused(400, f"{path}: wanted one of {definition.allowable_values}, got {value!r}")
            return
        if not isinstance(value, dict):
            raise Refused(400, f"{path}: wanted {kind}, got {value!r}")
        fields = {definition.attribute_map[name]: field_type for name, field_type in definition.openapi_types.items()}
        for key, item in value.items():
            if key not in fields:
                raise Refused(400, f"{path}: unknown field '{key}' of {kind}")
            check(item, fields[key], f"{path}.{key}")


def check_query(operation: Operation, query: dict[str, str]) -> None:
    """Check a request's query parameters.

    Raises:
        Refused: One is unknown, or the filter is none.
    """
    for name in query:
        if name not in operation.query:
            raise Refused(400, f"unknown query parameter '{name}' of {operation.name}")
    if query.get("filter"):
        for predicate in json.loads(query["filter"])["predicates"]:
            named = {
                re.sub(r"(?<=[a-z])([A-Z])", lambda upper: "_" + upper[0].lower(), key): v
                for key, v in predicate.items()
            }
            check(named, "V2beta1Predicate", "filter")


def check_graph(documents: list[Any]) -> None:
    """Check an uploaded pipeline against the protocol buffers of Kubeflow and of its Kubernetes platform.

    Raises:
        Refused: It is no pipeline.
    """
    try:
        spec = json_format.ParseDict(documents[0], ir.PipelineSpec())
        json_format.ParseDict(json_format.MessageToDict(spec.deployment_spec), ir.PipelineDeploymentConfig())
        for document in documents[1:]:
            platform = json_format.ParseDict(document, ir.PlatformSpec())
            for executor in platform.platforms["kubernetes"].deployment_spec.executors.values():
                json_format.ParseDict(json_format.MessageToDict(executor), kubernetes.KubernetesExecutorConfig())
    except json_format.ParseError as error:
        raise Refused(400, f"not a pipeline: {error}") from None


def check_parameters(arguments: dict[str, Any], graph: dict[str, Any]) -> None:
    """Check a run's parameters against its graph, as the server does before it starts anything.

    Raises:
        Refused: One is unknown, missing, or of another type.
    """
    declared = graph["root"]["inputDefinitions"]["parameters"]
    types = {
        "STRING": str,
        "NUMBER_INTEGER": int,
        "NUMBER_DOUBLE": float,
        "BOOLEAN": bool,
        "LIST": list,
        "STRUCT": dict,
    }
    for name, value in arguments.items():
        if name not in declared:
            raise Refused(400, f"parameter {name} is not of this pipeline")
        if not isinstance(value, types[declared[name]["parameterType"]]):
            raise Refused(400, f"parameter {name} is no {declared[name]['parameterType']}")
    for name, definition in declared.items():
        if name not in arguments and not definition.get("isOptional"):
            raise Refused(400, f"parameter {name} is missing")


def check_cron(text: str) -> None:
    """Check an expression of the Go library that Kubeflow's controller uses (robfig/cron, version 1).

    Raises:
        Refused: It has not six fields, or a value out of its range; there is no weekday 7.
    """
    bounds = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
    fields = text.split()
    if len(fields) != len(bounds):
        raise Refused(400, f"Schedule cron is not a supported format: expected 6 fields, found {len(fields)}: {text}")
    for field, (low, high) in zip(fields, bounds, strict=True):
        for part in field.split(","):
            match = re.fullmatch(r"(\*|\?|(\d+)(-(\d+))?)(/\d+)?", part)
            numbers = [int(number) for number in (match[2], match[4]) if number] if match else [-1]
            if any(not low <= number <= high for number in numbers):
                raise Refused(400, f"Schedule cron is not a supported format: {part} in {text}")

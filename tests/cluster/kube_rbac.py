"""Access decisions of an API server's RBAC for the roles in deploy/k8s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ACCOUNTS = Path(__file__).parents[2] / "deploy" / "k8s" / "base" / "accounts.yaml"
VERSION_READERS = Path(__file__).parents[2] / "deploy" / "k8s" / "version-readers.yaml"
NAMESPACE = "shortlist"
"""Namespace of the overlays' objects."""
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

Object = dict[str, Any]


OPERATOR = "operator"
OPERATOR_BINDING: Object = {
    "kind": "RoleBinding",
    "metadata": {"name": "operators"},
    "roleRef": {"kind": "Role", "name": "shortlist-operator"},
    "subjects": [{"kind": "User", "name": OPERATOR}],
}
"""Made by whoever installs, as accounts.yaml says: the role of people who roll out is bound to nobody."""


@cache
def shipped() -> tuple[Object, ...]:
    """Return roles and bindings as they are shipped."""
    return tuple(
        object_ for file in (ACCOUNTS, VERSION_READERS) for object_ in yaml.load_all(file.read_text(), yaml.CSafeLoader)
    )


def verb_of(method: str, name: str | None) -> str:
    """Return the verb that RBAC knows a request by."""
    return _VERBS.get(method) or ("get" if name else "list")


def is_allowed(account: str, verb: str, group: str, resource: str, namespace: str, name: str | None) -> bool:
    """Whether a service account may; `namespace` is None's own for the namespace of the release."""
    return any(allows(rule, verb, group, resource, name) for rule in rules_of(account, namespace))


def allows(rule: Object, verb: str, group: str, resource: str, name: str | None) -> bool:
    """Whether a rule of a role allows a request; `name` is None where the request names no object."""
    return (
        verb in rule["verbs"]
        and group in rule["apiGroups"]
        and resource in rule["resources"]
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
    )


def rules_of(account: str, namespace: str, objects: Iterable[Object] | None = None) -> Iterator[Object]:
    """Give the rules that hold for a service account in a namespace."""
    roles_and_bindings = list((*shipped(), OPERATOR_BINDING) if objects is None else objects)
    for binding in roles_and_bindings:
        if binding["kind"] != "RoleBinding" or _namespace(binding) != namespace:
            continue
        if account in {subject["name"] for subject in binding["subjects"]}:
            for role in roles_and_bindings:
                named = (role["metadata"]["name"], _namespace(role)) == (binding["roleRef"]["name"], namespace)
                if role["kind"] == "Role" and named:
                    yield from role["rules"]


def _namespace(object_: Object) -> str:
    return str(object_["metadata"].get("namespace", NAMESPACE))

"""Whose an object is: labels to find it by, annotations that say which cluster and spec made it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from shortlist.rollout.kserve.errors import ForeignError
from shortlist.spec.quantity import same_quantity

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""

SPEC_LABEL: Final = "shortlist/spec"
VERSION_LABEL: Final = "shortlist/version"
DIGEST_LABEL: Final = "shortlist/digest"
CLUSTER_ANNOTATION: Final = "shortlist/cluster"
DIGEST_ANNOTATION: Final = "shortlist/model-digest"
REPOSITORY_ANNOTATION: Final = "shortlist/repository-digest"
RELEASE_ANNOTATION: Final = "shortlist/release-digest"
"""Of the sources, filters and ordering; empty where clients bring their candidates."""
ASKED_ANNOTATION: Final = "shortlist/asked"
"""The `spec` of the object as it was asked for, as JSON: what the live one must still hold."""
ROUTE_ANNOTATION: Final = "shortlist/route"
"""Of an HTTPRoute: the `Route` that its weights say."""
_QUANTITIES: Final = frozenset({"requests", "limits", "sizeLimit", "target"})
"""Fields that hold quantities, themselves or below: of resources, of volumes, of an autoscaler's metric."""
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "shortlist", "app.kubernetes.io/part-of": "shortlist"}
_LONGEST_NAME: Final = 40
"""KServe makes Services `<name>-transformer` and one host label `<name>-<namespace>`, each of 63 characters at most."""


class ObjectOwner(BaseModel):
    """A spec in a namespace of a named cluster."""

    model_config = ConfigDict(frozen=True)

    cluster: str
    """`runtime.cluster.name`."""
    namespace: str
    spec: str

    @property
    def route_name(self) -> str:
        """Name of the spec's HTTPRoute."""
        return f"shortlist-{self.spec}"

    def version_name(self, version: int, digest: str) -> str:
        """Return the name of a version's InferenceService.

        >>> ObjectOwner(cluster="eu", namespace="ml", spec="demo").version_name(5, "0123456789abcdef")
        'demo-v5-01234567'
        """
        tail = f"-v{version}-{digest[:8]}"
        if len(self.spec) + len(tail) <= _LONGEST_NAME:
            return self.spec + tail
        short = hashlib.sha256(self.spec.encode()).hexdigest()[:6]
        return f"{self.spec[: _LONGEST_NAME - len(tail) - 7]}-{short}{tail}"

    def labels(self, version: int | None = None) -> dict[str, str]:
        """Return the labels by which objects of the spec, or of one of its versions, are found."""
        found = {SPEC_LABEL: self.spec}
        return found if version is None else found | {VERSION_LABEL: str(version)}

    def check(self, found: Object) -> Object:
        """Return an object that is this owner's.

        Raises:
            ForeignError: It is another's.
        """
        where = f"{found.get('kind', 'object')} {self.namespace}/{found['metadata']['name']}"
        annotations, labels = annotations_of(found), found["metadata"].get("labels") or {}
        cluster, spec = annotations.get(CLUSTER_ANNOTATION), labels.get(SPEC_LABEL)
        if cluster is None or spec is None:
            raise ForeignError(
                f"{where}: was not made by Shortlist and is left alone; rename it, or choose another"
                " runtime.cluster.namespace"
            )
        if (cluster, spec) != (self.cluster, self.spec):
            raise ForeignError(
                f"{where}: belongs to cluster '{cluster}', spec '{spec}', and this is cluster '{self.cluster}', spec"
                f" '{self.spec}'. It is left alone: check runtime.cluster.name and the context that kubectl uses."
            )
        return found


def annotations_of(found: Object) -> Mapping[str, str]:
    """Return an object's annotations."""
    annotations: Mapping[str, str] = found["metadata"].get("annotations") or {}
    return annotations


def was_changed(found: Object) -> bool:
    """Whether an object's `spec` no longer holds what was asked for; what the cluster added by itself is no change."""
    asked = annotations_of(found).get(ASKED_ANNOTATION)
    return asked is None or not holds(found.get("spec"), json.loads(asked))


def holds(live: Any, asked: Any, quantities: bool = False) -> bool:
    """Whether a value has everything that was asked for; objects may have more, lists may not.

    Quantities are compared by value: the API server and KServe's webhook write `0.5` as `500m` and `1024Mi` as `1Gi`.

    Args:
        live: What is there.
        asked: What was asked for.
        quantities: Whether texts are quantities here.

    >>> holds({"a": [{"b": 1, "default": 2}]}, {"a": [{"b": 1}]}), holds({"a": [1, 2]}, {"a": [1]})
    (True, False)
    >>> holds({"limits": {"cpu": "500m"}}, {"limits": {"cpu": "0.5"}}), holds({"value": "500m"}, {"value": "0.5"})
    (True, False)
    """
    if isinstance(asked, dict):
        return isinstance(live, dict) and all(
            name in live and holds(live[name], value, quantities or name in _QUANTITIES)
            for name, value in asked.items()
        )
    if isinstance(asked, list):
        same = isinstance(live, list) and len(live) == len(asked)
        return same and all(holds(one, other, quantities) for one, other in zip(live, asked, strict=True))
    return bool(live == asked) or (quantities and same_quantity(live, asked))

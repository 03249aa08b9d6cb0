"""Owner labels and annotations of objects, with the cluster and the spec that created them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from shortlist.spec.text.quantity import same_quantity
from shortlist.system.kubernetes_api import ForeignError, Object

SPEC_LABEL: Final = "shortlist/spec"
VERSION_LABEL: Final = "shortlist/version"
DIGEST_LABEL: Final = "shortlist/digest"
CLUSTER_ANNOTATION: Final = "shortlist/cluster"
DIGEST_ANNOTATION: Final = "shortlist/model-digest"
REPOSITORY_ANNOTATION: Final = "shortlist/repository-digest"
RELEASE_ANNOTATION: Final = "shortlist/release-digest"
"""Annotation with the digest of sources, filters and ordering; empty where clients bring their candidates."""
SPEC_ANNOTATION: Final = "shortlist/asked"
"""Annotation with the `spec` of the object as it was created, as JSON, which the live object must still contain."""
ROUTE_ANNOTATION: Final = "shortlist/route"
"""Annotation of an HTTPRoute with the `Route` that its weights implement."""
_QUANTITIES: Final = frozenset({"requests", "limits", "sizeLimit", "target"})
"""Fields that contain quantities of resources, volumes or an autoscaler's metric, at any depth."""
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "shortlist", "app.kubernetes.io/part-of": "shortlist"}
_LONGEST_NAME: Final = 40
"""KServe makes Services `<name>-transformer` and one host label `<name>-<namespace>`, each of 63 characters at most."""


class ObjectOwner(BaseModel):
    """Owner of objects: a spec in a namespace of a named cluster."""

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
        spec_label = {SPEC_LABEL: self.spec}
        return spec_label if version is None else spec_label | {VERSION_LABEL: str(version)}

    def check(self, live: Object) -> Object:
        """Return an object after checking that it belongs to this owner.

        Raises:
            ForeignError: It belongs to another owner.
        """
        object_text = f"{live.get('kind', 'object')} {self.namespace}/{live['metadata']['name']}"
        annotations, labels = annotations_of(live), live["metadata"].get("labels") or {}
        cluster, spec = annotations.get(CLUSTER_ANNOTATION), labels.get(SPEC_LABEL)
        if cluster is None or spec is None:
            raise ForeignError(
                f"{object_text}: was not made by Shortlist and is left alone; rename it, or choose another"
                " runtime.cluster.namespace"
            )
        if (cluster, spec) != (self.cluster, self.spec):
            raise ForeignError(
                f"{object_text}: belongs to cluster '{cluster}', spec '{spec}', and this is cluster '{self.cluster}',"
                f" spec '{self.spec}'. It is left alone: check runtime.cluster.name and the context that kubectl uses."
            )
        return live


def annotations_of(live: Object) -> Mapping[str, str]:
    """Return the annotations of an object."""
    annotations: Mapping[str, str] = live["metadata"].get("annotations") or {}
    return annotations


def was_modified(live: Object) -> bool:
    """Whether an object's `spec` no longer contains what it was created with; additions of the cluster are allowed."""
    wanted_spec = annotations_of(live).get(SPEC_ANNOTATION)
    return wanted_spec is None or not contains(live.get("spec"), json.loads(wanted_spec))


def contains(live: Any, expected: Any, quantities: bool = False) -> bool:
    """Whether a live value contains everything of the expected one; objects may have more fields, lists may not.

    Quantities are compared by value: the API server and KServe's webhook write `0.5` as `500m` and `1024Mi` as `1Gi`.

    Args:
        live: The live value.
        expected: The expected value.
        quantities: Whether texts are quantities.

    >>> contains({"a": [{"b": 1, "default": 2}]}, {"a": [{"b": 1}]}), contains({"a": [1, 2]}, {"a": [1]})
    (True, False)
    >>> contains({"limits": {"cpu": "500m"}}, {"limits": {"cpu": "0.5"}}), contains({"value": "500m"}, {"value": "0.5"})
    (True, False)
    """
    if isinstance(expected, dict):
        return isinstance(live, dict) and all(
            name in live and contains(live[name], value, quantities or name in _QUANTITIES)
            for name, value in expected.items()
        )
    if isinstance(expected, list):
        same = isinstance(live, list) and len(live) == len(expected)
        return same and all(
            contains(live_part, wanted_part, quantities) for live_part, wanted_part in zip(live, expected, strict=True)
        )
    return bool(live == expected) or (quantities and same_quantity(live, expected))

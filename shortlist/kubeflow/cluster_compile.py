"""Compiles the graphs of one spec for its cluster, as files to upload and as Kubernetes manifests for GitOps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

import yaml
from pydantic import BaseModel, ConfigDict

from components.image import ImageReferences, resolve_images
from pipelines.compile import GRAPHS as BUILDERS
from pipelines.compile import GraphName as BuilderName
from pipelines.graph import PipelineBuilder
from shortlist.contracts import ShortlistError
from shortlist.kubeflow.cluster_pods import ClusterPods, check_step_names
from shortlist.kubeflow.workflow_size import WorkflowSize, check_workflow_size, estimate_workflow_size
from shortlist.serving.stack_secrets import SAMPLING_KEY_VARIABLE
from shortlist.spec.runtime import ServerTracking
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import atomic_folder

GraphName = Literal["training", "retraining", "monitoring", "scheduled-retraining", "refresh", "backfill"]
GRAPHS: Final[tuple[GraphName, ...]] = (
    "training", "retraining", "monitoring", "scheduled-retraining", "refresh", "backfill",
)  # fmt: skip
"""`training` and `backfill` are started by a person, `retraining` by a decision, the others on a schedule."""
_SUBMITTED: Final = ("training", "retraining")
_CACHED: Final = ("training", "backfill")


class CompiledGraphs(BaseModel):
    """The graphs of a spec, compiled for its cluster."""

    model_config = ConfigDict(frozen=True)

    spec: str
    digest: str
    """Digest of this package's code and of the compiled graphs, images included; 16 hexadecimal digits."""
    folder: Path
    parameters: dict[GraphName, tuple[str, ...]]
    """Names of the parameters of each graph."""

    def arguments(self, graph: GraphName, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a graph's parameters for a run; others are left out.

        Raises:
            ShortlistError: Argo could not store the workflow of the run.
        """
        arguments = {name: value for name, value in values.items() if name in self.parameters[graph]}
        models = len(arguments.get("models", []))
        check_workflow_size(self.workflow_size(graph, arguments), self.pipeline_name(graph), models)
        return arguments

    def workflow_size(self, graph: GraphName, arguments: Mapping[str, Any]) -> WorkflowSize:
        """Return the estimated size of the Argo workflow of a run with these parameters."""
        pipeline, platform = yaml.load_all(self.path(graph).read_text(), yaml.CSafeLoader)
        return estimate_workflow_size(pipeline, platform, arguments, arguments.get("models", []))

    def pipeline_name(self, graph: GraphName) -> str:
        """Return the name of a graph's pipeline in Kubeflow."""
        return f"{self.spec}-{graph}"

    def version_name(self, graph: GraphName) -> str:
        """Return the name of a graph's version in Kubeflow."""
        return f"{self.pipeline_name(graph)}-{self.digest}"

    def path(self, graph: GraphName) -> Path:
        """Return the file to upload."""
        return self.folder / f"{graph.replace('-', '_')}.yaml"

    def manifest_path(self, graph: GraphName) -> Path:
        """Return the file with the graph as `Pipeline` and `PipelineVersion`."""
        return self.folder / "manifests" / f"{graph}.yaml"

    @classmethod
    def compile(cls, spec: Spec, folder: Path) -> Self:
        """Compile a spec's graphs into `<folder>/<spec>-<digest>/`; the same spec and code give the same files.

        Args:
            spec: The declaration.
            folder: Where to write, usually `<runs>/compiled`.

        Raises:
            ShortlistError: An image has no digest, a step is unknown, or no secret sets a variable that a store needs.
        """
        from shortlist.tracking.lineage import code_version

        check_variables_set(spec)
        graphs = _build_graphs(spec, resolve_images(spec.runtime.cluster.images))
        total = hashlib.sha256(code_version().encode())
        for name in sorted(graphs):
            for part in (graphs[name].pipeline_spec, graphs[name].platform_spec):
                total.update(part.SerializeToString(deterministic=True))
        digest = total.hexdigest()[:16]
        parameters = {name: tuple(graph.component_spec.inputs) for name, graph in graphs.items()}
        compiled = cls(spec=spec.name, digest=digest, folder=folder / f"{spec.name}-{digest}", parameters=parameters)
        if not compiled.folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_folder(compiled.folder) as staging:
                compiled.model_copy(update={"folder": staging})._write(graphs, spec.runtime.cluster.namespace)
        return compiled

    def _write(self, graphs: dict[GraphName, Any], namespace: str) -> None:
        from google.protobuf import json_format
        from kfp.compiler.pipeline_spec_builder import extract_comments_from_pipeline_spec

        self.manifest_path(GRAPHS[0]).parent.mkdir()
        for graph, built in graphs.items():
            description = f"Shortlist: {graph} of spec '{self.spec}'"
            messages = built.pipeline_spec, built.platform_spec
            pipeline, platform = (json_format.MessageToDict(message) for message in messages)
            comments = extract_comments_from_pipeline_spec(pipeline, description)
            self.path(graph).write_text(comments + _yaml([pipeline, platform]))
            whole = {
                "displayName": self.version_name(graph), "pipelineName": self.pipeline_name(graph),
                "description": description, "pipelineSpec": pipeline, "platformSpec": platform,
            }  # fmt: skip
            named = {"displayName": self.pipeline_name(graph), "description": description}
            documents = [
                _manifest("Pipeline", self.pipeline_name(graph), namespace, named),
                _manifest("PipelineVersion", self.version_name(graph), namespace, whole),
            ]
            self.manifest_path(graph).write_text(_yaml(documents))


def _manifest(kind: str, name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "pipelines.kubeflow.org/v2beta1", "kind": kind, "metadata": metadata, "spec": spec}


def _yaml(documents: list[dict[str, Any]]) -> str:
    """Return documents as kfp's compiler writes them, with libyaml, which is ten times as fast."""
    return yaml.dump_all(documents, Dumper=yaml.CSafeDumper, sort_keys=True)


def check_variables_set(spec: Spec) -> None:
    """Check that the secrets set every variable from which a pod reads the address of a store, or a key.

    Raises:
        ShortlistError: A variable is not set.
    """
    runtime, reader_by_variable = spec.runtime, dict[str, str]()
    if runtime.online_store.address_variable:
        reader_by_variable[runtime.online_store.address_variable] = "runtime.online_store reads its address"
    if isinstance(runtime.tracking, ServerTracking):
        reader_by_variable[runtime.tracking.uri_variable] = "runtime.tracking reads its address"
    if runtime.database.address_variable:
        reader_by_variable[runtime.database.address_variable] = "runtime.database reads its address"
    if spec.serving.log.sampling < 1 and runtime.target.is_remote:
        reader_by_variable[SAMPLING_KEY_VARIABLE] = (
            "serving.log.sampling reads its key: without one, clients choose which answers are logged"
        )
    set_variables = {variable for secret in runtime.cluster.secrets for variable in secret.variables}
    for variable, reader in reader_by_variable.items():
        if variable not in set_variables:
            raise ShortlistError(
                f"runtime.cluster.secrets: no secret sets {variable}, from which {reader}."
                " Name the Kubernetes Secret that holds it, e.g."
                f" secrets: [{{name: stores, variables: {{{variable}: KEY}}}}]"
            )


def _build_graphs(spec: Spec, images: ImageReferences) -> dict[GraphName, Any]:
    """Return the graphs of a spec for its cluster, as kfp's pipelines."""
    cluster, models = spec.runtime.cluster, list(spec.models)
    built, steps = {}, set[str]()
    for graph in GRAPHS:
        # Scheduled runs read the data as they are then: no step may be answered from an earlier run.
        pods = ClusterPods(cluster, images, models, spec.runtime.features.job, cached=graph in _CACHED)
        builder = PipelineBuilder(spec, pods)
        build = BUILDERS["submitted" if graph in _SUBMITTED else cast("BuilderName", graph.replace("-", "_"))]
        # Kubeflow keeps cached results by pipeline name: two specs must not share one.
        built[graph] = build(builder, f"{spec.name}-{graph}")
        steps |= {step for names in builder.steps.values() for step in names}
    check_step_names(cluster, steps, models)
    return built

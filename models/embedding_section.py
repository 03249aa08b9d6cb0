"""The keys that the sections of all networks over embedded ids share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from models.objective_section import ObjectiveSection
from shortlist.contracts import did_you_mean
from shortlist.spec.base import Names
from shortlist.spec.features import Features
from shortlist.spec.models import Continuation, check_continued
from shortlist.spec.tune import Dimension
from shortlist.spec.vector_inputs import VectorInputs

EMBEDDING_SPACE: Final[Mapping[str, Dimension]] = {
    "learning_rate": Dimension(low=1e-4, high=1e-2, log=True),
    "embedding_learning_rate": Dimension(low=1e-3, high=0.2, log=True),
    "embedding_dim": Dimension(choices=(4, 8, 16, 32)),
    "batch_size": Dimension(choices=(256, 512, 1024, 2048, 4096)),
    "dropout": Dimension(low=0.0, high=0.5),
    "embedding_decay": Dimension(choices=(0.0, 1e-6, 1e-5, 1e-4)),
}
"""Default search space of `shortlist tune` for these networks; a kind may add keys of its own."""


class EmbeddingSection(ObjectiveSection):
    """A network whose ids have rows in one embedding table; a kind adds the widths of its own layers."""

    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several."""
    vectors: VectorInputs | None = None
    """Features of kind `vector`, one per modality, that get a norm and a projection of their own. null: the numbers of
    a vector are inputs as all others."""
    embedding_dim: int = Field(default=16, ge=4, le=1024, multiple_of=4)
    """Width of an embedding row, in floats; a multiple of 4 keeps rows on 16-byte borders."""
    batch_size: int = Field(default=2048, ge=16)
    """Rows per step; where order is learnt, at least those of the longest list, which is learnt in one step."""
    epochs: int = Field(default=3, ge=1)
    """Most passes over the training days."""
    patience: int = Field(default=1, ge=1)
    """Stop when the validation days have not improved for this many epochs (their log loss, or nDCG@10 where order is
    learnt); the best epoch is kept."""
    refit: bool = False
    """After that, train once more, from fresh weights, on training and validation days for as many epochs as were best:
    the newest days before the test are learnt too, for as much time again."""
    learning_rate: float = Field(default=0.001, gt=0)
    """Step of Adam on the networks."""
    embedding_learning_rate: float = Field(default=0.02, gt=0)
    """Step of row-wise Adagrad on the embedding rows."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled decay of the networks' weights."""
    embedding_decay: float = Field(default=0.0, ge=0)
    """L2 pull on the embedding rows that a batch touches."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of hidden units of the last perceptron left out in training."""
    sharing: Literal["shared_bottom", "mmoe"] = "shared_bottom"
    """With `labels`, what they share. `shared_bottom`: everything but the last layer. `mmoe`: embeddings and what lies
    below the last perceptron, and experts, copies of that one, which every label weighs by a gate of its own."""
    experts: int = Field(default=4, ge=2, le=64)
    """Experts of `sharing: mmoe`."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """What the products of a training step are computed in; scores are always float32. `auto` takes bf16 where the
    processor or GPU multiplies it natively, else fp32. `tf32` and `fp16` (with a scaled loss) are for GPUs alone."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether `torch.compile` makes machine code for the network. It needs a C++ compiler and some 20 s of processor
    time before the first step; `auto` spends them where they come back: where rows times epochs are 100 million or more
    on the CPU, 1 000 million on a GPU. Several workers train without, and so does a network that learns an order: the
    number of its pairs differs from batch to batch."""
    cuda_graphs: bool = True
    """On a GPU: record the whole training step once and replay it, which spares the launch of every kernel. Only with
    objective: pointwise."""
    cached_rows: int | None = Field(default=None, ge=1)
    """Embedding rows kept on the device while training; the others wait in host memory, and results are the same bit by
    bit. At least as many as a batch looks up, distinct ones. null: all when there is room, else as many as there is. On
    the CPU the same is done as on a GPU, to no gain."""
    retrain: Literal["scratch", "warm"] = "scratch"
    """What a training makes of an earlier model. `scratch`: nothing; take it while training is quick, and whenever the
    features change. `warm`: it starts from the weights, with fresh rows for new ids, and learns the newest days: a
    fraction of the time, and rare ids keep what they learnt long ago."""
    retrain_epochs: int | None = Field(default=None, ge=1)
    """With `retrain: warm`, most passes over the days to learn."""
    retrain_days: int | None = Field(default=None, ge=0)
    """With `retrain: warm`, days learnt again beside those that are new since the earlier model; a few keep it from
    forgetting."""

    @model_validator(mode="after")
    def _retraining_is_consistent(self) -> Self:
        if self.refit and self.retrain == "warm":
            raise ValueError("refit: true trains from fresh weights, which retrain: warm does not; declare one of both")
        check_continued(self.retrain == "warm", "warm", ("retrain_epochs", self.retrain_epochs), self.retrain_days)
        return self

    @model_validator(mode="after")
    def _order_is_not_compiled(self) -> Self:
        if self.learns_order and self.compile == "on":
            raise ValueError(
                f"compile: on needs steps of one shape, and with objective: {self.objective} the number of pairs and"
                " lists differs from batch to batch; declare compile: auto or off, or objective: pointwise"
            )
        return self

    @model_validator(mode="after")
    def _heads_are_learnt_together(self) -> Self:
        if not self.labels:
            if self.sharing != "shared_bottom":
                raise ValueError(f"sharing: {self.sharing} is between several labels; name further ones under labels")
            return self
        learnt_alone = {
            f"objective: {self.objective}": self.learns_order,
            "compile: on": self.compile == "on",
        }
        for declared, is_declared in learnt_alone.items():
            if is_declared:
                raise ValueError(f"{declared} is not for a network with further labels; leave out one of both")
        return self

    distributed: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        """Number of log-odds per row: one for the label, and one for every further label."""
        return 1 + len(self.labels)

    @property
    def experts_or_none(self) -> int | None:
        """Number of experts; None: the labels share all layers but the last."""
        return self.experts if self.sharing == "mmoe" else None

    def perceptrons(self, floats: int, tables: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the widths of the layers over floats alone, and of those over everything, inputs and output included.

        Args:
            floats: Floats that enter the layers (`inner_floats`).
            tables: Features with embeddings.
        """
        raise NotImplementedError

    def inner_floats(self, floats: int, widths: Mapping[str, int]) -> int:
        """Return how many floats enter the layers after vectors are projected.

        Args:
            floats: Width of the dense matrix.
            widths: Numbers of each vector feature.
        """
        if self.vectors is None:
            return floats
        return floats - sum(widths[name] for name in self.vectors.of) + self.vectors.output_width(self.embedding_dim)

    @property
    def reads(self) -> tuple[str, ...]:
        """Patterns of the features that the network reads, the vectors included."""
        return (*self.features, *(self.vectors.of if self.vectors is not None else ()))

    @property
    def continuation(self) -> Continuation | None:
        """How an earlier model is continued, by `retrain`; None: it is not."""
        return None if self.retrain == "scratch" else Continuation(self.retrain, overlap_days=self.retrain_days or 0)

    @property
    def id_settings(self) -> frozenset[str]:
        """Feature settings of ids that the network supports: eviction only where weights are kept (`retrain: warm`)."""
        return frozenset(("admit_after", *(("evict_after_days",) if self.retrain == "warm" else ())))

    def check_features(self, name: str, features: Features, *, distributed: bool) -> None:
        """Refuse vectors of other kinds of features, and settings that need a training by one process."""
        self._check_vectors(name, features)
        if not distributed:
            return
        declarations = [
            f"{feature.title.removeprefix('features: ')} declares {key}"
            for feature in features.columns for key in feature.declared_learning_keys
        ]  # fmt: skip
        if self.cached_rows is not None:
            declarations.append(f"models.{name} declares cached_rows")
        if self.refit:
            raise ValueError(
                f"runtime.cluster.workers.{name}: models.{name} declares refit, which one process does; declare one or"
                " the other"
            )
        if declarations:
            raise ValueError(
                f"runtime.cluster.workers.{name}: {declarations[0]}, which needs the embedding table in one process;"
                " several spread it by rows. Declare one or the other."
            )

    def _check_vectors(self, name: str, features: Features) -> None:
        vector_names = [
            output for feature in features.columns if feature.kind == "vector" for output in feature.outputs
        ]
        for vector in self.vectors.of if self.vectors is not None else ():
            if vector not in vector_names:
                raise ValueError(
                    f"models.{name}.vectors: '{vector}' is no feature of kind vector"
                    f"{did_you_mean(vector, vector_names)} (there are: {', '.join(vector_names) or 'none'})"
                )


def check_widths(**layers: tuple[int, ...]) -> None:
    """Refuse widths below 1.

    Raises:
        ValueError: A width is below 1; names the key.
    """
    for name, widths in layers.items():
        if any(width < 1 for width in widths):
            raise ValueError(f"{name}: widths must be at least 1 (got {list(widths)})")

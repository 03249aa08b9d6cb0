"""AUC on a GPU, in every precision, against float32 on the CPU: the same table, the same batches, the same weights.

The model has the widths of `benchmarks.train`'s "Kaggle dims", the log the cardinalities of `benchmarks.criteo`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch

from benchmarks.bench import Line
from benchmarks.criteo import CARDINALITIES, COUNTS
from benchmarks.gpu.published import Configuration, published
from benchmarks.gpu.roofs import precisions
from benchmarks.gpu.setting import Findings, Setting
from benchmarks.gpu.world import SEED, World
from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.table.precision import Precision
from models.embedding.training.cuda_graphs import make_step
from models.embedding.training.step import StepOptions, step_options
from models.embedding.training.train import score_batch
from shortlist.ranking.validation import validation_metrics

TITLE: Final = "AUC against float32 on the CPU"
TOLERANCE: Final = 1e-3
_TOY_TOLERANCE: Final = 1e-2
"""The AUC of a few thousand rows moves by a thousandth when two neighbours change places often enough."""


class _Quality(NamedTuple):
    auc: float
    log_loss: float


def run(setting: Setting) -> Findings:
    """Train once on the CPU and once per precision on the device, and compare."""
    findings = Findings(setting)
    configuration = _kaggle(setting)
    rows = setting.pick((1_000_000, 200_000), (8_192, 4_096))
    with findings.attempt("float32 on the CPU"), World(setting, configuration, *rows) as world:
        start = _start(world)
        reference = _learnt(world, start, "cpu", StepOptions())
        findings.lines.append(_line("cpu, fp32", reference, reference))
        for precision in precisions(findings):
            if setting.device == "cpu" and precision == "fp32":
                continue
            with findings.attempt(precision):
                device_quality = _learnt(
                    world, start, setting.device, _options(configuration.section, setting.device, precision)
                )
                findings.lines.append(_line(f"{setting.device}, {precision}", device_quality, reference))
                off = abs(device_quality.auc - reference.auc)
                allowed = setting.pick(TOLERANCE, _TOY_TOLERANCE)
                findings.expect(f"AUC, {precision}", off <= allowed, f"{off:.1e} apart, of {allowed:.0e}")
    return findings


def _kaggle(setting: Setting) -> Configuration:
    if setting.small:
        return published(setting)
    section = DLRMModel(
        features=("*",), embedding_dim=16, bottom_mlp=(512, 256, 64), top_mlp=(512, 256), batch_size=8_192
    )
    return Configuration(CARDINALITIES, COUNTS, section)


def _options(section: DLRMModel, device: str, precision: Precision) -> StepOptions:
    return step_options(section.model_copy(update={"precision": precision, "compile": "off"}), device)


def _start(world: World) -> dict[str, torch.Tensor]:
    torch.manual_seed(SEED)  # on the CPU: two devices draw different weights from one seed
    model = DLRM(world.layout, world.configuration.section)
    model.network.set_base_rates(world.learning.base_rate)
    return model.state_dict()


def _learnt(world: World, start: dict[str, torch.Tensor], device: str, options: StepOptions) -> _Quality:
    """Learn an epoch on a device, score the validation day there."""
    section = world.configuration.section
    model = DLRM(world.layout, section)
    model.load_state_dict(start)
    model.to(device).train()
    step = make_step(model, section, options, device)
    for batch in world.training(section.batch_size).shuffled(1):
        step(batch.to(device))
    labels, scores = [], []
    for batch in world.validation(section.batch_size).in_order():
        labels.append(batch.labels_B.cpu().numpy())
        scores.append(score_batch(model, batch.to(device)))
    metrics = validation_metrics(np.concatenate(labels), np.concatenate(scores))
    assert metrics["validation_auc"] is not None
    assert metrics["validation_log_loss"] is not None
    return _Quality(metrics["validation_auc"], metrics["validation_log_loss"])


def _line(name: str, quality: _Quality, reference: _Quality) -> Line:
    return Line(
        "parity", f"AUC, {name}", round(quality.auc, 5), "AUC", "cpu, fp32", round(quality.auc / reference.auc, 5)
    )

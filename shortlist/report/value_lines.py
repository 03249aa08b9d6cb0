"""What the lists of a run would earn, for the summary, the terminal, the page and MLflow."""

from __future__ import annotations

from pydantic import Field

from shortlist.evaluation.gates.slates import SlateMeasures
from shortlist.evaluation.metrics.records import Record
from shortlist.evaluation.value.evaluation import SLATES, ListValue
from shortlist.evaluation.verdict import GateVerdict


class ValueLine(Record):
    """Value of one list; null where it is unknown."""

    list: str
    """`slates`, a source, `popular`, `chance`, or `best_possible` of a generated world."""
    model: str | None
    """The candidate whose slates these are; null for other lists."""
    estimate: float | None
    low: float | None
    high: float | None
    effective_samples: float = Field(ge=0)
    """Number of equally weighted rows of the log that tell as much of the list."""
    unsupported: float = Field(ge=0, le=1)
    """Share of the list that the log does not show."""
    truth: float | None
    """Planted value; null for a real log."""
    problem: str = ""
    """Why the value is unknown."""

    @property
    def title(self) -> str:
        """Name of the list in tables."""
        name = self.list.replace("_", " ")
        return f"{name} of {self.model}" if self.model else name


class RunValue(Record):
    """Values of all lists of a run, in reward per request."""

    reward: str
    """Formula of the reward of an item that users see; empty where no value was estimated."""
    lists: tuple[ValueLine, ...]
    problem: str = ""
    """Why the log says nothing of the value of any list."""


def run_value(verdict: GateVerdict, shown: tuple[str, SlateMeasures] | None) -> RunValue | None:
    """Return the values of every candidate's slates and of the lists beside them; None without slates.

    Args:
        verdict: The verdict of the gates.
        shown: The candidate whose evaluation has the values of the other lists, which all candidates share.
    """
    shown_value = shown[1].value if shown else None
    if shown_value is None:
        return None
    slates = [
        _value_line(list_value, model)
        for model, measures in verdict.slate_measures.items()
        if measures.value is not None and (list_value := measures.value.find(SLATES)) is not None
    ]
    others = [_value_line(list_value) for list_value in shown_value.lists if list_value.list != SLATES]
    return RunValue(reward=shown_value.reward, lists=(*slates, *others), problem=shown_value.problem)


def _value_line(list_value: ListValue, model: str | None = None) -> ValueLine:
    return ValueLine(model=model, **list_value.model_dump())


def value_numbers(value: RunValue | None, model: str) -> dict[str, float]:
    """Return the numbers of a candidate's slates, and the values of the other lists, by name."""
    numbers: dict[str, float | None] = {}
    for line in value.lists if value else ():
        if line.model == model:
            numbers |= {
                "slates": line.estimate, "slates_low": line.low, "slates_high": line.high,
                "slates_truth": line.truth, "effective_samples": line.effective_samples,
                "unsupported": line.unsupported,
            }  # fmt: skip
        elif line.model is None:
            numbers |= {line.list: line.estimate, f"{line.list}_truth": line.truth}
    return {name: number for name, number in numbers.items() if number is not None}

"""How rows and labels are derived from the files' columns: positive values, further labels, exploded lists."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from shortlist.spec.base import Section


class Positive(Section):
    """Which values of the label's column count as 1. Other values count as 0; a row without a value is refused."""

    at_least: float | None = None
    """Smallest value that counts as 1, e.g. `at_least: 4` of a rating."""
    at_most: float | None = None
    """Largest value that counts as 1."""
    any_of: tuple[str | int, ...] | None = Field(default=None, min_length=1)
    """These values of an integer or string column count as 1, e.g. `any_of: [purchase, cart]`."""

    @field_validator("any_of", mode="before")
    @classmethod
    def _no_booleans(cls, values: object) -> object:
        listed_values = values if isinstance(values, list | tuple) else ()
        for value in listed_values:
            if isinstance(value, bool):
                raise ValueError(
                    f"got {str(value).lower()}: YAML reads yes, no, on, off, true and false as booleans; write the"
                    ' value as it is in the log, in quotes: any_of: ["yes"]'
                )
        return values

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        bounded = self.at_least is not None or self.at_most is not None
        if bounded == (self.any_of is not None):
            raise ValueError("give bounds (at_least, at_most) or a list (any_of), one of the two")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least {self.at_least:g} is above at_most {self.at_most:g}")
        return self

    @property
    def types(self) -> tuple[str, ...]:
        """The types that the label's column may have."""
        return ("integer", "number") if self.any_of is None else ("integer", "string")


class FurtherLabel(Section):
    """A label beside `data.label`; models that list it have one more score for it."""

    column: str
    """A column of the log that is declared `known: after`. A row without a value counts as 0."""
    positive: Positive | None = None
    """Which of its values count as 1, as for `data.positive`; null: the column holds 0 and 1, and is declared with
    `min: 0, max: 1` or `allowed: [0, 1]`."""


class Explode(Section):
    """Columns whose values are lists: each element becomes a row, and the other columns are repeated."""

    columns: tuple[str, ...] = Field(min_length=1)
    """Columns that hold one list per row of the file, all of the same length; their `type` is that of an element."""
    separator: str = Field(default=",", min_length=1, max_length=1)
    """Separator of the elements where the list is text."""
    within: str | None = Field(default=None, min_length=1, max_length=1)
    """Separator of the values of `columns` inside an element, where one text holds them all (`N12-0 N7-1`)."""

    @model_validator(mode="after")
    def _separators_differ(self) -> Self:
        if self.within is not None and len(self.columns) < 2:
            raise ValueError("within: needs two columns or more, which one element holds")
        if self.within == self.separator:
            raise ValueError(f"within: '{self.within}' is the separator too; wanted another character")
        return self

"""The text of a first spec, with the reasons as comments."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from math import ceil, sqrt
from typing import Final

import polars as pl

from shortlist.first_spec.columns import ColumnLook
from shortlist.first_spec.draft import IS_POSITIVE, SHOWN_ITEM, Draft, Side
from shortlist.first_spec.roles import label_values
from shortlist.system.project import project_root

_PLAIN: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_./-]*$")
_YAML_WORDS: Final = frozenset(("yes", "no", "on", "off", "true", "false", "null", "y", "n"))
_WIDTH: Final = 90
_FEW_VALUES: Final = 500
_MOST_VALUES: Final = 20_000
_LOG_FROM: Final = 100
_MOST_CROSSES: Final = 3
_FEW_CODES: Final = 10


def compose(draft: Draft, name: str) -> str:
    """Return the spec as YAML."""
    features = _Features(draft)
    return "\n".join(
        (*_head(draft, name), *_data(draft), *features.lines(), *_models(features.patterns), *_gates(draft), "")
    )


def _head(draft: Draft, name: str) -> Iterator[str]:
    yield f"# make run SPEC={name}.yaml DATA={draft.location}"
    yield "# Written by `shortlist init`. What it could not know is yours to change: which columns are known only after"
    yield "# the impression (`known: after`), and what counts as a success (`label`)."
    yield "# `shortlist check` says what is wrong, `shortlist schema` what else can be declared."
    yield "version: 1"
    yield f"name: {name}"
    yield ""


def _data(draft: Draft) -> Iterator[str]:
    log = draft.log
    source = {"kind": "files"}
    if log.path:
        source["path"] = log.path
    yield "data:"
    settings = ", ".join(f"{key}: {_text(value)}" for key, value in source.items())
    declared_format = log.format if log.declared_format else ""
    yield f"  source: {{{settings}{_reading(declared_format, log.header, _nulls(log.columns))}}}"
    yield "  columns:"
    for column in draft.columns:
        yield from _log_column(column, draft)
    label = IS_POSITIVE if draft.paired else draft.name_of(log.column(draft.label))
    yield f"  label: {label}"
    if draft.positive is not None:
        given = {key: value for key, value in draft.positive.model_dump(mode="json").items() if value is not None}
        shown = ", ".join(f"{key}: {_number(value)}" for key, value in given.items())
        yield f"  positive: {{{shown}}}   # these values count as 1, all others as 0"
    if draft.paired:
        yield f'  explode: {{columns: [{SHOWN_ITEM}, {IS_POSITIVE}], separator: " ", within: "-"}}'
    yield from _clock(draft)
    roles = {"user": draft.user, "item": draft.item, "impression": draft.impression, "request": draft.request}
    for role, column_name in roles.items():
        if role == "item" and draft.paired:
            yield f"  item: {SHOWN_ITEM}"
        elif column_name is not None:
            yield f"  {role}: {draft.name_of(log.column(column_name))}"
    if draft.sides:
        yield "  side_tables:"
    for side in draft.sides:
        yield from _side(side, draft)
    yield from _rules(draft)
    warmup, validation, test = draft.split
    looked_at = f"{draft.test_rows:,} of the {log.rows.height:,} rows looked at"
    yield f"  # The last {test} of {len(draft.day_rows)} days hold {looked_at}."
    yield f"  split: {{warmup_days: {warmup}, validation_days: {validation}, test_days: {test}}}"
    yield ""


def _reading(declared_format: str, header: bool, nulls: list[str]) -> str:
    parts = [f"format: {declared_format}"] if declared_format else []
    parts += [] if header else ["header: false"]
    parts += [f"null_values: {json.dumps(['', *nulls])}"] if nulls else []
    return "".join(f", {part}" for part in parts)


def _log_column(column: ColumnLook, draft: Draft) -> Iterator[str]:
    if column.pairs and column.source == draft.label:
        yield f"    - {{name: {SHOWN_ITEM}, source: {_text(column.source)}, type: string}}"
        yield f"    - {{name: {IS_POSITIVE}, source: {_text(column.source)}, type: integer}}"
        return
    reason = draft.after.get(column.source)
    known = {"known": "after"} if reason is not None else {}
    yield "    - " + _column(column, draft.name_of(column), known, reason or column.note)


def _column(column: ColumnLook, name: str, more: dict[str, str], comment: str) -> str:
    parts: dict[str, str] = {"name": name}
    if column.source != name:
        parts["source"] = _text(column.source)
    parts["type"] = column.type
    if column.type == "tags":
        parts |= {"tag_type": "integer"} if column.tag_type == "integer" else {}
    if column.type in ("tags", "vector") and column.separator != ",":
        parts["separator"] = json.dumps(column.separator)
    if column.date_format is not None:
        parts["format"] = json.dumps(column.date_format)
    shown = ", ".join(f"{key}: {value}" for key, value in {**parts, **more}.items())
    return f"{{{shown}}}" + (f"   # {comment}" if comment else "")


def _clock(draft: Draft) -> Iterator[str]:
    if draft.clock is None:
        yield "  clock: {kind: row_order}   # no column holds times; the rows must be in time order"
        return
    clock = draft.log.column(draft.clock).clock
    assert clock is not None
    place = draft.clock
    if not draft.log.header:
        place = str([column.source for column in draft.log.columns].index(draft.clock))
    parts = [f"column: {json.dumps(place) if not _PLAIN.match(place) else place}"]
    parts.append(f"unit: {clock.unit}" if clock.unit is not None else f"format: {json.dumps(clock.format)}")
    first = draft.day_rows[0][0]
    parts += [f"earliest: {first}"] if first.year < 2000 else []
    yield "  # Days begin at midnight UTC; set `timezone` where they do not."
    yield f"  clock: {{kind: column, {', '.join(parts)}}}"


def _side(side: Side, draft: Draft) -> Iterator[str]:
    table = side.table
    coverage = "" if side.coverage >= 0.6 else f", min_coverage: {side.coverage * 0.9:.2f}"
    yield f"    # {side.coverage:.0%} of the rows looked at find their {side.key}."
    declared = table.format if table.declared_format else ""
    yield f"    - name: {side.name}"
    yield f"      path: {_text(table.path)}"
    reading = _reading(declared, table.header, _nulls(table.columns)).removeprefix(", ")
    for part in reading.split(", ", 1 if declared else 0):
        if part:
            yield f"      {part}"
    key = next(draft.name_of(column, side) for column in table.columns if column.source == side.key)
    yield f"      key: {key}"
    if coverage:
        yield f"      {coverage.removeprefix(', ')}"
    yield "      columns:"
    for column in table.columns:
        yield "        - " + _column(column, draft.name_of(column, side), {}, column.note)


def _rules(draft: Draft) -> Iterator[str]:
    if not draft.rules:
        return
    yield "  rules:"
    for rule, (value, why) in draft.rules.items():
        yield f"    {rule}: {value}   # {why}"


def _models(patterns: list[str]) -> Iterator[str]:
    text = (project_root() / "models" / "first_spec.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    yield from "\n".join(lines).replace("%FEATURES%", json.dumps(patterns)).splitlines()
    yield ""


def _gates(draft: Draft) -> Iterator[str]:
    """Give limits that a test set of this size can hold: a small one makes every figure uncertain."""
    rows = draft.test_rows if draft.log.whole else max(draft.test_rows, 2_000)
    labels = label_values(draft.log.column(draft.label), draft.positive)
    rate = int((labels == 1).sum()) / max(1, labels.len() - labels.null_count()) if labels is not None else 0.1
    noise = 3 * sqrt((1 - rate) / max(rate * rows, 1))
    parts = []
    if rows < 4_000:
        parts.append(f"min_test_rows: {max(100, rows // 2)}")
    if noise > 0.05:
        parts.append(f"max_rate_error: {min(1.0, ceil((0.1 + noise) * 100) / 100)}")
    if not parts:
        return
    yield f"# With about {rows:,} test rows, {rate:.1%} of them positive, chance alone moves these figures."
    yield f"gates: {{{', '.join(parts)}}}"


class _Features:
    """The features that the columns allow."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.patterns: list[str] = []
        """Which of them trees read."""

    def lines(self) -> Iterator[str]:
        """Give the section."""
        yield "features:"
        yield "  columns:"
        yield from (f"    {line}" for line in self._lines())
        yield ""

    def _lines(self) -> Iterator[str]:
        draft = self._draft
        before = list(self._before())
        days = [day for day, _ in draft.day_rows]
        if draft.clock is not None and self._has_hours():
            yield from self._add("hour_*", "{kind: cyclic, period: day, name: hour}")
            if len(days) >= 14:
                yield from self._add("weekday_*", "{kind: cyclic, period: week, name: weekday}")
        keys = [name for name in (self._user, self._item) if name is not None]
        for key in keys:
            yield from self._add("*_rate", f"{{kind: target, key: {key}, name: {key}_rate, prior: 10}}")
            yield from self._add("*_seen", f"{{kind: count, key: {key}, name: {key}_seen}}")
            yield from self._add("*_away", f"{{kind: time_since, key: {key}, name: {key}_away}}")
        categories = [(name, column) for name, column in before if _is_category(column)]
        histories = {column.source for column in self._histories()}
        for name, column in categories:
            # Of a few values, trees read the codes below; each rate is a view that Feast has to store.
            if column.source in histories or column.distinct <= _FEW_CODES:
                continue
            yield from self._add("*_rate", f"{{kind: target, key: {name}, name: {name}_rate}}")
        few = sorted((c for c in categories if c[1].distinct <= _FEW_VALUES), key=lambda c: -c[1].distinct)
        # What a table of users says of the user tells no two items apart.
        own = {column.source for side in draft.sides if side.key == draft.user for column in side.table.columns}
        for name in [name for name, column in few if column.source not in own][:_MOST_CROSSES] if self._user else ():
            pair = f"key: [{self._user}, {name}], name: {self._user}_{name}_rate"
            yield from self._add("*_rate", f"{{kind: target, {pair}, prior: 5}}")
        for column in self._histories():
            listed = f"of: {self._name_of_side(column)}, name: {self._name_of_side(column)}_listed"
            yield from self._add("*_listed", f"{{kind: count, key: {self._item}, {listed}}}")
        logs = [name for name, column in before if _is_number(column) and _is_long(column)]
        numbers = [name for name, column in before if _is_number(column) and not _is_long(column)]
        if logs:
            yield from self._add("*_log", f"{{kind: numeric, each: {_list(logs)}, suffix: log, log: true}}")
        if numbers:
            yield from self._add("*_number", f"{{kind: numeric, each: {_list(numbers)}}}")
        dates = [name for name, column in before if column.type == "date"]
        if dates:
            yield from self._add("*_age", f"{{kind: age, each: {_list(dates)}}}")
        codes = [name for name, column in few if column.type != "tags"]
        if codes:
            yield from self._add("*_code", f"{{kind: vocabulary, each: {_list(codes)}, suffix: code, min_rows: 20}}")
        if keys:
            yield "# Ids for a network; rarer values share id 0."
            yield f"- {{kind: vocabulary, each: {_list(keys)}, min_rows: 20}}"

    def _add(self, pattern: str, feature: str) -> Iterator[str]:
        if pattern not in self.patterns:
            self.patterns.append(pattern)
        yield f"- {feature}"

    @property
    def _user(self) -> str | None:
        draft = self._draft
        return draft.name_of(draft.log.column(draft.user)) if draft.user is not None else None

    @property
    def _item(self) -> str | None:
        draft = self._draft
        if draft.paired:
            return SHOWN_ITEM
        return draft.name_of(draft.log.column(draft.item)) if draft.item is not None else None

    def _before(self) -> Iterator[tuple[str, ColumnLook]]:
        """Give the columns that may become features, by their declared names."""
        draft = self._draft
        for column in draft.columns:
            if column.source not in draft.roles and column.source not in draft.after and _is_useful(column):
                yield draft.name_of(column), column
        for side in draft.sides:
            for column in side.table.columns:
                if column.source != side.key and _is_useful(column):
                    yield draft.name_of(column, side), column

    def _histories(self) -> list[ColumnLook]:
        """Return the lists of items that a table of users holds."""
        draft = self._draft
        if draft.user is None or draft.item is None:
            return []
        item = draft.log.column(draft.item)
        lists = [column for side in draft.sides if side.key == draft.user for column in side.table.columns]
        lists = [column for column in lists if column.type == "tags" and column.tag_type == item.type]
        return [column for column in lists if _share_items(column, item)]

    def _name_of_side(self, column: ColumnLook) -> str:
        draft = self._draft
        return next(draft.name_of(column, side) for side in draft.sides if column in side.table.columns)

    def _has_hours(self) -> bool:
        draft = self._draft
        clock = draft.log.column(draft.clock or "").clock
        if clock is None or draft.log.rows[draft.clock or ""].dtype == pl.Date:
            return False
        return clock.format is None or "%H" in clock.format or "%I" in clock.format


def _is_useful(column: ColumnLook) -> bool:
    return column.distinct > 1 and not column.note and not column.pairs and column.type != "vector"


def _is_category(column: ColumnLook) -> bool:
    if column.type in ("string", "tags"):
        return column.distinct <= _MOST_VALUES and (
            column.type == "tags" or column.repeats >= 3 or column.distinct <= 50
        )
    is_id = re.search(r"id$|code$|type$|category", column.name) is not None
    return column.type == "integer" and column.clock is None and (is_id or column.distinct <= 30)


def _is_number(column: ColumnLook) -> bool:
    if column.type == "integer":
        return column.clock is None and not _is_category(column)
    return column.type == "number"


def _is_long(column: ColumnLook) -> bool:
    """Whether a number has a long upper tail, which a logarithm shortens."""
    values = column.values.drop_nulls()
    return bool((values >= 0).all()) and bool((values > _LOG_FROM).any())


def _share_items(column: ColumnLook, item: ColumnLook) -> bool:
    listed = column.values.head(1_000).explode().drop_nulls()
    known = listed.cast(item.values.dtype, strict=False).is_in(item.values.drop_nulls().unique().implode())
    return len(listed) > 0 and int(known.sum()) * 4 > len(listed)


def _nulls(columns: tuple[ColumnLook, ...]) -> list[str]:
    return sorted(
        {text for column in columns for text in column.null_texts if column.type != "string" or len(text) < 3}
    )


def _number(value: object) -> str:
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _list(names: list[str]) -> str:
    text = f"[{', '.join(names)}]"
    return textwrap.fill(text, _WIDTH, subsequent_indent=" " * 8, break_long_words=False)


def _text(value: str) -> str:
    return value if _PLAIN.match(value) and value.lower() not in _YAML_WORDS else json.dumps(value)

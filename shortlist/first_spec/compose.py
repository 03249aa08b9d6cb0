"""The text of a first spec, with the reasons as comments."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from math import ceil, floor, sqrt
from typing import Final

import polars as pl

from shortlist.first_spec.columns import ColumnProfile
from shortlist.first_spec.draft import IS_POSITIVE, SHOWN_ITEM, SideTableDraft, SpecDraft
from shortlist.first_spec.roles import label_values
from shortlist.first_spec.sample import DELIMITERS
from shortlist.first_spec.tables import TableSample
from shortlist.system.project import project_root

_PLAIN_TEXT: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_./-]*$")
_YAML_WORDS: Final = frozenset(("yes", "no", "on", "off", "true", "false", "null", "y", "n"))
_LINE_WIDTH: Final = 90
_MAX_CROSS_VALUES: Final = 500
_MAX_CATEGORY_VALUES: Final = 20_000
_LOG_THRESHOLD: Final = 100
_MAX_USER_CROSSES: Final = 3
_MAX_ITEM_CROSSES: Final = 2
_MIN_ITEM_CROSS_ROWS: Final = 10
"""Fewest rows of an item in a category, on average, that are worth a rate."""
_MAX_SLATE_NUMBERS: Final = 3
_MIN_YOUNG_SHARE: Final = 0.3
"""Share of rows with items of the last day from which on statistics are counted by the hour."""
_MAX_CODES_WITHOUT_RATE: Final = 10
_MIN_WORDS: Final = 3
_CONTEXT_TYPES: Final = ("integer", "number", "string", "date")
"""Types of columns that a request for recommendations can send."""
_TEXT_COMMENT: Final = "text, no feature: a vector column with `embedding: {text: ...}` makes one of it"


def compose_spec(draft: SpecDraft, name: str) -> str:
    """Return the spec as YAML."""
    features = _FeatureComposer(draft)
    return "\n".join(
        (
            *_head_lines(draft, name),
            *_data_lines(draft),
            *features.lines(),
            *_model_lines(features.patterns),
            *_retrieval_lines(draft),
            *_gate_lines(draft),
            "",
        )
    )


def _head_lines(draft: SpecDraft, name: str) -> Iterator[str]:
    yield f"# make run SPEC={name}.yaml DATA={shlex.quote(str(draft.location))}"
    yield "# Written by `shortlist init`. What it could not know is yours to change: which columns are known only after"
    yield "# the impression (`known: after`), and what counts as a success (`label`)."
    yield "# `shortlist check` says what is wrong, `shortlist schema` what else can be declared."
    yield "version: 1"
    yield f"name: {name}"
    yield ""


def _data_lines(draft: SpecDraft) -> Iterator[str]:
    log = draft.log
    source = {"kind": "files"}
    if log.path:
        source["path"] = log.path
    yield "data:"
    settings = ", ".join(f"{key}: {_yaml_text(value)}" for key, value in source.items())
    options = "".join(f", {option}" for option in _reading_options(log))
    yield f"  source: {{{settings}{options}}}"
    yield "  columns:"
    for column in draft.columns:
        yield from _log_column_lines(column, draft)
    label = IS_POSITIVE if draft.is_paired else draft.name_of(log.column(draft.label))
    yield f"  label: {label}"
    if draft.positive is not None:
        declared_values = {
            key: value for key, value in draft.positive.model_dump(mode="json").items() if value is not None
        }
        positive_text = ", ".join(f"{key}: {_yaml_number(value)}" for key, value in declared_values.items())
        yield f"  positive: {{{positive_text}}}   # these values count as 1, all others as 0"
    if log.exploded:
        names = ", ".join(draft.name_of(log.column(source)) for source in log.exploded)
        yield f"  explode: {{columns: [{names}], separator: {json.dumps(log.separator)}}}   # each element is a row"
    if draft.is_paired:
        yield f'  explode: {{columns: [{SHOWN_ITEM}, {IS_POSITIVE}], separator: " ", within: "-"}}'
    yield from _clock_lines(draft)
    roles = {
        "user": draft.user, "item": draft.item, "impression": draft.impression, "request": draft.request,
        "position": draft.position,
    }  # fmt: skip
    for role, column_name in roles.items():
        if role == "item" and draft.is_paired:
            yield f"  item: {SHOWN_ITEM}"
        elif column_name is not None:
            yield f"  {role}: {draft.name_of(log.column(column_name))}"
    if draft.has_slates:
        yield "  # Rows of one request are compared with each other; servers must be sent what would be shown together."
        yield f"  slate: {{column: {draft.name_of(log.column(draft.request or ''))}}}"
    if draft.sides:
        yield "  side_tables:"
    for side in draft.sides:
        yield from _side_table_lines(side, draft)
    yield from _rule_lines(draft)
    warmup, validation, test = draft.split
    row_counts = f"{draft.test_rows:,} of {draft.total_rows:,} rows"
    yield f"  # The last {test} of {len(draft.day_rows)} days hold {row_counts}."
    yield f"  split: {{warmup_days: {warmup}, validation_days: {validation}, test_days: {test}}}"
    yield ""


def _reading_options(table: TableSample) -> list[str]:
    nulls = _null_texts(table.columns)
    form = table.form
    return [
        *([f"format: {form.format}"] if table.declared_format else []),
        *([f"delimiter: {json.dumps(form.delimiter)}"] if form.delimiter != DELIMITERS.get(form.format, ",") else []),
        *([] if form.header else ["header: false"]),
        *([f"null_values: {json.dumps(['', *nulls])}"] if nulls else []),
    ]


def _log_column_lines(column: ColumnProfile, draft: SpecDraft) -> Iterator[str]:
    if column.pairs and column.source == draft.label:
        yield f"    - {{name: {SHOWN_ITEM}, source: {_yaml_text(column.source)}, type: string}}"
        yield f"    - {{name: {IS_POSITIVE}, source: {_yaml_text(column.source)}, type: integer}}"
        return
    reason = draft.outcomes.get(column.source)
    further_keys = {"known": "after"} if reason is not None or column.source == draft.position else {}
    if column.source == draft.label and column.type == "string" and column.distinct == 2:
        # Events of an application are judged by it: each of the two answers counts, a misspelt one is refused.
        further_keys["allowed"] = json.dumps(sorted(map(str, column.values.drop_nulls().unique())))
    yield "    - " + _column_declaration(
        column, draft.name_of(column), further_keys, reason or _column_comment(column, draft)
    )


def _column_comment(column: ColumnProfile, draft: SpecDraft) -> str:
    files = draft.log.lacking.get(column.source, 0)
    lacking = f"null in {files} of {len(draft.log.files)} files, which lack it" if files else ""
    return "; ".join(part for part in (column.note, column.comment, lacking, draft.comments.get(column.source)) if part)


def _column_declaration(column: ColumnProfile, name: str, further_keys: dict[str, str], comment: str) -> str:
    parts: dict[str, str] = {"name": name}
    if column.source != name:
        parts["source"] = _yaml_text(column.source)
    parts["type"] = column.type
    if column.type == "tags":
        parts |= {"tag_type": "integer"} if column.tag_type == "integer" else {}
    if column.type in ("tags", "vector") and column.separator != ",":
        parts["separator"] = json.dumps(column.separator)
    if column.decimal_comma:
        parts["decimal_comma"] = "true"
    if column.date_format is not None:
        parts["format"] = json.dumps(column.date_format)
    declaration = ", ".join(f"{key}: {value}" for key, value in {**parts, **further_keys}.items())
    return f"{{{declaration}}}" + (f"   # {comment}" if comment else "")


def _clock_lines(draft: SpecDraft) -> Iterator[str]:
    if draft.clock is None:
        yield "  clock: {kind: row_order}   # no column holds times; the rows must be in time order"
        return
    clock = draft.log.column(draft.clock).clock
    assert clock is not None
    place = draft.clock
    if not draft.log.form.header:
        place = str([column.source for column in draft.log.columns].index(draft.clock))
    parts = [f"column: {json.dumps(place) if not _PLAIN_TEXT.match(place) else place}"]
    parts.append(f"unit: {clock.unit}" if clock.unit is not None else f"format: {json.dumps(clock.format)}")
    first = draft.day_rows[0][0]
    parts += [f"earliest: {first}"] if first.year < 2000 else []
    yield "  # Days begin at midnight UTC; set `timezone` where they do not."
    yield f"  clock: {{kind: column, {', '.join(parts)}}}"


def _side_table_lines(side: SideTableDraft, draft: SpecDraft) -> Iterator[str]:
    table = side.table
    coverage = "" if side.coverage >= 0.6 else f", min_coverage: {floor(side.coverage * 900) / 1_000:g}"
    yield f"    # {side.coverage:.0%} of the rows looked at find their {side.key}."
    yield f"    - name: {side.name}"
    yield f"      path: {_yaml_text(table.path)}"
    yield from (f"      {option}" for option in _reading_options(table))
    key = next(draft.name_of(column, side) for column in table.columns if column.source == side.key)
    yield f"      key: {key}"
    if coverage:
        yield f"      {coverage.removeprefix(', ')}"
    yield "      columns:"
    for column in table.columns:
        comment = column.note or column.comment or (_TEXT_COMMENT if _is_free_text(column) else "")
        yield "        - " + _column_declaration(column, draft.name_of(column, side), {}, comment)


def _is_free_text(column: ColumnProfile) -> bool:
    """Whether a column holds texts of several words, hardly one of them twice."""
    if column.type != "string" or column.distinct * 2 < column.rows - column.nulls:
        return False
    return float(column.values.drop_nulls().str.count_matches(r"\S+").mean() or 0) >= _MIN_WORDS  # type: ignore[arg-type]


def _retrieval_lines(draft: SpecDraft) -> Iterator[str]:
    """Offer candidates: the items of a table, or of the log with their newest values there."""
    if draft.user is None or draft.item is None:
        return
    tables = [side for side in draft.sides if side.key == draft.item]
    listing = f"'{tables[0].name}' lists" if tables else "The log names"
    items = max([side.table.rows.height for side in tables] or [draft.log.column(draft.item).distinct])
    yield f"# {listing} the items, so that requests can be answered with items, not only with scores"
    yield "# (docs/retrieval.md). Such a release has gates of its own. Remove the first # of each line:"
    yield "# retrieval:"
    candidates = max(1, min(200, items // 2))
    yield f"#   candidates: {candidates}"
    columns = [column for column in draft.feature_columns if column.type in _CONTEXT_TYPES]
    of_items = [column for column in columns if column.source in draft.item_columns and column.type != "date"]
    of_requests = [column for column in columns if column.source not in draft.item_columns]
    for key, key_columns, comment in (
        ("context", of_requests, "one value for all items of a request, which sends it"),
        ("item_columns", of_items, "the item's: each candidate has its newest value in the log"),
    ):
        if key_columns:
            names = ", ".join(draft.name_of(column) for column in key_columns)
            yield from _offered_lines(f"{key}: [{names}]", comment)
    yield "#   sources:"
    yield "#     popular: {kind: popular, window_days: 7}"
    if draft.clock is not None:
        dates = [column.name for side in tables for column in side.table.columns if column.type == "date"]
        column = f", column: {dates[0]}" if len(dates) == 1 else ""
        yield f"#     new: {{kind: newest{column}, min_items: {min(20, candidates // 10)}}}"
    yield "#     together: {kind: co_visitation}"
    if draft.has_slates:
        yield "# Leave out the features of kind slate, and '*_slate_*' of the models: they compare the few rows that"
        yield "# were shown."
    yield ""


def _offered_lines(text: str, comment: str) -> Iterator[str]:
    wrapped = textwrap.wrap(text, _LINE_WIDTH, subsequent_indent=" " * 4, break_long_words=False)
    yield from (f"#   {line}" for line in wrapped[:-1])
    yield f"#   {wrapped[-1]}   # {comment}"


def _rule_lines(draft: SpecDraft) -> Iterator[str]:
    if not draft.rules:
        return
    yield "  rules:"
    for rule, (value, reason) in draft.rules.items():
        yield f"    {rule}: {value}   # {reason}"


def _model_lines(patterns: list[str]) -> Iterator[str]:
    text = (project_root() / "models" / "first_spec.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    yield from "\n".join(lines).replace("%FEATURES%", json.dumps(patterns)).splitlines()
    yield ""


def _gate_lines(draft: SpecDraft) -> Iterator[str]:
    """Give limits that a test set of this size can hold: a small one makes every figure uncertain."""
    rows = draft.test_rows
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


class _FeatureComposer:
    """The features that the columns allow."""

    def __init__(self, draft: SpecDraft) -> None:
        self._draft = draft
        self.patterns: list[str] = []
        """Which of them trees read."""

    def lines(self) -> Iterator[str]:
        """Give the section."""
        yield "features:"
        young_share = self._draft.young_share
        if young_share >= _MIN_YOUNG_SHARE and self._has_hours():
            yield f"  # {young_share:.0%} of the rows have items of the last day, unknown to statistics of whole days."
            yield "  # Refresh the features of servers as often: schedule.refresh, or shortlist refresh."
            yield "  tile: 1h"
        yield "  columns:"
        yield from (f"    {line}" for line in self._feature_lines())
        yield ""

    def _feature_lines(self) -> Iterator[str]:
        draft = self._draft
        features = list(self._feature_columns())
        days = [day for day, _ in draft.day_rows]
        if draft.clock is not None and self._has_hours():
            yield from self._add("hour_*", "{kind: cyclic, period: day, name: hour}")
            if len(days) >= 14:
                yield from self._add("weekday_*", "{kind: cyclic, period: week, name: weekday}")
        yield from self._key_features()
        categories = [(name, column) for name, column in features if _is_category(column)]
        histories = {column.source for column in self._histories()}
        for name, column in categories:
            # Of a few values, trees read the codes below; each rate is a view that Feast has to store.
            if column.source in histories or column.distinct <= _MAX_CODES_WITHOUT_RATE:
                continue
            yield from self._add("*_rate", f"{{kind: target, key: {name}, name: {name}_rate}}")
        crossable = sorted((c for c in categories if c[1].distinct <= _MAX_CROSS_VALUES), key=lambda c: -c[1].distinct)
        yield from self._pair_rates(crossable)
        for column in self._histories():
            history_key = f"of: {self._name_of_side(column)}, name: {self._name_of_side(column)}_listed"
            yield from self._add("*_listed", f"{{kind: count, key: {self._item}, {history_key}}}")
        logs = [name for name, column in features if _is_number(column) and _is_long(column)]
        numbers = [name for name, column in features if _is_number(column) and not _is_long(column)]
        if logs:
            yield from self._add("*_log", f"{{kind: numeric, each: {_yaml_list(logs)}, suffix: log, log: true}}")
        if numbers:
            yield from self._add("*_number", f"{{kind: numeric, each: {_yaml_list(numbers)}}}")
        yield from self._offered_expression(logs, numbers, [name for name, _ in crossable])
        yield from self._slate_features(features)
        dates = [name for name, column in features if column.type == "date"]
        if dates:
            yield from self._add("*_age", f"{{kind: age, each: {_yaml_list(dates)}}}")
        codes = [name for name, column in crossable if column.type != "tags"]
        if codes:
            yield from self._add(
                "*_code", f"{{kind: vocabulary, each: {_yaml_list(codes)}, suffix: code, min_rows: 20}}"
            )
        if keys := [name for name in (self._user, self._item) if name is not None]:
            yield "# Ids for a network; rarer values share id 0."
            yield f"- {{kind: vocabulary, each: {_yaml_list(keys)}, min_rows: 20}}"

    def _key_features(self) -> Iterator[str]:
        """Give the statistics of users and items."""
        if self._skipped:
            yield "# What a user did yesterday moves all scores of today, and tells no two items apart (skip_days)."
        for key in filter(None, (self._user, self._item)):
            skipped = self._skipped if key == self._user else ""
            yield from self._add("*_rate", f"{{kind: target, key: {key}, name: {key}_rate, prior: 10{skipped}}}")
            yield from self._add("*_seen", f"{{kind: count, key: {key}, name: {key}_seen}}")
            yield from self._add("*_away", f"{{kind: time_since, key: {key}, name: {key}_away}}")

    def _pair_rates(self, crossable: list[tuple[str, ColumnProfile]]) -> Iterator[str]:
        """Give the rates of users and of items in the categories that they do not determine themselves."""
        draft = self._draft
        if draft.user is not None:
            determined = draft.determined_columns(draft.user)
            names = [name for name, column in crossable if column.source not in determined]
            for name in names[:_MAX_USER_CROSSES]:
                yield from self._pair_rate(self._user, name, f"prior: 5{self._skipped}")
        if draft.item is not None:
            determined = draft.determined_columns(draft.item)
            max_values = draft.total_rows / draft.log.column(draft.item).distinct / _MIN_ITEM_CROSS_ROWS
            names = [
                name
                for name, column in crossable
                if column.source not in determined and column.type != "tags" and column.distinct <= max_values
            ]
            for name in names[:_MAX_ITEM_CROSSES]:
                yield from self._pair_rate(self._item, name, "prior: 10")

    def _pair_rate(self, key: str | None, category: str, smoothing: str) -> Iterator[str]:
        pair = f"key: [{key}, {category}], name: {key}_{category}_rate, prior_key: {key}"
        yield from self._add("*_rate", f"{{kind: target, {pair}, {smoothing}}}")

    @property
    def _skipped(self) -> str:
        return ", skip_days: 1" if self._draft.user_returns else ""

    def _slate_features(self, features: list[tuple[str, ColumnProfile]]) -> Iterator[str]:
        """Compare the rows of a request: the item's rate, and numbers of the request's own columns."""
        draft = self._draft
        if not draft.has_slates:
            return
        if self._item is not None:
            yield from self._add("*_slate_*", f"{{kind: slate, feature: {self._item}_rate}}")
        own_columns = {column.source for column in draft.columns}
        numbers = [name for name, column in features if _is_number(column) and column.source in own_columns]
        for name in numbers[:_MAX_SLATE_NUMBERS]:
            yield from self._add("*_slate_*", f"{{kind: slate, column: {name}}}")

    def _offered_expression(self, logs: list[str], numbers: list[str], categories: list[str]) -> Iterator[str]:
        """Offer a number beside its mean in a category, under a name that trees read."""
        if not categories or not (logs or numbers):
            return
        number, category = (logs or numbers)[0], categories[0]
        ratio = f"{number} / AVG({number}) OVER (PARTITION BY {category})"
        suffix, value = ("log", f"LN({ratio})") if logs else ("number", ratio)
        yield "# What is a high value depends on the others of its kind (docs/features-of-your-own.md). Remove the #:"
        yield f"# - {{kind: expression, name: {number}_in_{category}_{suffix}, value: {value}}}"

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
        if draft.is_paired:
            return SHOWN_ITEM
        return draft.name_of(draft.log.column(draft.item)) if draft.item is not None else None

    def _feature_columns(self) -> Iterator[tuple[str, ColumnProfile]]:
        """Give the columns that may become features, by their declared names."""
        draft = self._draft
        for column in draft.feature_columns:
            yield draft.name_of(column), column
        for side in draft.sides:
            for column in side.table.columns:
                if column.source != side.key and column.is_usable:
                    yield draft.name_of(column, side), column

    def _histories(self) -> list[ColumnProfile]:
        """Return the lists of items that a table of users holds."""
        draft = self._draft
        if draft.user is None or draft.item is None:
            return []
        item = draft.log.column(draft.item)
        lists = [column for side in draft.sides if side.key == draft.user for column in side.table.columns]
        lists = [column for column in lists if column.type == "tags" and column.tag_type == item.type]
        return [column for column in lists if _holds_items(column, item)]

    def _name_of_side(self, column: ColumnProfile) -> str:
        draft = self._draft
        return next(draft.name_of(column, side) for side in draft.sides if column in side.table.columns)

    def _has_hours(self) -> bool:
        draft = self._draft
        clock = draft.log.column(draft.clock or "").clock
        if clock is None or draft.log.rows[draft.clock or ""].dtype == pl.Date:
            return False
        return clock.format is None or "%H" in clock.format or "%I" in clock.format


def _is_category(column: ColumnProfile) -> bool:
    if column.type in ("string", "tags"):
        return column.distinct <= _MAX_CATEGORY_VALUES and (
            column.type == "tags" or column.rows_per_value >= 3 or column.distinct <= 50
        )
    is_id = re.search(r"id$|code$|type$|category", column.name) is not None
    return column.type == "integer" and column.clock is None and (is_id or column.distinct <= 30)


def _is_number(column: ColumnProfile) -> bool:
    if column.type == "integer":
        return column.clock is None and not _is_category(column)
    return column.type == "number"


def _is_long(column: ColumnProfile) -> bool:
    """Whether a number has a long upper tail, which a logarithm shortens."""
    values = column.values.drop_nulls()
    return bool((values >= 0).all()) and bool((values > _LOG_THRESHOLD).any())


def _holds_items(column: ColumnProfile, item: ColumnProfile) -> bool:
    list_values = column.values.head(1_000).explode().drop_nulls()
    is_item = list_values.cast(item.values.dtype, strict=False).is_in(item.values.drop_nulls().unique().implode())
    return len(list_values) > 0 and int(is_item.sum()) * 4 > len(list_values)


def _null_texts(columns: tuple[ColumnProfile, ...]) -> list[str]:
    return sorted({text for column in columns for text in column.null_texts})


def _yaml_number(value: object) -> str:
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _yaml_list(names: list[str]) -> str:
    text = f"[{', '.join(names)}]"
    return textwrap.fill(text, _LINE_WIDTH, subsequent_indent=" " * 8, break_long_words=False)


def _yaml_text(value: str) -> str:
    return value if _PLAIN_TEXT.match(value) and value.lower() not in _YAML_WORDS else json.dumps(value)

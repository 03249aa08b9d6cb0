"""Which rows count in the open tiles: nobody contributes more than a share of a tile, or of a value in it.

The rule is that of collected rows (`data.live.max_share`), decided once, when a row is answered, for all servers and
for training. Nobody is cut below some typical contributions, here those of the last tiles.

A row is contributed by its user where the sender vouches for its users, and else by its sender.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from shortlist.features.live.open_events import AnsweredRequest, Key, OpenRequest, StreamingPlan
from shortlist.spec.data import TYPICAL_CONTRIBUTIONS, TYPICAL_CONTRIBUTIONS_TO_ITEM
from shortlist.system.sender_networks import sender_network

_SENDER, _USER = "s", "u"
_UNNAMED_USERS: Final = "n"
"""The contributor of rows of servers that vouch for users without a name, which are not limited."""
_LONGEST_NAME: Final = 24
"""Longest user whose name is kept; of others, a hash."""
_ALL: Final = ""
"""The contributor under which all rows of a value are counted, and the value of a tile as a whole."""
_MAX_SAMPLE: Final = 2_000
"""Most contributions of a tile that are read for its typical one."""
_NO_LIMIT: Final = float("inf")
_MAX_RECENT: Final = 1_000
"""Most contributors to the last tiles whose median is the typical contribution."""
_MIN_RECENT: Final = 20
"""With fewer contributors, those of the present tile are among them."""
_GROWTH: Final = 1.25
"""The limits are taken again when so many times as many rows, or contributors, are counted."""
_CONTRIBUTION_BYTES: Final = 120
"""Approximate memory of a contribution, with a part of that of its value."""
_PART_OF_MEMORY: Final = 8
"""Contributions take one of so many parts of the memory of the counts."""


def name_sender(sender: str | None) -> str:
    """Return the contributor of a sender that vouches for nobody.

    >>> name_sender("192.0.2.7"), name_sender("2001:db8::7"), name_sender(None)
    ('s192.0.2.7', 's2001:db8::/48', 's')
    """
    return _SENDER + sender_network(sender)


def name_user(user: Any) -> str | None:
    """Return the contributor of a user that its sender vouches for; None without one.

    >>> name_user(17), name_user(None)
    ('u17', None)
    """
    if user is None:
        return None
    name = str(user)
    if len(name) <= _LONGEST_NAME and name.isascii():
        return _USER + name
    return _USER + hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=12).hexdigest()


Contributions = dict[Key, dict[str, int]]
"""By value of a key: rows of each contributor, and under `_ALL` those of all."""


def describe_contributor(name: str) -> tuple[str, str]:
    """Return whether a contributor is a user or a sender, and the name.

    >>> describe_contributor("u17")
    ('user', '17')
    """
    return "sender" if name[0] == _SENDER else "user", name[1:]


@dataclass
class TileShares:
    """The counted rows of a tile, by who contributed them."""

    groups: list[Contributions]
    """To the values of each limited key, then to the tile as a whole, which is one value."""
    users: int = 0
    """Rows of named users."""
    senders: int = 0
    """Rows of senders that vouch for nobody."""
    is_sampled: bool = False
    """Whether its contributions are among the recent ones."""
    sizes: list[int] = field(default_factory=list)
    """Number of contributions in each group."""

    @classmethod
    def empty(cls, keys: int) -> TileShares:
        """Return no contributions, to the values of some keys."""
        return cls([*({} for _ in range(keys)), {_ALL: {_ALL: 0}}], sizes=[*[0] * keys, 1])

    @property
    def whole(self) -> dict[str, int]:
        """Contributions to the tile as a whole."""
        return self.groups[-1][_ALL]

    @property
    def rows(self) -> int:
        """All counted rows."""
        return self.whole[_ALL]

    def shallow_copy(self) -> TileShares:
        """Return a copy; the contributions to each value still change with these."""
        groups = [group.copy() for group in self.groups]
        return TileShares(groups, self.users, self.senders, self.is_sampled, self.sizes.copy())

    def deep_copy(self) -> TileShares:
        """Return contributions that do not change with these."""
        groups = [{value: counts.copy() for value, counts in group.items()} for group in self.groups]
        sizes = [sum(map(len, group.values())) for group in groups]
        return TileShares(groups, self.users, self.senders, self.is_sampled, sizes)

    def withdraw(self, place: int, value: Key, name: str) -> None:
        """Remove a row of a contributor from a value of a group."""
        counts = self.groups[place][value]
        for counted in (name, _ALL):
            counts[counted] -= 1
        if not counts[name]:
            del counts[name]
            self.sizes[place] -= 1
        if not counts[_ALL]:
            del self.groups[place][value]
            self.sizes[place] -= 1

    def sample(self) -> list[list[int]]:
        """Return contributions to a value of each limited key, then to the tile, one of each contributor.

        They are those of users that others vouch for, where there are any: a sender can invent users, and an address
        has many.
        """
        kind = _USER if self.users else _SENDER
        by_group = (chain.from_iterable(map(dict.items, group.values())) for group in self.groups)
        return [_first_contributions(counts, kind) for counts in by_group]


class _Limits(NamedTuple):
    """The contributions below which nobody is cut, by group, and when they were taken."""

    of_users: tuple[float, ...]
    of_senders: tuple[float, ...]
    rows_before: int
    """Rows of the tile before."""
    rows: int
    """Rows of the tile when they were taken."""
    contributors: int


@dataclass(frozen=True)
class SharesState:
    """A snapshot of `OpenShares`."""

    tiles: Mapping[int, TileShares] = field(default_factory=dict)
    recent: Sequence[Sequence[int]] = ()
    rows_before: int = 0
    first_contributor: str | None = None
    """Whose rows were the first."""
    has_several_contributors: bool = False


class OpenShares:
    """Decides which rows count, and keeps who contributed those that do.

    Whoever has been alone so far is not limited: nobody else's counts are moved.

    The memory is bounded. Where contributions need more, those to one value after another are lowered by their median,
    and forgotten at 0: a contribution may then exceed its share, but nobody is cut who is within it.

    Args:
        streaming: The counted keys; the values of those with the user's column are the user's own, and not limited.
    """

    def __init__(self, streaming: StreamingPlan) -> None:
        self._streaming = streaming
        self._share = streaming.max_share
        self._keys = [key for key in streaming.keys if streaming.user not in key]
        of_item = (streaming.item in key for key in self._keys)
        self._multiples = [
            TYPICAL_CONTRIBUTIONS_TO_ITEM if is_of_item else TYPICAL_CONTRIBUTIONS for is_of_item in (*of_item, False)
        ]
        self._tiles: dict[int, TileShares] = {}
        self._limits: dict[int, _Limits] = {}
        self._recent: list[list[int]] = [[] for _ in range(1 + len(self._keys))]
        self._typical = [*map(_lower_median, self._recent)]
        self._bounds = (0, 0)
        self._rows_before = 0
        self._unchecked = 0
        self._first_contributor: str | None = None
        self._has_several_contributors = False
        self.max_bytes = 0 if self._share == 1 else streaming.max_count_bytes // _PART_OF_MEMORY
        """Most memory of the contributions."""

    def state(self) -> SharesState:
        """Return the state, fast enough that requests can wait for it: contributions to each value are not copied."""
        tiles = {start: tile.shallow_copy() for start, tile in self._tiles.items()}
        return SharesState(
            tiles, [*self._recent], self._rows_before, self._first_contributor, self._has_several_contributors
        )

    def restore(self, state: SharesState) -> None:
        """Restore the state of another instance with the same plan."""
        self._tiles, self._limits = {start: tile.deep_copy() for start, tile in state.tiles.items()}, {}
        self._recent = [list(contributions) for contributions in state.recent] or self._recent
        self._typical = [*map(_lower_median, self._recent)]
        self._rows_before, self._first_contributor = state.rows_before, state.first_contributor
        self._has_several_contributors = state.has_several_contributors

    def admit(self, request: AnsweredRequest, open_since: int) -> list[int]:
        """Return the rows beyond a share, which do not count, and add all others to the contributions.

        Args:
            request: The request.
            open_since: The moment from which rows are counted.

        Returns:
            Numbers of rows.
        """
        return self._count(request, range(request.rows), open_since, is_decided=False)

    def add(self, request: AnsweredRequest, open_since: int) -> None:
        """Add the rows of a request that count to the contributions: another server decided which do."""
        uncounted = set(request.uncounted)
        rows = [row for row in range(request.rows) if row not in uncounted] if uncounted else range(request.rows)
        self._count(request, rows, open_since, is_decided=True)

    def close_tiles(self, open_since: int) -> None:
        """Remove the tiles that start before a moment."""
        for start in sorted(start for start in self._tiles if start < open_since):
            self._sample(start)
            self._rows_before = self._tiles.pop(start).rows
            self._limits.pop(start, None)

    def _count(self, request: AnsweredRequest, rows: Sequence[int], open_since: int, *, is_decided: bool) -> list[int]:
        if self._share == 1 or not rows:
            return []
        self._note_names(request.contributors)
        is_limited, keyed, beyond = self._has_several_contributors and not is_decided, OpenRequest(request), list[int]()
        for (start, name), rows_of_name in self._by_contributor(request, rows, open_since).items():
            tile = self._tile(start)
            limits = self._current_limits(start, tile)
            floors = limits.of_senders if name[0] == _SENDER else limits.of_users
            if not is_limited or name == _UNNAMED_USERS:
                floors = (_NO_LIMIT,) * len(floors)
            columns = [*(keyed.key_values(key, rows_of_name) for key in self._keys), [_ALL] * len(rows_of_name)]
            refused = self._add(tile, name, columns, floors, limits.rows_before)
            tile.senders += (name[0] == _SENDER) * (len(rows_of_name) - len(refused))
            tile.users += (name[0] == _USER) * (len(rows_of_name) - len(refused))
            beyond += [rows_of_name[place] for place in refused]
        self._unchecked += 2 * len(rows) * len(self._recent)
        self._limit_memory()
        return sorted(beyond)

    def _by_contributor(
        self, request: AnsweredRequest, rows: Sequence[int], open_since: int
    ) -> Mapping[tuple[int, str], Sequence[int]]:
        """Return the rows that can count by the start of their tile and their contributor."""
        names, times = request.contributors or (None,), request.times
        first, latest = max(0, open_since), request.answered + self._streaming.clock_skew_us
        if len(names) == len(times) == 1:
            return {(self._start(times[0]), names[0] or _UNNAMED_USERS): rows} if first <= times[0] <= latest else {}
        by_contributor: dict[tuple[int, str], list[int]] = {}
        for row in rows:
            time, name = times[row if len(times) > 1 else 0], names[row if len(names) > 1 else 0]
            if first <= time <= latest:
                by_contributor.setdefault((self._start(time), name or _UNNAMED_USERS), []).append(row)
        return by_contributor

    def _start(self, time: int) -> int:
        if not self._bounds[0] <= time < self._bounds[1]:
            self._bounds = self._streaming.tiles.tile_bounds(time)
        return self._bounds[0]

    def _add(
        self, tile: TileShares, name: str, columns: Sequence[Sequence[Key | None]], floors: Sequence[float],
        rows_before: int,
    ) -> set[int]:  # fmt: skip
        """Add rows of a contributor as far as they are within its shares; return the places of the others."""
        share, refused = self._share, set[int]()
        for place, (group, values, floor) in enumerate(zip(tile.groups, columns, floors, strict=True)):
            least_total = rows_before if place == len(columns) - 1 else 0
            contributions = 0
            for row, value in enumerate(values):
                if value is None or row in refused:
                    continue
                counts = group.get(value)
                if counts is None:
                    group[value] = {_ALL: 1, name: 1}
                    contributions += 2
                    continue
                rows = counts.get(name, 0) + 1
                if rows > floor and rows > share * max(counts[_ALL] + 1, least_total):
                    refused.add(row)
                    for previous_place, previous_values in enumerate(columns[:place]):
                        if previous_values and (previous_value := previous_values[row]) is not None:
                            tile.withdraw(previous_place, previous_value, name)
                    continue
                contributions += rows == 1
                counts[name] = rows
                counts[_ALL] += 1
            tile.sizes[place] += contributions
        return refused

    def _note_names(self, names: Sequence[str | None]) -> None:
        for name in () if self._has_several_contributors else {name or _UNNAMED_USERS for name in names or (None,)}:
            if self._first_contributor is None:
                self._first_contributor = name
            self._has_several_contributors = self._has_several_contributors or self._first_contributor != name

    def _tile(self, start: int) -> TileShares:
        if start not in self._tiles:
            for tile_start in sorted(self._tiles):
                if tile_start < start:
                    self._sample(tile_start)
            self._tiles[start] = TileShares.empty(len(self._keys))
        return self._tiles[start]

    def _sample(self, start: int) -> None:
        """Add the contributions to a tile to the recent ones."""
        tile = self._tiles[start]
        if not tile.is_sampled:
            sampled = zip(self._recent, tile.sample(), strict=True)
            self._recent = [[*recent, *contributions][-_MAX_RECENT:] for recent, contributions in sampled]
            tile.is_sampled = True
            self._typical = [*map(_lower_median, self._recent)]

    def _current_limits(self, start: int, tile: TileShares) -> _Limits:
        limits = self._limits.get(start)
        if limits is None or tile.rows > _GROWTH * limits.rows or len(tile.whole) > _GROWTH * limits.contributors:
            limits = self._limits[start] = self._take_limits(start, tile)
        return limits

    def _take_limits(self, start: int, tile: TileShares) -> _Limits:
        previous_start = max((tile_start for tile_start in self._tiles if tile_start < start), default=None)
        rows_before = self._rows_before if previous_start is None else self._tiles[previous_start].rows
        typical = self._typical
        if len(self._recent[-1]) < _MIN_RECENT:
            sampled = zip(self._recent, tile.sample(), strict=True)
            typical = [_lower_median([*recent, *contributions]) for recent, contributions in sampled]
        floors = [multiple * rows for multiple, rows in zip(self._multiples, typical, strict=True)]
        # Whoever contributes more than most, who have no name, or than a server that vouches, is not the typical one.
        of_users = floors if 2 * tile.users >= tile.rows - tile.senders else typical
        of_senders = floors if tile.senders == tile.rows else typical
        return _Limits(tuple(of_users), tuple(of_senders), rows_before, tile.rows, len(tile.whole))

    def _limit_memory(self) -> None:
        if _CONTRIBUTION_BYTES * self._unchecked <= self.max_bytes // 16:
            return
        self._unchecked = 0
        while _CONTRIBUTION_BYTES * sum(sum(tile.sizes) for tile in self._tiles.values()) > self.max_bytes:
            tile = max(self._tiles.values(), key=lambda tile: sum(tile.sizes))
            place = tile.sizes.index(max(tile.sizes))
            group = tile.groups[place]
            value = next(iter(group))
            counts = group.pop(value)
            tile.sizes[place] -= len(counts)
            total = counts.pop(_ALL)
            cut = _lower_median([*counts.values()])
            lowered = {name: rows - cut for name, rows in counts.items() if rows > cut}
            if lowered or place == len(tile.groups) - 1:
                group[value] = {_ALL: total, **lowered}  # behind all others
                tile.sizes[place] += 1 + len(lowered)


def _first_contributions(counts: Iterable[tuple[str, int]], kind: str) -> list[int]:
    """Return the first contribution of each contributor of a kind."""
    first: dict[str, int] = {}
    for name, rows in islice(counts, _MAX_SAMPLE):
        if name[:1] == kind:
            first.setdefault(name, rows)
    return list(first.values())


def _lower_median(numbers: Sequence[int]) -> int:
    return sorted(numbers)[(len(numbers) - 1) // 2] if numbers else 1

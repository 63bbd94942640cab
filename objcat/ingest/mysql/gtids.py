"""Positions of a binlog by global transaction ids, of MariaDB and of MySQL.

A position says which transactions come before it. MariaDB: for each domain the newest one, `0-1-100,7-2-5`.
MySQL: for each server a set of ranges, `uuid:1-100:105,uuid:1-7`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from objcat.errors import SourceUnfit


@dataclass(frozen=True, slots=True)
class MariaDbGtids:
    """A position of MariaDB. newest: by domain, the server and the number of the newest transaction."""

    newest: Mapping[int, tuple[int, int]]

    @classmethod
    def parse(cls, text: str) -> MariaDbGtids:
        """From text such as `0-1-100`. Raises ValueError."""
        found = {}
        for part in filter(None, (one.strip() for one in text.split(","))):
            domain, server, number = (int(one) for one in part.split("-"))
            found[domain] = (server, number)
        return cls(found)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.newest.items()))

    def has(self, gtid: str) -> bool:
        """Whether a transaction comes before this position."""
        ((domain, (_, number)),) = MariaDbGtids.parse(gtid).newest.items()
        return domain in self.newest and number <= self.newest[domain][1]

    def contains(self, other: MariaDbGtids) -> bool:
        """Whether all that comes before `other` comes before this."""
        return all(domain in self.newest and number <= self.newest[domain][1] for domain, (_, number) in other.newest.items())

    def after(self, gtid: str) -> MariaDbGtids:
        """The position after one more transaction.

        Raises:
            SourceUnfit: its number is not above the one before it in its domain, so numbers do not say what comes first.
        """
        ((domain, (server, number)),) = MariaDbGtids.parse(gtid).newest.items()
        before = self.newest.get(domain)
        if before is not None and number <= before[1]:
            raise SourceUnfit(
                f"The binlog has the transaction {gtid} after {domain}-{before[0]}-{before[1]}, so its numbers do not ascend. Set "
                "gtid_strict_mode=ON at the server, and write to one server in each domain. Then read all tables again."
            )
        return MariaDbGtids({**self.newest, domain: (server, number)})


@dataclass(frozen=True, slots=True)
class MysqlGtids:
    """A position of MySQL. ranges: by server (and tag), ascending ranges with both ends."""

    ranges: Mapping[str, tuple[tuple[int, int], ...]]

    @classmethod
    def parse(cls, text: str) -> MysqlGtids:
        """From text such as `3e11fa47-71ca-11e1-9e33-c80aa9429562:1-100:105`. Raises ValueError."""
        found: dict[str, list[tuple[int, int]]] = {}
        for part in filter(None, ("".join(one.split()) for one in text.split(","))):
            server, *rest = part.lower().split(":")
            name = server
            for one in rest:
                if not one[:1].isdigit():
                    name = f"{server}:{one}"  # A tag of MySQL 8.3 or later: what follows belongs to it.
                    continue
                first, _, last = one.partition("-")
                found.setdefault(name, []).append((int(first), int(last or first)))
        return cls({name: _merged(ranges) for name, ranges in found.items()})

    def __str__(self) -> str:
        def text(first: int, last: int) -> str:
            return str(first) if first == last else f"{first}-{last}"

        return ",".join(f"{name}:{':'.join(text(*one) for one in ranges)}" for name, ranges in sorted(self.ranges.items()))

    def has(self, gtid: str) -> bool:
        """Whether a transaction comes before this position."""
        name, _, number = gtid.lower().rpartition(":")
        return any(first <= int(number) <= last for first, last in self.ranges.get(name, ()))

    def contains(self, other: MysqlGtids) -> bool:
        """Whether all that comes before `other` comes before this."""
        return all(
            any(first <= low and high <= last for first, last in self.ranges.get(name, ()))
            for name, ranges in other.ranges.items()
            for low, high in ranges
        )

    def after(self, gtid: str) -> MysqlGtids:
        """The position after one more transaction."""
        name, _, number = gtid.lower().rpartition(":")
        ranges = [*self.ranges.get(name, ()), (int(number), int(number))]
        return MysqlGtids({**self.ranges, name: _merged(ranges)})


Gtids = MariaDbGtids | MysqlGtids
_FORMS: Mapping[type[MariaDbGtids | MysqlGtids], re.Pattern[str]] = {
    MariaDbGtids: re.compile(r"\d+-\d+-\d+(,\s*\d+-\d+-\d+)*"),
    MysqlGtids: re.compile(r"[0-9A-Fa-f-]{36}(:\w[\w-]*)+(,\s*[0-9A-Fa-f-]{36}(:\w[\w-]*)+)*"),
}


def newest_marks(marks: Sequence[str]) -> list[str]:
    """Of transactions of MariaDB, the newest one of each domain."""
    newest: dict[str, str] = {}
    for mark in marks:
        domain = mark.split("-", 1)[0]
        if domain not in newest or int(mark.rpartition("-")[2]) > int(newest[domain].rpartition("-")[2]):
            newest[domain] = mark
    return list(newest.values())


def next_position(stored: str, text: str) -> str:
    """A position as it is written here. Raises ValueError where it is none, or does not come after the one that is stored."""
    kind = next((kind for kind, form in _FORMS.items() if form.fullmatch(text.strip())), None)
    said = "a position is transaction ids, such as 0-1-100 of MariaDB or UUID:1-100 of MySQL"
    if kind is None:
        raise ValueError(said)
    if stored and not _FORMS[kind].fullmatch(stored):
        raise ValueError("it has not the form of this server's transaction ids")
    before = kind.parse(stored)
    try:
        wanted = kind.parse(text)
    except ValueError:
        raise ValueError(said) from None  # Such as the range 1-x.
    if before.contains(wanted):  # type: ignore[arg-type] # both are of one kind
        raise ValueError("what ends there is in the lake")
    if not wanted.contains(before):  # type: ignore[arg-type]
        raise ValueError("it lacks transactions that are in the lake, so it is not the position after one that is to come")
    return str(wanted)


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    made: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(last, made[-1][1]))
        else:
            made.append((first, last))
    return tuple(made)

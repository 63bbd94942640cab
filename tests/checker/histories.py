"""Histories of transactions over versioned keys, and the serialization-graph checker that names what is wrong with them.

The direct serialization graph is that of Adya, "Weak Consistency: A Generalized Theory and Optimistic Implementations for Distributed
Transactions" (1999). Usually the order of versions must be guessed from what was read. Here it is known: a table's log is dense, and the
slot of a commit *is* the place of its versions, so what the checker finds is an anomaly of the history and not of a guess.

Edges, from the transaction that must come first in any serial order:

    ww  installed the version of a key after which the other installed the next one
    wr  installed the version that the other read
    rw  read the version after which the other installed the next one
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import networkx as nx  # type: ignore[import-untyped]

Dependency = Literal["ww", "wr", "rw"]


class Kind(enum.Enum):
    """The anomalies, from those that the weakest isolation forbids to those that only serializability does."""

    GARBAGE_READ = "garbage read: a version that nobody wrote"
    G0 = "G0: a cycle of writes"
    G1A = "G1a: an aborted read"
    G1B = "G1b: an intermediate read"
    G1C = "G1c: circular information flow"
    LOST_UPDATE = "lost update: a key was written by a transaction that had read an older version of it than the last"
    G_SINGLE = "G-single: read skew, a cycle with one anti-dependency"
    G2 = "G2: write skew, a cycle with several anti-dependencies"


class Version(NamedTuple):
    """What one write left in a key. write: the number of the write among those of its transaction to that key, None for the last one."""

    txn: str
    write: int | None = None


INITIAL: None = None
"""The version of every key before the first write: the key is absent."""


class Write(NamedTuple):
    """A version of `key`, installed at `slot`."""

    key: str
    slot: int


class Read(NamedTuple):
    """A version of `key` that a transaction saw."""

    key: str
    version: Version | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction. committed: False when it was aborted: then its versions have no place in the order, whatever their slots say.

    writes: in the order in which it wrote. A transaction of one slot installs all of its versions there; one that was torn apart, or took
    effect twice, names several.
    """

    name: str
    committed: bool = True
    reads: Sequence[Read] = ()
    writes: Sequence[Write] = ()


def transaction(
    name: str, slot: int | None = None, *, reads: Mapping[str, str | None] | None = None, writes: Iterable[str] = ()
) -> Transaction:
    """A transaction in one slot; without a slot it was aborted if it wrote, and is a committed reader if it did not.

    reads: key -> the transaction whose last write of the key it saw, or INITIAL.
    """
    versions = tuple(Read(key, INITIAL if writer is None else Version(writer)) for key, writer in (reads or {}).items())
    keys = tuple(writes)
    return Transaction(name, slot is not None or not keys, versions, tuple(Write(key, -1 if slot is None else slot) for key in keys))


class InvalidHistory(ValueError):
    """A history that cannot be: a name twice, or one place of a key's order taken twice."""


@dataclass(frozen=True, slots=True)
class Edge:
    """`first` must come before `then`, because of `key`."""

    first: str
    then: str
    dependency: Dependency
    key: str

    def __str__(self) -> str:
        return f"{self.first} -{self.dependency}({self.key})-> {self.then}"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """kind, and what shows it: a cycle of edges, or the words for a read that no edge explains. told: one sentence."""

    kind: Kind
    cycle: Sequence[Edge] = ()
    words: str = ""

    @property
    def told(self) -> str:
        return f"{self.kind.value}: {self.words or ', '.join(map(str, self.cycle))}"


_WRITES: Sequence[Dependency] = ("ww",)
_FLOW: Sequence[Dependency] = ("ww", "wr")
_ALL: Sequence[Dependency] = ("ww", "wr", "rw")
_CYCLES: Mapping[Dependency, Sequence[tuple[Kind, Sequence[Dependency]]]] = {
    "ww": [(Kind.G0, _WRITES)],
    "wr": [(Kind.G1C, _FLOW)],
    "rw": [(Kind.G_SINGLE, _FLOW), (Kind.G2, _ALL)],
}
"""By the edge that closes a cycle: its names, the worst first, and the edges that the rest of it consists of."""


@dataclass(slots=True)
class _Order:
    """The committed last versions of every key, by slot."""

    keys: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def next_after(self, key: str, version: Version | None) -> str | None:
        """Who installed the version of a key that follows another one; None when that is the last."""
        installed = self.keys.get(key, [])
        if version is None:
            return installed[0][1] if installed else None
        names = [name for _, name in installed]
        place = names.index(version.txn) + 1
        return names[place] if place < len(names) else None


def find_anomalies(history: Sequence[Transaction]) -> list[Anomaly]:
    """All anomalies, the worst first; of cycles at least one of each kind in every knot of the graph. Empty: the history is serializable.

    Raises InvalidHistory.
    """
    by_name = {txn.name: txn for txn in history}
    if len(by_name) < len(history):
        raise InvalidHistory("two transactions have one name")
    order = _order_of(history)
    found, reads = _judge_reads(history, by_name)
    edges = [*_write_edges(order), *_read_edges(order, reads)]
    found.extend(_judge_cycles(edges, order))
    rank = list(Kind)
    return sorted(found, key=lambda anomaly: rank.index(anomaly.kind))


def _order_of(history: Sequence[Transaction]) -> _Order:
    order = _Order()
    for txn in history:
        if txn.committed:
            last = {write.key: write.slot for write in txn.writes}
            for key, slot in last.items():
                order.keys.setdefault(key, []).append((slot, txn.name))
    for key, installed in order.keys.items():
        installed.sort()
        if len({slot for slot, _ in installed}) < len(installed):
            raise InvalidHistory(f"two transactions installed a version of {key} at one slot: {installed}")
    return order


def _judge_reads(history: Sequence[Transaction], by_name: Mapping[str, Transaction]) -> tuple[list[Anomaly], list[tuple[str, Read]]]:
    """The reads of committed transactions that are wrong by themselves, and (reader, read) of those that make edges."""
    found: list[Anomaly] = []
    sound: list[tuple[str, Read]] = []
    for txn in history:
        for read in txn.reads if txn.committed else ():
            version = read.version
            if version is None:
                sound.append((txn.name, read))
                continue
            writer = by_name.get(version.txn)
            count = sum(write.key == read.key for write in writer.writes) if writer else 0
            what = f"{txn.name} read {read.key} as {version.txn} wrote it"
            if writer is None or (version.write if version.write is not None else 0) >= count:
                found.append(Anomaly(Kind.GARBAGE_READ, words=f"{what}, which it did not"))
            elif not writer.committed:
                found.append(Anomaly(Kind.G1A, words=f"{what}, and {version.txn} was aborted"))
            elif version.txn == txn.name:
                continue  # what a transaction reads of its own says nothing of others
            elif version.write is not None and version.write < count - 1:
                found.append(Anomaly(Kind.G1B, words=f"{what} before its last write of it"))
            else:
                sound.append((txn.name, read))
    return found, sound


def _write_edges(order: _Order) -> Iterable[Edge]:
    for key, installed in order.keys.items():
        for (_, first), (_, then) in pairwise(installed):
            yield Edge(first, then, "ww", key)


def _read_edges(order: _Order, reads: Sequence[tuple[str, Read]]) -> Iterable[Edge]:
    for reader, (key, version) in reads:
        if version is not None:
            yield Edge(version.txn, reader, "wr", key)
        after = order.next_after(key, version)
        if after is not None and after != reader:
            yield Edge(reader, after, "rw", key)


def _judge_cycles(edges: Sequence[Edge], order: _Order) -> list[Anomaly]:
    """One anomaly for every edge that closes a cycle, under the worst name that the cycle deserves, without repetitions."""
    knots = _knots(edges)
    inside = [edge for edge in edges if knots.get(edge.first, -1) == knots.get(edge.then, -2)]
    graphs = {kinds: _Paths(edge for edge in inside if edge.dependency in kinds) for kinds in (_WRITES, _FLOW, _ALL)}
    found: dict[tuple[Kind, frozenset[str]], Anomaly] = {}

    def add(kind: Kind, cycle: Sequence[Edge]) -> None:
        found.setdefault((kind, frozenset(edge.first for edge in cycle)), Anomaly(kind, cycle))

    for edge in inside:
        if edge.dependency == "rw" and _is_lost_update(edge, order):
            add(Kind.LOST_UPDATE, [edge, Edge(edge.then, edge.first, "ww", edge.key)])
            continue
        for kind, dependencies in _CYCLES[edge.dependency]:
            way_back = graphs[dependencies].between(edge.then, edge.first)
            if way_back is not None:
                add(kind, [edge, *way_back])
                break
    return list(found.values())


def _is_lost_update(edge: Edge, order: _Order) -> bool:
    """Whether the reader of an overwritten version wrote the key itself, later: what came between is lost."""
    places = {name: slot for slot, name in order.keys[edge.key]}
    return edge.first in places and places[edge.first] > places[edge.then]


def _knots(edges: Sequence[Edge]) -> dict[str, int]:
    """The number of the strongly connected component of every transaction that shares one with another."""
    graph = nx.DiGraph((edge.first, edge.then) for edge in edges)
    components = (component for component in nx.strongly_connected_components(graph) if len(component) > 1)
    return {name: number for number, component in enumerate(components) for name in component}


class _Paths:
    """Shortest ways along some of the edges."""

    def __init__(self, edges: Iterable[Edge]) -> None:
        self._graph = nx.DiGraph()
        for edge in edges:
            self._graph.add_edge(edge.first, edge.then, edge=edge)

    def between(self, first: str, then: str) -> list[Edge] | None:
        """The edges of a shortest way, None when there is none."""
        if first not in self._graph or then not in self._graph or not nx.has_path(self._graph, first, then):
            return None
        names = nx.shortest_path(self._graph, first, then)
        return [self._graph.edges[a, b]["edge"] for a, b in pairwise(names)]

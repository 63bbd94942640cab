"""Leads the sides through the chains of a suite: step by step, side after side. The order of the sides rotates with every turn."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.data import Data
from benchmarks.figures import Sample, WorkResult
from benchmarks.peers import SIDES, Peer
from benchmarks.remote import Remote, SideFailed, SideLacks, removed, written
from benchmarks.truth import Commit, Rows, Truth
from benchmarks.works import READS, WRITES, Chain, Layout, Step, encoded

Say = Callable[[str], None]


@dataclass(slots=True)
class _Turn:
    """One pass through a chain. names, places, applied: by side and layout. out: sides that take no further part, since their tables are
    not as the next steps need them."""

    number: int
    data: Data
    truth: Truth
    counted: bool
    names: dict[str, str] = field(default_factory=dict)
    places: dict[tuple[str, str], str] = field(default_factory=dict)
    applied: dict[tuple[str, str], list[Commit]] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)


WARM_S_MAX = 60.0
"""Calls of one query that do not count end after this, on all sides together."""


class Runner:
    """Runs chains.

    Args:
        sides: The running sides, by name.
        rounds: Of chains that start over, and of every query of the others.
        warm: A small data set, for a first round that does not count.
    """

    def __init__(self, sides: dict[str, Remote], data: Data, warm: Data | None, *, rounds: int, say: Say) -> None:
        self._sides = sides
        self._data = data
        self._warm = warm
        self._rounds = rounds
        self._say = say
        self._truths = {one.root: Truth(one) for one in (data, warm) if one}
        self._turns = 0

    def run(self, chain: Chain) -> list[WorkResult]:
        """The results of the chain's works. A side that fails is out of the chain, and its result says so."""
        results = {step.work: WorkResult(chain.name, step.work, chain.engine, step.goals) for step in chain.steps if step.work}
        rounds = self._rounds if chain.anew else 1
        if self._warm and chain.anew:
            self._pass(chain, self._turn(self._warm, 0, counted=False), results)
        for number in range(1, rounds + 1):
            self._pass(chain, self._turn(self._data, number, counted=True), results)
        return list(results.values())

    def _turn(self, data: Data, number: int, *, counted: bool) -> _Turn:
        return _Turn(number, data, self._truths[data.root], counted)

    def _pass(self, chain: Chain, turn: _Turn, results: dict[str, WorkResult]) -> None:
        self._turns += 1
        for layout in chain.layouts:
            turn.names[layout.name] = f"{layout.name}_{self._turns}"
        try:
            for step in chain.steps:
                for call, counted in self._calls(chain, step, turn):
                    for name in self._order(chain, step, turn, call):
                        self._say(f"{chain.name}: {step.work or step.op}, round {max(turn.number, call + 1)}, {name}")
                        self._one(chain, step, turn, name=name, counted=counted, results=results)
        finally:
            self._drop(chain, turn)

    def _calls(self, chain: Chain, step: Step, turn: _Turn) -> Iterator[tuple[int, bool]]:
        """The number of each call of a step, and whether it counts."""
        is_repeated = not chain.anew and step.op in READS
        number, began_s = 0, time.monotonic()
        while is_repeated and number < step.warm and time.monotonic() - began_s < WARM_S_MAX:
            yield number, False
            number += 1
        for call in range(number, number + max(step.repeats * self._rounds if is_repeated else 1, step.blocks)):
            yield call, turn.counted

    def _order(self, chain: Chain, step: Step, turn: _Turn, call: int) -> list[str]:
        """The sides of a step: those that it and its chain name, and that have its tables."""
        names = [
            name
            for name in self._sides
            if name not in turn.out
            and takes_part(SIDES[name], chain)
            and (not step.sides or name in step.sides)
            and (step.op == "load" or all((name, table) in turn.applied for table in step.tables))
        ]
        shift = (turn.number + call) % max(len(names), 1)
        return names[shift:] + names[:shift]

    def _one(self, chain: Chain, step: Step, turn: _Turn, *, name: str, counted: bool, results: dict[str, WorkResult]) -> None:
        """One step of one side. results: of the chain's works. What a step without a work finds wrong is wrong in all of them."""
        concerned = [results[step.work]] if step.work else list(results.values())
        try:
            sample, right, found = self._do(chain, step, turn, name)
        except SideLacks as reason:
            if step.op in (*WRITES, "cluster"):
                turn.out.add(name)
            for lacking in concerned:
                lacking.lacks.setdefault(name, str(reason))
            return
        except SideFailed as failure:
            turn.out.add(name)
            for broken in concerned:
                broken.wrong[name] = str(failure).partition("\n")[0]
            self._say(f"[red]{name} {failure}")
            return
        if found != right:
            why = f"has {_first_difference(found, right)} after {step.work or step.op} of {', '.join(step.tables)}"
            for wrong in concerned:
                wrong.wrong[name] = why
            self._say(f"[red]{chain.name}: {name} {why}")
        if counted and sample is not None and step.work:
            results[step.work].commits = step.batch == "small"
            results[step.work].samples.setdefault(name, []).append(sample)

    def _do(self, chain: Chain, step: Step, turn: _Turn, name: str) -> tuple[Sample | None, Rows, Rows]:
        """The sample, the right answer and the found one. The last two are equal where there is nothing to ask."""
        os.sync()  # Flush what other sides wrote, so that it does not disturb this measurement.
        side, layout = self._sides[name], chain.layout(step.tables[0])
        table, at = turn.names[layout.name], (name, layout.name)
        if step.op == "load":
            turn.places[at] = side.ask("create", table=table, layout=encoded(layout))["place"]
            turn.applied[at] = []
        if step.op not in READS and step.op != "digest":
            batches = (
                [turn.data.source(layout.source)] if step.op == "load" else _batches(turn.data, layout.source, step, name, turn.applied[at])
            )
            sample = self._write(side, turn, at, step, batches)
            if step.op in WRITES[1:]:
                turn.applied[at] += [Commit(step.op, batch) for batch in batches]
            if step.op in WRITES and any(one.back for one in chain.steps):
                side.ask("mark", table=table)
            return sample, [], []
        more: dict[str, Any] = {}
        if step.query is not None:
            more = {"query": encoded(step.query), "back": step.back}
        if step.statement is not None:
            of = {chain.layout(one).source: turn.names[one] for one in step.tables}
            more = {"statement": encoded(step.statement), "tables": of}
        answer = side.ask(step.op, table=table, **more)
        tables = {of.source: (of, turn.applied[name, of.name]) for of in map(chain.layout, step.tables)}
        right = _right(turn.truth, step, layout, tables)
        if step.op == "digest":
            return None, right, answer["rows"]
        sample = Sample(turn.number, answer["seconds"], peak_bytes=answer["peak_bytes"], requests=answer.get("requests"))
        sample.cpu_seconds = answer["cpu_seconds"]
        sample.exchanges = answer.get("exchanges")
        return sample, right, answer.get("rows", [])

    def _write(self, side: Remote, turn: _Turn, at: tuple[str, str], step: Step, batches: Sequence[Path]) -> Sample:
        """One step that writes. Raises SideFailed also when a cleaning left every file in place."""
        place = turn.places[at]
        before = side.files(place)
        more = {"by": step.by, "zorder": step.zorder} if step.op == "cluster" else {"paths": [str(path) for path in batches]}
        answer = side.ask(step.op, table=turn.names[at[1]], **more)
        after = side.files(place)
        files, size = written(before, after)
        if step.batch == "small":
            files, size = files // len(batches), size // len(batches)
        sample = Sample(turn.number, answer["seconds"], files=files, bytes=size, peak_bytes=answer["peak_bytes"])
        sample.cpu_seconds = answer["cpu_seconds"]
        sample.requests, sample.called = answer.get("requests"), answer.get("called")
        if step.op == "clean":
            sample.removed = removed(before, after)
            if not sample.removed:
                raise SideFailed("removed no file")
        return sample

    def _drop(self, chain: Chain, turn: _Turn) -> None:
        for (name, layout), place in turn.places.items():
            try:
                self._sides[name].ask("drop", table=turn.names[layout])
            except (SideFailed, SideLacks) as error:
                self._say(f"[red]{name} could not drop a table of {chain.name}: {error}")
            shutil.rmtree(place, ignore_errors=True)  # a URL has no files on the disk


def takes_part(side: Peer, chain: Chain) -> bool:
    """Whether a side is one of a chain's."""
    return side.name in chain.sides if chain.sides else not side.only_named


def _right(truth: Truth, step: Step, layout: Layout, tables: Mapping[str, tuple[Layout, Sequence[Commit]]]) -> Rows:
    """What a step that reads must answer. tables: by source, with the commits that were made to each; layout: of the first."""
    _, applied = tables[layout.source]
    match step.op:
        case "digest":
            return truth.digest(layout, applied)
        case "statement":
            assert step.statement is not None
            return truth.statement(step.statement, tables)
        case "open":
            return []
    assert step.query is not None
    match step.op:
        case "incremental":
            return truth.incremental(layout, applied, back=step.back, query=step.query)
        case "changes":
            return truth.changes(layout, applied, back=step.back, query=step.query)
    return truth.answer(layout, applied[: len(applied) - step.back], step.query)


def _batches(data: Data, source: str, step: Step, side: str, applied: Sequence[Commit]) -> list[Path]:
    """The batches of one turn: none, one, or this side's share of the small ones, beginning after those that its table has already."""
    if not step.batch:
        return []
    if step.batch != "small":
        return [data.batch(source, step.batch)]
    each = dict(step.counts)[side] // step.blocks
    done = sum(commit.batch.parent == data.small(0).parent for commit in applied)
    return [data.small(done + number) for number in range(each)]


def _first_difference(found: Rows, right: Rows) -> str:
    if len(found) != len(right):
        return f"{len(found)} rows instead of {len(right)}"
    for row, other in zip(found, right, strict=True):
        for number, (a, b) in enumerate(zip(row, other, strict=True)):
            if a != b:
                return f"{a} instead of {b} (value {number + 1} of the digest or answer)"
    return "other rows"

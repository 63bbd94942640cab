"""What must be true of the table at the end of the demo, in any order of writes and deaths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console

import objcat
from devkit.demo_flights import ACTUAL, KEY, rows_of, scheduled
from devkit.demo_writer import CATALOG, TABLE, Commit
from objcat.timeline.entry import Entry, Txn, data_prefix
from objcat.timeline.rollback import CommittedAt, Resolution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A fact and whether it holds. `found`: the numbers behind it."""

    name: str
    holds: bool
    found: str


@dataclass(frozen=True, slots=True)
class Story:
    """What the demo did.

    Args:
        before: The rows as of the insert.
        now: The rows at the end.
        commits: Acknowledged upserts, by slot.
        killed_txn: The interrupted write.
        settled: The outcome of the interrupted write.
    """

    table: objcat.Table
    flown: pa.Table
    inserted: objcat.CommitResult
    before: pa.Table
    now: pa.Table
    commits: Sequence[Commit]
    killed_txn: str | None
    settled: Resolution | None


def check_story(story: Story) -> list[Check]:
    """Every check that needs no Spark."""
    history = story.table.inspect.history()
    return [*_check_log(story, history), *_check_killed(story, history), *_check_rows(story)]


def check_spark(spark: SparkSession, states: Mapping[int | None, pa.Table]) -> Iterator[Check]:
    """The checks that `spark.sql` reads the rows that the local engine has read, by slot; None for the newest."""
    order = [(name, "ascending") for name in KEY]
    for slot, local in states.items():
        found = spark.sql(f"SELECT * FROM {CATALOG}.{TABLE}{'' if slot is None else f' VERSION AS OF {slot}'}").toArrow()
        same = local.sort_by(order).equals(found.select(local.column_names).cast(local.schema).sort_by(order))
        when = "" if slot is None else f" as of slot {slot}"
        yield Check(f"the local engine and spark.sql read the same rows{when}", same, f"{len(local)} and {len(found)} rows")


def _check_log(story: Story, history: Sequence[Entry]) -> list[Check]:
    txns = {entry.slot: entry.txn for entry in history}
    missing = [commit for commit in story.commits if txns.get(commit.slot) != commit.txn]
    acknowledged = {commit.slot for commit in story.commits} | {0, story.inserted.slot}
    settled = {story.settled.slot} if story.settled else set()
    unclaimed = set(txns) - acknowledged - settled
    gaps = [entry.slot for index, entry in enumerate(history) if entry.slot != index]
    late = [b.slot for a, b in pairwise(history) if b.committed_at_ms <= a.committed_at_ms]
    return [
        Check("every acknowledged commit is in the log with its txn", not missing, f"{len(story.commits)} commits, {len(missing)} missing"),
        Check("nothing else is in the log", not unclaimed, f"{len(history)} slots, unclaimed: {sorted(unclaimed) or 'none'}"),
        Check("the slots have no gaps", not gaps, f"0 to {len(history) - 1}"),
        Check("commit times strictly increase", not late, f"{len(late)} do not"),
    ]


def _check_killed(story: Story, history: Sequence[Entry]) -> list[Check]:
    right, found = _fate(story, history)
    return [
        Check("a writer was killed between its data and its commit", story.killed_txn is not None, story.killed_txn or "none was"),
        Check("the killed transaction is either rolled back whole or committed whole", right, found),
    ]


def _fate(story: Story, history: Sequence[Entry]) -> tuple[bool, str]:
    """Whether the log and the files agree with the outcome of the killed transaction, and that outcome."""
    if story.settled is None or story.killed_txn is None:
        return False, "there is none"
    committed = [entry.slot for entry in history if entry.txn == story.killed_txn]
    slot = story.settled.slot
    if isinstance(story.settled, CommittedAt):
        return committed == [slot], f"its request reached the store before it died; committed at slot {slot}"
    files = list(story.table._context.fileio.list_keys(data_prefix(Txn(story.killed_txn))))
    right = not committed and not files and history[slot].rollback_of == story.killed_txn
    return right, f"rolled back at slot {slot}, {len(files)} files left"


def _check_rows(story: Story) -> list[Check]:
    schedule = _by_key(scheduled(story.flown))
    expected = dict(schedule)
    wrote: dict[Key, set[str]] = {}
    for commit in sorted(story.commits, key=lambda commit: commit.slot):
        for key, row in _by_key(rows_of(story.flown, commit.step, commit.writer)).items():
            expected[key] = row
            wrote.setdefault(key, set()).add(commit.writer)
    rows, found = story.now, _by_key(story.now)
    wrong = [key for key in expected if found.get(key) != expected[key]]
    shared = sum(len(writers) > 1 for writers in wrote.values())
    counts = Counter(len(writers) for writers in wrote.values())
    return [
        Check("every flight exists once", len(found) == len(rows), f"{len(rows)} rows, {len(found)} keys"),
        Check("no flight was lost or added", len(rows) == len(schedule), f"{len(schedule)} were scheduled"),
        Check(
            "key by key the table is the replay of the acknowledged commits", not wrong, f"{len(expected)} compared, {len(wrong)} differ"
        ),
        Check("several writers wrote the same keys", shared > 0, ", ".join(f"{n} keys by {k}" for k, n in sorted(counts.items()))),
        Check("before the upserts the table was the schedule", _by_key(story.before) == schedule, f"as of slot {story.inserted.slot}"),
    ]


def _by_key(rows: pa.Table) -> dict[Key, dict[str, Any]]:
    return {tuple(row[name] for name in KEY): row for row in rows.to_pylist()}


def summarize(rows: pa.Table) -> list[dict[str, Any]]:
    """Flights, flights with an arrival and the mean delay, by airport. It is the answer of the time-travel query."""
    grouped = rows.group_by("origin").aggregate([("flight", "count"), (ACTUAL[3], "count"), (ACTUAL[3], "mean")])
    return sorted(grouped.to_pylist(), key=lambda row: str(row["origin"]))


def show_checks(console: Console, checks: Sequence[Check], seconds: float, *, are_numbered: bool = False) -> None:
    """Print each check with its outcome, and a verdict. `seconds`: how long it all took."""
    for number, check in enumerate(checks, 1):
        outcome = "[green]ok  [/green]" if check.holds else "[red]FAIL[/red]"
        name = f"{number:2}. {check.name}" if are_numbered else check.name
        console.print(f"{outcome} {name} ({check.found})", soft_wrap=True, highlight=False)
    failed = sum(not check.holds for check in checks)
    verdict = f"[red]{failed} of {len(checks)} checks failed[/red]" if failed else f"[green]all {len(checks)} checks hold[/green]"
    console.print(f"{verdict}, in {seconds:.0f} s", highlight=False)

"""An ingest is killed again and again while its source changes; afterwards both sides are compared, row by row and slot by slot."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from devkit.paths import ROOT
from objcat.ingest.requests import add_request
from tests.ingest.shop import Shop

TABLES: Mapping[str, tuple[str, ...]] = {"accounts": ("id",), "wallets": ("id",), "scratch": ("id", "part")}
PATIENCE_S = 30
"""Seconds until a process is killed that does not come to the commits that are waited for."""
BEHIND_S = 10
"""Seconds after which the writers slow down for an ingest that cannot finish its reading: the source is faster than this machine."""
SILENT_S = 120
"""Seconds without a commit after which a last run counts as one that does not end."""
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        "objcat",
        "objcat.ingest.runner",
        "objcat.ingest.postgres.source",
        "objcat.ingest.mysql.source",
        "objcat.ingest.kafka.source",
        "psycopg2.extras",
        "pymysql",
        "pymysqlreplication",
        "confluent_kafka",
        "tests.ingest.planted",
    ]
)


@dataclass(slots=True)
class KilledRun:
    """What a run of kills came to.

    Args:
        kills: for each kill, how many commits the killed process had made, and whether tables were being read then.
        problems: what differs, in words.
        slots: how many slots were consistent and had their sum checked.
        rows: how many rows were compared.
        transactions: of the source.
    """

    kills: list[tuple[int, bool]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    slots: int = 0
    rows: int = 0
    transactions: int = 0

    def after_commits(self, *, in_snapshot: bool) -> int:
        """Kills of processes that had committed, by what they were doing."""
        return sum(1 for commits, was_reading in self.kills if commits > 0 and was_reading is in_snapshot)

    def said(self) -> str:
        return (
            f"{len(self.kills)} kills, {self.after_commits(in_snapshot=True)} after commits while tables were read, "
            f"{self.after_commits(in_snapshot=False)} while streaming, {sum(commits for commits, _ in self.kills)} commits by killed ones; "
            f"{self.transactions} source transactions, {self.rows} rows compared, sums of {self.slots} slots, {len(self.problems)} problems"
        )


def follow(path: str, environment: dict[str, str], bug: str | None) -> None:
    """What the killed process runs."""
    os.environ.update(environment)
    from objcat.cli.ingest import _follow
    from tests.ingest.planted import plant

    plant(bug)
    sys.stdout = sys.stderr = open(_log(path), "a", buffering=1)  # noqa: SIM115 - as long as the process
    _follow(path, is_once=False, as_json=True)


def killed_run(shop: Shop, load: Any, folder: Path, seed: int, *, kills: int, bug: str | None = None, pause_s: float = 0.04) -> KilledRun:
    """Kill an ingest so many times, then compare and close the shop.

    Args:
        shop: with an empty database.
        load: the module that writes to its database, such as `tests.ingest.load`.
        folder: for lake and configuration.
        seed: of the load and of the moments of the kills.
        kills: how many.
        bug: a planted one, see `tests/ingest/planted.py`.
        pause_s: between two transactions of each of the three writers.
    """
    drawn = random.Random(seed)
    found = KilledRun()
    stop = folder / "stop"
    try:
        shop.sql(load.SCHEMA)
        shop.configure(chunk_rows=30, run="idle_commit_s = 1")
        shop.begin()
        command = [
            sys.executable,
            "-m",
            load.__name__,
            shop.source_url,
            str(seed),
            str(stop),
            str(pause_s),
            str(kills * 0.15),
        ]
        writers = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            calm = stop.with_name("calm")
            _kill(shop, found, drawn, kills, bug, calm)
            calm.touch()
            _follow_whole(shop, kills // 2, bug)
        finally:
            stop.touch()
            said, _ = writers.communicate(timeout=60)
        found.transactions = int(said)
        shop.settle()
        run_to_the_end(shop, found, bug)
        compare(shop, load, found)
    finally:
        shop.close()
    return found


def finish(path: str, environment: dict[str, str], bug: str | None) -> None:
    """The run to the end."""
    os.environ.update(environment)
    from objcat.cli.ingest import _follow
    from tests.ingest.planted import plant

    plant(bug)
    _follow(path, is_once=True, as_json=True)


def _kill(shop: Shop, found: KilledRun, drawn: random.Random, kills: int, bug: str | None, calm: Path) -> None:
    """Kill while tables are read, then while the stream is followed, then both again with tables that are read a second time."""
    before = -1
    lake = shop.lake
    again = kills * 6 // 10
    for number in range(kills):
        if number == again and shop.has_snapshots:
            for table in ("wallets", "scratch", "accounts"):
                add_request(lake, shop.config(), "resnapshot", shop.source_name(table))
        streams = kills * 3 // 10 <= number < again or number >= kills * 8 // 10
        before = kill_once(shop, found, drawn, before, bug, streams=streams, calm=calm)


def kill_once(
    shop: Shop, found: KilledRun, drawn: random.Random, before: int, bug: str | None, *, streams: bool, calm: Path | None = None
) -> int:
    """Start an ingest and kill it after some commits.

    Args:
        shop: what it follows.
        found: takes the kill, and a problem when the process ends by itself.
        drawn: how many commits, and the moment.
        before: the version of the position before it.
        bug: a planted one.
        streams: whether commits count only from when all tables have been read.
        calm: a file at which the writers slow down, until all tables have been read.

    Returns:
        The version of the position after it.
    """
    lake = shop.lake
    process = _processes.Process(target=follow, args=(str(shop.config_path), shop.environment, bug))
    process.start()
    wanted, began, start = drawn.choice([0, 1, 1, 2, 3, 5]), time.monotonic(), before
    end = began + PATIENCE_S * (4 if streams else 1)
    while process.is_alive() and time.monotonic() < end:
        version, is_reading = _version(lake)
        if streams and is_reading:
            start = version
            if calm and time.monotonic() > began + BEHIND_S:
                calm.touch()
        elif version - start >= wanted:
            break
        elif calm:
            calm.unlink(missing_ok=True)
        time.sleep(0.05)
    if calm:
        calm.unlink(missing_ok=True)
    time.sleep(drawn.uniform(0, 0.2))
    if not process.is_alive():
        said = _log(shop.config_path).read_text()[-2000:]
        found.problems.append(f"a process ended by itself with {process.exitcode}: {said}")
    process.kill()
    process.join()
    now, is_reading = _version(lake)
    found.kills.append((now - before, is_reading))
    return now


def run_to_the_end(shop: Shop, found: KilledRun, bug: str | None) -> None:
    """The last run, which nobody kills, in a process of its own. It may take as long as it commits something every two minutes."""
    last = _processes.Process(target=finish, args=(str(shop.config_path), shop.environment, bug))
    last.start()
    before, now = None, _version(shop.lake)
    while last.is_alive() and now != before:
        last.join(SILENT_S)
        before, now = now, _version(shop.lake)
    if last.exitcode != 0:
        last.kill()
        found.problems.append(f"the last run ended with {last.exitcode}")


def _follow_whole(shop: Shop, slots: int, bug: str | None) -> None:
    """Follow the source, which is calm now, until so many slots are whole: an ingest on a slow machine comes up to it only now."""
    process = _processes.Process(target=follow, args=(str(shop.config_path), shop.environment, bug))
    process.start()
    seen, end = set[int](), time.monotonic() + 120
    while len(seen) <= slots and process.is_alive() and time.monotonic() < end:
        stored = shop.lake.source_position("shop", shared_log="shop")
        if stored is not None and _is_whole(stored.state):
            seen.add(stored.slot)
        time.sleep(0.02)
    process.kill()
    process.join()


def _log(path: str | Path) -> Path:
    """What the killed processes say."""
    return Path(path).with_name("follow.log")


def _version(lake: Any) -> tuple[int, bool]:
    stored = lake.source_position("shop", shared_log="shop")
    if stored is None:
        return -1, True
    return stored.version, any(table.get("unread") for table in stored.state["tables"].values())


def compare(shop: Shop, load: Any, found: KilledRun) -> None:
    """Compare every row of every table, and the sum at every consistent slot."""
    for table, key in TABLES.items():
        differences = shop.differences(table, key)
        found.problems += differences[:5]
        if len(differences) > 5:
            found.problems.append(f"and {len(differences) - 5} more of {table}")
        found.rows += len(shop.rows(table))
    dead = shop.lake.table("shop.ingest_dead").scan().to_arrow().num_rows
    if dead:
        found.problems.append(f"{dead} dead letters")
    newest = shop.lake.table("shop.accounts").refresh().slot
    slots = [slot for slot in range(newest + 1) if is_consistent(shop, slot)]
    sums = shop.sums({"accounts": "balance", "wallets": "balance"}, slots)
    found.slots = len(sums)
    found.problems += [f"the sum at slot {slot} is {total}" for slot, total in sums.items() if total != Decimal(load.START_SUM)][:5]


def is_consistent(shop: Shop, slot: int) -> bool:
    """Whether the state of a slot says that all tables are handed over."""
    stored = shop.lake.source_position("shop", shared_log="shop", as_of=slot)
    if stored is None or stored.slot != slot:
        return False
    return _is_whole(stored.state) and all(shop.was_there(name, slot) for name in TABLES)


def _is_whole(state: Mapping[str, Any]) -> bool:
    tables = state["tables"].values()
    if state.get("is_between"):
        return False
    return not any(table.get("unread") or table.get("chunks") or table.get("incomplete") or table.get("aside") for table in tables)

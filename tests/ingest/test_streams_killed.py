"""An ingest of a folder, and one of another lake, are killed at random while their sources are written. Nothing is lost or taken twice."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fileio.env import default_env
from tests.effort import ALL, INTEGRATION, effort
from tests.ingest.landing import Landing
from tests.ingest.two_lakes import TwoLakes

KILLS = effort(6, with_all=40)
SEEDS = [pytest.param(7, marks=INTEGRATION), pytest.param(11, marks=ALL), pytest.param(23, marks=ALL)]
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["objcat", "objcat.ingest.runner", "objcat.ingest.folder.source", "objcat.ingest.lake_tables.source"])


def follow(path: str) -> None:
    """What the killed process runs."""
    from objcat.cli.ingest import _follow

    sys.stdout = sys.stderr = Path(path).with_name("follow.log").open("a", buffering=1)
    _follow(path, is_once=False, as_json=True)


def killed(path: Path, version: Callable[[], int], drawn: random.Random) -> list[int]:
    """Kill an ingest so many times. Returns how many commits each killed process had made."""
    found, before = [], version()
    for _ in range(KILLS):
        process = _processes.Process(target=follow, args=(str(path),))
        process.start()
        wanted, end = drawn.choice([0, 1, 1, 2, 3]), time.monotonic() + 20
        while process.is_alive() and time.monotonic() < end and version() - before < wanted:
            time.sleep(0.03)
        time.sleep(drawn.uniform(0, 0.2))
        assert process.is_alive(), path.with_name("follow.log").read_text()[-3000:]
        process.kill()
        process.join()
        now = version()
        found.append(now - before)
        before = now
    return found


def version_of(lake: Any, source: str) -> int:
    stored = lake.source_position(source, shared_log=source)
    return -1 if stored is None else stored.version


class Writing:
    """Calls a function again and again in a thread until the block ends."""

    def __init__(self, write: Callable[[int], None], pause_s: float) -> None:
        self._write = write
        self._pause_s = pause_s
        self._is_stopped = threading.Event()
        self.count = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._is_stopped.is_set():
                self._write(self.count)
                self.count += 1
                default_env().sleep(self._pause_s)
        except BaseException as error:  # noqa: BLE001 - the test meets it
            self.error = error


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.timeout(900)
def test_a_folder(tmp_path: Path, seed: int) -> None:
    """Files of two tables: one appends, so a file that is taken twice shows; one upserts and deletes. Names and times are in no order."""
    landing = Landing(tmp_path)
    landing.configure(
        key=[],
        files=(
            '[[source.files]]\npath = "(log)/.*"\n[[source.files]]\npath = "(items)/.*"\ndelete_column = "op"\n'
            'columns = { id = "bigint", n = "bigint" }\n'
        ),
        source='order = "name"',
        more="[dead_letters]\nrecords_max = 100000\n",
    )
    text = landing.config_path.read_text()
    items = '[[route]]\ntables = "items"\nto = "land.items"\nkey = ["id"]\n\n'
    landing.config_path.write_text(text.replace("[[route]]", f"{items}[[route]]", 1))
    drawn, moments = random.Random(seed), random.Random(seed + 1)
    logged: list[int] = []
    kept: dict[int, int] = {}

    def write(number: int) -> None:
        new = [number * 100 + place for place in range(drawn.randrange(1, 60))]
        landing.parquet(f"log/{drawn.randrange(10**6)}-{number}.parquet", [{"id": one} for one in new])
        logged.extend(new)
        lines = []
        # A key is in one file alone, so that files may be taken in any order.
        for place in range(20):
            one = number * 100 + place
            lines.append({"id": one, "n": number, "op": "I"})
            kept[one] = number
            if drawn.random() < 0.3:
                lines.append({"id": one, "op": "D"})
                del kept[one]
        broken = "{\n" if drawn.random() < 0.1 else ""
        landing.write(f"items/{drawn.randrange(10**6)}-{number}.json", "".join(json.dumps(line) + "\n" for line in lines) + broken)

    with Writing(write, 0.05) as writing:
        kills = killed(landing.config_path, lambda: version_of(landing.lake, "landing"), moments)
    landing.once()
    rows = landing.lake.table("land.log").scan(columns=["id"]).to_arrow()["id"]
    print(f"seed {seed}: {kills} commits before kills, {writing.count} files of each table, {len(rows)} and {len(kept)} rows compared")
    assert len(rows) == len(logged) and sorted(rows.to_pylist()) == sorted(logged)
    assert {row["id"]: row["n"] for row in landing.rows("items")} == kept
    assert len(landing.record()) == 2 * writing.count
    assert sum(1 for commits in kills if commits > 0) >= KILLS // 3, kills


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.timeout(900)
def test_another_lake(tmp_path: Path, seed: int) -> None:
    """Transfers between two tables of one log keep their sum, at the source and at every slot of the copy that is consistent."""
    lakes = TwoLakes(tmp_path)
    lakes.configure(settings="range_slots = 4")
    drawn, moments = random.Random(seed), random.Random(seed + 1)
    names = ("accounts", "wallets")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())])
    held = {name: dict.fromkeys(range(400), 100) for name in names}
    for name in names:
        lakes.source.create_table(f"shop.{name}", schema, key=["id"], shared_log="shop")
        lakes.source.table(f"shop.{name}").upsert(pa.table({"id": list(range(400)), "n": [100] * 400}, schema=schema))
    source = lakes.source

    def write(number: int) -> None:
        if number % 40 == 20:
            source.table("shop.accounts").maintenance.compact()
        if number == 60:
            source.table("shop.accounts").alter.add_column("note", pa.string())
        one, amount = drawn.randrange(400), drawn.randrange(1, 50)
        with source.transaction() as tx:
            for name, sign in zip(names, (-1, 1), strict=True):
                held[name][one] += sign * amount
                tx[f"shop.{name}"].upsert(pa.table({"id": [one], "n": [held[name][one]]}, schema=schema), schema_mode="add")

    with Writing(write, 0.03) as writing:
        kills = killed(lakes.config_path, lambda: version_of(lakes.lake, "copy"), moments)
    state = lakes.once()
    assert state.is_consistent and all(lakes.differences(name) == [] for name in names)
    tables = [lakes.lake.table(f"copy.{name}") for name in names]
    checked = 0
    for slot in range(tables[0].refresh().slot + 1):
        stored = lakes.lake.source_position("copy", shared_log="copy", as_of=slot)
        if stored is None or stored.slot != slot or any(table.get("is_reading") for table in stored.state["tables"].values()):
            continue
        assert sum(pc.sum(table.scan(columns=["n"], as_of=slot).to_arrow()["n"]).as_py() for table in tables) == 80_000, slot
        checked += 1
    print(f"seed {seed}: {kills} commits before kills, {writing.count} transactions, sums of {checked} slots")
    assert checked >= KILLS // 2 and sum(1 for commits in kills if commits > 0) >= KILLS // 3, kills

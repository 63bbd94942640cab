"""A process replaces a partition while another one upserts rows of the same partition without rest, on real stores."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from devkit.handle import ServerHandle
from objcat.common.validation import TableType
from objcat.inspection.doctor import examine
from objcat.metadata.table_spec import COPY_ON_WRITE, MERGE_ON_READ
from tests.effort import few

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("v", pa.int64())])
BUSY = Path(__file__).with_name("overwrite_process.py")
ROUNDS = 8
ROWS = 50
FIRST_OF_THEIRS = 1_000_000
SLOTS_LOST_MAX = 64
"""Of one replacement, however slow the machine is. After 8 slots it asks for a turn, and the other process looks once in 32 slots.

Others may pass while the request and the look are under way. A replacement that begins again after each lost slot loses them all.
"""

Commit = dict[str, int]


def replaced_beside_a_busy_process(url: str, options: dict[str, Any], kind: TableType) -> None:
    table = objcat.connect(url, options).create_table(
        "t", SCHEMA, key=["id"], key_scope="partition", partition_by=["city"], index=objcat.BucketIndex(2), table_type=kind
    )
    table.insert([{"id": n, "city": city, "v": 0} for n in range(20) for city in ("Rome", "Oslo")])
    job = json.dumps({"url": url, "options": options, "city": "Rome", "first": FIRST_OF_THEIRS})
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(BUSY), job], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as busy:
        assert busy.stdout is not None and busy.stdin is not None and busy.stderr is not None
        try:
            theirs: list[Commit] = [json.loads(busy.stdout.readline())]
            done = []
            for number in range(ROUNDS):
                done.append(table.insert_overwrite([{"id": n, "city": "Rome", "v": number} for n in range(ROWS)]))
                # The other process has written since, so each round meets it at work.
                while theirs[-1]["slot"] < done[-1].slot:
                    theirs.append(json.loads(busy.stdout.readline()))
            busy.stdin.write("enough\n")
            busy.stdin.flush()
            # `communicate` would pass over the lines that `readline` has read ahead.
            theirs += map(json.loads, busy.stdout)
            errors = busy.stderr.read()
            busy.wait(timeout=240)
        finally:
            busy.kill()
        assert busy.returncode == 0, errors

    assert max(one.attempts for one in done) <= 2
    assert max(one.slots_lost for one in done) <= SLOTS_LOST_MAX
    assert sorted([one["slot"] for one in theirs] + [one.slot for one in done]) == list(range(2, table.refresh().slot + 1))
    for number, one in enumerate(done):
        assert rows(table, as_of=one.slot) == {(n, number) for n in range(ROWS)}, "nothing of before is left at its slot"
    later = {(one["id"], one["v"]) for one in theirs if one["slot"] > done[-1].slot}
    assert rows(table) == {(n, ROUNDS - 1) for n in range(ROWS)} | later
    assert table.scan(where="city = 'Oslo'").count() == 20
    assert examine(table._context.timeline, deep=True).healthy


def rows(table: objcat.Table, **scan: Any) -> set[tuple[int, int]]:
    found = table.scan(columns=["id", "v"], where="city = 'Rome'", **scan).to_arrow().to_pylist()
    return {(row["id"], row["v"]) for row in found}


@pytest.mark.parametrize("kind", [MERGE_ON_READ, COPY_ON_WRITE])
def test_a_replacement_wins_beside_a_busy_process_on_local_disk(tmp_path: Path, kind: TableType) -> None:
    replaced_beside_a_busy_process(str(tmp_path), {}, kind)


@pytest.mark.parametrize("kind", [MERGE_ON_READ, COPY_ON_WRITE])
@pytest.mark.parametrize("server", few(["versitygw", "fake-gcs-server", "azurite"], 1))
def test_a_replacement_wins_beside_a_busy_process_on_a_server(servers: Callable[[str], ServerHandle], server: str, kind: TableType) -> None:
    store = servers(server).fresh_bucket()
    replaced_beside_a_busy_process(f"{store.url}/lake", dict(store.options), kind)

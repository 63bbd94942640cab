"""Advice about precomputed columns: what it says of queries is what they then read, and sizes are near the real ones."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

import objcat
from objcat.errors import InvalidInput, TableNotFound
from tests.tables.in_place import of_lake

QUERIES = [
    *["SELECT user_id FROM logs.app WHERE payload.status = 500"] * 6,
    *["SELECT l.payload.status, count(*) FROM logs.app l GROUP BY 1"] * 4,
    "SELECT count(*) FROM logs.app",
    "SELECT note FROM logs.app WHERE payload.status = 404 AND day = '1'",
    "SELECT * FROM logs.app WHERE user_id = 7",
    "SELECT day, max(ts) FROM logs.app GROUP BY day",
    "SELECT a.user_id FROM logs.app a JOIN other o ON a.user_id = o.id WHERE a.ts > 5",
    "SELECT id FROM other",
]
UNREAD = ["SELECT * FROM nothing", "DELETE FROM logs.app", "this is no SQL at all", "SELECT nothing FROM logs.app WHERE ("]


def of_logs(precompute: tuple[str, ...] = ()) -> tuple[objcat.Lake, objcat.Table]:
    store, lake = of_lake()
    for day in (1, 2):
        for number in range(3):
            rows = [
                {
                    "user_id": n,
                    "ts": n * 10,
                    "payload": {"status": 200 + n % 3, "body": secrets.token_hex(40)},
                    "note": secrets.token_hex(60),
                }
                for n in range(400)
            ]
            store.put(f"in/day={day}/{number}.json", "\n".join(map(json.dumps, rows)).encode())
    source: Any = objcat.Files(f"{store.url}/in/day=*/*.json", format="json", path_columns=["day"], precompute=precompute)
    table = lake.create_table("logs.app", source=source)
    table.refresh_files()
    lake.create_table("other", source=objcat.Files(f"{store.url}/in/day=1/0.json", format="json")).alter.rename_column("user_id", "id")
    return lake, table


def test_it_names_columns_by_what_they_earn() -> None:
    lake, table = of_logs(("note",))
    advice = lake.advise_precomputed("logs.app", [*QUERIES, *UNREAD])
    assert (advice.queries, advice.unread, advice.whole) == (15, 4, 1)
    assert advice.present == ("note",) and advice.unused == () and advice.alone == pytest.approx(1 / 15)
    first = advice.steps[0]
    assert first.columns == first.added == ("payload.status",)
    assert [step.alone for step in advice.steps] == sorted({step.alone for step in advice.steps})
    assert set(advice.steps[-1].columns) == {"user_id", "ts", "payload.status", "note"}
    assert advice.steps[-1].alone == pytest.approx(14 / 15) and advice.steps[-1].narrowed == pytest.approx(1 / 15)
    at = [step.columns for step in advice.steps].index(("payload.status", "user_id"))
    assert advice.steps[at].alone == pytest.approx(11 / 15) and advice.steps[at].narrowed == pytest.approx(2 / 15)
    assert "73% alone, 13% by positions" in str(advice) and "1 queries need every column" in str(advice)
    assert table.refresh().slot == lake.table("logs.app").snapshot.slot == 1, "nothing was changed"


def test_what_it_says_is_what_queries_read() -> None:
    lake, table = of_logs()
    sources = sum(group.base.bytes for group in table.snapshot.file_groups(table._context.manifests) if group.base)
    advice = lake.advise_precomputed("logs.app", QUERIES)
    assert advice.sampled == sources
    for step in advice.steps:
        table.alter.set_precomputed(list(step.columns))
        made = table.maintenance.precompute()
        assert made.bytes / 1.5 < step.bytes < made.bytes * 2, "spans and footers are in each column that was measured"
        assert step.of_files == pytest.approx(step.bytes / sources, rel=0.01)
        again = lake.advise_precomputed("logs.app", QUERIES)
        assert again.present == step.columns and again.alone == pytest.approx(step.alone)
    assert advice.steps[-1].of_files < 1.2
    table.alter.set_precomputed(["payload"])
    unused = lake.advise_precomputed("logs.app", ["SELECT ts FROM logs.app"])
    assert unused.unused == ("payload",) and unused.steps[0].columns == ("ts",)


def test_a_sample_is_as_large_as_asked() -> None:
    lake, _ = of_logs()
    few = lake.advise_precomputed("logs.app", QUERIES, sample_bytes=1)
    every = lake.advise_precomputed("logs.app", QUERIES)
    assert 0 < few.sampled < every.sampled / 5
    assert few.steps[-1].bytes == pytest.approx(every.steps[-1].bytes, rel=0.2)


def test_nothing_to_say() -> None:
    lake, _ = of_logs()
    advice = lake.advise_precomputed("logs.app", [])
    assert (advice.queries, advice.steps, advice.sampled, advice.alone) == (0, (), 0, 0.0)
    assert lake.advise_precomputed("logs.app", ["SELECT * FROM logs.app"]).steps == ()
    lake.create_table("own", lake.table("other").schema, key=None)
    with pytest.raises(InvalidInput, match="its own"):
        lake.advise_precomputed("own", QUERIES)
    with pytest.raises(TableNotFound):
        lake.advise_precomputed("none", QUERIES)

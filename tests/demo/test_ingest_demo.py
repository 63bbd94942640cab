"""The demo of ingest for real, in small; and that its checks find wrong rows, which are planted into its lake at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from devkit import ingest_demo
from devkit.demo import main
from devkit.demo_checks import Check
from devkit.ingest_demo_checks import SOURCE, IngestStory, check_ingest, read_entries, read_states
from devkit.lag_plot import LagMark, LagPlot, LagPoint
from tests.conftest import check_needed

CHECKS = (
    "the ingest was killed while it read the tables, and again while it followed their changes, each time after it had committed",
    "the batch that was cut off is there whole or not at all",
    "each position of the database was committed once, in order, with the rows that belong to it",
    "row by row, the lake has the customers that the database has",
    "row by row, the lake has the products that the database has",
    "row by row, the lake has the orders that the database has",
    "orders from before the new column read its default, later ones their own value, and the past has no such column",
    "the consistent slots show the shop as it changes",
    "balances and payments add up to the same at every consistent slot",
    "stock and ordered goods add up to the same at every consistent slot",
    "no record is among the dead letters",
)


def plant(story: IngestStory) -> None:
    """Money that comes from nowhere, in a slot that says it is consistent; an order that is lost; and a product that is added."""
    lake = story.lake
    customers, orders, products = (lake.table(f"{SOURCE}.{name}") for name in ("customers", "orders", "products"))
    stored = lake.source_position(SOURCE, shared_log=SOURCE)
    assert stored is not None
    import objcat

    position = objcat.SourcePosition(source=SOURCE, state=stored.state, since=stored.version)
    one = customers.scan(where="balance > 0").to_arrow().slice(0, 1)
    richer = one.set_column(
        one.column_names.index("balance"), one.schema.field("balance"), pc.add(one["balance"], pa.scalar(1)).cast(one["balance"].type)
    )
    lost = orders.scan(columns=["id"]).to_arrow().sort_by("id").slice(0, 1)
    added = products.scan().to_arrow().slice(0, 1)
    added = added.set_column(added.column_names.index("sku"), added.schema.field("sku"), pa.array(["sku-none"]))
    with lake.transaction(shared_log=SOURCE, position=position, metadata={"consistent": "true"}) as tx:
        tx[f"{SOURCE}.customers"].upsert(richer)
        tx[f"{SOURCE}.orders"].delete(lost)
        tx[f"{SOURCE}.products"].upsert(added)


def test_a_shop_is_followed_and_wrong_rows_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_needed("mariadb")
    right: list[Check] = []

    def check_twice(story: IngestStory, *found: Any) -> list[Check]:
        right.extend(check_ingest(story, *found))
        plant(story)
        entries = read_entries(story.lake)
        return check_ingest(story, entries, read_states(story.lake, entries))

    monkeypatch.setattr(ingest_demo, "check_ingest", check_twice)
    assert main(["--ingest", "--seconds", "4", "--path", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert [check.name for check in right] == list(CHECKS)
    assert [check for check in right if not check.holds] == [], said
    failed = [line for line in said.splitlines() if line.startswith("FAIL")]
    assert [int(line.split()[1].rstrip(".")) for line in failed] == [4, 5, 6, 9, 10], said
    assert "0 missing, 0 added, 1 differ" in failed[0] and "0 missing, 1 added, 0 differ" in failed[1]
    assert "1 missing, 0 added, 0 differ" in failed[2] and "5 of 11 checks failed" in said
    assert "SIGKILL" in said and "consistent: yes" in said and "A: ALTER TABLE" in said and "┤" in said
    assert "<polyline" in (tmp_path / "lag.svg").read_text() and "Nothing to do." in (tmp_path / "status.html").read_text()
    assert main(["--ingest", "--path", str(tmp_path)]) == 1
    assert "exists. Name another folder" in capsys.readouterr().err


def test_options_of_both_stories_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--ingest", "--no-spark"], ["--ingest", "--store", "s3"], ["--seconds", "3"], ["--ingest", "--seconds", "0"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert "--ingest takes --path and --seconds alone." in capsys.readouterr().err


def test_the_lag_grows_with_time_and_falls_with_commits() -> None:
    plot = LagPlot([LagPoint(10, 9.5), LagPoint(11, 10.8), LagPoint(14, 13.9)], [LagMark(12, "K", "SIGKILL")])
    assert plot.lag_s(11) == 1.5 and plot.lag_s(12) == pytest.approx(1.2) and plot.highest_s(10, 14) == pytest.approx(3.2)
    lines = plot.text(columns=40, rows=4)
    assert len(lines) == 6 and lines[4].index("K") == 11 + 20 and "4.00 s" in lines[0]
    assert "█" in lines[3] and "█" not in lines[0] and lines[0].rstrip()[-1] in "▁▂▃▄"
    assert "SIGKILL" in plot.svg() and plot.svg().count("<text") == 5 + 1 + 2

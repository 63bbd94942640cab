"""Histories of files and tables that were left out, skipped and taken again, in which no row may be lost or be there twice."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from objcat.cli import app
from objcat.errors import IngestStopped, InvalidBatch
from objcat.ingest.change_applier import ChangeApplier
from objcat.ingest.change_batch import TableWrite, WriteAction
from objcat.ingest.config import ProfileConfig, RouteConfig
from objcat.ingest.decoding import DecodedValue, masked
from objcat.ingest.folder.looks import FolderLooks
from objcat.ingest.handover import IngestState
from objcat.ingest.model import SourceColumn, SourceTable
from objcat.ingest.requests import add_request
from objcat.ingest.routes import RoutedTable
from objcat.ingest.sink import LakeSink
from tests.ingest.landing import Landing
from tests.ingest.test_left_out import DELETES, command, put, put_unfit
from tests.ingest.two_lakes import TwoLakes

MISSPELLED = 'mask = { emial = "null" }'


def run(landing: Landing, monkeypatch: pytest.MonkeyPatch, *, looks: int = 16) -> IngestState:
    """Run without an end of its own, until it has looked so often after its last commit. A batch may wait for longer than that."""
    text = landing.config_path.read_text().replace("batch_s = 0.05", "batch_s = 60").replace("discover_s = 0.2", "discover_s = 60")
    landing.config_path.write_text(text)
    made, look, commit = landing.ingest(), FolderLooks.look, LakeSink.commit
    looked: int | None = None

    def counted(self: Any, number: int) -> Any:
        nonlocal looked
        if looked is not None:
            looked += 1
            if looked == looks:
                made.stop()
        return look(self, number)

    def committed(self: Any, *arguments: Any) -> Any:
        nonlocal looked
        done, looked = commit(self, *arguments), 0
        return done

    with monkeypatch.context() as patched:
        patched.setattr(FolderLooks, "look", counted)
        patched.setattr(LakeSink, "commit", committed)
        return made.run()


def log_rows(landing: Landing) -> list[int]:
    return sorted(landing.ids("log"))


# ---- tables that are set aside


def test_a_table_that_is_set_aside_by_the_first_file_after_it_was_emptied(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """What empties it is in the batch of that file. Without it, all files would come to the rows that are there."""
    landing.configure(key=[], files=DELETES)
    put_unfit(landing, 0)
    unfit = landing.files / "log" / "0.parquet"
    late = unfit.read_bytes()
    unfit.unlink()
    put(landing, 1, 2)
    landing.once()
    unfit.write_bytes(late)
    os.utime(unfit, (1_600_000_000, 1_600_000_000))
    assert landing.once().tables["log"].aside is not None and log_rows(landing) == [1, 2]
    add_request(landing.lake, landing.config(), "resnapshot", "log")
    assert run(landing, monkeypatch).tables["log"].aside is not None
    put(landing, 0)
    add_request(landing.lake, landing.config(), "left_out", "log")
    landing.once()
    assert log_rows(landing) == [0, 1, 2]


def test_a_file_that_is_corrected_in_the_run_that_left_it_out(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no rows in the lake, so the new version is no second one."""
    landing.configure(key=[], files=DELETES)
    put(landing, 1)
    landing.once()
    put_unfit(landing, 2)
    set_aside = ChangeApplier.may_change

    def correcting(self: Any, *arguments: Any) -> bool:
        may = set_aside(self, *arguments)
        if not may:
            put(landing, 2)
        return may

    monkeypatch.setattr(ChangeApplier, "may_change", correcting)
    assert run(landing, monkeypatch).tables["log"].aside is not None
    assert landing.record()["log/2.parquet"]["state"] == "left_out" and landing.dead() == []
    add_request(landing.lake, landing.config(), "left_out", "log")
    landing.once()
    assert log_rows(landing) == [1, 2]


def test_all_tables_are_read_again_while_one_is_set_aside(landing: Landing) -> None:
    """That one keeps its rows, and is emptied when it is followed again. Killed at each commit."""
    landing.configure(key=[])
    for number in range(3):
        landing.parquet(f"log/{number}.parquet", [{"id": number, "email": "x"}])
    landing.parquet("other/1.parquet", [{"id": 1, "emial": "x"}])
    landing.once()
    landing.configure(key=[], route=MISSPELLED)
    assert landing.once().tables["log"].aside is not None
    add_request(landing.lake, landing.config(), "resnapshot_all")
    for commits in (0, 1):
        landing.killed_after_commits(commits)
    assert landing.once().position["later"] == ["log"] and log_rows(landing) == [0, 1, 2]
    landing.configure(key=[], route=f'{MISSPELLED}\noptional = ["emial"]')
    add_request(landing.lake, landing.config(), "left_out", "log")
    for commits in (0, 0, 1):
        landing.killed_after_commits(commits)
    assert "later" not in landing.once().position
    assert log_rows(landing) == [0, 1, 2] and landing.ids("other") == [1]
    assert {one["state"] for one in landing.record().values()} == {"taken"}


def test_what_was_left_out_is_not_the_rest_of_a_table_that_was_dropped(landing: Landing) -> None:
    landing.parquet("orders/1.parquet", [{"id": 1}])
    landing.once()
    landing.lake.drop_table("land.orders")
    landing.parquet("orders/2.parquet", [{"id": 2}])
    landing.once()
    assert command(landing, "resnapshot", "orders", "--left-out").exit_code == 0
    done = command(landing, "once")
    assert done.exit_code == 1 and "without --left-out" in done.stderr and "land.orders" not in landing.lake.tables()
    add_request(landing.lake, landing.config(), "resnapshot", "orders")
    landing.once()
    assert landing.ids() == [1, 2]


# ---- skip


def test_a_skipped_file_that_is_corrected_before_the_commit(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.configure(key=[])
    landing.once()
    landing.parquet("log/1.parquet", [{"id": 1}])
    add_request(landing.lake, landing.config(), "skip", "log/1.parquet")
    skip = ChangeApplier._skip

    def correcting(self: Any, *arguments: Any) -> None:
        skip(self, *arguments)
        landing.parquet("log/1.parquet", [{"id": 7}])

    monkeypatch.setattr(ChangeApplier, "_skip", correcting)
    assert run(landing, monkeypatch).dead == 1
    assert log_rows(landing) == [7]


@pytest.mark.parametrize("how", ["left_out", "overwritten"])
def test_a_skipped_version_of_a_file_that_was_taken(landing: Landing, how: str) -> None:
    """A table without a key has the rows of the first version, and refuses all others."""
    landing.configure(key=[])
    landing.parquet("log/1.parquet", [{"id": 1}])
    landing.once()
    landing.parquet("log/1.parquet", [{"id": 1}, {"id": 2}])
    assert command(landing, "skip", "log/1.parquet").exit_code == 0
    landing.once()
    assert landing.record()["log/1.parquet"]["state"] == "refused"
    if how == "left_out":
        add_request(landing.lake, landing.config(), "left_out", "log")
    else:
        landing.parquet("log/1.parquet", [{"id": 1}, {"id": 3}])
    landing.once()
    assert log_rows(landing) == [1]


def test_a_request_to_skip_waits_for_its_file(landing: Landing) -> None:
    """The position has the name of the last file. A look without files is none of it, and neither is what empties a table."""
    landing.configure(key=[])
    landing.parquet("log/1.parquet", [{"id": 1}])
    landing.once()
    os.utime(landing.parquet("log/1.parquet", [{"id": 1}, {"id": 2}]))
    add_request(landing.lake, landing.config(), "skip", "log/1.parquet")
    add_request(landing.lake, landing.config(), "resnapshot", "log")
    # A young file is taken when it is seen a second time.
    landing.once()
    state = landing.once()
    assert state.skips == [] and log_rows(landing) == []
    assert landing.record()["log/1.parquet"]["state"] == "left_out"


def test_a_request_to_skip_that_comes_too_late(landing: Landing, caplog: pytest.LogCaptureFixture) -> None:
    """A running ingest looks for requests from time to time, and the file may have been taken. Its next version is not meant."""
    landing.parquet("log/1.parquet", [{"id": 1}])
    landing.once()
    add_request(landing.lake, landing.config(), "skip", "log/1.parquet")
    assert landing.once().skips == [] and "request 0 is not done: 'log/1.parquet' cannot be left out" in caplog.text
    landing.parquet("log/1.parquet", [{"id": 2}])
    assert landing.once().dead == 0 and log_rows(landing) == [1, 2]


def test_two_requests_to_skip_one_file_leave_out_one_version(landing: Landing) -> None:
    landing.once()
    for number in (1, 2):
        landing.parquet(f"log/{number}.parquet", [{"id": number}])
    for _ in range(2):
        add_request(landing.lake, landing.config(), "skip", "log/1.parquet")
    assert landing.once().skips == []
    landing.parquet("log/1.parquet", [{"id": 1}])
    assert landing.once().dead == 1 and log_rows(landing) == [1, 2]


def test_a_request_to_skip_outlives_one_to_read_all_tables_again(landing: Landing) -> None:
    landing.once()
    for number in (1, 2):
        landing.parquet(f"log/{number}.parquet", [{"id": number}])
    add_request(landing.lake, landing.config(), "skip", "log/1.parquet")
    add_request(landing.lake, landing.config(), "resnapshot_all")
    landing.once()
    assert log_rows(landing) == [2]


def test_what_is_left_out_on_request_is_no_bad_record(landing: Landing) -> None:
    """Where no bad record is allowed, a transaction could not be left out."""
    landing.configure(more="[dead_letters]\nrecords_max = 0\n")
    landing.once()
    for number in (1, 2):
        landing.parquet(f"log/{number}.parquet", [{"id": number}])
    add_request(landing.lake, landing.config(), "skip", "log/1.parquet")
    assert landing.once().dead == 1 and log_rows(landing) == [2]


def test_the_message_about_a_refused_file_has_a_command_for_a_shell(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.parquet("log/of $1 & 2.parquet", [{"id": 1}])
    commit = LakeSink.commit

    def refusing(self: Any, writes: Any, *arguments: Any) -> Any:
        if any(write.routed.name == "land.log" for write in writes):
            raise InvalidBatch("The rows are refused.")
        return commit(self, writes, *arguments)

    monkeypatch.setattr(LakeSink, "commit", refusing)
    with pytest.raises(IngestStopped) as stopped:
        landing.once()
    told = shlex.split(str(stopped.value).split("`")[1])
    assert told == ["objcat", "ingest", "skip", str(landing.config_path), "log/of $1 & 2.parquet"]
    assert CliRunner().invoke(app, told[1:]).exit_code == 0
    assert landing.once().dead == 1 and log_rows(landing) == []


@pytest.mark.parametrize("part", [1, 2])
def test_a_skipped_part_of_a_table_that_is_read_again(tmp_path: Path, part: int) -> None:
    """The part lacks its rows. The table is emptied all the same, and is consistent when its last part was handed over."""
    lakes = TwoLakes(tmp_path)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("kind", pa.string())])
    lakes.source.create_table("shop.items", schema, key=None, partition_by=["kind"])
    lakes.source.table("shop.items").insert(pa.table({"id": [1, 2], "kind": ["a", "b"]}, schema=schema))
    slot = next(iter(lakes.once().position["slots"].values()))
    add_request(lakes.lake, lakes.config(), "resnapshot", "shop.items")
    add_request(lakes.lake, lakes.config(), "skip", f"shop.items@{slot}/{part}")
    state = lakes.once()
    assert state.is_consistent and state.skips == []
    assert lakes.lake.table("copy.items").scan().to_arrow().column("id").to_pylist() == [3 - part]


# ---- columns that are hidden


@pytest.mark.parametrize("setting", ['mask = { email = "null" }', 'drop = ["email"]'])
def test_an_optional_column_is_hidden_however_its_name_is_written(landing: Landing, setting: str) -> None:
    """Names of columns are compared without case, so a table that has `Email` does not lack `email`."""
    landing.configure(route=f'{setting}\noptional = ["email"]')
    landing.parquet("orders/1.parquet", [{"id": 1, "Email": "secret"}])
    landing.parquet("items/1.parquet", [{"id": 2}])
    why = str(landing.once().tables["orders"].aside)
    assert "did you mean 'Email'" in why and "land.orders" not in landing.lake.tables() and landing.ids("items") == [2]


@pytest.mark.parametrize(("key", "known"), [("id", {"n": 7}), ("email", {})])
def test_hidden_values_of_a_large_transaction_are_not_hidden_twice(key: str, known: dict[str, int]) -> None:
    """A row gets another key without its large values. An earlier piece has them as they are written, so the source is asked."""
    types = {"id": pa.int64(), "email": pa.int64(), "n": pa.int64()}
    table = SourceTable(name="t", columns=tuple(SourceColumn(name=name, type=kind) for name, kind in types.items()), key=(key,))
    route = RouteConfig(tables="t", to="t", mask={"email": "hash"}, mask_secret="k")
    routed = RoutedTable(source="t", name="t", route=route, profile=ProfileConfig(), key=(key,))
    written = pa.table({"id": [1], "email": masked(pa.array([1]), "hash", "k"), "n": [7]})
    applier = ChangeApplier(Mock(), Mock(), Mock(), memory_bytes=1)
    applier._pieces = [TableWrite(routed=routed, action=WriteAction.UPSERT, rows=written)]
    found = applier._in_pieces(routed, table, (1,), ["email", "n"])[1]
    assert found == {name: DecodedValue(value) for name, value in known.items()}

"""What an ingest leaves out: tables that are set aside and files that are skipped, how each comes later, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from objcat.cli import app
from objcat.errors import IngestStopped, InvalidBatch, InvalidInput
from objcat.ingest.requests import add_request
from objcat.ingest.sink import LakeSink
from tests.ingest.landing import Landing, parquet_bytes
from tests.ingest.two_lakes import TwoLakes

DELETES = "[[source.files]]\ndelete_column = 'op'"


def version(lake: Any, name: str) -> int:
    """The number of commits of an ingest."""
    stored = lake.source_position(name, shared_log=name)
    assert stored is not None
    return int(stored.version)


def command(landing: Landing, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["ingest", arguments[0], str(landing.config_path), *arguments[1:]])


def put(landing: Landing, *numbers: int) -> None:
    for number in numbers:
        landing.parquet(f"log/{number}.parquet", [{"id": number, "op": "i"}])


def put_unfit(landing: Landing, number: int) -> None:
    """A file that a table without a key cannot take: it inserts a row, and then deletes one."""
    landing.parquet(f"log/{number}.parquet", [{"id": number, "op": "i"}, {"id": 1, "op": "d"}])


# ---- files of a table that is set aside


@pytest.mark.parametrize("how", ["resnapshot", "left_out"])
@pytest.mark.parametrize("at_once", [False, True])
def test_files_of_a_table_that_is_set_aside_come_when_it_is_taken_again(landing: Landing, how: str, at_once: bool) -> None:
    landing.configure(key=[], files=DELETES)
    put(landing, 1, 2)
    landing.once()
    put_unfit(landing, 3)
    if at_once:
        put(landing, *range(4, 10))
    assert "no key" in str(landing.once().tables["log"].aside)
    if not at_once:
        put(landing, *range(4, 10))
        landing.once()
    assert landing.ids("log") == [1, 2], "nothing is taken of a file in part"
    record = landing.record()
    assert record["log/3.parquet"]["state"] == "left_out" and record["log/3.parquet"]["rows"] is None
    assert {one["state"] for name, one in record.items() if name > "log/3"} <= {"left_out"}, "none is called taken"
    put(landing, 3)
    if how == "left_out":
        # A rule of the bucket removed what was taken long ago.
        for number in (1, 2):
            (landing.files / "log" / f"{number}.parquet").unlink()
    add_request(landing.lake, landing.config(), how, "log")  # type: ignore[arg-type]
    state = landing.once()
    assert state.tables["log"].aside is None and state.is_consistent
    assert landing.ids("log") == list(range(1, 10))
    assert {one["state"] for one in landing.record().values()} == {"taken"} and len(landing.record()) == 9
    put(landing, 10)
    landing.once()
    landing.once()
    assert sorted(landing.ids("log")) == list(range(1, 11))


def test_a_file_that_is_overwritten_while_its_table_is_set_aside_is_not_refused(landing: Landing) -> None:
    landing.configure(key=[], files=DELETES)
    put_unfit(landing, 1)
    landing.once()
    landing.once()
    put(landing, 1)
    dead = landing.once().dead
    add_request(landing.lake, landing.config(), "left_out", "log")
    assert landing.once().dead == dead == 0 and landing.ids("log") == [1]


def test_killed_while_what_was_left_out_is_taken(landing: Landing) -> None:
    landing.configure(key=[], files=DELETES)
    put(landing, 1)
    put_unfit(landing, 2)
    put(landing, *range(3, 12))
    landing.once()
    put(landing, 2)
    add_request(landing.lake, landing.config(), "left_out", "log")
    for commits in (1, 1, 1, 2):
        landing.killed_after_commits(commits)
    landing.once()
    assert sorted(landing.ids("log")) == list(range(1, 12))


def test_a_skipped_file_is_recorded_and_comes_on_request(landing: Landing) -> None:
    landing.configure(key=[])
    landing.once()
    for number in (1, 2):
        landing.parquet(f"log/{number}.parquet", [{"id": number}])
    add_request(landing.lake, landing.config(), "skip", "log/1.parquet")
    assert landing.once().dead == 1
    assert landing.ids("log") == [2] and landing.record()["log/1.parquet"]["state"] == "left_out"
    assert "The lake lacks what it has of log" in landing.dead()[0]["error"]
    add_request(landing.lake, landing.config(), "left_out", "log")
    landing.once()
    assert landing.ids("log") == [1, 2] and landing.record()["log/1.parquet"]["state"] == "taken"


def test_a_skipped_file_that_is_corrected_is_taken_by_the_same_run(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without a key refuses new versions of what it has. It has nothing of this file."""
    landing.configure(key=[])
    landing.once()
    for number in (1, 2):
        landing.parquet(f"log/{number}.parquet", [{"id": number}])
    add_request(landing.lake, landing.config(), "skip", "log/1.parquet")
    commit = LakeSink.commit

    def correcting(self: Any, writes: Any, *arguments: Any) -> Any:
        done = commit(self, writes, *arguments)
        if writes and not corrected:
            corrected.append(landing.parquet("log/1.parquet", [{"id": 7}]))
        return done

    corrected: list[Path] = []
    monkeypatch.setattr(LakeSink, "commit", correcting)
    landing.once()
    assert landing.once().dead == 1 and landing.ids("log") == [2, 7]


def test_what_was_left_out_of_a_folder_alone(landing: Landing) -> None:
    landing.once()
    assert "--left-out" in str(command(landing, "resnapshot", "--all", "--left-out").exception)
    done = command(landing, "resnapshot", "log", "--left-out", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["kind"] == "left_out"
    landing.config_path.write_text(landing.config_path.read_text().replace('kind = "folder"', 'kind = "objcat"'))
    assert "kind folder" in str(command(landing, "resnapshot", "log", "--left-out").exception)


# ---- routes that do not fit


@pytest.mark.parametrize("setting", ['mask = { emial = "null" }', 'drop = ["emial"]'])
def test_a_table_without_a_column_that_the_route_hides_is_set_aside(landing: Landing, setting: str) -> None:
    landing.configure(route=setting)
    landing.parquet("orders/1.parquet", [{"id": 1, "email": "secret"}])
    landing.parquet("items/1.parquet", [{"id": 2, "emial": "secret"}])
    state = landing.once()
    why = str(state.tables["orders"].aside)
    assert "'emial'" in why and "did you mean 'email'" in why and "resnapshot" in why and str(landing.config_path) in why
    assert "land.orders" not in landing.lake.tables(), "the column is not written as it is"
    assert [row["id"] for row in landing.rows("items")] == [2] and "secret" not in str(landing.rows("items"))
    landing.parquet("orders/2.parquet", [{"id": 3, "email": "secret"}])
    landing.once()
    landing.configure(route=setting.replace("emial", "email") + '\noptional = ["email"]')
    add_request(landing.lake, landing.config(), "left_out", "orders")
    landing.once()
    assert landing.ids() == [1, 3] and "secret" not in str(landing.rows("orders"))


def test_a_column_that_may_come_later_is_hidden_when_it_comes(landing: Landing) -> None:
    landing.configure(route='mask = { email = "hash" }\nmask_secret = "k"\noptional = ["email"]')
    landing.parquet("orders/1.parquet", [{"id": 1}])
    assert landing.once().tables["orders"].aside is None
    landing.parquet("orders/2.parquet", [{"id": 2, "email": "secret"}])
    landing.once()
    assert landing.ids() == [1, 2] and len(landing.rows("orders")[1]["email"]) == 64


def test_directories_whose_names_no_table_can_have_do_not_stop_others(landing: Landing) -> None:
    landing.parquet("orders/1.parquet", [{"id": 1}])
    landing.once()
    for name in ("my orders!", "Orders", "ingest=1", "a"):
        landing.parquet(f"{name}/1.parquet", [{"id": 7}])
    landing.parquet("orders/2.parquet", [{"id": 2}])
    state = landing.once()
    assert landing.ids() == [1, 2] and landing.ids("a") == [7]
    aside = {name: table.aside for name, table in state.tables.items() if table.aside is not None}
    assert set(aside) == {"my orders!", "Orders", "ingest=1"}
    assert "'land.my orders!' is not a table name" in str(aside["my orders!"]) and "to which orders is written too" in str(aside["Orders"])
    # The one that was there first stays, also after a start.
    assert landing.once().tables["orders"].aside is None
    landing.config_path.write_text(
        landing.config_path.read_text().replace("[[route]]", '[[route]]\ntables = "Orders"\nto = "land.more"\nkey = ["id"]\n\n[[route]]', 1)
    )
    add_request(landing.lake, landing.config(), "resnapshot", "Orders")
    landing.once()
    assert landing.ids("more") == [7]


def test_an_ingest_of_which_no_table_fits_its_route_does_not_begin(tmp_path: Path) -> None:
    lakes = TwoLakes(tmp_path)
    lakes.source.create_table("shop.items", pa.schema([pa.field("id", pa.int64(), nullable=False), ("email", pa.string())]), key=["id"])
    lakes.configure(route='mask = { emial = "null" }')
    with pytest.raises(IngestStopped, match=r"No table can be followed\. .*did you mean 'email'.* Nothing was read\."):
        lakes.once()
    assert lakes.lake.source_position("copy", shared_log="copy") is None


# ---- what `once` says and commits


def test_once_ends_with_1_while_a_table_that_a_route_follows_is_set_aside(landing: Landing) -> None:
    landing.configure(key=[], files=DELETES)
    landing.parquet("other/1.parquet", [{"id": 1, "op": "i"}])
    assert command(landing, "once").exit_code == 0
    put_unfit(landing, 1)
    for _ in range(2):
        done = command(landing, "once")
        assert done.exit_code == 1 and "set aside: log: log has no key" in done.stderr and "--left-out` takes them" in done.stderr
    done = command(landing, "once", "--json")
    assert done.exit_code == 1 and "no key" in json.loads(done.stdout.splitlines()[-1])["set_aside"]["log"]
    landing.config_path.write_text(
        landing.config_path.read_text().replace("[[route]]", '[[route]]\ntables = "log"\nskip = true\n\n[[route]]', 1)
    )
    assert command(landing, "once").exit_code == 0
    assert landing.ids("other") == [1]


def test_once_commits_nothing_where_nothing_is_new(landing: Landing, tmp_path: Path) -> None:
    landing.parquet("orders/1.parquet", [{"id": 1}])
    landing.once()
    before = version(landing.lake, "landing")
    for _ in range(3):
        landing.once()
    assert version(landing.lake, "landing") == before
    landing.parquet("orders/2.parquet", [{"id": 2}])
    landing.once()
    assert version(landing.lake, "landing") == before + 1 and landing.ids() == [1, 2]


def test_once_commits_nothing_where_a_lake_has_nothing_new(tmp_path: Path) -> None:
    lakes = TwoLakes(tmp_path)
    lakes.source.create_table("shop.items", pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"]).upsert([{"id": 1}])
    lakes.once()
    before = version(lakes.lake, "copy")
    for _ in range(3):
        lakes.once()
    assert version(lakes.lake, "copy") == before
    lakes.source.table("shop.items").upsert([{"id": 2}])
    lakes.once()
    assert version(lakes.lake, "copy") == before + 1 and lakes.differences("items") == []


def test_batches_are_whole_again_after_one_that_was_refused(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.configure()
    landing.config_path.write_text(landing.config_path.read_text().replace("batch_s = 0.05", "batch_s = 30\nbatch_rows = 5"))
    landing.once()
    before = version(landing.lake, "landing")
    for number in range(50):
        landing.parquet(f"orders/{number:02}.parquet", [{"id": number}])
    commit = LakeSink.commit

    def refusing(self: Any, writes: Any, *arguments: Any) -> Any:
        if len(writes) > 1 and not refused:
            refused.append(1)
            raise InvalidBatch("The batch is refused.")
        return commit(self, writes, *arguments)

    refused: list[int] = []
    monkeypatch.setattr(LakeSink, "commit", refusing)
    landing.once()
    assert refused and len(landing.ids()) == 50
    assert 14 <= version(landing.lake, "landing") - before <= 20, "5 alone, and 45 by fives"


# ---- skip


def test_a_request_to_skip_names_a_file_that_can_come(landing: Landing) -> None:
    landing.configure(files="[[source.files]]\npath = '(orders)/.*'")
    assert "has not begun" in str(command(landing, "skip", "orders/1.parquet").exception)
    landing.parquet("orders/1.parquet", [{"id": 1}])
    landing.parquet("other/1.parquet", [{"id": 1}])
    landing.once()
    landing.parquet("orders/2.parquet", [{"id": 2}])
    for text, said in {
        "order/2.parquet": "there is no file of that path",
        "0/16B3748": "there is no file of that path",
        "../orders/2.parquet": "there is no file of that path",
        "other/1.parquet": "no rule of",
        "orders/1.parquet": "was taken, or left out",
    }.items():
        done = command(landing, "skip", text)
        assert isinstance(done.exception, InvalidInput) and said in str(done.exception), (text, done)
        assert "Nothing was asked" in str(done.exception)
    done = command(landing, "skip", "orders/2.parquet")
    assert done.exit_code == 0 and "leave out the transaction at orders/2.parquet. It is at orders/1.parquet now." in done.stdout
    landing.once()
    assert landing.ids() == [1] and landing.record()["orders/2.parquet"]["state"] == "left_out"


# ---- columns of paths


def test_columns_of_directories(landing: Landing) -> None:
    files = '[[source.files]]\npath = "(orders)/.*"\npath_columns = { day = "date", region = "string" }'
    landing.configure(key=["id", "day"], files=files)
    rows = [{"id": 1, "region": "of the file"}, {"id": 2, "region": "of the file"}]
    landing.parquet("orders/day=2026-01-31/region=eu%2Fwest/1.parquet", rows)
    landing.parquet("orders/day=2026-02-01/region=__HIVE_DEFAULT_PARTITION__/1.parquet", rows[:1])
    landing.parquet("orders/day=soon/region=x/1.parquet", rows)
    landing.parquet("orders/day=2026-02-01/1.parquet", rows)
    landing.once()
    found = [(row["id"], str(row["day"]), row["region"]) for row in landing.rows("orders")]
    assert sorted(found) == [(1, "2026-01-31", "eu/west"), (1, "2026-02-01", None), (2, "2026-01-31", "eu/west")]
    errors = sorted(one["error"] for one in landing.dead())
    assert len(errors) == 2 and "no directory `region=...`" in errors[0] and "`day=soon` does not fit" in errors[1]


def test_columns_of_directories_are_text_and_come_with_every_format(landing: Landing) -> None:
    files = "[[source.files]]\npath_columns = ['day']\ncolumns = { id = 'bigint' }"
    landing.configure(files=files)
    landing.write("orders/day=01/a.csv", "id\n1\n")
    landing.write("orders/day=02/a.json", json.dumps({"id": 2, "day": "x"}))
    landing.write("orders/day=03/a.parquet", parquet_bytes([{"id": 3, "day": 9}]))
    landing.once()
    assert landing.rows("orders") == [{"id": 1, "day": "01"}, {"id": 2, "day": "02"}, {"id": 3, "day": "03"}]


def test_directories_give_no_column_that_is_not_named(landing: Landing) -> None:
    landing.parquet("orders/day=2026-01-31/1.parquet", [{"id": 1}])
    landing.once()
    assert landing.rows("orders") == [{"id": 1}]

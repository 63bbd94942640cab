"""A landing folder: each file once, whatever its name and time; broken files and rows are set apart; kills and requests."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading

import pyarrow as pa
import pytest

from fileio.env import default_env
from fileio.errors import InvalidConfig, ObjectChanged
from objcat.errors import IngestStopped, InvalidInput, SourceAway, SourceUnfit, TooManyBadRecords
from objcat.ingest.folder.file_reader import FileReader, FoundFile, ReadFile
from objcat.ingest.requests import add_request
from tests.ingest.landing import Landing, parquet_bytes
from tests.ingest.test_folder_formats import AVRO, EMPTY, avro_bytes

# ---- which files


def test_each_file_is_taken_once(landing: Landing) -> None:
    landing.once()
    assert landing.record() == {}
    landing.parquet("orders/b.parquet", [{"id": 1, "n": 1}, {"id": 2, "n": 1}])
    landing.parquet("orders/c.parquet", [{"id": 2, "n": 2}])
    landing.parquet("items/2024/a.parquet", [{"id": 7, "n": 0}])
    state = landing.once()
    assert landing.rows("orders") == [{"id": 1, "n": 1}, {"id": 2, "n": 2}] and landing.rows("items") == [{"id": 7, "n": 0}]
    assert state.is_consistent and state.transactions == 3
    assert {name: (row["state"], row["rows"], row["source_table"]) for name, row in landing.record().items()} == {
        "orders/b.parquet": ("taken", 2, "orders"),
        "orders/c.parquet": ("taken", 1, "orders"),
        "items/2024/a.parquet": ("taken", 1, "items"),
    }
    assert landing.once().transactions == 3


def test_a_file_that_comes_late_under_an_earlier_name_and_with_an_earlier_time(landing: Landing) -> None:
    landing.configure(key=[])
    landing.parquet("log/m.parquet", [{"id": 1}])
    landing.once()
    late = landing.parquet("log/a.parquet", [{"id": 2}])
    os.utime(late, (1_000_000_000, 1_000_000_000))
    landing.once()
    assert landing.ids("log") == [1, 2]
    landing.once()
    assert landing.ids("log") == [1, 2]


def test_hidden_files_and_other_names_are_left(landing: Landing) -> None:
    for name in ("orders/_SUCCESS", "orders/.x.parquet", "_temporary/orders/a.parquet", "orders/a.parquet.tmp", "orders/readme.txt"):
        landing.write(name, b"x")
    landing.parquet("orders/a.parquet", [{"id": 1}])
    assert landing.once().dead == 0 and landing.ids() == [1] and list(landing.record()) == ["orders/a.parquet"]


def test_an_overwritten_file_replaces_rows_by_their_key(landing: Landing) -> None:
    landing.parquet("orders/a.parquet", [{"id": 1, "n": 1}, {"id": 2, "n": 1}])
    landing.once()
    landing.parquet("orders/a.parquet", [{"id": 1, "n": 5}])
    landing.once()
    assert landing.rows("orders") == [{"id": 1, "n": 5}, {"id": 2, "n": 1}]
    assert landing.record()["orders/a.parquet"]["rows"] == 1


def test_an_overwritten_file_of_a_table_without_a_key_is_refused(landing: Landing) -> None:
    landing.configure(key=[])
    landing.parquet("log/a.parquet", [{"id": 1}])
    landing.once()
    landing.parquet("log/a.parquet", [{"id": 1}, {"id": 2}])
    assert landing.once().dead == 1
    assert landing.ids("log") == [1] and landing.record()["log/a.parquet"]["state"] == "refused"
    assert "overwritten" in landing.dead()[0]["error"]
    assert landing.once().dead == 1
    landing.parquet("log/a.parquet", [{"id": 3}])
    assert landing.once().dead == 2 and landing.ids("log") == [1]


def test_a_file_that_is_being_written_is_waited_for(landing: Landing) -> None:
    landing.configure(key=[], settle_s=0.4)
    whole = parquet_bytes([{"id": 1}, {"id": 2}])
    path = landing.files / "log" / "a.parquet"
    path.parent.mkdir()
    made = landing.ingest()
    runner = threading.Thread(target=made.run)
    runner.start()
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(whole), len(whole) // 8):
            file.write(whole[start : start + len(whole) // 8])
            default_env().sleep(0.1)
    for _ in range(200):
        if (made.metrics.value("rows_total") or 0) >= 3:
            break
        default_env().sleep(0.05)
    made.stop()
    runner.join(30)
    assert not runner.is_alive() and landing.ids("log") == [1, 2] and landing.dead() == []


def test_once_waits_for_a_file_that_may_still_be_written(landing: Landing) -> None:
    landing.configure(settle_s=0.3)
    path = landing.parquet("orders/a.parquet", [{"id": 1}])
    os.utime(path)
    landing.once()
    assert landing.ids() == [1]


def test_an_order_by_name(landing: Landing) -> None:
    landing.configure(source='order = "name"')
    landing.parquet("orders/2.parquet", [{"id": 1, "n": 2}])
    landing.parquet("orders/1.parquet", [{"id": 1, "n": 1}])
    landing.once()
    assert landing.rows("orders") == [{"id": 1, "n": 2}]


def test_more_files_than_one_look_finds(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.ingest.folder.looks.LOOK_FILES_MAX", 7)
    for number in range(40):
        landing.write(f"log/{number}.json", json.dumps({"id": number}))
    landing.configure(key=[], files="[[source.files]]\ncolumns = { id = 'bigint' }")
    assert landing.once().transactions == 40
    assert sorted(landing.ids("log")) == list(range(40))


# ---- what is broken


def test_a_broken_row_goes_to_the_dead_letters(landing: Landing) -> None:
    landing.configure(files='[[source.files]]\ncolumns = { id = "bigint", n = "int" }\n')
    landing.write("orders/1.csv", "id,n\n1,1\n2,x\n,3\n4,4,4\n5,5\n")
    landing.write("orders/2.json", '{"id": 6, "n": 6}\n{"id": 7\n[1]\n{"id": 8, "n": {"a": 1}}\n{"id": 9, "n": 9}\n')
    landing.parquet("orders/3.parquet", [{"id": 10, "n": 2**40}, {"id": None, "n": 1}, {"id": 11, "n": 11}])
    state = landing.once()
    assert sorted(landing.ids()) == [1, 5, 6, 9, 11] and state.dead == 8
    said = sorted(letter["error"] for letter in landing.dead())
    assert [text.split(":")[0] for text in said] == [
        "orders/1.csv, row 2",
        "orders/1.csv, row 3",
        "orders/1.csv, row 4",
        "orders/2.json, row 2",
        "orders/2.json, row 3",
        "orders/2.json, row 4",
        "orders/3.parquet, row 1",
        "orders/3.parquet, row 2",
    ]
    assert {(name, row["rows"], row["bad"]) for name, row in landing.record().items()} == {
        ("orders/1.csv", 2, 3),
        ("orders/2.json", 2, 3),
        ("orders/3.parquet", 1, 2),
    }


def test_a_broken_file_does_not_stop_others(landing: Landing) -> None:
    whole = parquet_bytes([{"id": number} for number in range(1000)])
    landing.write("orders/1.parquet", b"PAR1 is no file")
    landing.write("orders/2.parquet", whole[:-20])
    landing.write("orders/3.avro", avro_bytes(AVRO, [EMPTY | {"kind": None, "tags": None, "lines": []}])[:-30])
    landing.write("orders/4.json", '{"id": 1}')
    landing.parquet("orders/5.parquet", [{"id": 1}])
    assert landing.once().dead == 4 and landing.ids() == [1]
    assert {name for name, row in landing.record().items() if row["state"] == "broken"} == {
        "orders/1.parquet",
        "orders/2.parquet",
        "orders/3.avro",
        "orders/4.json",
    }
    assert landing.once().dead == 4
    landing.write("orders/2.parquet", whole)
    assert landing.once().dead == 4 and len(landing.ids()) == 1000


def test_nothing_is_taken_of_a_file_that_breaks_in_its_middle(landing: Landing) -> None:
    data = bytearray(parquet_bytes(pa.table({"id": pa.array(range(100_000), pa.int64())})))
    data[len(data) // 2 : len(data) // 2 + 200] = b"\xff" * 200
    landing.write("orders/1.parquet", bytes(data))
    landing.write("orders/2.csv.gz", gzip.compress(b"id\n" + b"".join(b"%d\n" % number for number in range(200_000)))[:-2000])
    landing.configure(files="[[source.files]]\ncolumns = { id = 'bigint' }")
    assert landing.once().dead == 2
    assert {row["state"] for row in landing.record().values()} == {"broken"} and "land.orders" not in landing.lake.tables()


def test_a_file_with_too_many_bad_rows_is_broken_as_a_whole(landing: Landing) -> None:
    landing.configure(files="[[source.files]]\ncolumns = { id = 'bigint' }", more="[dead_letters]\nrecords_max = 3\n")
    landing.write("orders/1.csv", "id\n1\n" + "x\n" * 5)
    landing.write("orders/2.csv", "id\n2\n")
    assert landing.once().dead == 1 and landing.ids() == [2]
    for number in range(5):
        landing.write(f"orders/b{number}.parquet", b"broken")
    with pytest.raises(TooManyBadRecords, match="records_max"):
        landing.once()


# ---- operation


def test_a_file_that_is_larger_than_the_memory_for_it(landing: Landing) -> None:
    landing.configure(run="transaction_bytes = 100000\nqueue_bytes = 100000")
    rows = pa.table({"id": pa.array(range(300_000), pa.int64()), "n": pa.array([0] * 300_000, pa.int64())})
    landing.parquet("orders/1.parquet", rows)
    landing.once()
    table = landing.lake.table("land.orders")
    assert table.scan().count() == 300_000
    counts = set()
    for slot in range(table.refresh().slot + 1):
        with contextlib.suppress(InvalidInput):
            counts.add(table.scan(as_of=slot).count())
    assert counts == {0, 300_000}


def test_killed_after_every_commit(landing: Landing) -> None:
    landing.configure(key=[])
    for number in range(12):
        landing.parquet(f"log/{number * 7 % 12}.parquet", [{"id": number * 10 + place} for place in range(10)])
    for commits in (0, 1, 2, 1, 3):
        landing.killed_after_commits(commits)
    landing.once()
    assert sorted(landing.ids("log")) == list(range(120))


def test_a_table_is_taken_again(landing: Landing) -> None:
    landing.configure(key=[])
    landing.parquet("log/1.parquet", [{"id": 1}])
    landing.parquet("other/1.parquet", [{"id": 1}])
    landing.once()
    (landing.files / "log" / "1.parquet").unlink()
    landing.parquet("log/2.parquet", [{"id": 2}])
    add_request(landing.lake, landing.config(), "resnapshot", "log")
    state = landing.once()
    assert landing.ids("log") == [2] and landing.ids("other") == [1] and state.is_consistent
    assert set(landing.record()) == {"log/2.parquet", "other/1.parquet"}
    add_request(landing.lake, landing.config(), "resnapshot_all")
    landing.once()
    assert landing.ids("log") == [2] and landing.ids("other") == [1] and len(landing.record()) == 2


def test_a_restore_stops_the_run(landing: Landing) -> None:
    landing.parquet("orders/1.parquet", [{"id": 1}])
    landing.once()
    slot = landing.lake.table("land.orders").snapshot.slot
    landing.parquet("orders/2.parquet", [{"id": 2}])
    landing.once()
    landing.lake.table("land.orders").restore(to=slot)
    with pytest.raises(IngestStopped, match="resnapshot CONFIG --all"):
        landing.once()
    add_request(landing.lake, landing.config(), "resnapshot_all")
    landing.once()
    assert landing.ids() == [1, 2]


def test_a_table_that_is_set_aside_loses_no_file(landing: Landing) -> None:
    landing.lake.create_table("land.orders", pa.schema([("id", pa.int64()), ("n", pa.date32())]), key=["id"], shared_log="landing")
    landing.parquet("orders/1.parquet", [{"id": 1, "n": "text"}])
    landing.parquet("items/1.parquet", [{"id": 1}])
    state = landing.once()
    assert state.tables["orders"].aside is not None and landing.ids("items") == [1]
    landing.lake.table("land.orders").alter.drop_column("n")
    add_request(landing.lake, landing.config(), "resnapshot", "orders")
    assert landing.once().tables["orders"].aside is None
    assert landing.rows("orders") == [{"id": 1, "n": "text"}]


def test_a_folder_that_cannot_be_listed(landing: Landing) -> None:
    landing.configure(folder="s3://bucket/x?nothing")
    with pytest.raises((SourceUnfit, InvalidConfig, IngestStopped)):
        landing.once()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("[[source.files]]\npath = '('", "not a regular expression"),
        ("[[source.files]]\ntable = '\\2'", "names a group"),
        ("[[source.files]]\ncolumns = { id = 'words' }", "'words'"),
        ("[[source.files]]\nheader = false", "without a header"),
        ("[[source.files]]\ndelimiter = ';;'", "one character"),
        ("[[source.files]]\ncolumn = 1", "column"),
    ],
)
def test_settings_that_do_not_fit(landing: Landing, files: str, said: str) -> None:
    landing.configure(files=files)
    with pytest.raises(InvalidConfig, match=said):
        landing.once()


def test_a_record_that_was_dropped_stops_the_run(landing: Landing) -> None:
    """Without its record a folder would bring every file again."""
    landing.configure(key=[])
    landing.parquet("log/1.parquet", [{"id": 1}])
    landing.once()
    landing.lake.drop_table("landing.ingest_files")
    for _ in range(2):
        with pytest.raises(IngestStopped, match=r"The record .* --all"):
            landing.once()
    assert landing.ids("log") == [1]
    add_request(landing.lake, landing.config(), "resnapshot_all")
    landing.once()
    assert landing.ids("log") == [1] and list(landing.record()) == ["log/1.parquet"]


def test_a_table_that_was_dropped_is_set_aside_and_taken_again(landing: Landing) -> None:
    landing.configure(key=[])
    landing.parquet("log/1.parquet", [{"id": 1}])
    landing.once()
    landing.lake.drop_table("land.log")
    landing.parquet("log/2.parquet", [{"id": 2}])
    assert landing.once().tables["log"].aside is not None
    add_request(landing.lake, landing.config(), "resnapshot", "log")
    landing.once()
    assert landing.ids("log") == [1, 2]


def test_a_table_that_others_filled_is_not_emptied_by_the_first_start(landing: Landing) -> None:
    landing.lake.create_table("land.log", pa.schema([("id", pa.int64())]), key=None, shared_log="landing")
    landing.lake.table("land.log").insert(pa.table({"id": [7]}))
    landing.configure(key=[])
    landing.parquet("log/1.parquet", [{"id": 1}])
    landing.once()
    assert landing.ids("log") == [1, 7]


def test_files_of_a_table_of_which_none_could_be_read_are_taken_again_on_request(landing: Landing) -> None:
    """No columns were configured for CSV, and then they were."""
    landing.write("orders/a.csv", b"id,n\n1,5\n")
    assert landing.once().dead == 1
    landing.configure(files="[[source.files]]\npath = 'orders/.*'\ntable = 'orders'\ncolumns = { id = \"bigint\", n = \"int\" }")
    assert landing.once().dead == 1 and landing.record()["orders/a.csv"]["state"] != "taken"
    add_request(landing.lake, landing.config(), "resnapshot", "orders")
    landing.once()
    assert landing.rows("orders") == [{"id": 1, "n": 5}] and landing.record()["orders/a.csv"]["state"] == "taken"


def test_a_folder_that_is_not_there_is_no_empty_one(landing: Landing) -> None:
    landing.files.rename(landing.files.with_name("elsewhere"))
    with pytest.raises(SourceAway, match=r"There is no folder .*landing for 'landing'"):
        landing.once()


def test_masks_of_a_file_that_is_larger_than_the_memory_for_it(landing: Landing) -> None:
    landing.configure(route='mask = { secret = "null", mail = "hash" }\nmask_secret = "k"', run="transaction_bytes = 1024")
    landing.parquet("orders/1.parquet", [{"id": at, "secret": "s", "mail": f"m{at}"} for at in range(500)])
    landing.once()
    rows = landing.rows("orders")
    assert len(rows) == 500 and {row["secret"] for row in rows} == {None} and {len(row["mail"]) for row in rows} == {64}


def test_files_after_one_that_was_left_out_on_request(landing: Landing) -> None:
    landing.once()
    landing.config_path.write_text(landing.config_path.read_text().replace("discover_s = 0.2", "discover_s = 3600"))
    landing.parquet("orders/1.parquet", [{"id": 1}])
    landing.parquet("orders/2.parquet", [{"id": 2}])
    add_request(landing.lake, landing.config(), "skip", "orders/1.parquet")
    landing.once()
    assert landing.ids() == [2]


def test_what_no_route_follows_any_more_is_not_taken_twice(landing: Landing) -> None:
    landing.configure(key=[])
    landing.parquet("log/1.parquet", [{"id": 1}])
    landing.parquet("other/1.parquet", [{"id": 1}])
    landing.once()
    every = landing.config_path.read_text()
    landing.config_path.write_text(every.replace('tables = "(.*)"', 'tables = "(other)"'))
    landing.once()
    add_request(landing.lake, landing.config(), "resnapshot_all")
    landing.once()
    landing.config_path.write_text(every)
    landing.once()
    assert landing.ids("log") == [1] and landing.ids("other") == [1]


def test_a_file_with_a_damaged_footer_does_not_stop_others(landing: Landing) -> None:
    data = parquet_bytes([{"id": at} for at in range(100)])
    length = int.from_bytes(data[-8:-4], "little")
    landing.write("orders/1.parquet", data[: -8 - length] + b"\xff" * length + data[-8:])
    landing.parquet("orders/2.parquet", [{"id": 2}])
    landing.once()
    assert landing.ids() == [2] and landing.record()["orders/1.parquet"]["state"] == "broken"


def test_a_file_that_changes_during_each_look_holds_up_nothing(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = FileReader.read, [0]

    def changed(self: FileReader, file: FoundFile) -> ReadFile:
        if "grows" not in file.meta.key:
            return read(self, file)
        asked[0] += 1
        assert asked[0] < 50, "it is waited for without end"
        raise ObjectChanged("it is another one")

    monkeypatch.setattr(FileReader, "read", changed)
    landing.parquet("orders/grows.parquet", [{"id": 1}])
    landing.parquet("orders/2.parquet", [{"id": 2}])
    landing.once()
    assert landing.ids() == [2] and list(landing.record()) == ["orders/2.parquet"] and asked[0] >= 2
    monkeypatch.undo()
    landing.once()
    assert landing.ids() == [1, 2]


def test_a_wider_type_is_known_after_a_start(landing: Landing) -> None:
    landing.config_path.write_text(landing.config_path.read_text().replace("discover_s = 0.2", "discover_s = 3600"))
    values = [pa.array([1], pa.int32()), pa.array([2**40], pa.int64()), pa.array([1.5], pa.float64()), pa.array([4], pa.int64())]
    for number, value in enumerate(values):
        landing.parquet(f"orders/{number}.parquet", pa.table({"id": [number], "n": value}))
        # double is wider than int, and not than bigint: the file is broken, and its table goes on.
        assert landing.once().tables["orders"].aside is None
    assert landing.ids() == [0, 1, 3] and landing.record()["orders/2.parquet"]["state"] == "broken"


def test_dead_letters_have_the_numbers_of_their_rows(landing: Landing) -> None:
    columns = 'columns = { id = "bigint", more = "bigint", n = "bigint" }'
    landing.configure(key=["id", "more"], files=f"[[source.files]]\n{columns}", more="[dead_letters]\nrecords_max = 100")
    good = ["1,1,1"] * 9
    lines = [*good, "1,1", *good, "1,1,x", "1,1,1,1", *good, ",1,1", *good, "1,,1"]
    landing.write("orders/1.csv", "id,more,n\n" + "\n".join(lines) + "\n")
    landing.once()
    wrong = {number for number, line in enumerate(lines, 1) if line != "1,1,1"}
    assert {int(row["error"].split("row ")[1].split(":")[0]) for row in landing.dead()} == wrong


def test_columns_that_no_table_can_have_are_broken_files(landing: Landing) -> None:
    landing.configure(files='[[source.files]]\npath = "(marked)/.*"\ndelete_column = "op"\n[[source.files]]')
    landing.parquet("marked/1.parquet", pa.table({"id": [1], "op": [{"is": True}]}))
    landing.parquet("marked/2.parquet", pa.table({"id": [2], "op": pa.array([b"\xff"])}))
    landing.parquet("marked/3.parquet", [{"id": 3, "op": "u"}])
    landing.parquet("plain/1.parquet", pa.table({"id": [1], "": ["has no name"]}))
    landing.once()
    states = {name: row["state"] for name, row in landing.record().items()}
    broken = ["marked/1.parquet", "marked/2.parquet", "plain/1.parquet"]
    assert states == {"marked/3.parquet": "taken", **dict.fromkeys(broken, "broken")} and landing.ids("marked") == [3]


def test_a_folder_with_the_lake_in_it(landing: Landing) -> None:
    folder = str(landing.files.parent)
    landing.configure(folder=folder)
    landing.parquet("orders/1.parquet", [{"id": 1}])
    with pytest.raises(SourceUnfit, match=r"has the lake .* in it"):
        landing.once()
    landing.configure(folder=folder, files="[[source.files]]\npath = 'landing/([^/]+)/.*'")
    landing.once()
    landing.once()
    assert landing.ids() == [1] and list(landing.record()) == ["landing/orders/1.parquet"]

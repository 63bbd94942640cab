"""An application for a real cluster: `python -m tests.cluster.driver SCENARIO MASTER DIRECTORY`. Prints one line of JSON at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.errors import InvalidInput, SparkJobLost
from objcat.inspection.doctor import examine
from objcat.spark import engine, foreach_batch, partition_moves, services
from objcat.spark.worker_task import BatchFunction
from objcat.timeline.commit import Committer

ROWS = 4000
PARTITIONS = 8
STRAGGLER = 5
WAIT_S_MAX = 60
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])


def session(master: str, directory: Path, python: str, **settings: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = python
    builder = SparkSession.builder.master(master).appName("objcat cluster test")
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for name, value in (quiet | settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "100ms",
}


def disturbed(frame: DataFrame, marks: Path, what: str) -> DataFrame:
    """The frame, whose straggling partition lets something happen before it gives its rows.

    what: "kill" kills the executor under its first attempt, in the middle of its rows; "speculate" keeps its first attempt waiting until
    another one runs beside it. Every attempt leaves a mark.
    """
    marks.mkdir()
    return frame.mapInArrow(_disturb(str(marks), what), frame.schema)


def _disturb(marks: str, what: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.taskAttemptId()
        Path(marks, f"{partition}-{attempt}").touch()
        first = partition == STRAGGLER and len(list(Path(marks).glob(f"{partition}-*"))) == 1
        for number, batch in enumerate(batches):
            if first and number == 1 and what == "kill":
                os.kill(_executor(), signal.SIGKILL)
                time.sleep(WAIT_S_MAX)
            if first and number == 1 and what == "speculate":
                deadline = time.monotonic() + WAIT_S_MAX
                while len(list(Path(marks).glob(f"{partition}-*"))) == 1 and time.monotonic() < deadline:
                    time.sleep(0.05)
            yield batch

    return run


def _executor() -> int:
    """The JVM above this Python worker: its parent is the daemon that forked it, whose parent is the executor."""
    daemon = os.getppid()
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])


def rows(spark: SparkSession, value: str, *, twice: bool) -> DataFrame:
    """twice: each key in two partitions, of which the later one counts, although its rows may come first through a shuffle."""
    said = f"concat(if(id < {ROWS * twice}, 'stale', '{value}'), id % {ROWS}) as value"
    return spark.range(0, ROWS * (1 + twice), 1, PARTITIONS).selectExpr(f"id % {ROWS} as id", said)


def survive(master: str, directory: Path) -> dict[str, Any]:
    """Every kind of write, with an executor that dies and attempts that run twice."""
    small_batches = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = session(master, directory, sys.executable, **SPECULATION, **small_batches)
    lake = objcat.connect(directory / "lake")
    found: dict[str, Any] = {}
    for kind in ("merge_on_read", "copy_on_write"):
        table = lake.create_table(kind, SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(4))
        for operation, what in (("insert", "kill"), ("upsert", "speculate"), ("delete", "speculate")):
            name = f"{kind}-{operation}-{what}"
            # Tasks that do not share a file group count a key that two of them have twice.
            twice = operation == "insert" or (operation == "upsert" and table.spec.rewrites)
            frame = disturbed(rows(spark, name, twice=twice), directory / name, what)
            if operation == "delete":
                frame = frame.where("id % 2 = 0")
            result = getattr(table, operation)(frame)
            expected = {i: f"{name}{i}" for i in range(ROWS)}
            if operation == "delete":
                expected = {i: f"{kind}-upsert-speculate{i}" for i in range(ROWS) if i % 2}
            local = table.scan().to_arrow()
            native = table.scan().to_spark(spark).toArrow()
            swept = sum(one.files for one in table.maintenance.rollback_failed_writes(older_than_s=0))
            found[name] = {
                "rows": result.rows,
                "swept": swept,
                "findings": [finding.says for finding in examine(table._context.timeline, deep=True).findings],
                "attempts": len(list((directory / name).glob(f"{STRAGGLER}-*"))),
                "right": all(
                    dict(zip(t["id"].to_pylist(), t["value"].to_pylist(), strict=True)) == expected and t.num_rows == len(expected)
                    for t in (local, native)
                ),
            }
    spark.stop()
    return found


def serve(master: str, directory: Path) -> dict[str, Any]:
    """Writes that read, services and rows that move, each with an executor that dies: in the middle of the rows that it is given, or with
    all of its files written and nothing told."""
    spark = session(master, directory, sys.executable, **{"spark.sql.execution.arrow.maxRecordsPerBatch": "100"})
    lake = objcat.connect(directory / "lake")
    keyed = lake.create_table("keyed", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    placed = pa.schema([*SCHEMA, pa.field("part", pa.int64())])
    placed_table = lake.create_table("moving", placed, key=["id"], index=objcat.RecordIndex(2), partition_by=["part"])
    without_key = lake.create_table("without_key", SCHEMA, key=None)
    old = [(i, f"old{i}") for i in range(ROWS)]
    keyed.insert([{"id": i, "value": value} for i, value in old])
    placed_table.insert([{"id": i, "value": value, "part": i % 2} for i, value in old])
    without_key.insert([{"id": i, "value": value} for i, value in old])
    above = [(i, f"above{i}") for i in range(ROWS // 2, ROWS // 2 * 3)]
    found: dict[str, Any] = {}

    def given(name: str) -> DataFrame:
        """Half of the keys and as many new ones, from a frame that loses its executor."""
        frame = spark.range(ROWS // 2, ROWS // 2 * 3, 1, PARTITIONS).selectExpr("id", "concat('above', id) as value")
        return disturbed(frame, directory / name, "kill")

    def check(
        name: str, table: objcat.Table, expected: Iterable[tuple[int, str]], work: Callable[[], Any], *, lethal: bool = False
    ) -> None:
        if lethal:
            with _dying_when_done(directory / name):
                work()
        else:
            work()
        scan = table.scan(columns=["id", "value"])
        both = [
            Counter(zip(t["id"].to_pylist(), t["value"].to_pylist(), strict=True))
            for t in (scan.to_arrow(), scan.to_spark(spark).toArrow())
        ]
        table.maintenance.rollback_failed_writes(older_than_s=0)
        found[name] = {
            "right": both == [Counter(expected)] * 2,
            "attempts": len(list((directory / name).iterdir())),
            "findings": [finding.says for finding in examine(table._context.timeline, deep=True).findings],
        }

    merged = dict(old[: ROWS // 2]) | dict(above)
    check("merge", keyed, merged.items(), lambda: keyed.merge(given("merge")).when_matched_update().when_not_matched_insert().execute())
    kept = {key: value for key, value in merged.items() if key >= ROWS // 4}
    check("delete where", keyed, kept.items(), lambda: keyed.delete(f"id < {ROWS // 4}", spark=spark), lethal=True)
    updated = {key: value if key % 2 else "even" for key, value in kept.items()}
    check("update", keyed, updated.items(), lambda: keyed.update({"value": "'even'"}, where="id % 2 = 0", spark=spark), lethal=True)
    check("compact", keyed, updated.items(), lambda: keyed.maintenance.compact(spark=spark), lethal=True)
    check("overwrite", keyed, above, lambda: keyed.overwrite(given("overwrite")))
    moved = lambda: placed_table.upsert(given("move").selectExpr("id", "value", "(id + 1) % 3 part"))  # noqa: E731 - one line of many
    check("move", placed_table, merged.items(), moved)
    check("compact moved", placed_table, merged.items(), lambda: placed_table.maintenance.compact(spark=spark), lethal=True)
    check("append", without_key, [*old, *above], lambda: without_key.insert(given("append")))
    check("bulk", without_key, [*old, *above * 2], lambda: without_key.bulk_insert(given("bulk"), sort=["value"]))
    save = lambda: given("format").write.format("objcat").mode("append").save(f"{directory}/lake/without_key")  # noqa: E731
    check("format", without_key, [*old, *above * 3], save)
    check("cluster", without_key, [*old, *above * 3], lambda: without_key.maintenance.cluster(["id"], spark=spark), lethal=True)
    left = [*old[: ROWS // 2], *[row for row in [*old, *above * 3] if row[0] >= ROWS]]
    gone = f"id >= {ROWS // 2} AND id < {ROWS}"
    check("delete without a key", without_key, left, lambda: without_key.delete(gone, spark=spark), lethal=True)
    spark.stop()
    return found


@contextmanager
def _dying_when_done(marks: Path) -> Iterator[None]:
    """Of the tasks that workers do for us, the first to end kills its executor, with all that it has written and nothing told."""
    marks.mkdir()
    rooms: list[Any] = [engine, services, partition_moves]
    own = rooms[0].spark_task

    def lethal(*given: Any) -> BatchFunction:
        function = own(*given)

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            told = list(function(batches))
            Path(marks, str(time.monotonic_ns())).touch()
            if len(list(marks.iterdir())) == 1:
                os.kill(_executor(), signal.SIGKILL)
                time.sleep(WAIT_S_MAX)
            yield from told

        return run

    for room in rooms:
        room.spark_task = lethal
    try:
        yield
    finally:
        for room in rooms:
            room.spark_task = own


def bare(master: str, directory: Path) -> dict[str, Any]:
    """What is said when the workers' Python has no objcat."""
    python = directory / "python"
    hidden = directory / "hidden" / "objcat"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'objcat'\", name='objcat')\n")
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{hidden.parent}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    spark = session(master, directory, str(python))
    table = objcat.connect(directory / "lake").create_table("t", SCHEMA, key=["id"])
    said: dict[str, Any] = {"slot": table.refresh().slot}
    try:
        table.upsert(rows(spark, "x", twice=False))
    except Exception as error:  # noqa: BLE001 - what it is, the test judges
        said |= {"kind": type(error).__name__, "text": str(error)}
    said |= {"slot_after": table.refresh().slot, "files": [str(path) for path in (directory / "lake").glob("tables/*/data/**/*.parquet")]}
    spark.stop()
    return said


def gone(_master: str, directory: Path) -> dict[str, Any]:
    """The JVM dies under its driver: while Spark writes, and while a commit asks for its slot."""
    table = objcat.connect(directory / "lake").create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    found: dict[str, Any] = {}
    for moment in ("_run", "try_commit"):
        spark = session("local[2]", directory, sys.executable)
        frame = rows(spark, moment, twice=False)
        place: Any = engine.SparkEngine if moment == "_run" else Committer
        did = getattr(place, moment)

        def killed(*given: Any, did: Any = did, **named: Any) -> Any:
            jvm: Any = SparkContext._gateway
            jvm.proc.kill()
            jvm.proc.wait()
            return did(*given, **named)

        setattr(place, moment, killed)
        try:
            found[moment] = table.upsert(frame).rows
        except SparkJobLost as lost:
            found[moment] = str(lost)
        setattr(place, moment, did)
        found[f"{moment} slot"] = objcat.connect(directory / "lake").table("t").refresh().slot
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = None
    return found


def stopped(_master: str, directory: Path) -> dict[str, Any]:
    """Another thread stops the session while Spark writes, and while it compacts; and what is said of it to whoever comes later."""
    table = objcat.connect(directory / "lake").create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    table.insert([{"id": i, "value": "old"} for i in range(ROWS)])
    table.upsert([{"id": i, "value": "new"} for i in range(10)])
    before = table.scan().to_arrow().sort_by("id")
    works: dict[str, Callable[[SparkSession, DataFrame], Any]] = {
        "upsert": lambda _, frame: table.upsert(frame),
        "merge": lambda _, frame: table.merge(frame).when_matched_update().execute(),
        "overwrite": lambda _, frame: table.overwrite(frame),
        "foreach_batch": lambda _, frame: foreach_batch(table, app_id="stopped")(frame, 0),
        "delete": lambda spark, _: table.delete("id < 5", spark=spark),
        "update": lambda spark, _: table.update({"value": "'x'"}, spark=spark),
        "compact": lambda spark, _: table.maintenance.compact(spark=spark),
        "maintain": lambda spark, _: table.maintenance.run(spark=spark),
        "scan": lambda spark, _: table.scan().to_spark(spark),
    }
    found: dict[str, Any] = {}

    def tell(name: str, work: Callable[[], Any]) -> None:
        try:
            found[name] = f"returned {work()!r}"
        except (SparkJobLost, InvalidInput) as said:
            found[name] = f"{type(said).__name__}: {said}"

    spark, held, done = _stopped_once_begun(directory, "upsert")
    frame = rows(spark, "x", twice=False)
    tell("upsert while it is stopped", lambda: table.upsert(frame.coalesce(1).mapInArrow(held, frame.schema)))
    done()
    other, held_by_workers, done = _stopped_once_begun(directory, "compact")
    tell("compact while it is stopped", lambda: _behind(held_by_workers, lambda: table.maintenance.compact(spark=other)))
    done()
    for name, work in works.items():
        tell(name, partial(work, spark, frame))
    table.maintenance.rollback_failed_writes(older_than_s=0)
    findings = [finding.says for finding in examine(table._context.timeline, deep=True).findings]
    return found | {"findings": findings, "same": before == table.scan().to_arrow().sort_by("id")}


def _behind(held: BatchFunction, work: Callable[[], Any]) -> Any:
    """Run work whose tasks on workers wait first."""
    place: Any = services
    own = place.spark_task

    def waiting(*given: Any) -> BatchFunction:
        function = own(*given)
        return lambda batches: function(held(batches))

    place.spark_task = waiting
    try:
        return work()
    finally:
        place.spark_task = own


def _stopped_once_begun(directory: Path, name: str) -> tuple[SparkSession, BatchFunction, Callable[[], None]]:
    """A session, what waits in a task of it until another thread has stopped it, and what waits for that thread."""
    spark = session("local[2]", directory, sys.executable)
    began, ended = str(directory / f"{name} began"), str(directory / f"{name} ended")
    os.mkfifo(began)
    os.mkfifo(ended)
    stopper = threading.Thread(target=_stop, args=(spark, began, ended))
    stopper.start()
    return spark, _waiting(began, ended), stopper.join


def _waiting(began: str, ended: str) -> BatchFunction:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Each end of a pipe waits for the other.
        Path(began).open("w").close()
        Path(ended).open().close()
        yield from batches

    return run


def _stop(spark: SparkSession, began: str, ended: str) -> None:
    Path(began).open().close()
    spark.stop()
    # Nobody waits at the other end any more where Spark has ended the worker by now.
    with suppress(OSError):
        os.close(os.open(ended, os.O_WRONLY | os.O_NONBLOCK))


if __name__ == "__main__":
    scenario = {"survive": survive, "serve": serve, "bare": bare, "gone": gone, "stopped": stopped}[sys.argv[1]]
    print(json.dumps(scenario(sys.argv[2], Path(sys.argv[3]))))

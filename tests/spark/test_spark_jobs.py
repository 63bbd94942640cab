"""What Spark shows of the jobs that writes begin."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

import objcat
from objcat.errors import SparkJobFailed, SparkJobLost
from objcat.spark import engine, versions
from objcat.spark.jobs import CHECKSUMS, described
from objcat.spark.worker_task import spark_task, translate_spark_errors
from tests.spark.sessions import session
from tests.spark.test_spark_breaking import fail

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.int64())])
LOSING = 5
"""The task to begin, of eight, at which what is shuffled is lost: some have ended."""


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("id", "id value")


def descriptions(spark: SparkSession) -> list[str]:
    """Of the stages that Spark remembers, the newest first."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    gateway: Any = spark.sparkContext._gateway
    quantiles = gateway.new_array(gateway.jvm.double, 0)
    stages: Any = spark.sparkContext._jsc.sc().statusStore().stageList(None, False, False, quantiles, None)
    found = [stages.apply(number).description() for number in range(stages.size())]
    return [one.get() for one in found if one.isDefined()]


def running_tasks(spark: SparkSession) -> int:
    infos: Any = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return sum(info.numRunningTasks() for info in infos)


@pytest.fixture
def keyed(tmp_path: Path) -> objcat.Table:
    return objcat.connect(tmp_path).create_table("shop.orders", SCHEMA, key=["id"], index=objcat.BucketIndex(2))


def test_a_write_says_what_it_is_and_the_description_of_before_is_back(spark: SparkSession, keyed: objcat.Table, tmp_path: Path) -> None:
    context = spark.sparkContext
    context.setJobGroup("mine", "my own work")
    try:
        keyed.insert(rows(spark, 10))
        keyed.upsert(rows(spark, 5))
        assert keyed.delete("value < 3", spark=spark)
        told = descriptions(spark)
        for expected in ("insert", "upsert", "find rows to delete in", "delete"):
            assert f"objcat: {expected} shop.orders" in told
        without_key = objcat.connect(tmp_path).create_table("shop.visits", SCHEMA, key=None)
        without_key.insert([{"id": 1, "value": 1}, {"id": 2, "value": 2}])
        assert without_key.delete("id = 1", spark=spark)
        assert "objcat: delete shop.visits" in descriptions(spark)
        with objcat.connect(tmp_path).transaction() as transaction:
            transaction["shop.orders"].delete(rows(spark, 1))
        assert context.getLocalProperty("spark.job.description") == "my own work"
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def test_a_write_that_fails_leaves_no_description_behind(spark: SparkSession, keyed: objcat.Table) -> None:
    frame = rows(spark, 5)
    with pytest.raises(SparkJobFailed, match="told to fail"):
        keyed.upsert(frame.mapInArrow(fail, frame.schema))
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def test_each_thread_has_its_own_description(spark: SparkSession, keyed: objcat.Table) -> None:
    context = spark.sparkContext
    seen: list[str | None] = []

    def other() -> None:
        context.setJobDescription("the other thread")
        keyed.upsert(rows(spark, 3))
        seen.append(context.getLocalProperty("spark.job.description"))

    thread = threading.Thread(target=other)
    thread.start()
    keyed.upsert(rows(spark, 4))
    thread.join()
    assert seen == ["the other thread"]
    assert context.getLocalProperty("spark.job.description") is None


WRITES: dict[str, Any] = {
    "upsert": lambda table, frame, _: table.upsert(frame),
    "merge": lambda table, frame, _: table.merge(frame).when_matched_update().execute(),
    "overwrite": lambda table, frame, _: table.overwrite(frame),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_cancelled_job_is_one_sentence_and_nothing_of_it_is_visible(
    spark: SparkSession, keyed: objcat.Table, tmp_path: Path, write: Any
) -> None:
    keyed.upsert([{"id": 1, "value": 0}])
    began, ended = str(tmp_path / "began"), str(tmp_path / "ended")
    os.mkfifo(began)
    os.mkfifo(ended)

    def waiting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Each end of a pipe waits for the other.
        Path(began).open("w").close()
        Path(ended).open().close()
        yield from batches

    def cancel() -> None:
        Path(began).open().close()
        spark.sparkContext.cancelAllJobs()
        Path(ended).open("w").close()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    frame = rows(spark, 5).coalesce(1)
    with pytest.raises(SparkJobLost, match=r"\(objcat: .* shop\.orders\): a job was cancelled\. Nothing of it is visible") as caught:
        write(keyed, frame.mapInArrow(waiting, frame.schema), spark)
    canceller.join()
    assert caught.value.__cause__ is not None
    assert keyed.refresh().slot == 1
    while running_tasks(spark):
        pass  # Spark would end Python workers of theirs that the next job has taken.
    assert write(keyed, rows(spark, 5), spark).slot == 2


def test_ctrl_c_ends_the_job_of_a_write_and_the_next_write_is_as_any_other(
    spark: SparkSession, keyed: objcat.Table, tmp_path: Path
) -> None:
    began, ended = str(tmp_path / "began"), str(tmp_path / "ended")
    os.mkfifo(began)
    os.mkfifo(ended)

    def waiting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(began).open("w").close()
        Path(ended).open().close()
        yield from batches

    def interrupt() -> None:
        Path(began).open().close()
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    spark.sparkContext.setJobGroup("interrupted", "a write")
    frame = rows(spark, 5).coalesce(1)
    # Before PySpark 4.3 its handler of Ctrl-C fails, and what it raises is an error of the call.
    with pytest.raises((KeyboardInterrupt, SparkJobLost)) as caught:
        keyed.upsert(frame.mapInArrow(waiting, frame.schema))
    interrupter.join()
    # Nobody waits at the other end any more where Spark has ended the worker by now.
    with suppress(OSError):
        os.close(os.open(ended, os.O_WRONLY | os.O_NONBLOCK))
    tracker = spark.sparkContext.statusTracker()
    (job,) = tracker.getJobIdsForGroup("interrupted")
    while (found := tracker.getJobInfo(job)) is None or found.status == "RUNNING":
        pass
    assert found.status == "FAILED", "the job went on for nobody"
    if isinstance(caught.value, SparkJobLost):
        assert "the call was broken off, by Ctrl-C perhaps. Nothing of it is visible" in str(caught.value)
    assert not spark.sparkContext.getLocalProperty("spark.job.tags")
    assert keyed.refresh().slot == 0
    done = keyed.upsert(rows(spark, 5))
    assert (done.slot, keyed.scan().count()) == (1, 5)
    keyed.maintenance.rollback_failed_writes(older_than_s=0)
    assert len(list(keyed._context.fileio.list_keys("data/"))) == done.files
    assert list(keyed._context.fileio.list_keys("intents/")) == []


def test_after_the_exit_of_a_handler_no_call_takes_the_answer_of_another(spark: SparkSession, keyed: objcat.Table, tmp_path: Path) -> None:
    """As of SIGTERM. PySpark waits until the job has ended, whatever anybody does."""
    began, ended = str(tmp_path / "began"), str(tmp_path / "ended")
    os.mkfifo(began)
    os.mkfifo(ended)

    def waiting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(began).open("w").close()
        Path(ended).open().close()
        yield from batches

    def signalled() -> None:
        Path(began).open().close()
        os.kill(os.getpid(), signal.SIGUSR1)

    def leave(*_: object) -> None:
        Path(ended).open("w").close()
        sys.exit(143)

    before = signal.signal(signal.SIGUSR1, leave)
    signaller = threading.Thread(target=signalled)
    signaller.start()
    frame = rows(spark, 5).coalesce(1)
    try:
        with pytest.raises(SystemExit):
            keyed.upsert(frame.mapInArrow(waiting, frame.schema))
    finally:
        signaller.join()
        signal.signal(signal.SIGUSR1, before)
    assert [spark.range(count).count() for count in (7, 8, 9)] == [7, 8, 9]
    assert not spark.sparkContext.getLocalProperty("spark.job.tags")
    assert keyed.refresh().slot == 0
    done = keyed.upsert(rows(spark, 5))
    assert (done.slot, keyed.scan().count()) == (1, 5)
    keyed.maintenance.rollback_failed_writes(older_than_s=0)
    assert len(list(keyed._context.fileio.list_keys("data/"))) == done.files


def test_a_generator_that_is_closed_within_a_job_leaves_its_thread_what_it_told_spark(spark: SparkSession) -> None:
    def within() -> Iterator[None]:
        with described(spark, "one"):
            yield

    context: Any = spark.sparkContext
    context.setLocalProperty("objcat.test", "kept")
    try:
        running = within()
        next(running)
        del running
        assert context.getLocalProperty("objcat.test") == "kept"
    finally:
        context.setLocalProperty("objcat.test", None)


@pytest.mark.skipif(not versions.HAS_CHECKSUMS, reason="Spark has these settings since version 4.1")
def test_jobs_see_that_rows_are_others_and_settings_are_as_before(spark: SparkSession) -> None:
    """As Spark 4.3 does by itself."""
    before = [spark.conf.get(name, None) for name in CHECKSUMS]
    with described(spark, "one"), described(spark, "another"):
        assert {spark.conf.get(name) for name in CHECKSUMS} == {"true"}
    assert [spark.conf.get(name, None) for name in CHECKSUMS] == before
    with session(spark, **{CHECKSUMS[0]: "false"}), described(spark, "one"):
        assert spark.conf.get(CHECKSUMS[0]) == "false"


@pytest.mark.skipif(not versions.HAS_CHECKSUMS, reason="Spark can tell that rows are others since version 4.1")
@pytest.mark.parametrize("operation", ["insert", "overwrite"])
def test_rows_that_are_others_when_they_are_computed_again_are_neither_lost_nor_there_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """What was shuffled is lost when some tasks have ended, as with an executor; the frame draws its keys."""
    # Of so many buckets every task has some.
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(32))
    shuffled = Path(spark.sparkContext.getConf().get("spark.local.dir", ""))
    began = tmp_path / "began"
    began.mkdir()

    def turn() -> int:
        """Tasks that begin at one time have numbers of their own."""
        for number in itertools.count():
            with suppress(FileExistsError):
                (began / str(number)).touch(exist_ok=False)
                return number
        raise AssertionError

    def losing(*given: Any) -> Any:
        function = spark_task(*given)

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            number = turn()
            for file in shuffled.glob("blockmgr-*/*/shuffle_*") if number == LOSING else ():
                file.unlink(missing_ok=True)
            yield from function(batches)

        return run

    def drawn(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = [int.from_bytes(os.urandom(7), "big") for _ in range(batch.num_rows)]
            yield pa.RecordBatch.from_arrays([pa.array(keys), batch.column(1)], names=["id", "value"])

    monkeypatch.setattr(engine, "spark_task", losing)
    with session(spark, **{"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "8"}):
        done = getattr(table, operation)(rows(spark, 2000).mapInArrow(drawn, "id long, value long"))
    values = table.scan().to_arrow()["value"].to_pylist()
    assert len(list(began.iterdir())) > 8, "no task was done again, so nothing was tried"
    assert done.rows == len(values) == len(set(values)) == 2000


def test_an_error_whose_words_have_gone_with_the_jvm_is_one_sentence() -> None:
    class Gone(Py4JError):  # type: ignore[misc]  # Py4J has no types
        """As that of a JVM, which is asked for what it says."""

        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "Connection refused")

    ended: Any = type("Ended", (), {"_jvm": None})()
    with pytest.raises(SparkJobLost, match="its JVM has ended"), translate_spark_errors(ended, "write to t"):
        raise Gone

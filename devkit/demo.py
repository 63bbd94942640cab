"""`./dev demo`: four writers upsert real data into one table at once. One is killed in mid-write, and the table is right."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.feather
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table as Grid

import objcat
from devkit import toolchain
from devkit.demo_checks import Check, Story, check_spark, check_story, show_checks, summarize
from devkit.demo_derived import derived_demo
from devkit.demo_engines import MIRRORS, READ_BY_OTHERS, check_engines, check_mirrors
from devkit.demo_flights import KEY, SCHEMA, Step, january, scheduled
from devkit.demo_hunter import Hunter
from devkit.demo_writer import TABLE, Commit, LocalWriter, MarkedEnv, Place, SparkWriter, Writer, WriterDied
from devkit.ingest_demo import SECONDS, ingest_demo
from devkit.ingest_demo_process import IngestFailed
from devkit.install import InstallError
from devkit.servers import ServerError, ServerName, Servers
from fileio.errors import FileIOError
from objcat.errors import ObjcatError
from objcat.timeline.entry import Entry
from objcat.timeline.rollback import CommittedAt, Resolution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER_OF: dict[str, ServerName] = {"s3": "versitygw", "gcs": "fake-gcs-server", "azure": "azurite"}
LOCAL_WRITERS = 3
WIDTH = 150
DAYS_MIN = 8
"""Two rounds: one for all writers, one for the hunter."""
SPARE_STEPS_MAX = 500
"""The largest number of steps that the victim repeats when it was too quick for the hunter."""


Round = dict[str, list[Step]]
"""The steps of each writer, by name. All writers run at once."""


class Race:
    """The writers at work on one table, round by round. `commits`: acknowledged ones. `settled`: the outcome of the interrupted write."""

    def __init__(self, table: objcat.Table, writers: Sequence[Writer], console: Console, progress: Progress) -> None:
        self.commits: list[Commit] = []
        self.settled: Resolution | None = None
        self._table = table
        self._console = console
        self._progress = progress
        self._writer_of = {writer.name: writer for writer in writers}
        self._successor, *_, self._victim = [writer for writer in writers if isinstance(writer, LocalWriter)]
        self._hunter = Hunter(table._context.fileio, self._victim)
        self._bars: dict[str, TaskID] = {}

    @property
    def killed_txn(self) -> str | None:
        """The transaction of the interrupted write."""
        return self._hunter.txn

    def run(self, rounds: Sequence[Round]) -> None:
        """Run all rounds. From the second on, the victim is hunted. Raises WriterDied when another writer dies."""
        for name in self._writer_of:
            self._bars[name] = self._progress.add_task(name, total=sum(len(dealt.get(name, ())) for dealt in rounds))
        with ThreadPoolExecutor(len(self._writer_of), thread_name_prefix="writer") as pool:
            for number, dealt in enumerate(rounds):
                if number == 1:
                    self._hunter.hunt(after=max(commit.txn for commit in self.commits if commit.writer == self._victim.name))
                for future in [pool.submit(self._work, name, steps) for name, steps in dealt.items()]:
                    future.result()
        for step in islice(cycle(rounds[0][self._victim.name]), SPARE_STEPS_MAX):
            if self.killed_txn is not None:
                break
            self._work(self._victim.name, [step])
        self._hunter.end()
        self.commits.sort(key=lambda commit: commit.slot)

    def _work(self, name: str, steps: Sequence[Step]) -> None:
        """Commit steps one after the other, by the writer of that name or by its successor."""
        for step in steps:
            try:
                self.commits.append(self._writer_of[name].write(step))
            except WriterDied:
                self._hunter.end()
                if name != self._victim.name or self.killed_txn is None:
                    raise
                self.commits.append(self._take_over(self.killed_txn, step))
            self._progress.advance(self._bars[name])

    def _take_over(self, txn: str, step: Step) -> Commit:
        """Settle the victim's last write for good. Then the successor writes this step, and every later step of the victim."""
        victim, successor = self._victim, self._successor
        self._writer_of[victim.name] = successor
        self._progress.update(self._bars[victim.name], description=f"{victim.name}, then {successor.name}")
        self.settled = self._table.resolve(txn)
        committed = isinstance(self.settled, CommittedAt)
        quick = f" ({self._hunter.tries} earlier commits were too quick)" if self._hunter.tries else ""
        self._console.print(
            f"[red]SIGKILL to {victim.name}[/red] during the {step}. Its data was in the store, its commit was not{quick}.\n{txn} "
            f"{'turns out committed' if committed else 'is rolled back'} at slot {self.settled.slot}. {successor.name} takes over.",
            highlight=False,
            soft_wrap=True,
        )
        if not committed:
            return successor.write(step)
        entry = self._table.inspect.history()[self.settled.slot]
        return Commit(victim.name, step, entry.slot, entry.txn, entry.committed_at_ms, 0, 0, {})


def deal(days: int, names: Sequence[str]) -> list[Round]:
    """The days in rounds, one day per writer: its actual times, then a correction of the day that its neighbour writes."""
    rounds = []
    for first in range(1, days + 1, len(names)):
        of_round = range(first, min(first + len(names), days + 1))
        corrected = [*of_round[1:], of_round[0]]
        steps = zip(names, of_round, corrected, strict=False)
        rounds.append({name: [Step("actual", day), Step("correction", other)] for name, day, other in steps})
    return rounds


def start_spark(scratch: Path) -> SparkSession:
    """One quiet Spark session in this process, with two executor threads."""
    os.environ["JAVA_HOME"] = str(toolchain.java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    logging = scratch / "log4j2.properties"
    logging.write_text(
        "rootLogger.level = warn\nrootLogger.appenderRef.none.ref = none\nappender.none.type = Null\nappender.none.name = none\n"
    )
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging}",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]").appName("objcat demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # The first job of a session starts its Python workers. Do that before the race.
    session.range(2).mapInArrow(lambda batches: batches, "id bigint").collect()
    return session


def _stop_spark(starting: Future[SparkSession]) -> None:
    if starting.exception() is None:
        starting.result().stop()


def demo(console: Console, *, store: str, path: Path | None, days: int, with_spark: bool, with_engines: bool = False) -> list[Check]:
    """Run the whole story and return its checks."""
    began_s = time.monotonic()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="objcat-demo-", ignore_cleanup_errors=True)))
        background = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="spark"))
        starting = background.submit(start_spark, scratch) if with_spark else None
        if starting is not None:
            console.print("Spark starts in the background.")
            stack.callback(_stop_spark, starting)
        url, options = str(path or scratch / "lake"), {}
        if store != "file":
            with console.status(f"starting {SERVER_OF[store]}"):
                server = stack.enter_context(Servers()).start(SERVER_OF[store]).fresh_bucket()
            url, options = f"{server.url}/lake", dict(server.options)
        locals_ = [LocalWriter(f"local-{number}", mark=str(number)) for number in range(1, LOCAL_WRITERS + 1)]
        for local in locals_:
            stack.callback(local.close)
        flown = january(days)
        pyarrow.feather.write_feather(flown, scratch / "flown.feather", compression="uncompressed")
        place = Place(url, options, str(scratch / "flown.feather"))

        table, inserted = _create(console, place, flown)
        with console.status("waiting until all writers can begin together"):
            for local in locals_:
                local.open(place)
            spark = starting.result() if starting is not None else None
        writers: list[Writer] = [*([SparkWriter(spark, place, flown)] if spark else []), *locals_]
        race = _race(console, table, writers, days)

        _show_timeline(console, table.inspect.history(), inserted, race.commits)
        with console.status("reading the table as of the insert and as of now"):
            before, now = table.scan(as_of=inserted.slot).to_arrow(), table.scan().to_arrow()
        _show_time_travel(console, before, now, slot=inserted.slot)
        with console.status("checking"):
            checks = check_story(Story(table, flown, inserted, before, now, race.commits, race.killed_txn, race.settled))
            if spark is not None:
                checks += check_spark(spark, {None: now, inserted.slot: before})
        table.maintenance.mirror()
        if store in READ_BY_OTHERS:
            with console.status("reading the mirrors of the table by pyiceberg and deltalake"):
                checks += check_mirrors(table, {inserted.slot: before, table.snapshot.slot: now}, options)
        if with_engines:
            with console.status("reading the mirrors of the table by every engine"):
                checks += check_engines(table, table.snapshot.slot, now)
        show_checks(console, checks, time.monotonic() - began_s)
        return checks


def _create(console: Console, place: Place, flown: pa.Table) -> tuple[objcat.Table, objcat.CommitResult]:
    """Create the table with its scheduled flights."""
    table = objcat.connect(place.url, place.options, env=MarkedEnv("0")).create_table(
        TABLE, SCHEMA, key=KEY, index=objcat.BucketIndex(8), properties=MIRRORS
    )
    console.print(
        f"[bold]{TABLE}[/bold] is at {table._context.fileio.url}. Its key is ({', '.join(KEY)}), checked against the data.", soft_wrap=True
    )
    console.print(
        "It has no ordering column. The later commit wins, so the order of the slots alone decides what a flight shows.", soft_wrap=True
    )
    inserted = table.insert(scheduled(flown), metadata={"writer": "schedule", "step": "flights as scheduled"})
    console.print(f"{inserted.rows} scheduled flights are inserted in slot {inserted.slot}. Their actual times are null.", soft_wrap=True)
    return table, inserted


def _race(console: Console, table: objcat.Table, writers: Sequence[Writer], days: int) -> Race:
    """Run all writers at once."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console.print(
        f"{len(writers)} writers upsert the actual times, one day at a time. Each corrects the day that another is writing "
        "(the corrections are made up).",
        soft_wrap=True,
    )
    with Progress(*columns, console=console) as progress:
        race = Race(table, writers, console, progress)
        race.run(deal(days, [writer.name for writer in writers]))
    return race


def _show_timeline(console: Console, history: Sequence[Entry], inserted: objcat.CommitResult, commits: Sequence[Commit]) -> None:
    by_slot = {commit.slot: commit for commit in commits}
    grid = Grid(title="The timeline", title_justify="left")
    for name in ("slot", "base", "action", "writer", "what", "rows", "committed", "requests of its writer", "slots lost"):
        grid.add_column(name, justify="right" if name in ("slot", "base", "rows", "slots lost") else "left", no_wrap=True)
    for entry in history:
        told = by_slot.get(entry.slot) or (inserted if entry.slot == inserted.slot else None)
        rolled_back = f"rolls back {entry.rollback_of[-16:]}" if entry.rollback_of else ""
        grid.add_row(
            str(entry.slot),
            str(entry.base) if entry.base >= 0 else "",
            str(entry.action),
            told.writer if isinstance(told, Commit) else entry.metadata.get("writer", ""),
            str(told.step) if isinstance(told, Commit) else entry.metadata.get("step", rolled_back),
            str(told.rows) if told else "",
            f"{datetime.fromtimestamp(entry.committed_at_ms / 1000, UTC):%H:%M:%S.%f}"[:-3],
            ", ".join(f"{count} {kind}" for kind, count in sorted(told.requests.items())) if told else "",
            str(told.slots_lost) if told else "",
        )
    console.print(grid, crop=False, width=max(console.width, WIDTH))
    lost = sum(commit.slots_lost for commit in commits)
    console.print(
        f"{len(commits)} commits lost {lost} slots to each other and took the next one without writing a file again. "
        "base is the newest slot that a writer knew at its start. Spark writes by statements, whose requests are not told.",
        soft_wrap=True,
    )


def _show_time_travel(console: Console, before: pa.Table, now: pa.Table, *, slot: int) -> None:
    grid = Grid(title=f"Time travel: scan(as_of={slot}), and scan()", title_justify="left")
    for name in ("airport", "flights then", "now", "arrived then", "now", "mean delay then", "now"):
        grid.add_column(name, justify="left" if name == "airport" else "right")
    for then, later in zip(summarize(before), summarize(now), strict=True):
        cells = [f"{at['flight_count']}" for at in (then, later)] + [f"{at['arr_delay_count']}" for at in (then, later)]
        delays = ["-" if at["arr_delay_mean"] is None else f"{at['arr_delay_mean']:.1f} min" for at in (then, later)]
        grid.add_row(str(then["origin"]), *cells, *delays)
    console.print(grid)


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev demo", description="See objcat work: four writers upsert flights into one table at once, and one is killed."
    )
    parser.add_argument("--store", choices=["file", *SERVER_OF], default="file", help="a directory, or a local server of that kind")
    parser.add_argument(
        "--path",
        type=Path,
        help="with --store file: the directory of the lake, which stays, and with --ingest of the plot; by default a temporary one",
    )
    parser.add_argument("--days", type=int, default=31, help=f"days of January 2013, {DAYS_MIN} to 31")
    parser.add_argument("--engines", action="store_true", help="read the table by every engine at the end; installs them first")
    parser.add_argument("--no-spark", action="store_true", help="three local writers only")
    parser.add_argument("--ingest", action="store_true", help="another story: a database is followed, and its ingest is killed twice")
    parser.add_argument("--derived", action="store_true", help="another story: derived tables follow flights, weather and airlines")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="with --ingest: how long the database is followed")
    parsed = parser.parse_args(arguments)
    if not DAYS_MIN <= parsed.days <= 31:
        parser.error(f"--days {parsed.days} is out of range. Use {DAYS_MIN} to 31.")
    if parsed.ingest and (parsed.store != "file" or parsed.days != 31 or parsed.engines or parsed.no_spark):
        parser.error("--ingest takes --path and --seconds alone. Leave the others out.")
    if parsed.derived and (parsed.store != "file" or parsed.engines or parsed.no_spark or parsed.ingest):
        parser.error("--derived takes --path and --days alone. Leave the others out.")
    if not 1 <= parsed.seconds <= 3600 or (parsed.seconds != SECONDS and not parsed.ingest):
        parser.error(f"--seconds {parsed.seconds:g} does not fit. Use 1 to 3600, with --ingest.")
    if parsed.path is not None and parsed.store != "file":
        parser.error(f"--path needs --store file. The lake of --store {parsed.store} is on a server that ends with the demo.")
    if parsed.engines and parsed.store != "file":
        parser.error(f"--engines needs --store file. Engines read no server of --store {parsed.store} here.")
    return parsed


def main(arguments: Sequence[str]) -> int:
    """Run the demo. Returns 0 when every check holds."""
    parsed = _arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    try:
        if parsed.derived:
            checks = derived_demo(console, path=parsed.path, days=parsed.days)
        elif parsed.ingest:
            checks = ingest_demo(console, path=parsed.path, seconds=parsed.seconds)
        else:
            checks = demo(
                console, store=parsed.store, path=parsed.path, days=parsed.days, with_spark=not parsed.no_spark, with_engines=parsed.engines
            )
    except (ObjcatError, FileIOError, ServerError, InstallError, toolchain.ToolchainError, WriterDied, IngestFailed) as error:
        print(f"dev demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`./dev demo --ingest`: a database is followed into a lake. The ingest is killed twice, and the lake is right."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

import objcat
from devkit.databases import MariaDbServer
from devkit.demo_checks import Check, show_checks
from devkit.demo_hunter import Hunter
from devkit.ingest_demo_checks import SOURCE, IngestStory, Kill, SlotState, check_ingest, read_entries, read_states
from devkit.ingest_demo_process import IngestFailed, IngestProcess, call_ingest
from devkit.ingest_demo_shop import ALTER, CUSTOMERS, DATABASE, KEYS, ORDERS, PRODUCTS, DemoShop, ShopWriters
from devkit.lag_plot import LagMark, LagPlot, LagPoint
from objcat.timeline.rollback import CommittedAt

SECONDS = 20.0
"""How long the shop is followed, without starts and checks."""
COMMITS_BEFORE_KILL = 5
CONFIG = """\
[lake]
url = "{lake}"

[source]
name = "{source}"
kind = "mariadb"
connection = "mysql://objcat@127.0.0.1:{port}"

[[route]]
tables = '{database}\\.(.*)'
to = '{source}.\\1'

[run]
chunk_rows = 1_000  # so few that reading these small tables takes many commits
"""


class IngestDemo:
    """The demo as it runs. For one thread.

    Args:
        console: where it tells what happens.
        folder: for the configuration, the lake, the plot and the page of the status.
        seconds: how long the shop is followed.
        stays: whether somebody looks into the folder later.
    """

    def __init__(self, console: Console, folder: Path, *, seconds: float, stays: bool) -> None:
        self._console = console
        self._stays = stays
        self._folder = folder
        self._third_s = seconds / 3
        self._began_s = time.monotonic()
        self._began_ms = time.time_ns() // 1_000_000
        self._config = folder / "shop.toml"
        self._marks: list[LagMark] = []

    def run(self) -> list[Check]:
        """Run the whole story and return its checks. Raises IngestFailed, ServerError, InstallError and errors of objcat."""
        with ExitStack() as stack:
            with self._console.status("starting MariaDB"):
                server = stack.enter_context(MariaDbServer())
                shop = DemoShop(server)
            stack.callback(shop.close)
            self._introduce(shop)
            lake = objcat.connect(str(self._folder / "lake"))
            writers = ShopWriters(shop)
            stack.callback(writers.close)
            self._tell("three writers buy, cancel and move")
            story = IngestStory(lake, shop.sums, {})
            self._read_tables(story, stack)
            self._follow(story, stack, shop, writers)
            story.source_rows = {table: shop.rows(table) for table in KEYS}
            return self._conclude(story)

    # ---- the story

    def _read_tables(self, story: IngestStory, stack: ExitStack) -> None:
        """The tables are read, until the process is killed."""
        ingest = self._start(stack)
        with self._console.status("the tables are read"):
            ingest.wait("reading the tables", lambda it: len(it.commits) >= COMMITS_BEFORE_KILL)
            self._kill(story, ingest)

    def _follow(self, story: IngestStory, stack: ExitStack, shop: DemoShop, writers: ShopWriters) -> None:
        """The changes are followed through a change of the schema and another kill, until the writers stop."""
        ingest = self._start(stack)
        with self._console.status("the tables are read"):
            ingest.wait("the end of the tables", lambda it: it.is_consistent)
        self._tell(f"all tables are read: from slot {ingest.commits[-1]['slot']} on, each slot is the shop at one moment")
        self._watch(ingest)
        story.altered_slot = story.lake.table(f"{SOURCE}.orders").snapshot.slot
        shop.run(ALTER)
        writers.use_channel()
        self._marks.append(LagMark(self._now_s(), "A", "ALTER TABLE"))
        self._tell(f"{ALTER}; new orders name their channel")
        self._watch(ingest)
        self._hunt(story, ingest)
        ingest = self._start(stack)
        ingest.wait("its first commit after the kill", lambda it: it.is_consistent)
        self._watch(ingest)
        story.transactions = writers.stop()
        self._tell(f"the writers stop after {story.transactions:,} transactions")
        ingest.stop()
        self._tell(f"SIGTERM ends the ingest; objcat ingest once: {call_ingest('once', self._config)}")

    def _start(self, stack: ExitStack) -> IngestProcess:
        ingest = IngestProcess(self._config)
        stack.callback(ingest.close)
        self._tell(f"objcat ingest run {self._config.name}")
        return ingest

    def _watch(self, ingest: IngestProcess) -> None:
        """Let it follow for a third of the time, and until it has committed."""
        end_s, before = time.monotonic() + self._third_s, len(ingest.commits)
        with self._console.status("the changes are followed") as status:

            def is_done(it: IngestProcess) -> bool:
                last = it.commits[-1]
                status.update(f"the changes are followed: slot {last['slot']}, {last['changes']:,} changes")
                return time.monotonic() >= end_s and len(it.commits) > before

            ingest.wait("a commit of changes", is_done)

    def _kill(self, story: IngestStory, ingest: IngestProcess) -> None:
        ingest.kill()
        story.kills.append(Kill(time.time_ns() // 1_000_000, len(ingest.commits), ingest.reads))
        self._marks.append(LagMark(self._now_s(), "K", "SIGKILL"))
        self._tell(f"[red]SIGKILL[/red] after {len(ingest.commits)} commits, while it reads {ingest.reads}", markup=True)

    def _hunt(self, story: IngestStory, ingest: IngestProcess) -> None:
        """Kill the ingest after the data of a batch is in the store, and before its commit is."""
        table = story.lake.table(f"{SOURCE}.orders")
        hunter = Hunter(table._context.fileio, ingest)
        with self._console.status("waiting for a batch that is half written"):
            hunter.hunt(after=read_entries(story.lake)[-1].txn)
            try:
                ingest.wait("a batch that is half written", lambda it: it.process.poll() is not None and hunter.txn is not None)
            finally:
                hunter.end()
        ingest.kill()
        story.kills.append(Kill(time.time_ns() // 1_000_000, len(ingest.commits), ingest.reads, hunter.txn))
        self._marks.append(LagMark(self._now_s(), "K", "SIGKILL"))
        self._tell(
            f"[red]SIGKILL[/red] after {len(ingest.commits)} commits: the data of the next batch was in the store, its commit was not",
            markup=True,
        )

    # ---- the end

    def _conclude(self, story: IngestStory) -> list[Check]:
        """Read the lake, show it, and check it."""
        self._show_status()
        with self._console.status("reading the lake at every slot"):
            txn = next((kill.txn for kill in story.kills if kill.txn), None)
            if txn is not None:
                story.settled = story.lake.table(f"{SOURCE}.orders").resolve(txn)
            entries = read_entries(story.lake)
            states = read_states(story.lake, entries)
        self._show_lag(states)
        self._show_time_travel(story, states)
        with self._console.status("checking"):
            checks = check_ingest(story, entries, states)
        show_checks(self._console, checks, time.monotonic() - self._began_s, are_numbered=True)
        return checks

    def _introduce(self, shop: DemoShop) -> None:
        text = CONFIG.format(lake=self._folder / "lake", source=SOURCE, database=DATABASE, port=shop.port)
        self._config.write_text(text)
        self._print(
            f"[bold]MariaDB {escape(shop.version)}[/bold] has a shop: {CUSTOMERS:,} customers, {PRODUCTS} products, {ORDERS:,} orders."
        )
        self._print(
            f"A purchase moves money and goods between them. So balances and payments always add up to {shop.sums.money:,}, and stock and "
            f"ordered goods to {shop.sums.goods:,}."
        )
        self._print(f"This is all that the ingest is told, in {self._config.name}:")
        self._print("\n".join(f"    {line}" for line in text.splitlines()), markup=False)

    def _show_status(self) -> None:
        self._print(f"objcat ingest status {self._config.name}:")
        self._print("\n".join(f"    {line}".rstrip() for line in call_ingest("status", self._config).splitlines()), markup=False)
        if self._stays:
            call_ingest("status", self._config, "--html", str(self._folder / "status.html"))

    def _show_lag(self, states: Sequence[SlotState]) -> None:
        """How far the lake was behind, from the first consistent slot to the one that has the last order."""
        points = []
        for state in states:
            points.append(LagPoint((state.committed_at_ms - self._began_ms) / 1000, (state.newest_ms - self._began_ms) / 1000))
            if state.newest_ms == states[-1].newest_ms:
                break
        if len(points) < 2:
            return
        marks = [mark for mark in self._marks if points[0].at_s < mark.at_s < points[-1].at_s]
        plot = LagPlot(points, marks)
        greatest = plot.highest_s(plot.first_s, plot.last_s)
        self._print(
            f"\nAge of the newest order in the lake, by time since the start: {plot.median_s():.2f} s half the time, {greatest:.2f} s at "
            "most. A: ALTER TABLE, K: SIGKILL."
        )
        self._print("\n".join(plot.text()), markup=False)
        (self._folder / "lag.svg").write_text(plot.svg())

    def _show_time_travel(self, story: IngestStory, states: Sequence[SlotState]) -> None:
        grid = Grid(title="\nTime travel: the shop as of some slots", title_justify="left")
        for name in ("slot", "committed (UTC)", "orders", "balances and payments", "stock and ordered goods", "columns of orders"):
            grid.add_column(name, justify="right")
        before = [state for state in states if state.slot <= story.altered_slot]
        table = story.lake.table(f"{SOURCE}.orders")
        for state in dict.fromkeys([*states[:1], *before[-1:], *states[-1:]]):
            columns = table.scan(as_of=state.slot).schema.names
            at = f"{datetime.fromtimestamp(state.committed_at_ms / 1000, UTC):%H:%M:%S.%f}"[:-3]
            grid.add_row(str(state.slot), at, f"{state.orders:,}", f"{state.sums.money:,}", f"{state.sums.goods:,}", str(len(columns)))
        self._console.print(grid)
        if isinstance(story.settled, CommittedAt):
            self._print("The batch that was cut off turned out to be committed.")

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _tell(self, what: str, *, markup: bool = False) -> None:
        self._print(f"{self._now_s():5.1f} s  {what if markup else escape(what)}")

    def _print(self, text: str, *, markup: bool = True) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=markup)


def ingest_demo(console: Console, *, path: Path | None, seconds: float) -> list[Check]:
    """Run the demo.

    Args:
        console: where it tells what happens.
        path: a folder that stays, with nothing of an earlier demo in it; None: a temporary one.
        seconds: how long the shop is followed.

    Returns:
        Its checks.

    Raises:
        IngestFailed, ServerError, InstallError, ObjcatError: what the message says.
    """
    with ExitStack() as stack:
        if path is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="objcat-demo-", ignore_cleanup_errors=True)))
        else:
            folder = path.absolute()
            if (folder / "lake").exists():
                raise IngestFailed(f"{folder / 'lake'} exists. Name another folder, or remove it.")
            folder.mkdir(parents=True, exist_ok=True)
        checks = IngestDemo(console, folder, seconds=seconds, stays=path is not None).run()
        if path is not None:
            console.print(f"{folder} has shop.toml, the lake, lag.svg and status.html.", soft_wrap=True, highlight=False)
        return checks

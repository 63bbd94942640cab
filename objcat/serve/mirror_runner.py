"""`MirrorRunner`: brings the mirror of a table up to its newest slot before a client loads the table.

It does so for the mirrors of tables themselves, for those of `SideMirrors`, or for both.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from functools import partial

from fileio.errors import FileIOError
from objcat.errors import ObjcatError
from objcat.lake.context import LakeContext
from objcat.metadata.properties import mirrors_of
from objcat.serve.request_metrics import RequestMetrics
from objcat.serve.served_names import ServedTable
from objcat.serve.side_mirrors import SideMirrors

logger = logging.getLogger("objcat.serve")

ICEBERG = "iceberg"
RUNNING_MAX = 4
"""The most tables that are mirrored at once, so that threads are left for answers."""


class MirrorRunner:
    """Mirrors tables in threads. One table is mirrored once at a time, and all requests for it wait for the same round.

    Args:
        lake: with the logs of the tables.
        metrics: where failures are counted.
        wait_s: how many seconds a request waits. The round goes on after that.
        own: whether to write the mirrors that tables have by their property.
        others: writes the mirrors of the other tables. None: they have none.
    """

    def __init__(self, lake: LakeContext, metrics: RequestMetrics, *, wait_s: float, own: bool, others: SideMirrors | None) -> None:
        self._own = own
        self._others = others
        self._lake = lake
        self._metrics = metrics
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._running: dict[str, Future[None]] = {}

    async def catch_up(self, served: ServedTable) -> None:
        """Wait until the mirror of a table shows its newest slot, or until the time is over. Never raises: failures are logged."""
        table = served.entry.binding.table
        with self._lock:
            running = self._running.get(table)
            if running is None:
                if len(self._running) >= RUNNING_MAX:
                    return
                running = self._lake.fileio.env.submit(partial(self._mirror, served.entry.binding.name))
                self._running[table] = running
                running.add_done_callback(lambda _: self._end(table))
        _, waiting = await asyncio.wait([asyncio.wrap_future(running)], timeout=self._wait_s)
        if waiting:
            logger.info("The mirror of %s takes longer than %s seconds. Its last slot is served.", served.entry.binding.name, self._wait_s)

    def _end(self, table: str) -> None:
        with self._lock:
            self._running.pop(table, None)

    def _mirror(self, name: str) -> None:
        try:
            table = self._lake.open_table(name)
            if ICEBERG in mirrors_of(table.properties):
                if self._own:
                    table.maintenance.mirror()
            elif self._others is not None:
                report = self._others.catch_up(self._lake.binding_of(name).binding)
                if report.held:
                    logger.warning("The mirror of %s waits: %s", name, report.held)
        except (ObjcatError, FileIOError) as error:
            self._metrics.note_mirror_failure()
            logger.warning("The mirror of %s could not catch up, so its last slot is served: %s", name, error)

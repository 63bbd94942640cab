"""What the catalog answers for one table: the newest metadata of its mirror, or why there is none."""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict

from objcat.errors import ObjcatError, TableClosed, TableNotFound
from objcat.lake.context import LakeContext
from objcat.metadata.properties import mirrors_of
from objcat.mirror.formats import folder_of
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirrorFolder
from objcat.serve.answers import no_mirror, no_mirror_yet, no_such_table, unusable_mirror
from objcat.serve.mirror_runner import ICEBERG
from objcat.serve.mirrored_metadata import MetadataReader, MirroredMetadata
from objcat.serve.request_metrics import RequestMetrics
from objcat.serve.served_names import ServedTable
from objcat.serve.side_mirrors import SideMirrors
from objcat.table.table import Table

logger = logging.getLogger("objcat.serve")

CACHED_TABLES_MAX = 10_000
"""The most tables of which a process remembers the newest metadata."""


class TableLoader:
    """Loads the metadata of tables. Safe for many threads.

    Args:
        lake: with the logs of the tables.
        metrics: where to note what was served.
        cache_s: how many seconds an answer may be old.
        others: where the mirrors of tables without one of their own are. None: they have none.
    """

    def __init__(self, lake: LakeContext, metrics: RequestMetrics, *, cache_s: float, others: SideMirrors | None = None) -> None:
        self._others = others
        self._lake = lake
        self._metrics = metrics
        self._cache_s = cache_s
        self._reader = MetadataReader()
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, tuple[MirroredMetadata, float]] = OrderedDict()
        self._folders: dict[str, MirrorFolder] = {}

    def load(self, served: ServedTable) -> MirroredMetadata:
        """The newest metadata of a table.

        Raises:
            Refusal: the table was dropped, or has no mirror that can be served.
            FileIOError: the store failed.
        """
        key = served.entry.binding.table
        now_s = self._lake.fileio.env.monotonic_s()
        with self._lock:
            known, loaded_s = self._loaded.get(key, (None, 0.0))
        if known is not None and now_s - loaded_s < self._cache_s:
            return known
        table = self._open(served)
        has_none = table is not None and ICEBERG not in mirrors_of(table.properties)
        if has_none and self._others is None:
            raise no_mirror(served.entry.binding.name)
        folder = self._others.folder_of(served.entry.binding) if has_none and self._others is not None else self._folder(served)
        goes_on = known is not None and known.is_at(folder)
        found = self._read(served, folder, known=known.version if goes_on and known is not None else 0)
        if found is None:
            raise no_mirror_yet(served.entry.binding.name) if has_none else no_mirror(served.entry.binding.name)
        self._metrics.note_table(served.entry.binding.name, found.slot, None if table is None else max(0, table.snapshot.slot - found.slot))
        with self._lock:
            self._loaded[key] = (found, now_s)
            self._loaded.move_to_end(key)
            while len(self._loaded) > CACHED_TABLES_MAX:
                self._loaded.popitem(last=False)
        return found

    def _read(self, served: ServedTable, folder: MirrorFolder, *, known: int) -> MirroredMetadata | None:
        try:
            return self._reader.newest(folder, known=known)
        except (CorruptMirror, ForeignMetadata) as error:
            logger.error("The mirror of %s cannot be served: %s", served.entry.binding.name, error)
            raise unusable_mirror(served.entry.binding.name) from error

    def is_fresh(self, served: ServedTable) -> bool:
        """Whether the next `load` of a table answers without the store."""
        with self._lock:
            _, loaded_s = self._loaded.get(served.entry.binding.table, (None, -math.inf))
        return self._lake.fileio.env.monotonic_s() - loaded_s < self._cache_s

    def _folder(self, served: ServedTable) -> MirrorFolder:
        """Where the mirror of a table is. It never moves. One GET where tables share a log, at the first time."""
        binding = served.entry.binding
        found = self._folders.get(binding.table)
        if found is None:
            timeline = self._lake.timeline(binding.prefix)
            # A table that is alone in its log has its mirror there, and slot 0 need not be read.
            alone = MirrorFolder(timeline.fileio, "", binding.table, binding.name)
            found = folder_of(timeline, binding.table, binding.name) if binding.shared_log else alone
            with self._lock:
                if len(self._folders) >= CACHED_TABLES_MAX:
                    self._folders.clear()
                self._folders[binding.table] = found
        return found

    def _open(self, served: ServedTable) -> Table | None:
        """A handle of the table. None where objcat cannot read its log: what was mirrored before is still served."""
        name = served.entry.binding.name
        try:
            return self._lake.open_table(name)
        except (TableNotFound, TableClosed) as error:
            raise no_such_table(name) from error
        except ObjcatError as error:
            logger.warning("The log of %s cannot be read, so its last mirrored slot is served: %s", name, error)
            return None

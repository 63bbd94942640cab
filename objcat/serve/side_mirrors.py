"""`SideMirrors`: Iceberg mirrors of tables that have none of their own, in a store of the operator's choice.

A reader opens manifests by their paths, with its own access to the store, so these must be objects somewhere. Here they are below a
prefix apart from the tables: nothing is written below a table, and nothing is lost when the prefix is deleted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from fileio.errors import InvalidConfig
from fileio.store import FileIO
from objcat.catalog.names import NameBinding
from objcat.lake.context import LakeContext
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import MIRRORS
from objcat.mirror.iceberg.objects import METADATA, pointer_name
from objcat.mirror.mirror import MirrorReport, TableMirrors
from objcat.mirror.model import MirrorFolder
from objcat.mirror.retention import EXPIRED_AFTER_MS

FOLLOWED_MAX = 256
"""The most tables of which a process remembers what their mirrors hold. Others cost more requests."""
EXPIRED_EVERY_S = 3600.0
"""How often objects that no readable slot names are looked for, in seconds, for each table that is loaded."""
PROPERTIES: Mapping[str, str] = {MIRRORS: "iceberg"}
"""What counts in place of the properties of the table."""


class SideMirrors:
    """Mirrors below `<table id>/` of a store. Any number of servers may share it. Safe for many threads, for one table one at a time.

    Args:
        lake: with the logs of the tables.
        store: where the mirrors go. Clients must be able to read it.

    Raises:
        InvalidConfig: the store is within a table or the names of the lake.
    """

    def __init__(self, lake: LakeContext, store: FileIO) -> None:
        below = f"{store.url.rstrip('/')}/".removeprefix(f"{lake.fileio.url.rstrip('/')}/")
        if below == "" or below.split("/", 1)[0] in ("tables", "_catalog"):
            raise InvalidConfig(f"Mirrors at {store.url} would be among the objects of the lake. Choose a prefix of their own for them.")
        self._lake = lake
        self._store = store
        self._lock = threading.Lock()
        self._followed: OrderedDict[str, _Followed] = OrderedDict()

    def folder_of(self, binding: NameBinding) -> MirrorFolder:
        """Where the mirror of a table is. Sends no request."""
        data = self._lake.timeline(binding.prefix).fileio
        return MirrorFolder(self._store, f"{binding.table}/", binding.table, binding.name, data)

    def catch_up(self, binding: NameBinding) -> MirrorReport:
        """Mirror all slots of a table that are not mirrored yet.

        Raises:
            ObjcatError, FileIOError: the mirror failed. Slots that were mirrored stay.
        """
        timeline, view = self._lake.open_log(binding.prefix)
        with self._lock:
            found = self._followed.pop(binding.table, None)
        place = (self.folder_of(binding), PROPERTIES)
        if found is not None and not found.is_there(place[0]):
            # What is remembered of a mirror that was deleted must not be built upon.
            found = None
        with self._lock:
            if found is None:
                found = _Followed(TableMirrors(timeline, binding.table, binding.name, Manifests(timeline.fileio), elsewhere=place))
            self._followed[binding.table] = found
            while len(self._followed) > FOLLOWED_MAX:
                self._followed.popitem(last=False)
        (report,) = found.mirrors.catch_up(view)
        found.slot = report.slot
        env = self._store.env
        if report.written and env.monotonic_s() - found.expired_s >= EXPIRED_EVERY_S:
            for form in found.mirrors.formats(view):
                form.expire(modified_before_ms=env.now_ms() - EXPIRED_AFTER_MS)
            found.expired_s = env.monotonic_s()
        return report


class _Followed:
    """A table, its newest mirrored slot, and when the objects of its mirror were looked through last."""

    def __init__(self, mirrors: TableMirrors) -> None:
        self.mirrors = mirrors
        self.slot = -1
        self.expired_s = float("-inf")

    def is_there(self, folder: MirrorFolder) -> bool:
        """Whether the mirror still has the slot that it had. One HEAD."""
        return self.slot < 0 or folder.fileio.exists(f"{folder.folder}{METADATA}{pointer_name(self.slot)}")

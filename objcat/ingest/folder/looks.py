"""`FolderLooks`: which files a look at a folder finds, and which of them are whole."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from fileio.contract import ObjectMeta, Version
from fileio.env import Env
from fileio.store import FileIO
from objcat.ingest.folder.file_reader import FoundFile
from objcat.ingest.folder.file_record import FileRecord, Novelty
from objcat.ingest.folder.settings import SETTLE_S, FileRule, FolderSettings, format_of
from objcat.ingest.routes import Router

LOOK_FILES_MAX = 20_000
"""A look finds so many files at most. When there are more, another look follows at once."""
CLOCKS_APART_S = 60.0
"""A file that was last modified so much longer ago than it has to be settled is taken in the first look, whatever the clocks say."""
SECOND_LOOK_S = 1.0
"""After a look that found files which have to be seen again, the next one comes within so long."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look found.

    Args:
        files: to take, in their order.
        is_whole: whether these are all.
        reached: the number of a look of which every file is in `files` or was taken: files that still settle were first seen after it.
    """

    files: Sequence[FoundFile]
    is_whole: bool
    reached: int


@dataclass(slots=True)
class _Settling:
    """A young file that is not taken yet: its version, when it was first seen, and in which look."""

    version: str
    since_s: float
    look: int
    seen_in: int


_Order = tuple[int, str] | tuple[str]


def routed_file(meta: ObjectMeta, rules: Sequence[FileRule], router: Router) -> FoundFile | None:
    """A listed file with its table; None when it is not taken."""
    kind = format_of(meta.key)
    if kind is None:
        return None
    for rule in rules:
        if found := rule.pattern.fullmatch(meta.key):
            table = found.expand(rule.settings.table)
            return FoundFile(meta, table, kind, rule) if router.follows(table) else None
    return None


class FolderLooks:
    """Looks at a folder. For one thread.

    A listing of several pages, or of a file system, is no snapshot: it may have a file, and miss an older one that came to an earlier page
    meanwhile. The next listing has that one. So a young file is taken when it is seen a second time, and not before young files that come
    before it in the order and were not missed by more than the first of these listings.

    Args:
        fileio: the folder.
        settings, rules: of the source.
        router: says which tables are followed.
        record: the files that were taken.
        env: the clock.

    Attributes:
        waiting: tables whose files wait in the folder: they are set aside.
    """

    waiting: Collection[str] = ()

    def __init__(
        self, fileio: FileIO, settings: FolderSettings, rules: Sequence[FileRule], router: Router, record: FileRecord, env: Env
    ) -> None:
        self._fileio = fileio
        self._settings = settings
        self._rules = rules
        self._router = router
        self._record = record
        self._env = env
        self._settling: dict[str, _Settling] = {}
        self._first_waiting: dict[int, _Order] = {}
        self._is_file_system = fileio.url.startswith("file:")
        self.settle_s = settings.settle_s if settings.settle_s is not None else SETTLE_S if self._is_file_system else 0.0

    def look(self, number: int) -> Look:
        """List the folder. `number`: greater than that of the look before."""
        self._first_waiting = {}
        found = heapq.nsmallest(LOOK_FILES_MAX + 1, self._candidates(number), key=lambda file: self._order(file.meta))
        self._settling = {key: one for key, one in self._settling.items() if one.seen_in == number}
        is_whole = len(found) <= LOOK_FILES_MAX
        taken = [file for file in found[:LOOK_FILES_MAX] if not self._has_one_before(file.meta)]
        for file in taken:
            self._settling.pop(file.meta.key, None)
        waiting = [one.look for one in self._settling.values()]
        return Look(taken, is_whole, min([number, *(look - 1 for look in waiting)]))

    @property
    def is_settling(self) -> bool:
        """Whether the last look found files that have to be seen again."""
        return bool(self._settling)

    def takes(self, key: str) -> bool:
        """Whether a file of that name would be taken."""
        return routed_file(ObjectMeta(key=key, size=0, version=Version(""), modified_ms=0), self._rules, self._router) is not None

    def _candidates(self, number: int) -> Iterator[FoundFile]:
        began_ms = self._env.now_ms()
        is_snapshot = not self._is_file_system
        for page in self._fileio.list():
            is_snapshot = is_snapshot and page.cursor is None
            listed = [
                file
                for meta in page.objects
                if (file := routed_file(meta, self._rules, self._router)) is not None and file.table not in self.waiting
            ]
            for file, novelty in zip(listed, self._record.compare([file.meta for file in listed]), strict=True):
                if novelty is Novelty.KNOWN or not self._is_settled(file.meta, number, began_ms, is_snapshot=is_snapshot):
                    continue
                is_repeated = novelty is Novelty.OVERWRITTEN
                yield FoundFile(file.meta, file.table, file.kind, file.rule, is_repeated, self._router.keeps_history(file.table))

    def _is_settled(self, meta: ObjectMeta, number: int, began_ms: int, *, is_snapshot: bool) -> bool:
        """Whether a file has stayed as it is for long enough, and was seen before where a listing may miss others."""
        before = self._settling.get(meta.key)
        is_old = began_ms - meta.modified_ms >= (self.settle_s + CLOCKS_APART_S) * 1000
        if (before is None and is_old) or (is_snapshot and not self.settle_s):
            return True
        now_s = self._env.monotonic_s()
        if before is None or before.version != meta.version:
            before = self._settling[meta.key] = _Settling(str(meta.version), now_s, number, number)
        before.seen_in = number
        if before.look < number and now_s - before.since_s >= self.settle_s:
            return True
        order = self._order(meta)
        self._first_waiting[before.look] = min(order, self._first_waiting.get(before.look, order))
        return False

    def _has_one_before(self, meta: ObjectMeta) -> bool:
        """Whether a file that comes before this one waits, and may have been there when this one was first seen."""
        one = self._settling.get(meta.key)
        return one is not None and any(look <= one.look + 1 and order < self._order(meta) for look, order in self._first_waiting.items())

    def _order(self, meta: ObjectMeta) -> _Order:
        return (meta.modified_ms, meta.key) if self._settings.order == "modified" else (meta.key,)

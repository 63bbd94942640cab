"""`FolderLooks`: which files a look at a folder finds, and which of them are whole."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fileio.contract import ListPage, ObjectMeta
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
    """A file that may still be written: its version, when it was first seen, and in which look."""

    version: str
    since_s: float
    look: int
    seen_in: int


class FolderLooks:
    """Looks at a folder. For one thread.

    Args:
        fileio: the folder.
        settings, rules: of the source.
        router: says which tables are followed.
        record: the files that were taken.
        env: the clock.
    """

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
        is_file_system = fileio.url.startswith("file:")
        self.settle_s = settings.settle_s if settings.settle_s is not None else SETTLE_S if is_file_system else 0.0

    def look(self, number: int) -> Look:
        """List the folder. `number`: greater than that of the look before."""
        order = _by_modified if self._settings.order == "modified" else _by_name
        found = heapq.nsmallest(LOOK_FILES_MAX + 1, self._candidates(number), key=order)
        self._settling = {key: one for key, one in self._settling.items() if one.seen_in == number}
        waiting = [one.look for one in self._settling.values()]
        is_whole = len(found) <= LOOK_FILES_MAX
        return Look(found[:LOOK_FILES_MAX], is_whole, min([number, *(look - 1 for look in waiting)]))

    @property
    def is_settling(self) -> bool:
        """Whether the last look found files that may still be written."""
        return bool(self._settling)

    def _candidates(self, number: int) -> Iterator[FoundFile]:
        for page in self._fileio.list():
            yield from self._of_page(page, number)

    def _of_page(self, page: ListPage, number: int) -> Iterator[FoundFile]:
        listed = [file for meta in page.objects if (file := self._routed(meta)) is not None]
        for file, novelty in zip(listed, self._record.compare([file.meta for file in listed]), strict=True):
            if novelty is Novelty.KNOWN or not self._is_settled(file.meta, number):
                continue
            is_repeated = novelty is Novelty.OVERWRITTEN
            yield FoundFile(file.meta, file.table, file.kind, file.rule, is_repeated, self._router.keeps_history(file.table))

    def _routed(self, meta: ObjectMeta) -> FoundFile | None:
        """A listed file with its table; None when it is not taken."""
        kind = format_of(meta.key)
        if kind is None:
            return None
        for rule in self._rules:
            if found := rule.pattern.fullmatch(meta.key):
                table = found.expand(rule.settings.table)
                return FoundFile(meta, table, kind, rule) if self._router.follows(table) else None
        return None

    def _is_settled(self, meta: ObjectMeta, number: int) -> bool:
        """Whether a file has stayed as it is for long enough."""
        if not self.settle_s or self._env.now_ms() - meta.modified_ms >= (self.settle_s + CLOCKS_APART_S) * 1000:
            return True
        now_s = self._env.monotonic_s()
        before = self._settling.get(meta.key)
        if before is None or before.version != meta.version:
            self._settling[meta.key] = _Settling(str(meta.version), now_s, number, number)
            return False
        before.seen_in = number
        return now_s - before.since_s >= self.settle_s


_Order = Callable[[FoundFile], tuple[int, str] | str]


def _by_modified(file: FoundFile) -> tuple[int, str]:
    return file.meta.modified_ms, file.meta.key


def _by_name(file: FoundFile) -> str:
    return file.meta.key

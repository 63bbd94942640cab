"""`FolderSource`: a folder of files as a `ChangeSource`. Each file is one transaction. Begin with `transactions`.

The folder has no log, so its stream is a series of looks: what is there, and what of it is not in the record of taken files
(`FileRecord`). A position has the number of the last look that was taken whole, and the last file.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fileio.env import Env
from fileio.errors import CredentialsError, FileIOError, InvalidKey, NotFound, ObjectChanged, PermissionDenied, Throttled, Unavailable
from fileio.registry import open_store
from objcat.errors import IngestStopped, SourceAway, SourceUnfit
from objcat.ingest.config import IngestConfig
from objcat.ingest.folder.file_reader import FileReader, FoundFile, ReadFile
from objcat.ingest.folder.file_record import RECORD_TABLE, FileRecord, Novelty
from objcat.ingest.folder.looks import SECOND_LOOK_S, FolderLooks, routed_file
from objcat.ingest.folder.settings import FileRule, FolderSettings, folder_settings
from objcat.ingest.folder.table_schemas import TableSchemas
from objcat.ingest.model import (
    Change,
    Position,
    SchemaChanged,
    SourceReport,
    SourceTable,
    SourceTransaction,
    TableTruncated,
)
from objcat.ingest.routes import Router
from objcat.ingest.stream_source import StreamSource
from objcat.lake.lake import Lake, connect

LOOK, FILE, AGAIN, LEFT_OUT, LATER = "look", "file", "again", "left_out", "later"
"""Fields of a position: the last whole look, the last file, tables that are to be emptied and taken again, tables of which the files are to
be taken that were left out, and tables that are to be emptied when they are no longer set aside."""
KEEPS_LEFT_OUT = True
"""The record has what was left out, see `objcat.ingest.sources.keeps_left_out`."""
EVERY = "*"
LOCAL = "file://"
MARK = 0
"""The mark of every file: there are no chunks that have to know one from another."""


def open_source(config: IngestConfig, router: Router, env: Env) -> FolderSource:
    """Open a folder. See `objcat.ingest.sources.open_source`."""
    settings, rules = folder_settings(config)
    return FolderSource(config, settings, rules, router, env)


def position_text(position: Position) -> str:
    """See `objcat.ingest.sources.position_text`: the last file."""
    return str(position[FILE]) or f"look {position[LOOK]}"


def transaction_text(config: IngestConfig, lake: Lake, position: Position, text: str) -> str:  # noqa: ARG001 - as all sources have it
    """See `objcat.ingest.sources.transaction_text`. A file is called by its path."""
    settings, rules = folder_settings(config)
    router = Router(config)
    fileio = open_store(settings.url, settings.options)
    try:
        meta = fileio.head(text)
    except (NotFound, InvalidKey):
        raise ValueError(f"there is no file of that path in {fileio.url}") from None
    if routed_file(meta, rules, router) is None:
        raise ValueError("no rule of [[source.files]] and no route take that file")
    record = FileRecord(lake, router.record_table(RECORD_TABLE.name))
    record.load()
    if record.compare([meta]) == [Novelty.KNOWN]:
        raise ValueError(f"that file was taken, or left out: the table {router.record_table(RECORD_TABLE.name)} of the lake says so")
    return text


class FolderSource(StreamSource):
    """See `ChangeSource` and `ReplayedSource`."""

    reads_first = False
    knows_tables = False

    def __init__(self, config: IngestConfig, settings: FolderSettings, rules: Sequence[FileRule], router: Router, env: Env) -> None:
        self._config = config
        self._settings = settings
        self._router = router
        self._env = env
        self._fileio = open_store(settings.url, settings.options, env=env)
        self._folder = Path(unquote(self._fileio.url.removeprefix(LOCAL))) if self._fileio.url.startswith(LOCAL) else None
        self._lake = connect(config.lake.url, config.lake.options)
        self._schemas = TableSchemas(router.key_of)
        self._record = FileRecord(self._lake, router.record_table(RECORD_TABLE.name))
        self._looks = FolderLooks(self._fileio, settings, rules, router, self._record, env)
        self._reader = FileReader(
            self._fileio, self._schemas, bytes_max=config.run.transaction_bytes, bad_max=config.dead_letters.records_max
        )
        self._wake = threading.Condition()
        self._is_closed = False
        self._is_wanted = False
        self._waiting: int | None = None
        self._described: frozenset[str] = frozenset()
        stored = self._stored()
        # Looks are counted on from the last commit, so that the next one is greater before the stream has begun.
        self._number: int = stored.get("position", {}).get(LOOK, 0)
        self._schemas.load({name: table.get("version") for name, table in stored.get("tables", {}).items()})

    # ---- what there is

    def check_settings(self) -> None:
        """See `ChangeSource`. A folder that has the lake in it must not take the files of its tables."""
        folder, lake = (f"{fileio.url.rstrip('/')}/" for fileio in (self._fileio, self._lake.fileio))
        own = [f"{lake.removeprefix(folder)}tables/name/{path}" for path in ("log/0.json", "data/txn/0.parquet")]
        if lake.startswith(folder) and any(self._looks.takes(path) for path in own):
            raise SourceUnfit(
                f"The folder {self._fileio.url} of {self._config.name!r} has the lake {self._lake.fileio.url} in it, and would take "
                "the files of its tables. Nothing was done. Give another `url`, or `path` in [[source.files]] that leaves the lake out."
            )
        with self._errors("listing"):
            if self._folder is not None and not self._folder.is_dir():
                raise SourceAway(f"There is no folder {self._folder} for {self._config.name!r}. Make it, or correct url in [source].")
            try:
                next(iter(self._fileio.list(page_size=1)), None)
            except (NotFound, PermissionDenied, CredentialsError) as error:
                raise SourceUnfit(
                    f"The folder {self._fileio.url} of {self._config.name!r} cannot be listed: {error} Correct url, options or rights. "
                    "Then start the ingest again."
                ) from error

    def describe_tables(self) -> Sequence[SourceTable]:
        """See `ChangeSource`: the record, and the tables of which files have been read."""
        found = [table for table in self._schemas.tables() if self._router.follows(table.name)]
        self._described = frozenset(table.name for table in found)
        return [RECORD_TABLE, *found]

    def compare_schemas(self, version: Any, table: SourceTable) -> SchemaChanged | None:  # noqa: ARG002 - the Protocol has it
        """See `ChangeSource`. Columns only join and widen."""
        return SchemaChanged(table)

    def begin(self, tables: Sequence[str]) -> Position:  # noqa: ARG002 - the Protocol has it
        """See `ChangeSource`. Files that were taken are taken again, after their tables were emptied."""
        return {LOOK: self._number, FILE: "", AGAIN: [EVERY]}

    def read_again(self, position: Position, tables: Sequence[str]) -> Position:
        """See `ReplayedSource`."""
        return {**position, AGAIN: sorted({*position.get(AGAIN, []), *tables})}

    def read_left_out(self, position: Position, tables: Sequence[str]) -> Position:
        """See `ReplayedSource`."""
        return {**position, LEFT_OUT: sorted({*position.get(LEFT_OUT, []), *tables})}

    def follow_tables(self, tables: Sequence[str]) -> Sequence[str]:
        """See `ChangeSource`. Files of tables that are not followed do not come into the record, so they are found later."""
        # A table whose first file was read since it was asked for its tables is none that was set aside.
        self._looks.waiting = self._described - set(tables)
        return []

    # ---- the stream

    def transactions(self, position: Position) -> Iterator[SourceTransaction]:
        """See `ChangeSource`."""
        with self._wake:
            self._number = max(self._number, position[LOOK])
        reached, file = position[LOOK], position[FILE]
        asked, left_out = position.get(AGAIN, []), position.get(LEFT_OUT, [])
        # Before the first file nothing is known: then the tables of the lake are left as they are. So are those that no route follows any
        # more, and their files stay in the record.
        every = [table for table in self._schemas.tables() if self._router.follows(table.name)]
        wanted = [table for table in every if EVERY in asked or table.name in {*asked, *position.get(LATER, [])}]
        # Nothing is written to a table that is set aside, so its rows stay, and so does what the record has of it.
        emptied = [table for table in wanted if table.name not in self._looks.waiting]
        later = {*position.get(LATER, []), *(table.name for table in wanted)} - {table.name for table in emptied}
        waits = {LATER: sorted(later)} if later else {}
        again = [name for name in asked if name != EVERY and name not in later] + [table.name for table in emptied]
        if again or asked or left_out:
            # It is no file, so no request to leave one out means it.
            file = ""
            yield from self._forgotten({LOOK: reached, FILE: file, **waits}, emptied, again, left_out)
        with self._errors("reading the record"):
            self._record.load(but=again, but_left_out=left_out)
        missed: set[str] = set()
        while not self._is_closed:
            with self._wake:
                self._number += 1
                self._is_wanted = False
                number = self._number
            with self._errors("listing"):
                look = self._looks.look(number)
            missed_before, missed = missed, set()
            self._waiting = len(look.files)
            for place, found in enumerate(look.files, 1):
                if self._is_closed:
                    return
                read = self._read(found)
                self._waiting = len(look.files) - place
                if read is None:
                    missed.add(found.meta.key)
                    continue
                file = found.meta.key
                self._record.note(read.recorded)
                yield SourceTransaction(
                    position={LOOK: reached, FILE: file, **waits},
                    mark=MARK,
                    changes=read.changes,
                    count=read.count,
                    size_bytes=read.size_bytes,
                    committed_at_ms=found.meta.modified_ms,
                )
            if not look.is_whole:
                if not look.files:
                    self._pause()
                continue
            # A file that changes during each look is not waited for.
            if missed <= missed_before:
                reached = max(reached, look.reached)
                yield SourceTransaction(position={LOOK: reached, FILE: file, **waits})
            self._pause()

    def _forgotten(
        self, position: Position, tables: Sequence[SourceTable], again: Sequence[str], left_out: Sequence[str]
    ) -> Iterator[SourceTransaction]:
        """What comes before the first look where files are to be taken again."""
        changes: list[Change] = [change for table in tables for change in (SchemaChanged(table), TableTruncated(table))]
        with self._errors("reading the record"):
            changes += self._record.forget(again, left_out)
        yield SourceTransaction(position=position, mark=MARK if changes else None, changes=changes, count=len(changes))

    def _read(self, found: FoundFile) -> ReadFile | None:
        """A file; None when it is another one by now, or gone: the next look decides."""
        if found.is_repeated and (found.keeps_all or not self._router.key_of(found.table)):
            return self._reader.refuse(found)
        with self._errors(f"reading {found.meta.key}"):
            try:
                return self._reader.read(found)
            except (ObjectChanged, NotFound):
                return None

    def _pause(self) -> None:
        """Wait for the next look."""
        pause_s = self._settings.poll_s
        if self._looks.is_settling:
            pause_s = min(pause_s, max(0.05, self._looks.settle_s / 4) if self._looks.settle_s else SECOND_LOOK_S)
        with self._wake:
            self._wake.wait_for(lambda: self._is_closed or self._is_wanted, timeout=pause_s)

    # ---- positions

    def is_reached(self, position: Position, target: Position) -> bool:
        """See `ChangeSource`."""
        return bool(position[LOOK] >= target[LOOK] and not position.get(AGAIN) and not position.get(LEFT_OUT))

    def head(self) -> Position:
        """See `ChangeSource`: the next look that begins."""
        with self._wake:
            self._is_wanted = True
            self._wake.notify_all()
            return {LOOK: self._number + 1, FILE: ""}

    def has_to_store(self, stored: Position, position: Position) -> bool:
        """See `ChangeSource`. Looks are counted on from any number."""
        return {**stored, LOOK: 0} != {**position, LOOK: 0}

    def confirm(self, position: Position) -> None:
        """See `ChangeSource`. Files stay where they are."""

    def beat(self) -> None:
        """See `ChangeSource`. Every look moves the stream."""

    def report(self) -> SourceReport:
        """See `ChangeSource`."""
        with self._wake:
            # Before the first look of this process nothing is known.
            head = None if self._waiting is None else {LOOK: self._number, FILE: ""}
        waiting = "" if self._waiting is None else f", {self._waiting:,} files wait"
        return SourceReport(head=head, behind_events=self._waiting, state=f"folder {self._fileio.url}{waiting}")

    def position_text(self, position: Position) -> str:
        """See `ChangeSource`."""
        return position_text(position)

    def close(self) -> None:
        """See `ChangeSource`."""
        with self._wake:
            self._is_closed = True
            self._wake.notify_all()

    # ---- helpers

    def _stored(self) -> Mapping[str, Any]:
        """The state of the last commit."""
        with self._errors("reading the position"):
            stored = self._lake.source_position(self._config.name, shared_log=self._config.shared_log)
        return {} if stored is None else stored.state

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (Throttled, Unavailable) as error:
            raise SourceAway(f"The folder {self._fileio.url} of {self._config.name!r} failed while {doing}: {error}") from error
        except (PermissionDenied, CredentialsError) as error:
            raise SourceUnfit(
                f"The folder {self._fileio.url} of {self._config.name!r} refused {doing}: {error} Correct the rights. Then start the "
                "ingest again."
            ) from error
        except FileIOError as error:
            raise IngestStopped(
                f"The folder {self._fileio.url} of {self._config.name!r} failed while {doing}: {error} What is committed stays. "
                "Start again."
            ) from error

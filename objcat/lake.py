"""What users hold of a place: a lake at a URL, and the tables in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fileio.env import Env
from fileio.probe import check_commit_store
from fileio.registry import open_store
from fileio.settle import RetryPolicy
from fileio.store import FileIO
from objcat.errors import CommitConflict, InvalidInput, TableExists, TableNotFound
from objcat.handle import Table
from objcat.table import Bucket, TableDelta, TablesFold
from objcat.table.files import encode_delta
from objcat.table.schema import schema_from_arrow
from objcat.table.snapshot import snapshot_of
from objcat.table.spec import make_spec
from objcat.timeline import (
    Action,
    Candidate,
    Committer,
    Footprint,
    Log,
    LogState,
    Timeline,
    View,
    new_txn,
)

_NAME = re.compile(r"^[\w-]+(\.[\w-]+)*$")


def connect(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, env: Env | None = None, policy: RetryPolicy | None = None
) -> Lake:
    """The lake at a URL: `s3://bucket/prefix`, `gs://`, `az://`, `file:/path`, a bare path, or `memory:`. Sends no request.

    options: of the storage backend, see `docs/`. Raises `fileio.errors.InvalidConfig` for a URL or an option that is not valid.
    """
    return Lake(open_store(url, options, env=env, policy=policy))


class Lake:
    """Tables below one prefix of a store. Holds no state of its own; safe for many threads."""

    def __init__(self, fileio: FileIO) -> None:
        self.fileio = fileio

    def __repr__(self) -> str:
        return f"Lake({self.fileio.url!r})"

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        ordering: str | None = None,
        index: Bucket | None = None,
        kind: str = "merge_on_read",
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Create a table; of several processes that create one name, exactly one wins.

        schema: Arrow; types are narrowed to those that Spark shares. key: the columns that identify a row, never null. ordering: the
        column whose greater value wins when a key is written twice (event time, a version), never null; None: the later commit wins.
        index: `Bucket(16)` by default.
        Raises TableExists that names the winner, InvalidInput, and `fileio.errors.StoreUnfit` for a store that ignores conditions:
        commits on it would be lost.
        """
        fileio = self._fileio_of(name)
        spec = make_spec(
            fileio.env.new_id(),
            schema_from_arrow(schema),
            key=key,
            ordering=ordering,
            index=index or Bucket(),
            kind=kind,
            properties=properties or {},
        )
        check_commit_store(fileio)
        txn = new_txn(fileio.env)
        committer = Committer(fileio)
        intent = committer.announce(txn, Action.CREATE, -1, engine="local")
        candidate = Candidate(
            txn=txn,
            action=Action.CREATE,
            base=LogState(),
            changes={spec.table: encode_delta(TableDelta(spec=spec))},
            footprint={spec.table: Footprint()},
        )
        try:
            committed = committer.commit(candidate, skew_ms=intent.result())
        except CommitConflict as error:
            committer.retract(txn).result()
            first = Log(fileio).read_slot(0)
            who = f" by {first.txn}" if first else ""
            raise TableExists(
                f"the table {name!r} exists in {self.fileio.url} (created{who}): open it with lake.table({name!r})"
            ) from error
        committer.retract(txn).result()
        timeline = Timeline(fileio, TablesFold())
        return Table(name, timeline, spec.table, timeline.advance(View(LogState(), {}), [committed.entry]))

    def table(self, name: str) -> Table:
        """Open a table at its newest slot. Raises TableNotFound."""
        fileio = self._fileio_of(name)
        timeline = Timeline(fileio, TablesFold())
        view = timeline.open()
        if view.slot < 0:
            raise TableNotFound(
                f"there is no table {name!r} in {self.fileio.url}: create it with lake.create_table({name!r}, schema, key=[...])"
            )
        return Table(name, timeline, snapshot_of(view, where=fileio.url).spec.table, view)

    def _fileio_of(self, name: str) -> FileIO:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is not a table name: use letters, digits, '_' and '-', in parts joined by '.'")
        return self.fileio.child(name)

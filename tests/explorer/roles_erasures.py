"""What an erasure does, with all of its code as it ships: a delete, a merge, a rollback of the dead, a clean, and a second look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from unittest import mock

import objcat.metadata.erased_values
from fileio.errors import FileIOError
from objcat import table_at
from objcat.errors import ObjcatError
from objcat.maintenance.forget_erased import forget
from objcat.table import erase
from objcat.table.delete import delete_scanned
from objcat.table.erasure_search import Sought
from tests.explorer.actors import Acknowledged, Began, Erased, Participant, Undecided
from tests.explorer.roles import PREFIX, TABLE_NAME, means, open_warm


class Search(NamedTuple):
    """A search that finds nothing."""

    found: tuple[str, ...]
    sought: Sought
    classes: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Erase:
    """Erases the rows of a key, and keeps the certificate where it says that none is left. dead: whoever is silent is taken for dead."""

    key: int
    dead: bool = False

    def __call__(self, me: Participant) -> None:
        me.note(Began(PREFIX))
        table = table_at(me.fileio.child(TABLE_NAME))
        delete = partial(delete_scanned, metadata=means("end", self.key, mark="-"))
        try:
            # What an entry was meant to do is said in its metadata here, which an erasure takes away.
            kept = mock.patch.object(objcat.metadata.erased_values, "KEPT_METADATA", frozenset({"does", "tables"}))
            # Files are searched by whoever judges the store, in every state of it.
            searched = mock.patch.object(erase, "_searched", return_value=(Search((), Sought()), 0))
            with kept, searched, mock.patch.object(erase, "delete_scanned", delete):
                done = table.erase(f"k = {self.key}", older_than_s=0 if self.dead else 3600)
        except (ObjcatError, FileIOError) as error:
            # How far it came is not said: it is finished when it is called again.
            me.note(Undecided(type(error).__name__))
            raise
        if done.found == 0:
            me.note(Erased(PREFIX, self.key))


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a row by its key, whether it is there or not."""

    key: int

    def __call__(self, me: Participant) -> None:
        table_at(me.fileio.child(TABLE_NAME)).delete([{"k": self.key}], metadata=means("end", self.key, mark="-"))


@dataclass(frozen=True, slots=True)
class DeleteWhere:
    """Deletes a row by a filter, if it is there."""

    key: int

    def __call__(self, me: Participant) -> None:
        done = table_at(me.fileio.child(TABLE_NAME)).delete(f"k = {self.key}", metadata=means("end", self.key, mark="-"))
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Forget:
    """What an erasure does once the rows are gone from the files."""

    def __call__(self, me: Participant) -> None:
        me.note(Began(PREFIX))
        timeline, table = open_warm(me)
        with mock.patch.object(objcat.metadata.erased_values, "KEPT_METADATA", frozenset({"does", "tables"})):
            try:
                forget(timeline, table)
            except (ObjcatError, FileIOError) as error:
                # As with an erasure: whoever calls it again goes on.
                me.note(Undecided(type(error).__name__))
                raise

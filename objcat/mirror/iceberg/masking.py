"""What position files and deletion vectors have in common: both mask rows of data files by their position."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from objcat.mirror.iceberg.manifests import Keys, Manifest, ManifestReader
from objcat.mirror.iceberg.objects import Uploads
from objcat.mirror.iceberg.types import Record
from objcat.mirror.model import Positions

PATH_ID = 2147483546
"""Iceberg's id of the column `file_path` of position deletes."""


@dataclass(frozen=True, slots=True)
class PositionFile:
    """What is remembered of a position file.

    Attributes:
        rows: how many it has.
        named: hashes of the data files that it names.
        live: those of them that may still be live.
    """

    rows: int
    named: Keys
    live: Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRequest:
    """What a slot masks. Data files are URIs.

    Attributes:
        slot: that is written.
        masked: rows to mask. Some may have been masked before.
        removed: data files that are no longer live.
        added: data files that are new. Not needed when there are no deletes yet.
        reborn: those of them that come again. Rows of them that were masked before may count again.
        data: manifests of data files, afterwards.
        deletes: manifests of deletes, before.
    """

    slot: int
    masked: Mapping[str, Positions]
    removed: frozenset[str]
    added: frozenset[str]
    reborn: frozenset[str]
    data: tuple[Manifest, ...]
    deletes: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """The entries of deletes that change.

    Attributes:
        dropped: the names of entries that go.
        written: `data_file` records of new ones. They may be made, and what they name put, as they are gone through, once.
        deletes: the manifests of deletes before, with what is now known of them.
        known: what is remembered of position files afterwards, by URI.
    """

    dropped: frozenset[str]
    written: Iterable[Record]
    deletes: tuple[Manifest, ...]
    known: Mapping[str, PositionFile] = field(default_factory=dict)


class Masking(Protocol):
    """How a format version masks rows."""

    @property
    def reader(self) -> ManifestReader:
        """Reads the manifests of its entries."""

    def plan(self, request: MaskRequest, uploads: Uploads) -> MaskPlan:
        """Put what masks the rows of a slot."""

    def begin(self, slot: int, masked: Iterable[tuple[str, Positions]], uploads: Uploads) -> MaskPlan:
        """Put what masks the rows of a mirror that begins. masked: data files with rows to mask, sorted, maybe too many for memory."""

    def masked(self, deletes: tuple[Manifest, ...], uris: Collection[str] | None) -> dict[str, Positions]:
        """All masked rows of data files, of all if `uris` is None."""

    def remember(self, plan: MaskPlan) -> None:
        """The plan of a slot was carried out, and the slot was written."""

    def forget(self) -> None:
        """Another process may have gone on."""


def union_of(parts: Iterable[Positions]) -> Positions:
    """All positions of several arrays, ascending, each once."""
    listed = list(parts)
    if not listed:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate(listed)).astype(np.int64)


def path_bounds(first: str, last: str) -> Record:
    """The bounds of the column `file_path`. Readers match position deletes and vectors to data files by them."""
    return {
        "lower_bounds": [{"key": PATH_ID, "value": first.encode()}],
        "upper_bounds": [{"key": PATH_ID, "value": last.encode()}],
    }

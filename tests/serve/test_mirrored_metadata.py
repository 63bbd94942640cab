"""The newest metadata is found whatever the hint says, and nothing but a mirror of this table at this place is served."""

from __future__ import annotations

import json
from typing import Any

import pytest

import objcat
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirrorFolder
from objcat.serve.mirrored_metadata import MetadataReader
from tests.serve.mirrors import binding_of, create_plain, lake_with, metadata, put_metadata


@pytest.fixture
def lake() -> objcat.Lake:
    lake = lake_with()
    create_plain(lake, "trips")
    return lake


@pytest.fixture
def where(lake: objcat.Lake) -> MirrorFolder:
    binding = binding_of(lake, "trips")
    return MirrorFolder(lake.fileio.child(binding.prefix), "", binding.table, binding.name)


def slot(where: MirrorFolder, reader: MetadataReader | None = None, known: int = 0) -> int | None:
    found = (reader or MetadataReader()).newest(where, known=known)
    return None if found is None else found.slot


@pytest.mark.parametrize("hint", [1, 7, 12, 99, "", "no number", "-3", "0", "9" * 30, None])
def test_whatever_the_hint_says(lake: objcat.Lake, where: MirrorFolder, hint: Any) -> None:
    for version in range(1, 13):
        put_metadata(lake, "trips", version)
    if hint is not None:
        where.fileio.put("metadata/version-hint.text", str(hint).encode())
    assert slot(where) == 11


def test_a_hint_far_behind_costs_one_listing(lake: objcat.Lake, where: MirrorFolder) -> None:
    for version in range(1, 60):
        put_metadata(lake, "trips", version, hint=1)
    before = where.fileio.metrics.snapshot()
    assert slot(where) == 58
    sent = where.fileio.metrics.snapshot() - before
    assert sum(sent.requests.values()) <= 13


def test_what_is_known_costs_three_small_requests(lake: objcat.Lake, where: MirrorFolder) -> None:
    put_metadata(lake, "trips", 3, hint=3)
    reader = MetadataReader()
    assert slot(where, reader) == 2
    before = where.fileio.metrics.snapshot()
    assert slot(where, reader, known=3) == 2
    sent = where.fileio.metrics.snapshot() - before
    assert sum(sent.requests.values()) == 3
    put_metadata(lake, "trips", 4)
    assert slot(where, reader, known=3) == 3


def test_slots_need_not_be_dense(lake: objcat.Lake, where: MirrorFolder) -> None:
    put_metadata(lake, "trips", 3, hint=3)
    put_metadata(lake, "trips", 9, hint=9)
    assert slot(where) == 8
    assert slot(where, known=3) == 8


def test_a_mirror_that_was_deleted_is_not_served_from_memory(lake: objcat.Lake, where: MirrorFolder) -> None:
    put_metadata(lake, "trips", 3, hint=3)
    reader = MetadataReader()
    assert slot(where, reader) == 2
    where.fileio.delete([*where.fileio.list_keys("metadata/")])
    assert slot(where, reader, known=3) is None


def test_what_an_erasure_deleted_is_not_served_even_if_the_hint_was_lost(lake: objcat.Lake, where: MirrorFolder) -> None:
    put_metadata(lake, "trips", 3, hint=3)
    reader = MetadataReader()
    assert slot(where, reader) == 2
    put_metadata(lake, "trips", 7)
    where.fileio.delete(["metadata/v3.metadata.json"])
    assert slot(where, reader, known=3) == 6


def put(where: MirrorFolder, document: Any) -> None:
    where.fileio.put("metadata/v3.metadata.json", document if isinstance(document, bytes) else json.dumps(document).encode())


@pytest.mark.parametrize("document", [b"", b"{", b"[1]", b"null", b"\xff\xfe", {"properties": {}}, {"properties": []}])
def test_what_is_no_mirror_is_an_error(where: MirrorFolder, document: Any) -> None:
    put(where, document)
    with pytest.raises((CorruptMirror, ForeignMetadata)):
        slot(where)


def test_a_table_of_somebody_else_is_not_served(where: MirrorFolder) -> None:
    put(where, {**metadata(where.fileio.url, 3, where.table), "properties": {}})
    with pytest.raises(ForeignMetadata):
        slot(where)


def test_the_mirror_of_another_table_is_not_served(where: MirrorFolder) -> None:
    put(where, metadata(where.fileio.url, 3, "another"))
    with pytest.raises(ForeignMetadata):
        slot(where)


def test_a_copied_mirror_counts_as_none_until_it_begins_again(lake: objcat.Lake, where: MirrorFolder) -> None:
    reader = MetadataReader()
    put(where, metadata("s3://elsewhere/trips", 3, where.table))
    assert slot(where, reader) is None
    put_metadata(lake, "trips", 3)
    assert slot(where, reader) == 2


def test_the_location_is_that_of_the_object(lake: objcat.Lake, where: MirrorFolder) -> None:
    location = put_metadata(lake, "trips", 3)
    found = MetadataReader().newest(where)
    assert found is not None
    assert found.location == location
    assert found.location.startswith(lake.fileio.url)
    assert binding_of(lake, "trips").prefix in found.location

"""What pyiceberg, and a decoder of the tests' own, read from a mirror."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable

from fileio.options import unquote_path
from tests.mirror.iceberg.decoder import Decoder
from tests.mirror.iceberg.worlds import PLAIN, World, rows_of


def metadata_key(world: World, slot: int) -> str:
    return f"{world.where.folder}metadata/v{slot + 1}.metadata.json"


def static_table(world: World, slot: int) -> StaticTable:
    return StaticTable.from_metadata(f"{unquote_path(world.fileio.url)}/{metadata_key(world, slot)}")


def rows_at(world: World, slot: int, *, by: int | None = None) -> pa.Table:
    """The rows of a slot by pyiceberg. by: the slot whose metadata file is read."""
    return static_table(world, slot if by is None else by).scan(snapshot_id=slot + 1).to_arrow()


def decoded(world: World, slot: int, *, by: int | None = None) -> pa.Table:
    """The rows of a slot by the tests' own decoder."""
    return Decoder(world.fileio, metadata_key(world, slot if by is None else by)).rows(slot + 1)


def check_slot(world: World, slot: int, *, by: int | None = None) -> None:
    """By both readers where they can: pyiceberg cannot read from memory, and the decoder knows no change of a schema."""
    where = f"slot {slot} by v{(slot if by is None else by) + 1}"
    wanted = rows_of(world.truth[slot])
    if world.spec.table_schema.to_arrow().equals(PLAIN):
        assert rows_of(decoded(world, slot, by=by)) == wanted, where
    if world.fileio.url.startswith("file:"):
        assert rows_of(rows_at(world, slot, by=by)) == wanted, where


def metadata_slots(world: World) -> list[int]:
    """The slots that have a metadata file."""
    prefix = world.where.folder + "metadata/v"
    names = [key.removeprefix(prefix) for key in world.fileio.list_keys(prefix)]
    return sorted(int(name.partition(".")[0]) - 1 for name in names if name.endswith(".metadata.json"))


def check_each(world: World) -> None:
    """Every metadata file reads exactly its slot."""
    for slot in metadata_slots(world):
        check_slot(world, slot)


def check_all(world: World) -> None:
    """Every metadata file reads exactly its slot, and the newest one reads exactly every slot that it names."""
    check_each(world)
    newest = metadata_slots(world)[-1]
    for snapshot in document(world, newest)["snapshots"]:
        check_slot(world, snapshot["snapshot-id"] - 1, by=newest)


def document(world: World, slot: int) -> dict[str, Any]:
    return Decoder(world.fileio, metadata_key(world, slot)).document


def manifests(world: World, slot: int) -> list[dict[str, Any]]:
    """The manifest list of a slot."""
    reader = Decoder(world.fileio, metadata_key(world, slot))
    return reader.manifests(reader.snapshot(slot + 1))


def entries(world: World, slot: int, content: int) -> list[dict[str, Any]]:
    """The entries of all manifests of a content, deleted ones too."""
    reader = Decoder(world.fileio, metadata_key(world, slot))
    found = [manifest for manifest in reader.manifests(reader.snapshot(slot + 1)) if manifest["content"] == content]
    return [entry for manifest in found for entry in reader.avro(manifest["manifest_path"])[0]]

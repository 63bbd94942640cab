"""Which mirrors a table has, by its properties, and where they are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from objcat.metadata.properties import MIRROR_ICEBERG_VERSION, MIRRORS, mirrors_of
from objcat.metadata.table_state import Tables
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirrorFolder, MirrorFormat
from objcat.timeline.log_view import Timeline

OTHERS_FOLDER = "mirrors/"
"""Where tables share a log, each one after the first has a folder of its own below this one."""


PREFIXES: Mapping[str, tuple[str, ...]] = {"iceberg": ("metadata/",), "delta": ("_delta_log/", "deltavectors/")}
"""What a mirror of each format has below its folder."""


def folder_of(timeline: Timeline[Tables], table: str, name: str) -> MirrorFolder:
    """Where the mirrors of a table are: at the prefix of its log, or in a folder of its own if another table came first in that log.

    One GET. Raises CorruptTable and storage errors.

    Args:
        timeline: of the log.
        table: the id of the table.
        name: its name.
    """
    is_first = table in timeline.log.read_known(0).changes
    return MirrorFolder(timeline.fileio, "" if is_first else f"{OTHERS_FOLDER}{table}/", table, name)


def formats_of(properties: Mapping[str, str], folder: MirrorFolder) -> tuple[MirrorFormat, ...]:
    """The mirrors that properties name, in a fixed order. Raises MissingDependency without the libraries of the extra `mirrors`."""
    from objcat.mirror.delta.mirror import DeltaMirror
    from objcat.mirror.iceberg.mirror import IcebergMirror

    made: list[MirrorFormat] = []
    for name in mirrors_of(properties):
        if name == "iceberg":
            made.append(IcebergMirror(folder, format_version=int(properties.get(MIRROR_ICEBERG_VERSION, "2"))))
        else:
            made.append(DeltaMirror(folder))
    return tuple(made)


def remove_mirror(folder: MirrorFolder, name: str, *, slot: int | None = None) -> int:
    """Delete a mirror that a table has no more, with all that it holds. Returns how many objects.

    What readers begin with goes first, the newest slot before older ones, so a process that stops half-way leaves slots that read right.
    Metadata that objcat did not write stays. Without a mirror of this format it sends one request or two. Raises storage errors.

    Args:
        folder: of the table's mirrors.
        name: of the format.
        slot: at which the table had no such mirror. Objects of later slots stay: the mirror may have begun again. None: it cannot.
    """
    listed = [key for prefix in PREFIXES[name] for key in folder.fileio.list_keys(folder.folder + prefix)]
    if not listed:
        return 0
    (form,) = formats_of({MIRRORS: name}, folder)
    try:
        form.newest()
    except ForeignMetadata:
        return 0
    except CorruptMirror:
        pass
    of_slots = {key: _slot_of(name, key.removeprefix(folder.folder)) for key in listed}
    later = {key for key, found in of_slots.items() if slot is not None and found is not None and found > slot}
    due = [key for key, found in of_slots.items() if key not in later and not (later and found is None)]
    first = sorted((key for key in due if key.endswith(_FIRST[name])), key=lambda key: (-_number(of_slots[key]), key.endswith(".parquet")))
    for keys in (first, sorted(set(due).difference(first))):
        for result in folder.fileio.delete(keys):
            if result.error is not None:
                raise result.error
    return len(due)


_FIRST: Mapping[str, tuple[str, ...]] = {"iceberg": (".json",), "delta": (".json", "_last_checkpoint", ".checkpoint.parquet")}
"""The endings of objects that readers begin with."""


def _slot_of(name: str, key: str) -> int | None:
    """The slot that an object was written for. None if its name does not say."""
    from objcat.mirror.delta.actions import checkpoint_version, commit_version
    from objcat.mirror.delta.vectors import vector_slot
    from objcat.mirror.iceberg.objects import slot_written_for

    if name == "iceberg":
        return slot_written_for(key.removeprefix(PREFIXES["iceberg"][0]))
    found = (commit_version(key), checkpoint_version(key), vector_slot(key))
    return next((version for version in found if version is not None), None)


def _number(slot: int | None) -> float:
    return math.inf if slot is None else slot

"""Files whose keys cannot be read, so that it shows who reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from objcat.metadata.file_digest import digest_of
from objcat.timeline.entry import log_key
from objcat.timeline.process_log import process_log
from tests.tables.damaging import change_entry, files_of


@contextmanager
def with_keys_scrambled(table: objcat.Table, *, without: object) -> Iterator[list[str]]:
    """Within the block the pages of the first key column are rubbish in all base files that do not hold the key `without`; gives these.

    Their entries say the digests of that rubbish, for whoever opens the table within the block: else each file would be refused unread.
    The test needs the fixture `no_hints`: one that is put in the background could carry those entries beyond the block.
    """
    name = table.spec.key_columns[0].physical
    kept: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    for group in table.refresh().file_groups(table._context.manifests):
        assert group.base is not None
        data = table._context.fileio.read(group.base.path)
        file = pq.ParquetFile(pa.BufferReader(data))
        if without not in file.read(columns=[name]).column(0).to_pylist():
            number = file.schema_arrow.get_field_index(name)
            scrambled = bytearray(data)
            for at in range(file.num_row_groups):
                chunk = file.metadata.row_group(at).column(number)
                begin = chunk.dictionary_page_offset or chunk.data_page_offset
                scrambled[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
            kept[group.base.path] = data
            table._context.fileio.put(group.base.path, bytes(scrambled))
            digests[group.base.path] = digest_of(bytes(scrambled))

    def said(file: Any) -> Any:
        return msgspec.structs.replace(file, digest=digests.get(file.path, file.digest))

    for slot in {slot for slot, file in files_of(table) if file.path in digests}:
        kept[log_key(slot)] = table._context.fileio.read(log_key(slot))
        change_entry(table, slot, said)
    yield [path for path in kept if path.startswith("data/")]
    for path, data in kept.items():
        table._context.fileio.put(path, data)
    process_log(table._context.fileio).forget()

"""Files whose keys cannot be read, so that it shows who reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from objcat.table.digest import digest_of


@contextmanager
def with_keys_scrambled(table: objcat.Table, *, without: object) -> Iterator[list[str]]:
    """Within the block the pages of the first key column are rubbish in all base files that do not hold the key `without`; gives these.

    Their entries say the digests of that rubbish, for whoever opens the table within the block: else each file would be refused unread.
    """
    name = table.spec.key_columns[0].physical
    kept: dict[str, bytes] = {}
    renamed: dict[bytes, bytes] = {}
    for group in table.refresh().file_groups(table.manifests):
        assert group.base is not None
        data = table.fileio.read(group.base.path)
        file = pq.ParquetFile(pa.BufferReader(data))
        if without not in file.read(columns=[name]).column(0).to_pylist():
            number = file.schema_arrow.get_field_index(name)
            scrambled = bytearray(data)
            for at in range(file.num_row_groups):
                chunk = file.metadata.row_group(at).column(number)
                begin = chunk.dictionary_page_offset or chunk.data_page_offset
                scrambled[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
            kept[group.base.path] = data
            table.fileio.put(group.base.path, bytes(scrambled))
            assert group.base.digest is not None
            renamed[group.base.digest.encode()] = digest_of(bytes(scrambled)).encode()
    for key in table.fileio.list_keys("log/"):
        kept[key] = entry = table.fileio.read(key)
        for old, new in renamed.items():
            entry = entry.replace(old, new)
        table.fileio.put(key, entry)
    yield [path for path in kept if path.startswith("data/")]
    for path, data in kept.items():
        table.fileio.put(path, data)

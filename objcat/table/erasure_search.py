"""The search behind a certificate of erasure: every object below a table, for every value that only erased rows held.

Objects are searched as bytes, large files of rows a piece at a time. Their content is also decoded and searched: columns of Parquet files
and manifests, bounds and digests in entries, rows of history files. A value is looked for when no readable row holds it. Numbers, times and
text too short to be found by more than chance among bytes are looked for in columns and bounds only.
"""

from __future__ import annotations

import base64
import io
import json
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import sqlglot

from fileio.contract import ObjectMeta
from fileio.errors import NotFound
from fileio.local.options import temporaries_of
from fileio.store import FileIO
from objcat.datafile.bucket_hash import key_digests
from objcat.datafile.casting import relabelled
from objcat.datafile.statistics import BOUND_BYTES_MAX
from objcat.errors import ObjcatError
from objcat.metadata.files import BaseFile, LogObject, decode_delta
from objcat.metadata.partitioning import encoded
from objcat.metadata.schema import FIELD_ID_KEY, arrow_type
from objcat.metadata.table_spec import TableSpec
from objcat.table.erasure_mirrors import MirrorSearch, is_mirror, is_mirror_in
from objcat.table.erasure_pieces import PIECE_BYTES, byte_pieces, row_pieces, rows_of
from objcat.table.erasure_positions import StateSearch
from objcat.table.erasure_traces import Leaf, Traces, leaves_of
from objcat.timeline.checkpoint import Carried, Hint, Root, TurnRequest, root_key
from objcat.timeline.entry import Action, Entry, decode_entry, log_key
from objcat.timeline.history_files import decode_bodies
from objcat.timeline.intents import Intent
from objcat.timeline.position import PositionProgress

TEXT_BYTES_MIN = 6
"""Text and bytes from this length on are looked for in all bytes; shorter ones occur by chance."""
HEXADECIMAL_MIN = 14
"""The same for text that could be a part of an id."""
PATTERNS_MAX = 256
"""Values that one pass over an object looks for."""
_HEXADECIMAL = re.compile(r"[0-9a-fA-F-]*")

NOT_PROMISED = (
    "versions of deleted and replaced objects that the store keeps (versioning of the bucket, soft delete, retention)",
    "replicas and backups of the bucket, and copies of the table elsewhere",
    "rows and files that were derived from the rows elsewhere: other tables, also of the same log, caches and copies that readers made",
    "names in the catalog, names of columns, properties, and names of applications and sources",
    "what operations that are still under way, or stand still, write later",
    "metadata of earlier slots that a process puts later which mirrors the table: the next maintenance or erasure deletes it",
)
"""What no certificate can show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The objects of one class that were searched byte by byte. `found`: how many of them hold a value."""

    kind: str
    objects: int = 0
    bytes: int = 0
    found: int = 0


@dataclass(slots=True)
class Sought:
    """The values to look for.

    Attributes:
        texts, blobs: in all bytes.
        typed: by column, in columns and bounds.
        digests: of keys.
        held: how many values readable rows hold as well.
        short: how many are not looked for in all bytes.
    """

    texts: set[str] = field(default_factory=set)
    blobs: set[bytes] = field(default_factory=set)
    typed: dict[Leaf, set[Any]] = field(default_factory=dict)
    digests: set[int] = field(default_factory=set)
    held: int = 0
    short: int = 0

    @property
    def count(self) -> int:
        """How many values are looked for."""
        return len(self.texts) + len(self.blobs) + sum(map(len, self.typed.values()))


def sought_of(traces: Traces, spec: TableSpec, readable: Iterable[pa.Table], *, literals: Collection[str], vocabulary: str) -> Sought:
    """The values that only erased rows held.

    Args:
        readable: all readable rows.
        literals: texts of the filter.
        vocabulary: what objects of a table contain whatever its rows are.
    """
    typed = {leaf: set(values) for leaf, values in traces.values.items()}
    texts = {value for values in typed.values() for value in values if isinstance(value, str)} | set(literals)
    blobs = {value for values in typed.values() for value in values if isinstance(value, bytes)}
    before = sum(map(len, typed.values()))
    finder = Finder(texts, ())
    for rows in readable:
        for leaf, values in leaves_of(rows):
            _take_away(typed, leaf, values)
            if pt.is_string(values.type) or pt.is_large_string(values.type):
                texts -= finder.held_in(values)
            if pt.is_binary(values.type) and blobs:
                blobs -= set(pc.unique(values).to_pylist())
    gone = texts | blobs
    typed = {leaf: {value for value in values if not isinstance(value, (str, bytes)) or value in gone} for leaf, values in typed.items()}
    long = {text for text in texts if _is_long(text) and text not in vocabulary}
    digests: set[int] = set()
    if traces.keys is not None:
        columns = [traces.keys.column(column.physical) for column in spec.key_columns]
        digests = set(struct.unpack(f"<{traces.keys.num_rows}Q", key_digests(columns).tobytes()))
    found = Sought(long, {blob for blob in blobs if len(blob) >= TEXT_BYTES_MIN}, typed, digests)
    found.held = max(0, before - sum(map(len, typed.values())))
    found.short = sum(1 for values in typed.values() for value in values if value not in found.texts and value not in found.blobs)
    return found


def _is_long(text: str) -> bool:
    size = len(text.encode("utf-8", "surrogatepass"))
    return size >= (HEXADECIMAL_MIN if _HEXADECIMAL.fullmatch(text) else TEXT_BYTES_MIN)


def _take_away(typed: dict[Leaf, set[Any]], leaf: Leaf, values: pa.ChunkedArray) -> None:
    """Remove the values of a leaf that readable rows hold."""
    known = typed.get(leaf)
    if not known:
        return
    try:
        looked = pa.array(list(known), values.type)
    except (pa.ArrowException, OverflowError, TypeError):
        return
    there = pc.is_in(looked, value_set=values.combine_chunks() if values.num_chunks != 1 else values.chunk(0))
    known.difference_update(looked.filter(there).to_pylist())


class Finder:
    """Looks for texts and bytes, in bytes in every form in which objects write them, and in text. overlap: bytes of the longest form."""

    def __init__(self, texts: Collection[str], blobs: Collection[bytes]) -> None:
        forms = sorted({form for text in texts for form in _forms(text) if form} | {blob.hex() for blob in blobs})
        self._patterns = ["|".join(map(_escaped, forms[at : at + PATTERNS_MAX])) for at in range(0, len(forms), PATTERNS_MAX)]
        self._blobs = [blob for blob in blobs if blob]
        self._texts = list(texts)
        self.overlap = max([0, *(len(form.encode()) for form in forms), *map(len, self._blobs)])

    def is_in(self, data: bytes) -> bool:
        """Whether bytes hold a value."""
        for at in range(0, max(1, len(data)), PIECE_BYTES):
            piece = data if len(data) <= PIECE_BYTES else data[at : at + PIECE_BYTES + self.overlap]
            if any(blob in piece for blob in self._blobs):
                return True
            array = pa.array([piece], pa.large_binary())
            if any(pc.match_substring_regex(array, pattern)[0].as_py() for pattern in self._patterns):
                return True
        return False

    def held_in(self, values: pa.ChunkedArray) -> set[str]:
        """The texts that are in some of these values."""
        found: set[str] = set()
        for pattern in self._patterns:
            hit = pc.fill_null(pc.match_substring_regex(values, pattern), False)
            for value in pc.unique(values.filter(hit)).to_pylist():
                found.update(text for text in self._texts if text in value)
        return found


def _forms(text: str) -> Iterator[str]:
    """The forms in which objects write a text: plain, in JSON, in the name of a partition, and cut like bounds."""
    yield text
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield json.dumps(text)[1:-1]
    yield encoded(text, most=180)
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > BOUND_BYTES_MAX:
        yield data[: BOUND_BYTES_MAX - 4].decode(errors="ignore")


def _escaped(text: str) -> str:
    return "".join(f"\\x{ord(one):02x}" if ord(one) < 32 else re.escape(one) for one in text)


@dataclass(slots=True)
class Search:
    """One search of a store.

    Attributes:
        table: its id.
        foreign: data files and manifests of other tables.
        is_shared: whether other tables are in its log.
        index_manifests: those of the table's index, whose columns have ids of their own.
        mirror_folder: where the table's mirrors are.
    """

    fileio: FileIO
    table: str
    spec: TableSpec
    sought: Sought
    foreign: frozenset[str]
    is_shared: bool
    index_manifests: frozenset[str] = frozenset()
    mirror_folder: str = ""
    found: set[str] = field(default_factory=set)
    classes: dict[str, Examined] = field(default_factory=dict)
    finder: Finder = field(init=False)
    bounds: dict[int, set[Any]] = field(init=False)
    mirrors: MirrorSearch = field(init=False)
    states: StateSearch = field(init=False)

    def __post_init__(self) -> None:
        self.finder = Finder(self.sought.texts, self.sought.blobs)
        kinds = {column.id: arrow_type(column.type) for column in self.spec.table_schema.columns if isinstance(column.type, str)}
        self.bounds = {
            leaf: _said(values, kinds[leaf]) for leaf, values in self.sought.typed.items() if isinstance(leaf, int) and leaf in kinds
        }
        self.mirrors = MirrorSearch(self.spec, self.finder.is_in, self.bounds)
        self.states = StateSearch(self.sought.typed.values())

    def examine(self, meta: ObjectMeta) -> None:
        """Search one object and its name. An object that is gone holds nothing."""
        key = meta.key
        if key in self.foreign or (is_mirror(key) and not is_mirror_in(key, self.mirror_folder)):
            return
        kind = kind_of(key)
        try:
            if meta.size > PIECE_BYTES and _is_file_of_rows(kind, key):
                held, size = self._large_holds(kind, self.fileio.head(key)), meta.size
            else:
                data = self.fileio.read(key)
                held, size = self._holds(kind, key, data), len(data)
        except NotFound:
            return
        held = held or self.finder.is_in(key.encode())
        before = self.classes.get(kind, Examined(kind=kind))
        self.classes[kind] = Examined(kind=kind, objects=before.objects + 1, bytes=before.bytes + size, found=before.found + int(held))
        if held:
            self.found.add(key)

    def examine_temporaries(self, *, older_than_s: float) -> None:
        """Search the temporary files of a file-system store. Those of dead processes are removed when they are old enough."""
        kind = "temporary files of the store"
        for path in temporaries_of(self.fileio.url, older_than_s=older_than_s):
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                continue
            held = self.finder.is_in(data)
            before = self.classes.get(kind, Examined(kind=kind))
            self.classes[kind] = Examined(kind=kind, objects=before.objects + 1, bytes=before.bytes + len(data), found=before.found + held)
            if held:
                self.found.add(path)

    def _holds(self, kind: str, key: str, data: bytes) -> bool:
        match kind:
            case "log entries":
                return self._entry_holds(key, data)
            case "history files":
                return (
                    any(self._entry_holds(key, body) for _, body in decode_bodies(data, path=key))
                    if _is_parquet(key)
                    else self._is_in(data)
                )
            case "side objects":
                return (
                    self._is_in(data)
                    or self.states.is_in_object(key, data)
                    or (key.rsplit("/", maxsplit=1)[-1].startswith("keys-") and not self.sought.digests.isdisjoint(_numbers(data)))
                )
            case "data files" | "adopted files" | "index files" | "checkpoint manifests" | "other objects":
                of_index = kind == "index files" or key in self.index_manifests
                is_parquet = kind == "adopted files" or _is_parquet(key)
                return self._is_in(data) or (is_parquet and self._any_holds(rows_of(io.BytesIO(data)), of_index=of_index))
            case "mirrors":
                return self.mirrors.holds(key, data)
            case "checkpoint roots":
                return self._is_in(data) or self.states.is_in_object(key, data)
            case "the hint":
                return self._hint_holds(data)
            case _:
                return self._is_in(data)

    def _hint_holds(self, data: bytes) -> bool:
        """Search what a hint carries as the objects of which it is a copy. So bounds are found that are numbers, and of this table only."""
        if not self.is_shared and self.finder.is_in(data):
            return True
        try:
            hint = msgspec.json.decode(data, type=Hint)
            carried = msgspec.json.decode(hint.carried, type=Carried | None)
            if carried is None:
                return self._is_in(data)
            entries = (self._entry_holds(log_key(slot), bytes(raw)) for slot, raw in enumerate(carried.entries, hint.checkpoint + 1))
            return self._holds("checkpoint roots", root_key(max(hint.checkpoint, 0)), bytes(carried.root)) or any(entries)
        except (msgspec.DecodeError, UnicodeDecodeError, ObjcatError):
            return self.finder.is_in(data)

    def _is_in(self, data: bytes) -> bool:
        return self.finder.is_in(self._own_part(data) if self.is_shared else data)

    def _own_part(self, data: bytes) -> bytes:
        """What an object shared by several tables says of this one."""
        try:
            said = json.loads(data)
        except ValueError:
            return data
        if not isinstance(said, dict):
            return data
        for holder in (said, said.get("log", {}), said.get("payload") or {}):
            for name in ("changes", "footprint", "apps", "tables"):
                part = holder.get(name)
                if isinstance(part, dict):
                    holder[name] = {table: what for table, what in part.items() if table == self.table}
        return json.dumps(said, ensure_ascii=False).encode()

    def _entry_holds(self, key: str, data: bytes) -> bool:
        if self._is_in(data):
            return True
        entry = decode_entry(data, key=key)
        if any(self.states.is_in(change.state) for change in entry.positions.values()):
            return True
        raw, footprint = entry.changes.get(self.table), entry.footprint.get(self.table)
        if raw is not None:
            delta = decode_delta(raw)
            files: list[BaseFile | LogObject] = [*delta.bases, *delta.logs]
            of_index: list[BaseFile | LogObject] = [] if delta.index is None else delta.index.files
            if any(self._bounds_hold(file.bounds) for file in files):
                return True
            if any(self._bounds_hold({self._column_of(at): bound for at, bound in file.bounds.items()}) for file in of_index):
                return True
        keys = None if footprint is None else footprint.keys
        inline = [] if keys is None else [keys.placed.inline, keys.updated.inline]
        return any(not self.sought.digests.isdisjoint(_numbers(_bytes_of(text))) for text in inline)

    def _column_of(self, index_column: int) -> int:
        """The table's column for a column of its index, -1 for none. Those of the key come first, in its order."""
        key = self.spec.key
        return key[index_column - 1] if 0 < index_column <= len(key) else -1

    def _bounds_hold(self, bounds: Mapping[int, Sequence[Any]]) -> bool:
        return any(value in self.bounds.get(column, ()) for column, bound in bounds.items() for value in bound[:2] if value is not None)

    def _large_holds(self, kind: str, meta: ObjectMeta) -> bool:
        """Search a file of rows that is not held in memory as a whole. Raises NotFound."""
        if any(map(self.finder.is_in, byte_pieces(self.fileio, meta, overlap=self.finder.overlap))):
            return True
        return self._any_holds(row_pieces(self.fileio, meta), of_index=kind == "index files")

    def _any_holds(self, pieces: Iterable[pa.Table], *, of_index: bool) -> bool:
        return any(self._rows_hold(self._of_table(rows) if of_index else rows) for rows in pieces)

    def _of_table(self, rows: pa.Table) -> pa.Table:
        """Rows of an index, or of a manifest of one, with the ids of the table's columns; other columns have none."""
        ids = {column.physical: column.id for column in self.spec.key_columns}
        fields = []
        for one in rows.schema:
            bounded = _bounded(one.name)
            if bounded is not None:
                fields.append(pa.field(f"lower_{self._column_of(bounded)}" if self._column_of(bounded) >= 0 else "_", one.type))
            else:
                known = ids.get(one.name)
                fields.append(pa.field(one.name, one.type, metadata=None if known is None else {FIELD_ID_KEY: str(known).encode()}))
        return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))

    def _rows_hold(self, rows: pa.Table) -> bool:
        for leaf, values in leaves_of(rows):
            if pt.is_string(values.type) and self.finder.held_in(values):
                return True
            column = _bounded(leaf)
            looked = self.sought.typed.get(leaf if column is None else column)
            if looked and _meets(values, looked):
                return True
        return False


def _bounded(leaf: Leaf) -> int | None:
    """The column whose bounds a manifest column holds."""
    found = re.fullmatch(r"(?:lower|upper)_(\d+)", leaf) if isinstance(leaf, str) else None
    return None if found is None else int(found[1])


def _meets(values: pa.ChunkedArray, looked: Collection[Any]) -> bool:
    try:
        return bool(pc.any(pc.is_in(values, value_set=pa.array(list(looked), values.type))).as_py())
    except (pa.ArrowException, OverflowError, TypeError):
        return False


def _said(values: Collection[Any], kind: pa.DataType) -> set[Any]:
    """Values as bounds in JSON write them."""
    try:
        array = pa.array(list(values), kind)
    except (pa.ArrowException, OverflowError, TypeError):
        return set()
    if pt.is_date(kind):
        return set(array.cast(pa.int32()).to_pylist())
    if pt.is_timestamp(kind):
        return set(array.cast(pa.int64()).to_pylist())
    if pt.is_decimal(kind):
        return {str(value) for value in array.to_pylist()}
    if pt.is_binary(kind):
        return {value.hex() for value in array.to_pylist()}
    return set() if pt.is_boolean(kind) else set(array.to_pylist())


def kind_of(key: str) -> str:
    """The class of an object, by its name."""
    folder, _, rest = key.partition("/")
    match folder:
        case "log":
            return "log entries"
        case "history":
            return "history files"
        case "intents":
            return "intents and plans"
        case "requests":
            return "requests"
        case "head.json":
            return "the hint"
        case "checkpoints":
            name = rest.rpartition("/")[2]
            return (
                "checkpoint roots"
                if name == "root.json"
                else "outcomes of transactions"
                if name.startswith("outcomes-")
                else "checkpoint manifests"
            )
        case "_lake":
            return "adopted files"
        case "data" if not _is_parquet(key):
            return "side objects"
        case "data":
            return "index files" if "/_index/" in key else "data files"
    return "mirrors" if is_mirror(key) else "other objects"


def _is_file_of_rows(kind: str, key: str) -> bool:
    """Whether an object is a Parquet file with rows of the table or its index."""
    return kind == "adopted files" or (kind in ("data files", "index files") and _is_parquet(key))


def is_data_file(key: str) -> bool:
    """Whether a key is of a data file."""
    return key.startswith("data/") and _is_parquet(key)


def literals_of(where: str) -> set[str]:
    """The texts of a filter: they are looked for although no row with them may be left."""
    try:
        tree = sqlglot.parse_one(where, dialect="spark")
    except sqlglot.errors.SqlglotError:
        return set()
    return {one.name for one in tree.find_all(sqlglot.expressions.Literal) if one.is_string}


def physical(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Rows of a scan under the names and ids that columns of files have."""
    fields = {column.name: field for column, field in zip(spec.table_schema.columns, spec.table_schema.to_arrow_physical(), strict=True)}
    chosen = [name for name in rows.column_names if name in fields]
    columns = [relabelled(rows.column(name), fields[name].type) for name in chosen]
    named = [pa.field(fields[name].name, values.type, metadata=fields[name].metadata) for name, values in zip(chosen, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(named))


def vocabulary_of(spec: TableSpec, *, name: str, url: str) -> str:
    """What the objects of a table contain whatever its rows are: names of fields, columns, settings."""
    words = [
        *Action,
        *(one for kind in (Carried, Entry, Hint, Intent, PositionProgress, Root, TableSpec, TurnRequest) for one in kind.__struct_fields__),
    ]
    return " ".join([*words, name, url, msgspec.json.encode(spec).decode(), "parquet-cpp-arrow version schema element list key value"])


def _is_parquet(key: str) -> bool:
    return key.endswith(".parquet")


def _numbers(data: bytes) -> Iterable[int]:
    return struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text)

"""A storage backend for HDFS, by hdfs-native, which needs neither Java nor libhdfs.

HDFS has no conditional write of a file that exists. It has an atomic rename, which fails when its source is missing or its target exists.
So an object is a directory, `<name>~`, with the bytes in a file and an empty directory that names the version:

    trips~/p-<version>      the pointer: which version is current
    trips~/d-<id>           a header with the metadata, and the bytes

- Every write goes to `~<id>` beside the object, which nobody reads. A writer that dies half-way leaves only that.
- *Create* renames `~<id>` to `trips~`. It fails when the object exists.
- *Update* moves its bytes into the object, and renames the pointer of the expected version to its own. A version is never used twice, so
  that fails when any other version is current, also after a delete and a new create, and however late it comes.
- *Overwrite* is a create or an update of what it finds, repeated while others are faster.
- A delete removes the directory, which HDFS does in one step.

No lease and no clock decides anything. A writer that dies between the rename of the pointer and the removal of the older bytes leaves a
file in the object that nobody reads; it goes with the object.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hdfs_native import Client, FileStatus, FileWriter, WriteOptions

from fileio import (
    Backend,
    Buffer,
    ByteRange,
    Capabilities,
    Create,
    DeleteResult,
    GetResult,
    ListPage,
    NotModified,
    ObjectMeta,
    OutcomeUnknown,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Suffix,
    Update,
    Upload,
    Version,
    Written,
)
from fileio.env import default_env
from fileio.errors import FileIOError, InvalidKey, NotFound, PermissionDenied, Throttled, Unavailable, Unsupported, UploadLost

SEGMENT_BYTES_MAX = 250
"""HDFS takes names of 255 bytes by default."""
TRIES_MAX = 100
_WRITE_BYTES = 8 * 1024 * 1024
_ESCAPED = {"%": "%25", "~": "%7E", ":": "%3A"}
"""`~` marks what is ours, and HDFS takes no `:` in names."""


@dataclass(frozen=True)
class HdfsOptions:
    """Options of the scheme `hdfs`.

    Args:
        port: Of the NameNode. None: the host of the URL is a name service of the Hadoop configuration.
        config_dir: The folder of `core-site.xml` and `hdfs-site.xml`. None: that of `HADOOP_CONF_DIR`.
    """

    port: int | None = None
    config_dir: str | None = None


class HdfsScheme:
    """The scheme `hdfs`. The host of a URL is the NameNode or a name service, and the path is a prefix of keys."""

    options_class = HdfsOptions
    path_is_root = False

    def open(self, root: str, options: HdfsOptions) -> Backend:
        """The backend of a whole file system."""
        return HdfsBackend(root, options)


scheme = HdfsScheme()


@dataclass(frozen=True, slots=True)
class _Pointer:
    """A version: where its bytes are in the file, and how many. Its name is the version."""

    id: str
    header_bytes: int
    size: int

    @property
    def version(self) -> Version:
        return Version(f"{self.id}-{self.header_bytes:x}-{self.size:x}")

    @classmethod
    def parse(cls, name: str) -> _Pointer:
        id_, header, size = name.removeprefix("p-").split("-")
        return cls(id_, int(header, 16), int(size, 16))


@dataclass(slots=True)
class _Draft:
    """Bytes that are stored beside an object, and not yet one. folder: `~<id>`. is_moved: whether they are within the object."""

    folder: str
    target: str
    pointer: _Pointer
    store_time_ms: int
    is_moved: bool = False


class HdfsBackend(Backend):
    """Objects in HDFS. Any number of threads and processes may write at once."""

    def __init__(self, root: str, options: HdfsOptions) -> None:
        self._root = root
        address = f"hdfs://{root}" if options.port is None else f"hdfs://{root}:{options.port}"
        self._client = Client(address, config_dir=options.config_dir)

    @property
    def url(self) -> str:
        """The file system."""
        return f"hdfs://{self._root}"

    @property
    def capabilities(self) -> Capabilities:
        """Parts of an upload come in order; there are no appends."""
        return Capabilities(parallel_parts=False, part_bytes_min=1, part_bytes_max=1 << 40, put_bytes_max=1 << 40)

    def close(self) -> None:
        """The client closes its connections itself."""

    # ---- reading

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """One listing of the object's directory, and reads of its file."""
        path = _path(key)
        for _ in range(TRIES_MAX):
            pointer, found = self._current(path, key)
            if pointer.version == if_none_match:
                return NotModified()
            try:
                with _typed(key):
                    file = self._client.read(f"{path}/d-{pointer.id}")
                    metadata = json.loads(file.read_range(0, pointer.header_bytes))
                    start, end = _clip(byte_range, pointer.size)
                    data = file.read_range(pointer.header_bytes + start, end - start) if end > start else b""
            except (NotFound, Unavailable):
                if self._pointer_of(path) == pointer:
                    raise
                continue  # Another version came meanwhile, and its writer removed these bytes.
            return GetResult(_meta(key, pointer, found, metadata), data, start)
        raise Throttled(f"{key!r} is replaced as fast as it is read. Try again later.")

    def head(self, key: str) -> ObjectMeta:
        """As a read of nothing, because the metadata is in the file."""
        found = self.get(key, Suffix(0), None)
        assert isinstance(found, GetResult)
        return found.meta

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """Lists everything below the last whole segment of the prefix, and sorts it."""
        above = prefix.rpartition("/")[0]
        page: dict[str, ObjectMeta | None] = {}
        for key, pointer, found in sorted(self._objects("/" + _encoded(above) if above else ""), key=lambda one: one[0].encode()):
            if not key.startswith(prefix) or key.encode() <= (start_after or "").encode():
                continue
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            name = prefix + head + cut if cut else key
            if name in page or name.encode() <= (cursor or "").encode():
                continue
            if len(page) >= limit:
                return self._page(page, cursor=list(page)[-1])
            page[name] = None if cut else _meta(key, pointer, found, {})
        return self._page(page, cursor=None)

    def _page(self, page: Mapping[str, ObjectMeta | None], *, cursor: str | None) -> ListPage:
        objects = [found for found in page.values() if found is not None]
        return ListPage(objects, [name for name, found in page.items() if found is None], cursor)

    # ---- writing

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """A draft beside the object, and its renames."""
        path = _path(key)
        refusal = self._refusal(path, mode)
        if refusal is not None:
            return refusal
        writer = _DraftWriter(self._client, path, key, metadata)
        try:
            writer.write(data)
            return self._place(writer.finish(), key, mode)
        finally:
            writer.discard()

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:  # noqa: ARG002 - of the contract
        """Not declared: an append of HDFS is not conditional on the size."""
        raise Unsupported(f"{self.url} does not append at an offset. Write the whole object.")

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """Parts go to one draft."""
        return _HdfsUpload(self, _DraftWriter(self._client, _path(key), key, metadata), key, mode)

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """HDFS copies nothing by itself: the bytes pass through this process."""
        found = self.get(source, None, None)
        assert isinstance(found, GetResult)
        return self.put(target, found.data, mode, metadata)

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """One call for each key, and one for each directory that is empty then."""
        results = []
        for key in keys:
            try:
                path = _path(key)
                with _typed(key):
                    self._client.delete(path, recursive=True)
                results.append(DeleteResult(key))
            except FileIOError as error:
                results.append(DeleteResult(key, error))
                continue
            parent = path.rpartition("/")[0]
            with suppress(OSError, RuntimeError):
                while parent and self._client.delete(parent, recursive=False):
                    parent = parent.rpartition("/")[0]
        return results

    # ---- how a draft becomes an object

    def place(self, draft: _Draft, key: str, mode: PutMode) -> PutOutcome:
        """Make a draft the object under a condition."""
        return self._place(draft, key, mode)

    def _place(self, draft: _Draft, key: str, mode: PutMode) -> PutOutcome:
        for _ in range(TRIES_MAX):
            current = self._pointer_of(draft.target)
            match mode:
                case Create() if current is not None:
                    return self._refused(current, draft)
                case Update(version) if current is None or current.version != version:
                    return self._refused(current, draft)
            outcome = self._created(draft) if current is None else self._replaced(draft, current)
            if outcome is not None:
                return outcome
            if isinstance(mode, Update):
                # Refused between two looks: whether an answer of ours was lost is for the reader of the object to say.
                return OutcomeUnknown(Unavailable(f"{key!r} changed while it was written."))
        raise Throttled(f"{key!r} is replaced as fast as it is written. Nothing was written. Try again later.")

    def _refused(self, current: _Pointer | None, draft: _Draft) -> PutOutcome:
        if current is not None and current.id == draft.pointer.id:
            return self._written(draft)
        return PreconditionFailed(None if current is None else current.version)

    def _created(self, draft: _Draft) -> PutOutcome | None:
        """Rename the draft to the object. None: there is one now, or the directory above is gone."""
        try:
            self._client.rename(draft.folder, draft.target)
        except FileExistsError:
            return None  # The draft is still there, because HDFS looks at it first: so it was not renamed before.
        except FileNotFoundError:
            try:
                if self._exists(draft.folder):
                    self._client.mkdirs(draft.target.rpartition("/")[0], create_parent=True)
                    return None
            except (OSError, RuntimeError) as error:
                return self._unless_written(draft, str(error))
            return self._unless_written(draft, "The draft is gone.")
        except (OSError, RuntimeError) as error:
            return self._unless_written(draft, str(error))
        return self._written(draft)

    def _replaced(self, draft: _Draft, current: _Pointer) -> PutOutcome | None:
        """Move the bytes into the object and rename its pointer. None: another version is current now."""
        inside, beside = f"{draft.target}/d-{draft.pointer.id}", f"{draft.folder}/d-{draft.pointer.id}"
        try:
            self._client.rename(beside, inside)
        except FileNotFoundError:
            with _typed(draft.target):
                if self._exists(beside):
                    return None
            raise UploadLost("The draft is gone. Nothing was written. Write it again.") from None
        except (OSError, RuntimeError) as error:
            raise Unavailable(f"The bytes could not be moved: {error}. Nothing was written.") from error
        try:
            self._client.rename(f"{draft.target}/p-{current.version}", f"{draft.target}/p-{draft.pointer.version}")
        except FileNotFoundError:
            if self._pointer_of(draft.target) == draft.pointer:
                return self._written(draft)
            with suppress(OSError, RuntimeError):
                self._client.rename(inside, beside)
            return None
        except (OSError, RuntimeError) as error:
            return self._unless_written(draft, str(error))
        with suppress(OSError, RuntimeError):
            self._client.delete(f"{draft.target}/d-{current.id}")
        return self._written(draft)

    def _unless_written(self, draft: _Draft, why: str) -> PutOutcome:
        with suppress(FileIOError):
            if self._pointer_of(draft.target) == draft.pointer:
                return self._written(draft)
        return OutcomeUnknown(Unavailable(why))

    def _written(self, draft: _Draft) -> Written:
        return Written(draft.pointer.version, draft.store_time_ms)

    def _refusal(self, path: str, mode: PutMode) -> PreconditionFailed | None:
        """A condition that fails before anything is written."""
        current = self._pointer_of(path)
        match mode:
            case Create() if current is not None:
                return PreconditionFailed(current.version)
            case Update(version) if current is None or current.version != version:
                return PreconditionFailed(None if current is None else current.version)
        return None

    # ---- directories

    def _current(self, path: str, key: str) -> tuple[_Pointer, FileStatus]:
        """The pointer and the file of an object. Raises NotFound."""
        for _ in range(TRIES_MAX):
            try:
                with _typed(key):
                    inside = {status.path.rpartition("/")[2]: status for status in self._client.list_status(path)}
            except NotFound:
                break
            pointer = next((_Pointer.parse(name) for name in inside if name.startswith("p-")), None)
            if pointer is None:
                break
            if f"d-{pointer.id}" in inside:
                return pointer, inside[f"d-{pointer.id}"]
        raise NotFound(f"There is no object {key!r} in {self.url}.")

    def _pointer_of(self, path: str) -> _Pointer | None:
        try:
            return self._current(path, path)[0]
        except NotFound:
            return None

    def _exists(self, path: str) -> bool:
        try:
            self._client.get_file_info(path)
        except FileNotFoundError:
            return False
        return True

    def _objects(self, path: str) -> Iterator[tuple[str, _Pointer, FileStatus]]:
        """Every object below a directory."""
        try:
            with _typed(path):
                found = list(self._client.list_status(path or "/", recursive=True))
        except NotFound:
            return
        files = {status.path: status for status in found}
        for status in found:
            folder, _, name = status.path.rpartition("/")
            if name.startswith("p-") and folder.endswith("~"):
                pointer = _Pointer.parse(name)
                file = files.get(f"{folder}/d-{pointer.id}")
                if file is not None:
                    yield _decoded(folder.removesuffix("~").removeprefix("/")), pointer, file


class _DraftWriter:
    """Writes a draft: a directory beside the object, with the bytes and, in the end, the pointer."""

    def __init__(self, client: Client, target: str, key: str, metadata: Mapping[str, str]) -> None:
        self._client, self._target, self._key = client, target, key
        self._id = default_env().new_id()
        self._folder = f"{target.rpartition('/')[0]}/~{self._id}"
        self._header = json.dumps(dict(metadata)).encode()
        self._size = 0
        with _typed(key):
            self._file: FileWriter = client.create(f"{self._folder}/d-{self._id}", WriteOptions(create_parent=True))
            self._file.write(self._header)

    def write(self, data: Buffer) -> None:
        """Add bytes."""
        view = memoryview(data)
        with _typed(self._key):
            for start in range(0, len(view), _WRITE_BYTES):
                self._file.write(bytes(view[start : start + _WRITE_BYTES]))
        self._size += len(view)

    def finish(self) -> _Draft:
        """Close the file and name the version."""
        pointer = _Pointer(self._id, len(self._header), self._size)
        with _typed(self._key):
            self._file.close()
            self._client.mkdirs(f"{self._folder}/p-{pointer.version}", create_parent=False)
            time_ms = self._client.get_file_info(f"{self._folder}/d-{self._id}").modification_time
        return _Draft(self._folder, self._target, pointer, time_ms)

    def discard(self) -> None:
        """Remove what is left of the draft."""
        with suppress(OSError, RuntimeError):
            self._client.delete(self._folder, recursive=True)


class _HdfsUpload(Upload):
    """Parts of an upload, in order, in one draft."""

    def __init__(self, backend: HdfsBackend, writer: _DraftWriter, key: str, mode: PutMode) -> None:
        self._backend, self._writer, self._key, self._mode = backend, writer, key, mode
        self._parts = 0
        self._draft: _Draft | None = None
        self._is_broken = False
        self._lock = threading.Lock()

    def put_part(self, number: int, data: Buffer) -> None:
        with self._lock:
            if self._is_broken:
                raise UploadLost(f"A part of {self._key!r} was written in part. Nothing is visible. Begin again.")
            if number <= self._parts:
                return
            try:
                self._writer.write(data)
            except FileIOError as error:
                self._is_broken = True
                raise UploadLost(f"A part of {self._key!r} could not be written: {error} Nothing is visible. Begin again.") from error
            self._parts = number

    def complete(self) -> PutOutcome:
        with self._lock:
            if self._is_broken:
                return PreconditionFailed(None)
            if self._draft is None:
                try:
                    self._draft = self._writer.finish()
                except FileIOError:
                    self._is_broken = True
                    raise
            outcome = self._backend.place(self._draft, self._key, self._mode)
            if not isinstance(outcome, OutcomeUnknown):
                self._writer.discard()
            return outcome

    def abort(self) -> None:
        self._is_broken = True
        self._writer.discard()


class _typed:  # noqa: N801 - a context manager
    """Turns errors of HDFS into those of `fileio`. Everything that is not known is `Unavailable`."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        match error:
            case FileIOError():
                return
            case FileNotFoundError():
                raise NotFound(f"There is no {self._key!r}.") from error
            case PermissionError():
                raise PermissionDenied(f"HDFS refuses access to {self._key!r}: {_first_line(error)}") from error
            case OSError() | RuntimeError():
                raise Unavailable(f"HDFS did not serve {self._key!r}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _path(key: str) -> str:
    """The directory of an object. Raises InvalidKey."""
    path = f"/{_encoded(key)}~"
    for segment in path.split("/"):
        if len(segment.encode()) > SEGMENT_BYTES_MAX:
            raise InvalidKey(f"A part of the key {key[:80]!r} is too long for HDFS, which takes {SEGMENT_BYTES_MAX} bytes between slashes.")
    return path


def _encoded(key: str) -> str:
    return "".join(_ESCAPED.get(char, char) for char in key)


def _decoded(path: str) -> str:
    for char, escaped in reversed(_ESCAPED.items()):
        path = path.replace(escaped, char)
    return path


def _clip(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    """The first byte and the end of a range within an object of `size` bytes."""
    if byte_range is None:
        return 0, size
    if isinstance(byte_range, Suffix):
        return max(0, size - byte_range.length), size
    start = min(byte_range.start, size)
    return start, max(start, size if byte_range.end is None else min(byte_range.end, size))


def _meta(key: str, pointer: _Pointer, found: FileStatus, metadata: Mapping[str, str]) -> ObjectMeta:
    return ObjectMeta(key, pointer.size, pointer.version, found.modification_time, metadata)

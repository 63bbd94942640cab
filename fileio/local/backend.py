"""`file:` and bare paths: objects are plain files below a root directory. Each is complete at all times, also after SIGKILL or a power cut.

How a write becomes an object. A crash at any point leaves the old object or the new one:

- The bytes go to a file in `<root>/.objcat/tmp` and are fsynced. *Create* is `link(2)` to the path of the key, which fails when anything
  exists there. *Update* and *Overwrite* take a lock, check the version again, and `rename(2)` over the path. Then the directory is
  fsynced, and only then is the write acknowledged. Files that dead processes left in `tmp` are removed by age.
- The lock is `flock(2)` on the directory that holds the object. The kernel releases it when a process dies, and it excludes threads as
  well as processes, since every call opens the directory for itself. Nothing has to be cleaned up. Unlike a lock file below the root, it
  also works between two stores that are opened at different levels of one tree.
- The version is the inode, modification time and size of the file. Writers set the time: the clock's millisecond with random digits below
  it, and always later than what is replaced. So versions never repeat, and files of other tools have versions too.
- The write id and other metadata are an extended attribute, set before the file is linked. They share *one inode*, so no crash can
  separate them. Where the filesystem has no such attributes, or the metadata is too large, they go to a sidecar,
  `<root>/.objcat/meta/../<inode>-<time>`. It is fsynced before the link or rename, and removed after its file. Its name comes from the
  file, so an object never finds the sidecar of another, and a sidecar without its object is only litter. Both forms record time and
  size, so a file that another tool changed in place loses its metadata and never shows a wrong one.

Needs a local POSIX filesystem with hard links (ext4, XFS, btrfs, ZFS, tmpfs, APFS). NFS and SMB are not fit: their locks and links may
fail silently.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from fileio.contract import (
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
    Update,
    Upload,
    Version,
    Written,
)
from fileio.env import default_env, on_fork
from fileio.errors import FileIOError, InvalidConfig, InvalidKey, NotFound, Throttled, Unavailable, Unsupported, UploadLost
from fileio.local.files import (
    LEFTOVER_AGE_MS,
    MetadataFiles,
    SeenRoot,
    Temporary,
    clear_empty_directory,
    clip,
    error_of,
    meta_of,
    opened_directory,
    read_bytes,
    refusal_of,
    stat_of,
    sweep_temporaries,
    typed_errors,
    version_of,
)
from fileio.local.listing import HIDDEN, cursor_of, items
from fileio.local.options import CERTAIN_ERRORS, LocalOptions, is_directory
from fileio.local.upload import LocalUpload
from fileio.options import quote_path

SEGMENT_BYTES_MAX = 255
_TRIES_MAX = 100
_CAPABILITIES = Capabilities(append=True, parallel_parts=False, part_bytes_min=1, part_bytes_max=1 << 40, put_bytes_max=1 << 40)


def open_local(root: str, options: LocalOptions) -> Backend:
    """The backend of the directory `root`. The first write creates it; until then the store is empty.

    Raises InvalidConfig when `root`, or a path above it, is not a directory.
    """
    path = level = os.path.abspath(root)
    while (found := is_directory(level)) is None and level != os.path.dirname(level):
        level = os.path.dirname(level)
    if found is False:
        what = "a link that leads nowhere" if os.path.islink(level) else "a file"
        raise InvalidConfig(f"{level!r} is {what}. Name a directory for the objects.")
    return LocalBackend(path, options)


class LocalBackend(Backend):
    """Objects as files below one directory. Any number of threads and processes may write at once."""

    def __init__(self, root: str, options: LocalOptions) -> None:
        self._root = root
        self._options = options
        self._metadata_files = MetadataFiles(root, fsync=options.fsync, attributes=options.attributes)
        self._lock = threading.Lock()
        self._seen = SeenRoot(root)
        self._durable: dict[str, int] = {}
        self._swept = False
        on_fork(self)

    def after_fork(self) -> None:
        """Replace the lock: a thread that does not exist in the child may have held it."""
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """`file://` and the absolute path."""
        return "file://" + quote_path(self._root)

    @property
    def capabilities(self) -> Capabilities:
        """Parts of an upload come in order; appends work."""
        return _CAPABILITIES

    def close(self) -> None:
        """Nothing is open between calls."""

    # ---- reading

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """One open, and reads of the range."""
        path = self._path(key)
        with typed_errors(path), self._opened(key, path) as (fd, meta):
            if meta.version == if_none_match:
                return NotModified()
            start, end = clip(byte_range, meta.size)
            return GetResult(meta, read_bytes(fd, start, end), start)

    def head(self, key: str) -> ObjectMeta:
        """One open."""
        path = self._path(key)
        with typed_errors(path), self._opened(key, path) as (_, meta):
            return meta

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """Walks the tree up to the end of the page."""
        self._seen.check()
        found: list[ObjectMeta] = []
        prefixes: list[str] = []
        with typed_errors(self._root):
            listed = items(self._root, prefix, start_after or "", delimiter, cursor)
            for key, is_prefix in listed:
                if is_prefix:
                    prefixes.append(key)
                elif (current := stat_of(os.path.join(self._root, key))) is not None:
                    found.append(meta_of(key, current, {}))
                if len(found) + len(prefixes) >= limit:
                    more = next(listed, None) is not None
                    return ListPage(found, prefixes, cursor_of(key, is_prefix=is_prefix) if more else None)
        return ListPage(found, prefixes)

    # ---- writing

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """One temporary file, then a link or a rename."""
        path = self._path(key)
        with typed_errors(path):
            refusal, floor_ns = self._look(path, mode)
            if refusal is not None:
                return refusal
            with self._temporary(path) as temporary:
                temporary.write(data, 0)
                temporary.seal(metadata, later_than_ns=floor_ns)
                return self._place(temporary, mode, metadata)

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """The grown object is a new file, which shares blocks on XFS and btrfs. Readers and crashes see all of `data` or none."""
        path = self._path(key)
        with typed_errors(path):
            try:
                with self._opened(key, path) as (fd, meta):
                    if meta.size != offset:
                        return PreconditionFailed(meta.version)
                    floor_ns = os.fstat(fd).st_mtime_ns
                    with self._temporary(path) as temporary:
                        temporary.copy(fd, meta.size)
                        temporary.write(data, meta.size)
                        temporary.seal(meta.metadata, later_than_ns=floor_ns)
                        return self._place(temporary, Update(meta.version), meta.metadata)
            except NotFound:
                return self.put(key, data, Create(), {}) if offset == 0 else PreconditionFailed(None)

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Copied by the kernel, without its bytes where the filesystem can share blocks."""
        path = self._path(target)
        with typed_errors(path), self._opened(source, self._path(source)) as (fd, meta):
            refusal, floor_ns = self._look(path, mode)
            if refusal is not None:
                return refusal
            with self._temporary(path) as temporary:
                temporary.copy(fd, meta.size)
                temporary.seal(metadata, later_than_ns=floor_ns)
                return self._place(temporary, mode, metadata)

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """Parts go to one temporary file."""
        path = self._path(key)
        with typed_errors(path):
            temporary = self._new_temporary(path)
            return LocalUpload(temporary, mode, metadata, check=self._seen.check, look=self._look, place=self._place)

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """One unlink per key, and one fsync per directory."""
        results: list[DeleteResult] = []
        touched: set[str] = set()
        for key in keys:
            try:
                path = self._path(key)
                with typed_errors(path):
                    if self._delete(path):
                        touched.add(os.path.dirname(path))
                results.append(DeleteResult(key))
            except FileIOError as error:
                results.append(DeleteResult(key, error))
        for directory in sorted(touched, reverse=True):
            with typed_errors(directory):
                self._finish_deletes(directory)
        return results

    def _delete(self, path: str) -> bool:
        """Remove the file at `path`. False when there is none."""
        directory, name = os.path.split(path)
        with suppress(FileNotFoundError, NotADirectoryError), opened_directory(directory) as fd, self._locked(fd, path):
            current = stat_of(name, fd)
            if current is not None and not stat.S_ISDIR(current.st_mode):
                os.unlink(name, dir_fd=fd)
                self._metadata_files.drop(current)
                return True
        return False

    def _finish_deletes(self, directory: str) -> None:
        """Make deletions in `directory` durable, and remove it and its parents when they are empty.

        A writer that puts a file there meanwhile creates them again.
        """
        self._sync_directory(directory)
        while len(directory) > len(self._root):
            try:
                os.rmdir(directory)
            except OSError:
                return
            directory = os.path.dirname(directory)

    # ---- how a file becomes an object

    def _look(self, path: str, mode: PutMode) -> tuple[PreconditionFailed | None, int]:
        """A condition that fails before anything is written, and the time (ns) that the new version must be later than."""
        current = stat_of(path)
        if current is None or stat.S_ISDIR(current.st_mode):
            return (PreconditionFailed(None) if isinstance(mode, Update) else None), 0
        return refusal_of(current, mode), current.st_mtime_ns

    def _place(self, temporary: Temporary, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Make the sealed file the object, under the condition, and durable."""
        path = temporary.target
        for _ in range(_TRIES_MAX):
            try:
                with self._open_parent(path) as fd:
                    if not clear_empty_directory(path):
                        raise InvalidKey(f"{path!r} cannot be an object. Other keys begin with it and a slash. Choose another key.")
                    outcome = self._link(temporary, fd) if isinstance(mode, Create) else self._replace(temporary, fd, mode, metadata)
                    if isinstance(outcome, Written) and not self._confirmed(fd):
                        return OutcomeUnknown(Unavailable(f"The disk did not confirm the write of {path!r}. A crash may lose it."))
                    if outcome is not None:
                        return outcome
            except (FileNotFoundError, IsADirectoryError):
                # A delete removed the directory, or another writer created one at the path of the file.
                if not os.path.exists(temporary.path):
                    raise UploadLost(f"The unfinished file of {path!r} vanished. Nothing was written. Write it again.") from None
            except OSError as error:
                if not temporary.placed or error.errno is None:
                    raise
                return OutcomeUnknown(error_of(error, path))
        raise Throttled(
            f"The directories of {path!r} are created and removed as fast as they are used. Nothing was written. Try again later."
        )

    def _link(self, temporary: Temporary, fd: int) -> PutOutcome | None:
        """Create in the directory open as `fd`. None: something that is not an object was in the way, look again."""
        name = os.path.basename(temporary.target)
        try:
            os.link(temporary.path, name, dst_dir_fd=fd)
        except FileExistsError:
            current = stat_of(name, fd)
            return None if current is None or stat.S_ISDIR(current.st_mode) else PreconditionFailed(version_of(current))
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise Unsupported(
                    f"{temporary.target!r} is on a filesystem without hard links ({error.strerror}). Use another one."
                ) from error
            if error.errno is None or error.errno in CERTAIN_ERRORS:
                raise
            return OutcomeUnknown(error_of(error, temporary.target))
        return temporary.written()

    def _replace(self, temporary: Temporary, fd: int, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Update or overwrite in the directory open as `fd`."""
        name = os.path.basename(temporary.target)
        with self._locked(fd, temporary.target):
            current = stat_of(name, fd)
            if current is None and isinstance(mode, Update):
                return PreconditionFailed(None)
            if current is not None:
                refusal = refusal_of(current, mode)
                if refusal is not None:
                    return refusal
                temporary.seal(metadata, later_than_ns=current.st_mtime_ns)
            try:
                os.replace(temporary.path, name, dst_dir_fd=fd)
            except OSError as error:
                if error.errno is None or error.errno in CERTAIN_ERRORS:
                    raise
                return OutcomeUnknown(error_of(error, temporary.target))
            if current is not None:
                self._metadata_files.drop(current)
            return temporary.written()

    def _confirmed(self, fd: int) -> bool:
        try:
            self._metadata_files.sync(fd)
        except OSError:
            return False
        return True

    @contextmanager
    def _locked(self, fd: int, path: str) -> Iterator[None]:
        """The lock of the directory open as `fd`, for writers that look before they replace or remove."""
        env = default_env()
        deadline_s = env.monotonic_s() + self._options.lock_timeout_s
        pause_s = 0.0002
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if env.monotonic_s() > deadline_s:
                    waited = f"{self._options.lock_timeout_s:g} s"
                    raise Throttled(
                        f"Other writers held the directory of {path!r} for {waited}. Nothing was written. Try again later."
                    ) from None
                env.sleep(pause_s * env.random())
                pause_s = min(2 * pause_s, 0.005)
            except OSError as error:
                raise Unsupported(
                    f"{path!r} is on a filesystem that cannot lock ({error.strerror}). Use a local one, not NFS or SMB."
                ) from error
        try:
            yield
        finally:
            # Closing does not release it while a forked child holds a copy of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)

    # ---- paths and directories

    def _path(self, key: str) -> str:
        """The path of a key. Raises InvalidKey, and BucketNotFound when the root is another directory."""
        self._seen.check()
        for segment in key.split("/"):
            if len(segment.encode()) > SEGMENT_BYTES_MAX:
                raise InvalidKey(
                    f"{key[:80]!r} cannot be a file. {segment[:20]!r}... has {len(segment.encode())} bytes, "
                    f"but a name between slashes has at most {SEGMENT_BYTES_MAX} there. Choose a shorter one."
                )
            if segment == HIDDEN:
                raise InvalidKey(
                    f"{key[:80]!r} is not a key for files. The name {HIDDEN!r} is reserved for unfinished writes. Choose another one."
                )
        return os.path.join(self._root, key)

    @contextmanager
    def _open_parent(self, path: str) -> Iterator[int]:
        """The directory of `path`, created if missing. Its name is durable in all its parents up to that of the root."""
        directory = os.path.dirname(path)
        try:
            self._make_directory(directory)
            with opened_directory(directory) as fd:
                # Another process may have just created it, and not forced it to disk yet.
                self._make_durable(directory)
                yield fd
        except (FileExistsError, NotADirectoryError) as error:
            while len(directory) >= len(self._root):
                if is_directory(directory) is False:
                    raise InvalidKey(f"{path!r} cannot be an object. {directory!r} is itself an object. Choose another key.") from error
                directory = os.path.dirname(directory)
            # It was a directory, and a delete removed it between two looks.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error

    def _make_directory(self, directory: str) -> None:
        if not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)

    def _make_durable(self, directory: str) -> None:
        """Force the names of a directory and its parents up to the root's to disk, unless that was done before."""
        forced: dict[str, int] = {}
        while len(directory) >= len(self._root):
            inode = os.stat(directory).st_ino
            if inode in (self._durable.get(directory), forced.get(directory)):
                break
            forced[directory] = inode
            directory = os.path.dirname(directory)
            try:
                self._sync_directory(directory)
            except PermissionError:
                if len(directory) >= len(self._root):
                    raise
        if forced:
            with self._lock:
                if len(self._durable) >= 10_000:
                    self._durable.clear()
                self._durable.update(forced)

    def _sync_directory(self, directory: str) -> None:
        if self._options.fsync:
            with suppress(FileNotFoundError), opened_directory(directory) as fd:
                os.fsync(fd)

    @contextmanager
    def _opened(self, key: str, path: str) -> Iterator[tuple[int, ObjectMeta]]:
        """The file of an object and its metadata, both of one version."""
        for _ in range(_TRIES_MAX):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except (FileNotFoundError, NotADirectoryError):
                raise self._not_found(key) from None
            try:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise self._not_found(key)
                metadata = self._metadata_files.load(fd, found)
                # If the file was replaced after it was opened, its sidecar may be gone. Then look at the new file.
                if metadata is not None or os.fstat(fd).st_nlink > 0:
                    yield fd, meta_of(key, found, metadata or {})
                    return
            finally:
                os.close(fd)
        raise Throttled(f"{key!r} is replaced faster than it can be read. Try again later.")

    def _not_found(self, key: str) -> NotFound:
        if os.path.isdir(self._root):
            return NotFound(f"There is no object {key!r} in {self._root!r}.")
        return NotFound(f"There is no object {key!r}. The directory {self._root!r} does not exist; the first write creates it.")

    # ---- unfinished writes

    @contextmanager
    def _temporary(self, target: str) -> Iterator[Temporary]:
        temporary = self._new_temporary(target)
        try:
            yield temporary
        finally:
            temporary.discard()

    def _new_temporary(self, target: str) -> Temporary:
        directory = os.path.join(self._root, HIDDEN, "tmp")
        self._make_directory(directory)
        self._make_durable(directory)
        if not self._swept:
            self._swept = True
            oldest_ms = default_env().now_ms() - LEFTOVER_AGE_MS
            sweep_temporaries(directory, older_than_ms=oldest_ms)
            self._metadata_files.sweep(older_than_ms=oldest_ms)
        return Temporary(os.path.join(directory, default_env().new_id()), target, self._metadata_files)

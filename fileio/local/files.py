"""One file of a `file:` store: its version, its metadata, and its way from a temporary name to its key. See `backend` for the reasons."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

from fileio.contract import Buffer, ByteRange, Create, ObjectMeta, Overwrite, PreconditionFailed, PutMode, Suffix, Update, Version, Written
from fileio.env import default_env
from fileio.errors import BucketNotFound, FileIOError, InvalidKey, PermissionDenied, StoreFull, Throttled, Unavailable, Unsupported
from fileio.local.listing import HIDDEN

LEFTOVER_AGE_MS = 24 * 3600 * 1000
_SWEEP_ENTRIES_MAX = 10_000
_ATTRIBUTE = "user.objcat"
_IO_BYTES_MAX = 1 << 30
_COPY_BYTES = 1 << 20


# ---- versions and bytes ------------------------------------------------------------------------------------------


def version_of(found: os.stat_result) -> Version:
    """The version of a file: inode, modification time and size."""
    return Version(f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}")


def meta_of(key: str, found: os.stat_result, metadata: Mapping[str, str]) -> ObjectMeta:
    """The file as an object."""
    return ObjectMeta(key, found.st_size, version_of(found), found.st_mtime_ns // 1_000_000, metadata)


def stat_of(path: str, directory: int | None = None) -> os.stat_result | None:
    """The file at `path`, relative to the open `directory` if any; None when there is none."""
    try:
        return os.stat(path, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        return None


def clip(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    """The first byte and the end of a range within an object of `size` bytes."""
    if byte_range is None:
        return 0, size
    if isinstance(byte_range, Suffix):
        return max(0, size - byte_range.length), size
    start = min(byte_range.start, size)
    return start, max(start, size if byte_range.end is None else min(byte_range.end, size))


def read_bytes(fd: int, start: int, end: int) -> bytes:
    """The bytes from `start` to `end` of an open file. Fewer when the file ends before."""
    pieces = []
    while start < end:
        piece = os.pread(fd, min(end - start, _IO_BYTES_MAX), start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def refusal_of(current: os.stat_result, mode: PutMode) -> PreconditionFailed | None:
    """The conflict of a condition with the existing file, if any."""
    match mode:
        case Create():
            return PreconditionFailed(version_of(current))
        case Update(version):
            return None if version == version_of(current) else PreconditionFailed(version_of(current))
        case Overwrite():
            return None


def clear_empty_directory(path: str) -> bool:
    """Remove an empty directory at `path`, which is not an object. False when it holds files."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return True
        if any(files for _, _, files in os.walk(path)):
            return False
        for level, _, _ in os.walk(path, topdown=False):
            os.rmdir(level)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            return False
        raise
    return True


@contextmanager
def opened_directory(path: str) -> Iterator[int]:
    """A descriptor of the directory. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


# ---- the root ----------------------------------------------------------------------------------------------------


_REMOUNT = "Check that it is mounted, and open the store again."


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory. `number`: of the device and of the inode. `led_to`: where its path leads if it is a link."""

    number: tuple[int, int]
    led_to: str


class SeenRoot:
    """Remembers which directory a root is. It may be created later. Safe for many threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: _Directory | None = None

    def check(self) -> None:
        """Raises BucketNotFound when the root is not the same directory as before. Writes must go where reads came from."""
        known = self._known  # Read first: another thread may create the root after the look below.
        with typed_errors(self._path):
            found = stat_of(self._path)
        if found is None or not stat.S_ISDIR(found.st_mode):
            if known is not None:
                raise BucketNotFound(f"{self._path!r} no longer exists. {_REMOUNT}")
            return
        now = (found.st_dev, found.st_ino)
        if known is not None and known.number == now:
            return
        led_to = os.path.realpath(self._path)
        if known is not None and (known.number[0] != now[0] or known.led_to != led_to or inodes_last(now[0])):
            raise BucketNotFound(f"{self._path!r} is another directory than before. {_REMOUNT}")
        self._known = _Directory(now, led_to)


def inodes_last(device: int, mounts: str = "/proc/self/mountinfo") -> bool:
    """Whether directories of a device keep their inodes.

    An overlay with layers on several filesystems, and a filesystem in userspace, give a directory a new inode once the kernel forgot it.
    """
    with suppress(OSError), open(mounts, encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if before.split(" ")[2] == f"{os.major(device)}:{os.minor(device)}":
                return not after.startswith(("overlay ", "fuse"))
    return True


# ---- metadata ----------------------------------------------------------------------------------------------------


class MetadataFiles:
    """Metadata of the files below one root: an extended attribute of the file, or a sidecar named after it."""

    def __init__(self, root: str, *, fsync: bool, attributes: bool) -> None:
        self._root = root
        self._fsync = fsync
        self._attributes = attributes

    def load(self, fd: int, found: os.stat_result) -> dict[str, str] | None:
        """The metadata that our own writer stored for exactly this version of the open file; None when there is none."""
        blob = _get_attribute(fd)
        metadata = None if blob is None else _unpack(blob, found)
        if metadata is None:
            with suppress(FileNotFoundError, NotADirectoryError), open(self._sidecar(found), "rb") as file:
                metadata = _unpack(file.read(), found)
        return metadata

    def save(self, fd: int, metadata: Mapping[str, str], target: str) -> None:
        """Attach `metadata` to the open file, which must have its final size and time. The attribute is as durable as the file."""
        found = os.fstat(fd)
        said = {"time_ns": found.st_mtime_ns, "size": found.st_size, "metadata": dict(metadata)}
        if self._attributes and _set_attribute(fd, json.dumps(said).encode()):
            return
        path = self._sidecar(found)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(json.dumps({**said, "path": os.path.relpath(target, self._root)}).encode())
            file.flush()
            self.sync(file.fileno())
        with opened_directory(os.path.dirname(path)) as directory:
            self.sync(directory)

    def drop(self, found: os.stat_result) -> None:
        """Remove the sidecar of a removed file. `sweep` removes what a crash leaves."""
        with suppress(OSError):
            os.unlink(self._sidecar(found))

    def sweep(self, *, older_than_ms: int) -> None:
        """Remove sidecars without a file from one of 256 directories, chosen at random. So litter and cost stay small."""
        part = os.path.join(self._root, HIDDEN, "meta", f"{int(default_env().new_id(), 16) % 256:02x}")
        with suppress(OSError), os.scandir(part) as entries:
            for entry in islice(entries, _SWEEP_ENTRIES_MAX):
                if entry.stat().st_mtime_ns // 1_000_000 >= older_than_ms:
                    continue
                with suppress(OSError, ValueError, KeyError), open(entry.path, "rb") as file:
                    found = stat_of(os.path.join(self._root, json.loads(file.read())["path"]))
                    if found is None or self._sidecar(found) != entry.path:
                        os.unlink(entry.path)

    def sync(self, fd: int) -> None:
        """Force the open file or directory to disk, if the store does so."""
        if self._fsync:
            os.fsync(fd)

    def _sidecar(self, found: os.stat_result) -> str:
        return os.path.join(self._root, HIDDEN, "meta", f"{found.st_ino % 256:02x}", f"{found.st_ino:x}-{found.st_mtime_ns:x}")


def _get_attribute(fd: int) -> bytes | None:
    if sys.platform != "linux":
        return None
    try:
        return os.getxattr(fd, _ATTRIBUTE)
    except OSError:
        return None


def _set_attribute(fd: int, blob: bytes) -> bool:
    """False when the filesystem has no attributes, or none of this size. If the disk is full, writing the sidecar says so."""
    if sys.platform != "linux":
        return False
    try:
        os.setxattr(fd, _ATTRIBUTE, blob)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT, errno.EPERM):
            return False
        raise
    return True


def _unpack(blob: bytes, found: os.stat_result) -> dict[str, str] | None:
    """The metadata in an attribute or sidecar, if it belongs to this version of the file."""
    try:
        said = json.loads(blob)
    except ValueError:
        return None
    return dict(said["metadata"]) if (said["time_ns"], said["size"]) == (found.st_mtime_ns, found.st_size) else None


# ---- unfinished writes -------------------------------------------------------------------------------------------


class Temporary:
    """A new file on its way to `target`. It is locked against the sweep while it is open. `placed`: whether it has arrived."""

    def __init__(self, path: str, target: str, metadata_files: MetadataFiles) -> None:
        self.path = path
        self.target = target
        self._metadata_files = metadata_files
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._sealed: os.stat_result | None = None
        self.placed = False
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def write(self, data: Buffer, offset: int) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data).cast("B")
        while len(view) > 0:
            count = os.pwrite(self._fd, view[:_IO_BYTES_MAX], offset)
            view = view[count:]
            offset += count

    def copy(self, source: int, size: int) -> None:
        """Copy the first `size` bytes of the open file `source`, in the kernel if possible."""
        offset = 0
        if sys.platform == "linux":
            with suppress(OSError):
                while offset < size:
                    count = os.copy_file_range(source, self._fd, min(size - offset, _IO_BYTES_MAX), offset, offset)
                    if count == 0:
                        break
                    offset += count
        while offset < size:
            data = os.pread(source, min(size - offset, _COPY_BYTES), offset)
            if not data:
                raise Unavailable(f"The source of the copy to {self.target!r} shrank meanwhile. Another tool writes to it. Copy it again.")
            self.write(data, offset)
            offset += len(data)

    def seal(self, metadata: Mapping[str, str], *, later_than_ns: int) -> None:
        """Set time and metadata of the file, and force all of it to disk. Does nothing when that is done and late enough."""
        if self._sealed is not None and self._sealed.st_mtime_ns > later_than_ns:
            return
        self._forget()
        env = default_env()
        time_ns = max(env.now_ms() * 1_000_000 + int(env.new_id(), 16) % 1_000_000, later_than_ns + 1)
        os.utime(self._fd, ns=(time_ns, time_ns))
        if os.fstat(self._fd).st_mtime_ns <= later_than_ns:  # the filesystem stores seconds only
            time_ns = later_than_ns + 2_000_000_000
            os.utime(self._fd, ns=(time_ns, time_ns))
        self._sealed = os.fstat(self._fd)
        self._metadata_files.save(self._fd, metadata, self.target)
        self._metadata_files.sync(self._fd)

    def written(self) -> Written:
        """The outcome, once the sealed file has its key."""
        assert self._sealed is not None
        self.placed = True
        return Written(version_of(self._sealed), self._sealed.st_mtime_ns // 1_000_000)

    def discard(self) -> None:
        """Remove the temporary name, and the sidecar unless the file was placed. Harmless when repeated."""
        if self._fd < 0:
            return
        # Once the file is an object, no error may say otherwise. A remaining name is swept later.
        with suppress(OSError if self.placed else FileNotFoundError):
            os.unlink(self.path)
        if not self.placed:
            self._forget()
        os.close(self._fd)
        self._fd = -1

    def _forget(self) -> None:
        if self._sealed is not None:
            self._metadata_files.drop(self._sealed)
            self._sealed = None


def sweep_temporaries(directory: str, *, older_than_ms: int) -> None:
    """Remove the unfinished writes of processes that died long ago. Living ones hold a lock on their file."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in islice(entries, _SWEEP_ENTRIES_MAX):
            if entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000 >= older_than_ms:
                continue
            with suppress(OSError), open(entry.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)


# ---- errors ------------------------------------------------------------------------------------------------------


@contextmanager
def typed_errors(path: str) -> Iterator[None]:
    """Raise errors of the system as errors of `fileio` that name `path`.

    An error without a number is not from the system. The handler of a signal raised it, at any point.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise error_of(error, path) from error


def error_of(error: OSError, path: str) -> FileIOError:
    """The error of `fileio` for an error of the system."""
    reason = error.strerror or str(error)
    if isinstance(error.filename, str) and os.path.isabs(error.filename) and error.filename != path:
        reason = f"{reason}, {error.filename!r}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StoreFull(f"There is no room to write {path!r} ({reason}). Nothing was written. Free some space or raise the limit.")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return PermissionDenied(f"The system refused access to {path!r} ({reason}). Check its owner, mode and mount options.")
        case errno.ENAMETOOLONG | errno.ENOTDIR | errno.EISDIR | errno.ELOOP:
            return InvalidKey(f"{path!r} cannot be the path of an object ({reason}). Choose another key.")
        case errno.EXDEV:
            return Unsupported(f"{path!r} is on another filesystem than the root of its store. Open that directory as its own store.")
        case errno.EMFILE | errno.ENFILE | errno.EAGAIN:
            return Throttled(f"{path!r} could not be opened now ({reason}). Close files or raise the limit.")
        case _:
            return Unavailable(f"The filesystem failed on {path!r} ({reason}). Check that it is mounted and writable.")

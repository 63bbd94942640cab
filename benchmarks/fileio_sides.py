"""The two sides of the `fileio` benchmark: `FileIO`, and the best that each SDK offers for the same work.

Both use the same concurrency and part size, do not retry, and read from and write to the same kind of file object.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from fileio.contract import require_written
from fileio.registry import open_store
from fileio.stream_settings import StreamSettings

CHUNK_BYTES = 1 << 20
PART_BYTES = StreamSettings().part_bytes
CONCURRENCY = StreamSettings().parallelism

_BLOCK = random.Random(11).randbytes(16 << 20)


class Source(io.RawIOBase):
    """A file of `length` bytes that costs almost nothing to make. It cannot seek, like the output of a Parquet writer."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes."""
        left = self._length - self._position
        size = left if size is None or size < 0 else min(size, left)
        pieces: list[bytes] = []
        while size > 0:
            begin = self._position % len(_BLOCK)
            piece = _BLOCK[begin : begin + size]
            pieces.append(piece)
            self._position += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Sink(io.RawIOBase):
    """A file that counts what is written to it, in order. With `check`, it also compares the bytes with `Source`."""

    def __init__(self, *, check: bool) -> None:
        super().__init__()
        self._check = check
        self.length = 0

    def writable(self) -> bool:
        """Always True."""
        return True

    def write(self, data: Any, /) -> int:
        """Count, and compare with `check`."""
        size = memoryview(data).nbytes
        if self._check and size:
            expected = Source(self.length + size)
            expected._position = self.length
            if expected.read(size) != bytes(data):
                raise AssertionError(f"wrong bytes at {self.length}")
        self.length += size
        return size


class Side(Protocol):
    """One way to use a store. Keys are passed; every call is complete when it returns."""

    @property
    def uploads(self) -> Mapping[str, Callable[[str, int], None]]:
        """Ways to store so many bytes of `Source` under a key. The fastest is measured."""

    @property
    def downloads(self) -> Mapping[str, Callable[[str, Sink], None]]:
        """Ways to read all of a key. The fastest is measured."""

    def put(self, key: str, data: bytes) -> None:
        """Store a small object."""

    def get(self, key: str) -> bytes:
        """Read a small object."""

    def delete(self, key: str) -> None:
        """Delete a key."""


@dataclass(frozen=True)
class Target:
    """Where to measure. `scheme`: `s3`, `gs`, `az` or `file`. `url`, `options`: as for `open_store`."""

    scheme: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bucket(self) -> str:
        """The bucket in the URL."""
        return self.url.split("://", 1)[1]


class OursSide:
    """`FileIO`, with chunks of exactly one part, which are not copied."""

    def __init__(self, target: Target) -> None:
        self._store = open_store(target.url, target.options)
        self.uploads = {"open_write": self._upload}
        self.downloads = {"open_read": self._download}

    def put(self, key: str, data: bytes) -> None:
        """By `FileIO.put`."""
        require_written(self._store.put(key, data), key)

    def get(self, key: str) -> bytes:
        """By `FileIO.read`."""
        return self._store.read(key)

    def delete(self, key: str) -> None:
        """By `FileIO.delete`."""
        for result in self._store.delete([key]):
            if result.error is not None:
                raise result.error

    def _upload(self, key: str, length: int) -> None:
        with self._store.open_write(key) as stream:
            shutil.copyfileobj(Source(length), stream, PART_BYTES)

    def _download(self, key: str, sink: Sink) -> None:
        with self._store.open_read(key) as stream:
            shutil.copyfileobj(stream, sink, PART_BYTES)


class Boto3Side:
    """boto3: its client for small objects, its transfer manager for large ones."""

    def __init__(self, target: Target) -> None:
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        self._bucket = target.bucket
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=target.options["endpoint"],
            region_name=target.options["region"],
            aws_access_key_id=target.options["access_key"],
            aws_secret_access_key=target.options["secret_key"],
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                max_pool_connections=32,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        self._transfer = partial(
            TransferConfig, multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=CONCURRENCY
        )
        self.uploads = {"upload_fileobj": self._upload}
        self.downloads = {f"download_fileobj, {chunk >> 20} MiB": partial(self._download, chunk) for chunk in (CHUNK_BYTES, PART_BYTES)}

    def put(self, key: str, data: bytes) -> None:
        """By `put_object`."""
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        """By `get_object`."""
        return bytes(self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())

    def delete(self, key: str) -> None:
        """By `delete_object`."""
        self._client.delete_object(Bucket=self._bucket, Key=key)

    def _upload(self, key: str, length: int) -> None:
        self._client.upload_fileobj(Source(length), self._bucket, key, Config=self._transfer())

    def _download(self, chunk: int, key: str, sink: Sink) -> None:
        # With a file that cannot seek, s3transfer 0.19 deadlocks on more than ten parts.
        self._client.download_fileobj(self._bucket, key, _SeekableSink(sink), Config=self._transfer(io_chunksize=chunk))


class GCSSide:
    """google-cloud-storage: resumable uploads in chunks of two sizes, and every way to download."""

    def __init__(self, target: Target) -> None:
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        credentials: Any = AnonymousCredentials  # type: ignore[no-untyped-call,unused-ignore]
        where = ClientOptions(api_endpoint=target.options["endpoint"])
        self._client: Any = storage.Client(project=target.options["project"], credentials=credentials(), client_options=where)
        self._bucket: Any = self._client.bucket(target.bucket)
        self.uploads = {"upload_from_file": self._upload, "blob.open": self._upload_open}
        self.downloads = {"download_to_file": self._download, "transfer_manager": self._download_chunks, "blob.open": self._download_open}

    def put(self, key: str, data: bytes) -> None:
        """By `upload_from_string`."""
        self._bucket.blob(key).upload_from_string(data, retry=None)

    def get(self, key: str) -> bytes:
        """By `download_as_bytes`."""
        return bytes(self._bucket.blob(key).download_as_bytes(retry=None))

    def delete(self, key: str) -> None:
        """By `Blob.delete`."""
        self._bucket.blob(key).delete(retry=None)

    def _upload(self, key: str, length: int) -> None:
        self._bucket.blob(key, chunk_size=PART_BYTES).upload_from_file(Source(length), size=length, retry=None, checksum=None)

    def _upload_open(self, key: str, length: int) -> None:
        with self._bucket.blob(key).open("wb", chunk_size=PART_BYTES, retry=None, ignore_flush=True) as stream:
            shutil.copyfileobj(Source(length), stream, CHUNK_BYTES)

    def _download(self, key: str, sink: Sink) -> None:
        self._bucket.blob(key).download_to_file(sink, retry=None, checksum=None)

    def _download_chunks(self, key: str, sink: Sink) -> None:
        from google.cloud.storage import transfer_manager

        blob = self._bucket.blob(key)
        blob.reload(retry=None)
        with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            transfer_manager.download_chunks_concurrently(
                blob,
                file.name,
                chunk_size=PART_BYTES,
                max_workers=CONCURRENCY,
                worker_type=transfer_manager.THREAD,
                crc32c_checksum=False,
            )
            with open(file.name, "rb") as done:
                shutil.copyfileobj(done, sink, CHUNK_BYTES)

    def _download_open(self, key: str, sink: Sink) -> None:
        with self._bucket.blob(key).open("rb", chunk_size=PART_BYTES, retry=None) as stream:
            shutil.copyfileobj(stream, sink, CHUNK_BYTES)


class AzureSide:
    """azure-storage-blob: upload_blob and download_blob with as many connections as ours."""

    def __init__(self, target: Target) -> None:
        from azure.storage.blob import ContainerClient

        self._container: Any = ContainerClient(
            target.options["endpoint"],
            target.bucket,
            credential={"account_name": target.options["account"], "account_key": target.options["account_key"]},
            retry_total=0,
            max_single_put_size=PART_BYTES,
            max_block_size=PART_BYTES,
            max_single_get_size=PART_BYTES,
            max_chunk_get_size=PART_BYTES,
            connection_data_block_size=CHUNK_BYTES,
        )
        self.uploads = {"upload_blob": self._upload}
        self.downloads = {"download_blob": self._download}

    def put(self, key: str, data: bytes) -> None:
        """By `upload_blob`."""
        self._container.get_blob_client(key).upload_blob(data, overwrite=True)

    def get(self, key: str) -> bytes:
        """By `download_blob`."""
        return bytes(self._container.get_blob_client(key).download_blob().readall())

    def delete(self, key: str) -> None:
        """By `delete_blob`."""
        self._container.delete_blob(key)

    def _upload(self, key: str, length: int) -> None:
        self._container.get_blob_client(key).upload_blob(Source(length), length=length, overwrite=True, max_concurrency=CONCURRENCY)

    def _download(self, key: str, sink: Sink) -> None:
        # Several connections need a file that can seek. The counting one cannot, so the pieces are taken in order.
        download = self._container.get_blob_client(key).download_blob(max_concurrency=CONCURRENCY)
        download.readinto(_SeekableSink(sink))


class _SeekableSink(io.RawIOBase):
    """Takes pieces in any order, and passes them on in order."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink
        self._position = 0
        self._early: dict[int, bytes] = {}

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._position = offset if whence == io.SEEK_SET else self._position + offset
        return self._position

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        if self._position == self._sink.length:
            self._sink.write(data)
            while (early := self._early.pop(self._sink.length, None)) is not None:
                self._sink.write(early)
        else:
            self._early[self._position] = bytes(data)
        self._position += size
        return size


class PlainFileSide:
    """Plain files, forced to disk and renamed to their name, as careful programs do."""

    def __init__(self, target: Target) -> None:
        self._root = target.url
        self.uploads = {"write, fsync, rename": self._upload}
        self.downloads = {"open": self._download}

    def put(self, key: str, data: bytes) -> None:
        """Write, fsync and rename."""
        self._replace(key, lambda file: file.write(data))

    def get(self, key: str) -> bytes:
        """Read the file."""
        with open(os.path.join(self._root, key), "rb") as file:
            return file.read()

    def delete(self, key: str) -> None:
        """Unlink the file."""
        os.unlink(os.path.join(self._root, key))

    def _upload(self, key: str, length: int) -> None:
        self._replace(key, lambda file: shutil.copyfileobj(Source(length), file, CHUNK_BYTES))

    def _download(self, key: str, sink: Sink) -> None:
        with open(os.path.join(self._root, key), "rb", buffering=0) as file:
            shutil.copyfileobj(file, sink, CHUNK_BYTES)

    def _replace(self, key: str, fill: Callable[[Any], Any]) -> None:
        path = os.path.join(self._root, key)
        directory = os.path.dirname(path)
        os.makedirs(directory, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, delete=False, buffering=0) as file:
            fill(file)
            os.fsync(file.fileno())
        os.replace(file.name, path)
        entry = os.open(directory, os.O_RDONLY)
        os.fsync(entry)
        os.close(entry)


SDK_SIDES: Mapping[str, Callable[[Target], Side]] = {"s3": Boto3Side, "gs": GCSSide, "az": AzureSide, "file": PlainFileSide}


def make_side(name: str, target: Target) -> Side:
    """The side `objcat` or `sdk`."""
    return OursSide(target) if name == "objcat" else SDK_SIDES[target.scheme](target)

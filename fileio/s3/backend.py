"""`s3://bucket/prefix`: Amazon S3, S3 Express, and servers with the same protocol, through boto3.

Each method is one attempt at one request. `fileio.s3.client` sends it, and `fileio.s3.errors` says what an error means. Nothing here
retries: `retry` and `RetryPolicy` in `fileio.write_outcomes` do so for every store.
"""

from __future__ import annotations

import os
import re
from calendar import timegm
from collections.abc import Mapping, Sequence
from datetime import datetime
from email.utils import parsedate
from typing import Any

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
    Overwrite,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Range,
    Suffix,
    Update,
    Upload,
    Version,
    Written,
)
from fileio.errors import FileIOError, InvalidConfig, MissingDependency, NotFound, Unavailable, Unsupported, UploadLost
from fileio.optional import library
from fileio.options import check_proxy
from fileio.ranges import bounds, size_told
from fileio.s3.client import S3Client
from fileio.s3.errors import ABSENT_CODES, Failure
from fileio.s3.options import S3Options, customer_key

_BOTO3_VERSION = (1, 41)
_EXPRESS_SUFFIX = "--x-s3"
_OF_A_PAGE = frozenset({"Name", "IsTruncated", "Contents"})
"""The fields by which S3's answer to a listing is recognized."""
_OF_AN_OBJECT = frozenset({"Key", "Size"})
_UNFIT_FOR_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def open_s3(bucket: str, options: S3Options) -> Backend:
    """A backend over the whole bucket. Sends no request.

    Raises:
        MissingDependency: boto3 is not installed, or too old.
        InvalidConfig: An option is wrong.
    """
    boto3 = library("boto3", needed_by="s3:// needs", extra="s3")
    if tuple(map(int, boto3.__version__.split(".")[:2])) < _BOTO3_VERSION:
        # An older boto3 silently drops the conditions of a copy.
        raise MissingDependency(
            f"s3:// needs boto3 1.41 or newer, but {boto3.__version__} is installed. Run pip install --upgrade 'objcat[s3]'."
        )
    if options.ca_bundle is not None and not os.path.exists(options.ca_bundle):
        raise InvalidConfig(f"The option 'ca_bundle' names {options.ca_bundle!r}, which does not exist. Pass the path of a PEM file.")
    check_proxy(options.proxy, where=f"s3://{bucket}")
    return S3Backend(bucket, options)


class S3Backend(Backend):
    """One bucket. The first request creates the client, which all threads share."""

    def __init__(self, bucket: str, options: S3Options) -> None:
        self._bucket = bucket
        self._options = options
        self._express = options.express or bucket.endswith(_EXPRESS_SUFFIX)
        self._client = S3Client(bucket, options)
        self._encrypt, self._decrypt, self._decrypt_source = _encryption(options)
        conditional_copy = options.endpoint is None if options.conditional_copy is None else options.conditional_copy
        self._capabilities = Capabilities(
            conditional_copy=conditional_copy,
            append=self._express,
            list_ordered=not self._express,
            content_versions=not self._express,
        )

    @property
    def url(self) -> str:
        """`s3://` and the bucket."""
        return self._client.url

    @property
    def capabilities(self) -> Capabilities:
        """Directory buckets append, list in no order, and have versions that do not repeat."""
        return self._capabilities

    # ---- reading

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """`GetObject`. A range without a byte of the object takes a `HeadObject`."""
        if byte_range is not None and _is_empty(byte_range):
            return self._empty(key, byte_range, if_none_match)
        arguments: dict[str, Any] = dict(self._decrypt)
        header = None if byte_range is None else _range_header(byte_range)
        if header is not None:
            arguments["Range"] = header
        if if_none_match is not None:
            arguments["IfNoneMatch"] = f'"{if_none_match}"'
        try:
            response = self._client.send("get_object", key, Key=key, **arguments)
            data = self._client.body(key, response)
        except Failure as failure:
            if failure.status == 304 and if_none_match is not None:
                return NotModified()
            if byte_range is not None and (failure.code == "InvalidRange" or failure.status == 416):
                return self._empty(key, byte_range, if_none_match)
            raise failure.answered().error from None
        if response["ResponseMetadata"]["HTTPStatusCode"] == 206:
            size = size_told(f"{self.url}/{key}", response.get("ContentRange"), byte_range, len(data))
            return GetResult(_meta(key, response, size), data, bounds(byte_range, size)[0], _sent_ms(response))
        meta = _meta(key, response, len(data))
        # A server may answer a range of an empty object, or any range, with the whole object.
        start, end = bounds(byte_range, len(data))
        return GetResult(meta, data if header is None else data[start:end], start, _sent_ms(response))

    def head(self, key: str) -> ObjectMeta:
        """`HeadObject`. After a 400, 403 or 404 a `GetObject` of one byte tells why: its answer has a body."""
        try:
            response = self._client.send("head_object", key, Key=key, **self._decrypt)
        except Failure as failure:
            if failure.status == 404 and self._client.bucket_seen:
                raise NotFound(str(failure.error)) from None
            error = self._explained(key) if failure.status in (400, 403, 404) else None
            raise (error or failure.error) from None
        if "ContentLength" not in response:
            raise Unavailable(f"The store's answer about {key!r} has no size. Check that the option 'endpoint' is an S3 server.")
        return _meta(key, response, response["ContentLength"])

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        # Directory buckets list by whole segments and have no StartAfter. Extra keys are dropped here.
        """`ListObjectsV2`."""
        asked = prefix[: prefix.rfind("/") + 1] if self._express else prefix
        arguments: dict[str, Any] = {"Prefix": asked, "MaxKeys": min(limit, 1000)}
        if delimiter is not None:
            arguments["Delimiter"] = delimiter
        if cursor is not None:
            arguments["ContinuationToken"] = cursor
        elif start_after is not None and not self._express:
            arguments["StartAfter"] = start_after
        try:
            response = self._client.send("list_objects_v2", prefix, **arguments)
        except Failure as failure:
            raise failure.answered().error from None
        if not (_OF_A_PAGE & response.keys() and all(entry.keys() >= _OF_AN_OBJECT for entry in response.get("Contents", ()))):
            raise Unavailable(
                f"The listing of {prefix!r} in {self.url} was not answered by a page of keys. Check option 'endpoint' and the network."
            )
        after = start_after or ""
        objects = [
            _meta(entry["Key"], entry, entry["Size"])
            for entry in response.get("Contents", ())
            if entry["Key"] > after and entry["Key"].startswith(prefix)
        ]
        prefixes = [entry["Prefix"] for entry in response.get("CommonPrefixes", ()) if entry["Prefix"].startswith(prefix)]
        following = response.get("NextContinuationToken") if response.get("IsTruncated") else None
        if response.get("IsTruncated") and not following:
            raise Unavailable(f"The listing of {prefix!r} in {self.url} says that more follows, but not where. Try again.")
        return ListPage(objects, prefixes, following)

    # ---- writing

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """`PutObject` with `If-None-Match` or `If-Match`."""
        try:
            response = self._client.send(
                "put_object", key, Key=key, Body=self._sendable(data), Metadata=metadata, **self._encrypt, **_condition(mode)
            )
        except Failure as failure:
            if failure.condition_failed(mode):
                return PreconditionFailed(None)
            return failure.as_unknown(absent=True)
        return _written(response, key, response)

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """`PutObject` with a write offset. Directory buckets only."""
        if not self._express:
            raise Unsupported(
                f"{self.url} cannot append to {key!r}. Only directory buckets can (option 'express'). Write the object with open_write()."
            )
        try:
            response = self._client.send("put_object", key, Key=key, Body=self._sendable(data), WriteOffsetBytes=offset, **self._encrypt)
        except Failure as failure:
            if failure.code == "InvalidWriteOffset" or failure.status == 412 or (failure.absent and offset > 0):
                return PreconditionFailed(None)
            if failure.code == "TooManyParts":
                raise Unsupported(f"{key!r} in {self.url} has taken 10,000 appends. Continue in another object.") from None
            return failure.as_unknown()
        return _written(response, key, response)

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """`CopyObject` with new metadata."""
        arguments = {"CopySource": {"Bucket": self._bucket, "Key": source}, "MetadataDirective": "REPLACE", "Metadata": metadata}
        try:
            response = self._client.send(
                "copy_object", target, Key=target, **arguments, **self._encrypt, **self._decrypt_source, **_condition(mode)
            )
        except Failure as failure:
            if failure.absent and isinstance(mode, Update):
                # The answer does not say which key is absent. A missing source is the caller's error, a missing target is a conflict.
                self.head(source)
            if failure.condition_failed(mode):
                return PreconditionFailed(None)
            return failure.as_unknown()
        return _written(response.get("CopyObjectResult", {}), target, response)

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """`CreateMultipartUpload`. The condition goes with the completion."""
        arguments: dict[str, Any] = dict(self._encrypt)
        if self._options.request_checksum == "when_supported":
            arguments["ChecksumAlgorithm"] = "CRC32"
        try:
            response = self._client.send("create_multipart_upload", key, Key=key, Metadata=metadata, **arguments)
        except Failure as failure:
            raise failure.error from None
        if not response.get("UploadId"):
            raise Unavailable(f"The store's answer to the start of an upload of {key!r} in {self.url} has no upload id. Try again.")
        return _S3Upload(self, key, mode, response["UploadId"])

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """`DeleteObjects`. A key that XML cannot hold takes a `DeleteObject`."""
        plain = [key for key in keys if not _UNFIT_FOR_XML.search(key)]
        errors: dict[str, FileIOError] = {}
        try:
            if plain:
                # In quiet mode the answer to a success is empty, and could come from any server.
                answer = self._client.send("delete_objects", plain[0], Delete={"Objects": [{"Key": key} for key in plain]})
                if "Deleted" not in answer and "Errors" not in answer:
                    raise Unavailable(
                        f"The answer to the deletion of {len(plain)} keys in {self.url} has none of them. Check option 'endpoint'."
                    )
                for entry in answer.get("Errors", ()):
                    key, code = entry["Key"], entry.get("Code", "")
                    if code not in ABSENT_CODES:
                        errors[key] = self._client.error(code, None, entry.get("Message", ""), "delete_objects", key)
        except Failure as failure:
            raise failure.error from None
        for key in keys:
            if _UNFIT_FOR_XML.search(key):
                try:
                    self._client.send("delete_object", key, Key=key)
                except Failure as failure:
                    if not failure.absent:
                        errors[key] = failure.error
        return [DeleteResult(key, errors.get(key)) for key in keys]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # ---- how

    def _sendable(self, data: Buffer) -> Buffer:
        """`data` in the form that the SDK sends uncopied: it turns `bytes` into a file, and sends files in blocks of 16 KiB."""
        if self._options.request_checksum == "when_supported":
            return bytes(data) if isinstance(data, memoryview) else data
        view = memoryview(data)
        return view.cast("B") if view.contiguous else view.tobytes()

    def _empty(self, key: str, byte_range: ByteRange, if_none_match: Version | None) -> GetResult | NotModified:
        """The answer to a range that holds no byte of the object."""
        meta = self.head(key)
        if meta.version == if_none_match:
            return NotModified()
        start, end = bounds(byte_range, meta.size)
        if start < end:
            raise Unavailable(f"{self.url}/{key} grew while it was read. Read it again.")
        return GetResult(meta, b"", start)

    def _explained(self, key: str) -> FileIOError | None:
        """Why a HEAD failed: its answer has no body. A GET of one byte needs the same permission."""
        try:
            self._client.send("get_object", key, Key=key, Range="bytes=0-0", **self._decrypt)["Body"].close()
        except Failure as failure:
            return None if failure.status == 416 else failure.error
        return None


class _S3Upload(Upload):
    """A multipart upload. Parts may come from many threads at once."""

    def __init__(self, backend: S3Backend, key: str, mode: PutMode, upload_id: str) -> None:
        self._backend = backend
        self._mode = mode
        self._key = key
        self._where = {"Key": key, "UploadId": upload_id}
        self._parts: dict[int, dict[str, Any]] = {}

    def put_part(self, number: int, data: Buffer) -> None:
        backend = self._backend
        try:
            body = backend._sendable(data)
            response = backend._client.send("upload_part", self._key, **self._where, PartNumber=number, Body=body, **backend._decrypt)
        except Failure as failure:
            raise self._lost(failure) from None
        if "ETag" not in response:
            raise Unavailable(f"The store's answer to part {number} of {self._key!r} in {backend.url} has no etag. Send the part again.")
        part = {"PartNumber": number, "ETag": response["ETag"]}
        if backend._options.request_checksum == "when_supported" and "ChecksumCRC32" in response:
            part["ChecksumCRC32"] = response["ChecksumCRC32"]
        self._parts[number] = part

    def complete(self) -> PutOutcome:
        parts = [self._parts[number] for number in sorted(self._parts)]
        arguments = {**self._where, **_condition(self._mode), **self._backend._decrypt, "MultipartUpload": {"Parts": parts}}
        try:
            response = self._backend._client.send("complete_multipart_upload", self._key, **arguments)
        except Failure as failure:
            if failure.condition_failed(self._mode) or failure.code == "NoSuchUpload":
                return PreconditionFailed(None)
            if failure.code in ("ConditionalRequestConflict", "InvalidPart"):
                raise self._lost(failure) from None
            return failure.as_unknown()
        return _written(response, self._key, response)

    def abort(self) -> None:
        try:
            self._backend._client.send("abort_multipart_upload", self._key, **self._where)
        except Failure as failure:
            if not failure.absent:
                raise failure.error from None

    def _lost(self, failure: Failure) -> FileIOError:
        if failure.code in ("NoSuchUpload", "ConditionalRequestConflict", "InvalidPart"):
            return UploadLost(f"{failure.error} Nothing was written. Write {self._key!r} again from the start.")
        return failure.error


# ---- requests and answers ----------------------------------------------------------------------------------------


def _condition(mode: PutMode) -> dict[str, str]:
    match mode:
        case Create():
            return {"IfNoneMatch": "*"}
        case Update(version):
            return {"IfMatch": f'"{version}"'}
        case Overwrite():
            return {}


def _written(answer: Mapping[str, Any], key: str, response: Mapping[str, Any]) -> PutOutcome:
    """Written, by the part of the response that has the etag."""
    version = str(answer.get("ETag", "")).strip('"')
    if not version:
        return OutcomeUnknown(Unavailable(f"The store's answer to a write of {key!r} has no etag."))
    return Written(Version(version), _sent_ms(response))


def _sent_ms(response: Mapping[str, Any]) -> int | None:
    """When the store sent a response, by its clock."""
    sent = parsedate(response["ResponseMetadata"]["HTTPHeaders"].get("date", ""))
    return None if sent is None else timegm(sent) * 1000


def _meta(key: str, answer: Mapping[str, Any], size: int) -> ObjectMeta:
    if "ETag" not in answer or not isinstance(answer.get("LastModified"), datetime):
        raise Unavailable(f"The store's answer about {key!r} has no etag or no time. Check that the option 'endpoint' is an S3 server.")
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    return ObjectMeta(key, size, Version(answer["ETag"].strip('"')), int(answer["LastModified"].timestamp() * 1000), metadata)


def _is_empty(byte_range: ByteRange) -> bool:
    match byte_range:
        case Range(start, end):
            return end is not None and end <= start
        case Suffix(length):
            return length <= 0


def _range_header(byte_range: ByteRange) -> str | None:
    match byte_range:
        case Range(0, None):
            return None
        case Range(start, end):
            return f"bytes={start}-{'' if end is None else end - 1}"
        case Suffix(length):
            return f"bytes=-{length}"


def _encryption(options: S3Options) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What a request adds for encryption: to write an object, to read it (or send its parts), and to read the source of a copy."""
    if options.sse_customer_key is not None:
        key = customer_key(options.sse_customer_key)
        own = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
        return own, own, {f"CopySource{name}": value for name, value in own.items()}
    write: dict[str, Any] = {} if options.sse is None else {"ServerSideEncryption": options.sse}
    if options.sse_kms_key_id is not None:
        write["SSEKMSKeyId"] = options.sse_kms_key_id
    return write, {}, {}


__all__ = ["S3Backend", "S3Options", "open_s3"]

"""The conformance suite on every store of ours and on every server that tests start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest

from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.contract import GetResult, Range, Suffix, Written
from fileio.env import default_env
from fileio.errors import FileIOError
from fileio.memory import MemoryBackend, MemoryOptions, drop_memory, open_memory
from fileio.registry import describe_store, open_store
from fileio.store import FileIO
from fileio.testing.conformance import *  # noqa: F403
from fileio.testing.conformance import Deviation, Subject, described
from fileio.wrappers import PrefixedBackend


def memory_subject(_: pytest.FixtureRequest) -> Subject:
    def missing() -> FileIO:
        store = open_store("memory://dropped")
        drop_memory("dropped")
        return store

    def uploads() -> list[str]:
        backend = open_memory("conformance", MemoryOptions())
        assert isinstance(backend, MemoryBackend)
        return backend.uploads_in_progress

    return described("memory", describe_store("memory://conformance"), missing=missing, uploads=uploads)


def memory_etags_subject(_: pytest.FixtureRequest) -> Subject:
    """Versions are hashes of the bytes, as on S3; made by hand, so that nothing describes it."""
    backend = MemoryBackend("etags", content_versions=True)
    dropped = MemoryBackend("dropped")
    dropped.drop()
    return Subject(
        name="memory-etags",
        open=lambda prefix: FileIO(PrefixedBackend(backend, prefix)),
        missing=lambda: FileIO(dropped),
        uploads=lambda: backend.uploads_in_progress,
    )


def file_subject(request: pytest.FixtureRequest) -> Subject:
    """A directory is made by the first write, so none is ever missing."""
    root: Path = request.getfixturevalue("tmp_path_factory").mktemp("file")
    return described("file", describe_store(root / "store", {"fsync": "false"}))


# ---- servers -----------------------------------------------------------------------------------------------------


def server_subject(name: ServerName) -> Callable[[pytest.FixtureRequest], Subject]:
    """A subject on a bucket of its own on a real server."""

    def make(request: pytest.FixtureRequest) -> Subject:
        handle: ServerHandle = request.getfixturevalue("servers")(name).fresh_bucket()
        return described(
            name,
            describe_store(f"{handle.url}/lake", handle.options),
            missing=lambda: open_store(f"{handle.scheme}://missing-{default_env().new_id()}", handle.options),
            uploads=s3_uploads(handle) if handle.scheme == "s3" else None,
            secrets=[handle.options[key] for key in ("secret_key", "account_key") if key in handle.options],
            deviations=DEVIATIONS[name],
            increments=INCREMENTS.get(name, 100) if request.config.getoption("--all") else 10,
        )

    return make


INCREMENTS: Mapping[ServerName, int] = {"moto": 25}
"""Of each client, with `--all`, where a hundred are too many.

moto answers in Python, on one core: a hundred took 70 to 85 s beside other work, and once the 600 s of a test. With 25, 16 clients are
defeated 600 times and more, and a server that overlooks one condition in a hundred still fails.
"""


def s3_uploads(handle: ServerHandle) -> Callable[[], list[str]]:
    client = boto3.client(
        "s3",
        endpoint_url=handle.endpoint,
        region_name=handle.options["region"],
        aws_access_key_id=handle.options["access_key"],
        aws_secret_access_key=handle.options["secret_key"],
    )
    bucket = urlsplit(handle.url).netloc
    return lambda: [upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


DEVIATIONS: Mapping[ServerName, Sequence[Deviation]] = {
    "moto": [
        *(
            Deviation(test=test, case=case, reason="ignores If-Match on completing an upload")
            for test, case in (
                ("test_upload", "update stale"),
                ("test_upload", "update missing"),
                ("test_large_stream", "update stale"),
                ("test_race_of_uploads", "swap"),
            )
        ),
    ],
    "seaweedfs": [
        *(
            Deviation(test=test, case=case, reason="a listing that starts after the name of a directory leaves out what is in it")
            for test, case in (("test_list_after_a_key", "a"), ("test_list_after_a_key", "a/b"), ("test_list_by_prefix_after_a_key", "a/b"))
        ),
        *(
            Deviation(
                test="test_a_missing_bucket_is_named", case=case, reason="makes a bucket with its first write", raises=pytest.fail.Exception
            )
            for case in ("put", "create", "start upload")
        ),
        Deviation(test="test_race_of_uploads", reason="completing an upload under a condition is not atomic", sometimes=True),
    ],
    "versitygw": [
        # Seen with the bare SDK too: about 6 of 13,000 reads beside a writer named the etag of one write, and size or bytes of the one
        # before.
        Deviation(
            test="test_race_of_reads_with_writes", reason="reads size, etag and bytes of an object one after the other", sometimes=True
        ),
    ],
    "fake-gcs-server": [
        *(
            Deviation(test=test, case=case, reason="ignores conditions on a rewrite")
            for test, case in (
                ("test_copy", "create over something"),
                ("test_copy", "update stale"),
                ("test_copy", "update missing"),
                ("test_race_of_copies", "create"),
                ("test_race_of_copies", "swap"),
            )
        ),
        Deviation(test="test_list_with_a_delimiter_in_small_pages", case="", reason="repeats a common prefix on the next page"),
        Deviation(test="test_append", case="grow", reason="a composition keeps the generation of the object that it replaces"),
    ],
    "gcsemulator": [
        *(
            Deviation(test=test, reason="has no resumable uploads (405)", raises=FileIOError)
            for test in (
                "test_upload",
                "test_upload_of_several_parts",
                "test_parts_in_any_order_and_repeated",
                "test_an_upload_is_invisible_until_it_is_complete",
                "test_completing_again_is_written_still",
                "test_an_upload_that_loses_leaves_the_winner",
                "test_race_of_uploads",
                "test_large_stream",
            )
        ),
        *(
            Deviation(test=test, case=case, reason="a rewrite ignores conditions and keeps the metadata of the source")
            for test, case in (("test_copy", None), ("test_race_of_copies", None))
        ),
        *(
            Deviation(
                test="test_list_with_a_delimiter_in_small_pages",
                case=case,
                reason="pages end before all objects when there are common prefixes",
            )
            for case in ("", "a")
        ),
        *(
            Deviation(
                test="test_a_missing_bucket_is_named", case=case, reason="makes a bucket with its first write", raises=pytest.fail.Exception
            )
            for case in ("put", "create")
        ),
        Deviation(test="test_a_missing_bucket_is_named", case="start upload", reason="has no resumable uploads (405)", raises=FileIOError),
    ],
    "azurite": [
        Deviation(test="test_list_orders_by_the_bytes_of_utf_8", reason="orders by the units of UTF-16"),
        *(
            Deviation(test=test, reason="a key with uncommitted blocks counts as present for a conditional put")
            for test in ("test_an_aborted_upload_leaves_nothing", "test_an_upload_that_loses_leaves_the_winner")
        ),
    ],
}
"""What each server does otherwise than the contract. An entry that no longer shows fails the run."""


SUBJECTS: Mapping[str, Callable[[pytest.FixtureRequest], Subject]] = {
    "memory": memory_subject,
    "memory-etags": memory_etags_subject,
    "file": file_subject,
    **{name: server_subject(name) for name in DEVIATIONS},
}


@pytest.fixture(scope="module")
def subject_of_name(request: pytest.FixtureRequest) -> Callable[[str], Subject]:
    """The subject of a name, made when it is first asked for."""
    return cache(lambda name: SUBJECTS[name](request))


@pytest.fixture(params=list(SUBJECTS))
def subject(request: pytest.FixtureRequest, subject_of_name: Callable[[str], Subject]) -> Subject:
    """One bucket a store for the whole run; every test has a prefix of its own in it."""
    return subject_of_name(request.param)


def test_every_deviation_names_a_test() -> None:
    for name, deviations in DEVIATIONS.items():
        for deviation in deviations:
            assert deviation.test in globals(), f"{name}: there is no test {deviation.test!r}"
            assert deviation.reason


@pytest.mark.parametrize("name", ["versitygw", "seaweedfs", "moto", "fake-gcs-server", "azurite"])
def test_clouds_tell_the_time_with_every_read(servers: Callable[[str], ServerHandle], name: ServerName) -> None:
    handle = servers(name).fresh_bucket()
    store = open_store(handle.url, handle.options)
    written = store.put("key", b"0123456789")
    assert isinstance(written, Written) and written.store_time_ms is not None
    for asked in (None, Range(2, 4), Suffix(3)):
        found = store.get("key", byte_range=asked)
        assert isinstance(found, GetResult) and found.store_time_ms is not None
        assert abs(found.store_time_ms - written.store_time_ms) <= 60_000

"""Uploads in parts with a fault at every request: the object is whole or not there, never another's, and what was told is true."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count

import pytest

from devkit.fault_proxy import Fault, FaultKind, FaultProxy
from devkit.handle import ServerHandle, s3_client
from fileio.contract import Create, OutcomeUnknown, Overwrite, PreconditionFailed, PutMode, PutOutcome, Update, Written
from fileio.errors import FileIOError, NotFound, UploadLost
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.write_outcomes import RetryPolicy
from tests.effort import few
from tests.fileio.gcs_sessions import gcs_sessions

FAST = RetryPolicy(attempts_max=3, backoff_ms_first=1, backoff_ms_max=2)
KINDS: tuple[FaultKind, ...] = ("drop_before", "drop_after", "status_before", "status_after", "duplicate", "delayed_landing", "cut")
MODES = ("create", "update", "overwrite")
REQUESTS_MAX = 60
LARGE_BYTES = 1 << 20
"""Of larger parts an upload here has one less."""


@dataclass
class Place:
    """A store behind a proxy, and the same without. part_bytes: of all parts but the last. open_uploads: keys of uploads that lie about,
    None where nobody can tell."""

    store: FileIO
    direct: FileIO
    proxy: FaultProxy
    part_bytes: int
    open_uploads: Callable[[], list[str]] | None


@pytest.fixture
def place(request: pytest.FixtureRequest, servers: Callable[[str], ServerHandle]) -> Iterator[Place]:
    with ExitStack() as stack:
        if request.param == "gcs":
            bucket, handle = stack.enter_context(gcs_sessions())
            open_uploads: Callable[[], list[str]] | None = lambda: bucket.open_sessions  # noqa: E731
        else:
            shared = servers(request.param)
            open_uploads = _s3_uploads(shared) if shared.scheme == "s3" else None
            handle = replace(shared, url=f"{shared.url}/{secrets.token_hex(8)}")
        proxy = stack.enter_context(FaultProxy(handle.endpoint, handle.scheme))
        through = handle.through(proxy.url)
        store = stack.enter_context(open_store(through.url, through.options, policy=FAST))
        direct = stack.enter_context(open_store(handle.url, handle.options, policy=FAST))
        smallest = max(store.capabilities.part_bytes_min, store.capabilities.part_bytes_multiple)
        yield Place(store, direct, proxy, smallest, open_uploads)


def _s3_uploads(handle: ServerHandle) -> Callable[[], list[str]]:
    client, bucket = s3_client(handle), handle.url.removeprefix("s3://")
    return lambda: [upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


@dataclass
class Tried:
    """An upload under a fault. told: its outcome, or the error that ended it. before, theirs: what was there, and what somebody else wrote
    before the end. found: what is there when all has landed. fired: whether the upload met the fault as often as planned. left: uploads
    of the key that lie about."""

    told: PutOutcome | FileIOError
    before: bytes | None
    theirs: bytes | None
    whole: bytes
    found: bytes | None
    fired: bool
    left: list[str]


def attempt(place: Place, key: str, mode_name: str, fault: Fault, *, rival: bool) -> Tried:
    parts = [number.to_bytes() * place.part_bytes for number in ((1, 2) if place.part_bytes < LARGE_BYTES else (1,))] + [b"tail"]
    before = None if mode_name == "create" else b"before"
    mode: PutMode = Create()
    if before is not None:
        written = place.direct.put(key, before)
        assert isinstance(written, Written)
        mode = Update(written.version) if mode_name == "update" else Overwrite()
    place.proxy.clear()
    place.proxy.plan(fault)
    upload = None
    told: PutOutcome | FileIOError
    try:
        upload = place.store.start_upload(key, mode)
        for number, part in enumerate(parts, 1):
            upload.put_part(number, part)
        if rival:
            other = place.direct.start_upload(key, mode)
            other.put_part(1, b"theirs")
            assert isinstance(other.complete(), Written)
        told = upload.complete()
    except FileIOError as error:
        told = error
    fired = len(place.proxy.pending) == 0
    place.proxy.clear() if not fired else place.proxy.release()
    if upload is not None and not isinstance(told, Written):
        upload.abort()
    try:
        found = place.direct.read(key)
    except NotFound:
        found = None
    prefix = place.direct.url.split("://")[1].partition("/")[2]
    left = [] if place.open_uploads is None else [name for name in place.open_uploads() if name == f"{prefix}/{key}".lstrip("/")]
    return Tried(told, before, b"theirs" if rival else None, b"".join(parts), found, fired, left)


def every_request(place: Place, kind: FaultKind, mode: str, *, rival: bool, times: int = 1) -> Iterator[tuple[int, Tried]]:
    """One upload for each request that it has, under a fault at that request and at as many as `times` in turn."""
    for nth in count(1):
        assert nth < REQUESTS_MAX
        tried = attempt(place, f"{mode}-{nth}", mode, Fault(kind, nth=nth, times=times), rival=rival)
        if not tried.fired and not [exchange for exchange in place.proxy.exchanges if exchange.fault]:
            return
        yield nth, tried


STORES = few(["gcs", "azurite", "seaweedfs", "versitygw"], 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", STORES, indirect=True)
def test_an_upload_survives_a_fault_at_any_request(place: Place, kind: FaultKind, mode: str) -> None:
    seen = 0
    for nth, tried in every_request(place, kind, mode, rival=False):
        seen += 1
        assert isinstance(tried.told, Written), f"request {nth}: {tried.told!r}"
        assert tried.found == tried.whole, f"request {nth}"
        # One whose start was not answered is known to nobody: the store drops it one day.
        assert not tried.left or nth == 1, f"request {nth}"
    assert seen >= 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", STORES, indirect=True)
def test_an_upload_that_somebody_forestalls_under_a_fault_leaves_theirs(place: Place, kind: FaultKind, mode: str) -> None:
    """Under a condition always. Without one the last to finish wins, or the store has dropped the parts, and says so."""
    for nth, tried in every_request(place, kind, mode, rival=True):
        match tried.told:
            case Written():
                assert mode == "overwrite" and tried.found == tried.whole, f"request {nth}"
            case PreconditionFailed():
                assert tried.found == tried.theirs, f"request {nth}"
            case _:
                assert mode == "overwrite" and isinstance(tried.told, UploadLost | OutcomeUnknown), f"request {nth}: {tried.told!r}"
                assert tried.found == tried.theirs, f"request {nth}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", STORES, indirect=True)
def test_an_upload_under_lasting_faults_is_whole_or_not_there(place: Place, kind: FaultKind, mode: str) -> None:
    """An error says that nothing landed, nor will; Unknown that it may have."""
    for nth, tried in every_request(place, kind, mode, rival=False, times=FAST.attempts_max * 4):
        assert tried.found in (tried.before, tried.whole), f"request {nth}"
        assert not tried.left or nth == 1, f"request {nth}"
        match tried.told:
            case Written():
                assert tried.found == tried.whole, f"request {nth}"
            case OutcomeUnknown():
                pass
            case _:
                assert isinstance(tried.told, FileIOError) and tried.found == tried.before, f"request {nth}: {tried.told!r}"

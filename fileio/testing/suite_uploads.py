"""Conformance of multipart uploads and of the streams on top of them."""

from __future__ import annotations

import io

import pytest

from fileio.contract import Create, Overwrite, PreconditionFailed, PutMode, PutOutcome
from fileio.errors import NotFound, NotWritten, Unsupported
from fileio.store import FileIO
from fileio.stream_settings import StreamSettings
from fileio.testing.subject import Place, written
from fileio.testing.suite_objects import BODY, MODES, prepare


def part(store: FileIO, number: int) -> bytes:
    """A part of the smallest size that the store accepts, different for every number."""
    size = max(store.capabilities.part_bytes_min, store.capabilities.part_bytes_multiple)
    return (b"%04d" % number) * (size // 4) + b"." * (size % 4)


def nothing_left(place: Place) -> None:
    """No upload is in progress below the place, where the store can list them."""
    if place.subject.uploads is not None:
        assert [key for key in place.subject.uploads() if place.prefix in key] == []


def send(store: FileIO, key: str, mode: PutMode, parts: int) -> PutOutcome:
    """Upload so many parts and a short last one."""
    upload = store.start_upload(key, mode)
    for number in range(1, parts + 1):
        upload.put_part(number, part(store, number))
    upload.put_part(parts + 1, b"tail")
    outcome = upload.complete()
    if isinstance(outcome, PreconditionFailed):
        upload.abort()
    return outcome


@pytest.mark.parametrize("case", MODES)
def test_upload(place: Place, store: FileIO, case: str) -> None:
    """Every mode, with and without an object."""
    present, mode_name, lands = MODES[case]
    mode, current = prepare(store, "object", present=present, mode=mode_name)
    if mode_name != "overwrite" and not store.capabilities.conditional_complete:
        with pytest.raises(Unsupported, match="upload"):
            store.start_upload("object", mode)
        return
    outcome = send(store, "object", mode, parts=0)
    if lands:
        assert store.head("object").version == written(outcome).version != current
        assert store.read("object") == b"tail"
    else:
        assert outcome == PreconditionFailed(current)
        assert store.exists("object") == present
    nothing_left(place)


def test_upload_of_several_parts(place: Place, store: FileIO) -> None:
    """The object has all bytes and the version of the outcome."""
    outcome = send(store, "object", Overwrite(), parts=2)
    expected = part(store, 1) + part(store, 2) + b"tail"
    head = store.head("object")
    assert (head.size, head.version) == (len(expected), written(outcome).version)
    assert store.read("object") == expected
    nothing_left(place)


def test_parts_in_any_order_and_repeated(store: FileIO) -> None:
    """In order where the store requires it."""
    upload = store.start_upload("object", Overwrite(), metadata={"owner": "me"})
    numbers = [2, 1, 1] if store.capabilities.parallel_parts else [1, 1, 2]
    for number in numbers:
        upload.put_part(number, part(store, 1) if number == 1 else b"tail")
    written(upload.complete())
    assert store.read("object") == part(store, 1) + b"tail"
    assert store.head("object").metadata["owner"] == "me"


def test_an_upload_is_invisible_until_it_is_complete(place: Place, store: FileIO) -> None:
    """For reads and for listings."""
    upload = store.start_upload("dir/object", Overwrite())
    upload.put_part(1, part(store, 1))
    upload.put_part(2, b"tail")
    assert not store.exists("dir/object")
    assert list(store.list_keys()) == []
    written(upload.complete())
    assert list(store.list_keys()) == ["dir/object"]
    nothing_left(place)


def test_an_aborted_upload_leaves_nothing(place: Place, store: FileIO) -> None:
    """Aborting twice is harmless."""
    upload = store.start_upload("dir/object", Overwrite())
    upload.put_part(1, part(store, 1))
    for _ in range(2):
        upload.abort()
    assert list(store.list_keys()) == []
    nothing_left(place)
    written(store.put("dir/object", b"free", Create()))


def test_completing_again_is_written_still(store: FileIO) -> None:
    """As a client does that lost the answer."""
    upload = store.start_upload("object", Create() if store.capabilities.conditional_complete else Overwrite())
    upload.put_part(1, b"tail")
    written(upload.complete())
    assert written(upload.complete()).version == store.head("object").version
    assert store.read("object") == b"tail"


def test_an_upload_that_loses_leaves_the_winner(place: Place, store: FileIO) -> None:
    """Its completion is PreconditionFailed."""
    if not store.capabilities.conditional_complete:
        with pytest.raises(Unsupported, match="upload"):
            store.start_upload("object", Create())
        return
    upload = store.start_upload("object", Create())
    upload.put_part(1, b"loser")
    winner = written(store.put("object", b"winner", Create()))
    assert upload.complete() == PreconditionFailed(winner.version)
    upload.abort()
    assert store.read("object") == b"winner"
    nothing_left(place)


# ---- streams


def settings_of(store: FileIO) -> StreamSettings:
    """Parts as small as the store accepts."""
    return StreamSettings(part_bytes=len(part(store, 1)))


@pytest.mark.parametrize("case", MODES)
def test_small_stream(store: FileIO, case: str) -> None:
    """Less than a part is one put under the condition."""
    present, mode_name, lands = MODES[case]
    mode, current = prepare(store, "object", present=present, mode=mode_name)
    stream = store.open_write("object", mode, metadata={"owner": "me"})
    for piece in (b"th", b"", b"ird"):
        stream.write(piece)
    outcome = stream.finish()
    if lands:
        head = store.head("object")
        assert head.version == written(outcome).version != current
        assert head.metadata["owner"] == "me"
        assert store.read("object") == b"third"
    else:
        assert outcome == PreconditionFailed(current)
        assert store.exists("object") == present


@pytest.mark.parametrize("case", ["overwrite something", "create nothing", "create over something", "update current", "update stale"])
def test_large_stream(place: Place, store: FileIO, case: str) -> None:
    """More than a part is an upload whose completion is under the condition."""
    present, mode_name, lands = MODES[case]
    mode, current = prepare(store, "object", present=present, mode=mode_name)
    body = part(store, 1) + part(store, 2) + b"tail"
    stream = store.open_write("object", mode, settings=settings_of(store))
    if mode_name != "overwrite" and not store.capabilities.conditional_complete:
        with pytest.raises(Unsupported, match="put"):
            stream.write(body)
        return
    stream.write(body)
    outcome = stream.finish()
    if lands:
        assert store.head("object").version == written(outcome).version != current
        assert store.read("object") == body
    else:
        assert outcome == PreconditionFailed(current)
        assert store.read("object") == b"second"
    nothing_left(place)


@pytest.mark.parametrize("case", ["small", "large"])
def test_a_stream_that_breaks_off_leaves_nothing(place: Place, store: FileIO, case: str) -> None:
    """No object and no upload."""
    body = b"small" if case == "small" else part(store, 1) + part(store, 2)

    def fail() -> None:
        with store.open_write("object", settings=settings_of(store)) as stream:
            stream.write(body)
            raise RuntimeError("the writer fails")

    with pytest.raises(RuntimeError, match="the writer fails"):
        fail()
    assert list(store.list_keys()) == []
    nothing_left(place)


def test_a_stream_that_is_closed_without_being_written_says_so(store: FileIO) -> None:
    """By NotWritten, which has the outcome."""
    taken = written(store.put("object", b"first", Create()))
    stream = store.open_write("object", Create())
    stream.write(b"second")
    with pytest.raises(NotWritten) as caught:
        stream.close()
    assert caught.value.outcome == PreconditionFailed(taken.version)


def test_an_empty_stream_is_an_empty_object(store: FileIO) -> None:
    """Of 0 bytes."""
    with store.open_write("object", Create()):
        pass
    assert store.read("object") == b""


@pytest.mark.parametrize("case", ["default", "small parts"])
def test_open_read(store: FileIO, case: str) -> None:
    """Reads and seeks, with any part size."""
    store.put("object", BODY * 8)
    settings = StreamSettings() if case == "default" else StreamSettings(part_bytes=1000, prefetch=2)
    with store.open_read("object", settings=settings) as stream:
        assert stream.read(10) == BODY[:10]
        assert stream.seek(-24, io.SEEK_END) == 8192 - 24
        assert stream.read() == BODY[-24:]
        assert stream.read(5) == b""
        stream.seek(1000)
        assert stream.read(500) == (BODY * 8)[1000:1500]
        assert stream.tell() == 1500
        stream.seek(0)
        assert stream.read() == BODY * 8
    with pytest.raises(NotFound):
        store.open_read("nothing")

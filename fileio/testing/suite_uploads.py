"""Conformance of multipart uploads and of the streams on top of them."""

from __future__ import annotations

import pytest

from fileio.base import Conflict, Create, Overwrite, PutMode
from fileio.errors import Unsupported
from fileio.store import FileIO
from fileio.testing.subject import Place, written
from fileio.testing.suite_objects import MODES, prepare


def part(store: FileIO, number: int) -> bytes:
    """A part of the least size that the store takes, different for every number."""
    size = max(store.capabilities.part_bytes_min, store.capabilities.part_bytes_multiple)
    return (b"%04d" % number) * (size // 4) + b"." * (size % 4)


def nothing_left(place: Place) -> None:
    """No upload is in progress below the place, where the store can tell."""
    if place.subject.uploads is not None:
        assert [key for key in place.subject.uploads() if place.prefix in key] == []


def send(store: FileIO, key: str, mode: PutMode, parts: int) -> object:
    upload = store.start_upload(key, mode)
    for number in range(1, parts + 1):
        upload.put_part(number, part(store, number))
    upload.put_part(parts + 1, b"tail")
    outcome = upload.complete()
    if isinstance(outcome, Conflict):
        upload.abort()
    return outcome


@pytest.mark.parametrize("case", MODES)
def test_upload(place: Place, store: FileIO, case: str) -> None:
    present, mode_name, lands = MODES[case]
    mode, current = prepare(store, "object", present=present, mode=mode_name)
    if mode_name != "overwrite" and not store.capabilities.conditional_complete:
        with pytest.raises(Unsupported, match="upload"):
            store.start_upload("object", mode)
        return
    outcome = send(store, "object", mode, parts=0)
    if lands:
        assert store.head("object").version == written(outcome).version != current  # type: ignore[arg-type]
        assert store.read("object") == b"tail"
    else:
        assert outcome == Conflict(current)
        assert store.exists("object") == present
    nothing_left(place)


def test_upload_of_several_parts(place: Place, store: FileIO) -> None:
    outcome = send(store, "object", Overwrite(), parts=2)
    expected = part(store, 1) + part(store, 2) + b"tail"
    head = store.head("object")
    assert (head.size, head.version) == (len(expected), written(outcome).version)  # type: ignore[arg-type]
    assert store.read("object") == expected
    nothing_left(place)


def test_parts_in_any_order_and_repeated(store: FileIO) -> None:
    upload = store.start_upload("object", Overwrite(), metadata={"owner": "me"})
    numbers = [2, 1, 1] if store.capabilities.parallel_parts else [1, 1, 2]
    for number in numbers:
        upload.put_part(number, part(store, 1) if number == 1 else b"tail")
    written(upload.complete())
    assert store.read("object") == part(store, 1) + b"tail"
    assert store.head("object").metadata["owner"] == "me"


def test_an_upload_is_invisible_until_it_is_complete(place: Place, store: FileIO) -> None:
    upload = store.start_upload("dir/object", Overwrite())
    upload.put_part(1, part(store, 1))
    upload.put_part(2, b"tail")
    assert not store.exists("dir/object")
    assert list(store.list_keys()) == []
    written(upload.complete())
    assert list(store.list_keys()) == ["dir/object"]
    nothing_left(place)


def test_an_aborted_upload_leaves_nothing(place: Place, store: FileIO) -> None:
    upload = store.start_upload("dir/object", Overwrite())
    upload.put_part(1, part(store, 1))
    for _ in range(2):
        upload.abort()
    assert list(store.list_keys()) == []
    nothing_left(place)
    written(store.put("dir/object", b"free", Create()))


def test_completing_again_is_written_still(place: Place, store: FileIO) -> None:
    """What a client does that lost the answer and asks once more."""
    upload = store.start_upload("object", Overwrite())
    upload.put_part(1, b"tail")
    first = written(upload.complete())
    assert written(upload.complete()).version == store.head("object").version
    assert first.version == store.head("object").version
    upload.abort()
    assert store.read("object") == b"tail"


def test_an_upload_that_loses_leaves_the_winner(place: Place, store: FileIO) -> None:
    if not store.capabilities.conditional_complete:
        with pytest.raises(Unsupported, match="upload"):
            store.start_upload("object", Create())
        return
    upload = store.start_upload("object", Create())
    upload.put_part(1, b"loser")
    winner = written(store.put("object", b"winner", Create()))
    assert upload.complete() == Conflict(winner.version)
    upload.abort()
    assert store.read("object") == b"winner"
    nothing_left(place)

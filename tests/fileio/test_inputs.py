"""What callers may hand in, and what is refused before any request: keys, ranges, bodies, metadata. The same for every backend."""

from __future__ import annotations

import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fileio import Create, FileIO, GetResult, InvalidConfig, InvalidKey, Overwrite, Range, Suffix, Unsupported, Written, open_store
from fileio.contract import FULL_KEY_BYTES_MAX, KEY_BYTES_MAX, METADATA_BYTES_MAX, WRITE_BASE, WRITE_ID, as_bytes
from fileio.memory import MEMORY_CAPABILITIES, MemoryBackend
from fileio.testing import FakeEnv, FaultyBackend
from fileio.wrappers import PrefixedBackend


@pytest.fixture
def backend() -> FaultyBackend:
    """A store that counts what it is asked."""
    return FaultyBackend(MemoryBackend(capabilities=replace(MEMORY_CAPABILITIES, put_bytes_max=100)))


@pytest.fixture
def store(backend: FaultyBackend) -> FileIO:
    return FileIO(backend, env=FakeEnv())


CALLS: dict[str, Callable[[FileIO, str], object]] = {
    "get": lambda store, key: store.get(key),
    "get_ranges": lambda store, key: store.get_ranges(key, [(0, 1)]),
    "head": lambda store, key: store.head(key),
    "exists": lambda store, key: store.exists(key),
    "open_read": lambda store, key: store.open_read(key),
    "put": lambda store, key: store.put(key, b"x"),
    "append": lambda store, key: store.append(key, b"x", offset=0),
    "copy from": lambda store, key: store.copy(key, "target"),
    "copy to": lambda store, key: store.copy("source", key),
    "delete": lambda store, key: store.delete(["fine", key]),
    "start_upload": lambda store, key: store.start_upload(key),
    "open_write": lambda store, key: store.open_write(key),
    "child": lambda store, key: store.child(key),
}


@pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b", ".", "a/../b", "a\0b", "half \ud800", "k" * 901, "ü" * 451])
@pytest.mark.parametrize("call", list(CALLS))
def test_what_is_no_key_is_refused_before_any_request(store: FileIO, backend: FaultyBackend, call: str, key: str) -> None:
    with pytest.raises(InvalidKey, match="is not a key"):
        CALLS[call](store, key)
    assert backend.asked.total() == 0


@pytest.mark.parametrize("text", ["half \ud800", "a\0b", "k" * 901])
def test_a_listing_of_what_no_key_can_be_is_refused_before_any_request(store: FileIO, backend: FaultyBackend, text: str) -> None:
    for call in (lambda: store.list(text), lambda: store.list(start_after=text), lambda: list(store.list_keys(text))):
        with pytest.raises(InvalidKey, match="No key begins with"):
            call()
    assert backend.asked.total() == 0


@pytest.mark.parametrize("page_size", [0, -1])
def test_a_page_without_keys_is_refused(store: FileIO, page_size: int) -> None:
    with pytest.raises(ValueError, match="page_size of at least 1"):
        store.list(page_size=page_size)


def test_a_key_together_with_its_prefix_fits_every_store() -> None:
    memory = MemoryBackend()
    prefix = "p" * (FULL_KEY_BYTES_MAX - KEY_BYTES_MAX - 1)
    store = FileIO(PrefixedBackend(memory, prefix), env=FakeEnv())
    key = "k" * KEY_BYTES_MAX
    assert isinstance(store.put(key, b"x"), Written)
    assert list(store.list_keys()) == [key]
    longer = FileIO(PrefixedBackend(memory, prefix + "p"), env=FakeEnv())
    longer.put("source", b"")
    for call in (call for name, call in CALLS.items() if name not in ("child", "open_write", "delete")):
        with pytest.raises(InvalidKey, match="1025 bytes together with the prefix"):
            call(longer, key)
    fine, refused = longer.delete(["source", key])
    assert fine.error is None and isinstance(refused.error, InvalidKey)
    assert not longer.exists("source")


def test_a_local_store_lists_the_longest_key_below_a_child(tmp_path: Any) -> None:
    with open_store(tmp_path) as store:
        below = store.child("p" * 100)
        key = "/".join(["k" * 179] * 5)
        below.put(key, b"x")
        assert list(below.list_keys()) == [key]


@pytest.mark.parametrize(("start", "end"), [(-1, None), (-5, 3), (5, 3), (0, -1)])
def test_a_range_that_cannot_be_is_refused_when_it_is_made(start: int, end: int | None) -> None:
    with pytest.raises(ValueError, match="is not a byte range"):
        Range(start, end)


def test_a_negative_suffix_or_offset_is_refused(store: FileIO, backend: FaultyBackend) -> None:
    with pytest.raises(ValueError, match="is not a byte range"):
        Suffix(-1)
    with pytest.raises(ValueError, match="Pass the current size of the object as offset"):
        store.append("k", b"x", offset=-1)
    assert backend.asked.total() == 0


# ---- bodies


BODIES: dict[str, tuple[Any, bytes]] = {
    "bytes": (b"abc", b"abc"),
    "bytearray": (bytearray(b"abc"), b"abc"),
    "nothing": (b"", b""),
    "an empty view": (memoryview(b"abc")[1:1], b""),
    "every second byte": (memoryview(b"abcdef")[::2], b"ace"),
    "backwards": (memoryview(b"abc")[::-1], b"cba"),
    "integers": (memoryview(array.array("I", [1, 2])), bytes([1, 0, 0, 0, 2, 0, 0, 0])),
    "an array": (array.array("H", [258]), bytes([2, 1])),
    "two dimensions": (memoryview(b"abcd").cast("B", (2, 2)), b"abcd"),
}


@pytest.mark.parametrize("name", list(BODIES))
def test_a_body_may_be_any_buffer(store: FileIO, name: str) -> None:
    given, expected = BODIES[name]
    assert len(as_bytes(given)) == len(expected)
    assert isinstance(store.put("put", given), Written)
    written = store.append("append", given, offset=0)
    assert isinstance(written, Written)
    assert isinstance(store.append("append", given, offset=len(expected)), Written)
    upload = store.start_upload("upload")
    upload.put_part(1, given)
    assert isinstance(upload.complete(), Written)
    with store.open_write("stream") as stream:
        stream.write(given)
    assert [store.read(key) for key in ("put", "append", "upload", "stream")] == [expected, expected * 2, expected, expected]
    assert store.metrics.snapshot().bytes_written == 6 * len(expected) - len(expected)


def test_what_is_no_buffer_is_a_type_error(store: FileIO, backend: FaultyBackend) -> None:
    text: Any = "text"
    for call in (lambda: store.put("k", text), lambda: store.append("k", text, offset=0)):
        with pytest.raises(TypeError):
            call()
    assert backend.asked.total() == 0


def test_a_body_that_changes_after_the_call_changes_nothing(store: FileIO) -> None:
    body = bytearray(b"before")
    store.put("put", body)
    store.append("append", body, offset=0)
    upload = store.start_upload("upload")
    upload.put_part(1, body)
    stream = store.open_write("stream")
    stream.write(body)
    body[:] = b"behind"
    upload.complete()
    stream.close()
    assert {store.read(key) for key in ("put", "append", "upload", "stream")} == {b"before"}


def test_a_put_larger_than_the_store_takes_names_the_way_out(store: FileIO, backend: FaultyBackend) -> None:
    assert isinstance(store.put("k", bytes(100)), Written)
    with pytest.raises(Unsupported, match=r"101 bytes for 'k2' are more than one put .* takes \(100\)\. Use open_write"):
        store.put("k2", bytes(101))
    assert backend.asked["put", "k2"] == 0
    with store.open_write("k2") as stream:
        stream.write(bytes(101))
    assert store.head("k2").size == 101


# ---- metadata


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Owner", "me"),
        ("own-er", "me"),
        ("1st", "me"),
        ("", "me"),
        ("größe", "1"),
        (WRITE_ID, "x"),
        (WRITE_BASE, "x"),
        ("owner", "mé"),
        ("owner", "日本"),
        ("owner", "a\nb"),
        ("owner", "a\r\nx-evil: 1"),
        ("owner", " me"),
        ("owner", "me "),
        ("owner", ""),
        ("owner", 7),
        ("owner", "v" * METADATA_BYTES_MAX),
    ],
)
def test_metadata_that_a_store_would_not_bring_back_is_refused_before_any_request(
    store: FileIO, backend: FaultyBackend, name: str, value: Any
) -> None:
    metadata = {name: value}
    for call in (
        lambda: store.put("k", b"", Create(), metadata=metadata),
        lambda: store.start_upload("k", Overwrite(), metadata=metadata),
        lambda: store.open_write("k", metadata=metadata),
    ):
        with pytest.raises(InvalidConfig, match="metadata"):
            call()
    assert backend.asked.total() == 0


def test_metadata_as_large_as_it_may_be(store: FileIO) -> None:
    given = {"a": "v" * (METADATA_BYTES_MAX - 1)}
    store.put("k", b"", metadata=given)
    found = store.get("k")
    assert isinstance(found, GetResult) and found.meta.metadata["a"] == given["a"]
    with pytest.raises(InvalidConfig, match="too large"):
        store.put("k", b"", metadata={**given, "b": "x"})

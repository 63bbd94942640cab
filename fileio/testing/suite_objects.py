"""Conformance of single objects: get, head, put, copy, append, metadata, keys, errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from fileio.contract import (
    KEY_BYTES_MAX,
    WRITE_ID,
    Buffer,
    ByteRange,
    Create,
    GetResult,
    NotModified,
    Overwrite,
    PreconditionFailed,
    PutMode,
    Range,
    Suffix,
    Update,
    Version,
)
from fileio.errors import BucketNotFound, InvalidKey, NotFound, Unsupported
from fileio.store import FileIO
from fileio.testing.subject import Place, Subject, written

BODY = bytes(range(256)) * 4

RANGES: dict[str, tuple[ByteRange, bytes, int]] = {
    "start": (Range(0, 10), BODY[:10], 0),
    "middle": (Range(100, 300), BODY[100:300], 100),
    "one byte": (Range(1023, 1024), BODY[1023:], 1023),
    "to the end": (Range(1000), BODY[1000:], 1000),
    "clipped": (Range(1000, 5000), BODY[1000:], 1000),
    "at the end": (Range(1024, 1030), b"", 1024),
    "open at the end": (Range(1024), b"", 1024),
    "past the end": (Range(5000, 6000), b"", 1024),
    "nothing": (Range(10, 10), b"", 10),
    "whole": (Range(0), BODY, 0),
    "suffix": (Suffix(24), BODY[-24:], 1000),
    "whole suffix": (Suffix(1024), BODY, 0),
    "suffix too long": (Suffix(9999), BODY, 0),
}

KEYS: dict[str, str] = {
    "space": "a b/c  d",
    "plus": "a+b",
    "percent": "a%b",
    "percent encoded": "a%20b%2Fc%00",
    "ampersand": "a&b&amp;c",
    "question": "a?b=c",
    "hash": "a#b",
    "equals": "day=2013-01-01/hour=7",
    "quotes": "a'b\"c`d",
    "angles": "<a>/<b/>",
    "brackets": "[a]{b}(c)",
    "punctuation": "a,b;c:d@e!f$g^h|i~j*k_l-m.n",
    "latin": "Zürich/naïve/œuvre",
    "decomposed": "Zu\u0308rich",
    "cjk": "日本語/中文/한국어",
    "emoji": "🦆/👩‍🚀",
    "case": "Key",
    "dots": ".hidden/..data/a...b",
    "long": "/".join(["k" * 179] * 5),
    "long unicode": "/".join(["ü" * 89] * 5),
}

MODES: dict[str, tuple[bool, str, bool]] = {
    "overwrite nothing": (False, "overwrite", True),
    "overwrite something": (True, "overwrite", True),
    "create nothing": (False, "create", True),
    "create over something": (True, "create", False),
    "update current": (True, "current", True),
    "update stale": (True, "stale", False),
    "update missing": (False, "stale", False),
}
"""Whether there is an object, the mode, and whether the write takes effect. Shared by put, copy and upload."""


def prepare(store: FileIO, key: str, *, present: bool, mode: str) -> tuple[PutMode, Version | None]:
    """Put the key into its first state. Returns the mode to write with, and the current version."""
    stale = written(store.put(key, b"first")).version
    if not present:
        assert store.delete([key])[0].error is None
        current = None
    else:
        current = written(store.put(key, b"second", Update(stale))).version
    modes: dict[str, PutMode] = {"overwrite": Overwrite(), "create": Create(), "current": Update(current or stale), "stale": Update(stale)}
    return modes[mode], current


# ---- reading


def test_get_returns_what_was_put(store: FileIO) -> None:
    """Bytes, size, version and times agree between put, get and head."""
    outcome = written(store.put("dir/object", BODY))
    found = store.get("dir/object")
    assert isinstance(found, GetResult)
    assert (found.data, found.offset) == (BODY, 0)
    assert (found.meta.key, found.meta.size, found.meta.version) == ("dir/object", 1024, outcome.version)
    assert found.meta.modified_ms > 1_000_000_000_000
    head = store.head("dir/object")
    assert replace(head, modified_ms=found.meta.modified_ms) == found.meta
    assert abs(head.modified_ms - found.meta.modified_ms) < 1000, "more than the whole seconds of an HTTP date apart"
    assert (outcome.store_time_ms is not None) == store.capabilities.store_clock
    if found.store_time_ms is not None:
        assert outcome.store_time_ms is not None
        assert abs(found.store_time_ms - outcome.store_time_ms) <= 60_000, "the store has two clocks"


@pytest.mark.parametrize("case", RANGES)
def test_get_range(store: FileIO, case: str) -> None:
    """Ranges are clipped to the object."""
    asked, data, offset = RANGES[case]
    store.put("object", BODY)
    found = store.get("object", byte_range=asked)
    assert isinstance(found, GetResult)
    assert (found.data, found.meta.size) == (data, 1024)
    assert found.offset == offset or not data


@pytest.mark.parametrize("case", ["whole", "range", "suffix"])
def test_get_of_an_empty_object(store: FileIO, case: str) -> None:
    """Every range of it is empty."""
    store.put("empty", b"")
    asked = {"whole": None, "range": Range(0, 10), "suffix": Suffix(10)}[case]
    found = store.get("empty", byte_range=asked)
    assert isinstance(found, GetResult)
    assert (found.data, found.meta.size) == (b"", 0)


def test_get_unless_it_still_has_the_version(store: FileIO) -> None:
    """NotModified, until the object changes."""
    first = written(store.put("object", b"one"))
    assert store.get("object", if_none_match=first.version) == NotModified()
    second = written(store.put("object", b"two"))
    found = store.get("object", if_none_match=first.version)
    assert isinstance(found, GetResult) and (found.data, found.meta.version) == (b"two", second.version)


def test_many_ranges_at_once(store: FileIO) -> None:
    """`get_ranges` answers in the order asked."""
    store.put("object", BODY)
    ranges = [(900, 1000), (0, 1), (0, 1024), (5, 5), (1020, 4000), (100, 200), (150, 250)]
    assert store.get_ranges("object", ranges, gap_bytes=16, request_bytes=300) == [BODY[a:b] for a, b in ranges]


def test_what_is_missing_is_not_found(store: FileIO) -> None:
    """NotFound names the key, and is not BucketNotFound."""
    store.put("dir/object", b"")
    for key in ("nothing", "dir", "dir/objec", "dir/object2"):
        for call in (store.get, store.head, store.read):
            with pytest.raises(NotFound, match=key) as caught:
                call(key)
            assert not isinstance(caught.value, BucketNotFound)
        assert not store.exists(key)
    with pytest.raises(NotFound):
        store.get("nothing", byte_range=Range(0, 1))
    with pytest.raises(NotFound):
        store.copy("nothing", "target")


@pytest.mark.parametrize("case", ["get", "head", "put", "create", "list", "start upload"])
def test_a_missing_bucket_is_named(place: Place, case: str) -> None:
    """The body of a HEAD says no more than that nothing was found. If the first write creates the bucket, it is empty before."""
    if place.subject.missing is None:
        assert list(place.open().list_keys()) == []
        return
    with place.subject.missing() as store:
        calls: dict[str, Callable[[], object]] = {
            "get": lambda: store.get("object"),
            "head": lambda: store.head("object"),
            "put": lambda: store.put("object", b""),
            "create": lambda: store.put("object", b"", Create()),
            "list": lambda: list(store.list()),
            "start upload": lambda: _upload_one(store),
        }
        with pytest.raises(NotFound if case == "head" else BucketNotFound) as caught:
            calls[case]()
        assert store.url.split("://")[1].split("/")[0] in str(caught.value)


def _upload_one(store: FileIO) -> None:
    upload = store.start_upload("object")
    upload.put_part(1, b"x")
    upload.complete()


# ---- writing


@pytest.mark.parametrize("case", MODES)
def test_put(store: FileIO, case: str) -> None:
    """Every mode, with and without an object."""
    present, mode_name, lands = MODES[case]
    mode, current = prepare(store, "object", present=present, mode=mode_name)
    outcome = store.put("object", b"third", mode)
    if lands:
        assert store.head("object").version == written(outcome).version != current
        assert store.read("object") == b"third"
    else:
        assert outcome == PreconditionFailed(current)
        assert (store.read("object") if present else None) == (b"second" if present else None)
        assert store.exists("object") == present


@pytest.mark.parametrize("case", MODES)
def test_copy(store: FileIO, case: str) -> None:
    """Every mode. The copy has the user metadata of the source and its own write id."""
    present, mode_name, lands = MODES[case]
    mode, current = prepare(store, "target", present=present, mode=mode_name)
    source = written(store.put("source", b"third", metadata={"owner": "me"}))
    if mode_name != "overwrite" and not store.capabilities.conditional_copy:
        with pytest.raises(Unsupported, match="copy"):
            store.copy("source", "target", mode)
        return
    outcome = store.copy("source", "target", mode)
    if lands:
        head = store.head("target")
        assert head.version == written(outcome).version != current
        assert store.read("target") == b"third"
        assert head.metadata["owner"] == "me"
        assert head.metadata[WRITE_ID] != store.head("source").metadata[WRITE_ID]
    else:
        assert outcome == PreconditionFailed(current)
        assert store.exists("target") == present
    assert store.head("source").version == source.version


@pytest.mark.parametrize("case", ["create", "grow", "wrong offset", "create over something", "missing"])
def test_append(store: FileIO, case: str) -> None:
    """Only at the offset that is the size of the object."""
    if not store.capabilities.append:
        with pytest.raises(Unsupported, match="open_write"):
            store.append("log", b"x", offset=0)
        return
    if case == "missing":
        assert store.append("log", b"x", offset=5) == PreconditionFailed(None)
        assert not store.exists("log")
        return
    first = written(store.append("log", b"<one>", offset=0))
    assert store.head("log").version == first.version
    if case == "grow":
        second = written(store.append("log", b"<two>", offset=5))
        third = written(store.append("log", b"<three>", offset=10))
        assert len({first.version, second.version, third.version}) == 3
        assert store.read("log") == b"<one><two><three>"
        assert store.head("log").version == third.version
    elif case == "wrong offset":
        for offset in (3, 6):
            assert store.append("log", b"<two>", offset=offset) == PreconditionFailed(first.version)
    elif case == "create over something":
        assert store.append("log", b"<else>", offset=0) == PreconditionFailed(first.version)
    if case != "grow":
        assert store.read("log") == b"<one>"


def test_versions_change_with_the_bytes(store: FileIO) -> None:
    """Equal bytes have equal versions only where that is declared."""
    first = written(store.put("object", b"same"))
    assert written(store.put("object", b"other")).version != first.version
    again = written(store.put("object", b"same"))
    assert (again.version == first.version) == store.capabilities.content_versions


def test_metadata_comes_back(store: FileIO) -> None:
    """With get and head. A write replaces all of it."""
    given = {"owner": "somebody else", "rows": "17", "x": "a=b; c/d+e"}
    store.put("object", b"1", metadata=given)
    found = store.get("object")
    assert isinstance(found, GetResult)
    for metadata in (store.head("object").metadata, found.meta.metadata):
        assert given.items() <= metadata.items()
        assert len(metadata[WRITE_ID]) == 16
    store.put("object", b"2")
    assert "owner" not in store.head("object").metadata


def test_a_refused_write_brings_what_is_there_when_it_asks_for_it(store: FileIO) -> None:
    """By one GET instead of a HEAD."""
    first = written(store.put("object", BODY, Create(), metadata={"owner": "me"}))
    before = store.metrics.snapshot()
    outcome = store.put("object", b"late", Create(), want_found=True)
    sent = (store.metrics.snapshot() - before).requests
    assert isinstance(outcome, PreconditionFailed)
    assert outcome.found is not None
    assert outcome.found.data == BODY
    assert outcome.found.meta.version == first.version
    assert outcome.found.meta.metadata["owner"] == "me"
    assert sent == {"put_create": 1, "get": 1}
    assert store.put("object", b"late", Create()) == PreconditionFailed(first.version)


@pytest.mark.parametrize("case", ["bytes", "bytearray", "memoryview", "1 MiB"])
def test_bodies(store: FileIO, case: str) -> None:
    """Every kind of buffer."""
    body = BODY * 1024
    bodies: dict[str, Buffer] = {"bytes": BODY, "bytearray": bytearray(BODY), "memoryview": memoryview(BODY)[10:500], "1 MiB": body}
    given = bodies[case]
    store.put("object", given)
    assert store.read("object") == bytes(given)


# ---- keys


@pytest.mark.parametrize("case", KEYS)
def test_key(store: FileIO, case: str) -> None:
    """Every operation with an unusual key."""
    key = KEYS[case]
    outcome = written(store.put(key, case.encode(), Create()))
    assert isinstance(store.put(key, b"", Create()), PreconditionFailed)
    assert store.read(key) == case.encode()
    assert store.head(key).key == key
    assert [(meta.key, meta.version) for page in store.list() for meta in page.objects] == [(key, outcome.version)]
    assert list(store.list_keys(key)) == [key]
    written(store.copy(key, "copied"))
    assert store.read("copied") == case.encode()
    assert [result.error for result in store.delete([key])] == [None]
    assert list(store.list_keys()) == ["copied"]


def test_keys_that_differ_little_are_different(store: FileIO) -> None:
    """Case, encoding and normal form matter."""
    keys = ["a", "A", "a b", "a+b", "a%20b", "a%2Bb", "ab", "Zürich", "Zu\u0308rich", "a.b", "a_b"]
    for key in keys:
        written(store.put(key, key.encode(), Create()))
    assert [store.read(key).decode() for key in keys] == keys


@pytest.mark.parametrize("case", ["", "/a", "a/", "a//b", "a/../b", "./a", "..", "a\0b", "k" * (KEY_BYTES_MAX + 1), "ü" * 451])
def test_what_is_no_key_is_refused_before_any_request(store: FileIO, case: str) -> None:
    """InvalidKey, and not one request."""
    calls: list[Callable[[], object]] = [
        lambda: store.get(case),
        lambda: store.head(case),
        lambda: store.put(case, b""),
        lambda: store.append(case, b"", offset=0),
        lambda: store.copy(case, "b"),
        lambda: store.copy("b", case),
        lambda: store.delete([case]),
        lambda: store.start_upload(case),
        lambda: store.open_write(case),
        lambda: store.open_read(case),
    ]
    for call in calls:
        with pytest.raises(InvalidKey):
            call()
    assert store.metrics.snapshot().request_count == 0


# ---- descriptions


def test_a_pickled_description_opens_the_same_store(store: FileIO) -> None:
    """A store itself cannot be pickled."""
    store.put("object", b"here")
    try:
        description = store.describe()
    except Unsupported:  # made by hand, so there is nothing to send
        return
    with pickle.loads(pickle.dumps(description)).open() as other:  # noqa: S301  (our own bytes)
        assert other.read("object") == b"here"
        assert other.url == store.url
    with pytest.raises(TypeError, match="describe"):
        pickle.dumps(store)


def test_secrets_are_never_shown(store: FileIO, subject: Subject) -> None:
    """Not by the store, its description or an error."""
    shown = [repr(store), str(store), store.url, repr(store.capabilities)]
    with pytest.raises(NotFound) as caught:
        store.get("nothing")
    shown += [str(caught.value), repr(caught.value)]
    try:
        shown += [repr(store.describe()), str(store.describe())]
    except Unsupported:
        assert not subject.secrets
    for text in shown:
        for secret in subject.secrets:
            assert secret not in text

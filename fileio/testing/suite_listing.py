"""Conformance of listings and deletions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fileio.env import default_env
from fileio.store import FileIO
from fileio.testing.subject import Place, Subject, expect_deviation, written

TREE = ["a/1", "a/2", "a/b/1", "a/b/2", "a0", "ab", "b/1", "c", "d/e/f/g", "é", "🦆"]
"""In byte order."""


@pytest.fixture
def tree(request: pytest.FixtureRequest, subject: Subject) -> FileIO:
    """A client of a place that holds TREE and that tests only read. The first test fills it; the end of the run empties it."""
    expect_deviation(request, subject)
    if "tree" not in subject.filled:
        place = Place(subject, f"conformance-{default_env().new_id()}")
        fill(place.open(), list(reversed(TREE)))
        subject.filled["tree"] = place
        request.config.add_cleanup(place.clear)
    return subject.filled["tree"].opened[0]


def fill(store: FileIO, keys: Sequence[str]) -> None:
    """Write an object under every key."""
    for key in keys:
        written(store.put(key, key.encode()))


def keys_of(store: FileIO, prefix: str = "", *, start_after: str | None = None, page_size: int = 1000) -> list[str]:
    """The keys of a listing, sorted if the store lists in no order."""
    found = [meta.key for page in store.list(prefix, start_after=start_after, page_size=page_size) for meta in page.objects]
    return found if store.capabilities.list_ordered else sorted(found, key=lambda key: key.encode())


@pytest.mark.parametrize("case", [1000, 5, 3, 1])
def test_list_in_byte_order_whatever_the_pages(tree: FileIO, case: int) -> None:
    """Pages of any size hold all keys in byte order."""
    assert keys_of(tree, page_size=case) == TREE == sorted(TREE, key=lambda key: key.encode())
    pages = list(tree.list(page_size=case))
    assert all(len(page.objects) <= case for page in pages)
    assert pages[-1].cursor is None and all(page.cursor is not None for page in pages[:-1])


def test_a_listing_says_what_a_head_says(tree: FileIO) -> None:
    """Size, version and time are the same. Metadata is empty."""
    for page in tree.list():
        for meta in page.objects:
            head = tree.head(meta.key)
            assert (meta.size, meta.version) == (head.size, head.version)
            assert abs(meta.modified_ms - head.modified_ms) < 1000
            assert meta.metadata == {}


@pytest.mark.parametrize("case", ["", "a", "a/", "a/b", "a/b/1", "a/b/1x", "d/e/f", "zz", "é", "é/"])
def test_list_by_prefix(tree: FileIO, case: str) -> None:
    """A prefix may end anywhere within a key."""
    assert keys_of(tree, case) == [key for key in TREE if key.startswith(case)]


@pytest.mark.parametrize("case", ["a/1", "a/10", "a/b", "a", "0", "ab", "c", "é", "🦆", "zzz"])
@pytest.mark.parametrize("page_size", [1000, 2])
def test_list_after_a_key(tree: FileIO, case: str, page_size: int) -> None:
    """The start need not be a key, and is excluded."""
    assert keys_of(tree, start_after=case, page_size=page_size) == [key for key in TREE if key.encode() > case.encode()]


@pytest.mark.parametrize("case", ["a/1", "a/b/1", "a/", "a/b", "A", "b"])
def test_list_by_prefix_after_a_key(tree: FileIO, case: str) -> None:
    """Both limits hold, also when the start is outside of the prefix."""
    assert keys_of(tree, "a/", start_after=case) == [key for key in TREE if key.startswith("a/") and key > case]


@pytest.mark.parametrize("case", ["", "a/", "a", "d/", "d", "b/1", "zz"])
def test_list_with_a_delimiter(tree: FileIO, case: str) -> None:
    """Keys below the delimiter become common prefixes."""
    check_delimiter(tree, case, page_size=1000)


@pytest.mark.parametrize("case", ["", "a/", "a", "d/", "d", "b/1", "zz"])
def test_list_with_a_delimiter_in_small_pages(tree: FileIO, case: str) -> None:
    """No common prefix comes twice."""
    check_delimiter(tree, case, page_size=2)


def check_delimiter(tree: FileIO, prefix: str, *, page_size: int) -> None:
    """Every object and every common prefix comes once, in pages of any size."""
    objects: list[str] = []
    prefixes: list[str] = []
    for page in tree.list(prefix, delimiter="/", page_size=page_size):
        assert len(page.objects) <= page_size
        objects += [meta.key for meta in page.objects]
        prefixes += page.prefixes
    below = [(key, key.find("/", len(prefix))) for key in TREE if key.startswith(prefix)]
    assert sorted(objects) == sorted(key for key, at in below if at < 0)
    assert sorted(prefixes) == sorted({key[: at + 1] for key, at in below if at >= 0})


def test_list_orders_by_the_bytes_of_utf_8(store: FileIO) -> None:
    """In UTF-16 the duck would come first."""
    fill(store, ["🦆", "ｚ"])
    assert keys_of(store) == ["ｚ", "🦆"]


def test_an_empty_listing_is_one_empty_page(store: FileIO) -> None:
    """It has no cursor."""
    pages = list(store.list("nothing/"))
    assert [(list(page.objects), list(page.prefixes), page.cursor) for page in pages] == [([], [], None)]


def test_what_is_written_and_deleted_is_listed_at_once(store: FileIO) -> None:
    """Listings are strongly consistent."""
    for number in range(5):
        written(store.put(f"object-{number}", b""))
        assert keys_of(store) == [f"object-{n}" for n in range(number + 1)]
    store.delete(["object-2"])
    assert "object-2" not in keys_of(store)


def test_delete_has_one_result_a_key_and_repeats_harmlessly(store: FileIO) -> None:
    """A missing key is a success."""
    fill(store, TREE)
    keys = ["a/1", "never there", "é", "🦆", "a/b/2"]
    for _ in range(2):
        assert [(result.key, result.error) for result in store.delete(keys)] == [(key, None) for key in keys]
    assert keys_of(store) == [key for key in TREE if key not in keys]
    assert store.delete([]) == []


def test_delete_1001_keys(store: FileIO) -> None:
    """More keys than one request takes."""
    keys = [f"part-{number:04}" for number in range(1001)]
    list(store.env.map(lambda key: written(store.put(key, b"x")), keys))
    written(store.put("kept", b""))
    assert keys_of(store, "part-") == keys
    assert keys_of(store, "part-", page_size=300) == keys
    assert [(result.key, result.error) for result in store.delete(keys)] == [(key, None) for key in keys]
    assert keys_of(store) == ["kept"]

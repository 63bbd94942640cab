"""The `file:` store beyond the conformance suite: crashes, foreign files, directories, full disks, two roots over one tree."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fileio.contract import (
    Backend,
    ByteRange,
    Create,
    GetResult,
    NotModified,
    ObjectMeta,
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
    PutMode,
    Range,
    Suffix,
    Update,
    Version,
    Written,
)
from fileio.errors import InvalidConfig, InvalidKey, NotFound, PermissionDenied, StoreFull, Throttled, Unsupported, UploadLost
from fileio.local.backend import open_local
from fileio.local.options import LocalOptions

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(params=["attributes", "sidecar"])
def options(request: pytest.FixtureRequest) -> LocalOptions:
    return LocalOptions(fsync=False, attributes=request.param == "attributes")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def store(root: Path, options: LocalOptions) -> Backend:
    return open_local(str(root), options)


def written(outcome: object) -> Version:
    assert isinstance(outcome, Written), outcome
    return outcome.version


def read(store: Backend, key: str) -> bytes:
    result = store.get(key, None, None)
    assert isinstance(result, GetResult)
    return result.data


def keys(store: Backend, prefix: str = "", *, start_after: str | None = None, delimiter: str | None = None, limit: int = 2) -> list[str]:
    """Keys and common prefixes, page by page, in the order of each page's items."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = store.list_page(prefix, start_after, delimiter, cursor, limit)
        assert len(page.objects) + len(page.prefixes) <= limit
        found += sorted([meta.key for meta in page.objects] + list(page.prefixes))
        cursor = page.cursor
        if cursor is None:
            return found


def hidden_files(root: Path) -> list[Path]:
    return [path for path in (root / ".objcat").rglob("*") if path.is_file()]


# ---- objects are plain files


def test_an_object_is_a_plain_file_that_other_tools_read_and_may_write(store: Backend, root: Path) -> None:
    written(store.put("a/b.parquet", b"ours", Create(), {"writeid": "1"}))
    assert (root / "a/b.parquet").read_bytes() == b"ours"
    assert stat.S_IMODE((root / "a/b.parquet").stat().st_mode) == 0o666 & ~_umask()

    (root / "a/foreign").write_bytes(b"theirs")
    assert read(store, "a/foreign") == b"theirs"
    assert store.head("a/foreign").metadata == {}
    assert keys(store) == ["a/b.parquet", "a/foreign"]
    assert isinstance(store.put("a/foreign", b"x", Create(), {}), PreconditionFailed)
    written(store.put("a/foreign", b"x", Update(store.head("a/foreign").version), {}))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_file_changed_in_place_by_another_tool_has_another_version_and_no_metadata(store: Backend, root: Path) -> None:
    version = written(store.put("k", b"one", Create(), {"writeid": "1"}))
    assert store.head("k").metadata == {"writeid": "1"}
    with (root / "k").open("ab") as file:
        file.write(b"!")
    assert store.head("k").version != version
    assert store.head("k").metadata == {}
    assert isinstance(store.put("k", b"two", Update(version), {}), PreconditionFailed)


def test_versions_never_repeat_even_for_equal_bytes(store: Backend) -> None:
    seen = {written(store.put("k", b"same", Create(), {}))}
    for _ in range(300):
        seen.add(written(store.put("k", b"same", Update(store.head("k").version), {})))
    for _ in range(100):
        seen.add(written(store.put("k", b"same", Overwrite(), {})))
    for _ in range(100):
        assert store.delete_batch(["k"])[0].error is None
        seen.add(written(store.put("k", b"same", Create(), {})))
    assert len(seen) == 501


def test_a_version_is_later_than_a_predecessor_with_a_time_in_the_future(store: Backend, root: Path) -> None:
    version = written(store.put("k", b"one", Create(), {}))
    ahead_ns = (root / "k").stat().st_mtime_ns + 10**15
    os.utime(root / "k", ns=(ahead_ns, ahead_ns))
    assert written(store.put("k", b"one", Overwrite(), {"writeid": "2"})) != version
    assert (root / "k").stat().st_mtime_ns > ahead_ns
    assert store.head("k").metadata == {"writeid": "2"}


@pytest.mark.parametrize("size", [10, 200_000])
def test_metadata_of_any_size_comes_back(store: Backend, size: int) -> None:
    metadata = {"writeid": "1", "note": "é" * size}
    written(store.put("k", b"", Create(), metadata))
    assert store.head("k").metadata == metadata
    result = store.get("k", None, None)
    assert isinstance(result, GetResult) and result.meta.metadata == metadata


def test_ranges_and_not_modified(store: Backend) -> None:
    version = written(store.put("k", b"0123456789", Create(), {}))
    cases: list[tuple[ByteRange, bytes, int]] = [
        (Range(2, 5), b"234", 2),
        (Range(7), b"789", 7),
        (Range(8, 100), b"89", 8),
        (Range(10, 12), b"", 10),
        (Range(50), b"", 10),
        (Suffix(3), b"789", 7),
        (Suffix(100), b"0123456789", 0),
    ]
    for byte_range, expected, offset in cases:
        result = store.get("k", byte_range, None)
        assert isinstance(result, GetResult) and (result.data, result.offset) == (expected, offset)
    assert store.get("k", None, version) == NotModified()


# ---- what is hidden and what is left behind


def test_nothing_is_left_behind_by_writes_conflicts_aborts_and_deletes(store: Backend, root: Path) -> None:
    version = written(store.put("d/k", b"1", Create(), {"writeid": "1"}))
    assert isinstance(store.put("d/k", b"2", Create(), {"writeid": "2"}), PreconditionFailed)
    assert isinstance(store.put("d/k", b"2", Update(Version("x")), {}), PreconditionFailed)
    upload = store.start_upload("d/u", Create(), {"writeid": "3"})
    upload.put_part(1, b"abc")
    assert len(hidden_files(root)) in (1, 2)
    upload.abort()
    upload.abort()
    upload = store.start_upload("d/k", Update(version), {"writeid": "4"})
    upload.put_part(1, b"abc")
    written(upload.complete())
    written(store.copy("d/k", "e/k", Create(), {"writeid": "5"}))
    written(store.append("e/k", b"def", 3))
    assert keys(store) == ["d/k", "e/k"]
    assert [r.error for r in store.delete_batch(["d/k", "e/k", "never/was"])] == [None, None, None]
    assert hidden_files(root) == []
    assert [path.name for path in root.iterdir()] == [".objcat"]


def test_the_hidden_directory_is_neither_listed_nor_a_key(store: Backend, root: Path) -> None:
    written(store.put("k", b"1", Create(), {"writeid": "1"}))
    open_local(str(root / "inner"), LocalOptions(fsync=False, attributes=False)).put("k", b"1", Create(), {"writeid": "1"})
    assert (root / "inner/.objcat").is_dir()
    assert keys(store) == ["inner/k", "k"]
    assert keys(store, delimiter="/") == ["inner/", "k"]
    for prefix in (".objcat/", ".obj", "inner/.objcat/", "../", "/", "//", "inner/../", "\0"):
        assert keys(store, prefix) == []
    for key in (".objcat/x", "a/.objcat/b", ".objcat"):
        with pytest.raises(InvalidKey, match="reserved for unfinished writes"):
            store.put(key, b"", Create(), {})


def test_leftovers_of_the_dead_are_removed_after_a_day_and_those_of_the_living_never(root: Path, options: LocalOptions) -> None:
    store = open_local(str(root), options)
    alive = store.start_upload("alive", Create(), {})
    alive.put_part(1, b"slow")
    [alive_file] = hidden_files(root)
    dead, fresh = root / ".objcat/tmp/dead", root / ".objcat/tmp/fresh"
    for path in (dead, fresh):
        path.write_bytes(b"x")
    two_days_ago_ns = alive_file.stat().st_mtime_ns - 2 * 86_400 * 10**9
    for path in (alive_file, dead):
        os.utime(path, ns=(two_days_ago_ns, two_days_ago_ns))
    written(open_local(str(root), options).put("k", b"", Create(), {}))
    assert not dead.exists() and fresh.exists() and alive_file.exists()
    written(alive.complete())


def test_sidecars_without_their_object_are_removed_after_a_day(root: Path) -> None:
    options = LocalOptions(fsync=False, attributes=False)
    written(open_local(str(root), options).put("k", b"", Create(), {"writeid": "1"}))
    [sidecar] = hidden_files(root)
    for part in range(256):
        directory = root / f".objcat/meta/{part:02x}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "dead").write_text('{"path": "gone"}')
        os.utime(directory / "dead", ns=(0, 0))
    os.utime(sidecar, ns=(0, 0))
    written(open_local(str(root), options).put("other", b"", Create(), {}))
    assert len(list((root / ".objcat/meta").rglob("dead"))) == 255
    assert open_local(str(root), options).head("k").metadata == {"writeid": "1"}


# ---- directories


def test_listing_is_in_byte_order_of_whole_keys_and_opens_only_what_it_needs(store: Backend, root: Path) -> None:
    expected = sorted(
        ["a-b", "a.txt", "a/b", "a/b-c/d", "a/b.c", "a/b0", "a0", "b/é/z", "b/z", "c/😀", "c/\uffff", "z"], key=lambda k: k.encode()
    )
    expected.remove("a/b")  # also a directory's name would be needed for a/b/c
    expected = sorted([*expected, "a/b/c"], key=lambda k: k.encode())
    for key in expected:
        written(store.put(key, b"", Create(), {}))
    (root / "empty/er").mkdir(parents=True)
    (root / os.fsdecode(b"not-\xff-text")).write_bytes(b"")
    (root / "loop").symlink_to(root)
    (root / "dangling").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe")
    for limit in (1, 2, 100):
        assert keys(store, limit=limit) == expected
        assert keys(store, delimiter="/", limit=limit) == ["a-b", "a.txt", "a/", "a0", "b/", "c/", "z"]
        assert keys(store, "a/b", delimiter="/", limit=limit) == ["a/b-c/", "a/b.c", "a/b/", "a/b0"]
        assert keys(store, "a", delimiter="b", limit=limit) == ["a-b", "a.txt", "a/b", "a0"]
        for after in [*expected, "a/", "a/b/", "a/zzz", "", "a"]:
            assert keys(store, start_after=after, limit=limit) == [k for k in expected if k.encode() > after.encode()]
        assert keys(store, start_after="a/b/c", delimiter="/", limit=limit) == ["a/", "a0", "b/", "c/", "z"]
        assert keys(store, start_after="a/b0", delimiter="/", limit=limit) == ["a0", "b/", "c/", "z"]
    for key in ("pipe", "a", "empty"):
        with pytest.raises(NotFound):
            store.head(key)


def test_listing_a_prefix_does_not_open_other_directories(store: Backend, root: Path) -> None:
    written(store.put("wanted/k", b"", Create(), {}))
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "os.scandir" and str(root) in str(args[0]) else None)
    for n in range(5):
        written(store.put(f"other{n}/k", b"", Create(), {}))
    opened.clear()
    assert keys(store, "wanted/", limit=10) == ["wanted/k"]
    assert keys(store, "want", limit=10) == ["wanted/k"]
    assert not [path for path in opened if "other" in path]


def test_a_key_that_is_also_a_prefix_is_refused_clearly(store: Backend) -> None:
    written(store.put("a", b"", Create(), {}))
    for mode in (Create(), Overwrite()):
        with pytest.raises(InvalidKey, match="is itself an object"):
            store.put("a/b", b"", mode, {})
    assert store.put("a/b", b"", Update(Version("1")), {}) == PreconditionFailed(None)
    written(store.put("d/e", b"", Create(), {}))
    for mode in (Create(), Overwrite()):
        with pytest.raises(InvalidKey, match="Other keys begin with it and a slash"):
            store.put("d", b"", mode, {})
    with pytest.raises(NotFound):
        store.head("a/b")
    assert store.delete_batch(["a/b", "d"])[0].error is None
    assert keys(store) == ["a", "d/e"]


def test_an_empty_directory_is_not_in_the_way(store: Backend, root: Path) -> None:
    for mode, name in ((Create(), "x"), (Overwrite(), "y")):
        (root / name / "deep/er").mkdir(parents=True)
        written(store.put(name, b"1", mode, {}))
        assert read(store, name) == b"1"


def test_long_and_odd_keys(store: Backend) -> None:
    long = "/".join(["s" * 255] * 3)
    for key in (long, "späß/日本語/😀", "a b/c\nd/*?[x]\\", "..a/b..", "-rf"):
        written(store.put(key, key.encode(), Create(), {}))
        assert read(store, key) == key.encode()
    with pytest.raises(InvalidKey, match="at most 255"):
        store.put("a/" + "s" * 256, b"", Create(), {})
    with pytest.raises(InvalidKey, match="at most 255"):
        store.put("é" * 128, b"", Create(), {})


def test_a_missing_root_is_an_empty_store_that_the_first_write_creates(root: Path, options: LocalOptions) -> None:
    store = open_local(str(root / "deep/er"), options)
    with pytest.raises(NotFound, match="does not exist"):
        store.head("k")
    assert keys(store) == []
    assert store.delete_batch(["k"])[0].error is None
    assert store.put("k", b"", Update(Version("1")), {}) == PreconditionFailed(None)
    assert not root.exists()
    written(store.put("k", b"", Create(), {}))
    assert (root / "deep/er/k").exists()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(InvalidConfig, match="is a file"):
        open_local(str(tmp_path / "f"), LocalOptions())


def test_creates_win_over_deletes_that_prune_their_directory(root: Path) -> None:
    def work(worker: int) -> None:
        mine = open_local(str(root), LocalOptions(fsync=False))
        for n in range(150):
            key = f"deep/er/{worker}-{n}"
            written(mine.put(key, b"x", Create(), {}))
            assert mine.head(key).size == 1
            assert mine.delete_batch([key])[0].error is None

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert keys(open_local(str(root), LocalOptions())) == []


def test_a_directory_that_goes_while_it_is_looked_at_is_no_object(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others create and prune it all the time. Here it is there at the first question about it, and gone at the next."""
    store = open_local(str(root), LocalOptions(fsync=False))
    directory, real = root / "deep", os.makedirs
    looked: list[str] = []

    def make(path: str, *, exist_ok: bool = False) -> None:
        real(path, exist_ok=exist_ok)
        if path == str(directory):
            monkeypatch.setattr(os, "makedirs", real)
            raise FileExistsError(path)

    def remove_after(name: str) -> None:
        ask = getattr(os.path if name == "lexists" else os, name)

        def asked(path: str, *more: object, **named: object) -> object:
            found = ask(path, *more, **named)
            if str(path) == str(directory) and not looked:
                looked.append(name)
                directory.rmdir()
            return found

        monkeypatch.setattr(os.path if name == "lexists" else os, name, asked)

    monkeypatch.setattr(os, "makedirs", make)
    for name in ("lexists", "stat"):
        remove_after(name)
    written(store.put("deep/k", b"x", Create(), {}))
    assert looked and store.head("deep/k").size == 1


# ---- uploads and appends


def test_an_upload_appears_whole_and_takes_parts_again(store: Backend) -> None:
    upload = store.start_upload("k", Create(), {"writeid": "1"})
    upload.put_part(1, b"a" * 10)
    upload.put_part(2, b"b" * 3)
    upload.put_part(1, b"a" * 10)
    with pytest.raises(ValueError, match="in order"):
        upload.put_part(4, b"")
    with pytest.raises(NotFound):
        store.head("k")
    version = written(upload.complete())
    assert written(upload.complete()) == version
    assert read(store, "k") == b"a" * 10 + b"b" * 3
    assert store.head("k").metadata == {"writeid": "1"}
    with pytest.raises(UploadLost):
        upload.put_part(3, b"")


def test_a_conflicting_completion_may_be_tried_again_until_it_is_aborted(store: Backend, root: Path) -> None:
    upload = store.start_upload("k", Create(), {})
    upload.put_part(1, b"mine")
    theirs = written(store.put("k", b"theirs", Create(), {}))
    assert upload.complete() == PreconditionFailed(theirs)
    assert store.delete_batch(["k"])[0].error is None
    written(upload.complete())
    other = store.start_upload("o", Create(), {})
    other.abort()
    assert other.complete() == PreconditionFailed(None)


def test_an_upload_whose_file_was_taken_away_is_lost(store: Backend, root: Path) -> None:
    upload = store.start_upload("k", Create(), {})
    for path in hidden_files(root):
        path.unlink()
    with pytest.raises(UploadLost):
        upload.complete()


def test_append_adds_at_the_expected_size_only_and_keeps_metadata(store: Backend) -> None:
    assert store.append("k", b"x", 1) == PreconditionFailed(None)
    first = written(store.append("k", b"abc", 0))
    assert store.append("k", b"x", 0) == PreconditionFailed(first)
    written(store.append("k", b"def", 3))
    assert read(store, "k") == b"abcdef"
    written(store.put("m", b"", Create(), {"writeid": "1"}))
    written(store.append("m", b"1", 0))
    assert store.head("m").metadata == {"writeid": "1"}


# ---- many writers


def test_two_roots_over_one_tree_exclude_each_other(root: Path, options: LocalOptions) -> None:
    outer, inner = open_local(str(root), options), open_local(str(root / "t"), options)
    written(outer.put("t/n", b"0", Create(), {}))

    def count(store: Backend, key: str) -> None:
        for _ in range(100):
            while True:
                result = store.get(key, None, None)
                assert isinstance(result, GetResult)
                if isinstance(store.put(key, str(int(result.data) + 1).encode(), Update(result.meta.version), {}), Written):
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, [outer, inner, outer, inner], ["t/n", "n", "t/n", "n"]))
    assert read(outer, "t/n") == b"400"


def test_a_writer_that_holds_the_lock_for_too_long_makes_others_give_up_without_effect(root: Path) -> None:
    store = open_local(str(root), LocalOptions(fsync=False, lock_timeout_s=0.05))
    written(store.put("k", b"1", Create(), {}))
    fd = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(Throttled, match="held the directory"):
            store.put("k", b"2", Overwrite(), {})
        assert isinstance(store.delete_batch(["k"])[0].error, Throttled)
    finally:
        os.close(fd)
    assert read(store, "k") == b"1"
    assert hidden_files(root) == []


WRITER = textwrap.dedent(
    """
    import json, sys
    from fileio.contract import Create, GetResult, PreconditionFailed, Update, Written
    from fileio.local.backend import LocalOptions, open_local

    root, worker, attributes = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
    store = open_local(root, LocalOptions(fsync=False, attributes=attributes))
    body = (worker * 40_000).encode()
    for n in range(10_000):
        key = f"d{n % 3}/{worker}-{n}"
        outcome = store.put(key, body, Create(), {"writeid": f"{worker}-{n}"})
        assert isinstance(outcome, Written), outcome
        print(json.dumps(["create", key, outcome.version]), flush=True)
        upload = store.start_upload(f"u/{worker}-{n}", Create(), {"writeid": f"u{worker}-{n}"})
        for part in (1, 2, 3):
            upload.put_part(part, body)
        outcome = upload.complete()
        assert isinstance(outcome, Written), outcome
        print(json.dumps(["upload", f"u/{worker}-{n}", outcome.version]), flush=True)
        chain = store.get("chain", None, None)
        assert isinstance(chain, GetResult)
        links = json.loads(chain.data)
        links.append([f"{worker}-{n}", chain.meta.version])
        mine = store.put("chain", json.dumps(links).encode(), Update(chain.meta.version), {"writeid": f"{worker}-{n}"})
        if isinstance(mine, Written):
            print(json.dumps(["swap", f"{worker}-{n}", mine.version]), flush=True)
        else:
            assert isinstance(mine, PreconditionFailed), mine
    """
)


@pytest.mark.parametrize("attributes", [True, False])
def test_killed_writers_leave_every_acknowledged_write_whole_and_nothing_torn(
    root: Path, attributes: bool, record_property: object
) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    rng = random.Random(seed)
    store = open_local(str(root), LocalOptions(fsync=False, attributes=attributes))
    written(store.put("chain", b"[]", Create(), {"writeid": "first"}))
    acknowledged: list[list[str]] = []
    bodies: dict[str, bytes] = {}
    for round_number in range(6):
        workers = [chr(ord("a") + 3 * round_number + n) for n in range(3)]
        bodies |= {worker: (worker * 40_000).encode() for worker in workers}
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(root), worker, str(attributes)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
            )
            for worker in workers
        ]
        for process in processes:
            assert process.stdout is not None
            # Killed at a random write: after so many lines, somewhere in what follows.
            lines = [process.stdout.readline() for _ in range(rng.randint(3, 60))]
            os.kill(process.pid, signal.SIGKILL)
            lines += process.stdout.readlines()
            assert process.wait() == -signal.SIGKILL
            process.stdout.close()
            acknowledged += [json.loads(line) for line in lines if line.endswith("\n")]

    listed = {meta.key: meta for meta in _all(store)}
    for kind, name, version in acknowledged:
        if kind != "swap":
            assert listed[name].version == version
    for key, meta in listed.items():
        if key != "chain":
            name = key.rpartition("/")[2]
            expected = bodies[name[0]] * (3 if key.startswith("u/") else 1)
            assert read(store, key) == expected
            assert store.head(key).metadata == {"writeid": ("u" if key.startswith("u/") else "") + name}
            assert meta.size == len(expected)
    links = json.loads(read(store, "chain"))
    swaps = [(name, version) for kind, name, version in acknowledged if kind == "swap"]
    assert len({base for _, base in links}) == len(links)
    order = [name for name, _ in links]
    assert len(swaps) > 6 and set(order) >= {name for name, _ in swaps}
    following = dict(zip(order, [base for _, base in links][1:], strict=False))
    for name, version in swaps:
        assert following.get(name, store.head("chain").version) == version
    assert store.head("chain").metadata["writeid"] == order[-1]


def _all(store: Backend) -> Iterator[ObjectMeta]:
    cursor: str | None = None
    while True:
        page = store.list_page("", None, None, cursor, 1000)
        yield from page.objects
        cursor = page.cursor
        if cursor is None:
            return


# ---- errors of the system


def test_a_file_size_limit_is_a_full_store_and_leaves_nothing(store: Backend, root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreFull, match=r"There is no room to write .*big"):
            store.put("big", b"x" * 200_000, Create(), {})
        upload = store.start_upload("up", Create(), {})
        with pytest.raises(StoreFull):
            upload.put_part(1, b"x" * 200_000)
        upload.abort()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert keys(store) == []
    assert hidden_files(root) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_old_object_and_nothing_else(store: Backend, root: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    version = written(store.put("k", b"old", Create(), {"writeid": "1"}))

    def full(fd: int, data: memoryview, offset: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreFull, match=r"Nothing was written\."):
        store.put("k", b"new", Update(version), {})
    monkeypatch.undo()
    assert (read(store, "k"), store.head("k").version, store.head("k").metadata) == (b"old", version, {"writeid": "1"})
    written(store.put("k", b"new", Update(version), {}))


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.EACCES, PermissionDenied), (errno.EROFS, PermissionDenied), (errno.EXDEV, Unsupported), (errno.EPERM, Unsupported)],
)
def test_errors_of_link_are_typed_and_name_the_path(
    store: Backend, root: Path, code: int, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(expected, match=re.escape(str(root / "k"))):
        store.put("k", b"", Create(), {})
    assert keys(store) == []
    assert hidden_files(root) == []


@pytest.mark.parametrize(("mode", "failing"), [(Create(), "unlink"), (Overwrite(), "unlink"), (Overwrite(), "flock")])
def test_an_error_after_an_object_is_there_does_not_say_that_it_is_not(
    store: Backend, root: Path, mode: PutMode, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails is mounted read-only by the system, from one call to the next."""
    calls: dict[str, Callable[..., None]] = {"unlink": os.unlink, "flock": fcntl.flock}

    def fail(*args: Any, **kwargs: Any) -> None:
        if (root / "k").exists():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        calls[failing](*args, **kwargs)

    monkeypatch.setattr({"unlink": os, "flock": fcntl}[failing], failing, fail)
    outcome = store.put("k", b"new", mode, {})
    monkeypatch.undo()
    assert isinstance(outcome, (Written, OutcomeUnknown))
    assert read(store, "k") == b"new"


def test_the_error_of_a_signals_handler_is_none_of_the_system(store: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typed error would say that nothing was written."""
    link = os.link

    def interrupted(*args: Any, **kwargs: Any) -> None:
        link(*args, **kwargs)
        raise TimeoutError("the time that a handler allows is over")

    monkeypatch.setattr(os, "link", interrupted)
    with pytest.raises(TimeoutError, match="a handler allows"):
        store.put("k", b"new", Create(), {})
    assert read(store, "k") == b"new"


def test_every_name_on_the_way_to_an_object_is_forced_to_the_disk_and_none_twice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that keeps its promises takes milliseconds for each."""
    forced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        forced.append(re.sub(r"[0-9a-f]{16}$", "ID", os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), root)))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    store = open_local(str(root), LocalOptions(attributes=True))

    def put(key: str) -> list[str]:
        forced.clear()
        store.put(key, b"1", Create(), {})
        return list(forced)

    first = put("t/data/1/a")
    assert set(first) == {"..", ".", ".objcat", "t", "t/data", ".objcat/tmp/ID", "t/data/1"}
    assert first.index(".objcat/tmp/ID") < first.index("t/data/1") == len(first) - 1
    assert len(first) == len(set(first)) + 1  # the root has two new names: that of the unfinished writes, and then that of the table
    assert put("t/data/2/a") == [".objcat/tmp/ID", "t/data", "t/data/2"]
    assert put("t/data/2/b") == [".objcat/tmp/ID", "t/data/2"]
    assert put("t/log/1") == [".objcat/tmp/ID", "t", "t/log"]
    shutil.rmtree(root / "t")
    # What a file system gives a new directory may be the number of an old one; its parent's name is forced then with the directory itself.
    again = put("t/data/3/a")
    assert "t/data" in again and again[-1] == "t/data/3"

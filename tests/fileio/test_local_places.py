"""`file:` stores where people put them: names that are odd, links, roots that vanish, folders that others own or write to."""

from __future__ import annotations

import os
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from fileio.contract import Create, Overwrite, Update, Version, Written
from fileio.errors import BucketNotFound, FileIOError, InvalidConfig, InvalidKey, NotFound, PermissionDenied
from fileio.local import files
from fileio.local.files import SeenRoot, inodes_last, stat_of
from fileio.registry import open_store
from fileio.store import FileIO

NAMES = (
    *(
        "with space",
        " lead",
        "trail ",
        "per%20cent",
        "100%",
        "a#b",
        "a?b=c",
        "-rf",
        "~",
        "$HOME",
        "*",
        "[x]",
        "{a,b}",
        "a:b",
        "...",
        ".hidden",
    ),
    *("new\nline", "quote'\"", "back\\slash", "日本語😀", "x" * 255, "e\u0301", "\u00e9"),
)
NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user whom the modes of files concern: root's tests are nobody's meanwhile."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may look into, which pytest's are not."""
    directory = Path(tempfile.mkdtemp(prefix="objcat-place-"))
    directory.chmod(0o777)
    yield directory
    for level, _, _ in os.walk(directory):
        os.chmod(level, 0o700)
    shutil.rmtree(directory)


def written(store: FileIO, key: str = "d/k", data: bytes = b"v") -> None:
    assert isinstance(store.put(key, data), Written)


# ---- names


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_root_of_any_name_by_path_by_url_and_in_another_process(tmp_path: Path, name: str) -> None:
    root = tmp_path / name / "lake"
    store = open_store(str(root))
    written(store)
    assert (root / "d/k").read_bytes() == b"v"
    for same in (open_store(root), open_store("file://" + quote(str(root))), store.describe().open(), open_store(store.url)):
        assert list(same.list_keys()) == ["d/k"]
        assert same.child("d").get("k") == store.child("d").get("k")


def test_names_that_look_the_same_are_different_directories(tmp_path: Path) -> None:
    for form in ("NFC", "NFD"):
        written(open_store(tmp_path / unicodedata.normalize(form, "é")), form)
    assert list(open_store(tmp_path / "\u00e9").list_keys()) == ["NFC"]
    assert list(open_store(tmp_path / "e\u0301").list_keys()) == ["NFD"]


def test_a_relative_root_stays_where_it_was_when_the_process_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("lake")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    written(store)
    written(store.describe().open(), "e")
    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == [".objcat", "d", "e"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_path_that_is_too_long_for_the_system_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    root = tmp_path
    while len(os.fsencode(root)) < 3600:
        root /= "d" * 200
    store = open_store(root)
    written(store)
    assert store.get("d/k").data == b"v"  # type: ignore[union-attr]
    for call in (lambda: store.put("k" * 200 + "/" + "l" * 255, b""), lambda: store.get("k" * 200 + "/" + "l" * 255)):
        with pytest.raises(InvalidKey, match="too long"):
            call()
    assert list(store.list_keys()) == ["d/k"]
    assert list((root / ".objcat/tmp").iterdir()) == []


@pytest.mark.parametrize("below", ["", "/lake"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_root_that_can_be_no_directory_is_refused_at_once(tmp_path: Path, kind: str, below: str) -> None:
    if kind == "file":
        (tmp_path / "it").write_bytes(b"")
    else:
        (tmp_path / "it").symlink_to("nowhere")
    with pytest.raises(InvalidConfig, match=f"/it' is a {kind}"):
        open_store(f"{tmp_path}/it{below}")


# ---- links, and roots that vanish

CALLS: dict[str, Callable[[FileIO], object]] = {
    "put": lambda store: store.put("d/new", b"", Overwrite()),
    "create": lambda store: store.put("d/new", b"", Create()),
    "update": lambda store: store.put("d/k", b"", Update(Version("1"))),
    "append": lambda store: store.append("d/new", b"x", offset=0),
    "upload": lambda store: store.start_upload("d/new"),
    "copy": lambda store: store.copy("d/k", "d/new"),
    "get": lambda store: store.get("d/k"),
    "head": lambda store: store.head("d/k"),
    "list": lambda store: list(store.list_keys()),
}


def test_links_to_the_root_and_within_it_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real/elsewhere").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/t").symlink_to("elsewhere")
    store = open_store(tmp_path / "link")
    written(store, "t/k")
    assert (tmp_path / "real/elsewhere/k").read_bytes() == b"v"
    assert list(store.child("t").list_keys()) == list(store.child("elsewhere").list_keys()) == ["k"]
    # From above, a linked directory would show its objects a second time.
    assert list(store.list_keys()) == ["elsewhere/k"]
    assert store.delete(["t/k"])[0].error is None
    assert (tmp_path / "real/t").is_symlink() and list(store.list_keys()) == []


@pytest.mark.parametrize("how", ["link", "unmounted", "removed", "file"])
@pytest.mark.parametrize("call", CALLS)
def test_a_root_that_is_another_one_is_neither_read_nor_written(tmp_path: Path, how: str, call: str) -> None:
    """What was read before belongs to the other tree, and so would a commit."""
    root = tmp_path / "root"
    other = tmp_path / "other"
    written(open_store(other), data=b"other")
    if how == "link":
        written(open_store(tmp_path / "real"))
        root.symlink_to("real")
    store = open_store(root)
    written(store)
    upload = store.start_upload("d/new")
    assert list(store.list_keys()) == ["d/k"]
    match how:
        case "link":
            (tmp_path / "next").symlink_to("other")
            (tmp_path / "next").rename(root)
        case "unmounted":
            root.rename(tmp_path / "away")
            other.rename(root)
            other = root
        case "removed":
            shutil.rmtree(root)
        case "file":
            root.rename(tmp_path / "away")
            root.write_bytes(b"")
    for attempt in (lambda: CALLS[call](store), upload.complete):
        with pytest.raises(BucketNotFound, match="and open the store again"):
            attempt()
    assert store.delete(["d/k"])[0].error is not None
    if how == "removed":
        assert not root.exists()
    elif how != "file":
        assert list(open_store(other).list_keys()) == ["d/k"]
        assert open_store(other).get("d/k").data == b"other"  # type: ignore[union-attr]


def test_a_root_that_is_made_by_somebody_else_is_taken_as_it_is(tmp_path: Path) -> None:
    """Only what was there once can be another one."""
    store = open_store(tmp_path / "later")
    assert list(store.list_keys()) == []
    written(open_store(tmp_path / "later"))
    assert list(store.list_keys()) == ["d/k"]
    written(store, "d/l")


@pytest.mark.parametrize("moment", ["before it is there", "before it is known"])
def test_threads_that_see_a_new_root_at_once_see_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    root = tmp_path / "lake"
    seen = SeenRoot(str(root))

    def another_thread() -> None:
        monkeypatch.undo()
        root.mkdir(exist_ok=True)
        seen.check()

    def stat_and_wait(path: str) -> os.stat_result | None:
        found = stat_of(path)
        another_thread()
        return found

    def realpath_and_wait(path: str) -> str:
        another_thread()
        return os.path.realpath(path)

    if moment == "before it is there":
        monkeypatch.setattr(files, "stat_of", stat_and_wait)
    else:
        root.mkdir()
        monkeypatch.setattr(os.path, "realpath", realpath_and_wait)
    seen.check()
    seen.check()
    root.rename(tmp_path / "away")
    with pytest.raises(BucketNotFound, match="no longer exists"):
        seen.check()


MOUNTS = """\
22 1 0:40 / /lake rw,relatime shared:1 - overlay overlay rw,lowerdir=/l,upperdir=/u
23 1 254:0 / / rw,relatime - ext4 /dev/vda rw
24 1 0:41 / /mine rw - fuse.sshfs host: rw
"""


def test_where_the_kernel_renumbers_directories_the_root_is_still_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay over several filesystems does, when it has forgotten a directory; another root has another path or device."""
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert [inodes_last(os.makedev(*numbers), str(mounts)) for numbers in ((0, 40), (254, 0), (0, 41), (9, 9))] == [
        False,
        True,
        False,
        True,
    ]
    (tmp_path / "real").mkdir()
    (tmp_path / "lake").symlink_to("real")
    store = open_store(tmp_path / "lake")
    written(store)
    monkeypatch.setattr(files, "inodes_last", lambda _device: False)
    (tmp_path / "real").rename(tmp_path / "away")
    shutil.copytree(tmp_path / "away", tmp_path / "real")
    assert list(store.list_keys()) == ["d/k"]
    (tmp_path / "lake").unlink()
    (tmp_path / "lake").symlink_to("away")
    with pytest.raises(BucketNotFound, match="another directory than before"):
        store.get("d/k")


# ---- other people


def test_links_that_lead_nowhere_or_round_in_a_circle_are_not_objects(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    written(store)
    (tmp_path / "d/circle").symlink_to("circle")
    (tmp_path / "d/nowhere").symlink_to("nowhere at all")
    (tmp_path / "d/through").symlink_to("k/x")
    (tmp_path / "d/long").symlink_to("n" * 300)
    assert list(store.list_keys()) == ["d/k"]
    assert [page.prefixes for page in store.list(delimiter="/")] == [["d/"]]


def test_a_folder_that_may_only_be_read_is_read_and_says_why_it_is_not_written(place: Path) -> None:
    store = open_store(place / "lake")
    written(store)
    for level, _, _ in os.walk(place / "lake"):
        os.chmod(level, 0o555)
    with unprivileged():
        store = open_store(place / "lake")
        assert store.get("d/k").data == b"v"  # type: ignore[union-attr]
        assert list(store.list_keys()) == ["d/k"]
        for call in ("put", "create", "append", "upload", "copy"):
            with pytest.raises(PermissionDenied, match=r"Check its owner.*|Permission denied, .*/\.objcat/tmp/"):
                CALLS[call](store)
        assert isinstance(store.delete(["d/k"])[0].error, PermissionDenied)
        with pytest.raises(NotFound):
            store.get("d/other")


@pytest.mark.parametrize("hidden", ["lake", "lake/d"])
def test_what_cannot_be_looked_into_is_neither_empty_nor_absent(place: Path, hidden: str) -> None:
    written(open_store(place / "lake"))
    (place / hidden).chmod(0o600)
    with unprivileged():
        store = open_store(place / "lake")
        for call in ("get", "head", "list", "put", "create", "update", "append", "copy"):
            with pytest.raises(FileIOError) as raised:
                CALLS[call](store)
            assert isinstance(raised.value, PermissionDenied), call


def test_what_another_user_keeps_to_himself_is_named(place: Path) -> None:
    """With a umask of 077 the other user's unfinished writes are in a directory that nobody else may write to."""
    was = os.umask(0o077)
    try:
        written(open_store(place / "lake"))
    finally:
        os.umask(was)
    for name in ("lake", "lake/d"):
        (place / name).chmod(0o777)
    with unprivileged():
        store = open_store(place / "lake")
        with pytest.raises(PermissionDenied, match=r"lake/d/k"):
            store.get("d/k")
        with pytest.raises(PermissionDenied, match=r"lake/d/new.*Permission denied, '.*lake/\.objcat/tmp"):
            store.put("d/new", b"")

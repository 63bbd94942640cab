"""URLs, options and descriptions: what opens, what is refused and how it is said, and that no secret is ever shown."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fileio import Create, InvalidConfig, InvalidKey, Written, describe_store, open_store
from fileio.schemes import split_url

REPOSITORY = Path(__file__).parents[2]
SECRET = "hidden/value+of=mine"
SECRET_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "s3://bucket": {"access_key": "me", "secret_key": SECRET, "endpoint": "http://127.0.0.1:1", "region": "r"},
    "az://container": {"account": "me", "account_key": SECRET},
}


# ---- what opens


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "memory://default"),
        ("memory://one/a/b", "memory://one/a/b"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket", "gs://bucket"),
        ("az://container/a", "az://container/a"),
        ("S3://bucket/a", "s3://bucket/a"),
    ],
)
def test_urls_that_open_without_a_request(url: str, shown: str) -> None:
    options = {"gs": {"anonymous": "true"}, "az": {"account": "me"}, "s3": {"region": "r"}}.get(url[:2].lower(), {})
    with open_store(url, options) as store:
        assert store.url == shown


@pytest.mark.parametrize("name", ["lake", "späß 100%25 #1 ?x", "a%2fb"])
def test_a_bare_path_a_path_object_and_a_file_url_are_the_same_store(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = describe_store(name)
    assert first == describe_store(tmp_path / name) == describe_store(first.url) == describe_store(first.url.replace("file:///", "file:/"))
    for description in (first, first.child("d")):
        assert isinstance(open_store(description.url).put("k", b"1", Create()), Written)
    assert (tmp_path / name / "k").read_bytes() == (tmp_path / name / "d/k").read_bytes() == b"1"
    assert first.open().url == first.url


def test_a_bare_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert describe_store("~/lake") == describe_store(Path("~/lake")) == describe_store(tmp_path / "lake")
    assert describe_store("file:///~/lake").url == "file:///~/lake"


def test_a_path_with_a_colon_in_its_first_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = describe_store(tmp_path / "a:b" / "lake")
    assert describe_store("./a:b/lake") == describe_store(Path("a:b/lake")) == expected
    with pytest.raises(
        InvalidConfig, match=r"no storage backend for 'a:' in the URL 'a:b/lake' \(.*\)\. If it is a path, write './a:b/lake'\.$"
    ):
        describe_store("a:b/lake")
    with pytest.raises(InvalidConfig, match=r"\(did you mean 's3'\?\)\.$"):
        describe_store("s4://bucket")
    with pytest.raises(InvalidConfig, match=r"names no bucket\. Write s3://bucket/prefix\."):
        describe_store(Path("s3://bucket/lake"))


@pytest.mark.parametrize("place", [None, 5, b"lake", ["lake"]])
def test_what_is_no_place_at_all_is_one_sentence(place: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"is not the place of a store\. Pass a URL such as"):
        describe_store(place)
    with pytest.raises(InvalidConfig, match=r"The options of s3://bucket are a list\. Pass a dict"):
        describe_store("s3://bucket", ["region"])  # type: ignore[arg-type]


def test_a_description_opens_the_same_store_in_another_process(tmp_path: Path) -> None:
    description = describe_store(tmp_path / "lake", {"fsync": "no", "lock_timeout_s": "3"})
    assert description.options == {"fsync": False, "lock_timeout_s": 3.0}
    with description.open() as store:
        assert isinstance(store.put("k", b"from here", Create()), Written)
        with pytest.raises(TypeError, match="describe"):
            pickle.dumps(store)
        blob = pickle.dumps(store.describe())
    code = f"import pickle; store = pickle.loads({blob!r}).open(); print(store.read('k').decode(), store.describe().options)"
    assert _python(code).split("\n")[0] == "from here {'fsync': False, 'lock_timeout_s': 3.0}"


@pytest.mark.parametrize("url", ["memory://odd", "s3://bucket", "gs://bucket", "az://container"])
@pytest.mark.parametrize("prefix", ["a?b", "a#b", "100%", "a%3Fb", "späß 1", "city=Rome/x+y", "a\nb", "a:b@c"])
def test_a_prefix_of_any_name_opens_again(url: str, prefix: str) -> None:
    options = {"gs": {"anonymous": "true"}, "az": {"account": "me"}, "s3": {"region": "r"}}.get(url[:2], {})
    parent = describe_store(url, options)
    child = parent.child(prefix)
    assert split_url(child.url) == (parent.url.split("//")[1], prefix)
    with parent.open() as above, above.child(prefix) as below, child.open() as opened, open_store(opened.url, options) as again:
        assert below.url == opened.url == again.url == child.url
        if url.startswith("memory"):
            below.put("k", prefix.encode())
            assert again.read("k") == above.read(f"{prefix}/k") == prefix.encode()
    assert "city=Rome" not in prefix or child.url.endswith("/city=Rome/x+y")


def test_a_directory_whose_name_is_not_utf8_opens_again(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    description = describe_store(tmp_path / name)
    description.url.encode("ascii")
    assert isinstance(description.open().put("k", b"1", Create()), Written)
    assert open_store(description.open().url).read("k") == (tmp_path / name / "k").read_bytes()


def test_a_child_sees_only_its_keys() -> None:
    parent = open_store("memory://parent")
    parent.put("a/b/k", b"1")
    parent.put("other", b"2")
    assert list(parent.child("a/b").list_keys()) == ["k"]
    assert list(describe_store("memory://parent").child("a").open().list_keys()) == ["b/k"]
    with pytest.raises(InvalidKey):
        parent.child("../x")


# ---- what is refused


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("s4://bucket", {}, r"no storage backend for 's4:' in the URL 's4://bucket' \(did you mean 's3'\?\)\."),
        ("hdfs://node/x", {}, "valid ones are .*az, file, gs, memory, s3"),
        ("s3://", {}, r"names no bucket\. Write s3://bucket/prefix\."),
        ("s3:bucket", {}, "names no bucket"),
        ("s3://bucket/a?region=x", {}, "query or fragment"),
        ("s3://bucket/a#x", {}, "query or fragment"),
        ("s3://[bucket", {}, "is not a URL"),
        ("file:", {}, "names no directory"),
        ("file://host/path", {}, "names no directory"),
        ("", {}, "names no directory"),
        ("s3://bucket", {"regoin": "x"}, r"s3://bucket has no option 'regoin' \(did you mean 'region'\?\)\."),
        ("/lake", {"fsync": "perhaps"}, "For file:///lake, the option 'fsync' must be bool, but is 'perhaps'"),
        ("/lake", {"lock_timeout_s": "soon"}, "option 'lock_timeout_s' must be float"),
    ],
)
def test_a_wrong_url_or_option_is_one_sentence(url: str, options: Mapping[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said) as caught:
        open_store(url, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket/a//b", "s3://bucket/../b", "memory://m/./x", "s3://bucket/a%2F%2Fb", "s3://bucket/%FF"])
def test_a_prefix_that_is_no_key_is_refused(url: str) -> None:
    with pytest.raises(InvalidKey):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "sdk", "extra"), [("s3://bucket", "boto3", "s3"), ("gs://bucket", "google.cloud", "gcs"), ("az://bucket", "azure", "azure")]
)
def test_a_missing_sdk_is_one_sentence_that_names_the_extra(url: str, sdk: str, extra: str) -> None:
    code = f"""
    import sys
    sys.modules[{sdk!r}] = None
    from fileio import MissingDependency, open_store
    try:
        open_store({url!r}, {{"account": "me"}} if {url!r}.startswith("az") else {{}}).head("k")
    except MissingDependency as error:
        print(error)
    """
    assert f"pip install 'objcat[{extra}]'" in _python(textwrap.dedent(code))


# ---- secrets


@pytest.mark.parametrize("url", list(SECRET_OPTIONS))
def test_a_secret_is_carried_but_never_shown(url: str) -> None:
    description = describe_store(url, SECRET_OPTIONS[url])
    again = pickle.loads(pickle.dumps(description))
    assert again == description
    [secret] = [value for value in again.options.values() if hasattr(value, "reveal")]
    assert secret.reveal() == SECRET
    with description.open() as store:
        shown = [repr(x) + str(x) for x in (description, description.options, store, store.describe(), store.capabilities, secret)]
    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize("url", ["s3://me:hidden@bucket/a", "s3://me:hid/den@bucket", "s3://hidden@bucket", "x9://me:hidden@bucket"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    for open_or_describe in (open_store, describe_store):
        with pytest.raises(InvalidConfig) as caught:
            open_or_describe(url)
        assert "hid" not in "".join(traceback.format_exception_only(caught.value))


def test_a_secret_of_the_wrong_type_is_not_repeated() -> None:
    options: dict[str, Any] = {"secret_key": 12345678}
    with pytest.raises(InvalidConfig, match="'secret_key' must be secret") as caught:
        describe_store("s3://bucket", options)
    assert "12345678" not in str(caught.value)


# ---- schemes of third parties


PLUGIN = """
from dataclasses import dataclass
from fileio.memory import MemoryBackend

@dataclass(frozen=True, slots=True, kw_only=True)
class ShedOptions:
    colour: str = "red"

@dataclass(frozen=True)
class Shed:
    options_class: type = ShedOptions
    path_is_root: bool = False

    def open(self, root, options):
        return MemoryBackend(f"{root}-{options.colour}")

SHED = Shed()
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A directory with an installed distribution that registers the schemes `shed:` and, broken, `wreck:`."""
    (tmp_path / "shed_storage.py").write_text(PLUGIN)
    metadata = tmp_path / "shed_storage-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shed-storage\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[objcat.fileio]\nshed = shed_storage:SHED\nwreck = no_such_module:THING\n")
    return tmp_path


def test_a_third_party_registers_a_scheme_by_entry_point(plugin: Path) -> None:
    code = """
    import pickle
    from fileio import InvalidConfig, MissingDependency, describe_store
    description = pickle.loads(pickle.dumps(describe_store("shed://garden/tools", {"colour": "green"})))
    store = description.open()
    store.put("k", b"spade")
    print(store.read("k"), store.url)
    for url, options in (("shed://garden", {"color": "x"}), ("shad://garden", {}), ("wreck://x", {})):
        try:
            describe_store(url, options)
        except InvalidConfig as error:
            print(type(error).__name__, error)
    """
    lines = _python(textwrap.dedent(code), path=plugin).splitlines()
    assert lines[0] == "b'spade' memory://garden-green/tools"
    assert lines[1] == "InvalidConfig shed://garden has no option 'color' (did you mean 'colour'?)."
    assert lines[2].endswith("(did you mean 'shed'?).")
    assert lines[3].startswith("MissingDependency The storage backend 'no_such_module:THING' for 'wreck:' cannot be imported")


def _python(code: str, *, path: Path | None = None) -> str:
    """The output of a fresh interpreter; `path` is put on its search path."""
    prelude = "" if path is None else f"import sys; sys.path.insert(0, {str(path)!r})\n"
    done = subprocess.run([sys.executable, "-c", prelude + code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

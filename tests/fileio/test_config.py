"""Options, secrets, URLs and descriptions: bad input gets one sentence that names the next step, and no secret is ever shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fileio.contract import check_key
from fileio.errors import BucketNotFound, InvalidConfig, InvalidKey, NotFound, Unsupported
from fileio.memory import MemoryBackend, drop_memory
from fileio.options import Secret, nearest, parse_options, redact
from fileio.registry import describe_store, open_store
from fileio.schemes import split_url
from fileio.store import FileIO, StoreDescription
from fileio.testing import FakeEnv


@dataclass(frozen=True)
class Options:
    region: str
    endpoint: str | None = None
    attempts: int = 3
    timeout_s: float = 1.5
    path_style: bool = False
    secret_key: Secret | None = None


# ---- options


def test_options_are_converted_from_text() -> None:
    given = {"region": "eu", "attempts": "7", "timeout_s": "2", "path_style": "True", "secret_key": "hush"}
    parsed = parse_options(Options, given, where="s3://b")
    assert parsed == Options("eu", None, 7, 2.0, True, Secret("hush"))
    assert parse_options(Options, {"region": "eu", "timeout_s": 2, "endpoint": None}, where="s3://b") == Options("eu", timeout_s=2.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"region": "eu", "endpint": "x"}, "no option 'endpint' (did you mean 'endpoint'?)."),
        ({"region": "eu", "zzz": "x"}, "valid ones are attempts, endpoint"),
        ({}, "needs the option 'region'"),
        ({"region": "eu", "attempts": "many"}, "'attempts' must be int, but is 'many'"),
        ({"region": "eu", "attempts": True}, "'attempts' must be int"),
        ({"region": "eu", "attempts": 1.5}, "'attempts' must be int"),
        ({"region": "eu", "timeout_s": "soon"}, "'timeout_s' must be float"),
        ({"region": "eu", "path_style": "maybe"}, "'path_style' must be bool, but is 'maybe'"),
        ({"region": 5}, "'region' must be str, but is 5"),
        ({"region": None}, "'region' must be str, but is None"),
        ({"region": Secret("hush")}, "'region' must be str, but is Secret"),
        ({"region": "eu", "secret_key": 12345}, "'secret_key' must be secret, but is a secret value"),
    ],
)
def test_a_wrong_option_is_named_with_the_next_step(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_options(Options, given, where="s3://bucket")
    assert message in str(caught.value)
    assert "s3://bucket" in str(caught.value)
    assert "hush" not in str(caught.value) and "12345" not in str(caught.value)


def test_nearest() -> None:
    assert nearest("endpoit", ["region", "endpoint"]) == "did you mean 'endpoint'?"
    assert nearest("q", ["b", "a"]) == "valid ones are a, b"
    assert nearest("q", map(str, range(1000, 5000))).endswith(", 1028, 1029 and 3970 more")


# ---- secrets


def test_a_secret_shows_itself_only_when_asked_and_pickles() -> None:
    secret = Secret("hush")
    for text in (
        repr(secret),
        str(secret),
        f"{secret}",
        repr(Options("eu", secret_key=secret)),
        repr(StoreDescription("s3://b", {"k": secret})),
    ):
        assert "hush" not in text
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert pickle.loads(pickle.dumps(secret)).reveal() == "hush"
    assert len({secret, Secret("hush"), Secret("other")}) == 2
    assert secret != "hush"


@pytest.mark.parametrize(
    "text",
    [
        "GET https://a.example/c/k?sv=2020&sig=HUSH%3D&se=1",
        "X-Amz-Signature=HUSH&X-Amz-Credential=HUSH/20200101",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=HUSH==;EndpointSuffix=x",
        "SharedAccessSignature=HUSH;BlobEndpoint=x",
        "Authorization: Bearer HUSH.HUSH.HUSH",
        "Authorization: SharedKey account:HUSH=",
        "proxy http://user:HUSH@proxy.example:3128 failed",
        "access_token: HUSH",
        "password=HUSH",
        "the key HUSH itself",
    ],
)
def test_what_looks_like_a_secret_is_cut_from_texts(text: str) -> None:
    shown = redact(text, [Secret("the key HUSH"), None, Secret("")])
    assert "HUSH" not in shown and "***" in shown


def test_other_text_is_left_alone() -> None:
    text = "NoSuchKey: the key 'slots/1' of bucket b does not exist (request 7f3a)"
    assert redact(text, [Secret("hush")]) == text


# ---- URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", ("bucket", "")),
        ("s3://bucket/", ("bucket", "")),
        ("s3://bucket/a/b/", ("bucket", "a/b")),
        ("S3://bucket/a", ("bucket", "a")),
        ("gs://bucket_1.x/a%20b", ("bucket_1.x", "a b")),
        ("gs://bucket_1.x/a%2520b", ("bucket_1.x", "a%20b")),
        ("memory:", ("default", "")),
        ("memory://name/a", ("name", "a")),
        ("file:/tmp/x", ("/tmp/x", "")),
        ("file:///tmp/x%20y", ("/tmp/x y", "")),
        ("file://localhost/tmp/x", ("/tmp/x", "")),
        ("/tmp/x%20y", ("/tmp/x%20y", "")),
        ("relative/dir", ("relative/dir", "")),
    ],
)
def test_urls_are_split(url: str, expected: tuple[str, str]) -> None:
    assert split_url(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s4://bucket", "no storage backend for 's4:'"),
        ("s4://bucket", "did you mean 's3'?"),
        ("http://example/x", "valid ones are az, file, gs, memory, s3"),
        ("s3://", "names no bucket. Write s3://bucket/prefix."),
        ("s3:///key", "names no bucket"),
        ("s3://key:HUSH@bucket/x", "Pass them as options instead."),
        ("s3://bucket/x?token=HUSH", "Pass these settings as options instead."),
        ("s3://bucket/x#HUSH", "Pass these settings as options instead."),
        ("file:", "names no directory"),
        ("file://host/x", "names no directory"),
    ],
)
def test_a_wrong_url_is_named_with_the_next_step(url: str, message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        open_store(url)
    assert message in str(caught.value)
    assert "HUSH" not in str(caught.value)


def test_a_prefix_must_be_a_key() -> None:
    with pytest.raises(InvalidKey):
        open_store("memory://x/a/../b")
    with pytest.raises(InvalidKey):
        describe_store("memory://x").child("/a")
    with pytest.raises(InvalidKey, match="1 to 900 bytes"):
        check_key("")


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "a%20b", "question?", "hash#", "Zürich"])
def test_a_directory_of_any_name_opens_again_from_its_description(tmp_path: Path, name: str) -> None:
    with open_store(tmp_path / name) as store:
        store.put("key", b"here")
        with pickle.loads(pickle.dumps(store.describe())).open() as other:
            assert other.read("key") == b"here"
        with store.describe().child(f"below {name}").open() as below:
            below.put("key", b"there")
        assert store.read(f"below {name}/key") == b"there"
    assert (tmp_path / name).is_dir() and [entry.name for entry in tmp_path.iterdir()] == [name]


# ---- memory


def test_a_name_is_one_store_within_a_process() -> None:
    open_store("memory://shared").put("a", b"1")
    assert open_store("memory://shared").read("a") == b"1"
    open_store("memory://shared").describe().child("x").open().put("y", b"2")
    assert open_store("memory://shared").read("x/y") == b"2"
    assert not open_store("memory://other").exists("a")


def test_a_dropped_store_says_so_and_begins_empty() -> None:
    before = open_store("memory://dropped-store")
    before.put("a", b"1")
    upload = before.start_upload("b")
    drop_memory("dropped-store")
    drop_memory("dropped-store")
    for call in (lambda: before.read("a"), lambda: before.put("a", b"2"), lambda: list(before.list()), lambda: upload.put_part(1, b"")):
        with pytest.raises(BucketNotFound, match=r"was dropped\. Open it again"):
            call()
    with pytest.raises(NotFound):
        open_store("memory://dropped-store").read("a")


def test_another_process_gets_an_error_instead_of_an_empty_store(tmp_path: Path) -> None:
    store = open_store("memory://mine/prefix")
    store.put("a", b"1")
    (tmp_path / "description").write_bytes(pickle.dumps(store.describe()))
    script = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb')).open()"
    ran = subprocess.run([sys.executable, "-c", script, tmp_path / "description"], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode != 0
    assert "InvalidConfig: memory://mine is in another process" in ran.stderr
    assert "Use file:, s3:, gs: or az:" in ran.stderr


def test_a_store_made_by_hand_has_no_description() -> None:
    with pytest.raises(Unsupported, match=r"Use fileio\.open_store"):
        FileIO(MemoryBackend(), env=FakeEnv()).describe()


def test_memory_has_no_options() -> None:
    with pytest.raises(InvalidConfig, match="no option 'region'"):
        open_store("memory://x", {"region": "eu"})

"""URIs as engines write them, and locations that Iceberg's readers cannot find."""

from __future__ import annotations

import sys

import pytest

import fileio
from fileio.errors import MissingDependency
from fileio.memory import MemoryBackend
from fileio.options import Secret
from fileio.store import FileIO
from objcat.errors import InvalidInput
from objcat.mirror.iceberg.location import root_of
from objcat.mirror.iceberg.mirror import IcebergMirror
from objcat.mirror.model import MirrorFolder, MirrorHeld
from tests.mirror.iceberg.worlds import World

KEY = Secret("a2V5")
CASES = [
    ("file:///tmp/a%20b/%C3%A9%25", {}, "file:///tmp/a b/é%/"),
    ("s3://bucket/lake/t", {"region": "eu-west-1"}, "s3://bucket/lake/t/"),
    ("s3://bucket", {"region": "eu-west-1"}, "s3://bucket/"),
    ("gs://bucket/lake/t", {"endpoint": "http://127.0.0.1:1", "anonymous": True}, "gs://bucket/lake/t/"),
    ("az://box/lake/t", {"account": "shop", "account_key": KEY}, "abfss://box@shop.dfs.core.windows.net/lake/t/"),
    ("az://box", {"account": "shop", "account_key": KEY}, "abfss://box@shop.dfs.core.windows.net/"),
    (
        "az://box/t",
        {"endpoint": "https://shop.blob.core.windows.net", "account_key": KEY},
        "abfss://box@shop.dfs.core.windows.net/t/",
    ),
    (
        "az://box/t",
        {"connection_string": Secret("DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=a2V5;EndpointSuffix=core.windows.net")},
        "abfss://box@shop.dfs.core.windows.net/t/",
    ),
]


@pytest.mark.parametrize(("url", "options", "uri"), CASES)
def test_uris_are_those_of_engines(url: str, options: dict[str, object], uri: str):
    with fileio.open_store(url, options) as store:
        assert root_of(store) == uri


def test_the_account_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "shop")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    with fileio.open_store("az://box/t") as store:
        assert root_of(store) == "abfss://box@shop.dfs.core.windows.net/t/"


def test_a_store_of_a_test_has_its_own_uri():
    assert root_of(FileIO(MemoryBackend("somewhere"))) == "memory://somewhere/"


@pytest.mark.parametrize("sign", ["?", "#"])
def test_a_location_that_readers_cut_off_holds_the_mirror(sign: str):
    world = World(f"memory://cut/a%{ord(sign):x}b")
    change = world.restart()
    with pytest.raises(MirrorHeld, match="cut a path off"):
        world.mirror().write(change)


def test_only_two_format_versions_are_known():
    folder = MirrorFolder(FileIO(MemoryBackend("versions")), "", "t", "t")
    with pytest.raises(InvalidInput, match="format version 2 or 3, not 1"):
        IcebergMirror(folder, format_version=1)


@pytest.mark.parametrize(("module", "version"), [("fastavro", 2), ("pyroaring", 3)])
def test_a_missing_library_is_named_with_its_extra(module: str, version: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, module, None)
    world = World(f"memory://without-{module}")
    change = world.step(add=[world.file(world.rows(1, 2), masked=[0])], restarts=True)
    with pytest.raises(MissingDependency, match=rf"{module}.* pip install 'objcat\[mirrors\]'"):
        world.mirror(format_version=version).write(change)

"""The configuration of an ingest: what it takes, what it refuses, and that no message has a secret."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

from fileio.errors import InvalidConfig
from objcat.ingest.config import IngestConfig, parse_config, read_config
from objcat.ingest.folder.settings import folder_settings
from objcat.ingest.model import SourceColumn, SourceTable
from objcat.ingest.postgres.settings import PostgresSettings, postgres_settings
from objcat.ingest.routes import Router

TEXT = """
[lake]
url = "lake"

[source]
name = "shop"
kind = "postgres"
connection = "postgresql://me:${PASSWORD}@db/shop"

[[route]]
tables = 'public\\.(.*)'
to = 'shop.\\1'
"""
ENVIRONMENT = {"PASSWORD": "hunter2-secret"}


def parsed(text: str) -> IngestConfig:
    return parse_config(tomllib.loads(text), path="ingest.toml", environment=ENVIRONMENT)


def table(name: str, *columns: str, key: tuple[str, ...] = ("id",)) -> SourceTable:
    return SourceTable(name=name, columns=tuple(SourceColumn(name=one, type=pa.string()) for one in ("id", *columns)), key=key)


def test_a_small_configuration() -> None:
    config = parsed(TEXT)
    assert config.shared_log == "shop" and config.profiles["database"].batch_s == 0.5
    assert postgres_settings(config).slot == "objcat_shop"
    assert config.settings(PostgresSettings).connection == "postgresql://me:hunter2-secret@db/shop"


def test_secrets_are_in_no_text() -> None:
    config = parsed(TEXT)
    assert "hunter2" not in repr(config) and "hunter2" not in repr(postgres_settings(config))
    assert config.hide("refused for hunter2-secret") == "refused for ***"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT + "[run]\nchunk_row = 1", "did you mean 'chunk_rows'"),
        (TEXT + "[rum]\nchunk_rows = 1", "did you mean 'run'"),
        (TEXT + 'delete = "hard"', "did you mean 'deletes'"),
        (TEXT + 'deletes = "hardly"', "Invalid enum value"),
        (TEXT + 'profile = "databse"', "did you mean 'database'"),
        (TEXT + 'mask = { email = "hash" }', "mask_secret"),
        (TEXT + 'optional = ["email"]', "neither in drop nor in mask"),
        (TEXT + 'key = ["id"]\nmask = { id = "null" }', "masks the key column 'id'"),
        (TEXT + 'drop = ["a"]\nmask = { a = "null" }', "drops 'a'"),
        (TEXT.replace("\\\\1'", "\\\\2'").replace("shop.\\1", "shop.\\2"), "names a group"),
        (TEXT.replace("(.*)", "(.*"), "not a regular expression"),
        (TEXT.replace('kind = "postgres"', ""), "has no kind"),
        (TEXT.replace('name = "shop"', 'name = "a b"'), "has no name"),
        (TEXT.replace("${PASSWORD}", "${PASWORD}"), "no such variable"),
        (TEXT + "[run]\nqueue_bytes = 1", "1,024 or more"),
        (TEXT + "[profile.fast]\nbatch_rows = 0", "batch_rows has to be 1"),
        ("[lake]\nurl = 'x'", r"has no \[source\]"),
        (TEXT.replace("[[route]]", "[route]"), r"\[route\] in single brackets"),
        (TEXT + "[rum]\nchunk_rows = 1", r"did you mean 'run'\?$"),
        (TEXT + "[zzzz]\nx = 1", "valid ones are dead_letters, lake, profile, route, run, source\\.$"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said) as refused:
        parsed(text)
    assert "hunter2" not in str(refused.value)


def test_settings_of_a_source_are_checked_by_name() -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'slot'"):
        postgres_settings(parsed(TEXT.replace("connection =", 'slott = "a"\nconnection =')))
    with pytest.raises(InvalidConfig, match="lower-case"):
        postgres_settings(parsed(TEXT.replace("connection =", 'slot = "A-b"\nconnection =')))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"There is no file .*none\.toml"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "bad.toml").write_text("[lake")
    with pytest.raises(InvalidConfig, match="not valid TOML"):
        read_config(tmp_path / "bad.toml")


def test_the_first_route_that_matches_counts() -> None:
    skips = "\n[[route]]\ntables = '.*\\.audit'\nskip = true\n"
    router = Router(parsed(TEXT.replace("[[route]]", f"{skips}\n[[route]]", 1)))
    routed = router.route_all([table("public.items"), table("public.audit"), table("other.items")])
    assert {name: one.name for name, one in routed.items()} == {"public.items": "shop.items"}
    assert not router.follows("public.audit") and router.follows("public.items")


def test_two_tables_for_one_are_refused() -> None:
    router = Router(parsed(TEXT.replace("'public\\.(.*)'", "'.*\\.(.*)'")))
    both = [table("public.items"), table("other.items")]
    for first in ("public.items", "other.items"):
        problems = {name: one.problem for name, one in router.route_all(both, first={first}).items()}
        (other,) = problems.keys() - {first}
        assert problems[first] is None and f"writes {other} to 'shop.items', to which {first} is written too" in str(problems[other])


@pytest.mark.parametrize("setting", ['mask = { e_mail = "null" }', 'drop = ["e_mail"]', 'key = ["e_mail"]'])
def test_columns_that_a_table_does_not_have_are_refused(setting: str) -> None:
    routed = Router(parsed(TEXT + setting)).route(table("public.items", "email"))
    assert routed is not None and "'e_mail'" in str(routed.problem) and "did you mean 'email'?" in str(routed.problem)
    assert "Nothing of the table is written." in str(routed.problem) and "resnapshot ingest.toml public.items`" in str(routed.problem)
    if "key" not in setting:
        routed = Router(parsed(TEXT + setting + '\noptional = ["e_mail"]')).route(table("public.items", "email"))
        assert routed is not None and routed.problem is None


def test_a_name_that_no_table_of_the_lake_can_have_is_a_problem_of_its_table() -> None:
    routed = Router(parsed(TEXT)).route(table("public.my items"))
    assert routed is not None and "'shop.my items' is not a table name" in str(routed.problem)


def test_a_relative_path_counts_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another directory would be another lake, which is read from the beginning without a word."""
    (tmp_path / "conf").mkdir()
    path = tmp_path / "conf" / "shop.toml"
    path.write_text(TEXT.replace('kind = "postgres"', 'kind = "folder"\nurl = "../landing"').replace("connection", "# connection"))
    for where, name in ((tmp_path, "conf/shop.toml"), (tmp_path / "conf", "shop.toml")):
        monkeypatch.chdir(where)
        config = read_config(name, environment=ENVIRONMENT)
        assert config.lake.url == str(tmp_path / "conf" / "lake")
        assert folder_settings(config)[0].url == str(tmp_path / "conf" / "../landing")
    for url in ("s3://bucket/lake", "/srv/lake", "~/lake", "file:/srv/lake", "memory:"):
        assert parsed(TEXT.replace('url = "lake"', f'url = "{url}"')).lake.url == url

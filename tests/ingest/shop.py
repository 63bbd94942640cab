"""`Shop`: a database of PostgreSQL, the configuration of its ingest, and the comparison of both sides row by row."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow.compute as pc

import objcat
from devkit.databases import PostgresServer
from fileio.env import Env, default_env
from objcat.errors import InvalidInput
from objcat.ingest.config import IngestConfig, parse_config
from objcat.ingest.handover import IngestState
from objcat.ingest.model import ChangeSource
from objcat.ingest.routes import Router
from objcat.ingest.runner import Ingest
from objcat.ingest.sources import open_source
from tests.ingest.ended import end_after

CONFIG = """
[lake]
url = "{lake}"

[source]
name = "shop"
kind = "postgres"
connection = "${{SHOP}}"
slot = "{slot}"

[[route]]
tables = "public\\\\.(.*)"
to = "shop.\\\\1"
{route}

[profile.database]
batch_s = 0.05
index = "bucket(2)"
properties = {{}}

[run]
chunk_rows = {chunk_rows}
discover_s = 0.2
beat_s = 0.5
{run}
"""


class Shop:
    """A database of its own on a shared server.

    Args:
        server: the server.
        folder: for lake and configuration.
        lake: the folder of the lake; below `folder` when None.
    """

    has_snapshots = True
    """Whether a table can be read again."""

    def __init__(self, server: PostgresServer, folder: Path, lake: Path | None = None) -> None:
        self.server = server
        self.name = f"shop_{secrets.token_hex(4)}"
        self.secret = "keyed"
        self.lake_path = lake or folder / "lake"
        self.config_path = folder / "ingest.toml"
        self._admin = psycopg2.connect(server.connection())
        self._admin.autocommit = True
        with self._admin.cursor() as cursor:
            cursor.execute(f"create database {self.name}")
        self.db = psycopg2.connect(server.connection(self.name))
        self.db.autocommit = True
        self.configure()

    @classmethod
    def again(cls, before: Shop) -> Shop:
        """The same shop after its server was started again."""
        made = cls.__new__(cls)
        made.__dict__.update(before.__dict__)
        made._admin = psycopg2.connect(before.server.connection())
        made.db = psycopg2.connect(before.server.connection(before.name))
        made._admin.autocommit = made.db.autocommit = True
        return made

    @property
    def slot(self) -> str:
        return f"objcat_{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """What the configuration reads from the environment."""
        return {"SHOP": self.server.connection(self.name), "MASK_SECRET": self.secret}

    @property
    def source_url(self) -> str:
        """Where the load connects."""
        return self.server.connection(self.name)

    def source_name(self, table: str) -> str:
        """The name that a table has at the source."""
        return f"public.{table}"

    @property
    def lake(self) -> objcat.Lake:
        return objcat.connect(str(self.lake_path))

    def configure(self, *, route: str = "", run: str = "", chunk_rows: int = 3, more: str = "") -> None:
        """Write the configuration."""
        text = CONFIG.format(lake=self.lake_path, slot=self.slot, route=route, run=run, chunk_rows=chunk_rows)
        self.config_path.write_text(text + more)

    def config(self) -> IngestConfig:
        import tomllib

        return parse_config(tomllib.loads(self.config_path.read_text()), path=str(self.config_path), environment=self.environment)

    def sql(self, text: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run statements, one transaction each."""
        with self.db.cursor() as cursor:
            cursor.execute(text, arguments or None)
            return list(cursor.fetchall()) if cursor.description else []

    def transaction(self, *statements: str) -> None:
        """Run statements in one transaction."""
        self.sql(f"begin; {'; '.join(statements)}; commit")

    def begin(self) -> None:
        """Let what is between the source and the ingest begin. Here nothing is."""

    def settle(self) -> None:
        """Wait until what is between the source and the ingest has all that was committed. Here nothing is."""

    def ingest(self, opener: Callable[[IngestConfig, Router, Env], ChangeSource] = open_source) -> Ingest:
        return Ingest(self.config(), self.lake, opener, env=default_env())

    def once(self, **options: Any) -> IngestState:
        """Bring the lake up to the source."""
        return self.ingest(**options).once()

    def hang(self, connection: Any, statement: str) -> None:
        """Let a session hang in the commit of a statement: it is in the log, and its transaction is not visible yet."""
        with connection.cursor() as cursor:
            cursor.execute("set synchronous_commit = on")
            connection.commit()
            cursor.execute("select pg_backend_pid()")
            self._hanging = cursor.fetchone()[0]
            cursor.execute(statement)
        self._thread = threading.Thread(target=connection.commit)
        self._thread.start()
        self._wait("select wait_event = 'SyncRep' from pg_stat_activity where pid = %s")

    def let_go(self) -> None:
        """Let that session go on: its transaction becomes visible."""
        self.sql("select pg_cancel_backend(%s)", self._hanging)

    def release(self, connection: Any) -> None:
        """Let it go on, and wait for its end."""
        self.let_go()
        self._thread.join()
        connection.close()

    def _wait(self, question: str) -> None:
        with self._admin.cursor() as cursor:
            for _ in range(1000):
                cursor.execute(question, (self._hanging,))
                if (found := cursor.fetchone()) and found[0]:
                    return
                cursor.execute("select pg_sleep(0.01)")
        raise AssertionError("the session does not wait for a standby")

    def killed_after_commits(self, commits: int) -> None:
        """Run the ingest to its end, or until the process ends right after so many commits of the lake."""
        process = multiprocessing.get_context("fork").Process(target=end_after, args=(self.once, commits))
        process.start()
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL), process.exitcode

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of the lake."""
        found: list[dict[str, Any]] = self.lake.table(f"shop.{table}").scan().to_arrow().to_pylist()
        return found

    def source_rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of the source, by the types that the lake has for them."""
        columns = self.sql(
            "select attname, format_type(atttypid, atttypmod), (select typcategory from pg_type where oid = atttypid) from pg_attribute "
            "where attrelid = %s::regclass and attnum > 0 and not attisdropped and attgenerated = '' order by attnum",
            table,
        )
        self.sql("set timezone = 'UTC'")
        listed = ", ".join(f'"{name}"' if _is_plain(kind, category) else f'"{name}"::text' for name, kind, category in columns)
        return [
            {name: _plain(value) for (name, _, _), value in zip(columns, row, strict=True)}
            for row in self.sql(f"select {listed} from {table}")
        ]

    def differences(self, table: str, key: Iterable[str] = ("id",)) -> list[str]:
        """What differs between both sides, in words."""
        names = list(key)
        there = {tuple(row[name] for name in names): row for row in self.source_rows(table)}
        here = {tuple(row[name] for name in names): row for row in self.rows(table)}
        found = [f"{table} {one}: only at the source" for one in there.keys() - here.keys()]
        found += [f"{table} {one}: only in the lake" for one in here.keys() - there.keys()]
        for one in there.keys() & here.keys():
            found += [
                f"{table} {one} {name}: {_short(value)} at the source, {_short(here[one].get(name))} in the lake"
                for name, value in there[one].items()
                if here[one].get(name) != value
            ]
        return found

    def was_there(self, table: str, slot: int) -> bool:
        """Whether the lake had a table at a slot. A source without snapshots makes a table when its first row comes."""
        try:
            self.lake.table(f"shop.{table}").scan(columns=["id"], as_of=slot)
        except InvalidInput:
            return False
        return True

    def sums(self, tables: Mapping[str, str], slots: Iterable[int]) -> dict[int, Decimal]:
        """The sum of a column over tables at each slot."""
        opened = {name: self.lake.table(f"shop.{name}") for name in tables}
        found = {}
        for slot in slots:
            total = Decimal(0)
            for name, column in tables.items():
                total += pc.sum(opened[name].scan(columns=[column], as_of=slot).to_arrow()[column]).as_py() or 0
            found[slot] = total
        return found

    def close(self) -> None:
        """Drop the slot and the database."""
        self.db.close()
        with self._admin.cursor() as cursor:
            cursor.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s and active", (self.slot,)
            )
            cursor.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (self.name,))
            for _ in range(100):
                cursor.execute("select count(*) from pg_replication_slots where slot_name = %s and active", (self.slot,))
                if not (found := cursor.fetchone()) or not found[0]:
                    break
                cursor.execute("select pg_sleep(0.05)")
            cursor.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", (self.slot,))
            cursor.execute(f"drop database if exists {self.name} with (force)")
        self._admin.close()


def _is_plain(kind: str, category: str) -> bool:
    return (category in "BNDA" and kind != "money") or kind == "bytea"


def _plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, (dict,)):
        return json.dumps(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:60]}..."

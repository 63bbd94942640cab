"""`MariaShop`: a database of MariaDB, the configuration of its ingest, and the comparison of both sides row by row."""

from __future__ import annotations

import datetime as dt
import secrets
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT, FIELD_TYPE

from devkit.databases import DatabaseServer
from tests.ingest.shop import Shop

CONFIG = """
[lake]
url = "{lake}"

[source]
name = "shop"
kind = "mariadb"
connection = "${{SHOP}}"
server_id = {server_id}

[[route]]
tables = "{name}\\\\.(copy|gone)"
skip = true

[[route]]
tables = "{name}\\\\.(.*)"
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


class MariaShop(Shop):
    """A database of its own on a shared server.

    Args:
        server: the server.
        folder: for lake and configuration.
    """

    def __init__(self, server: DatabaseServer, folder: Path) -> None:
        self.maria = server
        self.name = f"shop_{secrets.token_hex(4)}"
        self.lake_path = folder / "lake"
        self.config_path = folder / "ingest.toml"
        self.connection = self.connect("")
        self.sql(f"create database {self.name} character set utf8mb4; use {self.name}; set time_zone = '+00:00'")
        self.configure()

    def connect(self, database: str) -> Any:
        """A session of its own."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.maria.port,
            user="objcat",
            database=database or None,
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
        )

    @property
    def environment(self) -> dict[str, str]:
        """What the configuration reads from the environment."""
        return {"SHOP": self.maria.connection(), "MASK_SECRET": "keyed"}

    @property
    def source_url(self) -> str:
        """Where the load connects."""
        return self.maria.connection(self.name)

    def configure(self, *, route: str = "", run: str = "", chunk_rows: int = 3, more: str = "") -> None:
        """Write the configuration."""
        server_id = 2**31 + int(self.name[-8:], 16) // 2
        text = CONFIG.format(lake=self.lake_path, name=self.name, server_id=server_id, route=route, run=run, chunk_rows=chunk_rows)
        self.config_path.write_text(text + more)

    def source_name(self, table: str) -> str:
        """The name that a table has at the source."""
        return f"{self.name}.{table}"

    def sql(self, text: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run statements, one transaction each. Returns the rows of the last one that has any."""
        with self.connection.cursor() as cursor:
            cursor.execute(text, arguments or None)
            rows = list(cursor.fetchall())
            while cursor.nextset():
                rows = list(cursor.fetchall()) or rows
            return rows

    def source_rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of the source, by the types that the lake has for them."""
        with self.connection.cursor() as cursor:
            cursor.execute(f"select * from {table} limit 0")
            columns = [(one[0], one[1]) for one in cursor.description]
            # A query rounds what is a float.
            listed = ", ".join(f"`{name}` + 0e0" if kind == FIELD_TYPE.FLOAT else f"`{name}`" for name, kind in columns)
            cursor.execute(f"select {listed} from {table}")
            return [{name: _plain(value, kind) for (name, kind), value in zip(columns, row, strict=True)} for row in cursor.fetchall()]

    def close(self) -> None:
        """Drop the database."""
        self.sql(f"drop database {self.name}")
        self.connection.close()


def _plain(value: Any, kind: int) -> Any:
    if kind == FIELD_TYPE.TIMESTAMP and value is not None:
        return value.replace(tzinfo=dt.UTC)
    if kind == FIELD_TYPE.BIT and value is not None:
        return value != b"\0"
    return value

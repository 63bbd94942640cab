"""`Landing`: a folder with files, the configuration of its ingest, and a lake. It knows what its files come to."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from fileio.env import Env, default_env
from objcat.ingest.config import IngestConfig, parse_config
from objcat.ingest.handover import IngestState
from objcat.ingest.runner import Ingest
from objcat.ingest.sources import open_source
from tests.ingest.ended import end_after

CONFIG = """
[lake]
url = "{lake}"

[source]
name = "landing"
kind = "folder"
url = "{folder}"
poll_s = 0.05
settle_s = {settle_s}
{source}

{files}

[[route]]
tables = "(.*)"
to = "land.\\\\1"
key = {key}
{route}

[profile.database]
batch_s = 0.05
index = "bucket(2)"
properties = {{}}

[run]
discover_s = 0.2
beat_s = 0.5
{run}
"""


class Landing:
    """A folder and what follows it.

    Args:
        folder: for files, lake and configuration.
    """

    def __init__(self, folder: Path) -> None:
        self.files = folder / "landing"
        self.files.mkdir()
        self.lake_path = folder / "lake"
        self.config_path = folder / "ingest.toml"
        self._clock = 1_700_000_000
        self.configure()

    def configure(
        self,
        *,
        source: str = "",
        files: str = "",
        route: str = "",
        run: str = "",
        key: Sequence[str] = ("id",),
        settle_s: float = 0,
        more: str = "",
        folder: str = "",
    ) -> None:
        """Write the configuration."""
        text = CONFIG.format(
            lake=self.lake_path,
            folder=folder or self.files,
            source=source,
            files=files,
            route=route,
            run=run,
            key=list(key),
            settle_s=settle_s,
        )
        self.config_path.write_text(text + more)

    def config(self) -> IngestConfig:
        return parse_config(tomllib.loads(self.config_path.read_text()), path=str(self.config_path), environment={})

    @property
    def lake(self) -> objcat.Lake:
        return objcat.connect(str(self.lake_path))

    def write(self, name: str, data: bytes | str) -> Path:
        """A file that is whole when it appears, a second after the one before."""
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_bytes(data.encode() if isinstance(data, str) else data)
        self._clock += 1
        os.utime(hidden, (self._clock, self._clock))
        hidden.rename(path)
        return path

    def parquet(self, name: str, rows: Sequence[Mapping[str, Any]] | pa.Table, schema: pa.Schema | None = None) -> Path:
        """A file of Parquet."""
        return self.write(name, parquet_bytes(rows, schema))

    def ingest(self, env: Env | None = None) -> Ingest:
        return Ingest(self.config(), self.lake, open_source, env=env or default_env())

    def once(self) -> IngestState:
        """Take what is there."""
        return self.ingest().once()

    def ids(self, table: str = "orders") -> list[int]:
        """The ids of the rows of a table in the lake, by key."""
        return [row["id"] for row in self.rows(table)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table of the lake, by their first column."""
        found: list[dict[str, Any]] = self.lake.table(f"land.{table}").scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: str(next(iter(row.values()))))

    def record(self) -> dict[str, dict[str, Any]]:
        """The record of files, by their paths."""
        return {row["file"]: row for row in self.lake.table("landing.ingest_files").scan().to_arrow().to_pylist()}

    def dead(self) -> list[dict[str, Any]]:
        """The dead letters."""
        found: list[dict[str, Any]] = self.lake.table("landing.ingest_dead").scan().to_arrow().to_pylist()
        return found

    def killed_after_commits(self, commits: int) -> None:
        """Run the ingest to its end, or until the process ends right after so many commits of the lake."""
        process = multiprocessing.get_context("fork").Process(target=end_after, args=(self.once, commits))
        process.start()
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL), process.exitcode


def parquet_bytes(rows: Sequence[Mapping[str, Any]] | pa.Table, schema: pa.Schema | None = None) -> bytes:
    """Rows as a file of Parquet."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=schema)
    target = io.BytesIO()
    pq.write_table(table, target)
    return target.getvalue()

"""`TwoLakes`: a lake that is written, the configuration of an ingest that follows it, and the lake that it writes."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import objcat
from fileio.env import default_env
from objcat.ingest.config import IngestConfig, parse_config
from objcat.ingest.handover import IngestState
from objcat.ingest.runner import Ingest
from objcat.ingest.sources import open_source

CONFIG = """
[lake]
url = "{lake}"

[source]
name = "copy"
kind = "objcat"
url = "{source}"
poll_s = 0.05
{settings}

[[route]]
tables = "shop\\\\.(.*)"
to = "copy.\\\\1"
{route}

[profile.database]
batch_s = 0.05
index = "bucket(2)"
properties = {{}}

[run]
discover_s = 0.2
beat_s = 0.5
idle_commit_s = 1
{run}
"""


class TwoLakes:
    """Both lakes.

    Args:
        folder: for both, and the configuration.
    """

    def __init__(self, folder: Path) -> None:
        self.source_path, self.lake_path = folder / "source", folder / "lake"
        self.config_path = folder / "ingest.toml"
        self.configure()

    def configure(self, *, route: str = "", run: str = "", settings: str = "") -> None:
        """Write the configuration."""
        text = CONFIG.format(lake=self.lake_path, source=self.source_path, route=route, run=run, settings=settings)
        self.config_path.write_text(text)

    def config(self) -> IngestConfig:
        return parse_config(tomllib.loads(self.config_path.read_text()), path=str(self.config_path), environment={})

    @property
    def source(self) -> objcat.Lake:
        return objcat.connect(str(self.source_path))

    @property
    def lake(self) -> objcat.Lake:
        return objcat.connect(str(self.lake_path))

    def ingest(self) -> Ingest:
        return Ingest(self.config(), self.lake, open_source, env=default_env())

    def once(self) -> IngestState:
        """Bring the lake up to the source."""
        return self.ingest().once()

    def differences(self, name: str, key: Sequence[str] = ("id",)) -> list[str]:
        """What differs between both sides, in words."""
        there, here = (_rows(lake.table(f"{space}.{name}"), key) for lake, space in ((self.source, "shop"), (self.lake, "copy")))
        found = [f"{name} {one}: only at the source" for one in there.keys() - here.keys()]
        found += [f"{name} {one}: only in the lake" for one in here.keys() - there.keys()]
        for one in there.keys() & here.keys():
            missing = {column: value for column, value in there[one].items() if here[one].get(column) != value}
            if missing:
                found.append(f"{name} {one}: {missing} at the source, {here[one]} in the lake")
        return found


def _rows(table: Any, key: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = table.scan().to_arrow().to_pylist()
    return {tuple(row[name] for name in key): row for row in rows}

"""The configuration of an ingest: one TOML file. `read_config` checks it; docs/how-to/ingest.md describes it.

Secrets are not in the file: `${NAME}` in a text is the variable NAME of the environment. What came from there appears in no message, `repr`
or log.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from fileio.errors import InvalidConfig
from fileio.options import Secret, nearest, redact
from fileio.schemes import SCHEME

S = TypeVar("S", bound=msgspec.Struct)

Deletes: TypeAlias = Literal["hard", "soft", "history"]
Mask: TypeAlias = Literal["null", "hash"]
TableKind: TypeAlias = Literal["merge_on_read", "copy_on_write"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_REFERENCE = re.compile(r"\\(\d)")


class LakeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[lake]`: where the tables are written.

    Args:
        url: of the lake. A relative path counts from the file of the configuration.
        options: of its store.
        shared_log: the log that all tables of the source share; the name of the source when it is left out.
    """

    url: str
    options: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    shared_log: str | None = None


class RouteConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[[route]]`: which tables of the source are written where. The first route that matches a table is taken.

    Args:
        tables: a regular expression for the whole name of a table of the source, such as `public\\.(.*)`.
        to: the name of the table in the lake; `\\1` is the first group of the expression.
        skip: the tables that match are not followed. Then nothing else may be given.
        key: columns that identify a row, where the source does not say.
        drop: columns that are not written.
        optional: columns named in `drop` or `mask` that a table may lack. Otherwise a table that lacks one is set aside: where a name is
            misspelled, the column that it means would be written as it is.
        mask: columns whose values are hidden: "null" writes nulls, "hash" a digest of the value as text, keyed by `mask_secret`.
        mask_secret: the key of these digests, such as `${MASK_SECRET}`. Who knows it can guess values and compare.
        deletes: "hard" deletes the row; "soft" keeps it and sets `_deleted`; "history" appends every change as a row of its own.
        lineage: whether rows have the columns `_source_ts`, `_source_pos`, `_source_seq` and `_op`. "history" always has them.
        profile: how the table is written.
    """

    tables: str
    to: str = ""
    skip: bool = False
    key: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    mask: dict[str, Mask] = msgspec.field(default_factory=dict)
    mask_secret: str = ""
    deletes: Deletes = "hard"
    lineage: bool = False
    profile: str = "database"


class ProfileConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[profile.NAME]`: how tables are made, and how often they are written.

    Args:
        kind: `merge_on_read` or `copy_on_write`.
        index: `bucket(8)`, `simple`, `bloom`, `memory` or `record`.
        partition_by: columns or transforms, such as `hour(created_at)`.
        batch_rows: a commit has about so many changes at most.
        batch_s: a commit comes at most so many seconds after its first change. A commit holds all tables, so the smallest one counts.
        properties: table properties, such as those of automatic maintenance.
    """

    kind: TableKind = "merge_on_read"
    index: str = "bucket(4)"
    partition_by: tuple[str, ...] = ()
    batch_rows: int = 20_000
    batch_s: float = 0.5
    properties: dict[str, str] = msgspec.field(default_factory=dict)


class DeadLetterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[dead_letters]`: records that cannot be decoded.

    Args:
        table: of the lake to which they are appended; `ingest_dead` next to the tables when it is left out.
        records_max: the run stops when more than so many of the last `window` records were bad.
        window: records.
    """

    table: str | None = None
    records_max: int = 10
    window: int = 10_000


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[run]`: limits of a run.

    Args:
        queue_bytes: the reader stops while so many bytes of changes wait to be committed.
        transaction_bytes: a transaction of the source that is larger waits on disk.
        chunk_rows: rows of a chunk of a snapshot.
        beat_s: seconds between two signs of life at the source.
        idle_commit_s: the position is committed after so many seconds without changes.
        discover_s: seconds between two looks for new tables and changed schemas.
        away_s: how long the source or the bucket may be away before the run stops.
        metrics_port: where metrics are served for Prometheus; 0: nowhere.
        metrics_host: the address of that port.
    """

    queue_bytes: int = 64 * 1024 * 1024
    transaction_bytes: int = 64 * 1024 * 1024
    chunk_rows: int = 50_000
    beat_s: float = 10.0
    idle_commit_s: float = 300.0
    discover_s: float = 30.0
    away_s: float = 300.0
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"


PROFILES: Mapping[str, ProfileConfig] = {
    "database": ProfileConfig(properties={"compact_after_commits": "64"}),
    "stream": ProfileConfig(
        index="record",
        batch_s=1.0,
        properties={"compact_after_commits": "16", "compact_plan_only": "true", "compact_partitions_newest": "2"},
    ),
    "small": ProfileConfig(kind="copy_on_write", index="bucket(1)", batch_s=600.0),
    "log": ProfileConfig(batch_s=60.0),
}
"""The profiles that need no configuration. A profile of the file with one of these names begins from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig:
    """A checked configuration.

    Args:
        path: of the file, for messages.
        name: of the source, unique in its shared log.
        kind: of the source.
        source: its other settings, with the variables of the environment in place. They may be secret, so no `repr` shows them.
        secrets: every text that came from the environment.
        is_careful: whether a source is to hand over as few changes at once as it can, since a larger batch was refused.
    """

    path: str
    name: str
    kind: str
    lake: LakeConfig
    routes: tuple[RouteConfig, ...]
    profiles: Mapping[str, ProfileConfig]
    dead_letters: DeadLetterConfig
    run: RunConfig
    source: Mapping[str, Any] = field(repr=False)
    secrets: tuple[Secret, ...] = ()
    is_careful: bool = False

    @property
    def shared_log(self) -> str:
        """The log that the tables share, and that has the position of the source."""
        return self.lake.shared_log or self.name

    def hide(self, text: str) -> str:
        """A text without secrets, for messages."""
        return redact(text, self.secrets)

    def place(self, text: str) -> str:
        """A URL or path of the configuration. A relative path counts from the file, so that it is the same wherever a command runs."""
        return _placed(text, self.path)

    def settings(self, kind: type[S]) -> S:
        """The settings of the source as its own struct. Raises InvalidConfig."""
        return convert(self.source, kind, where=f"[source] in {self.path}")


def read_config(path: str | Path, *, environment: Mapping[str, str] | None = None) -> IngestConfig:
    """Read and check a configuration.

    Args:
        path: of the file.
        environment: where `${NAME}` is looked up; the environment of the process when None.

    Raises:
        InvalidConfig: the file cannot be read, is not TOML, or has something that does not fit. No secret is in the message.
    """
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidConfig(f"There is no file {path}. Give the path of the configuration; docs/how-to/ingest.md has an example.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"The configuration {path} cannot be read: {type(error).__name__}. Check the path and its permissions."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"The configuration {path} is not valid TOML: {error}. Correct that line.") from None
    return parse_config(found, path=str(path), environment=os.environ if environment is None else environment)


def parse_config(found: Mapping[str, Any], *, path: str, environment: Mapping[str, str]) -> IngestConfig:
    """A configuration from the tables of a TOML file. Raises InvalidConfig."""
    secrets: dict[str, Secret] = {}
    found = _with_variables(found, environment, secrets, path=path)
    known = ("lake", "source", "route", "profile", "dead_letters", "run")
    _check_keys(found, known, where=path)
    for needed in ("lake", "source", "route"):
        if needed not in found:
            raise InvalidConfig(f"{path} has no [{needed}]. Add it; docs/how-to/ingest.md has an example.")
    source = _table(found["source"], where=f"[source] in {path}")
    name, kind = source.pop("name", None), source.pop("kind", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidConfig(f"[source] in {path} has no name of letters, digits, - and _. Give one: it names the position for ever.")
    if not isinstance(kind, str):
        raise InvalidConfig(f'[source] in {path} has no kind. Give one, such as kind = "postgres".')
    routes = found["route"]
    if not isinstance(routes, list) or not routes:
        raise InvalidConfig(f"{path} has no [[route]], or [route] in single brackets. Add [[route]], with tables and to.")
    profiles = {**PROFILES, **_profiles(found.get("profile", {}), path=path)}
    lake = convert(found["lake"], LakeConfig, where=f"[lake] in {path}")
    config = IngestConfig(
        path=path,
        name=name,
        kind=kind,
        lake=msgspec.structs.replace(lake, url=_placed(lake.url, path)),
        routes=tuple(convert(route, RouteConfig, where=f"[[route]] {at} in {path}") for at, route in enumerate(routes, 1)),
        profiles=profiles,
        dead_letters=convert(found.get("dead_letters", {}), DeadLetterConfig, where=f"[dead_letters] in {path}"),
        run=convert(found.get("run", {}), RunConfig, where=f"[run] in {path}"),
        source=source,
        secrets=tuple(secrets.values()),
    )
    for at, route in enumerate(config.routes, 1):
        _check_route(route, profiles, where=f"[[route]] {at} in {path}")
    _check_limits(config)
    return config


def convert(value: Any, kind: type[S], *, where: str) -> S:
    """A table of the file as a struct.

    Args:
        value: the table.
        kind: the struct.
        where: the table's name, for messages.

    Raises:
        InvalidConfig: a name is unknown, with the nearest known one, or a value does not fit. The message never has the value.
    """
    table = _table(value, where=where)
    _check_keys(table, kind.__struct_fields__, where=where)
    try:
        return msgspec.convert(table, kind, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"{where}: {error}. Correct it.") from None


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: a whole sentence with the names that are."""
    said = nearest(name, known)
    return said if said.endswith("?") else f"{said}."


def _placed(text: str, path: str) -> str:
    return text if SCHEME.match(text) or text.startswith(("/", "~")) else str(Path(path).absolute().parent / text)


def _profiles(found: Any, *, path: str) -> dict[str, ProfileConfig]:
    made = {}
    for name, value in _table(found, where=f"[profile] in {path}").items():
        where = f"[profile.{name}] in {path}"
        base = msgspec.to_builtins(PROFILES.get(name, ProfileConfig()))
        made[name] = convert({**base, **_table(value, where=where)}, ProfileConfig, where=where)
        if made[name].batch_rows < 1 or not 0 <= made[name].batch_s <= 86_400:
            raise InvalidConfig(f"{where}: batch_rows has to be 1 or more, and batch_s from 0 to 86,400. Correct it.")
    return made


def _check_route(route: RouteConfig, profiles: Mapping[str, ProfileConfig], *, where: str) -> None:
    try:
        pattern = re.compile(route.tables)
    except re.error as error:
        raise InvalidConfig(f"{where}: tables is not a regular expression ({error}). Correct it.") from None
    if route.skip:
        if route != RouteConfig(tables=route.tables, skip=True):
            raise InvalidConfig(f"{where} skips its tables, so nothing but tables may be given. Leave the rest out.")
        return
    if not route.to:
        raise InvalidConfig(f"{where} has no `to`. Give the name of the table in the lake, or skip = true.")
    groups = {int(found[1]) for found in _REFERENCE.finditer(route.to)}
    if any(group > pattern.groups for group in groups):
        raise InvalidConfig(f"{where}: `to` names a group that `tables` does not have. It has {pattern.groups}.")
    if route.profile not in profiles:
        raise InvalidConfig(f"{where}: there is no profile {route.profile!r}: {hint(route.profile, profiles)}")
    both = sorted(set(route.drop) & {*route.mask, *route.key})
    if both:
        raise InvalidConfig(f"{where} drops {both[0]!r}, which it also names in mask or key. Leave one out.")
    unnamed = [column for column in route.optional if column not in route.drop and column not in route.mask]
    if unnamed:
        raise InvalidConfig(f"{where} names {unnamed[0]!r} in `optional`, and neither in drop nor in mask. Name it there, or leave it out.")
    if "hash" in route.mask.values() and not route.mask_secret:
        raise InvalidConfig(f'{where} masks by "hash" without a mask_secret. Give one, such as mask_secret = "${{MASK_SECRET}}".')
    nulls = [column for column in route.key if route.mask.get(column) == "null"]
    if nulls:
        raise InvalidConfig(f'{where} masks the key column {nulls[0]!r} by nulls. Mask it by "hash".')


def _check_limits(config: IngestConfig) -> None:
    run, dead = config.run, config.dead_letters
    least = {"queue_bytes": 1024, "transaction_bytes": 1024, "chunk_rows": 1}
    for name, value in least.items():
        if getattr(run, name) < value:
            raise InvalidConfig(f"[run] in {config.path}: {name} has to be {value:,} or more. Correct it.")
    for name in ("beat_s", "idle_commit_s", "discover_s", "away_s"):
        if not 0 <= getattr(run, name) <= 86_400:
            raise InvalidConfig(f"[run] in {config.path}: {name} has to be from 0 to 86,400. Correct it.")
    if not 0 <= run.metrics_port <= 65_535:
        raise InvalidConfig(f"[run] in {config.path}: metrics_port has to be from 0 to 65,535. Correct it.")
    if dead.records_max < 0 or dead.window < 1:
        raise InvalidConfig(f"[dead_letters] in {config.path}: records_max has to be 0 or more, and window 1 or more. Correct it.")


def _table(value: Any, *, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidConfig(f"{where} is not a table of TOML. Write it as one.")
    return dict(value)


def _check_keys(table: Mapping[str, Any], known: Sequence[str], *, where: str) -> None:
    for key in table:
        if key not in known:
            raise InvalidConfig(f"{where} has {key!r}, which is not known: {hint(key, known)}")


def _with_variables(value: Any, environment: Mapping[str, str], secrets: dict[str, Secret], *, path: str) -> Any:
    """A value with `${NAME}` replaced in every text. `secrets`: what was replaced is added to it, by name."""
    if isinstance(value, Mapping):
        return {key: _with_variables(one, environment, secrets, path=path) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_variables(one, environment, secrets, path=path) for one in value]
    if not isinstance(value, str):
        return value

    def put(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise InvalidConfig(f"{path} names ${{{found[1]}}}, and the environment has no such variable. Set it, and start again.")
        secrets[found[1]] = Secret(environment[found[1]])
        return environment[found[1]]

    return _VARIABLE.sub(put, value)

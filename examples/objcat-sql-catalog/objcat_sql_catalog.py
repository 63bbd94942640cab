"""A catalog of names in an SQL database, by SQLAlchemy.

The primary key of `objcat_commits` is the referee: of two changes of one version, one inserts the next version and the other is
refused. Rows of names change in the same transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import sqlalchemy as sql

from objcat.catalog.names_plugin import NameRecord
from objcat.errors import InvalidInput

LAKE_CHARACTERS_MAX = 240
KEY_CHARACTERS_MAX = 500
"""Case folding makes some names longer. Both fit into the longest index of MySQL."""
_METADATA = sql.MetaData()
COMMITS = sql.Table(
    "objcat_commits",
    _METADATA,
    sql.Column("lake", sql.String(LAKE_CHARACTERS_MAX), primary_key=True),
    sql.Column("version", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("txn", sql.String(100), nullable=False),
)
NAMES = sql.Table(
    "objcat_names",
    _METADATA,
    sql.Column("lake", sql.String(LAKE_CHARACTERS_MAX), primary_key=True),
    sql.Column("kind", sql.String(20), primary_key=True),
    sql.Column("key", sql.String(KEY_CHARACTERS_MAX), primary_key=True),
    sql.Column("name", sql.String(255), nullable=False),
    sql.Column("url", sql.String(2048), nullable=False),
    sql.Column("value", sql.Text, nullable=False),
)


class SqlCatalog:
    """The names of one lake in a database. It connects when it is first asked.

    Args:
        lake_url: of the lake.
        options: `uri` and `lake`.
    """

    def __init__(self, lake_url: str, options: Mapping[str, str]) -> None:
        unknown = sorted(options.keys() - {"uri", "lake"})
        if unknown or "uri" not in options:
            what = f"has no option {unknown[0]!r}" if unknown else "lacks its option 'uri'"
            raise InvalidInput(f"The catalog of names 'sql' {what}. Give 'catalog.uri', such as 'sqlite:////data/names.db'.")
        self._lake = options.get("lake", lake_url)
        if len(self._lake) > LAKE_CHARACTERS_MAX:
            raise InvalidInput(f"The name of the lake has {len(self._lake)} characters. Give a shorter one as 'catalog.lake'.")
        self._engine = sql.create_engine(options["uri"], pool_pre_ping=True, hide_parameters=True)
        self._lock = threading.Lock()
        self._is_ready = False

    def read(self, known: int) -> tuple[int, Sequence[NameRecord]] | None:
        """The newest version and its records, by one statement: it sees one state of the database."""
        with self._connected().connect() as connection:
            if self._newest(connection) == known:
                return None
            newest = sql.select(sql.func.coalesce(sql.func.max(COMMITS.c.version), 0).label("version"))
            version = newest.where(COMMITS.c.lake == self._lake).subquery()
            query = sql.select(version.c.version, NAMES).join_from(version, NAMES, NAMES.c.lake == self._lake, isouter=True)
            rows = connection.execute(query).all()
        records = [
            NameRecord(kind=row.kind, key=row.key, name=row.name, url=row.url, value=row.value) for row in rows if row.kind is not None
        ]
        return int(rows[0].version), records

    def commit(self, version: int, txn: str, puts: Sequence[NameRecord], removes: Sequence[tuple[str, str]]) -> bool:
        """Insert the next version and change the rows, in one transaction."""
        with self._connected().connect() as connection:
            try:
                connection.execute(sql.insert(COMMITS).values(lake=self._lake, version=version + 1, txn=txn))
            except sql.exc.IntegrityError:
                return False
            for kind, key in [*removes, *((record.kind, record.key) for record in puts)]:
                connection.execute(sql.delete(NAMES).where(NAMES.c.lake == self._lake, NAMES.c.kind == kind, NAMES.c.key == key))
            if puts:
                rows = [
                    {"lake": self._lake, "kind": one.kind, "key": one.key, "name": one.name, "url": one.url, "value": one.value}
                    for one in puts
                ]
                connection.execute(sql.insert(NAMES), rows)
            connection.commit()
        return True

    def find(self, txn: str) -> int | None:
        """The version of a change."""
        with self._connected().connect() as connection:
            query = sql.select(COMMITS.c.version).where(COMMITS.c.lake == self._lake, COMMITS.c.txn == txn)
            return connection.execute(query).scalar()

    def _newest(self, connection: sql.Connection) -> int:
        query = sql.select(sql.func.coalesce(sql.func.max(COMMITS.c.version), 0)).where(COMMITS.c.lake == self._lake)
        return int(connection.execute(query).scalar_one())

    def _connected(self) -> sql.Engine:
        with self._lock:
            if not self._is_ready:
                try:
                    with self._engine.begin() as connection:
                        for table in (COMMITS, NAMES):
                            connection.execute(sql.schema.CreateTable(table, if_not_exists=True))
                except sql.exc.DatabaseError:
                    # Another process made them at the same time, or this user may not.
                    if not sql.inspect(self._engine).has_table(NAMES.name):
                        raise
                self._is_ready = True
        return self._engine

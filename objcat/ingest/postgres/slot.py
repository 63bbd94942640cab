"""The publication and the replication slot of an ingest, and what the server needs for them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fileio.env import Env
from objcat.errors import IngestStopped, PositionGone, SourceUnfit
from objcat.ingest.config import IngestConfig
from objcat.ingest.postgres.connection import PostgresConnector, literal, quoted, rows_of, run
from objcat.ingest.postgres.server_history import HistoryName, ServerHistory, parse_switches
from objcat.ingest.postgres.settings import PostgresSettings
from objcat.ingest.postgres.visibility import lsn_number, lsn_text

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

logger = logging.getLogger("objcat")

VERSION_MIN = 140_000
"""PostgreSQL 14: the first one that sends logical messages."""
PAUSE_S = 0.1
_SERVER = """
select current_setting('server_version_num')::int, current_setting('wal_level'), pg_is_in_recovery(),
  (select pg_encoding_to_char(encoding) from pg_database where datname = current_database()), current_setting('server_version'),
  (select rolsuper or rolreplication or exists (
     select 1 from pg_roles r where r.rolname = 'rds_replication' and pg_has_role(current_user, r.oid, 'member'))
   from pg_roles where rolname = current_user), current_user
"""
_SLOT = """
select plugin, database = current_database(), active, active_pid, restart_lsn::text, confirmed_flush_lsn::text, wal_status
from pg_replication_slots where slot_name = %s
"""
_PUBLICATION = (
    "select puballtables, pubinsert and pubupdate and pubdelete and pubtruncate, pubviaroot from pg_publication where pubname = %s"
)
_WITHOUT_IDENTITY = """
select n.nspname || '.' || c.relname from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
  join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace
where p.pubname = %s and (c.relreplident = 'n'
  or (c.relreplident = 'd' and not exists (select 1 from pg_index i where i.indrelid = c.oid and i.indisprimary)))
"""
_PUBLISHED = "select schemaname || '.' || tablename from pg_publication_tables where pubname = %s"


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of `pg_replication_slots`. Positions are None where the slot has none."""

    is_ours: bool
    active_pid: int | None
    restart_lsn: int | None
    confirmed_lsn: int | None
    wal_status: str


class PostgresSlot:
    """Publication and slot, by one connection for SQL. For one thread."""

    def __init__(
        self, connector: PostgresConnector, connection: Connection, config: IngestConfig, settings: PostgresSettings, env: Env
    ) -> None:
        self._connector = connector
        self._connection = connection
        self._config = config
        self._settings = settings
        self._env = env

    def check_server(self) -> None:
        """Raises SourceUnfit, which names all that is wrong, each with the statement that corrects it."""
        with self._connector.errors("looking at its settings"):
            version, wal_level, is_standby, encoding, name, may_replicate, user = rows_of(self._connection, _SERVER)[0]
        wrong = []
        if version < VERSION_MIN:
            wrong.append(f"It is PostgreSQL {name}, and 14 is the first version that can be followed. Upgrade it.")
        if wal_level != "logical":
            wrong.append(f"wal_level is {wal_level}. Run ALTER SYSTEM SET wal_level = 'logical', and restart the server.")
        if is_standby:
            wrong.append("It is a standby, which has no slots of its own in all versions. Connect to the primary.")
        if encoding != "UTF8":
            wrong.append(f"The database has the encoding {encoding}, whose text may not be Unicode. Use a database in UTF8.")
        if not may_replicate:
            wrong.append(f"The user {user} may not replicate. Run ALTER ROLE {quoted(user)} REPLICATION.")
        if wrong:
            raise SourceUnfit(f"The server of {self._config.name!r} cannot be followed yet. {' '.join(wrong)}")

    def state(self) -> SlotState | None:
        """The slot as it is; None when there is none."""
        with self._connector.errors("looking at its slot"):
            found = rows_of(self._connection, _SLOT, (self._settings.slot,))
        if not found:
            return None
        plugin, is_here, is_active, pid, restart, confirmed, status = found[0]
        return SlotState(
            is_ours=plugin == "pgoutput" and is_here,
            active_pid=pid if is_active else None,
            restart_lsn=None if restart is None else lsn_number(restart),
            confirmed_lsn=None if confirmed is None else lsn_number(confirmed),
            wal_status=status or "lost",
        )

    def check_position(self, position: int) -> None:
        """Check that the slot still has everything after a position. Raises PositionGone."""
        state = self.state()
        slot, again = self._settings.slot, f"Run `objcat ingest resnapshot {self._config.path} --all`, which reads all tables again."
        if state is None:
            raise PositionGone(
                f"The slot {slot!r} of {self._config.name!r} is missing: it was dropped, or the server is another one. Changes after "
                f"{lsn_text(position)} are lost to this reader. Nothing was left out in the lake. {again}"
            )
        self._check_ours(state)
        if state.wal_status == "lost":
            raise PositionGone(
                f"The slot {slot!r} of {self._config.name!r} lost its log: the server removed what it was to keep "
                f"(max_slot_wal_keep_size). Changes after {lsn_text(position)} are gone. Nothing was left out in the lake. {again}"
            )
        if state.confirmed_lsn is not None and state.confirmed_lsn > position:
            raise PositionGone(
                f"The slot {slot!r} of {self._config.name!r} was moved to {lsn_text(state.confirmed_lsn)} by another reader or made again. "
                f"The lake is at {lsn_text(position)}, and what is between cannot be read. Nothing was left out in the lake. {again}"
            )

    def server_history(self) -> ServerHistory:
        """The history of this server."""
        with self._connector.errors("asking which server it is"):
            connection = self._connector.connect(replication=True)
            try:
                with connection.cursor() as cursor:
                    cursor.execute("IDENTIFY_SYSTEM")
                    system, timeline, end, _ = cursor.fetchall()[0]
                    switches = {}
                    if timeline > 1:
                        cursor.execute(f"TIMELINE_HISTORY {timeline}")
                        switches = parse_switches(bytes(cursor.fetchall()[0][1]))
            finally:
                connection.close()
        return ServerHistory(HistoryName(str(system), int(timeline)), lsn_number(end), switches)

    def check_history(self, position: int, before: str | None, history: ServerHistory) -> None:
        """Check that a position is one of this server. before: the history that it was read in. Raises PositionGone."""
        why = None if before is None else history.why_not(position, HistoryName.parse(before))
        if why is not None:
            raise PositionGone(
                f"The position {lsn_text(position)} of {self._config.name!r} is none of this server: {why}. Nothing was left out in the "
                f"lake. Run `objcat ingest resnapshot {self._config.path} --all`, which reads all tables again."
            )

    def make(self, tables: Sequence[str]) -> int:
        """Make publication and slot; a slot that is there is dropped. Returns the position from which the slot has everything."""
        self.publish(tables)
        state = self.state()
        slot = literal(self._settings.slot)
        if state is not None:
            self._check_ours(state)
            self.wait_until_free()
            with self._connector.errors("dropping its old slot"):
                run(self._connection, f"select pg_drop_replication_slot({slot})")
        with self._connector.errors("making its slot"):
            found = rows_of(self._connection, f"select lsn::text from pg_create_logical_replication_slot({slot}, 'pgoutput')")  # noqa: S608
        return lsn_number(found[0][0])

    def wait_until_free(self) -> None:
        """Wait for the server to notice that the last reader is gone. Raises IngestStopped when it stays."""
        end_s = self._env.monotonic_s() + self._settings.slot_wait_s
        while (state := self.state()) is not None and state.active_pid is not None:
            if self._env.monotonic_s() >= end_s:
                raise IngestStopped(
                    f"Another process (server process {state.active_pid}) reads the slot {self._settings.slot!r} of {self._config.name!r}. "
                    "This one stops. Let one process run."
                )
            self._env.sleep(PAUSE_S)

    def publish(self, tables: Sequence[str]) -> list[str]:
        """Let the publication have these tables. Returns those that it did not have, so that changes of them were not sent."""
        name = quoted(self._settings.publication)
        with self._connector.errors("looking at its publication"):
            found = rows_of(self._connection, _PUBLICATION, (self._settings.publication,))
        if not found:
            listed = f" FOR TABLE {', '.join(_sql_name(table) for table in tables)}" if tables else ""
            statement = f"CREATE PUBLICATION {name}{listed} WITH (publish_via_partition_root = true)"
            try:
                with self._connector.errors("making its publication"):
                    run(self._connection, statement)
            except SourceUnfit as error:
                raise SourceUnfit(f"{error} The owner of the tables may run it instead: {statement}") from error
            return list(tables)
        has_all, sends_all, via_root = found[0]
        if not sends_all or not via_root:
            raise SourceUnfit(
                f"The publication {self._settings.publication!r} leaves changes out, or sends partitions one by one. Run ALTER PUBLICATION "
                f"{name} SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = true), and then "
                f"`objcat ingest resnapshot {self._config.path} --all`."
            )
        if has_all:
            return []
        with self._connector.errors("looking at its publication"):
            published = {table for (table,) in rows_of(self._connection, _PUBLISHED, (self._settings.publication,))}
        self._unpublish(tables)
        missing = [table for table in tables if table not in published]
        if missing:
            with self._connector.errors(f"publishing {', '.join(missing)}"):
                run(self._connection, f"alter publication {name} add table {', '.join(_sql_name(table) for table in missing)}")
        return missing

    def _unpublish(self, tables: Sequence[str]) -> None:
        """Take tables out that have no replica identity any more: as long as they are published, the server refuses their updates."""
        with self._connector.errors("looking at its publication"):
            found = [table for (table,) in rows_of(self._connection, _WITHOUT_IDENTITY, (self._settings.publication,))]
        names = [table for table in found if table not in tables]
        if not names:
            return
        listed = ", ".join(_sql_name(table) for table in names)
        statement = f"alter publication {quoted(self._settings.publication)} drop table {listed}"
        try:
            with self._connector.errors(f"running {statement}"):
                run(self._connection, statement)
        except SourceUnfit as error:
            logger.warning("The server refuses updates of %s as long as they are published. %s", ", ".join(names), error)

    def _check_ours(self, state: SlotState) -> None:
        if not state.is_ours:
            raise SourceUnfit(
                f"The slot {self._settings.slot!r} belongs to another database or plugin. Name another one in {self._config.path}."
            )


def _sql_name(table: str) -> str:
    # A schema with a dot in its name cannot be told apart, so the catalog leaves it out.
    schema, _, name = table.partition(".")
    return f"{quoted(schema)}.{quoted(name)}"

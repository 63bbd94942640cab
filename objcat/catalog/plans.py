"""Plans of changes of names: pure functions, called again whenever another writer was first."""

from __future__ import annotations

from objcat.catalog.names import CatalogNames, DroppedTable, NameBinding, NamesDelta, namespace_of
from objcat.common.validation import case_folded
from objcat.errors import NamespaceNotEmpty, ObjcatError, TableExists, TableNotFound


class PlanOutdated(ObjcatError):
    """What the plan was made for has changed. Begin again."""


def check_name_free(names: CatalogNames, name: str, *, where: str, error: type[ObjcatError] = TableExists) -> None:
    """Check that a name is free. Raises TableExists for a table of that name or above it, `error` for a namespace."""
    bound = names.table(name)
    if bound is not None:
        raise TableExists(
            f"The table {bound.binding.name!r} exists in {where} (named by {bound.txn} at slot {bound.slot} of the catalog). "
            f"Open it with lake.table({bound.binding.name!r})."
        )
    if case_folded(name) in names.namespaces:
        raise error(f"{name!r} is a namespace in {where}. A name means one thing only. Choose another one.")
    outer = namespace_of(name)
    while outer:
        held = names.table(outer)
        if held is not None:
            raise TableExists(f"{held.binding.name!r} is a table in {where}, so no name below it is free. Choose another one.")
        outer = namespace_of(outer)


def plan_create(names: CatalogNames, binding: NameBinding, *, first: CatalogNames, where: str) -> NamesDelta:
    """Bind a new table. first: the names when the operation began. Raises TableExists, NamespaceNotFound, PlanOutdated."""
    check_name_free(names, binding.name, where=where)
    shared_logs: dict[str, str] = {}
    if binding.shared_log:
        known = names.shared_logs.get(case_folded(binding.shared_log))
        if known not in (None, binding.prefix):
            raise PlanOutdated
        shared_logs = {} if known is not None else {binding.shared_log: binding.prefix}
    return NamesDelta(creates=names.missing_namespaces(binding.name, first), binds=(binding,), shared_logs=shared_logs)


def plan_rename(names: CatalogNames, before: NameBinding, new_name: str, *, first: CatalogNames, where: str) -> NamesDelta:
    """Bind a table to another name. before: its binding when the operation began.

    Raises TableNotFound, TableExists, NamespaceNotFound.
    """
    bound = names.table(before.name)
    if bound is None or bound.binding.table != before.table:
        raise names.not_found(before.name, where=where)
    if case_folded(before.name) != case_folded(new_name):
        check_name_free(names, new_name, where=where)
    creates = names.missing_namespaces(new_name, first)
    return NamesDelta(unbinds=(bound.binding.name,), creates=creates, binds=(renamed(bound.binding, new_name),))


def plan_drop(names: CatalogNames, table: str, closed: int) -> NamesDelta | None:
    """Unbind a table that was closed at a slot of its log, whatever its name is now.

    If the table was restored and bound again after that slot, there is nothing to do. If it is not bound, the entry still says that it is
    closed again, so that a writer that saw it open does not bind it.
    """
    bound = names.table_of(table)
    if bound is not None:
        return NamesDelta(unbinds=(bound.binding.name,), drops={table: closed}) if bound.binding.opened < closed else None
    dropped = names.dropped.get(table)
    return NamesDelta(drops={table: closed}) if dropped is not None and dropped.closed < closed else None


def plan_move(names: CatalogNames, table: str, closed: int, binding: NameBinding) -> NamesDelta | None:
    """Bind the name of a table that was closed at a slot of its log to what it is in a shared log. The closed one is remembered as dropped.

    binding: in the shared log; the name is the one that the table has now. None when the name has moved, or the table was opened again.
    """
    bound = names.table_of(table)
    if bound is None or bound.binding.opened >= closed:
        return None
    return NamesDelta(unbinds=(bound.binding.name,), drops={table: closed}, binds=(renamed(binding, bound.binding.name),))


def plan_share(names: CatalogNames, before: NameBinding, shared_log: str, *, where: str) -> NamesDelta:
    """Make the log of a table that is alone in it a shared one. before: the binding when the operation began.

    Raises TableNotFound, and PlanOutdated when another writer made a log of that name, or changed the binding.
    """
    bound = names.table_of(before.table)
    if bound is None:
        raise names.not_found(before.name, where=where)
    if case_folded(shared_log) in names.shared_logs or bound.binding != before:
        raise PlanOutdated
    shared = NameBinding(name=before.name, table=before.table, prefix=before.prefix, shared_log=shared_log, opened=before.opened)
    return NamesDelta(unbinds=(before.name,), binds=(shared,), shared_logs={shared_log: before.prefix})


def plan_shared_log(names: CatalogNames, shared_log: str, prefix: str) -> NamesDelta | None:
    """Name the log at a prefix, before it has a table. None where there is a log of that name."""
    return None if case_folded(shared_log) in names.shared_logs else NamesDelta(shared_logs={shared_log: prefix})


def plan_undrop(names: CatalogNames, dropped: DroppedTable, binding: NameBinding, *, first: CatalogNames, where: str) -> NamesDelta:
    """Bind a restored table. Raises TableExists, NamespaceNotFound, and PlanOutdated when another writer dropped or bound it."""
    if names.dropped.get(dropped.table) != dropped:
        raise PlanOutdated
    check_name_free(names, binding.name, where=where)
    return NamesDelta(creates=names.missing_namespaces(binding.name, first), binds=(binding,))


def plan_purge(names: CatalogNames, dropped: DroppedTable) -> NamesDelta | None:
    """Note that the files of a dropped table are deleted. None when that is noted already."""
    return NamesDelta(purges=(dropped.table,)) if names.dropped.get(dropped.table) == dropped else None


def plan_drop_namespace(names: CatalogNames, name: str, *, where: str) -> NamesDelta:
    """Remove an empty namespace. Raises NamespaceNotFound, NamespaceNotEmpty."""
    found = names.namespace(name)
    held = names.held_by(name)
    if held:
        shown = ", ".join(held[:5]) + (f" and {len(held) - 5} more" if len(held) > 5 else "")
        raise NamespaceNotEmpty(f"The namespace {found.name!r} of {where} still holds {shown}. Drop or rename them first.")
    return NamesDelta(removes=(found.name,))


def find_dropped(names: CatalogNames, name: str, table: str | None, *, where: str) -> DroppedTable:
    """The dropped table of an id, or the last dropped one of a name. Raises TableExists, TableNotFound."""
    found = [d for d in names.dropped.values() if (case_folded(d.name) == case_folded(name) if table is None else d.table == table)]
    left = [dropped for dropped in found if not dropped.is_purged]
    if left:
        return max(left, key=lambda dropped: dropped.slot)
    if found:
        raise TableNotFound(
            f"The table {name!r} was dropped from {where} and then purged. Its files are deleted, so it cannot be restored."
        )
    bound = names.table(name)
    if bound is not None:
        raise TableExists(f"The table {bound.binding.name!r} of {where} is not dropped. Open it with lake.table({name!r}).")
    known = sorted({dropped.name for dropped in names.dropped.values() if not dropped.is_purged})
    hint = f"Dropped tables are {', '.join(known[:10])}." if known else "No table is dropped."
    raise TableNotFound(f"No table {name!r} was dropped from {where}. {hint}")


def renamed(binding: NameBinding, name: str, *, opened: int | None = None) -> NameBinding:
    """The binding under another name. opened: a later slot at which the table was open, None to keep it."""
    return NameBinding(
        name=name,
        table=binding.table,
        prefix=binding.prefix,
        shared_log=binding.shared_log,
        opened=binding.opened if opened is None else opened,
    )

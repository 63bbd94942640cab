"""What may be deleted, and what stays deleted: by what the log says, and by what is still under way."""

from __future__ import annotations

import json

from tests.explorer.actors import owner_of
from tests.explorer.facts import Facts, LogFacts, kept_slots, parse_slot, place_of_slot, positions_of
from tests.explorer.store import Request


def could_commit(request: Request, facts: Facts) -> tuple[str, ...]:
    """The transactions that a request, still under way, would commit if it landed now."""
    place = place_of_slot(request.key) if request.kind == "put" else None
    if place is None or (place[0] in facts.logs and place[1] in facts.logs[place[0]].slots):
        return ()
    return parse_slot(request.data).txns


def may_delete(request: Request, facts: Facts, open_txns: set[str], *, by: int) -> str | None:
    """P8: what is wrong with a deletion; None when the log allows it.

    Files of a transaction go when its rollback is in the log, when its own writer knows for certain that it failed, or when no snapshot
    that can still be read names them; its intent goes when it is settled.
    """
    for key in request.keys:
        place = place_of_slot(key)
        if place is not None:
            if not _is_abandoned(facts, place[0], by):
                return f"P8: {key} is deleted: slots never are, but for those of a table that never got its name"
            continue
        prefix, folder, rest = _folder_of(key)
        if folder is None or (folder == "data" and _is_abandoned(facts, prefix, by)):
            continue
        txn = rest.split("/")[0] if folder == "data" else rest.split(".")[0]
        settled = txn in facts.committed or txn in facts.rolled_back or (rest.endswith(".requested.json") and _is_executed(facts, txn))
        if folder == "intents" and not settled and owner_of(txn) != by:
            return f"P8: {key} is deleted although {txn} is not settled"
        if folder == "data" and prefix in facts.logs and (reader := _who_reads(facts.logs[prefix], key[len(prefix) :])):
            return f"P8: {key} is deleted although {txn} is committed and {reader} names it"
        if folder == "data" and not settled and owner_of(txn) != by:
            return f"P8: {key} is deleted before a rollback of {txn} is in the log"
        if txn in open_txns:
            return f"P8: {key} is deleted although a request that commits {txn} is still under way"
    return None


def _is_abandoned(facts: Facts, prefix: str, by: int) -> bool:
    """Whether a log has no name, and the creator of its table may delete it."""
    first = facts.logs[prefix].slots.get(0) if prefix in facts.logs else None
    return is_nameless(facts, prefix) and (first is None or owner_of(first.txn) == by)


def _is_executed(facts: Facts, plan: str) -> bool:
    return any(slot.plan == plan for log in facts.logs.values() for slot in log.slots.values())


def is_nameless(facts: Facts, prefix: str) -> bool:
    """Whether a log is that of a table which never had a name, although there is a catalog that could have given it one."""
    catalogs = [log for log in facts.logs.values() if any(slot.naming is not None for slot in log.slots.values())]
    bound = {where for log in catalogs for slot in log.slots.values() if slot.naming for _, _, where in slot.naming.binds}
    return prefix.startswith("tables/") and prefix not in bound


def _folder_of(key: str) -> tuple[str, str | None, str]:
    parts = key.split("/")
    for number, part in enumerate(parts):
        if part in ("data", "intents"):
            return "".join(f"{above}/" for above in parts[:number]), part, "/".join(parts[number + 1 :])
    return "", None, key


def _who_reads(log: LogFacts, path: str) -> str | None:
    for source, position in positions_of(log).items():
        if path == position.path:
            return f"the newest position of {source}"
    for table in log.states[-1] if log.states else ():
        for number in kept_slots(log, table):
            if path in log.states[number][table].files:
                return f"the snapshot of slot {number}"
    return None


def restored_late(request: Request, before: Facts, after: Facts) -> str | None:
    """P8: what is wrong with an intent that appears: one that was deleted is not put again by its writer's next heartbeat."""
    if request.kind != "put" or _folder_of(request.key)[1] != "intents" or request.key in before.files or request.key not in after.files:
        return None
    return f"P8: {request.key} was deleted, and a heartbeat brings it back" if json.loads(request.data).get("beats") else None

"""Bucket split: one entry that doubles the buckets of a partition and moves no data. Compaction gives each half its own files."""

from __future__ import annotations

from dataclasses import dataclass

from objcat.common.validation import text, whole_number
from objcat.errors import InvalidInput
from objcat.metadata.files import TableDelta, encode_delta
from objcat.metadata.partitioning import shape_of
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables, TableState
from objcat.timeline.entry import BUCKETS_MAX, Action, Footprint, Txn
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.service_commit import Service, ServiceResult, run_service


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitResult:
    """A split that is durable. `count`: buckets of the partition from now on."""

    slot: int
    txn: Txn
    partition: str
    count: int


def split_buckets(timeline: Timeline[Tables], table: str, *, partition: str = "", count: int | None = None) -> SplitResult | None:
    """Give a partition more buckets in one commit that moves no data; None when it has that many already.

    Log rows that writers address to the old count meanwhile are read under the new one; base files of the old count conflict.

    Args:
        partition: as file groups name it, e.g. `city=Rome`; empty where the table is not partitioned. It may have no rows yet.
        count: the new count, the current one times a power of two; twice the current one when None.

    Raises:
        InvalidInput, TableClosed, CommitConflict, CommitUnknown, storage errors: see `objcat.errors`.
    """
    text(partition, what="partition", empty=True)
    if count is not None:
        whole_number(count, what="count", least=1, most=BUCKETS_MAX)
    view = timeline.open()
    url = timeline.fileio.url
    _check_partition(snapshot_of(view, table, where=url).spec, partition)
    present = bucket_count(snapshot_of(view, table, where=url).table, partition)
    wanted = 2 * present if count is None else count
    if wanted > BUCKETS_MAX:
        raise InvalidInput(f"{wanted} buckets are too many for a partition. Use at most {BUCKETS_MAX}.")
    service = Service(
        action=Action.REPLACE,
        table=table,
        plan=lambda view: _plan(view, table, partition, wanted, where=url),
        run=lambda wanted, _txn: _proposal(partition, wanted),
    )
    done = run_service(timeline, service, view)
    if done is None:
        return None
    return SplitResult(slot=done.entry.slot, txn=done.entry.txn, partition=partition, count=wanted)


def _check_partition(spec: TableSpec, partition: str) -> None:
    if not spec.has_key:
        raise InvalidInput(
            "The table has no key, so it has no buckets to split. Its inserts begin new files when the existing ones are large."
        )
    if spec.is_located:
        raise InvalidInput(
            "The index of this table looks keys up, so there are no buckets to split. New keys go to new files when the "
            "existing ones are large."
        )
    known = (spec.partitioning, *spec.former)
    if all(partitioning.shape != shape_of(partition) for partitioning in known):
        names = " or ".join(repr("/".join(f"{name}=..." for name in partitioning.shape)) for partitioning in known)
        raise InvalidInput(f"partition={partition!r} is no partition of the table. Give one that looks like {names}.")


def bucket_count(state: TableState, partition: str) -> int:
    """How many buckets a partition has."""
    return state.bucket_counts.get(partition, state.spec.index.count)


def _plan(view: LogView[Tables], table: str, partition: str, wanted: int, *, where: str) -> int | None:
    """The bucket count that the partition gets; None when it has it."""
    present = bucket_count(snapshot_of(view, table, where=where).table, partition)
    if wanted == present:
        return None
    factor, rest = divmod(wanted, present)
    if rest or factor & (factor - 1) or factor < 1:
        raise InvalidInput(
            f"{partition or 'the table'} has {present} buckets, which cannot become {wanted}. Give {present} times a power of "
            f"two, for example {2 * present}."
        )
    return wanted


def _proposal(partition: str, wanted: int) -> ServiceResult:
    splits = {partition: wanted}
    return ServiceResult(footprint=Footprint(splits=splits), changes=encode_delta(TableDelta(splits=splits)))

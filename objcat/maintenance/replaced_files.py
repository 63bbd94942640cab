"""What services propose that replace base files one by one by files with the same rows, and what is left where others were first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from objcat.metadata.files import BaseFile, TableDelta, decode_delta, encode_delta, features_of
from objcat.timeline.entry import FileGroupId, Footprint, Summary
from objcat.write.service_commit import ServiceResult


def propose(bases: Sequence[BaseFile], *, as_of: int) -> ServiceResult:
    """The commit of new base files. as_of: the slot up to which they hold the rows of their file groups."""
    bases = sorted(bases, key=lambda base: base.group_id)
    delta = TableDelta(bases=tuple(bases), as_of=as_of)
    return ServiceResult(
        footprint=Footprint(replaces=tuple(base.group_id for base in bases)),
        changes=encode_delta(delta),
        summary=Summary(rows=sum(base.rows for base in bases), files=len(bases), bytes=sum(base.bytes for base in bases)),
        files=tuple(base.path for base in bases),
        features=features_of(delta),
    )


def narrow(
    proposal: ServiceResult, taken: frozenset[FileGroupId], *, propose: Callable[..., ServiceResult] = propose
) -> ServiceResult | None:
    """The same proposal without the files that others changed first. None: no file is left. propose: makes it of base files."""
    assert proposal.changes is not None
    delta = decode_delta(proposal.changes)
    left = [base for base in delta.bases if base.group_id not in taken]
    return propose(left, as_of=-1 if delta.as_of is None else delta.as_of) if left else None

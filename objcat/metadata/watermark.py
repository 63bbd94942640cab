"""`Watermark`: the promise that no change with a smaller ordering value comes any more, so that compaction may forget older deletes.

Writers that know it leave out rows and deletes of a batch that are below it. No reader needs it.
"""

from __future__ import annotations

import decimal
from typing import Any

import msgspec
import pyarrow as pa

from objcat.errors import InvalidInput
from objcat.metadata.column_defaults import decode_default, encode_default
from objcat.metadata.schema import Column, decimal_digits
from objcat.timeline.entry import Count

WATERMARK_FEATURE = {"watermark": "0.1.0"}
"""What a writer must understand once a table has a watermark: another one would store rows that it rejects."""


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """The least ordering value that still counts in a batch, and since when.

    Args:
        value: As a default is stored, see `objcat.metadata.column_defaults`, in the type that the ordering column had then.
        slot: From which on writers leave out what is below.
    """

    value: bool | int | float | str
    slot: Count


def in_another_log(watermark: Watermark | msgspec.UnsetType | None) -> Watermark | msgspec.UnsetType | None:
    """The watermark of a table that is copied into another log, by compactions that know it. Slots of the one say nothing in the other."""
    return msgspec.structs.replace(watermark, slot=0) if isinstance(watermark, Watermark) else watermark


def watermark_value(watermark: Watermark, ordering: Column) -> pa.Scalar:
    """The least value that still counts, in the type that the ordering column has now. Raises ValueError if it is no such value."""
    value = watermark.value
    if isinstance(value, int) and not isinstance(value, bool) and decimal_digits(ordering.type) is not None:
        # The column was a whole number then.
        value = str(decimal.Decimal(value))
    return decode_default(value, ordering.type)


def raised(known: Watermark | None, below: Any, ordering: Column, *, slot: int) -> Watermark | None:
    """A watermark at a value, from a slot on. None if the known one is as high. Raises InvalidInput for a value of another type."""
    try:
        value = encode_default(below, ordering.type, path=ordering.name)
    except InvalidInput as error:
        raise InvalidInput(
            f"below={below!r} is no value of the ordering column {ordering.name!r}, which is {ordering.type}. Nothing was changed. Give "
            "a value of that type."
        ) from error
    found = Watermark(value=value, slot=slot)
    if known is not None and watermark_value(known, ordering).as_py() >= watermark_value(found, ordering).as_py():
        return None
    return found

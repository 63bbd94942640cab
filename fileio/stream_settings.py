"""How streams trade memory for throughput."""

from __future__ import annotations

from dataclasses import dataclass

from fileio.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How streams trade memory for throughput.

    part_bytes: size of the first parts written (later ones grow, see `upload_parts.part_size`) and of the largest request when reading; an
    object that is not longer is written by one put. parallelism: parts sent at once. spill_directory: where to buffer parts in unlinked
    temporary files instead of memory. prefetch: parts fetched ahead of a sequential reader; 0: none.
    Raises InvalidConfig when a number is out of bounds.
    """

    part_bytes: int = 8 * 1024 * 1024
    parallelism: int = 4
    spill_directory: str | None = None
    prefetch: int = 4

    def __post_init__(self) -> None:
        for name, least, most in (("part_bytes", 1, 1 << 40), ("parallelism", 1, 1024), ("prefetch", 0, 1024)):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidConfig(f"the stream setting {name!r} must be between {least} and {most}, but is {value!r}")


def as_bytes(view: memoryview) -> memoryview:
    """The bytes of any buffer; copied when they are scattered."""
    if view.nbytes == 0:
        return memoryview(b"")
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())

"""`StreamSettings`: memory and parallelism of streams."""

from __future__ import annotations

from dataclasses import dataclass

from fileio.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How streams trade memory for throughput.

    Args:
        part_bytes: The size of the first parts written (later parts grow, see `upload_parts.part_size`), and of the largest read request.
            An object that is not longer is written by one put.
        parallelism: The number of parts sent at once.
        spill_directory: Buffers parts in unlinked temporary files in this directory; None buffers them in memory.
        prefetch: The number of parts read ahead of a sequential reader; 0 reads none.

    Raises:
        InvalidConfig: A number is out of range.
    """

    part_bytes: int = 8 * 1024 * 1024
    parallelism: int = 4
    spill_directory: str | None = None
    prefetch: int = 4

    def __post_init__(self) -> None:
        for name, least, most in (("part_bytes", 1, 1 << 40), ("parallelism", 1, 1024), ("prefetch", 0, 1024)):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidConfig(f"The stream setting {name!r} must be between {least} and {most}, but is {value!r}.")


def as_bytes(view: memoryview) -> memoryview:
    """The bytes of any buffer. Scattered bytes are copied."""
    if view.nbytes == 0:
        return memoryview(b"")
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())

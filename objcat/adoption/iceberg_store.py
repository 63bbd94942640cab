"""pyiceberg's file access over the store of a lake. It only reads, so a foreign table cannot be changed through it."""

from __future__ import annotations

from typing import Any

from fileio.errors import NotFound
from fileio.optional import library
from fileio.store import FileIO
from objcat.adoption.locations import key_of


def read_only_io(fileio: FileIO) -> Any:
    """File access for pyiceberg. `new_input_of` takes a key instead of a location."""
    base = library("pyiceberg.io", needed_by="adopt_iceberg() needs", extra="adopt")

    class StoreInput(base.InputFile):  # type: ignore[misc, name-defined]
        """A file of the store."""

        def __init__(self, location: str, key: str) -> None:
            super().__init__(location)
            self._key = key

        def __len__(self) -> int:
            return fileio.head(self._key).size

        def exists(self) -> bool:
            """Whether the file exists."""
            return fileio.exists(self._key)

        def open(self, seekable: bool = True) -> Any:  # noqa: ARG002 - the name is pyiceberg's
            """Open the file."""
            try:
                return fileio.open_read(self._key)
            except NotFound as error:
                raise FileNotFoundError(str(error)) from error

    class StoreIO(base.FileIO):  # type: ignore[misc, name-defined]
        """The store."""

        def new_input(self, location: str) -> Any:
            """The file at a location."""
            return StoreInput(location, key_of(fileio, location, what="The file"))

        def new_input_of(self, key: str) -> Any:
            """The file of a key."""
            return StoreInput(f"{fileio.url}/{key}", key)

        def new_output(self, location: str) -> Any:
            """Refused."""
            raise PermissionError(f"{location} is of a foreign table, which is only read.")

        def delete(self, location: Any) -> None:
            """Refused."""
            raise PermissionError(f"{location} is of a foreign table, which is only read.")

    return StoreIO()

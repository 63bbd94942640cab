"""pyiceberg's file access over any store of `fileio`, which writes too. For warehouses on emulators that its own does not know."""

from __future__ import annotations

import io
from typing import Any, ClassVar

from pyiceberg.io import FileIO, InputFile, OutputFile

from fileio.store import FileIO as Store
from objcat.adoption.locations import key_of


class _Input(InputFile):
    def __init__(self, location: str, store: Store) -> None:
        super().__init__(location)
        self._store, self._key = store, key_of(store, location, what="The file")

    def __len__(self) -> int:
        return self._store.head(self._key).size

    def exists(self) -> bool:
        return self._store.exists(self._key)

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._store.read(self._key))


class _Written(io.BytesIO):
    """Puts what was written when it is closed."""

    def __init__(self, store: Store, key: str) -> None:
        super().__init__()
        self._store, self._key = store, key

    def close(self) -> None:
        if not self.closed:
            self._store.put(self._key, self.getvalue())
        super().close()


class _Output(OutputFile):
    def __init__(self, location: str, store: Store) -> None:
        super().__init__(location)
        self._store, self._key = store, key_of(store, location, what="The file")

    def __len__(self) -> int:
        return self._store.head(self._key).size

    def exists(self) -> bool:
        return self._store.exists(self._key)

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._store)

    def create(self, overwrite: bool = False) -> Any:
        return _Written(self._store, self._key)


class StoreIO(FileIO):
    """The setting `py-io-impl` of pyiceberg names this class. store: set by the test."""

    store: ClassVar[Store]

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self.store)

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self.store)

    def delete(self, location: Any) -> None:
        self.store.delete([key_of(self.store, location, what="The file")])

"""What two handles of one process do: they share what the process knows of the log, see `objcat.timeline.process_log`."""

from __future__ import annotations

from dataclasses import dataclass

from fileio.errors import FileIOError
from objcat.errors import ObjcatError
from objcat.timeline.process_log import process_log
from tests.explorer.actors import Participant, Role
from tests.explorer.roles import TABLE_NAME


@dataclass(frozen=True, slots=True)
class TwoHandles:
    """Two threads of one process, whose turns come one after the other. Both begin with the table as it was at the beginning."""

    first: Role
    second: Role

    def __call__(self, me: Participant) -> None:
        place = me.fileio
        shared = process_log(place.child(TABLE_NAME))
        failed: Exception | None = None
        try:
            self.first(me)
        except (ObjcatError, FileIOError) as error:
            failed = error  # The other thread goes on.
        me.fileio = place
        self.second(me)
        assert shared is process_log(place.child(TABLE_NAME))
        if failed is not None:
            raise failed

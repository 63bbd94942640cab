"""`ShownProgress`: where a run of an ingest is, for people: one changing line on a terminal, and lines of the log elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace

from fileio.env import Env
from objcat.cli.output import changing_line, words
from objcat.common.terminal import visible
from objcat.ingest.runner import Ingest, IngestProgress

LOOK_S = 1.0
LINE_S = 60.0
"""Off a terminal a line comes this often, and whenever the run begins to do something else."""
LAG_S = 30.0
"""From here on a lag that grows without a commit is shown: then the run waits for something."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

logger = logging.getLogger("objcat.ingest")


def number_of(number: int, what: str) -> str:
    """A number with its noun, such as `1 commit` and `2,000 commits`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


class ShownProgress:
    """Shows a run on standard error until it is stopped. Warnings of the log are shown there too.

    Args:
        name: of the source.
        is_once: whether the run ends by itself; then what it begins to do is no news off a terminal.
        env: clock and thread.
    """

    def __init__(self, name: str, *, is_once: bool, env: Env) -> None:
        self._name = name
        self._is_once = is_once
        self._env = env
        self._line = changing_line(f"{name}: begins")
        self._last: IngestProgress | None = None
        self._told: str | None = None
        self._told_s = env.monotonic_s()
        log_to(None if self._line is None else self._print)

    def tell(self, at: IngestProgress) -> None:
        """A commit was made."""
        self._last = at
        if self._line is not None:
            self._line.update(words(self._text(at)))

    def start(self, made: Ingest) -> Callable[[], None]:
        """Begin. Returns what stops it."""
        if self._line is not None:
            self._line.start()
        else:
            logger.setLevel(logging.INFO)
        stop_looks = self._env.repeat(lambda: self._look(made), every_s=LOOK_S, first_s=LOOK_S)

        def stop() -> None:
            stop_looks()
            if self._line is not None:
                self._line.stop()
                log_to(None)

        return stop

    def _look(self, made: Ingest) -> None:
        at = self._last
        if at is not None:
            lag_s = made.lag.seconds()
            # In between, it is the age of a commit behind which there may be nothing.
            at = replace(at, lag_s=lag_s) if lag_s == 0 or (lag_s or 0) > LAG_S else at
        elif (is_consistent := made.metrics.value("consistent")) is not None:
            at = IngestProgress(
                slot=None, is_consistent=bool(is_consistent), table=None, rows=0, changes=0, commits=0, lag_s=made.lag.seconds()
            )
        text = f"{self._name}: waits for its source" if at is None else self._text(at)
        if self._line is not None:
            self._line.update(words(text))
            return
        doing, now_s = "waits" if at is None else _doing(at), self._env.monotonic_s()
        if now_s - self._told_s >= LINE_S or (doing != self._told and not self._is_once):
            self._told, self._told_s = doing, now_s
            logger.info("%s", text)

    def _text(self, at: IngestProgress) -> str:
        rows = "" if at.table is None else f", {number_of(at.rows, 'row')}"
        slot = "" if at.slot is None else f"slot {at.slot}, "
        lag = "" if at.lag_s is None else f", {at.lag_s:,.1f} s behind"
        return f"{self._name}: {_doing(at)}{rows}; {slot}{number_of(at.commits, 'commit')}, {number_of(at.changes, 'change')}{lag}"

    def _print(self, text: str) -> None:
        """Print a line above the one that changes."""
        assert self._line is not None
        self._line.console.print(words(text), soft_wrap=True)


def log_to(show: Callable[[str], None] | None) -> None:
    """Let the log go to standard error, or to a function that prints a line of it."""
    handler = logging.StreamHandler(sys.stderr) if show is None else _LineHandler(show)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format=_FORMAT, force=True)


class _LineHandler(logging.Handler):
    """Gives each record as a line to a function."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Give it."""
        self._show(visible(self.format(record)))


def _doing(at: IngestProgress) -> str:
    return f"reads {at.table}" if at.table is not None else "follows" if at.is_consistent else "catches up"

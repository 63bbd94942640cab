"""The command line: `objcat store-check`, `ls`, `log`, `show`, `doctor`, `rollback`, `archive`, `collect`, `purge`, `maintain`.

Exit codes: 0 all is well; 1 the answer is no (a store that is not fit, a table that is not whole); 2 wrong input, missing credentials, or
a store that cannot be asked. Errors are one sentence on stderr.
"""

from __future__ import annotations

import sys

import typer

from fileio import FileIOError
from objcat.cli import contents, health, history, lakes, maintain, store, upkeep
from objcat.cli.common import EXIT_WRONG
from objcat.errors import ObjcatError

app = typer.Typer(name="objcat", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _objcat() -> None:
    """Lakehouse tables on a bucket and nothing else."""


app.command("ls")(lakes.ls)
app.command("log")(history.log)
app.command("show")(history.show)
app.command("stats")(contents.stats)
app.command("files")(contents.files)
app.command("partitions")(contents.partitions)
app.command("doctor")(health.doctor)
app.command("rollback")(health.rollback)
app.command("archive")(upkeep.archive)
app.command("collect")(upkeep.collect)
app.command("purge")(upkeep.purge)
app.command("maintain")(maintain.maintain)
app.command("store-check")(store.store_check)


def main() -> None:
    """The entry point `objcat`: runs the command and turns every error of ours into one sentence and exit code 2."""
    try:
        app()
    except (FileIOError, ObjcatError) as error:
        print(f"objcat: {error}", file=sys.stderr)
        sys.exit(EXIT_WRONG)

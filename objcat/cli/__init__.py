"""The command line: `objcat --help` names the commands.

Exit codes: 0 all is well; 1 the answer is no (a store that is not fit, a table that is not whole); 2 wrong input, missing credentials, or
a store that cannot be asked; 130 it was interrupted; 143 it was told to end, by SIGTERM. Errors are one sentence on stderr; with --json
one object there.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fileio.errors import FileIOError
from objcat.cli import archive, contents, doctor, history, ls, maintain, profiles, report, rows, services, store
from objcat.cli.common import EXIT_WRONG
from objcat.cli.output import say, say_error, wants_json
from objcat.errors import ObjcatError
from objcat.version import VERSION

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 128 + signal.SIGTERM
_USAGE_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")
"""A mistake in a call of the command line. Versions of typer keep it in different places."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as of whoever stops a container: what Ctrl-C does is right then too."""


def _terminate(number: int, _frame: object) -> None:
    # Whoever sends it again does not want to wait for what is under way.
    signal.signal(number, signal.SIG_DFL)
    raise Terminated


class Commands(TyperGroup):
    """The commands, which end with a sentence when they are interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as why:
            how, code = ("ended by SIGTERM", EXIT_TERMINATED) if isinstance(why, Terminated) else ("interrupted", EXIT_INTERRUPTED)
            said = "what has a slot of the log is done and the rest is not visible: call it again to go on"
            say_error("Interrupted", f"{how}; {said}, and `objcat rollback TABLE` to tidy up", code)
            raise typer.Exit(code) from None


app = typer.Typer(name="objcat", cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _tell_version(value: bool) -> None:
    if value:
        say(f"objcat {VERSION}")
        raise typer.Exit


@app.callback()
def _objcat(
    profile: Annotated[
        str | None,
        typer.Option("--profile", envvar=profiles.PROFILE_VARIABLE, help="The name of a connection profile. `objcat profiles` lists them."),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
) -> None:
    """Lakehouse tables on a bucket and nothing else."""
    profiles.chosen.set(None if profile is None else profiles.find_profile(profile))


app.command("ls")(ls.ls)
app.command("undrop")(services.undrop)
app.command("schema")(contents.schema)
app.command("query")(rows.query)
app.command("export")(rows.export)
app.command("report")(report.report)
app.command("log")(history.log)
app.command("show")(history.show)
app.command("stats")(contents.stats)
app.command("files")(contents.files)
app.command("partitions")(contents.partitions)
app.command("doctor")(doctor.doctor)
app.command("rollback")(doctor.rollback)
app.command("compact")(services.compact)
app.command("cluster")(services.cluster)
app.command("split")(services.split)
app.command("clean")(services.clean)
app.command("savepoint")(services.savepoint)
app.command("release")(services.release)
app.command("restore")(services.restore)
app.command("erase")(services.erase)
app.command("archive")(archive.archive)
app.command("collect")(archive.collect)
app.command("purge")(archive.purge)
app.command("maintain")(maintain.maintain)
app.command("profiles")(profiles.profiles)
app.command("store-check")(store.store_check)


def main() -> None:
    """The entry point `objcat`: runs the command. An error of ours is one sentence, or one object of JSON, and exit code 2."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # The first process of a container is not ended by a signal that it does not handle.
        signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character shows its number.
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(_run())
    except (FileIOError, ObjcatError) as error:
        _fail(error)
    except _USAGE_ERROR as error:
        # Only where JSON is wanted: else it has been said.
        _fail(error, code=error.exit_code, said=f"{error.format_message()}: see --help of the command")
    except BrokenPipeError:
        # Whoever read the output has enough of it. Nothing more may be written there, not even at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # Of this machine: a full disk, a file that may not be written.
        _fail(error, said=f"{error}: mend that, and call it again")


def _run() -> int:
    """The exit code."""
    if not wants_json():
        app()
        return 0
    code = app(standalone_mode=False)
    return code if isinstance(code, int) else 0


def _fail(error: Exception, *, code: int = EXIT_WRONG, said: str | None = None) -> NoReturn:
    """Say an error on stderr, and end."""
    say_error(type(error).__name__, str(error) if said is None else said, code)
    sys.exit(code)

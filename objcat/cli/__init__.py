"""The command line: `objcat --help` lists the commands.

Begin with `main`. Each command is a function in a module here; typer makes its options, and `output.py` prints.
Exit codes: 0 success; 1 the answer is no (a store that is not fit, a damaged table); 2 wrong input, missing credentials, or a store that
does not answer; 130 interrupted; 143 ended by SIGTERM. An error is one message on stderr, or one object with --json.
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
from objcat.cli import (
    adopt,
    archive,
    contents,
    doctor,
    files_in_place,
    history,
    ingest,
    ls,
    maintain,
    mirror,
    profiles,
    reencode,
    refresh,
    report,
    rows,
    serve,
    services,
    store,
)
from objcat.cli.common import EXIT_WRONG
from objcat.cli.output import say, say_error, wants_json
from objcat.common.memory_errors import is_full, out_of_memory
from objcat.errors import ObjcatError, OutOfMemory
from objcat.version import VERSION

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 128 + signal.SIGTERM
_USAGE_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")
"""A mistake in a call of the command line. Versions of typer have it in different modules."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, for example from a container that stops. It is handled like Ctrl-C."""


def _terminate(number: int, _frame: object) -> None:
    # A second signal ends the process at once.
    signal.signal(number, signal.SIG_DFL)
    raise Terminated


class Commands(TyperGroup):
    """The commands, which end with a message when they are interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as why:
            how, code = ("Ended by SIGTERM", EXIT_TERMINATED) if isinstance(why, Terminated) else ("Interrupted", EXIT_INTERRUPTED)
            said = "Commits that have a slot are done; the rest is not visible. Call the command again to go on"
            say_error("Interrupted", f"{how}. {said}, and run `objcat rollback TABLE` to clean up.", code)
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
app.command("move")(archive.move)
app.command("adopt")(adopt.adopt)
app.command("create-in-place")(files_in_place.create_in_place)
app.command("refresh-files")(files_in_place.refresh_files)
app.command("precompute")(files_in_place.precompute)
app.command("promote")(files_in_place.promote)
app.command("refresh")(refresh.refresh)
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
app.command("reencode")(reencode.reencode)
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
app.command("mirror")(mirror.mirror)
app.add_typer(ingest.ingest)
app.command("serve")(serve.serve)
app.command("profiles")(profiles.profiles)
app.command("store-check")(store.store_check)


def main() -> None:
    """The entry point `objcat`: runs the command. An error of objcat is one message, or one JSON object, and exit code 2."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # The first process of a container is not ended by a signal without a handler.
        signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character shows its code.
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(_run())
    except OutOfMemory as error:
        _fail_of_memory(error)
    except (FileIOError, ObjcatError) as error:
        _fail(error)
    except _USAGE_ERROR as error:
        # Only for JSON: otherwise typer has printed it.
        _fail(error, code=error.exit_code, said=f"{error.format_message().rstrip('.')}. See --help of the command.")
    except BrokenPipeError:
        # The reader of the output has closed it. Nothing more may be written there, not even at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # An error of this machine: a full disk, a file that is not writable.
        if is_full(error):
            _fail_of_memory(error)
        _fail(error, said=f"{error}. Correct that, and call the command again.")
    except Exception as error:
        if not is_full(error):
            raise
        _fail_of_memory(error)


def _run() -> int:
    """Run the command and return its exit code."""
    if not wants_json():
        app()
        return 0
    code = app(standalone_mode=False)
    return code if isinstance(code, int) else 0


def _fail_of_memory(error: Exception) -> NoReturn:
    """Print what a full memory means, and exit at once: under the limit, some libraries do not survive the end of a process."""
    full = error if isinstance(error, OutOfMemory) else out_of_memory(error, f"objcat {' '.join(sys.argv[1:2])}".rstrip())
    say_error(type(full).__name__, str(full), EXIT_WRONG)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_WRONG)


def _fail(error: Exception, *, code: int = EXIT_WRONG, said: str | None = None) -> NoReturn:
    """Print an error to stderr, and exit."""
    say_error(type(error).__name__, str(error) if said is None else said, code)
    sys.exit(code)

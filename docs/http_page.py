"""What can be asked of a dashboard? Read from its table of routes."""

from docs.tables import code, prose, table
from paceline.dashboard.auth import HEADERS
from paceline.dashboard.requests import MAX_BYTES
from paceline.dashboard.routes import ROUTES
from paceline.dashboard.stream import CAPACITY, Kind

_KINDS = {
    Kind.FRAME: "new rows of steps: after, seq, now_s, steps",
    Kind.VIEW: "the view of the snapshot, without its events",
    Kind.EVENT: "something happened: seq, t_s, kind, who, glyph, text, fields",
    Kind.RESET: "look anew: take a snapshot",
}


def http_page() -> list[str]:
    return [
        "# HTTP",
        "",
        "What `paceline dashboard` answers. Every request shows the token: as `Authorization: Bearer TOKEN`,",
        "or as the cookie that opening the printed address sets. What changes something must come from the",
        "dashboard's own page or from a program with the bearer, as `application/json` of at most",
        f'{MAX_BYTES} bytes. An error is `{{"error": …, "hint": …}}`.',
        "See [what a dashboard is](../concepts/dashboard.md).",
        "",
        *table(
            ("request", "answer", "takes"),
            (
                (code(f"{route.method} {route.path}"), prose(route.what), prose(route.takes))
                for route in ROUTES
            ),
        ),
        "",
        "## Events of the stream",
        "",
        f"A viewer that does not read has room for {CAPACITY} of them.",
        "",
        *table(("event", "holds"), ((code(kind.value), text) for kind, text in _KINDS.items())),
        "",
        "## Headers of every answer",
        "",
        *table(("header", "value"), ((code(name), code(value)) for name, value in HEADERS.items())),
    ]

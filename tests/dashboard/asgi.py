"""ASGI test client: calls the dashboard's application directly, without a socket."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import Message, Scope

from paceline.dashboard.launch import Settings
from paceline.dashboard.server import build

TOKEN = "a-token-of-this-test"
PORT = 8642
HOST = f"127.0.0.1:{PORT}"
OURS = {"host": HOST, "cookie": f"paceline_{PORT}={TOKEN}"}
FROM_PAGE = {
    **OURS,
    "origin": f"http://{HOST}",
    "sec-fetch-site": "same-origin",
    "content-type": "application/json",
}


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:  # Any: whatever the answer holds
        return json.loads(self.body)


def settings(place: Path, page: Path, **more: Any) -> Settings:  # Any: fields of Settings
    page.mkdir(exist_ok=True)
    (page / "index.html").write_text("<!doctype html>")
    return Settings(place=place, token=TOKEN, port=PORT, page=page, **more)


def send_request(
    text: Settings, method: str, path: str, headers: dict[str, str], body: bytes = b"", *, query: str = ""
) -> Answer:
    """One request to an application that is started for it, and stopped behind it."""
    return asyncio.run(_send_request(text, method, path, headers, body, query))


async def _send_request(
    text: Settings, method: str, path: str, headers: dict[str, str], body: bytes, query: str
) -> Answer:
    app, answer = build(text, PORT), Answer()
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
        "scheme": "http",
        "root_path": "",
    }
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await asyncio.sleep(3600)
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            answer.body += message.get("body", b"")

    async with app.lifespan():
        await app(scope, receive, send)
    return answer

"""Access control of the dashboard: every route is checked, so that a new one cannot be forgotten."""

from pathlib import Path

import pytest
from tests.dashboard.asgi import FROM_PAGE, HOST, OURS, PORT, TOKEN, send_request, settings

from paceline.dashboard.auth import SAFE_METHODS, Guard, Head, names_of
from paceline.dashboard.launch import Settings
from paceline.dashboard.routes import ROUTES

GUARD = Guard(token=TOKEN, names=names_of("127.0.0.1"), cookie=f"paceline_{PORT}")
WALKED = [(road.method, road.path.replace("{name}", "app.js")) for road in ROUTES if not road.is_open]
CHANGES = [(method, path) for method, path in WALKED if method not in SAFE_METHODS]


@pytest.fixture
def empty(tmp_path: Path) -> Settings:
    (tmp_path / "runs").mkdir()
    return settings(tmp_path / "runs", tmp_path / "page")


def judged(method: str, path: str, headers: dict[str, str], token: str = "") -> int:
    """The status of the refusal; 0: it may in."""
    refusal = GUARD.judge(Head(method=method, path=path, token_in_query=token, headers=headers))
    return 0 if refusal is None else refusal.status


@pytest.mark.parametrize(("method", "path"), WALKED)
def test_no_route_is_open_without_the_token_or_under_another_name(
    empty: Settings, method: str, path: str
) -> None:
    headers = FROM_PAGE if method not in SAFE_METHODS else OURS
    without = {name: value for name, value in headers.items() if name != "cookie"}
    assert send_request(empty, method, path, without).status == 401
    assert (
        send_request(
            empty, method, path, {**headers, "cookie": f"paceline_{PORT}=another-token-of-16"}
        ).status
        == 401
    )
    assert send_request(empty, method, path, {**headers, "host": "evil.example:8642"}).status == 421
    assert send_request(empty, method, path, without, query=f"token={TOKEN}").status == (
        200 if path == "/" else 401
    )


def test_one_route_is_open_and_discloses_nothing(empty: Settings) -> None:
    assert [(road.method, road.path) for road in ROUTES if road.is_open] == [("GET", "/healthz")]
    answer = send_request(empty, "GET", "/healthz", {"host": "10.1.2.3:8642"}, query=f"token={TOKEN}")
    assert (answer.status, answer.body) == (200, b'{"ok":true}')
    assert "set-cookie" not in answer.headers
    assert send_request(empty, "POST", "/healthz", {"host": HOST}).status == 403


def test_a_wrong_token_in_an_address_is_not_answered_with_the_right_one(empty: Settings) -> None:
    answer = send_request(empty, "GET", "/", OURS, query="token=another-token-of-16")  # let in by its cookie
    assert answer.status == 200
    assert "set-cookie" not in answer.headers
    assert "set-cookie" not in send_request(empty, "GET", "/api/v1/runs", OURS, query="token=x").headers


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_no_other_page_can_change_anything(empty: Settings, method: str, path: str) -> None:
    foreign = (
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    )
    for headers in foreign:
        assert send_request(empty, method, path, {**FROM_PAGE, **headers}).status == 403, headers
    unsaid = {name: value for name, value in FROM_PAGE.items() if name not in ("origin", "sec-fetch-site")}
    assert (
        send_request(empty, method, path, unsaid).status == 403
    )  # a cookie alone says nothing about who asks
    assert send_request(empty, method, path, {**FROM_PAGE, "content-type": "text/plain"}).status == 415


def test_there_are_roads_that_change_something() -> None:
    assert {path for _, path in CHANGES} == {"/api/v1/actions", "/api/v1/silences"}


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_a_readonly_dashboard_changes_nothing(tmp_path: Path, method: str, path: str) -> None:
    (tmp_path / "runs").mkdir()
    only = settings(tmp_path / "runs", tmp_path / "page", is_readonly=True)
    assert send_request(only, method, path, FROM_PAGE).status == 403


def test_a_program_shows_the_token_as_a_bearer() -> None:
    program = {"host": HOST, "authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    assert judged("POST", "/api/v1/actions", program) == 0
    assert judged("GET", "/metrics", program) == 0
    assert judged("POST", "/api/v1/actions", {**program, "authorization": "Bearer wrong"}) == 403


def test_the_page_is_opened_with_the_token_and_keeps_it_in_a_cookie(empty: Settings) -> None:
    answer = send_request(empty, "GET", "/", {"host": HOST}, query=f"token={TOKEN}")
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"paceline_{PORT}={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_a_refusal_has_a_hint_and_the_security_headers(empty: Settings) -> None:
    answer = send_request(empty, "GET", "/api/v1/runs", {"host": HOST})
    assert answer.json()["hint"]
    assert "content-security-policy" in answer.headers


def test_an_allowed_name_is_accepted_as_a_host() -> None:
    names = names_of("0.0.0.0", ["box.example"])
    assert "box.example" in names
    assert not any("0.0.0.0" in name for name in names)
    guard = Guard(token=TOKEN, names=names, cookie="a")
    secure = {"host": "box.example", "origin": "https://box.example", "sec-fetch-site": "same-origin"}
    secure |= {"cookie": f"a={TOKEN}", "content-type": "application/json"}
    assert guard.judge(Head(method="POST", path="/x", token_in_query="", headers=secure)) is None


def test_a_tunnel_may_have_another_port_but_a_page_of_another_port_may_not_send_requests() -> None:
    tunnelled = {**FROM_PAGE, "host": "localhost:9000", "origin": "http://localhost:9000"}
    assert judged("POST", "/api/v1/actions", tunnelled) == 0
    assert judged("POST", "/api/v1/actions", {**tunnelled, "origin": "http://localhost:9001"}) == 403
    assert judged("GET", "/", {**OURS, "host": "[::1]:9000"}) == 0
    assert judged("GET", "/", {**OURS, "host": "localhost.evil.example:8642"}) == 421


def test_a_run_is_no_way_to_another_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "events.jsonl").write_text("{}")
    given = settings(tmp_path / "runs", tmp_path / "page")
    assert send_request(given, "GET", "/api/v1/snapshot", OURS, query="run=../secret").status == 404
    assert send_request(given, "GET", "/assets/..%2findex.html", OURS).status == 404

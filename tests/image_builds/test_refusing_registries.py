"""Refusals of a registry are classified before anything is sent; real HTTP, with real messages."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.fixtures.servers.http_server import answering

from paceline.images.build.engine import Engine, EngineKind
from paceline.images.push.errors import ForbiddenError, LoginExpiredError, NoRegistryError, PushError
from paceline.images.push.references import RegistryDestination
from paceline.images.push.registry import Login, Registry, find_login, login_file

LOGIN = Login("AWS", "planted-password")
DIGEST = "sha256:" + "a" * 64


class Answers:
    """What the registry answers to every question, and what it was asked."""

    def __init__(self, status: int, body: object = None, challenge: str | None = None) -> None:
        self.status, self.body, self.challenge = status, body, challenge
        self.asked: list[tuple[str, str]] = []


@contextmanager
def registry(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def _answer(self) -> None:
            answers.asked.append((self.path, self.headers.get("Authorization", "")))
            if self.path.startswith("/token"):
                self._send(200, {"token": "of-the-service"}, {})
            elif self.headers.get("Authorization") == "Bearer of-the-service":
                self._send(200, None, {"Docker-Content-Digest": DIGEST})
            else:
                more = {} if answers.challenge is None else {"WWW-Authenticate": answers.challenge}
                self._send(answers.status, answers.body, more)

        def _send(self, status: int, body: object, headers: dict[str, str]) -> None:
            text = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

    with answering(Handler) as port:
        yield f"127.0.0.1:{port}"


def denied(message: str) -> dict[str, object]:
    return {"errors": [{"code": "DENIED", "message": message}]}


@pytest.mark.parametrize(
    ("answers", "login", "kind"),
    [
        (
            Answers(403, denied("Your authorization token has expired. Reauthenticate and try again.")),
            LOGIN,
            LoginExpiredError,
        ),
        (Answers(403, denied("User: x is not authorized to perform: ecr:PutImage")), LOGIN, ForbiddenError),
        (Answers(401, denied("authentication required"), 'Basic realm="x"'), LOGIN, LoginExpiredError),
        (Answers(401, None, 'Basic realm="x"'), None, LoginExpiredError),
    ],
    ids=["expired", "forbidden", "wrong password", "no login"],
)
def test_an_invalid_login_is_reported_before_anything_is_sent(
    answers: Answers, login: Login | None, kind: type[PushError]
) -> None:
    with registry(answers) as host, pytest.raises(kind) as refused:
        Registry(host, login).check_login("team/x")
    assert type(refused.value) is kind
    assert LOGIN.password not in refused.value.what + refused.value.hint
    assert LOGIN.basic not in refused.value.what


def test_an_unreachable_registry_is_reported() -> None:
    with registry(Answers(200)) as host:
        pass
    with pytest.raises(NoRegistryError):
        Registry(host, None).check_login("x")


def test_a_token_of_another_service_is_fetched_by_the_login() -> None:
    answers = Answers(401)
    with registry(answers) as host:
        answers.challenge = f'Bearer realm="http://{host}/token",service="s"'
        there = Registry(host, LOGIN)
        there.check_login("team/x")
        assert there.digest("team/x", "1") == DIGEST
    assert (
        "/token?service=s&scope=repository%3Ateam%2Fx%3Apull%2Cpush",
        f"Basic {LOGIN.basic}",
    ) in answers.asked


def test_no_image_is_no_digest() -> None:
    with registry(Answers(404)) as host:
        assert Registry(host, None).digest("team/x", "1") is None


def test_a_login_is_read_where_podman_and_docker_leave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": {"r.example.com": {"auth": LOGIN.basic}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    assert find_login("r.example.com") == LOGIN
    assert find_login("other.example.com") is None
    helper = tmp_path / "docker-credential-planted"
    helper.write_text('#!/bin/sh\nread host\nprintf \'{"Username": "%s", "Secret": "s"}\' "$host"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    file.write_text(json.dumps({"credHelpers": {"r.example.com": "planted"}}))
    assert find_login("r.example.com") == Login("r.example.com", "s")


def test_logins_are_in_a_private_file_that_is_removed() -> None:
    with login_file({"r": LOGIN}) as file:
        assert file.path.stat().st_mode & 0o777 == 0o600
        assert file.path.parent.stat().st_mode & 0o777 == 0o700
        assert file.for_docker == {"DOCKER_CONFIG": str(file.path.parent)}
    assert not file.path.parent.exists()
    assert LOGIN.password not in repr(LOGIN)


def test_nothing_is_sent_to_the_first_place_if_the_last_refuses(tmp_path: Path) -> None:
    from paceline.images.push.publish import PushRequest, push_image

    engine = Engine(
        kind=EngineKind.PODMAN, path="/nowhere/podman", version="0"
    )  # it would fail if it were asked
    with registry(Answers(200)) as good, registry(Answers(403, denied("no"))) as bad:
        places = tuple(RegistryDestination(host=host, repository="x") for host in (good, bad))
        request = PushRequest(image="x:1", places=places, folder=tmp_path, tags=("1",), login=LOGIN)
        with pytest.raises(ForbiddenError):
            push_image(engine, request, lambda _: None)

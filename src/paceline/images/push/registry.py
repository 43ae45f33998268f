"""Registry client: the HTTP API v2 of a registry, with the login that pushes.

Read-only: it checks the login and reads the digest of a tag. The engine transfers layers.
"""

import base64
import http.client
import json
import os
import re
import shutil
import ssl
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import IO

from paceline.core import clock, environ
from paceline.images.build.engine import run_command
from paceline.images.push.errors import LoginExpiredError, NoRegistryError, classify_push_error
from paceline.images.push.references import is_local

# Never in argv, never in a log: engines receive the file's name.

_DOCKER_HUB = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def find_login(host: str) -> Login | None:
    """Login that `podman login`, `docker login` or a credential helper stored for this registry."""
    for file in environ.registry_login_files():
        try:
            document = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            continue  # absent, or not for this command to fix
        if (login := _in_file(document, host)) is not None:
            return login
    return None


def _in_file(config: Mapping[str, object], host: str) -> Login | None:
    names = [host, _DOCKER_HUB] if host == "docker.io" else [host, f"https://{host}"]
    helpers = config.get("credHelpers")
    auths = config.get("auths")
    for name in names:
        if isinstance(helpers, dict) and isinstance(helper := helpers.get(name), str):
            return _from_helper(helper, name)
        entry = auths.get(name) if isinstance(auths, dict) else None
        if isinstance(entry, dict) and isinstance(coded := entry.get("auth"), str) and coded:
            user, _, password = base64.b64decode(coded).decode().partition(":")
            return Login(user, password)
    store = config.get("credsStore")
    return _from_helper(store, names[0]) if isinstance(store, str) and store else None


def _from_helper(helper: str, host: str) -> Login | None:
    path = shutil.which(f"docker-credential-{helper}")
    if path is None:
        return None
    done = run_command([path, "get"], stdin=host, timeout_s=30.0)
    if not done.is_well:
        return None
    credentials = json.loads(done.text)
    return Login(str(credentials["Username"]), str(credentials["Secret"]))


@dataclass(frozen=True, slots=True)
class LoginFile:
    """Login file: for docker its folder, for the other engines the file."""

    path: Path

    @property
    def for_docker(self) -> dict[str, str]:
        return {"DOCKER_CONFIG": str(self.path.parent)}


@contextmanager
def login_file(logins: Mapping[str, Login]) -> Iterator[LoginFile]:
    """A file with these logins and no others, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="paceline-login-") as temp_dir:
        path = Path(temp_dir) / "config.json"
        auths = {host: {"auth": login.basic} for host, login in logins.items()}
        if "docker.io" in auths:  # docker itself reads the old name
            auths[_DOCKER_HUB] = auths["docker.io"]
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as out:
            json.dump({"auths": auths, **_docker_context(Path(temp_dir))}, out)
        yield LoginFile(path)


def _docker_context(folder: Path) -> dict[str, str]:
    """docker's server is configured next to its logins; the user's setting is kept."""
    own = environ.docker_config_folder()
    try:
        current = json.loads((own / "config.json").read_text("utf-8")).get("currentContext")
    except (OSError, ValueError):
        return {}
    if not isinstance(current, str):
        return {}
    (folder / "contexts").symlink_to(own / "contexts")
    return {"currentContext": current}


_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_PART = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_S = 30.0
_PAUSES_S = (0.2, 1.0, 3.0)  # before each retry: overload is mostly short
_AGAIN = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
_ADDRESSES = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: Message
    text: str


class _Onward(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but sends the login to no other host."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        onward = super().redirect_request(req, fp, code, msg, headers, newurl)
        if onward is not None and _origin(newurl) != _origin(req.full_url):
            onward.remove_header("Authorization")
        return onward


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


class Registry:
    def __init__(self, host: str, login: Login | None, *, insecure: bool = False) -> None:
        self.host = host
        self.is_plain = insecure or is_local(host)
        self.url = f"{'http' if self.is_plain else 'https'}://{_ADDRESSES.get(host, host)}"
        self._login = login
        # A proxy does not know what is on this machine.
        more = [urllib.request.ProxyHandler({})] if is_local(host) else []
        self._opener = urllib.request.build_opener(_Onward, *more)

    def check_login(self, repository: str) -> None:
        """Raises where the login is not good for this repository, before anything is sent."""
        answer = self._request("GET", "/v2/", f"repository:{repository}:pull,push")
        if answer.status == 401 and self._login is None:
            raise LoginExpiredError(
                f"{self.host} requires a login, and there is none",
                "log in: podman login, docker login; or --username NAME --password-stdin",
            )
        if answer.status >= 400:
            raise self._refusal(answer, self.host)

    def digest(self, repository: str, reference: str) -> str | None:
        """Digest of a tag; None without such an image."""
        path = f"/v2/{repository}/manifests/{reference}"
        answer = self._request("HEAD", path, f"repository:{repository}:pull")
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise self._refusal(answer, f"{self.host}/{repository}:{reference}")
        digest = answer.headers.get("Docker-Content-Digest")
        if digest is None:
            raise NoRegistryError(
                f"{self.host} returned no digest of {repository}:{reference}",
                "check that it is a registry (v2)",
            )
        return str(digest)

    def _refusal(self, answer: _Answer, where: str) -> Exception:
        if answer.status in _AGAIN:
            return NoRegistryError(
                f"{where} returned {answer.status}, also after {len(_PAUSES_S)} retries", "try again later"
            )
        return classify_push_error(f"error: {answer.status} {answer.text}", where)

    def _request(self, method: str, path: str, scope: str) -> _Answer:
        answer = self._send(method, path, {} if self._login is None else {"Authorization": self._basic()})
        challenge = answer.headers.get("WWW-Authenticate", "")
        if answer.status == 401 and challenge.lower().startswith("bearer "):
            token = self._token(dict(_PART.findall(challenge)), scope)
            answer = self._send(method, path, {"Authorization": f"Bearer {token}"})
        return answer

    def _basic(self) -> str:
        assert self._login is not None
        return f"Basic {self._login.basic}"

    def _token(self, parts: dict[str, str], scope: str) -> str:
        query = urllib.parse.urlencode({"service": parts.get("service", ""), "scope": scope})
        headers = {} if self._login is None else {"Authorization": self._basic()}
        answer = self._fetch("GET", f"{parts.get('realm', '')}?{query}", headers)
        if answer.status >= 400:
            raise self._refusal(answer, self.host)
        try:
            body = json.loads(answer.text)
            return str(body.get("token") or body["access_token"])
        except (ValueError, AttributeError, KeyError) as error:
            raise NoRegistryError(
                f"{self.host} refers to {parts.get('realm')!r} for a token, which returns none",
                "check that it is a registry (v2), not a proxy's page",
            ) from error

    def _send(self, method: str, path: str, headers: dict[str, str]) -> _Answer:
        return self._fetch(method, f"{self.url}{path}", {**headers, "Accept": _MANIFESTS})

    def _fetch(self, method: str, url: str, headers: dict[str, str]) -> _Answer:
        for pause_s in _PAUSES_S:
            answer = self._fetch_once(method, url, headers)
            if answer.status not in _AGAIN:
                return answer
            clock.SystemClock().sleep(pause_s)
        return self._fetch_once(method, url, headers)

    def _fetch_once(self, method: str, url: str, headers: dict[str, str]) -> _Answer:
        # The login of a TLS registry must not be sent in clear text.
        if not url.startswith("https://") and not (self.is_plain and url.startswith("http://")):
            raise NoRegistryError(f"{self.host} redirects to {url!r}", "check that it is a registry (v2)")
        request = urllib.request.Request(url, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as reply:
                text = reply.read().decode("utf-8", "replace")
                return _Answer(status=reply.status, headers=reply.headers, text=text)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode("utf-8", "replace")
                return _Answer(status=error.code, headers=error.headers, text=text)
        except (OSError, ssl.SSLError, http.client.HTTPException) as error:
            raise classify_push_error(f"Could not connect: {error}", self.host) from error

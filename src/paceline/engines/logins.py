"""Who are we to a registry? The user's own login, or one that was said; kept in a file that only we can read.

Never in argv, never in a log: engines are told the file's name.
"""

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline import environ
from paceline.engines.process import ask

_DOCKER_HUB = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def known_login(host: str) -> Login | None:
    """What `podman login`, `docker login` or a credential helper left for this registry."""
    for file in environ.registry_login_files():
        try:
            said = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            continue  # not there, or not ours to mend
        if (found := _in_file(said, host)) is not None:
            return found
    return None


def _in_file(said: Mapping[str, object], host: str) -> Login | None:
    names = [host, _DOCKER_HUB] if host == "docker.io" else [host, f"https://{host}"]
    helpers, auths = said.get("credHelpers"), said.get("auths")
    for name in names:
        if isinstance(helpers, dict) and isinstance(helper := helpers.get(name), str):
            return _from_helper(helper, name)
        entry = auths.get(name) if isinstance(auths, dict) else None
        if isinstance(entry, dict) and isinstance(coded := entry.get("auth"), str) and coded:
            user, _, password = base64.b64decode(coded).decode().partition(":")
            return Login(user, password)
    store = said.get("credsStore")
    return _from_helper(store, names[0]) if isinstance(store, str) and store else None


def _from_helper(helper: str, host: str) -> Login | None:
    path = shutil.which(f"docker-credential-{helper}")
    if path is None:
        return None
    done = ask([path, "get"], said=host, timeout_s=30.0)
    if not done.is_well:
        return None
    found = json.loads(done.text)
    return Login(str(found["Username"]), str(found["Secret"]))


@dataclass(frozen=True, slots=True)
class LoginFile:
    """For docker the folder, for the others the file."""

    path: Path

    @property
    def for_docker(self) -> dict[str, str]:
        return {"DOCKER_CONFIG": str(self.path.parent)}


@contextmanager
def login_file(logins: Mapping[str, Login]) -> Iterator[LoginFile]:
    """A file with these logins and no others, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="paceline-login-") as made:
        path = Path(made) / "config.json"
        auths = {host: {"auth": login.basic} for host, login in logins.items()}
        if "docker.io" in auths:  # docker itself looks for the old name
            auths[_DOCKER_HUB] = auths["docker.io"]
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as out:
            json.dump({"auths": auths, **_docker_context(Path(made))}, out)
        yield LoginFile(path)


def _docker_context(folder: Path) -> dict[str, str]:
    """Which server docker talks to is said beside its logins; that stays as the user has it."""
    own = environ.docker_config_folder()
    try:
        current = json.loads((own / "config.json").read_text("utf-8")).get("currentContext")
    except (OSError, ValueError):
        return {}
    if not isinstance(current, str):
        return {}
    (folder / "contexts").symlink_to(own / "contexts")
    return {"currentContext": current}

"""From a Dockerfile with a conflict to an image in a registry, as a user types it; no secret is shown.

A password and a token are planted. While the commands run, every command line on this machine is checked;
then all that they left: output, reports, layers, the registry's files, temporary files.
"""

import base64
import gzip
import json
import os
import site
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jsonschema
import pytest
from tests.fixtures.containers.engine import registry_at
from tests.fixtures.processes.command import ROOT
from tests.image_builds.builds import HEAD, PIP

SCHEMAS = ROOT / "src" / "paceline" / "images" / "schemas"
USER, PASSWORD = "builder", "planted-Zx81-secret"
# What `htpasswd -nbB builder planted-Zx81-secret` says.
HTPASSWD = "builder:$2b$04$IzSc8ZLTugY/6wUk6ngEJejGrD6kZdlbjB48z4WepHAC18dgNyLjW\n"
TOKEN = "hf_planted0123456789abcdefTOKEN"
SECRETS = (PASSWORD, TOKEN, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())
DOCKERFILE = HEAD + PIP + "RUN --mount=type=secret,id=token test -s /run/secrets/token\nUSER 1000\n"


@contextmanager
def watching_command_lines() -> Iterator[list[str]]:
    """Collects those that hold a secret, as long as the block runs."""
    seen: list[str] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    line = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    if any(secret in line for secret in SECRETS):
                        seen.append(line)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()


class Typing:
    """A user at a terminal, whose temporary files lie in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, ""
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def paceline(self, *words: str, stdin: str = "") -> dict[str, object]:
        result = subprocess.run(
            [sys.executable, "-m", "paceline", "image", *words, "--engine", "podman", "--json"],
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT / "src")},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.said += result.stdout + result.stderr
        assert result.returncode == 0, result.stdout + result.stderr
        answer = json.loads(result.stdout)["data"]
        assert isinstance(answer, dict)
        return answer


def valid(answer: object, name: str) -> None:
    jsonschema.validate(answer, json.loads((SCHEMAS / f"{name}.json").read_text()))


@pytest.mark.usefixtures("here")
def test_a_conflict_is_fixed_built_tested_pushed_and_verified(project: Path, tmp_path: Path) -> None:
    (project / "Dockerfile").write_text(DOCKERFILE)
    (project / "requirements.txt").write_text("transformers==4.44.2\ntokenizers==0.21.1\nrequests==2.32.3\n")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    image = "localhost/whole-way:1"
    auth = f"auth:\n  htpasswd: {{realm: tests, path: {tmp_path / 'htpasswd'}}}\n"
    user = Typing(tmp_path)

    with registry_at(tmp_path / "registry", more=auth) as address, watching_command_lines() as seen:
        secret = f"id=token,src={tmp_path / 'token'}"
        built = user.paceline("build", "project", "--tag", image, "--secret", secret, "--report", "reports")
        assert built["ok"] is True
        assert [fix["id"] for fix in built["fixes"]] == ["hugging-face-skew"]  # type: ignore[attr-defined]
        tested = user.paceline("test", image, *computing(tmp_path), "--report", "reports")
        assert tested["ok"] is True
        login = ("--username", USER, "--password-stdin")
        where = ("--to", f"{address}/team/model", "--tags", "semantic", "--version", "1.4.2")
        pushed = user.paceline("push", image, *where, *login, "--report", "reports", stdin=f"{PASSWORD}\n")
        digest = _asked_digest(f"http://{address}/v2/team/model/manifests/1.4.2")

    assert_computed(tested)
    assert pushed["digest"] == digest, "what the push says is what the registry has"
    names = [push["name"] for push in pushed["sent"]]  # type: ignore[attr-defined]
    assert names == [f"{address}/team/model:{tag}" for tag in ("1.4.2", "1.4", "1")]
    for name in ("build", "test", "push"):
        valid(json.loads((tmp_path / "reports" / f"{name}.json").read_text()), f"image-{name}")
        assert "<script" not in (tmp_path / "reports" / f"{name}.html").read_text()
    assert seen == [], "a secret was on a command line"
    assert list(user.temporary.iterdir()) == [], "temporary files were left"
    _nowhere(user.said, tmp_path)


def computing(folder: Path) -> list[str]:
    """The image is small: the true torch, and paceline, come from this machine by mounts."""
    (packages,) = (path for path in site.getsitepackages() if Path(path, "torch").is_dir())
    mounts = ["--volume", f"{packages}:/site:ro", "--volume", f"{ROOT / 'src'}:/src:ro"]
    words = [
        "--level",
        "full",
        "--env",
        "PYTHONPATH=/src:/site",
        "--task",
        "xor",
        "--task-option",
        "hidden=16",
    ]
    return [*words, *mounts, "--requirements", str(folder / "project" / "requirements.txt")]


def assert_computed(tested: dict[str, object]) -> None:
    checks = {(check["group"], check["name"]): check for check in tested["checks"]}  # type: ignore[attr-defined]
    for part in ("configuration", "instantiation", "forward", "backward"):
        assert checks["model", part]["verdict"] == "passed", checks["model", part]
    for name in ("transformers", "tokenizers", "requests"):
        assert checks["imports", name]["verdict"] == "passed"
    assert tested["facts"]["torch"]["version"], "the true one was looked at"  # type: ignore[index]


def _asked_digest(url: str) -> str:
    request = urllib.request.Request(url, method="HEAD")
    request.add_header("Authorization", f"Basic {SECRETS[2]}")
    request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.headers["Docker-Content-Digest"])


def _nowhere(text: str, folder: Path) -> None:
    """No secret in what was said, in a report, or in a blob of the registry (layers are gzipped)."""
    for secret in SECRETS:
        assert secret not in text
    files = [
        path for part in ("reports", "registry/data") for path in (folder / part).rglob("*") if path.is_file()
    ]
    assert len(files) > 10
    for path in files:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        for secret in SECRETS:
            assert secret.encode() not in data, path

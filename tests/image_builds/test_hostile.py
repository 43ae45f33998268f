"""Hostile logs, contexts, modules and registries: nothing hangs or leaks."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import click
import jsonschema
import pytest
from tests.fixtures.processes.command import ROOT, paceline
from tests.fixtures.servers.http_server import answering
from tests.fixtures.wording import Wording

from paceline.cli.image_build import push as push_command
from paceline.core.errors import ConfigError
from paceline.core.redaction import redact
from paceline.images.build.attempts import BuildRequest, build_image, context_of
from paceline.images.build.engine import Engine, EngineKind, find_engine, stream
from paceline.images.build.engine_cli import BuildOptions
from paceline.images.lint.build_log import external_cause
from paceline.images.lint.check import FixResult
from paceline.images.lint.project import Project, Source, Target
from paceline.images.probe import container
from paceline.images.probe.checks import Expected, check_facts
from paceline.images.probe.container import SmokeTest
from paceline.images.push import errors
from paceline.images.push.errors import NoRegistryError, PushError
from paceline.images.push.publish import PushRequest, push_image
from paceline.images.push.references import RegistryDestination, tags_for
from paceline.images.push.registry import Login, Registry, login_file
from paceline.images.reports import build_json
from paceline.images.reports import test_json as json_of_test
from paceline.images.reports import test_page as page_of_test
from paceline.images.revision import commit_of

LOGIN = Login("me", "planted-password")
DIGEST = "sha256:" + "a" * 64
SCHEMAS = ROOT / "src" / "paceline" / "images" / "schemas"


def program(folder: Path, name: str, body: str) -> str:
    """One that only says what an engine would say."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


# ---- what a build says


def test_a_line_of_a_log_is_plain_and_has_an_end() -> None:
    script = r"printf '\033[1;31merror\033[0m: externally-managed\033]0;title\007\r\n'; "
    script += r"head -c 300000 /dev/zero | tr '\0' a"
    command_result = stream(["sh", "-c", script], timeout_s=60, on_line=lambda _: None)
    first, *_, last = command_result.text.splitlines()
    assert first == "error: externally-managed"
    assert len(last) < 20_000


def test_a_long_token_is_scanned_once() -> None:
    """A hundred thousand signs: read again from each of them, it would be ten minutes' work."""
    assert redact("a" * 100_000) == "a" * 100_000
    assert redact("a" * 1000 + "_TOKEN=hunter2") == "a" * 1000 + "_TOKEN=***"


def test_a_builder_that_cannot_cache_layers_is_reported() -> None:
    cause = external_cause("ERROR: Cache export is not supported for the docker driver.")
    assert cause is not None
    assert "buildx create" in cause


def request_for(folder: Path) -> BuildRequest:
    return BuildRequest(
        folder=folder,
        dockerfile=None,
        requirements=(),
        target=Target(today=date(2026, 11, 15)),
        options=BuildOptions(context=folder, dockerfile=folder, tags=("x:1",)),
    )


def test_what_a_build_prints_is_shown_without_its_secrets(project: Path, tmp_path: Path) -> None:
    token = "hf_aB3dEfGhIjKlMnOpQrStUvWxYz012345678"
    (project / "Dockerfile").write_text("FROM a\n")
    script = f"printf '#5 [2/2] RUN fetch {token}\\n#5 0.1 refused: {token}\\n' >&2; exit 1"
    engine = Engine(kind=EngineKind.DOCKER, path=program(tmp_path, "docker", script), version="0")
    messages: list[str] = []
    built = build_image(engine, request_for(project), messages.append)
    assert any("RUN fetch" in message for message in messages)
    assert "refused" in built.attempts[-1].log
    assert token not in "".join(messages) + built.attempts[-1].log + json.dumps(
        build_json(built, SmokeTest())
    )


def test_a_fix_that_takes_back_another_ends_the_attempts(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    (project / "Dockerfile").write_text("FROM a\n")
    engine = Engine(kind=EngineKind.DOCKER, path=program(tmp_path, "docker", "exit 1"), version="0")
    texts = iter(["FROM b\n", "FROM a\n"])

    def after_failure(*_: object) -> tuple[FixResult, list[object]]:
        files = (Source("Dockerfile", next(texts)),)
        return FixResult(
            project=Project(files=files, names=frozenset({"Dockerfile"})), applied=(), left=()
        ), []

    monkeypatch.setattr("paceline.images.build.attempts._after_failure", after_failure)
    built = build_image(engine, request_for(project), lambda _: None)
    assert len(built.attempts) == 2, "the third would be the first again"
    wording(built.stopped)
    jsonschema.validate(
        build_json(built, SmokeTest()), json.loads((SCHEMAS / "image-build.json").read_text())
    )


def test_after_three_attempts_it_is_enough(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    (project / "Dockerfile").write_text("FROM a\n")
    engine = Engine(kind=EngineKind.DOCKER, path=program(tmp_path, "docker", "exit 1"), version="0")
    texts = (f"FROM {letter}\n" for letter in "bcdef")  # there would always be something more to try

    def after_failure(*_: object) -> tuple[FixResult, list[object]]:
        files = (Source("Dockerfile", next(texts)),)
        return FixResult(
            project=Project(files=files, names=frozenset({"Dockerfile"})), applied=(), left=()
        ), []

    monkeypatch.setattr("paceline.images.build.attempts._after_failure", after_failure)
    built = build_image(engine, request_for(project), lambda _: None)
    assert (built.ok, len(built.attempts)) == (False, 3)
    wording(built.stopped)


# ---- what is built from


def test_what_a_link_leads_to_is_never_written(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "base.txt").write_text("their own")
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub").chmod(0o750)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: x")
    (folder / "requirements").symlink_to(theirs)
    (folder / "requirements.txt").write_text("mine")
    (folder / "Dockerfile").write_text("FROM a\n")
    names = ("Dockerfile", "requirements.txt", "requirements/base.txt")
    before = Project(files=tuple(Source(name, (folder / name).read_text()) for name in names))
    after = Project(files=tuple(Source(name, "fixed") for name in names))
    with context_of(folder, before, after) as made:
        assert (made.folder / "requirements.txt").read_text() == "fixed"
        assert (made.folder / ".git" / "HEAD").exists(), "a build may ask git for its version"
        assert (made.folder / "sub").stat().st_mode & 0o777 == 0o750
    assert (theirs / "base.txt").read_text() == "their own"
    assert (folder / "requirements.txt").read_text() == "mine"


def test_without_a_known_commit_the_image_is_not_tagged_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "git", 'case "$*" in *status*) exit 128;; *rev-parse*) echo 0123456789abcdef;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    commit = commit_of(tmp_path)
    assert commit is not None
    assert commit.is_dirty


def test_podman_under_dockers_name_is_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "docker", 'case "$1" in --version) echo podman version 4.3.1;; *) echo 4.3.1;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine = find_engine("docker")
    assert (engine.kind, engine.has_buildx) == (EngineKind.PODMAN, False)


# ---- what is looked into


def test_a_module_that_ends_python_is_one_failure(tmp_path: Path) -> None:
    (tmp_path / "quits.py").write_text("import os; os._exit(0)")
    requested = [("quits", "quits"), ("json", "json")]
    folders = [str(tmp_path), str(ROOT / "src/paceline/images/probe")]
    script = f"import sys, json; sys.path[:0] = {folders!r}; import script"
    script += f"; print(json.dumps(script.imports([dict(name=n, modules=[m]) for n, m in {requested!r}])))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    quits, well = json.loads(result.stdout)
    assert "exited Python" in quits["error"]
    assert well["error"] is None


def test_python_3_8_can_read_the_probe() -> None:
    """`dict[…]` outside of annotations is an error there."""
    text = container.probe_source()
    compile(text, "probe", "exec")
    assert "from paceline" not in text
    assert not re.search(r"^\w+ = (dict|list|tuple|set)\[", text, re.M)


def test_a_secret_is_refused_on_the_command_line_of_a_test() -> None:
    result = paceline(
        "image", "test", "x:1", "--env", "HF_TOKEN=hf_planted0123456789abcdef", "--engine", "podman"
    )
    assert result.code == 3
    assert "--env HF_TOKEN " in result.err
    assert "hf_planted" not in result.err


def test_a_failed_test_is_valid_escaped_and_without_secrets() -> None:
    error = "<script>alert(1)</script> password=hunter2hunter2"
    torch = {"error": error}
    facts = {
        "python": "3.11.7",
        "machine": "x86_64",
        "libc": "glibc 2.36",
        "uid": 0,
        "markers": {},
        "distributions": [],
        "missing": ["<b>"],
        "imports": [{"name": "x", "module": "x", "error": error, "seconds": 0.0}],
        "torch": torch,
        "shm_bytes": 0,
        "model": [{"part": "forward", "detail": "", "error": error, "seconds": 0.1}],
    }
    engine = Engine(kind=EngineKind.PODMAN, path="podman", version="4")
    checks = tuple(check_facts(facts, Expected()))
    tested = container.ImageTestResult(
        image="<i>:1", level="full", engine=engine, seconds=1.0, checks=checks, facts=facts, ended_at_s=0.0
    )
    text, page = json_of_test(tested), page_of_test(tested)
    jsonschema.validate(text, json.loads((SCHEMAS / "image-test.json").read_text()))
    assert "hunter2" not in json.dumps(text) + page
    assert "<script" not in page
    assert "<b>" not in page


# ---- where it is sent


class Script:
    """What a server answers, one after the other (the last again and again), and what it was asked."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        self.answers, self.asked = list(answers), list[tuple[str, str | None]]()


@contextmanager
def serving(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.asked.append((self.path, self.headers.get("Authorization")))
            status, headers, body = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

    with answering(Handler) as port:
        yield f"127.0.0.1:{port}"


HELD = (200, {"Docker-Content-Digest": DIGEST}, b"")


def test_a_redirect_does_not_give_others_the_login() -> None:
    other = Script(HELD)
    with serving(other) as elsewhere:
        first = Script((307, {"Location": f"http://{elsewhere}/x"}, b""))
        with serving(first) as host:
            assert Registry(host, LOGIN).digest("a", "1") == DIGEST
    assert first.asked[0][1] == f"Basic {LOGIN.basic}"
    assert other.asked == [("/x", None)]


def test_a_registry_that_is_overloaded_for_a_moment_is_called_again() -> None:
    script = Script((503, {}, b""), (429, {}, b""), HELD)
    with serving(script) as host:
        assert Registry(host, LOGIN).digest("a", "1") == DIGEST
    assert len(script.asked) == 3


def test_a_page_instead_of_a_token_is_reported() -> None:
    script = Script((401, {}, b""))
    with serving(script) as host:
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{host}/token",service="s"'}
        script.answers = [(401, challenge, b""), (200, {}, b"<html>please log in</html>")]
        with pytest.raises(NoRegistryError):
            Registry(host, LOGIN).check_login("a")


def test_a_proxy_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(Script(HELD)) as host:
        assert Registry(host, None).digest("a", "1") == DIGEST


def test_docker_hub_has_other_addresses_than_its_name() -> None:
    assert Registry("docker.io", None).url == "https://registry-1.docker.io"
    with login_file({"docker.io": LOGIN}) as file:
        assert set(json.loads(file.path.read_text())["auths"]) == {"docker.io", "https://index.docker.io/v1/"}


def test_what_was_pushed_before_one_destination_failed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(
        kind=EngineKind.PODMAN,
        path=program(tmp_path, "podman", f'if [ "$1" = push ]; then printf {DIGEST} > "$3"; fi'),
        version="0",
    )
    program(tmp_path, "skopeo", "echo 'Error: denied: no' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with serving(Script(HELD)) as first, serving(Script(HELD)) as two:
        places = tuple(RegistryDestination(host=host, repository="x") for host in (first, two))
        request = PushRequest(image="x:1", places=places, folder=tmp_path, tags=("1",), login=LOGIN)
        with pytest.raises(errors.ForbiddenError) as failed:
            push_image(engine, request, lambda _: None)
    assert f"{first}/x:1" in failed.value.what


def test_a_tag_of_a_strategy_is_validated_too(tmp_path: Path) -> None:
    engine = Engine(kind=EngineKind.PODMAN, path=program(tmp_path, "podman", "exit 1"), version="0")
    with serving(Script(HELD)) as host:
        request = PushRequest(
            image="x:1",
            places=(RegistryDestination(host=host, repository="x"),),
            folder=tmp_path,
            strategies=("semantic",),
            version="1.0.0-" + "a" * 130,
            login=LOGIN,
        )
        with pytest.raises(ConfigError):
            push_image(engine, request, lambda _: None)


def test_every_flag_that_a_hint_of_a_push_names_is_there() -> None:
    hints = [hint for *_, hint in errors._ROWS]
    for strategy in ("latest", "semantic", "git-sha"):
        with pytest.raises(ConfigError) as refused:
            tags_for([strategy], commit=None, version=None, may_move=False)
        hints.append(refused.value.hint)
    options = [item for item in push_command.params if isinstance(item, click.Option)]
    known = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    assert {flag for hint in hints for flag in re.findall(r"--[a-z-]+", hint)} <= known


def test_ecr_reports_a_missing_region_and_a_repository_of_another_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("boto3")
    from botocore.stub import Stubber

    from paceline.images.push.ecr import Ecr

    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with pytest.raises(ConfigError):
        Ecr(None)
    ecr = Ecr("us-east-1")
    record = {
        "repositoryName": "team/x",
        "repositoryUri": "0.dkr.ecr.us-east-1.amazonaws.com/team/x",
        "imageTagMutability": "IMMUTABLE",
    }
    try:
        with Stubber(ecr._ecr) as stub:
            stub.add_client_error("describe_repositories", "RepositoryNotFoundException")
            stub.add_client_error("create_repository", "RepositoryAlreadyExistsException")
            stub.add_response("describe_repositories", {"repositories": [record]})
            assert not ecr.repository("team/x", create=True, immutable=False).was_made
            stub.add_client_error("describe_repositories", "RepositoryNotFoundException")
            stub.add_client_error("create_repository", "AccessDeniedException")
            with pytest.raises(PushError):
                ecr.repository("team/x", create=True, immutable=False)
        only_some = {**record, "imageTagMutability": "IMMUTABLE_WITH_EXCLUSION"}
        assert not ecr._described(only_some, was_made=False).tags_move
    finally:
        ecr.close()

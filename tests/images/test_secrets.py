"""No secret leaves through any output, ordinary words stay, and each secret in an image is a finding."""

import json
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.processes.command import paceline
from tests.images.cases import TODAY

from paceline.core.clock import SystemClock
from paceline.core.errors import ConfigError, NotReadyError, PacelineError, Problem
from paceline.core.redaction import HIDDEN, LineRedactor, redact, redact_json, redact_lines
from paceline.events.log import EventLog
from paceline.images.build.attempts import BuildResult, Fix
from paceline.images.build.engine import Engine, EngineKind
from paceline.images.lint.check import apply_fixes, check, findings_from_log, redacted_diff
from paceline.images.lint.project import Finding, Level, Project, Source, Target
from paceline.images.lint.rules.secrets import SECRET
from paceline.images.lint.view import stage_views
from paceline.images.probe.checks import Check, Verdict
from paceline.images.probe.container import SmokeTest
from paceline.images.reports import build_json, build_page

TARGET = Target(today=TODAY)
ALNUM = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
URL_SAFE = ALNUM + "-_"
PASSWORD = ALNUM + "/+=!%^*.,~-_"


def _of(alphabet: str, least: int, most: int | None = None) -> st.SearchStrategy[str]:
    """Neither an ordinary word nor a number: both cases and a digit."""
    return st.text(alphabet, min_size=least - 3, max_size=(most or least + 20) - 3).map(
        lambda text: "aB3" + text
    )


TOKENS = st.one_of(
    st.builds("hf_{}".format, _of(ALNUM, 34)),
    st.builds("{}{}".format, st.sampled_from(["AKIA", "ASIA"]), st.text(UPPER, min_size=16, max_size=16)),
    st.builds("{}_{}".format, st.sampled_from(["ghp", "gho", "ghs", "ghu", "ghr"]), _of(ALNUM, 36)),
    st.builds("github_pat_{}".format, _of(ALNUM + "_", 40)),
    st.builds("glpat-{}".format, _of(URL_SAFE, 20)),
    st.builds("sk-{}".format, _of(ALNUM, 40)),
    st.builds("sk-{}-{}".format, st.sampled_from(["ant", "proj", "ant-api03"]), _of(URL_SAFE, 40)),
    st.builds("xox{}-{}".format, st.sampled_from("abprs"), _of(ALNUM + "-", 20)),
    st.builds("AIza{}".format, _of(URL_SAFE, 35)),
    st.builds("npm_{}".format, _of(ALNUM, 36)),
    st.builds("pypi-AgE{}".format, _of(URL_SAFE, 60)),
    st.builds("dckr_pat_{}".format, _of(URL_SAFE, 27)),
    st.builds("eyJ{}.eyJ{}.{}".format, _of(URL_SAFE, 20), _of(URL_SAFE, 20), _of(URL_SAFE, 20)),
)
NAMES = st.sampled_from(
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "DB_PASSWORD",
        "PGPASSWORD",
        "client_secret",
        "apiKey",
        "GITHUB_TOKEN",
        "MY_PASSPHRASE",
        "private_key",
        "GOOGLE_CREDENTIALS",
        "secretAccessKey",
        "npm_token",
        "mysql-passwd",
    ]
)
# What stands around a token does not matter; a password is recognized by what is around it.
TOKEN_PLACES = (
    "{}",
    "ENV X={}",
    "ARG {}",
    "RUN pip install x && echo {} > /f",
    "# note {}",
    'LABEL a="{}"',
    "'{}'",
    "({})",
    "RUN cat <<EOF > f\n{}\nEOF",
    "https://host/{}/x",
    "a,{},b",
    "log: {}: refused",
    "x={}&y=1",
    "<{}>",
    "a\\n{}",
    "git+https://{}@h/x",
)
NAMED_PLACES = (
    "ENV {name}={value}",
    "ENV {name} {value} and more",
    "ARG {name}='{value}'",
    'RUN export {name}="{value}" && make',
    "RUN {name}={value} make",
    'CMD ["run", "--{name}", "{value}"]',
    "RUN tool --{name} {value} x",
    "RUN tool --{name}={value}",
    '{{"{name}": "{value}"}}',
    "{name}: {value}",
    "  {name}: '{value}'\n",
    'LABEL {name}="{value}"',
    'docker run -e "{name}={value} x" y',
    "+ENV {name}={value}",
    "a\\n{name}={value}",
    "#12 0.3 {name}={value}",
    "https://h/p?{name}={value}",
    "RUN aws configure set {name} {value}",
)
PASSWORD_PLACES = (
    "RUN pip install -i https://me:{}@pypi.example.com/simple six",
    "s3://key:{}@bucket/runs",
    "--index-url=https://me:{}@h/",
    'curl -H "Authorization: Bearer {}" https://x',
    "curl -u me:{} https://x",
    "machine h login me password {}",
    "docker login -u me -p {} registry",
    "postgresql://me:{}@db:5432/x",
    "Authorization: Basic {}",
    "authorization:\n  type: Bearer\n  credentials: {}",
    "RUN echo {} | docker login -u me --password-stdin",
)
SURROUNDINGS = st.text(" \n\tabz:=#'\"/.-{}[](),\\", max_size=12)


@settings(max_examples=400, deadline=None)
@given(token=TOKENS, place=st.sampled_from(TOKEN_PLACES), before=SURROUNDINGS, after=SURROUNDINGS)
def test_no_token_of_a_known_shape_is_shown_wherever_it_stands(
    token: str, place: str, before: str, after: str
) -> None:
    shown = redact(f"{before} {place.format(token)} {after}")
    assert token not in shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "prefix",
    [
        *(
            "api_org_",
            "sk_live_",
            "sk_test_",
            "rk_live_",
            "rk_test_",
            "nvapi-",
            "pypi-",
            "dckr_oat_",
            "xapp-",
        ),
        *(f"gl{kind}-" for kind in ("ptt", "dt", "rt", "ft", "cbt", "soat", "agent", "imt", "oas")),
        *(f"sk-{kind}-" for kind in ("svcacct", "admin", "or", "lf")),
        *("GOCSPX-", "ya29.", "hooks.slack.com/services/", "hooks.slack.com/workflows/"),
        *("discord.com/api/webhooks/12/", "discordapp.com/api/webhooks/12/"),
    ],
)
def test_a_token_is_known_by_the_prefix_of_its_issuer(prefix: str) -> None:
    assert redact(f"RUN fetch {prefix}aB3dEfGhIjKlMnOpQrStUvWxYz0123456789") == f"RUN fetch {HIDDEN}"


@pytest.mark.parametrize("prefix", ["AKIA", "ASIA", "ABIA", "ACCA"])
def test_a_secret_key_of_aws_is_hidden_beside_its_access_key(prefix: str) -> None:
    key = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12"
    assert redact(f"RUN setup {prefix}IOSFODNN7EXAMPL1 {key}") == f"RUN setup {HIDDEN} {HIDDEN}"
    assert redact(f"RUN setup {key}") == f"RUN setup {key}"


@pytest.mark.parametrize("kind", ["ant", "proj"])
def test_a_key_without_a_digit_is_known_by_its_kind(kind: str) -> None:
    assert redact(f"RUN fetch sk-{kind}-abcd-efgh_ijkl-mnop") == f"RUN fetch {HIDDEN}"


@settings(max_examples=400, deadline=None)
@given(name=NAMES, value=_of(PASSWORD, 8), place=st.sampled_from(NAMED_PLACES))
def test_no_value_under_a_secret_name_is_shown(name: str, value: str, place: str) -> None:
    shown = redact("FROM x\n" + place.format(name=name, value=value) + "\nRUN y")
    assert value not in shown
    assert name in shown
    assert shown.startswith("FROM x")
    assert shown.endswith("RUN y")


@settings(max_examples=300, deadline=None)
@given(value=_of(ALNUM + "/+=._~-", 8), place=st.sampled_from(PASSWORD_PLACES))
def test_no_password_in_an_address_header_or_login_is_shown(value: str, place: str) -> None:
    assert value not in redact(place.format(value))


@given(body=st.lists(_of(ALNUM + "+/", 64, 64), min_size=1, max_size=6))
def test_a_private_key_is_hidden_as_a_whole_and_line_by_line(body: list[str]) -> None:
    kind = "OPENSSH PRIVATE KEY"
    text = "\n".join([f"-----BEGIN {kind}-----", *body, "c2hvcnQ=", f"-----END {kind}-----", "RUN make"])
    for shown in (redact(text), "\n".join(redact_lines(text.splitlines()))):
        assert not any(line in shown for line in [*body, "c2hvcnQ="])
        assert "RUN make" in shown


@pytest.mark.parametrize(
    "text",
    [
        "FROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04@sha256:" + "ab12" * 16,
        "RUN pip install sk-learn scikit-learn==1.5.2 tokenizers==0.21.0 sk-video-tools-extra-long-name",
        "RUN pip install git+https://github.com/a/b@0123456789abcdef0123456789abcdef01234567",
        "ENV GPG_KEY=A035C8C19219BA821ECEA86B64E628F8D684696D PYTHON_SHA256=" + "0a" * 32,
        "ENV HF_HUB_DISABLE_IMPLICIT_TOKEN=1 TOKENIZERS_PARALLELISM=false MAX_TOKENS=4096 pad_token=<pad>",
        "RUN --mount=type=secret,id=hf_token HF_TOKEN=$(cat /run/secrets/hf_token) python get.py",
        "ENV HF_TOKEN=${HF_TOKEN} API_KEY=$KEY",
        "pip install -i https://${USER}:${TOKEN}@host/simple x",
        "docker login --username NAME --password-stdin",
        "ssh://git@github.com/a/b.git git@github.com:a/b.git",
        "http://localhost:8080/a@1.2 https://host/p?name=x&page=2",
        "COPY --chown=me:me /very/long/path/" + "folder/" * 20,
        "error: the token: expired, or the password is wrong; --token is needed and --password must be given",
        "basic authentication and bearer authentication are refused",
        "secretKeyRef: {name: hub, key: token}",
        "authorization:\n  type: Bearer\n  credentials_file: /metrics/token\n",
        "npm_config_registry=https://registry.npmjs.org pypi-attestations hf_hub_download ghp_x AKIA sk-",
        "worker-3 lost: connection reset by peer while reading from 10.0.0.4:29500",
        "key: value, sort_key=name",
        "tiktoken==0.7.0; python_version > '3.8'",
        "conda install tiktoken=0.7.0",
        'tiktoken = "^0.7"',
        "auth-token == 1.2.0rc1",
        "my-secret===2024.1.post2",
        "tiktoken==${TIKTOKEN_VERSION}",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("text", ["api-token=={}", "tiktoken={}", "PASSWORD={}", "my-secret == {}"])
def test_a_value_that_is_no_version_is_hidden_behind_any_sign(text: str) -> None:
    assert "c0rrect-horse9battery" not in redact(text.format("c0rrect-horse9battery"))


def test_redaction_reads_a_hostile_line_once() -> None:
    for text in (
        "a_" * 50_000,
        "password=" * 5_000,
        "://a:" * 20_000,
        "ENV x " * 20_000,
        '"' * 50_000,
        "eyJ." * 20_000,
    ):
        assert isinstance(redact(text), str)  # the suite's limit ends what is not linear


SECRETS = {
    "hf": "hf_aB3dEfGhIjKlMnOpQrStUvWxYz012345678",
    "aws": "AKIAIOSFODNN7EXAMPL1",
    "github": "ghp_aB3dEfGhIjKlMnOpQrStUvWxYz0123456789",
    "openai": "sk-aB3dEfGhIjKlMnOpQrStUvWxYz0123456789aB3dEfGhIj",
    "index": "hunter2hunter2",
}
DOCKER = f"""FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu20.04
LABEL owner="{SECRETS["openai"]}"
# {SECRETS["github"]}
ENV CONFIG={SECRETS["aws"]} HF={SECRETS["hf"]}
COPY . /app
RUN pip install --index-url https://me:{SECRETS["index"]}@host/simple torch==2.1.0 && \\
    git clone https://{SECRETS["github"]}@github.com/a/b
RUN pip install -r requirements.txt
"""


def test_no_output_of_image_check_holds_a_secret(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKER)
    (tmp_path / "requirements.txt").write_text(
        f"--extra-index-url https://me:{SECRETS['index']}@host/\nsix\n"
    )
    (tmp_path / ".git").mkdir()
    (tmp_path / ".env").write_text(f"X={SECRETS['hf']}\n")
    outputs = []
    for more in ((), ("--json",), ("--plain",)):
        result = paceline("image", "check", str(tmp_path), *more)
        assert result.code == 8
        outputs.append(result.out + result.err)
    assert not [kind for kind, secret in SECRETS.items() for text in outputs if secret in text]
    findings = json.loads(outputs[1].splitlines()[0])["data"]["findings"]
    assert any(finding["diff"] for finding in findings)
    lines = {
        finding["line"]
        for finding in findings
        if finding["id"] == "secret-in-image" and finding["file"] == "Dockerfile"
    }
    assert lines == {2, 3, 4, 6, 7}
    assert any(
        finding["id"] == "secret-in-image" and finding["file"] == "requirements.txt" for finding in findings
    )
    assert any(finding["id"] == "secret-file-copied" and ".env" in finding["why"] for finding in findings)


def test_findings_diffs_and_logs_hold_no_secret() -> None:
    project = Project(files=(Source("Dockerfile", DOCKER),))
    log = f"#9 0.4 gcc: command not found {SECRETS['hf']} https://me:{SECRETS['index']}@host"
    results = [
        *check(project, TARGET),
        *findings_from_log(log, project, TARGET),
        *apply_fixes(project, TARGET, agreed=True).applied,
    ]
    diffs = [redacted_diff(project, finding) for finding in check(project, TARGET)]
    quoted = [f"{result.why}{result.evidence}{result.advice}{result.log_line}" for result in results]
    assert any(result.log_line for result in results)
    text = "".join([*quoted, *diffs])
    assert text
    assert not any(secret in text for secret in SECRETS.values())


@pytest.mark.parametrize("secret", [f"CONFIG={SECRETS['hf']}", f"INDEX=https://me:{SECRETS['index']}@host/"])
def test_the_diff_of_a_fix_beside_a_secret_does_not_repeat_it(secret: str) -> None:
    lines = (
        "FROM nvidia/cuda:11.8.0-devel-ubuntu22.04",
        f"ENV {secret}",
        "RUN pip install torch==2.6.0 ninja",
    )
    source = Source(
        "Dockerfile", "\n".join([*lines, "RUN pip install --no-build-isolation flash-attn==2.7.4"])
    )
    project = Project(files=(source,))
    diffs = [redacted_diff(project, finding) for finding in check(project, TARGET)]
    name, _, value = secret.partition("=")
    assert any(f"ENV {name}=" in diff for diff in diffs), diffs
    assert not any(value in diff for diff in diffs)


def test_a_finding_hides_what_its_rule_quotes() -> None:
    project = Project(files=(Source("Dockerfile", "FROM python:3.12-slim\nRUN make\n"),))
    view = stage_views(project, TARGET)[0]
    text = f"token={SECRETS['hf']}"
    finding = SECRET.finding(view, view.stage.origin, text, text, text)
    assert [finding.why, finding.evidence, finding.advice] == [f"token={HIDDEN}"] * 3


@pytest.mark.parametrize("secret", SECRETS.values())
def test_reports_of_a_build_hold_no_secret(secret: str) -> None:
    text = f"+ENV TOKEN={secret}"
    finding = Finding(
        id="secret-in-image",
        pattern=20,
        level=Level.PROBLEM,
        path="Dockerfile",
        line=2,
        why=text,
        evidence=text,
        advice="remove it",
    )
    built = BuildResult(
        ok=False,
        engine=Engine(kind=EngineKind.DOCKER, path="docker", version="0"),
        tags=("x:1",),
        attempts=(),
        fixes=(Fix(finding=finding, attempt=1, found="in the log", diff=text),),
        left=(finding,),
        stopped="it failed",
        diff=text,
        written=(),
        ended_at_s=0.0,
    )
    smoke = SmokeTest(checks=(Check(group="imports", name="torch", verdict=Verdict.FAILED, detail=text),))
    assert secret not in json.dumps(build_json(built, smoke)) + build_page(built, smoke)


@pytest.mark.parametrize("secret", SECRETS.values())
def test_errors_events_and_trees_hold_no_secret(secret: str, tmp_path: Path) -> None:
    message = f"the store s3://key:{secret}@bucket refuses: token={secret}"
    errors: list[PacelineError] = [NotReadyError(message, message), ConfigError([Problem(message, message)])]
    text = "".join(f"{error}{error.what}{error.hint}{error.problems}{error.to_dicts()}" for error in errors)
    path = tmp_path / "events.jsonl"
    log = EventLog(path, who="worker-0", clock=SystemClock())
    log.write("checkpoint_failed", path="at-1", step=1, reason=message)
    log.close()
    tree = redact_json({"labels": {"api_key": secret}, "lines": [message], "count": 3})
    assert secret not in text + path.read_text() + json.dumps(tree)
    assert tree["count"] == 3
    redactor = LineRedactor()
    assert secret not in redactor.line(message)


@pytest.mark.parametrize(
    ("argument", "is_reported"), [("HF_TOKEN", True), ("DB_PASSWORD=", True), ("MAX_TOKENS", False)]
)
def test_a_secret_that_a_build_is_given_as_an_argument_is_a_finding(argument: str, is_reported: bool) -> None:
    project = Project(files=(Source("Dockerfile", f"FROM python:3.12-slim\nARG {argument}\nRUN make\n"),))
    findings = [finding for finding in check(project, TARGET) if finding.id == "secret-in-image"]
    assert [(finding.line, finding.level) for finding in findings] == [(2, Level.WARNING)] * is_reported


def _copied(dockerfile: str, names: tuple[str, ...] = (), ignored: str | None = None) -> list[Finding]:
    files = [Source("Dockerfile", f"FROM python:3.12-slim\n{dockerfile}\n")]
    if ignored is not None:
        files.append(Source(".dockerignore", ignored))
    project = Project(files=tuple(files), names=frozenset(names))
    return [finding for finding in check(project, TARGET) if finding.id == "secret-file-copied"]


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        "config/.env.production",
        "id_rsa",
        "keys/id_ed25519",
        "tls/server-key.pem",
        ".aws/credentials",
        ".netrc",
        ".docker/config.json",
        "kaggle.json",
        ".pypirc",
        ".ssh/id_rsa",
        "model.pem",
    ],
)
def test_a_copied_file_of_keys_is_a_finding(path: str) -> None:
    folder = path.rpartition("/")[0] or "."
    assert _copied(f"COPY {path} /x/")
    assert _copied("COPY . /app", (path,))
    assert _copied(f"ADD ./{folder} /app", (path,))
    assert not _copied("COPY . /app", (path,), f"**/{path.rpartition('/')[2]}\n")
    assert not _copied("COPY src /app", (path,))
    assert _copied("COPY . /app", (path,), f"*\n!{path}\n")


@pytest.mark.parametrize(
    "path", [".env.example", "id_rsa.pub", "ca-bundle.pem", "environment.yml", "keys.py", "config.json"]
)
def test_files_that_hold_no_secret_may_be_copied(path: str) -> None:
    assert not _copied(f"COPY {path} /x/")


def test_a_key_that_only_a_build_stage_sees_is_a_warning() -> None:
    (first,) = _copied("COPY id_rsa /root/\nRUN git clone x\nFROM python:3.12-slim\nCOPY --from=0 /x /x")
    assert first.level is Level.WARNING

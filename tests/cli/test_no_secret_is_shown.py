"""No secret is shown: secrets are planted in all inputs, and searched for in all output."""

import random
import string
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.operators import Gang, now

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.k8s.kinds import JOB, NAMESPACE, SECRET, Kind
from paceline.training.session import Session

RENDER = ["--target", "job", "--task", "xor", "--mode", "ddp", "--nodes", "2", "--image", "example.com/x:1"]
SHAPES = {
    "hugging face": "hf_{36}",
    "aws": "AKIA{16}",
    "github": "ghp_{36}",
    "slack": "xoxb-{24}",
    "api": "sk-{40}",
    "signed": "eyJ{20}.eyJ{20}.{20}",
}


def secret_of(shape: str) -> str:
    """A new one each time, and the same in each run of the tests."""
    rng, text = random.Random(shape), SHAPES[shape]
    letters = string.ascii_uppercase + string.digits
    for length in (16, 20, 24, 36, 40):
        while f"{{{length}}}" in text:
            text = text.replace(f"{{{length}}}", "".join(rng.choices(letters, k=length)), 1)
    return text


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().running() as serving:
        serving.put_node()
        yield serving


class Shell:
    """Types commands, and keeps all that they emit."""

    def __init__(self, server: ApiServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys, self.emitted = folder, capsys, ""
        self.config = server.kubeconfig(folder / "kubeconfig")

    def types(self, *words: str) -> int:
        placed = ["--kubeconfig", str(self.config), "--namespace", "train"]
        codes = [run([*words, *placed, *more], Session(folder=self.folder)) for more in ([], ["--json"])]
        out, err = self.capsys.readouterr()
        self.emitted += out + err
        return codes[0]


def plant(server: ApiServer, gang: Gang, secret: str) -> None:
    """Where programs, kubelets and other people leave such things."""
    gang.say(f"logging in with {secret}")
    gang.crash(0, f"Traceback (most recent call last):\nValueError: bad token {secret}")
    pod = gang.pods[1]
    waits = {"reason": "CreateContainerError", "message": f"cannot start: HF_TOKEN={secret}"}
    gang.show(pod, {"waiting": waits}, "Pending")
    about = {"kind": "Pod", "name": pod.name, "namespace": "train"}
    event: dict[str, Any] = {"apiVersion": "v1", "kind": "Event", "involvedObject": about, "type": "Warning"}
    event |= {"metadata": {"name": "e1", "namespace": "train"}, "lastTimestamp": now()}
    server.put({**event, "reason": "Failed", "message": f"failed to pull with {secret}: unauthorized"})
    data = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf-token", "namespace": "train"}}
    server.put({**data, "data": {"token": secret}})


def said_at_the_wrong_place(shell: Shell, server: ApiServer, secret: str) -> None:
    """By the user, in a flag or in a file."""
    flag = ["--env", f"HF_TOKEN={secret}"]
    assert shell.types("job", "submit", *RENDER, "--name", "demo", *flag) == ExitCode.BAD_CONFIG
    assert shell.types("job", "submit", "bad.yaml") == ExitCode.BAD_CONFIG
    assert server.writes == []


def said_in_a_refusal(shell: Shell, server: ApiServer, secret: str) -> None:
    message = f"admission webhook denied the request: env HF_TOKEN={secret} is not allowed"

    def webhook(verb: str, kind: Kind, _what: object) -> tuple[int, str, str] | None:
        return (422, "Invalid", message) if (verb, kind) == ("create", JOB) else None

    server.rules.append(webhook)
    assert shell.types("job", "submit", "good.yaml") == ExitCode.BAD_CONFIG
    assert shell.types("job", "validate", "good.yaml", "--server") == ExitCode.BAD_CONFIG
    server.rules.clear()


def said_by_others(shell: Shell, server: ApiServer, secret: str) -> None:
    """By pods, by the kubelet, in a Secret, in a login of this machine."""
    server.put(_job())
    plant(server, Gang(server, JOB), secret)
    for words in (
        ("logs", "demo", "--output", "lines.txt"),
        ("status", "demo"),
        ("explain", "demo"),
        ("list",),
    ):
        assert shell.types("job", *words) == ExitCode.OK
    shell.types("cluster", "check", "--save", "snapshot.json")
    server.put({"apiVersion": "v1", "kind": NAMESPACE.name, "metadata": {"name": "train"}})
    server.remove(SECRET, "hf-token", "train")
    assert shell.types("cluster", "fix", "--hf-token", "--only", "secret") == ExitCode.OK
    shell.types("cluster", "deploy", "apply", "coordinator", "--image", "example.com/x:1")
    assert shell.types("job", "stop", "demo") == ExitCode.OK


@pytest.mark.parametrize("shape", SHAPES)
def test_no_command_that_talks_to_a_cluster_shows_a_secret(
    shape: str,
    server: ApiServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = secret_of(shape)
    (tmp_path / "hf").write_text(secret)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "hf"))
    shell = Shell(server, tmp_path, capsys)
    assert run(["job", "render", *RENDER, "--name", "demo"], Session(folder=tmp_path)) == ExitCode.OK
    good = capsys.readouterr().out
    (tmp_path / "good.yaml").write_text(good)
    bad = tmp_path / "bad.yaml"
    bad.write_text(good.replace("value: 'false'", f"value: {secret}"))
    assert secret in bad.read_text()
    said_at_the_wrong_place(shell, server, secret)
    said_in_a_refusal(shell, server, secret)
    said_by_others(shell, server, secret)
    assert_hidden(shell, [secret], except_in=(bad, tmp_path / "hf"))


def test_attach_shows_no_secret(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all shapes at once: `attach` waits some seconds for the last lines of a failed job."""
    secrets = [secret_of(shape) for shape in SHAPES]
    server.put(_job())
    gang = Gang(server, JOB)
    for secret in secrets:
        gang.say(f"bad token {secret}")
    plant(server, gang, "; bad token ".join(secrets))
    shell = Shell(server, tmp_path, capsys)
    assert shell.types("job", "attach", "demo", "--output", "lines.txt") != ExitCode.OK
    assert_hidden(shell, secrets)
    assert shell.emitted.count("bad token ***") >= len(secrets), "each is in a line that is shown"


def assert_hidden(shell: Shell, secrets: Sequence[str], except_in: Collection[Path] = ()) -> None:
    """In what was printed, and in every file but those that the user wrote."""
    kept = [path for path in shell.folder.rglob("*") if path.is_file() and path not in except_in]
    for text in (shell.emitted, *(path.read_text() for path in kept)):
        for secret in secrets:
            assert secret not in text
    assert "***" in shell.emitted


def _job() -> dict[str, Any]:
    about = {"name": "demo", "namespace": "train", "labels": {"paceline.dev/run": "demo"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": {"backoffLimit": 0}}

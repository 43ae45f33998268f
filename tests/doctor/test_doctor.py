"""`paceline doctor` judges its findings correctly, and ends in time if a probe hangs."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.coordinator.client.nodes_file import NodesFile
from paceline.doctor import checks as judge
from paceline.doctor import probes
from paceline.doctor.checks import GB, MB, CheckResult, Level, Process, Torch, is_ready
from paceline.doctor.probes import Probe
from paceline.doctor.probes import run_probes as run_probes
from paceline.training.session import Session

OK, WARNING, WRONG = Level.OK, Level.WARNING, Level.WRONG
CPU = Torch(version="2.9", devices=0)
CUDA = Torch(version="2.9", cuda="12.8", devices=2, nccl="2.27")


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (judge.python((3, 11, 7), "/usr/bin/python"), OK),
        (judge.python((3, 10, 2), "/usr/bin/python"), WRONG),
        (judge.torch(CPU), OK),
        (judge.torch(CUDA), OK),
        (judge.torch(Torch(error="No module named 'torch'")), WRONG),
        (judge.packages({"click": "8", "grpcio": None}), WRONG),
        (judge.packages({"click": "8"}), OK),
        (judge.extras({"ray": True, "gpu": False}), OK),
        (judge.loopback(""), OK),
        (judge.loopback("not permitted"), WRONG),
        (judge.dashboard_port(8642, is_free=False), WARNING),
        (judge.file_limit(100), WRONG),
        (judge.file_limit(512), WARNING),
        (judge.file_limit(-1), OK),
        (judge.shared_memory(None), WARNING),
        (judge.shared_memory(1 * MB), WRONG),
        (judge.shared_memory(64 * MB), WARNING),
        (judge.shared_memory(2 * GB), OK),
        (judge.disk("/x", 50 * MB, is_writable=True), WRONG),
        (judge.disk("/x", 1 * GB, is_writable=True), WARNING),
        (judge.disk("/x", 9 * GB, is_writable=False), WRONG),
        (judge.cores(2, 8), WARNING),
        (judge.cores(8, 2), OK),
        (judge.gpu("", CPU), OK),
        (judge.gpu("1 x H200", CPU), WARNING),
        (judge.gpu("2 x H200", CUDA), OK),
        (judge.gpu("2 x H200", Torch(cuda="12.8")), WARNING),
        (judge.reached("ray", "h:1", "refused", "start it"), WARNING),
        (judge.reached("ray", "h:1", "", ""), OK),
        (judge.clock(0.4, "h"), OK),
        (judge.clock(-90.0, "h"), WARNING),
        (judge.page(is_built=False), WARNING),
        (judge.engine(""), OK),
        (judge.run_folders([]), OK),
        (judge.run_folders(["runs/a"]), WARNING),
        (judge.orphans([Process(7, 1, "zygote"), Process(8, 7, "zygote")]), WARNING),
        (judge.orphans([Process(7, 99, "zygote"), Process(8, 7, "zygote")]), OK),
    ],
)
def test_each_thing_is_judged(line: CheckResult, level: Level, wording: Wording) -> None:
    assert line.level is level
    wording(line.text)
    assert bool(line.fix) or level is OK, "what is not well has a fix"


def test_a_warning_does_not_make_it_unready_and_what_is_wrong_does() -> None:
    assert is_ready([CheckResult("a", OK, ""), CheckResult("b", WARNING, "")])
    assert not is_ready([CheckResult("a", OK, ""), CheckResult("b", WRONG, "")])


def test_a_probe_that_hangs_is_reported_as_late_and_the_others_are_reported() -> None:
    never = threading.Event()

    def hang() -> CheckResult:
        never.wait()
        return CheckResult("hangs", OK, "")

    lines = run_probes(
        [
            Probe("hangs", hang, limit_s=0.05),
            Probe("well", lambda: CheckResult("well", OK, ""), limit_s=600),
            Probe("needed", hang, limit_s=0.05, is_needed=True),
        ]
    )
    never.set()
    assert [(line.name, line.level) for line in lines] == [
        ("hangs", WARNING),
        ("well", OK),
        ("needed", WRONG),
    ]
    assert "within 0.05 s" in lines[0].text


def test_a_probe_without_permission_reports_that() -> None:
    def refuse() -> CheckResult:
        raise PermissionError(13, "Permission denied")

    (line,) = run_probes([Probe("x", refuse)])
    assert line.level is WARNING
    assert "Permission denied" in line.text


def test_ports_are_really_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert probes.dashboard_port(port).level is WARNING
        assert probes.reached("ray", f"127.0.0.1:{port}", "").level is OK
    assert probes.dashboard_port(0).level is OK
    assert probes.loopback().level is OK
    assert probes.reached("ray", "127.0.0.1:1", "start it").level is WARNING
    assert probes.reached("ray", "nonsense", "start it").level is WARNING


def test_a_run_without_live_workers_is_found_and_one_that_ended_or_trains_is_not(
    tmp_path: Path, wording: Wording
) -> None:
    for name in ("left", "ended", "lives"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "plan.json").touch()
        (tmp_path / "runs" / name / "events.jsonl").touch()
        os.utime(tmp_path / "runs" / name / "plan.json", (1000, 1000))
        os.utime(tmp_path / "runs" / name / "events.jsonl", (1000, 1000))
    (tmp_path / "runs" / "ended" / "result.json").touch()
    os.utime(tmp_path / "runs" / "lives" / "events.jsonl", (1990, 1990))
    line = probes.run_folders(tmp_path, now_s=2000)
    assert line.text.endswith(": runs/left")
    wording(line.text)
    assert "paceline train --resume runs/left" in line.fix


def test_paceline_processes_are_recognized_by_their_command(tmp_path: Path) -> None:
    for pid, parent, words in (
        (7, 1, "python -m paceline.worker.entry.zygote 3"),
        (8, 1, "python -m http.server"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(words.replace(" ", "\0").encode())
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (python) S {parent} 1 1")
    assert probes.orphans(tmp_path).fix == "kill 7"
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cmdline").write_bytes(b"/usr/bin/python\0/usr/bin/paceline\0train")
    assert probes.orphans(tmp_path).level is OK, "in a container whose first process is the command itself"


def test_the_nodes_of_a_coordinator_are_addresses_or_those_of_its_folder(tmp_path: Path) -> None:
    assert probes.coordinator_nodes("") == []
    assert probes.coordinator_nodes("a:1, b:2") == ["a:1", "b:2"]
    NodesFile(cluster="local", nodes={1: "127.0.0.1:7401"}).write(tmp_path)
    assert probes.coordinator_nodes(str(tmp_path)) == ["127.0.0.1:7401"]


def test_the_server_of_the_current_context_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text(
        "current-context: a\n"
        "contexts: [{name: a, context: {cluster: b}}]\n"
        "clusters: [{name: b, cluster: {server: 'https://10.0.0.1:6443/x'}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert probes.kubernetes_server() == "10.0.0.1:6443"
    for nonsense in (b"{}", b"[1]", b"\xff\xfe", b"clusters: [3]"):
        config.write_bytes(nonsense)
        assert probes.kubernetes_server() is None


def test_doctor_checks_everything_here_and_reports_whether_it_is_ready(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline", "doctor", "--json", "--num-workers", "1000"]
    more = {"HOME": str(tmp_path), "PACELINE_COORDINATOR": "127.0.0.1:1", "RAY_ADDRESS": "127.0.0.1:1"}
    kept = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    result = subprocess.run(
        command, cwd=tmp_path, env={**kept, **more}, capture_output=True, text=True, check=False
    )
    data = json.loads(result.stdout)["data"]
    checks = {line["name"]: line for line in data["checks"]}
    assert result.returncode == (0 if data["ready"] else 4)
    assert data["ready"] == all(line["level"] != "wrong" for line in data["checks"])
    for name in ("python", "torch", "gpu", "packages", "extras", "disk", "runs", "container engine"):
        assert name in checks
    assert checks["cores"]["level"] == checks["coordinator"]["level"] == checks["ray"]["level"] == "warning"
    assert checks["torch"]["level"] == "ok"
    assert "kubernetes" not in checks, "a cluster that is not configured is not probed"


def test_for_a_person_each_line_has_its_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    from paceline.doctor import probes as look

    few = [Probe("python", probes.python), Probe("cores", lambda: judge.cores(1, 8))]
    monkeypatch.setattr(look, "_probes", lambda _asked: few)  # all of them are looked at above
    assert run(["doctor", "-q"], Session(folder=tmp_path)) == 0
    first, second, fix, _, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith("✔ python")
    assert second.startswith("⚠ cores")
    assert fix.strip().startswith("→ ")
    wording(verdict)

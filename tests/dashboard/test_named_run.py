"""The dashboard of a run by its name at a coordinator, which is shown from the run's store."""

from pathlib import Path

import pytest
from tests.dashboard.served import dashboard
from tests.fixtures.processes.command import paceline

from paceline.coordinator.admin.serve import EmbeddedNode
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.run_endpoint import TokenFile


def test_a_run_is_shown_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "volume").mkdir()
    run_dir = tmp_path / "run"
    stored = ["--name", "first", "--run-store", f"file://{tmp_path}/volume/first"]
    trained = paceline("train", "--task", "xor", "--steps", "5", *stored, "--run-dir", str(run_dir))
    assert trained.code == 0, trained.err
    with EmbeddedNode(tmp_path / "node") as node:
        plan = (run_dir / "plan.json").read_text()
        node.client.write("Runs.Create", pb.CreateRun(run="run-0", plan=plan, min_workers=1), pb.Run)
        assert isinstance(node.credentials, TokenFile)
        tokens = ["--coordinator-token-file", str(node.credentials.path)]
        with dashboard("first", "--coordinator", node.address, *tokens) as served:
            snapshot = served.get("/api/v1/snapshot")["view"]
            assert (snapshot["run"]["name"], snapshot["state"]) == ("first", "finished")
        unknown = paceline("dashboard", "second", "--coordinator", node.address, *tokens)
        assert (unknown.code, "first" in unknown.err) == (4, True), unknown.err

"""A sharded model resumes from its shards when Ray's actors restart."""

from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline
from tests.fixtures.runs.ray_cluster import kinds, on_ray
from tests.fixtures.waiting import kill

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]


def test_workers_of_fsdp_restart_from_the_parts_that_they_sent(tmp_path: Path) -> None:
    run_dir, long = tmp_path / "run", ("--steps", "600", "--pace", "10ms", "--checkpoint-every", "20")
    args = ("--task", "xor", "--mode", "fsdp", "--num-workers", "2", "--restarts", "1")
    with on_ray(run_dir, *args, *long) as run:
        run.until_checkpoint(2)
        kill(run.pid_of("worker-1"))
        result = run.end()
        assert result.code == 0, result.err
    assert kinds(run_dir).count("run_resumed") == 1
    assert paceline("verify", str(run_dir), "--json").data()["holds"] is True

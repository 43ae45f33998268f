"""`paceline run --launcher ray`: actors run the text of the script, also where its file is not."""

import json
from pathlib import Path

import pytest
from tests.fixtures.processes.command import paceline
from tests.fixtures.runs.ray_cluster import cluster

from paceline.training.script_sources import read_sources
from paceline.worker.script.facts import ScriptFile, file_of, sha256_of

SCRIPT = Path(__file__).parents[1] / "fixtures" / "tasks" / "logging_script.py"


def test_a_node_without_the_file_writes_the_text_of_the_plan(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("import beside\n")
    (tmp_path / "beside.py").write_text("VALUE = 1\n")
    options = {
        "file": str(script),
        "arguments": json.dumps(["--epochs", "3"]),
        "folder": str(tmp_path / "gone"),
        "sha256": sha256_of(ScriptFile(path=str(script))),
        "sources": json.dumps(read_sources(script).texts),
    }
    script.unlink()
    found = file_of(options)
    assert found.arguments == ("--epochs", "3")
    assert sha256_of(found) == options["sha256"]
    assert (Path(found.path).parent / "beside.py").read_text() == "VALUE = 1\n"
    assert Path(found.folder).is_dir()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_actors_run_the_script_and_accelerate_sees_one_process(tmp_path: Path) -> None:
    script = SCRIPT.with_name("accelerated_script.py")
    with cluster(tmp_path / "ray", nodes=1, cpus=4, has_jobs=False) as ray:
        for name, flags in (("asgd", ()), ("ssgd", ("--elastic", "--shards", "4"))):
            run_dir = tmp_path / name
            command = ("run", "--launcher", "ray", "--address", ray.address, "--mode", name, *flags)
            workers = ("--num-workers", "2", "--run-dir", str(run_dir))
            done = paceline(*command, *workers, str(script), within_s=300)
            assert done.code == 0, done.err
            result = json.loads((run_dir / "result.json").read_text())
            assert (result["launcher"], result["metrics"]) == ("ray", {"processes": 1.0, "index": 0.0})
            assert paceline("verify", str(run_dir)).code == 0

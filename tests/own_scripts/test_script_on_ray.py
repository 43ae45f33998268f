"""`paceline run --launcher ray`: actors run the text of the script, also where its file is not."""

import json
from pathlib import Path

import pytest
from tests.fixtures.runs.torchrun import python

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
@pytest.mark.parametrize("flags", [("--mode", "asgd"), ("--mode", "ssgd", "--elastic", "--shards", "4")])
def test_actors_run_the_script_and_accelerate_sees_one_process(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    command = ("run", "--launcher", "ray", "--num-workers", "2", "--run-dir", "run", *flags)
    script = SCRIPT.with_name("accelerated_script.py")
    done = python("-m", "paceline", *command, str(script), folder=tmp_path)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"] == {"processes": 1.0, "index": 0.0}
    assert result["launcher"] == "ray"
    verified = python("-m", "paceline", "verify", "run", folder=tmp_path)
    assert verified.code == 0, verified.out

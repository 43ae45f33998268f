"""`paceline run --launcher ray`: actors run the text of the script, also where its file is not."""

import json
from pathlib import Path

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

"""Names of scripts that travel in a ConfigMap."""

from pathlib import Path

import pytest

from paceline.core.errors import ManifestError
from paceline.k8s.spec.script import read_script


@pytest.mark.parametrize(
    ("script", "module"), [("my train.py", "lib"), ("größe.py", "lib"), ("train.py", "größe")]
)
def test_a_name_that_is_no_key_of_a_config_map_is_refused(tmp_path: Path, script: str, module: str) -> None:
    (tmp_path / script).write_text(f"import {module}\n", encoding="utf-8")
    (tmp_path / f"{module}.py").write_text("", encoding="utf-8")
    with pytest.raises(ManifestError, match="ConfigMap") as caught:
        read_script(tmp_path, Path(script), ())
    assert caught.value.problems[0].where == "SCRIPT"


def test_other_names_travel_with_their_modules(tmp_path: Path) -> None:
    (tmp_path / "my-train_2.v1.py").write_text("import lib_1\n")
    (tmp_path / "lib_1.py").write_text("")
    assert [file.name for file in read_script(tmp_path, Path("my-train_2.v1.py"), ()).files] == [
        "my-train_2.v1.py",
        "lib_1.py",
    ]

"""Facts about the machine are found without running anything."""

import sys
from pathlib import Path

from paceline.config.environment import module_exists, probe_machine
from paceline.config.train_config import TrainConfig


def test_a_module_is_found_without_executing_it(tmp_path: Path) -> None:
    package = tmp_path / "my_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('executed')")
    (package / "task.py").write_text("raise RuntimeError('executed')")
    assert module_exists("my_pkg.task", [str(tmp_path)])
    assert not module_exists("my_pkg.other", [str(tmp_path)])
    assert not module_exists("my_pkg.task.deeper", [str(tmp_path)])
    assert "my_pkg" not in sys.modules


def test_what_is_no_module_name_is_not_found() -> None:
    for name in ("", ".", "a..b", "a b", "../x", "a/b"):
        assert not module_exists(name, sys.path)


def test_only_the_modules_that_the_config_names_are_looked_up() -> None:
    facts = probe_machine(TrainConfig(task="json:JSONDecoder", mode="nowhere_at_all:Mode"))
    assert facts.modules == {"json"}
    assert facts.cpu_count >= 1

"""Precedence of flags, variables and files; each problem names its place."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.config.load import from_set_flags, load
from paceline.config.toml_file import parse_toml
from paceline.config.values import Raw, RawSetting
from paceline.config.yaml_file import parse_yaml
from paceline.core.errors import Problem


def flag(key: str, raw: Raw) -> RawSetting:
    return RawSetting(key=key, raw=raw, where="--" + key.replace("_", "-"))


def file_with(folder: Path, text: str, name: str = "train.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def only_problem(file: Path) -> Problem:
    (problem,) = load(file=file).problems
    return problem


def test_without_settings_nothing_is_set() -> None:
    loaded = load()
    assert loaded.problems == ()
    assert loaded.config.steps is None
    assert loaded.config.origins == {}


def test_a_flag_beats_a_variable_which_beats_the_file(tmp_path: Path) -> None:
    path = file_with(tmp_path, "steps: 1\nseed: 1\nlr: 1e-3\n")
    config = load(flags=[flag("steps", "3")], variables={"steps": "2", "seed": "2"}, file=path).config
    assert (config.steps, config.seed, config.lr) == (3, 2, 0.001)
    assert config.origin("steps") == "--steps"
    assert config.origin("seed") == "PACELINE_SEED"
    assert config.origin("lr") == f"{path}:3"


def test_an_empty_variable_sets_nothing() -> None:
    assert load(variables={"steps": " "}).config.steps is None


def test_yaml_does_not_guess_types(tmp_path: Path) -> None:
    path = file_with(tmp_path, "events: off\nname: 2024-01-01\npace: 10ms\nstaleness: .inf\nseed:\n")
    config = load(file=path).config
    assert (config.events, config.name, config.pace, config.staleness) == ("off", "2024-01-01", 0.01, "inf")
    assert config.seed is None


def test_toml_is_read_too(tmp_path: Path) -> None:
    text = 'mode = "ssp"\nstaleness = inf\nbatch_size = [8, 4]\n\n[task_options]\nhidden = 64\nkind = "3"\n'
    path = file_with(tmp_path, text, "train.toml")
    loaded = load(file=path)
    assert loaded.problems == ()
    assert (loaded.config.staleness, loaded.config.batch_size) == ("inf", (8, 4))
    assert loaded.config.task_options == {"hidden": 64, "kind": "3"}
    assert loaded.config.origin("batch_size") == f"{path}:3"
    assert loaded.config.origin("task_options.hidden") == f"{path}:6"


def test_task_options_merge_by_name(tmp_path: Path) -> None:
    path = file_with(tmp_path, "task_options:\n  hidden: 8\n  layers: 2\n")
    config = load(flags=[flag("task_options", {"hidden": "64"})], file=path).config
    assert config.task_options == {"hidden": 64, "layers": 2}
    assert config.origin("task_options.hidden") == "--task-options"
    assert config.origin("task_options.layers") == f"{path}:3"


def test_straggler_rules_are_replaced_and_carry_their_lines(tmp_path: Path) -> None:
    path = file_with(tmp_path, "straggler:\n  - worker=0,factor=2\n  - {worker: 1, delay: 5ms}\n")
    config = load(file=path).config
    assert config.straggler is not None
    assert [r.worker for r in config.straggler] == [0, 1]
    assert config.origin("straggler[1]") == f"{path}:3"
    winner = load(variables={"straggler": "p=0.5,factor=2; worker=1,factor=3"}, file=path).config
    assert winner.straggler is not None
    assert [r.factor for r in winner.straggler] == [2.0, 3.0]


def test_a_trace_in_a_file_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("worker,step,factor\n0,1,2\n")
    loaded = load(file=file_with(tmp_path, "straggler: trace=t.csv\n"))
    assert loaded.problems == ()


def test_an_unreadable_value_names_its_line_and_is_remembered_as_unreadable(
    tmp_path: Path, wording: Wording
) -> None:
    path = file_with(tmp_path, "mode: ssgd\nsteps: many\n")
    loaded = load(file=path)
    (problem,) = loaded.problems
    assert problem.where == f"{path}:2"
    wording(f"{problem.what}\n{problem.hint}")
    assert loaded.config.is_unreadable("steps")
    assert not loaded.config.is_unreadable("mode")


@pytest.mark.parametrize("name", ["train.yaml", "train.toml"])
def test_an_unknown_key_gets_a_suggestion(tmp_path: Path, name: str, wording: Wording) -> None:
    text = "seed = 1\nnum_worker = 2\n" if name.endswith("toml") else "seed: 1\nnum_worker: 2\n"
    problem = only_problem(file_with(tmp_path, text, name))
    assert " num_workers?" in problem.hint
    assert problem.where == f"{tmp_path / name}:2"
    wording(problem.what)


def test_an_unknown_variable_gets_a_suggestion() -> None:
    (problem,) = load(variables={"setps": "2"}).problems
    assert problem.where == "PACELINE_SETPS"
    assert " steps?" in problem.hint


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("t.yaml", "steps: 1\nseed: 2\nsteps: 3\n", ":3"),
        ("t.yaml", "- steps\n", ":1"),
        ("t.yaml", "just text\n", ":1"),
        ("t.yaml", "steps: 1\nseed: [1,\n", ":3"),
        ("t.yaml", "a: 1\n---\nb: 2\n", ":2"),
        ("t.yaml", "steps: \x00\n", ""),
        ("t.yaml", "lr: &a [*a]\n", ""),
        ("t.yaml", "lr: " + "[" * 5000, ""),
        ("t.yaml", "task_options:\n  a: 1\n  a: 2\n", ":3"),
        ("t.toml", "steps = 1\nseed = 2\nsteps = 3\n# end\n", ":3"),
        ("t.toml", "steps = 1\nseed = \n", ":2"),
    ],
    ids=[
        "a key twice",
        "a list",
        "a text",
        "an open list",
        "two documents",
        "a null byte",
        "a list in itself",
        "5000 lists",
        "an option twice",
        "toml: a key twice",
        "toml: no value",
    ],
)
def test_a_broken_file_is_one_clear_problem(
    tmp_path: Path, name: str, text: str, line: str, wording: Wording
) -> None:
    problem = only_problem(file_with(tmp_path, text, name))
    wording(problem.what.partition(": ")[0])  # behind it is what the parser says
    assert problem.where == f"{tmp_path / name}{line}"
    assert problem.hint


def test_a_missing_file_a_folder_and_a_strange_ending(tmp_path: Path) -> None:
    assert os.strerror(errno.ENOENT) in only_problem(tmp_path / "no.yaml").what
    (tmp_path / "dir.yaml").mkdir()
    assert os.strerror(errno.EISDIR) in only_problem(tmp_path / "dir.yaml").what
    assert ".yaml, .yml or .toml" in only_problem(tmp_path / "train.ini").hint


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(b"steps: 1\nname: \xff\n")
    assert only_problem(path).where == f"{path}:2"


def test_aliases_cannot_fill_the_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    problems = load(file=file_with(tmp_path, "\n".join(lines))).problems
    assert len(problems) == 12


def test_a_key_given_by_its_flag_and_by_set_is_a_problem(wording: Wording) -> None:
    sets = from_set_flags(["steps=5", "task_options.hidden=3", "num-workers=4"])
    loaded = load(flags=[flag("steps", "3"), *sets.entries])
    (problem,) = loaded.problems
    wording(problem.what)
    assert loaded.config.num_workers == 4
    assert loaded.config.task_options == {"hidden": 3}


def test_set_needs_a_key_and_a_value(wording: Wording) -> None:
    (problem,) = from_set_flags(["steps"]).problems
    assert "'steps'" in problem.what
    wording(problem.what)


@settings(max_examples=200)
@given(text=st.text())
def test_any_text_is_a_file_or_a_problem(text: str) -> None:
    for content in (parse_yaml(text, "t.yaml"), parse_toml(text, "t.toml")):
        load(flags=content.entries)

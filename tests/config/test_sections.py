"""A file in sections equals the flat one; each problem names its line and its key."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.file import SECTIONS, flatten_sections, infer_task
from paceline.config.load import LoadedConfig, from_set_flags, load
from paceline.config.sp500_options import OPTIONS
from paceline.config.yaml_file import parse_yaml
from paceline.core.errors import ConfigError, Problem
from paceline.plan.resolve import resolve
from paceline.tasks.sp500.task import Sp500Task

ROOT = Path(__file__).parent.parent.parent
# As the requirements write it, on five lines; a name with nothing behind it says nothing.
AS_ASKED_FOR = """\
data: {npz_path, valid_from_train: 0.1, shuffle_train: false, norm: zscore}
model: {kind: lstm, hidden: 64, layers: 1, dropout: 0.1}
train: {epochs: 25, batch_size: 64, lr: 0.001, early_stop_patience: 5, seed: 42, device: auto}
eval: {threshold: 0.5, save_cm: true}
io: {save_dir, run_name: null}
"""
OPTIONS_OF_IT = {
    "valid_from_train": 0.1,
    "shuffle_train": False,
    "norm": "zscore",
    "hidden": 64,
    "layers": 1,
    "dropout": 0.1,
    "threshold": 0.5,
    "save_cm": True,
}


def loaded(folder: Path, text: str, name: str = "config.yaml") -> LoadedConfig:
    path = folder / name
    path.write_text(text)
    return load(file=path)


def problems(folder: Path, text: str) -> tuple[Problem, ...]:
    return loaded(folder, text).problems


def test_the_file_is_read_as_requested(tmp_path: Path) -> None:
    loaded_config = loaded(tmp_path, AS_ASKED_FOR)
    assert loaded_config.problems == ()
    config = loaded_config.config
    assert (config.task, config.epochs, config.batch_size, config.lr) == ("sp500", 25, 64, 0.001)
    assert (config.early_stop_patience, config.seed, config.device) == (5, 42, "auto")
    assert (config.save_dir, config.name) == (None, None)
    assert config.task_options == OPTIONS_OF_IT


def test_the_example_is_that_file_with_its_gaps_filled() -> None:
    config = load(file=ROOT / "examples" / "sp500.yaml").config
    assert config.task_options == {"npz_path": "sp500_classification.npz", **OPTIONS_OF_IT}
    assert (config.task, config.save_dir, config.name) == ("sp500", "runs", None)
    assert (config.epochs, config.early_stop_patience) == (25, 5)


def test_every_option_of_the_table_is_one_of_the_task() -> None:
    taken = Sp500Task.__init__.__annotations__
    assert set(OPTIONS) | {"seed", "lr", "data_cache", "data_cache_mb", "return"} == set(taken)


def test_values_carry_their_line_and_their_nested_key(tmp_path: Path) -> None:
    text = "train:\n  steps: 5\n  num_workers: 3\nio:\n  save_dir: out\n  run_name: first\n"
    config = loaded(tmp_path, text).config
    assert (config.steps, config.num_workers, config.save_dir, config.name) == (5, 3, "out", "first")
    assert config.origin("steps") == f"{tmp_path / 'config.yaml'}:2 (train.steps)"
    assert config.task is None  # no section of a task, no task


def test_a_toml_file_has_sections_too(tmp_path: Path) -> None:
    text = '[data]\nnpz_path = "a.npz"\n[model]\nkind = "lstm"\nhidden = 8\n[train]\nsteps = 3\n'
    loaded_config = loaded(tmp_path, text, "config.toml")
    assert loaded_config.problems == ()
    assert loaded_config.config.task == "sp500"
    assert loaded_config.config.task_options == {"npz_path": "a.npz", "hidden": 8}


def test_a_path_of_digits_stays_text(tmp_path: Path) -> None:
    text = "task: sp500\ndata: {npz_path: 2024}\n"
    assert loaded(tmp_path, text).config.task_options == {"npz_path": "2024"}


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("train:\n  epoch: 5\n", ":2 (train.epoch)", " epochs?"),
        ("train:\n  steps: many\n", ":2 (train.steps)", "steps to"),
        ("io:\n  run_nam: null\n", ":2 (io.run_nam)", " run_name?"),
        ("task: sp500\ndata:\n  norm: zscor\n", ":3 (data.norm)", "data.norm to zscore"),
        ("task: sp500\nmodel:\n  kind: gru\n", ":3 (model.kind)", "task"),
        ("task: sp500\nmodel:\n  dropout: 2\n", ":3 (model.dropout)", "model.dropout to 0.1"),
        ("task: sp500\nmodel:\n  hidden: [1]\n", ":3 (model.hidden)", "model.hidden to 64"),
        ("task: sp500\neval:\n  save_cm: maybe\n", ":3 (eval.save_cm)", "eval.save_cm to yes"),
        ("task: xor\nmodel:\n  hidden: 3\n", ":2", "task_options"),
        ("model:\n  hidden: 3\n", ":1", "model.kind: lstm and data.npz_path"),
        ("train: 5\n", ":1", "train: {epochs: 25}"),
        ("seed: 1\ntrain:\n  seed: 2\n", ":3 (train.seed)", ""),
    ],
    ids=[
        "no such setting",
        "no number",
        "no such name",
        "no such norm",
        "no such model",
        "out of range",
        "a list",
        "neither yes nor no",
        "another task",
        "no task",
        "no section",
        "said twice",
    ],
)
def test_a_problem_names_its_line_its_key_and_what_to_write(
    tmp_path: Path, text: str, where: str, hint: str, wording: Wording
) -> None:
    (result,) = problems(tmp_path, text)
    assert hint in result.hint
    wording(f"{result.what}\n{result.hint}")
    assert result.where == f"{tmp_path / 'config.yaml'}{where}"


def test_a_problem_that_is_found_later_names_the_nested_key_too(tmp_path: Path, wording: Wording) -> None:
    config = loaded(tmp_path, "train:\n  lr: 0.1\n  steps: 0\n").config
    with wording.raises(ConfigError) as caught:
        resolve(config, Facts())
    (result,) = caught.value.problems
    assert result.where == f"{tmp_path / 'config.yaml'}:3 (train.steps)"


def test_set_reaches_into_a_section() -> None:
    sets = from_set_flags(["train.steps=3", "eval.threshold=0.6", "io.run_name=a"])
    config = load(flags=sets.entries).config
    assert (config.steps, config.name, config.task_options) == (3, "a", {"threshold": 0.6})
    (result,) = from_set_flags(["train.stps=3"]).problems
    assert result.where == "--set train.stps"
    assert " steps" in result.hint


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
_NAMES = st.sampled_from([name for names in SECTIONS.values() for name in names]) | st.text(max_size=5)


@settings(max_examples=60)
@given(text=st.dictionaries(st.sampled_from([*SECTIONS, "task"]), st.dictionaries(_NAMES, _VALUES) | _VALUES))
def test_whatever_a_section_holds_is_a_setting_or_a_problem(text: dict[str, object]) -> None:
    content = flatten_sections(infer_task(parse_yaml(yaml.safe_dump(text), "t.yaml")))
    assert all(problem.where and problem.hint for problem in content.problems)
    load(flags=content.entries)


def test_flags_beat_the_sections(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("task: sp500\nmodel: {hidden: 8, layers: 2}\ntrain: {seed: 1}\n")
    config = load(flags=from_set_flags(["seed=2", "task_options.hidden=4"]).entries, file=path).config
    assert (config.seed, config.task_options) == (2, {"hidden": 4, "layers": 2})

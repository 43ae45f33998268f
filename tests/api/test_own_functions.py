"""`paceline.run`, `paceline.compare` and `from_torch`: functions of a notebook, as they are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.runs.torchrun import python
from tests.fixtures.tasks import torch_functions
from torch import nn

from paceline.api.arguments import import_name
from paceline.api.function_source import script_of
from paceline.core.errors import ConfigError
from paceline.launchers.local import LocalLauncher

NOTEBOOK = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

RATE = 0.5

def points(seed):
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()

class Net(nn.Linear):
    pass

def train(run, epochs=1):
    x, y = points(7)
    model = Net(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.epochs(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            run.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
    run.log(accuracy=(model(x).argmax(1) == y).float().mean())

result = paceline.run(train, mode="ssgd", workers=2, arguments={"epochs": 2}, progress=False)
found = paceline.compare(train, modes=["localsgd"], repeats=1, progress=False)
print(result.steps, result.metrics["accuracy"] > 0.5, list(found.cells), found.details.task)
"""


def test_a_function_of_the_main_module_is_run_and_compared(tmp_path: Path) -> None:
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    done = python("notebook.py", folder=tmp_path)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "8 True ['single', 'localsgd-2'] train.py"
    assert (tmp_path / "runs" / "train-ssgd" / "result.json").exists()


SECRET = object()
LIMITS = {"norm": 1.0, "layers": [1, 2]}


def uses_constants(run: object, scale: float = 2.0) -> None:
    print(run, LIMITS, scale, torch.pi, nn.Linear)


def uses_an_object(run: object) -> None:
    print(run, SECRET)


def has_no_run() -> None: ...


def has_a_local_name(run: object) -> None:
    SECRET = 3  # noqa: N806  # not the one of the module
    print(run, SECRET)


def test_constants_and_modules_are_written_along() -> None:
    text = script_of(uses_constants, {"scale": 3.0})
    lines = text.splitlines()
    assert {"import torch as torch", "import torch.nn as nn", f"LIMITS = {LIMITS!r}"} <= set(lines)
    assert lines[-1] == "uses_constants(paceline.join(), **{'scale': 3.0})"
    compile(text, "script", "exec")
    assert "SECRET = <" not in script_of(has_a_local_name, {})


def inner_function() -> Callable[..., object]:
    rate = 0.25
    kept = SECRET

    def inner(run: object) -> None:
        print(run, rate, kept)

    return inner


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (uses_an_object, {}, "SECRET"),
        (inner_function(), {}, "kept"),
        (has_no_run, {}, "has_no_run"),
        (lambda run: run, {}, "lambda"),
        (uses_constants, {"scale": torch.ones(1)}, "scale"),
    ],
)
def test_what_cannot_be_written_down_is_named(
    function: Callable[..., object], arguments: dict[str, object], name: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        script_of(function, arguments)
    (problem,) = caught.value.problems
    assert name in problem.what


def test_a_class_that_a_function_made_is_named_as_its_module_does() -> None:
    assert import_name(torch_functions.Collated, "task") == f"{torch_functions.__name__}:Collated"


@pytest.mark.parametrize("task", ["Task", "Collated"])
def test_a_task_of_functions_trains(task: str, launcher: LocalLauncher, tmp_path: Path) -> None:
    flags = ("--mode", "asgd", "--num-workers", "2", "--epochs", "2", "--batch-size", "8", "--run-dir", "run")
    name = f"tests.fixtures.tasks.torch_functions:{task}"
    done = warm_paceline(launcher, "train", "--task", name, *flags, folder=tmp_path)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["samples"] == 256
    assert (result["metrics"].get("accuracy", 1.0)) > 0.8

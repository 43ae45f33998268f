"""Provocations of E12 and E13, training scripts that cannot be run with many workers."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from tests.core.provoked import Codes, Provocation, printed_codes, raised
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from paceline.plan.catalog import MODES
from paceline.worker.script.facts import ScriptFacts, ScriptFile, file_of
from paceline.worker.script.kept import KeptState
from paceline.worker.script.prepared import Prepared
from paceline.worker.script.suited import unsuited

FACTS = ScriptFacts(num_samples=12, batch_size=4, epochs=1)


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Iterable[int]:  # type: ignore[override]  # never called
        return range(3)


def _prepare(*objects: object) -> Codes:
    def prepare() -> None:
        Prepared().add(objects, accumulate=1, batch="global", wrap=lambda loader: loader)

    return raised(prepare)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def no_such_script(folder: Path) -> Codes:
    return printed_codes(folder, "run", "missing.py")


def _unsuited(facts: ScriptFacts) -> Codes:
    return {problem.code for problem in unsuited(facts, MODES["asgd"], is_elastic=False)}


def two_optimizers(_: Path) -> Codes:
    return _unsuited(replace(FACTS, turns=2))


def a_closure(_: Path) -> Codes:
    return _prepare(torch.optim.LBFGS(nn.Linear(2, 1).parameters()))


def a_stream(_: Path) -> Codes:
    return _prepare(DataLoader(_Stream()))


def a_plateau(_: Path) -> Codes:
    return _unsuited(replace(FACTS, has_plateau=True))


def half_of_a_gan(_: Path) -> Codes:
    def prepare() -> None:
        prepared = Prepared()
        model = nn.Linear(2, 1)
        objects = (model, nn.Linear(1, 2), _sgd(model))
        prepared.add(objects, accumulate=1, batch="global", wrap=lambda loader: loader)
        prepared.close()

    return raised(prepare)


def state_of_another_kind(folder: Path) -> Codes:
    kept = KeptState()
    kept.values["folder"] = folder
    return raised(kept.state_dict)


def sparse_gradients(_: Path) -> Codes:
    return _prepare(nn.Embedding(3, 2, sparse=True))


def a_lazy_module(_: Path) -> Codes:
    return _prepare(nn.LazyLinear(2))


def no_length(_: Path) -> Codes:
    return raised(lambda: replace(FACTS, epochs=0).total_steps(2))


def drawing_with_replacement(_: Path) -> Codes:
    samples = TensorDataset(torch.zeros(3))
    return _prepare(DataLoader(samples, sampler=RandomSampler(samples, replacement=True)))


def a_changed_file(folder: Path) -> Codes:
    script = folder / "train.py"
    script.write_text("import paceline\n")
    options = FACTS.options(ScriptFile(path=str(script)))
    script.write_text("import torch\n")
    return raised(lambda: file_of(options))


PROVOCATIONS: dict[str, Provocation] = {
    "E120": no_such_script,
    "E121": two_optimizers,
    "E123": a_closure,
    "E125": a_stream,
    "E126": a_plateau,
    "E127": sparse_gradients,
    "E128": a_lazy_module,
    "E130": no_length,
    "E131": drawing_with_replacement,
    "E132": a_changed_file,
    "E137": half_of_a_gan,
    "E138": state_of_another_kind,
}

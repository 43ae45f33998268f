"""Blocks of a sharded model that are gathered at once."""

from torch import nn

from paceline.tasks.load import load_task
from paceline.transport.sharded_arena import blocks_of, own_units


class _Tied(nn.Module):
    """The last layer's weight is the first one's, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.middle = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.score = nn.Linear(3, 7, bias=False)
        self.score.weight = self.embed.weight


def test_children_are_taken_and_containers_are_descended_into() -> None:
    inner = [nn.Linear(3, 3), nn.Linear(3, 1)]
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(*inner))
    assert blocks_of(model) == [model[0], *inner]


def test_a_list_of_parameters_belongs_to_the_module_that_computes_with_it() -> None:
    model = nn.Module()
    model.entries = nn.ParameterList([nn.Parameter()])
    assert blocks_of(model) == []


def test_tied_parameters_are_left_to_the_whole_model() -> None:
    model = _Tied()
    assert own_units(model, blocks_of(model)) == list(model.middle)


def test_parameters_that_are_tied_within_a_block_may_go_with_it() -> None:
    model = nn.Sequential(_Tied(), nn.Linear(7, 1))
    assert own_units(model, [model[0], model[1]]) == [model[0], model[1]]


def test_a_task_can_declare_its_blocks() -> None:
    task = load_task("charlm", seed=0, options={"layers": 3, "width": 8, "heads": 2})
    model = task.model()
    assert [type(block).__name__ for block in task.blocks(model)] == ["_Block"] * 3  # type: ignore[attr-defined]  # charlm has it

"""Arena: a model is one vector, and stays bound to it."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording
from torch import Tensor, nn

from paceline.core.errors import PacelineError
from paceline.transport.arena import ALIGN, PRESENCE, Arena, Layout


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2, bias=False))


class Odd(nn.Module):
    """Parameters of any shapes."""

    def __init__(self, shapes: list[list[int]], dtype: torch.dtype) -> None:
        super().__init__()
        for number, shape in enumerate(shapes):
            self.register_parameter(f"p{number}", nn.Parameter(torch.randn(shape, dtype=dtype)))


@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_every_tensor_has_its_own_place_on_a_64_byte_boundary(
    shapes: list[list[int]], dtype: torch.dtype
) -> None:
    layout = Layout.of(Odd(shapes, dtype))
    end = 0
    for piece in layout.parameters:
        assert piece.start >= end
        assert piece.start * dtype.itemsize % 64 == 0
        end = piece.start + piece.shape.numel()
    assert end <= layout.buffers_start <= layout.tail_start
    assert layout.numel >= layout.tail_start + PRESENCE + len(layout.parameters)
    assert layout.numel % ALIGN == 0
    assert layout.tail_start % ALIGN == 0


def test_the_vector_starts_on_a_64_byte_boundary_so_that_every_tensor_does() -> None:
    arena = Arena(model())
    for tensor in (*arena.module.parameters(), *arena.module.buffers()):
        if tensor.is_floating_point():
            assert tensor.data_ptr() % 64 == 0


def test_becoming_a_vector_changes_no_value() -> None:
    before = {name: tensor.clone() for name, tensor in model().state_dict().items()}
    after = Arena(model()).module.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_parameters_and_buffers_stay_views_of_the_vector_through_training() -> None:
    arena = Arena(model())
    arena.module.train()
    optimizer = torch.optim.SGD(arena.module.parameters(), lr=0.1)
    for _ in range(3):
        arena.expect_backward()
        arena.module(torch.randn(4, 3)).square().sum().backward()
        arena.collect_gradients()
        optimizer.step()
    for piece in arena.layout.parameters:
        assert arena.module.get_parameter(piece.name).data_ptr() == piece.view(arena.state).data_ptr()
    for piece in arena.layout.buffers:
        assert arena.module.get_buffer(piece.name).data_ptr() == piece.view(arena.state).data_ptr()
    assert arena.module.get_buffer("1.running_mean").abs().sum() > 0


def test_what_is_written_into_the_vector_is_the_model() -> None:
    arena = Arena(model())
    elsewhere = torch.zeros_like(arena.state)
    arena.place_state(elsewhere)
    elsewhere.fill_(2.0)
    assert all(bool((p == 2.0).all()) for p in arena.module.parameters())
    assert bool((arena.module.get_buffer("1.running_var") == 2.0).all())
    assert arena.state is elsewhere


def test_buffers_that_are_no_floating_point_numbers_are_left_alone() -> None:
    arena = Arena(model())
    counter = arena.module.get_buffer("1.num_batches_tracked")
    arena.module.train()
    arena.module(torch.randn(4, 3))
    arena.place_state(torch.zeros_like(arena.state))
    assert "1.num_batches_tracked" not in {piece.name for piece in arena.layout.buffers}
    assert arena.module.get_buffer("1.num_batches_tracked") is counter
    assert counter.item() == 1


def test_a_model_of_two_floating_types_is_refused_with_advice(wording: Wording) -> None:
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with wording.raises(PacelineError) as caught:
        Arena(mixed)
    assert "torch.float32" in caught.value.hint


def test_gradients_land_in_the_vector_and_unused_parameters_count_as_zero() -> None:
    arena = Arena(nn.ModuleList([nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)]))
    arena.gradients.fill_(9.0)
    arena.expect_backward()
    used = arena.module.get_submodule("0")
    loss: Tensor = used(torch.tensor([[3.0, 4.0]])).sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    arena.collect_gradients()
    first, second = (piece.view(arena.gradients) for piece in arena.layout.parameters)
    assert first.tolist() == [[3.0, 4.0]]
    assert second.tolist() == [[0.0, 0.0]]
    assert all(p.grad is not None for p in arena.module.parameters())


def test_gradients_do_not_pile_up_over_steps() -> None:
    arena = Arena(nn.Linear(2, 1, bias=False))
    for _ in range(3):
        arena.expect_backward()
        arena.module(torch.tensor([[3.0, 4.0]])).sum().backward()
        arena.collect_gradients()
    assert arena.layout.parameters[0].view(arena.gradients).tolist() == [[3.0, 4.0]]


def test_buffers_travel_with_the_gradients_and_back() -> None:
    sender, receiver = Arena(model()), Arena(model())
    sender.module.get_buffer("1.running_mean").fill_(7.0)
    sender.buffers_to_gradients()
    receiver.place_gradients(sender.gradients)
    receiver.buffers_from_gradients()
    assert bool((receiver.module.get_buffer("1.running_mean") == 7.0).all())


def test_a_shared_parameter_has_one_place() -> None:
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    arena = Arena(nn.Sequential(first, second))
    assert len(arena.layout.parameters) == 1
    arena.state.fill_(1.0)
    assert first.weight is second.weight
    assert first.weight.data_ptr() == arena.state.data_ptr()

"""Arena: a model's state and its gradients as flat vectors that a transport can move in one piece.

The state vector holds every parameter, then every floating-point buffer, then
a tail; parameters and buffers of the module are views into it. The gradient
vector has the same layout: gradients, room for the buffers, tail. Its tail also
says of each parameter whether any loss depended on it: an optimizer leaves out
the others, as in one process, where their `.grad` is None.
Every tensor starts on a 64-byte boundary in every vector, so that the same numbers
go through the same instructions in every process: bitwise replay depends on it.
Storage is bound once and never rebound afterwards.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.core.errors import MisfitError

ALIGN = 16  # elements: 64 bytes of float32
STOP_FLAG = 0  # index in the tail of a worker's stop request
WEIGHT = 1  # index in the tail of push-sum's weight, by which the vector is divided
LOSS_WEIGHT = 2  # index in the tail of the weight that a script gave to its losses; by default 1
PRESENCE = 3  # from this index on, a number for each parameter: not 0 if it has a gradient


def is_non_finite(vector: Tensor) -> bool:
    return not math.isfinite(float(vector.sum()))


@dataclass(frozen=True, slots=True)
class Piece:
    name: str
    start: int
    shape: torch.Size

    def view(self, flat: Tensor) -> Tensor:
        return flat[self.start : self.start + self.shape.numel()].view(self.shape)

    def view_of_many(self, rows: Tensor) -> Tensor:
        """The same piece of several vectors at once, one to a row."""
        return rows[:, self.start : self.start + self.shape.numel()].view(len(rows), *self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """The position of each tensor in the vector."""

    parameters: tuple[Piece, ...]
    buffers: tuple[Piece, ...]
    buffers_start: int
    tail_start: int
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return self.tail_start + _aligned(PRESENCE + len(self.parameters))

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        parameters = dict(module.named_parameters())
        buffers = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
        dtypes = {t.dtype for t in (*parameters.values(), *buffers.values())}
        if len(dtypes) != 1:
            raise MisfitError(
                f"the model's tensors have {len(dtypes)} floating types: {sorted(map(str, dtypes))}",
                "give the whole model one dtype, for example model.to(torch.float32)",
            )
        first, end = _lay_out(parameters, 0)
        second, tail = _lay_out(buffers, end)
        return cls(first, second, end, tail, dtypes.pop())


def _lay_out(tensors: Mapping[str, Tensor], start: int) -> tuple[tuple[Piece, ...], int]:
    pieces = []
    for name, tensor in tensors.items():
        pieces.append(Piece(name, start, tensor.shape))
        start += _aligned(tensor.numel())
    return tuple(pieces), start


def _aligned(numel: int) -> int:
    return -(-numel // ALIGN) * ALIGN


class Arena:
    """A module's state and gradients, each as one vector."""

    def __init__(self, module: nn.Module) -> None:
        self.layout = Layout.of(module)
        self.module = module
        self._parameters = list(module.parameters())
        self._buffers = [b for b in module.buffers() if b.is_floating_point()]
        self._owners = _buffer_owners(module)
        device = self._parameters[0].device
        self.gathers_gradients = True  # False: another owner (torch DDP) manages `.grad`
        self.absent_are_zero = (
            False  # every trainable parameter has moments: those of all workers are averaged
        )
        self.state = torch.zeros(self.layout.numel, dtype=self.layout.dtype, device=device)
        self.gradients = torch.zeros_like(self.state)
        self._known_vectors: dict[int, tuple[Tensor, list[Tensor], list[Tensor]]] = {}
        self._gradient_views: list[Tensor] = []
        self._room_for_buffers: list[Tensor] = []
        self.place_state(self.state)
        self.place_gradients(self.gradients)

    def place_state(self, flat: Tensor) -> None:
        """Move parameters and buffers into `flat`; from now on they are views of it."""
        for piece, parameter in zip(self.layout.parameters, self._parameters, strict=True):
            view = piece.view(flat)
            view.copy_(parameter.data)
            parameter.data = view
        for number, piece in enumerate(self.layout.buffers):
            view = piece.view(flat)
            view.copy_(self._buffers[number])
            owner, name = self._owners[number]
            owner._buffers[name] = view
            self._buffers[number] = view
        self.state = flat

    def place_gradients(self, flat: Tensor) -> None:
        """Gradients are read from and written to `flat` from now on."""
        self.gradients = flat
        if flat.data_ptr() not in self._known_vectors:  # cached: a server alternates between workers' slots
            views = [piece.view(flat) for piece in self.layout.parameters]
            buffers = [piece.view(flat) for piece in self.layout.buffers]
            self._known_vectors[flat.data_ptr()] = (flat, views, buffers)
        _, self._gradient_views, self._room_for_buffers = self._known_vectors[flat.data_ptr()]

    def forget_vectors(self) -> None:
        """Drop the cached views of all vectors but the present one, so that their memory can be freed."""
        present = self.gradients.data_ptr()
        self._known_vectors = {present: self._known_vectors[present]}

    def expect_backward(self) -> None:
        """Clear `.grad`, so that backward writes new gradients; accumulating would cost two more passes."""
        for parameter in self._parameters:
            parameter.grad = None

    def expect_more(self, *, more: bool) -> None:
        """Announce whether another backward adds to the same gradients. Only a sharded model uses it."""

    def collect_gradients(self, *, absent_are_zero: bool = False, loss_weight: float = 1.0) -> None:
        """Copy the gradients of backward into the vector; `.grad` becomes a view of it.

        `absent_are_zero`: trainable parameters without a gradient count as if theirs were zero.
        `loss_weight`: by which the losses were multiplied before backward.
        """
        if not self.gathers_gradients:
            if loss_weight not in (0.0, 1.0):
                torch._foreach_div_([p.grad for p in self._parameters if p.grad is not None], loss_weight)
            return
        fresh = []
        views = []
        absent_are_zero = absent_are_zero or self.absent_are_zero
        presence = [p.grad is not None or (absent_are_zero and p.requires_grad) for p in self._parameters]
        self._describe_gradients(presence, loss_weight)
        for parameter, view in zip(self._parameters, self._gradient_views, strict=True):
            if parameter.grad is None:
                view.zero_()  # the loss did not depend on it
            elif parameter.grad.data_ptr() != view.data_ptr():
                fresh.append(parameter.grad)
                views.append(view)
            parameter.grad = view
        if fresh:
            torch._foreach_copy_(views, fresh)

    def _describe_gradients(self, presence: Sequence[bool], loss_weight: float) -> None:
        self.gradients[self.layout.tail_start + LOSS_WEIGHT] = loss_weight
        if all(presence):
            self._presence.fill_(1.0)
        else:
            self._presence.copy_(torch.tensor(presence))

    @property
    def _presence(self) -> Tensor:
        first = self.layout.tail_start + PRESENCE
        return self.gradients[first : first + len(self._parameters)]

    def divide_by_loss_weight(self) -> None:
        """Make the weighted mean of a mean of weighted gradients, whose weights have been averaged along."""
        if not self.gathers_gradients:
            return
        weight = float(self.gradients[self.layout.tail_start + LOSS_WEIGHT])
        if weight not in (0.0, 1.0):
            self.gradient_part.div_(weight)
            self.gradients[self.layout.tail_start + LOSS_WEIGHT] = 1.0

    def release_absent(self) -> None:
        """`.grad` of parameters on which no loss depended becomes None: an optimizer leaves them out."""
        if self.gathers_gradients and not bool(self._presence.all()):
            for parameter, is_present in zip(self._parameters, self._presence.tolist(), strict=True):
                if not is_present:
                    parameter.grad = None

    def bind_whole_gradient(self) -> None:
        """Bind `.grad` to the vector, in which every parameter has a gradient."""
        self._describe_gradients([True] * len(self._parameters), 1.0)
        self.bind_gradients()

    def bind_gradients(self) -> None:
        """Bind `.grad` of every parameter to its view of the vector, for an optimizer to read."""
        for parameter, view in zip(self._parameters, self._gradient_views, strict=True):
            parameter.grad = view

    def buffers_to_gradients(self) -> None:
        """Copy the buffers (batch-norm statistics) into the gradient vector, to be averaged along."""
        if self._buffers:
            torch._foreach_copy_(self._room_for_buffers, self._buffers)

    def buffers_from_gradients(self) -> None:
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._room_for_buffers)

    @property
    def gradient_part(self) -> Tensor:
        return self.gradients[: self.layout.buffers_start]

    def named_state(self) -> dict[str, Tensor]:
        """Copies of every parameter and buffer by name, for checkpoints and comparisons."""
        return {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}


def _buffer_owners(module: nn.Module) -> list[tuple[nn.Module, str]]:
    owners = []
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            path, _, leaf = name.rpartition(".")
            owners.append((module.get_submodule(path), leaf))
    return owners

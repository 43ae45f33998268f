"""How are the gradients of many virtual workers computed at once? Stacked, by vmap over their replicas.

Whoever is ready at the same moment of virtual time asks; then one pass of
`torch.func` computes the losses and gradients of all who asked, each on its own
parameters and samples. On a GPU this costs little more than one worker's pass.
The numbers are those of batched kernels: equal up to rounding, not bit by bit.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from paceline.sync.assignment import Share
from paceline.tasks.port import Batch, Task
from paceline.transport.arena import Arena
from paceline.transport.turns import Turns
from paceline.worker.gradient import GradientSource, Times
from paceline.worker.replica import Replica


class StackedSource:
    """What the workers of one process share; each gets its own `source()`."""

    def __init__(self, single: GradientSource, task: Task, turns: Turns) -> None:
        self.turns, self._single = turns, single
        self._task = task
        self._asked: dict[int, tuple[Replica, Share]] = {}  # by the replica's address
        self._losses: dict[int, float] = {}

    def source(self) -> "_OneOfMany":
        return _OneOfMany(self)

    def ask(self, replica: Replica, share: Share) -> None:
        replica.step = share.step
        self._asked[id(replica)] = replica, share

    def loss_of(self, replica: Replica) -> float:
        """The loss of a replica that asked; the first one to call this computes them all."""
        if id(replica) not in self._losses:
            asked, self._asked = list(self._asked.values()), {}
            self._compute(asked)
        return self._losses.pop(id(replica))

    def _compute(self, asked: Sequence[tuple[Replica, Share]]) -> None:
        batches = [self._single.batch_of(share) for _, share in asked]
        replicas = [replica for replica, _ in asked]
        stacked = _stack(batches)
        if stacked is None or len(asked) == 1:  # unequal batches have no common shape
            losses = [self._single.compute(replica, share) for replica, share in asked]
        else:
            losses = self._at_once(replicas, stacked).tolist()
        self._losses |= {id(replica): loss for replica, loss in zip(replicas, losses, strict=True)}

    def _at_once(self, replicas: Sequence[Replica], batch: Batch) -> Tensor:
        arenas = [replica.arena for replica in replicas]
        states = torch.stack([arena.state for arena in arenas])
        layout, count = arenas[0].layout, len(arenas)
        parameters = {p.name: p.view_of_many(states) for p in layout.parameters}
        buffers = {p.name: p.view_of_many(states) for p in layout.buffers}
        counters = _stack_counters(arenas)
        model = _WithLoss(self._task, arenas[0].module)

        def loss(own: Mapping[str, Tensor], rest: Mapping[str, Tensor], samples: Batch) -> Tensor:
            named = {f"model.{name}": tensor for name, tensor in (*own.items(), *rest.items())}
            found: Tensor = functional_call(model, named, (samples,))
            return found

        compute = vmap(grad_and_value(loss), randomness="different")
        gradients, losses = compute(parameters, {**buffers, **counters}, batch)
        everybody = states.new_zeros((count, layout.buffers_start))
        for piece in layout.parameters:
            piece.view_of_many(everybody).copy_(gradients[piece.name])
        _hand_out(arenas, everybody, states, counters)
        found: Tensor = losses.detach()
        return found


class _OneOfMany:
    """One worker's end: asks, lets all others ask, then takes its own."""

    def __init__(self, shared: StackedSource) -> None:
        self._shared = shared
        self.times_ns = Times(0, 0, 0, 0)

    def compute(self, replica: Replica, share: Share, look: Callable[[], None] = lambda: None) -> float:
        self._shared.ask(replica, share)
        self._shared.turns.sleep(0.0)  # the turn goes to everybody else who is ready now
        now_ns = self._shared.turns.now_ns()
        self.times_ns = Times(now_ns, now_ns, now_ns, now_ns)
        loss = self._shared.loss_of(replica)
        look()  # only now: the pass is everybody's, forward and backward in one
        return loss


class _WithLoss(nn.Module):
    """The task's loss as a module, so that functional_call can put other parameters into the model."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self._task, self.model = task, model

    def forward(self, batch: Batch) -> Tensor:
        return self._task.loss(self.model, batch)


def _stack(batches: Sequence[Batch]) -> "Batch | None":
    flat = [tree_flatten(batch) for batch in batches]
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    if any(len({leaf.shape for leaf in column}) > 1 for column in columns):
        return None
    stacked: Batch = tree_unflatten([torch.stack(column) for column in columns], flat[0][1])
    return stacked


def _stack_counters(arenas: Sequence[Arena]) -> dict[str, Tensor]:
    """Buffers that are no floating-point numbers, such as batch norm's count of batches."""
    names = [name for name, b in arenas[0].module.named_buffers() if not b.is_floating_point()]
    return {name: torch.stack([arena.module.get_buffer(name) for arena in arenas]) for name in names}


def _hand_out(
    arenas: Sequence[Arena], gradients: Tensor, states: Tensor, counters: Mapping[str, Tensor]
) -> None:
    """Every worker gets its own gradient, and the buffers as its forward pass left them."""
    layout = arenas[0].layout
    torch._foreach_copy_([arena.gradient_part for arena in arenas], list(gradients.unbind()))
    if layout.buffers:
        kept = slice(layout.buffers_start, layout.tail_start)
        torch._foreach_copy_([arena.state[kept] for arena in arenas], list(states[:, kept].unbind()))
    for number, arena in enumerate(arenas):
        arena.bind_gradients()
        for name, stacked in counters.items():
            arena.module.get_buffer(name).copy_(stacked[number])

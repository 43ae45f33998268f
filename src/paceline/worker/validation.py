"""How good is the model now? Every worker looks at a part of the validation data, and all get one answer.

The rows are cut into pieces whose size depends on the data alone. Each piece is
summed by one worker, and the sums are added in the order of pieces: so the
answer has the same bits whatever the number of workers. Whatever the task
does, the model, its mode and the dice are afterwards as they were.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paceline.errors import TrainingError
from paceline.plan.catalog import Channel
from paceline.tasks.port import Scoring, Task, Validating
from paceline.transport.arena import Arena
from paceline.transport.ports import Collective

MOST_ROWS = 256  # of a piece: what one forward pass holds at once
PIECES = 64  # at least, where there are as many rows: enough to share out evenly


def pieces_of(num_rows: int) -> list[range]:
    size = min(MOST_ROWS, max(1, -(-num_rows // PIECES)))
    return [range(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


class Validation:
    def __init__(
        self, task: Task, arena: Arena, *, seed: int, collective: Collective | None, channel: Channel
    ) -> None:
        self._task, self._arena, self._seed = task, arena, seed
        self._collective = None if collective is None or collective.world_size == 1 else collective
        # Plain DDP lets every rank's buffers go their own way; ours does not, but a strategy of yours may.
        self._takes_buffers = channel is Channel.TORCH
        self._vectors: dict[int, Tensor] = {}  # to be shown to the others, by length

    def metrics(self) -> dict[str, float]:
        """The same at every worker. All call it at the same step."""
        with self._buffers_of_rank_0():
            if isinstance(self._task, Validating):
                return self._shared(self._task)
            with _as_it_was(self._arena.module, self._seed):
                found = {name: float(v) for name, v in self._task.metrics(self._arena.module).items()}
            # On a GPU two workers need not compute the same bits.
            return dict(zip(found, self.agreed(list(found.values())), strict=True))

    def _shared(self, task: Validating) -> dict[str, float]:
        num_rows = task.validation_size()
        if num_rows < 1:
            raise TrainingError(
                "the task has no validation rows, so it cannot be evaluated",
                "leave evaluate_every out, or let validation_size() be more than 0",
            )
        pieces = pieces_of(num_rows)
        rank, world = (
            (0, 1) if self._collective is None else (self._collective.rank, self._collective.world_size)
        )
        mine = range(rank, len(pieces), world)
        seen: dict[int, dict[str, float]] = {}
        for i in mine or range(1):  # whoever has no piece learns from the first which numbers there are
            with _as_it_was(self._arena.module, self._seed + i), torch.no_grad():
                seen[i] = task.validate(self._arena.module, pieces[i])
        names = list(next(iter(seen.values())))
        table = torch.zeros(len(pieces), len(names), dtype=torch.float64)
        for i in mine:
            table[i] = torch.tensor([float(seen[i][name]) for name in names], dtype=torch.float64)
        total = self._in_order(table)
        sums = {name: sum(column) for name, column in zip(names, total.T.tolist(), strict=True)}
        if isinstance(task, Scoring):
            return task.scores(sums, num_rows)
        return {name: value / num_rows for name, value in sums.items()}

    def _in_order(self, table: Tensor) -> Tensor:
        """What all workers have found, each row by one of them."""
        if self._collective is None:
            return table
        vector = self._vector(table.numel())
        vector.copy_(table.view(-1))
        everybody, _ = self._collective.gather(vector)
        whole = torch.zeros_like(table)
        for rank, other in enumerate(everybody):
            part = slice(rank, None, self._collective.world_size)
            whole[part] = other.view(table.shape)[part].to(whole.device)
        return whole

    def agreed(self, values: list[float]) -> list[float]:
        """Rank 0's, for all. No worker returns before rank 0 has called this."""
        if self._collective is None:
            return values
        vector = self._vector(len(values))
        vector.copy_(torch.tensor(values, dtype=torch.float64))
        self._collective.broadcast(vector)
        found: list[float] = vector.tolist()
        return found

    def _vector(self, numel: int) -> Tensor:
        assert self._collective is not None, "asked only where there are others"
        if numel not in self._vectors:
            self._vectors[numel] = self._collective.allocate(numel, torch.float64)
        return self._vectors[numel]

    @contextmanager
    def _buffers_of_rank_0(self) -> Iterator[None]:
        layout, state = self._arena.layout, self._arena.state
        buffers = state[layout.buffers_start : layout.tail_start]
        if self._collective is None or not self._takes_buffers or not layout.buffers:
            yield
            return
        own, common = buffers.clone(), buffers.clone()
        self._collective.broadcast(common)
        buffers.copy_(common)
        try:
            yield
        finally:
            buffers.copy_(own)


@contextmanager
def _as_it_was(module: nn.Module, seed: int) -> Iterator[None]:
    """In eval mode, with dice of its own; both are put back."""
    modes = [(part, part.training) for part in module.modules()]
    on_gpu: Sequence[int] = sorted({p.device.index for p in module.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=on_gpu):
        torch.default_generator.manual_seed(seed)
        module.eval()
        try:
            yield
        finally:
            for part, was_training in modes:
                part.training = was_training

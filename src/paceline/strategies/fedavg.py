"""Federated averaging: in each round some workers train alone, and only these are averaged.

A part of the workers (`clients_per_round`) is drawn. Each of them starts from
the common parameters with a fresh optimizer, makes `sync_every` steps on its
own samples, and is weighted in the mean by the samples that it used (McMahan
2016, arXiv 1602.05629). The others wait, and copy the mean. Rounds follow until
all workers have done all of their work. With all workers drawn, and a stateless
optimizer, this is localsgd.
"""

from typing import ClassVar

import torch
from torch import Tensor

from paceline.core.ids import Clock, Step
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.plan.schedule import draws_of
from paceline.strategies.means import mean_of
from paceline.strategies.port import Begun, Links, Outcome, Replica
from paceline.sync.assignment import WorkUnit
from paceline.transport.arena import STOP_FLAG
from paceline.transport.ports import NO_TRAFFIC, Traffic


class Fedavg:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(self, plan: Plan, links: Links) -> None:
        assert links.collective is not None, "fedavg meets by a collective"
        self._collective = links.collective
        self._plan = plan
        self._links = links
        self._rounds = draws_of(plan)
        self._left = 0  # local steps until this round's averaging
        self._missed = NO_TRAFFIC  # traffic of rounds in which this worker had no step
        self._saved: dict[str, Tensor] = {}

    def prepare(self, replica: Replica, clock: Clock) -> None:
        arena = replica.arena
        layout = replica.arena.layout
        self._replica = replica
        self._arena = arena
        arena.place_state(self._collective.allocate(layout.numel, layout.dtype))
        self._collective.broadcast(arena.state)
        self._mean = mean_of(
            self._plan, self._links, arena.state, lossy_end=layout.buffers_start, pieces=layout.parameters
        )
        self._mean.restore({name: t for name, t in self._saved.items() if name != "round"})
        # The last common parameters: a lossy mean is taken of the differences from them.
        self._common = arena.state[: layout.buffers_start].clone() if self._mean.is_lossy else None
        while self._saved and self._rounds.number < int(self._saved["round"]):
            self._rounds.finish()

    def begin_step(self, step: Step) -> Begun | Outcome | None:
        if self._left == 0:
            drawn = self._rounds.current()
            if not drawn:
                return None
            if self._links.rank not in drawn:
                return self._sit_out()
            self._left = drawn[self._links.rank]
            self._replica.forget_optimizer_state()
        missed = self._missed
        self._missed = NO_TRAFFIC
        return Begun(share=WorkUnit(self._links.rank, step), traffic=missed)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        apply_ns = self._replica.update()
        number = self._rounds.number
        self._left -= 1
        if self._left:
            return Outcome(apply_ns=apply_ns, version=number)
        traffic, stop = self._average(self._weight(), wants_stop=wants_stop)
        return Outcome(
            traffic=traffic,
            apply_ns=apply_ns,
            version=number,
            synced=True,
            stop=stop,
            shares_done=sum(self._rounds.done),
        )

    def snapshot(self) -> dict[str, Tensor]:
        return {**self._mean.snapshot(), "round": torch.tensor(self._rounds.number)}

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._collective.close()

    def _weight(self) -> float:
        """The factor before an unweighted mean over all workers: N times the own part of the samples."""
        batches = self._plan.batch_sizes
        used = {rank: batches[rank] * steps for rank, steps in self._rounds.current().items()}
        return used[self._links.rank] * self._plan.num_workers / sum(used.values())

    def _sit_out(self) -> Outcome:
        """Wait for this round's clients, and copy their mean."""
        traffic, stop = self._average(0.0, wants_stop=False)
        self._missed += traffic
        return Outcome(synced=True, stop=stop, shares_done=sum(self._rounds.done))

    def _average(self, weight: float, *, wants_stop: bool) -> tuple[Traffic, bool]:
        """Replace every worker's state by the mean of the clients'; also whether any worker wants to stop."""
        state = self._arena.state
        layout = self._arena.layout
        parameters = state[: layout.buffers_start]
        tail = state[layout.tail_start :]
        if self._common is not None:
            parameters.sub_(self._common)
        if weight == 0.0:
            state.zero_()
        elif weight != 1.0:
            state.mul_(weight)
        tail[STOP_FLAG] = float(wants_stop)
        traffic = self._mean.reduce()
        if self._common is not None:
            self._common.copy_(parameters.add_(self._common))
        self._rounds.finish()
        return traffic, bool(tail[STOP_FLAG] > 0)

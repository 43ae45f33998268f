"""A step of elastic ddp and fsdp is committed only when nothing can interrupt its worker any more."""

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from torch import nn

from paceline.core.clock import SystemClock
from paceline.core.errors import PeerLostError
from paceline.core.ids import Clock, Rank, Step
from paceline.plan.plan import Elastic
from paceline.strategies.elastic.torch_group import GenerationMembers, TorchGeneration
from paceline.strategies.port import Links, Replica
from paceline.transport.torch_dist import STOP_POLL_EVERY
from paceline.worker import replica as own
from paceline.worker.participant import state_hash
from paceline.worker.wiring import build_task, set_up_torch


class LosesItsPeers(GenerationMembers):
    """The generation ends while its members agree."""

    def agree(self, wants_stop: bool, device: torch.device) -> bool:
        raise PeerLostError("the generation ended", "the run continues in the next one")


class OnItsOwn(TorchGeneration):
    def _wrap(self, replica: Replica, module: nn.Module) -> int:
        return 0

    def _average_buffers(self) -> None:
        pass


def test_a_generation_that_ends_while_its_members_agree_leaves_no_committed_step_without_a_row() -> None:
    elastic = Elastic(workers=1, min_workers=1, max_workers=1)
    plan = small_plan("ddp", num_workers=1, steps=10 * STOP_POLL_EVERY, elastic=elastic)
    set_up_torch(plan)
    clock = SystemClock()
    replica = own.Replica(plan, build_task(plan), torch.device("cpu"), clock)
    members = LosesItsPeers(["worker-0"], 0, wants_leave=lambda: False, is_over=lambda: False)
    strategy = OnItsOwn(plan, Links(rank=Rank(0), world_size=1, clock=clock), members)
    strategy.prepare(replica, Clock(STOP_POLL_EVERY - 1))
    replica.arena.gradients.fill_(1.0)
    before = state_hash(replica.arena.named_state())
    with pytest.raises(PeerLostError):
        strategy.finish_step(Step(STOP_POLL_EVERY - 1), wants_stop=False)
    assert (strategy.committed, strategy.gradients) == (STOP_POLL_EVERY - 1, 0)
    assert state_hash(replica.arena.named_state()) == before

"""Adaptive mode: divides the work by measured speed, and changes the synchronization policy if it pays.

It begins as `ssgd`, or as the plan defines. At intervals all workers exchange how
long their latest steps took and reach the same decision (sync/adaptive_policy.py):
- ssgd, batch: gradients are averaged at every step. The samples of a step are
  always those of ssgd; only the split between workers moves, and each gradient is
  weighted by its samples, so the result stays that of ssgd.
- local steps: a round is `sync_every` steps of the run. Its shares are assigned
  by speed, fast workers do more of them; then parameters are averaged. Every
  gradient has weight 1/N, whichever worker computed it.
Rounds and steps are whole, so every share of the run is done exactly once.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from paceline.core.ids import Clock, Step
from paceline.events.read import History
from paceline.plan.catalog import Channel
from paceline.plan.plan import Plan
from paceline.strategies.means import Moments, mean_of, strip_prefix
from paceline.strategies.port import Begun, Links, Outcome, Replica
from paceline.sync.adaptive_policy import (
    WINDOW_STEPS,
    Decision,
    State,
    Window,
    decide,
    first_state,
    next_decision,
)
from paceline.sync.adaptive_setting import (
    Adapted,
    AdaptiveSetting,
    AdaptiveTerms,
    SyncPolicy,
    setting_from_event,
)
from paceline.sync.assignment import SampleSlice, WorkUnit, work_units_of_round
from paceline.sync.averaging import mean_weight
from paceline.transport.arena import STOP_FLAG
from paceline.transport.ports import NO_TRAFFIC, Traffic


class Adaptive:
    channel: ClassVar[Channel] = Channel.COLLECTIVE

    def __init__(
        self, plan: Plan, links: Links, *, recorded: Mapping[int, AdaptiveSetting] | None = None
    ) -> None:
        """`recorded`: repeat a run's decisions instead of measuring, by the number of finished steps."""
        assert links.collective is not None, "adaptive workers meet by a collective"
        self._plan = plan
        self._links = links
        self._collective = links.collective
        self._terms = AdaptiveTerms(
            allowed=plan.strategy.adaptive, batch_sizes=plan.batch_sizes, period=plan.strategy.sync_every
        )
        self._state = first_state(self._terms)
        self._recorded = recorded
        self._done = 0  # finished steps of the run, by all workers together
        self._round: deque[WorkUnit] | None = None  # this worker's shares until the next averaging
        self._latest: deque[float] = deque(maxlen=WINDOW_STEPS)  # seconds per sample of this worker's steps
        self._is_warm = False
        self._saved: dict[str, Tensor] = {}

    @classmethod
    def following(cls, history: History) -> Callable[[Plan, Links], "Adaptive"]:
        """Build a strategy for a replay, which repeats the recorded decisions at the same steps."""
        adapted = [event.fields for event in history.plain if event.kind == "adapted"]
        return partial(
            cls, recorded={int(str(fields["step"])): setting_from_event(fields) for fields in adapted}
        )

    def prepare(self, replica: Replica, clock: Clock) -> None:
        arena = replica.arena
        layout = replica.arena.layout
        self._replica = replica
        self._arena = arena
        arena.absent_are_zero = True
        shared = self._collective.allocate(layout.numel, layout.dtype)
        shared.copy_(arena.state)
        self._collective.broadcast(shared)
        arena.state.copy_(shared)
        arena.place_gradients(shared.zero_())
        # Gradients and parameters use the same vector; the error memories of a lossy mean must not mix.
        self._gradient_mean, self._parameter_mean = (
            mean_of(self._plan, self._links, shared, lossy_end=layout.buffers_start, pieces=layout.parameters)
            for _ in range(2)
        )
        self._common = arena.state[: layout.buffers_start].clone() if self._parameter_mean.is_lossy else None
        self._moments = Moments(self._collective)
        self._window = self._collective.allocate(1 + WINDOW_STEPS, torch.float64)
        self._load_saved()

    def begin_step(self, step: Step) -> Begun | None:
        if self._done >= self._plan.steps:
            return None
        if self._state.setting.policy is SyncPolicy.LOCAL_STEPS:
            self._round = self._round or self._new_round()
            self._share = self._round.popleft()
        else:
            self._share = self._step_share()
        self._began_ns = self._links.clock.now_ns()
        return Begun(share=self._share)

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        self._measure()
        if self._round is None:
            traffic, stop = self._average_gradients(wants_stop=wants_stop)
            apply_ns = self._replica.update()
            return self._synced(1, traffic, apply_ns, stop=stop)
        apply_ns = self._replica.update()
        if self._round:
            return Outcome(apply_ns=apply_ns)
        self._round = None
        traffic, stop = self._average_parameters(wants_stop=wants_stop)
        return self._synced(self._round_steps(), traffic, apply_ns, stop=stop)

    def snapshot(self) -> dict[str, Tensor]:
        setting = self._state.setting
        policies = list(SyncPolicy)
        preferred = self._state.preferred()
        numbers = (
            self._done,
            policies.index(setting.policy),
            -1 if preferred is None else policies.index(preferred),
            *setting.shares,
            *self._state.seconds,
        )
        means = {"gradients": self._gradient_mean, "parameters": self._parameter_mean}
        memories = {
            f"{kind}.{n}": tensor for kind, mean in means.items() for n, tensor in mean.snapshot().items()
        }
        return {"decided": torch.tensor(numbers, dtype=torch.float64), **memories}

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._saved = saved

    def close(self) -> None:
        self._collective.close()

    def decide(self, window: Window) -> Decision:
        """The decision from all workers' latest steps; the same at every worker."""
        return decide(self._state, window, self._terms)

    def _load_saved(self) -> None:
        if not self._saved:
            return
        for kind, mean in (("gradients", self._gradient_mean), ("parameters", self._parameter_mean)):
            mean.restore(strip_prefix(self._saved, f"{kind}."))
        done, policy_index, preferred_index, *rest = self._saved["decided"].tolist()
        policies = list(SyncPolicy)
        workers = self._links.world_size
        setting = AdaptiveSetting(policies[int(policy_index)], tuple(map(int, rest[:workers])))
        preferred = None if preferred_index < 0 else policies[int(preferred_index)]
        self._done = int(done)
        self._state = State(setting, tuple(rest[workers:]), lambda: preferred)

    def _step_share(self) -> WorkUnit:
        """This worker's samples of the next step: the planned ones, or a slice by speed."""
        setting = self._state.setting
        rank = self._links.rank
        if setting == self._terms.as_planned(setting.policy):
            return WorkUnit(rank, self._done)
        start = self._done * self._plan.global_batch + sum(setting.shares[:rank])
        return WorkUnit(rank, self._done, SampleSlice(start, setting.shares[rank]))

    def _new_round(self) -> deque[WorkUnit]:
        steps = self._round_steps()
        runs = self._terms.in_a_round(self._state.setting, steps)
        return deque(work_units_of_round(self._links.rank, runs, first=self._done, steps=steps))

    def _round_steps(self) -> int:
        return min(self._plan.strategy.sync_every, self._plan.steps - self._done)

    def _measure(self) -> None:
        took_ns = self._links.clock.now_ns() - self._began_ns
        if self._is_warm:
            self._latest.append(took_ns / 1e9 / self._share.size(self._plan.batch_sizes))
        self._is_warm = True  # the first step of a process takes longer

    def _average_gradients(self, *, wants_stop: bool) -> tuple[Traffic, bool]:
        arena = self._arena
        weight = mean_weight(self._links.rank, self._state.setting.shares)
        if weight != 1.0:
            arena.gradient_part.mul_(weight)
        arena.buffers_to_gradients()
        tail = arena.gradients[arena.layout.tail_start :]
        tail[STOP_FLAG] = float(wants_stop)
        traffic = self._gradient_mean.reduce()
        arena.buffers_from_gradients()
        return traffic, bool(tail[STOP_FLAG] > 0)

    def _average_parameters(self, *, wants_stop: bool) -> tuple[Traffic, bool]:
        """Unweighted: a worker with more local steps has already moved further."""
        arena = self._arena
        layout = self._arena.layout
        vector = arena.gradients
        tail = arena.gradients[layout.tail_start :]
        vector.copy_(arena.state)
        if self._common is not None:
            vector[: layout.buffers_start].sub_(self._common)
        tail[STOP_FLAG] = float(wants_stop)
        traffic = self._parameter_mean.reduce()
        if self._common is not None:
            vector[: layout.buffers_start].add_(self._common)
        arena.state[: layout.tail_start].copy_(vector[: layout.tail_start])
        return traffic, bool(tail[STOP_FLAG] > 0)

    def _synced(self, steps: int, traffic: Traffic, apply_ns: int, *, stop: bool) -> Outcome:
        before = self._done
        self._done += steps
        adapted = None
        if self._links.world_size > 1 and self._done < self._plan.steps:
            adapted, extra = self._adapt(before)
            traffic += extra
        if self._common is not None:
            self._common.copy_(self._arena.state[: self._arena.layout.buffers_start])
        return Outcome(
            traffic=traffic,
            apply_ns=apply_ns,
            synced=True,
            stop=stop,
            shares_done=self._done * self._links.world_size,
            adapted=adapted,
        )

    def _adapt(self, before: int) -> tuple[Adapted | None, Traffic]:
        was = self._state.setting
        traffic = NO_TRAFFIC
        reason = ""
        if self._recorded is not None:
            setting = self._recorded.get(self._done, was)
            self._state = State(setting)
            reason = "as recorded"
        elif self._done >= next_decision(before):
            window, traffic = self._exchange_windows()
            decision = self.decide(window)
            self._state = decision.state
            reason = decision.reason or ""
        now = self._state.setting
        if now == was:
            return None, traffic
        if was.policy is SyncPolicy.LOCAL_STEPS and now.policy is not was.policy:
            # From here on all workers make the same updates, so their optimizer states must be equal too.
            traffic += self._average_optimizers()
        return Adapted(step=self._done, was=was.policy, now=now, reason=reason), traffic

    def _average_optimizers(self) -> Traffic:
        replica = self._replica
        kept = [*replica.optimizer_state().values(), *replica.optimizer_numbers().values()]
        traffic = self._moments.average(kept)
        replica.count_steps(self._done)
        return traffic

    def _exchange_windows(self) -> tuple[Window, Traffic]:
        """All workers' latest steps; the own ones are cleared."""
        count = len(self._latest)
        self._window[0] = count
        self._window[1 : 1 + count] = torch.tensor(self._latest, dtype=torch.float64)
        self._latest.clear()
        windows, traffic = self._collective.gather(self._window)
        rows = [row.tolist() for row in windows]
        return [row[1 : 1 + int(row[0])] for row in rows], traffic

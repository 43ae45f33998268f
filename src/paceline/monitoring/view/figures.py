"""Figures of a run at one moment, derived from its sums: rates, states, shares, ages; snapshots. Pure."""

import math
from dataclasses import dataclass

from paceline.events.schema import PHASES
from paceline.monitoring.metrics.statistics import median, quantile
from paceline.monitoring.view.run_track import RunTrack
from paceline.monitoring.view.worker_track import WorkerTrack
from paceline.plan.catalog import MODES, Channel
from paceline.plan.codec import Json
from paceline.plan.plan import Launcher, Plan

RATE_S = 10  # window of the throughput
STALLED_S = 2.0  # without a step for this long, the run counts as stalled
SLOW_BELOW = 0.7
BEFORE_S = 300
INJECTED_S = 120.0
_OPS = {
    Channel.ALONE: "none",
    Channel.COLLECTIVE: "all_reduce",
    Channel.TORCH: "all_reduce",
    Channel.STORE: "push_pull",
    Channel.PEERS: "exchange",
}
WAIT = PHASES.index("wait")
COMM = PHASES.index("comm")


@dataclass(frozen=True, slots=True)
class Rates:
    samples_per_s: float
    bytes_per_s: float


class Figures:
    """A run at one moment; `now_s` is on the run's own clock."""

    def __init__(self, track: RunTrack, now_s: float) -> None:
        self.track = track
        self.now_s = now_s
        self.workers = sorted(track.workers.values(), key=lambda w: (len(w.name), w.name))
        # Cached: used many times per snapshot, and a median costs a sort.
        self._own_s = {w.name: w.own_p50_s for w in self.workers}
        self._states: dict[str, str] = {}
        self._sums_s: list[float] | None = None  # of all workers' phases in the last minute
        self._median_own_s = median(
            [t for w in self.workers if (t := self._own_s[w.name]) is not None and not w.is_lost]
        )
        self.foremost = max((w.steps for w in self.workers), default=0)

    @property
    def plan(self) -> Plan:
        return self.track.plan

    @property
    def state(self) -> str:
        if self.track.outcome is not None:
            return self.track.outcome
        if self.track.is_stopping:
            return "stopping"
        return "training" if self.track.last_step_s is not None else "starting"

    @property
    def elapsed_s(self) -> float:
        """Seconds until now, or until the end of a finished run."""
        return self.now_s if self.track.over_s is None else self.track.over_s

    @property
    def end_s(self) -> float:
        """The end of the rate window: the newest step, or now if the run has stalled."""
        last = self.track.last_step_s
        if last is None or (self.now_s - last > STALLED_S and not self.track.is_over):
            return self.now_s
        return last

    def rates(self, workers: list[WorkerTrack] | None = None, before_s: float = 0.0) -> Rates:
        """Over the last ten whole seconds, or since the first step if that is less."""
        chosen = self.workers if workers is None else workers
        first = self.track.first_step_s
        if first is None:
            return Rates(0.0, 0.0)
        end = self.end_s - before_s
        if end - first < 3:
            lasted_s = max(1e-3, end - first)
            samples = sum(w.total_samples for w in chosen)
            moved = sum(w.total_bytes_out for w in chosen)
            return Rates(samples / lasted_s, moved / lasted_s)
        to = math.floor(end)
        begin = max(to - RATE_S, math.ceil(first))
        seconds = [s for w in chosen for s in w.between(begin, to)]
        lasted_s = max(1, to - begin)
        return Rates(sum(s.samples for s in seconds) / lasted_s, sum(s.bytes_out for s in seconds) / lasted_s)

    def share_of(self, phase: int) -> float | None:
        """Share of a phase in all workers' step time of the last minute."""
        if self._sums_s is None:
            recent = [s.phases_s for w in self.workers for s in list(w.seconds)[-60:]]
            self._sums_s = [math.fsum(phases[i] for phases in recent) for i in range(len(PHASES))]
        whole = math.fsum(self._sums_s)
        return self._sums_s[phase] / whole if whole > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Estimate from the current throughput; slower phases and pauses before a resume do not count."""
        left = max(0, self.plan.steps - self.track.step)
        if self.track.is_over or left == 0:
            return None if self.track.is_over else 0.0
        speed = self.rates().samples_per_s
        return left * self.plan.global_batch / speed if speed > 0 else None

    def relative_speed(self, worker: WorkerTrack) -> float | None:
        own = self._own_s[worker.name]
        if own is None or not own or self._median_own_s is None:
            return None
        return self._median_own_s / own

    def state_of(self, worker: WorkerTrack) -> str:
        if worker.name not in self._states:
            self._states[worker.name] = self._state_of(worker)
        return self._states[worker.name]

    def _state_of(self, worker: WorkerTrack) -> str:
        if worker.is_finished:
            return "finished"
        if worker.is_lost or (self.track.outcome == "failed"):
            return "lost"
        if (
            worker.is_stopped and not worker.is_called_slow
        ):  # a worker that is slowed on purpose is stopped now and then
            return "paused"
        if worker.total_steps == 0:
            return "starting"
        speed = self.relative_speed(worker)
        return "slow" if worker.is_called_slow or (speed is not None and speed < SLOW_BELOW) else "training"

    def counts(self) -> dict[str, int]:
        counts = dict.fromkeys(("starting", "training", "slow", "paused", "lost", "finished"), 0)
        for worker in self.workers:
            counts[self.state_of(worker)] += 1
        return counts

    @property
    def desired(self) -> int:
        return self.plan.processes

    @property
    def alive(self) -> int:
        counts = self.counts()
        return sum(counts[state] for state in ("starting", "training", "slow", "paused"))

    @property
    def allowed_gap(self) -> int | None:
        """How many steps ahead an applied gradient may be (ssp, dssp)."""
        options = self.plan.strategy
        if self.plan.mode not in ("ssp", "dssp") or options.staleness is None:
            return None
        return options.staleness + 1 + (options.staleness_range if self.plan.mode == "dssp" else 0)

    @property
    def learning_rate(self) -> float | None:
        """Learning rate of the next step; None with a task's own optimizer, whose rate is unknown."""
        plan = self.plan
        base = plan.lr if plan.optimizer is None else plan.optimizer.lr
        if base is None:
            return None
        return (
            base
            * plan.lr_scale
            * (1.0 if plan.lr_schedule is None else plan.lr_schedule.factor(self.track.step))
        )

    def staleness(self) -> dict[str, Json] | None:
        values = [s for w in self.workers for s in w.staleness]
        if not values:
            return None
        return {"p50": quantile(values, 0.5), "p95": quantile(values, 0.95), "max": max(values)}

    def bandwidth(self, worker: WorkerTrack) -> float | None:
        """Bytes in both directions over the time in `comm`."""
        recent = list(worker.seconds)[-60:]
        spent_s = math.fsum(s.phases_s[COMM] for s in recent)
        moved = sum(s.bytes_out + s.bytes_in for s in recent)
        return moved / spent_s if spent_s > 0 and moved else None

    def why_slow(self, worker: WorkerTrack) -> str | None:
        """The phase whose time differs most from the median worker's."""
        if self.state_of(worker) != "slow":
            return None
        own_means = self._phase_means(worker)
        peer_means = [self._phase_means(w) for w in self.workers if w is not worker and w.total_steps]
        slowest_phase = None
        max_excess_s = 0.0
        for i, phase in enumerate(PHASES):
            median_s = median([means[i] for means in peer_means]) if peer_means else None
            if median_s is not None and phase != "wait" and own_means[i] - median_s > max_excess_s:
                slowest_phase = phase
                max_excess_s = own_means[i] - median_s
        return (
            None
            if slowest_phase is None
            else f"{slowest_phase} takes {max_excess_s * 1000:.3g} ms longer than for the median worker"
        )

    @staticmethod
    def _phase_means(worker: WorkerTrack) -> list[float]:
        recent = list(worker.seconds)[-60:]
        steps = max(1, sum(s.steps for s in recent))
        return [math.fsum(s.phases_s[i] for s in recent) / steps for i in range(len(PHASES))]

    def is_injected(self, labels: dict[str, str]) -> bool:
        """Whether the cause is an injected fault, or a straggler that the plan configures."""
        name = labels.get("worker", "")
        is_of_the_run = not name and "node" not in labels  # injected faults do not affect whole machines
        if any(
            self.now_s - at_s < INJECTED_S and (is_of_the_run or (name and target in ("", name)))
            for at_s, target, _ in self.track.injected
        ):
            return True
        worker = self.track.workers.get(name)
        is_asked_for = bool(self.plan.stragglers)  # not a pace, which delays all workers equally
        return is_asked_for and worker is not None and worker.phase_shares().get("delay", 0.0) > 0.2

    @property
    def op(self) -> str:
        """The kind of communication in phase `comm`, by mode."""
        mode = MODES.get(self.plan.mode)
        return "all_reduce" if mode is None else _OPS[mode.channel]

    def uses_server(self) -> bool:
        mode = MODES.get(self.plan.mode)
        return mode is not None and mode.channel.value == "store"

    def meets(self) -> bool:
        """Whether all workers synchronize, at every step or periodically."""
        mode = MODES.get(self.plan.mode)
        return mode is not None and mode.channel.value in ("collective", "torch")


def build_snapshot(figures: Figures) -> dict[str, Json]:
    track = figures.track
    return {
        "seq": track.seq,
        "now_s": figures.now_s,
        "unix_s": track.started_unix_s + figures.now_s,
        "t0_unix_s": track.started_unix_s,
        "run": _run(figures),
        "state": figures.state,
        "progress": _progress(figures),
        "throughput": _throughput(figures),
        "loss": track.loss.to_dict(is_over=track.is_over),
        "staleness": figures.staleness(),
        "wait_share": figures.share_of(WAIT),
        "comm_share": figures.share_of(COMM),
        "workers": [_worker(figures, worker) for worker in figures.workers],
        "counts": {"desired": figures.desired, "alive": figures.alive, **figures.counts()},
        "generations": [generation.to_dict() for generation in track.generations.all],
        "checkpoint": _checkpoint(figures),
        "coordinator": track.coordinator.to_dict(),
        "hosts": track.machines.hosts_to_dicts(round(figures.now_s * 1e9) + track.t0_ns),
        "gpus": track.machines.gpus_to_dicts(),
        "custom": [
            {"name": name, "worker": worker, "value": _finite(row.value), "step": row.step}
            for (name, worker), row in sorted(track.custom.items())
        ],
    }


def _run(figures: Figures) -> dict[str, Json]:
    track = figures.track
    plan = figures.plan
    elastic = plan.elastic
    return {
        "name": track.run,
        "mode": plan.mode,
        "task": plan.task,
        "launcher": plan.launcher.value,
        "transport": plan.transport.value,
        "device": plan.device.value,
        "workers": plan.processes,
        "shards": plan.num_workers,
        "steps": plan.steps,
        "batch": plan.global_batch,
        "staleness_bound": plan.strategy.staleness if plan.mode in ("ssp", "dssp") else None,
        "is_elastic": elastic is not None,
        "min_workers": plan.processes if elastic is None else elastic.min_workers,
        "max_workers": plan.processes if elastic is None else elastic.max_workers,
        "plan": track.plan_hash,
        "uses_server": figures.uses_server(),
        "meets": figures.meets(),
        "seed": plan.seed,
    }


def _progress(figures: Figures) -> dict[str, Json]:
    step = figures.track.step
    steps = figures.plan.steps
    return {
        "step": step,
        "steps": steps,
        "share": step / steps if steps else 0.0,
        "elapsed_s": figures.elapsed_s,
        "eta_s": figures.eta_s,
    }


def _throughput(figures: Figures) -> dict[str, Json]:
    now = figures.rates()
    first = figures.track.first_step_s
    before = None
    if first is not None and figures.end_s - first > 2 * RATE_S:
        # As far back as the per-second sums reach, at most five minutes.
        back_s = min(BEFORE_S, 100.0, figures.end_s - first - RATE_S)
        before = figures.rates(before_s=back_s).samples_per_s
    change = now.samples_per_s / before - 1 if before else None
    return {
        "samples_per_s": now.samples_per_s,
        "before_samples_per_s": before,
        "change_share": change,
        "bytes_per_s": now.bytes_per_s,
    }


def _worker(figures: Figures, w: WorkerTrack) -> dict[str, Json]:
    rates = figures.rates([w])
    shares: dict[str, Json] = {phase: round(share, 6) for phase, share in w.phase_shares().items()}
    return {
        "worker": w.name,
        "rank": w.rank,
        "node": _node(figures) if w.node is None else w.node,
        "pid": w.pid,
        "state": figures.state_of(w),
        "step": w.steps,
        "lag": figures.foremost - w.steps,
        "step_p50_s": w.step_p50_s,
        "relative_speed": figures.relative_speed(w),
        "phases": shares,
        "staleness_p95": w.staleness_p95,
        "restarts": max(0, w.starts - 1),
        "memory_bytes": w.memory_bytes,
        "cpu_share": w.cpu_share,
        "samples_per_s": rates.samples_per_s,
        "bytes_out_per_s": rates.bytes_per_s,
        "bandwidth_bytes_per_s": figures.bandwidth(w),
        "last_seen_s": None if w.last_s is None else max(0.0, figures.now_s - w.last_s),
        "loss": None if w.last_loss is None else _finite(w.last_loss),
        "gradient_norm": w.norm,
        "round_trip_s": None if w.link is None else w.link.round_trip_s,
        "why_slow": figures.why_slow(w),
    }


def _node(figures: Figures) -> str | None:
    """The host of a worker, if there is only one."""
    hosts = figures.track.machines.hosts
    return next(iter(hosts)) if len(hosts) == 1 and figures.plan.launcher is Launcher.LOCAL else None


def _checkpoint(figures: Figures) -> dict[str, Json]:
    track = figures.track
    newest = track.checkpoint or {}
    return {
        "last_s": track.checkpoint_s,
        "age_s": None if track.checkpoint_s is None else max(0.0, figures.now_s - track.checkpoint_s),
        "step": newest.get("step"),
        "bytes": newest.get("bytes"),
        "written": track.checkpoints,
        "failed": track.checkpoints_failed,
        "skipped": track.checkpoints_skipped,
        "every": figures.plan.checkpoint_every,
    }


def _finite(value: float) -> Json:
    return value if value == value and abs(value) != float("inf") else "nan"

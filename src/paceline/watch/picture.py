"""How is a run told at one moment, apart from its alerts? As plain JSON; the same for every reader. Pure."""

from paceline.plan.codec import Json
from paceline.plan.plan import Launcher
from paceline.watch.figures import BEFORE_S, COMM, RATE_S, WAIT, Figures
from paceline.watch.worker_track import WorkerTrack


def picture(figures: Figures) -> dict[str, Json]:
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
        "loss": track.loss.told(is_over=track.is_over),
        "staleness": figures.staleness(),
        "wait_share": figures.share_of(WAIT),
        "comm_share": figures.share_of(COMM),
        "workers": [_worker(figures, worker) for worker in figures.workers],
        "counts": {"desired": figures.desired, "alive": figures.alive, **figures.counts()},
        "generations": [generation.told() for generation in track.generations.all],
        "checkpoint": _checkpoint(figures),
        "coordinator": track.coordinator.told(),
        "hosts": track.machines.told_hosts(round(figures.now_s * 1e9) + track.t0_ns),
        "gpus": track.machines.told_gpus(),
        "custom": [
            {"name": name, "worker": worker, "value": _finite(row.value), "step": row.step}
            for (name, worker), row in sorted(track.custom.items())
        ],
    }


def _run(figures: Figures) -> dict[str, Json]:
    track, plan = figures.track, figures.plan
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
    step, steps = figures.track.step, figures.plan.steps
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
        # As long ago as the seconds are kept, at most five minutes.
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
    """Where a worker is, if there is one machine only."""
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

"""Which durations and ages are told by how many were at most so long? One histogram for each series. Pure."""

from collections.abc import Iterator, Mapping

from paceline.events.timings import BOUNDS_S, Timings
from paceline.watch.catalogue import PREFIX
from paceline.watch.figures import Figures
from paceline.watch.run_track import RunTrack
from paceline.watch.worker_track import Histogram, WorkerTrack

FULL_DETAIL_WORKERS = 64  # above, histograms are summed over workers
RECOVERIES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

Labelled = tuple[str, Mapping[str, str], Histogram]


def histograms(figures: Figures) -> Iterator[Labelled]:
    """(name, labels, histogram)"""
    run = {"run": figures.track.run}
    parts = (
        _of_workers(figures.workers),
        _of_run(figures.track, figures.op),
        () if figures.track.is_over else _of_coordinator(figures.track),
    )
    for part in parts:
        for name, labels, histogram in part:
            yield PREFIX + name, {**run, **labels}, histogram


def _of_workers(workers: list[WorkerTrack]) -> Iterator[Labelled]:
    steps = [(w.name, w.step_histogram) for w in workers]
    stale = [(w.name, w.staleness_histogram) for w in workers]
    for name, listed in (("step_duration_seconds", steps), ("gradient_staleness_steps", stale)):
        mine = [(worker, histogram) for worker, histogram in listed if sum(histogram.counts)]
        if len(workers) > FULL_DETAIL_WORKERS and mine:
            mine = [("", _summed([histogram for _, histogram in mine]))]
        for worker, histogram in mine:
            yield name, {"worker": worker}, histogram


def _of_run(track: RunTrack, op: str) -> Iterator[Labelled]:
    recoveries = Histogram(RECOVERIES_S)
    for generation in track.generations.all:
        if (took_s := generation.recovery_s) is not None:
            recoveries.add(took_s)
    if sum(recoveries.counts):
        yield "recovery_duration_seconds", {}, recoveries
    for stage, took in track.checkpoint_stages.items():
        if track.checkpoints:
            yield "checkpoint_duration_seconds", {"stage": stage}, took
    if sum(track.collectives.counts):
        yield "collective_duration_seconds", {"op": op}, track.collectives


def _of_coordinator(track: RunTrack) -> Iterator[Labelled]:
    known = track.coordinator
    for address, timed in known.timings.items():
        if known.nodes[address].node is None:
            continue  # it is silent, and nobody knows what it counts
        node = known.name_of(address)
        for name, timings in (("commit", timed.commits), ("fsync", timed.fsyncs)):
            if timings is not None:
                yield f"coordinator_{name}_duration_seconds", {"node": node}, _counted(timings)
        for peer, took in timed.round_trips.items():
            yield "coordinator_peer_round_trip_seconds", {"node": node, "peer": peer}, _counted(took)


def _counted(timings: Timings) -> Histogram:
    found = Histogram(BOUNDS_S)
    found.counts, found.total = list(timings.counts), timings.total_s
    return found


def _summed(histograms: list[Histogram]) -> Histogram:
    whole = Histogram(histograms[0].bounds)
    for one in histograms:
        whole.counts = [a + b for a, b in zip(whole.counts, one.counts, strict=True)]
        whole.total += one.total
    return whole

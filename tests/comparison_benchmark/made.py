"""Measured runs with numbers made by hand, so that what follows from them can be worked out on paper."""

from paceline.comparison.benchmark.schema import Cluster, HistoryPoint, Measured


def run(
    name: str,
    workers: int,
    total_s: float,
    rate: float | None,
    *,
    accuracy: float = 0.70,
    first_step_s: float = 2.0,
    batch: int = 100,
    on_ray: bool = False,
) -> Measured:
    return Measured(
        name=name,
        title="alone" if name == "baseline" else name,
        framework="keras",
        workers=workers,
        global_batch=batch,
        worker_batch=batch // workers,
        steps=50,
        samples=5_000,
        epochs=2.0,
        total_s=total_s,
        first_step_s=first_step_s,
        steady_samples_per_s=rate,
        warm_up="the first epoch",
        metrics={"test_accuracy": accuracy, "test_loss": 1.0},
        history=tuple(
            HistoryPoint(epoch=float(n), seconds=10.0 * n, metrics={"loss": 2.0 / n}) for n in (1, 2)
        ),
        cluster=Cluster(nodes=1, cpus=4.0, memory_bytes=8 << 30) if on_ray else None,
        facts={"tensorflow": "2.21"},
    )

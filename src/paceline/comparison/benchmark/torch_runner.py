"""Runner of `paceline benchmark torch`: plain torch, DDP, Ray Train and Paceline modes.

Every contender trains the same model on the same samples with the same global batch, in processes that are
started for it: each pays for its own imports and its own cluster. See docs/guides/benchmark.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.comparison.benchmark.runner import BASELINE, Contender
from paceline.comparison.benchmark.schema import Cluster, HistoryPoint, Measured, default_warm_up, steady_rate
from paceline.comparison.benchmark.torch_layout import DDP, RAY_TRAIN, Layout
from paceline.comparison.measurement import Measured as RunMeasured
from paceline.comparison.measurement import first_step_ns, read_run
from paceline.core.errors import NotReadyError
from paceline.launchers.isolated import IsolatedResult, run_isolated
from paceline.launchers.ray.resources import bundles_of
from paceline.plan.codec import Json, dumps, loads
from paceline.plan.plan import Plan

CURVE_POINTS = 40
_ONE_HOST = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

LogFunction = Callable[[str], None]


def contenders_of(layout: Layout, *, num_samples: int) -> list[Contender]:
    """The baseline first, then other frameworks, then Paceline."""
    measure = _Measuring(num_samples)
    alone = layout.alone
    together = layout.together
    contenders = [Contender(name=BASELINE, title="torch alone", run=measure.plain(alone))]
    if DDP in layout.peers:
        contenders.append(Contender(name=DDP, title="torch DDP", run=measure.plain(together)))
    if RAY_TRAIN in layout.peers:
        assert layout.address is not None, "a contender on Ray has an address"
        run = measure.ray_train(together, layout.address)
        contenders.append(Contender(name=RAY_TRAIN, title="Ray Train", run=run))
    contenders += [
        Contender(name=own.name, title=own.title, run=measure.ours(own.plan)) for own in layout.ours
    ]
    return contenders


def check_cluster(layout: Layout, folder: Path, note: LogFunction) -> None:
    """Before anything is trained: Ray is there, and a cluster of others is large enough."""
    if layout.address is None:
        return
    from paceline.comparison.benchmark.ray_train import check_train

    try:
        check_train()
    except NotReadyError as error:
        raise NotReadyError(error.what, f"{error.hint}, or leave Ray out: --launcher local") from error
    if layout.address != "local":
        most = max(
            [layout.together.num_workers, *(len(bundles_of(own.plan)) for own in layout.ours if own.plan.ray)]
        )
        needs = _trainer_order(replace(layout.together, num_workers=most), layout.address, folder)
        folder.mkdir(parents=True, exist_ok=True)
        run_isolated(
            "paceline.comparison.benchmark.ray_train:look", [needs], log=folder / "cluster.log", note=note
        )


@dataclass(frozen=True, slots=True)
class _Measuring:
    num_samples: int  # of the task

    def plain(self, plan: Plan) -> Callable[[Path, int, LogFunction], Measured]:
        def run(folder: Path, seed: int, note: LogFunction) -> Measured:
            seeded = replace(plan, seed=seed)
            order: dict[str, Json] = {"plan": dumps(seeded), "meet": str((folder / "meet").resolve())}
            orders = [{**order, "rank": rank} for rank in range(plan.num_workers)]
            env = {**_ONE_HOST, "OMP_NUM_THREADS": str(plan.threads_per_worker)}
            entry = "paceline.worker.entry.torch_baseline:rank_main"
            answered = run_isolated(entry, orders, log=folder / "rank.log", note=note, env=env)
            return self._of_loop(seeded, answered, answered.values[0])

        return run

    def ray_train(self, plan: Plan, address: str) -> Callable[[Path, int, LogFunction], Measured]:
        def run(folder: Path, seed: int, note: LogFunction) -> Measured:
            seeded = replace(plan, seed=seed)
            order = _trainer_order(seeded, address, folder)
            entry = "paceline.comparison.benchmark.ray_train:run_trainer"
            answered = run_isolated(entry, [order], log=folder / "driver.log", note=note)
            value = answered.values[0]["value"]
            assert isinstance(value, dict), "the loop answers with an object"
            return self._of_loop(seeded, answered, value, _cluster(answered.values[0]["cluster"]))

        return run

    def ours(self, plan: Plan) -> Callable[[Path, int, LogFunction], Measured]:
        def run(folder: Path, seed: int, note: LogFunction) -> Measured:
            place = folder / "run"
            seeded = replace(plan, seed=seed)
            order: dict[str, Json] = {"plan": dumps(seeded), "run_dir": str(place)}
            entry = "paceline.comparison.benchmark.torch_runner:train_in_subprocess"
            answered = run_isolated(entry, [order], log=folder / "command.log", note=note)
            return self._of_run(seeded, answered, read_run(place), _cluster(answered.values[0]["cluster"]))

        return run

    def _of_loop(
        self, plan: Plan, answered: IsolatedResult, report: dict[str, Json], cluster: Cluster | None = None
    ) -> Measured:
        """Measurement by rank 0 of a plain loop; its peers wait for it at every step."""
        starts_s = _numbers(report["starts_s"])
        losses = _numbers(report["losses"])
        rate = steady_rate(starts_s, plan.batch_sizes[0], default_warm_up(plan.steps))
        metrics = report["metrics"]
        assert isinstance(metrics, dict), "metrics come by name"
        return replace(
            self._measured(plan, answered, "torch"),
            first_step_s=float(str(report["first_step_unix_s"])) - answered.called_unix_s,
            steady_samples_per_s=None if rate is None else rate * plan.num_workers,
            metrics={name: float(str(value)) for name, value in metrics.items()},
            history=self._history(plan, list(zip(starts_s, losses, strict=True))),
            cluster=cluster,
            facts={"torch": str(report["torch"])},
        )

    def _of_run(
        self, plan: Plan, answered: IsolatedResult, run: RunMeasured, cluster: Cluster | None
    ) -> Measured:
        """Measurement from a run folder: every worker has its own rate, and steps of all make one curve."""
        first_ns = first_step_ns(run.history)
        warm_up = default_warm_up(plan.steps)
        rates = [
            steady_rate([row.start_ns / 1e9 for row in rows], plan.batch_sizes[rank], warm_up)
            for rank, rows in run.history.steps.items()
        ]
        known = [rate for rate in rates if rate is not None]
        steps = sorted((row.start_ns, row.loss) for rows in run.history.steps.values() for row in rows)
        began_s = run.started_unix_s + (first_ns - run.history.t0_ns) / 1e9
        return replace(
            self._measured(plan, answered, "paceline"),
            first_step_s=began_s - answered.called_unix_s,
            steady_samples_per_s=sum(known) if len(known) == len(rates) else None,
            metrics={**run.metrics},
            history=self._history(plan, [((at - first_ns) / 1e9, loss) for at, loss in steps]),
            cluster=cluster,
            facts={"launcher": plan.launcher.value, "transport": plan.transport.value},
        )

    def _measured(self, plan: Plan, answered: IsolatedResult, framework: str) -> Measured:
        left_out = default_warm_up(plan.steps)
        return Measured(
            name="",
            title="",
            framework=framework,
            workers=plan.num_workers,
            global_batch=plan.global_batch,
            worker_batch=plan.batch_sizes[0],
            steps=plan.steps,
            samples=plan.total_samples,
            epochs=plan.total_samples / self.num_samples,
            total_s=answered.total_s,
            first_step_s=None,
            steady_samples_per_s=None,
            warm_up="the first step" if left_out == 1 else f"the first {left_out} steps",
            metrics={},
        )

    def _history(self, plan: Plan, losses: Sequence[tuple[float, float]]) -> tuple[HistoryPoint, ...]:
        """The mean training loss of stretches of equal length; `losses` are of gradients, as they came."""
        length = max(1, -(-len(losses) // CURVE_POINTS))
        per_gradient = plan.total_samples / max(1, len(losses)) / self.num_samples
        points = []
        for begin in range(0, len(losses), length):
            window = losses[begin : begin + length]
            mean = sum(loss for _, loss in window) / len(window)
            epoch = (begin + len(window)) * per_gradient
            points.append(HistoryPoint(epoch=epoch, seconds=window[-1][0], metrics={"training_loss": mean}))
        return tuple(points)


def train_in_subprocess(order: dict[str, Json], note: LogFunction) -> dict[str, Json]:
    """Train one Paceline run, as by `paceline train`; returns the facts of the Ray cluster, if any."""
    from contextlib import closing

    from paceline.training.run import train

    plan = loads(str(order["plan"]), where="the benchmark's plan")
    run_dir = Path(str(order["run_dir"]))
    watcher = _Notes(note)
    if plan.ray is None:
        result = train(plan, run_dir, watcher)
        cluster: Json = None
    else:
        from paceline.comparison.benchmark.ray_train import cluster_facts
        from paceline.launchers.ray.launcher import RayLauncher

        with closing(RayLauncher(plan)) as launcher:
            result = train(plan, run_dir, watcher, warm=launcher)
            cluster = cluster_facts()
    if result["stopped_early"]:
        raise KeyboardInterrupt  # an incomplete run is no result
    return {"cluster": cluster}


class _Notes:
    def __init__(self, note: LogFunction) -> None:
        self.note = note

    def progress(self, progress: object) -> None: ...


def _trainer_order(plan: Plan, address: str, folder: Path) -> dict[str, Json]:
    return {
        "framework": "torch",
        "loop": "paceline.worker.entry.torch_baseline:ray_loop",
        "config": {"plan": dumps(plan), "cwd": str(Path.cwd())},
        "num_workers": plan.num_workers,
        "cpus_per_worker": plan.threads_per_worker,
        "address": address,
        "storage": str((folder / "ray").resolve()),
    }


def _cluster(value: Json) -> Cluster | None:
    if not isinstance(value, dict):
        return None
    nodes, memory = (int(str(value[name])) for name in ("nodes", "memory_bytes"))
    return Cluster(
        nodes=nodes, cpus=float(str(value["cpus"])), gpus=float(str(value["gpus"])), memory_bytes=memory
    )


def _numbers(value: Json) -> list[float]:
    assert isinstance(value, list), "numbers come in a list"
    return [float(str(value)) for value in value]

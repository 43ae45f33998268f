"""Bandwidth of the shared-memory store, relative to what memory allows.

The limit: the three passes a push, an apply and a pull cannot avoid (copy the
gradient in, add it to the parameters, copy the parameters out), done by one
process without waiting, on shared memory as well. Against it: the same
through the real store, workers and server being processes of their own. With
two workers the figure is the store's bandwidth; with one it is the latency of
a single exchange, two wake-ups of an idle core included.
"""

import multiprocessing
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from benchmarks.report import Ratio
from paceline.core.clock import SystemClock
from paceline.core.ids import Clock, Rank
from paceline.events.log import MemoryLog
from paceline.plan.plan import Plan
from paceline.strategies.asgd import Asgd
from paceline.tasks.optim import Sgd
from paceline.tasks.tensor_samples import TensorSamples
from paceline.transport.shm import SharedWorld
from paceline.transport.shm_store import ShmStore, ShmStoreHost, store_world
from paceline.worker.replica import Replica
from paceline.worker.server.core import ParameterServer

SIZES = (("100 MB", 25_000_000, 20, 0.90), ("1 MB", 250_000, 1000, 0.50))


class VectorTask:
    """A model that is one vector: nothing is computed, everything is moved."""

    def __init__(self, numel: int) -> None:
        self._numel = numel

    def model(self) -> nn.Module:
        module = nn.Module()
        module.weight = nn.Parameter(torch.zeros(self._numel))
        return module

    def samples(self) -> TensorSamples:
        return TensorSamples(torch.zeros(1))

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        raise AssertionError("no gradient is computed here")

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return {}

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Sgd:
        return Sgd(parameters, lr=1e-3)


def measure(rounds: int) -> Iterator[Ratio]:
    for name, numel, times, goal in SIZES:
        for workers in (2, 1):
            yield _measure(name, numel, times, goal, workers, rounds)


def _measure(name: str, numel: int, times: int, goal: float, workers: int, rounds: int) -> Ratio:
    torch.set_num_threads(1)
    world = store_world(workers)
    context = multiprocessing.get_context("fork")
    ours, theirs = zip(*(context.Pipe() for _ in range(workers)), strict=True)
    server = context.Process(target=_serve, args=(world, numel))
    clients = [
        context.Process(target=_push_and_pull, args=(world, r, numel, times, theirs[r]))
        for r in range(workers)
    ]
    for process in (server, *clients):
        process.start()
    limit, ratios, last = _Limit(numel), [], (0.0, 0.0)
    for _ in range(rounds):
        last = (limit.seconds(times) / times, _round(ours, times))
        ratios.append(last[0] / last[1])
    for pipe in ours:
        pipe.send(False)
    for process in (server, *clients):
        process.join()
    detail = f"last round {last[1] * 1e6:,.0f} µs an exchange against {last[0] * 1e6:,.0f} µs"
    called = f"store push+apply+pull, {name}, {workers} worker{'s' * (workers > 1)}"
    return Ratio(name=called, goal=goal, at_least=True, rounds=tuple(ratios), detail=detail)


def _round(clients: Sequence[Connection], times: int) -> float:
    """Seconds per exchange while all clients are at it."""
    started = time.perf_counter()
    for pipe in clients:
        pipe.send(True)
    for pipe in clients:
        pipe.recv()
    return (time.perf_counter() - started) / (times * len(clients))


def _new_replica(numel: int) -> tuple[Plan, Replica]:
    plan = Plan(run="bench", task="vector", mode="asgd", num_workers=2, steps=10**9, batch_sizes=(1, 1))
    return plan, Replica(plan, VectorTask(numel), torch.device("cpu"), SystemClock())


def _serve(world: SharedWorld, numel: int) -> None:
    plan, replica = _new_replica(numel)
    server = ParameterServer(plan, replica, Asgd, log=MemoryLog(), clock=SystemClock())
    layout = replica.arena.layout
    ShmStoreHost(world, numel=layout.numel, dtype=layout.dtype).serve(server)


def _push_and_pull(world: SharedWorld, rank: int, numel: int, times: int, orders: Connection) -> None:
    layout = _new_replica(numel)[1].arena.layout
    store = ShmStore(world, Rank(rank), clock=SystemClock(), timeout_s=60)
    slot = store.open(layout.numel, layout.dtype).gradients
    gradient = torch.ones_like(slot)
    store.join(Clock(0))
    store.pull()
    while orders.recv():
        for _ in range(times):
            slot.copy_(gradient)
            store.push(wants_stop=False)
            store.pull()
        orders.send(True)
    store.leave()


class _Limit:
    def __init__(self, numel: int) -> None:
        world = SharedWorld(parties=1, semaphores_each=0, words_each=0)
        self._slot, self._state, self._out = world.map_vectors(3, numel, torch.float32)
        self._gradient = torch.ones(numel)

    def seconds(self, times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            self._slot.copy_(self._gradient)
            self._state.add_(self._slot, alpha=-1e-3)
            self._out.copy_(self._state)
        return time.perf_counter() - started

"""The peer: the asynchronous parameter server of Ray's documentation, on a task of Paceline.

As in docs.ray.io, "Parameter Server": the server is an actor that applies gradients and returns weights,
each worker is an actor that computes a gradient on the weights it receives, and the driver passes on
results one by one as they are ready, with `ray.wait`. Weights and gradients go through Ray's object store.
Two changes: gradients of one call are averaged, not summed, and the rate is divided by the number of
workers, so that equal samples have the same effect as in Paceline.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core import environ
from paceline.core.clock import monotonic_s
from paceline.plan.codec import Json
from paceline.sync.samples import SampleStream
from paceline.tasks.xor import XorTask

Arrays = list[NDArray[np.float32]]


class _Model:
    """Base of server and worker: a model that is read and set as arrays."""

    def __init__(self, options: dict[str, int]) -> None:
        torch.set_num_threads(1)
        self.task = XorTask(seed=0, **options)
        torch.manual_seed(0)
        self.module = self.task.model()

    def get_weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.cpu() for name, tensor in self.module.state_dict().items()}

    def set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.module.load_state_dict(weights)

    def get_gradients(self) -> Arrays:
        return [p.grad.numpy() for p in self.module.parameters() if p.grad is not None]

    def set_gradients(self, gradients: Arrays) -> None:
        for parameter, gradient in zip(self.module.parameters(), gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient)


class ParameterServer:
    def __init__(self, options: dict[str, int], lr: float) -> None:
        self._model = _Model(options)
        self._optimizer = torch.optim.SGD(self._model.module.parameters(), lr=lr)

    def apply_gradients(self, *gradients: Arrays) -> dict[str, torch.Tensor]:
        mean = [np.stack(each).mean(axis=0) for each in zip(*gradients, strict=True)]
        self._optimizer.zero_grad()
        self._model.set_gradients(mean)
        self._optimizer.step()
        return self._model.get_weights()

    def get_weights(self) -> dict[str, torch.Tensor]:
        return self._model.get_weights()

    def accuracy(self) -> float:
        return float(self._model.task.metrics(self._model.module)["test_accuracy"])


class DataWorker:
    def __init__(self, rank: int, options: dict[str, int], batch: int) -> None:
        self._model, self._batch, self._taken = _Model(options), batch, 0
        self._samples = self._model.task.samples()
        self._stream = SampleStream(num_samples=len(self._samples), seed=rank)

    def compute_gradients(self, weights: dict[str, torch.Tensor]) -> Arrays:
        self._model.set_weights(weights)
        points, labels = self._samples.batch(self._stream.take(self._taken, self._batch))
        self._taken += self._batch
        self._model.module.zero_grad()
        loss = self._model.task.loss(self._model.module, (points, labels))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self._model.get_gradients()


def run(order: dict[str, Json], _note: Callable[[str], None]) -> dict[str, Json]:
    """Run in a separate process; returns samples/s after the warm-up, and the final accuracy."""
    workers, batch, steps, warm_up = (int(str(order[n])) for n in ("workers", "batch", "steps", "warm_up"))
    options = {"hidden": int(str(order["hidden"])), "layers": int(str(order["layers"]))}
    environ.prepare_ray()
    import ray  # reads the environment when it is imported

    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False)
    try:
        server = ray.remote(num_cpus=1)(ParameterServer).remote(options, 0.1 / workers)
        ranks = [ray.remote(num_cpus=1)(DataWorker).remote(rank, options, batch) for rank in range(workers)]
        weights = server.get_weights.remote()
        gradients = {worker.compute_gradients.remote(weights): worker for worker in ranks}
        began_s = 0.0
        for number in range(steps * workers):
            if number == warm_up * workers:
                began_s = monotonic_s()
            ready, _ = ray.wait(list(gradients))
            worker = gradients.pop(ready[0])
            weights = server.apply_gradients.remote(ready[0])
            gradients[worker.compute_gradients.remote(weights)] = worker
        ray.get(weights)
        rate = batch * (steps - warm_up) * workers / (monotonic_s() - began_s)
        return {"samples_per_s": rate, "accuracy": ray.get(server.accuracy.remote())}
    finally:
        ray.shutdown()

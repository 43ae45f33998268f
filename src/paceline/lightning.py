"""Strategy of Lightning that makes a Trainer a worker of a run: Lightning's loop, every mode of a script.

    trainer = lightning.Trainer(strategy=paceline.lightning.Strategy(), max_epochs=5)

To Lightning each worker is the only process; files and loggers are the main worker's. An epoch of the Trainer
is `len(loader)` batches of the run. In first-come modes and in elastic runs a worker has more or fewer
batches than that: then an epoch is `len(loader)` batches of this worker, and the training ends with the run.
See docs/guides/your-own-script.md.
"""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.core.errors import script_error
from paceline.worker.script.run import join

# `lightning` and `pytorch_lightning` are the same code under two names, and each checks for its own classes.
if importlib.util.find_spec("lightning") is not None:
    from lightning.fabric.utilities.rank_zero import rank_zero_only
    from lightning.pytorch.strategies import SingleDeviceStrategy
else:
    from lightning_fabric.utilities.rank_zero import rank_zero_only
    from pytorch_lightning.strategies import SingleDeviceStrategy


class Strategy(SingleDeviceStrategy):  # type: ignore[misc]  # lightning may be missing
    strategy_name = "paceline"

    def __init__(self, **kwargs: Any) -> None:  # Any: those of SingleDeviceStrategy
        self.run = join()
        super().__init__(device=self.run.device, **kwargs)
        rank_zero_only.rank = 0 if self.run.is_main else 1  # loggers and progress bars ask it

    @property
    def is_global_zero(self) -> bool:
        return self.run.is_main

    def process_dataloader(self, dataloader: Any) -> Any:  # Any: as Lightning declares it
        """The training loader for the run; others stay as they are."""
        trainer = self.lightning_module.trainer
        is_training = trainer.state.fn == "fit" and not trainer.sanity_checking
        if not is_training or trainer.fit_loop._combined_loader is not None:
            return dataloader
        return _RunLoader(self, trainer, dataloader)

    def begin(self, loader: Any) -> Any:  # Any: loaders
        """Prepare what the training needs; called with the first batch, when all objects exist."""
        trainer = self.lightning_module.trainer
        _require_suited(trainer)
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        objects = (self.model, *self.optimizers, *schedulers, loader)
        return self.run.prepare(*objects, accumulate=trainer.accumulate_grad_batches)[-1]

    # The training step

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: object, **kwargs: object
    ) -> Tensor:
        self.pre_backward(closure_loss)
        module = self.lightning_module
        loss = self.precision_plugin.pre_backward(closure_loss, module)
        self.run.backward(loss)
        loss = self.precision_plugin.post_backward(loss, module)
        self.post_backward(loss)
        result: Tensor = loss
        return result

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],  # Any: what training_step returns
        model: nn.Module | None = None,
        **kwargs: object,
    ) -> Any:
        """The closure computes the gradient; then the workers agree, as in any script."""
        plugin = self.precision_plugin
        plugin.clip_grad_by_norm = self._clip_by_norm
        plugin.clip_grad_by_value = self._clip_by_value
        result = plugin._wrap_closure(model or self.lightning_module, optimizer, closure)
        optimizer.step()
        return result

    def _clip_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        self.run.clip_grad_norm_(_parameters(optimizer), clip_val)

    def _clip_by_value(self, optimizer: Optimizer, clip_val: float) -> None:
        self.run.clip_grad_value_(_parameters(optimizer), clip_val)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Early stopping: all workers stop after the same step, so the loop goes on until the run ends."""
        if not decision or not self.lightning_module.trainer.training:
            return decision
        self.run.stop("a callback of the Trainer ended the training")
        return False


class _RunLoader:
    """Batches of a run, in epochs of the Trainer. Lightning iterates over it once for each of its epochs."""

    def __init__(
        self, strategy: Strategy, trainer: Any, loader: Any
    ) -> None:  # Any: of Lightning, of the user
        self._strategy = strategy
        self._trainer = trainer
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._has_ended_epoch = False  # an epoch of the Trainer

    def __len__(self) -> int:
        """Of one epoch, in whole steps."""
        accumulate: int = self._trainer.accumulate_grad_batches
        return -(-len(self._loader) // accumulate) * accumulate

    def __iter__(self) -> Iterator[Any]:  # Any: batches
        if self._batches is None:
            self._batches = self._of_the_run()
        for number in range(self._trainer.num_training_batches):
            batch = next(self._batches, None)
            if batch is None:
                self._trainer.should_stop = True
                if number or not self._has_ended_epoch:
                    self._validate()
                return
            yield batch
        self._has_ended_epoch = True

    def _validate(self) -> None:
        """The run has ended in the middle of an epoch: Lightning validates after the last batch of one."""
        epoch_loop = self._trainer.fit_loop.epoch_loop
        if not epoch_loop._should_check_val_epoch():
            return
        self._trainer.validating = True
        epoch_loop.val_loop.run()
        self._trainer.training = True

    def _of_the_run(self) -> Iterator[Any]:
        run = self._strategy.run
        loader = self._strategy.begin(self._loader)
        accumulate = self._trainer.accumulate_grad_batches
        batches = _endless(loader)
        for _ in run.steps(_total_steps(self._trainer)):
            if not run.has_every_step:
                self._trainer.fit_loop.max_epochs = -1  # the run has the length
                self._trainer.fit_loop.epoch_loop.max_steps = -1
            for _ in range(accumulate):
                yield next(batches)

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the user's loader
        return getattr(self._loader, name)


def _endless(loader: Any) -> Iterator[Any]:  # Any: batches
    """Batches of epoch after epoch: only a step that has begun asks for one."""
    while True:
        yield from loader


def _total_steps(trainer: Any) -> int:  # Any: a Trainer
    """Optimizer steps of the whole training."""
    each, rest = divmod(trainer.num_training_batches, trainer.accumulate_grad_batches)
    if rest:
        raise script_error(
            "E135",
            f"an epoch has {trainer.num_training_batches} batches, which are no whole steps of "
            f"{trainer.accumulate_grad_batches}",
            "make limit_train_batches a multiple of accumulate_grad_batches",
        )
    limits = [trainer.max_steps] if trainer.max_steps > 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        limits.append(trainer.max_epochs * each)
    if not limits:
        message = "the Trainer has no length: max_epochs is -1"
        raise script_error("E130", message, "set max_epochs or max_steps")
    return int(min(limits))


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _require_suited(trainer: Any) -> None:  # Any: a Trainer
    reloads = bool(trainer.reload_dataloaders_every_n_epochs)
    is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
    refused = [
        (reloads, "reload_dataloaders_every_n_epochs", "leave it out"),
        (is_scaled, "16-mixed", 'use precision="bf16-mixed"'),
        (trainer.ckpt_path is not None, "ckpt_path", "paceline run --resume RUN"),
    ]
    for is_used, what, hint in refused:
        if is_used:
            raise script_error("E120", f"the Trainer was told to use {what}, which a run replaces", hint)

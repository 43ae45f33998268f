"""What a script prepared: modules, an optimizer, a scheduler and a loader, each checked when it is given."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from paceline.core.errors import script_error
from paceline.tasks.port import Samples
from paceline.worker.script.data import NoSamples, check_loader, samples_of_loader, used_samples
from paceline.worker.script.facts import ScriptFacts, fingerprint

WrapLoader = Callable[["DataLoader[Any]"], object]  # Any: batches


class Prepared:
    def __init__(self) -> None:
        self._modules: list[nn.Module] = []
        self._model = ""  # fingerprint of the modules before anything trained them
        self._optimizer: torch.optim.Optimizer | None = None
        self.scheduler: LRScheduler | None = None
        self.loader: DataLoader[Any] | None = None  # Any: batches
        self.accumulate = 1
        self._per_worker = False

    def add(
        self, objects: Iterable[object], *, accumulate: int, batch: str, wrap: WrapLoader
    ) -> tuple[object, ...]:
        """The same objects; `wrap` makes what stands for the loader."""
        if accumulate < 1 or batch not in ("global", "per-worker"):
            message = f"run.prepare got accumulate={accumulate}, batch={batch!r}"
            hint = 'use accumulate=1 or more, and batch="global" or "per-worker"'
            raise script_error("E120", message, hint)
        self.accumulate = max(self.accumulate, accumulate)
        self._per_worker = self._per_worker or batch == "per-worker"
        return tuple([self._added(item, wrap) for item in objects])

    def facts(self, length: dict[str, int], schedule: str) -> ScriptFacts:
        samples = 0
        batch_size = 1
        if self.loader is not None:
            batch_size = int(self.loader.batch_size or 1)
            samples = used_samples(self.loader)
        return ScriptFacts(
            num_samples=samples,
            batch_size=batch_size,
            accumulate=self.accumulate,
            per_worker=self._per_worker,
            epochs=length.get("epochs", 0),
            steps=length.get("steps", 0),
            schedule=schedule,
            model=self._model,
            optimizer=type(self.optimizer).__name__,
        )

    def close(self) -> nn.Module:
        """Nothing is prepared any more: the module, and its fingerprint for the facts."""
        module = self._module()
        self._check_parameters(module, self.optimizer)
        self._model = fingerprint(module)
        return module

    def samples(self, seed: int) -> Samples:
        """Those of the loader, by position."""
        if self.loader is None:
            return NoSamples()
        return samples_of_loader(self.loader, used_samples(self.loader), seed)

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """That the optimizer trains."""
        return tuple(p for group in self.optimizer.param_groups for p in group["params"])

    def _module(self) -> nn.Module:
        if not self._modules:
            raise script_error("E120", "no model was prepared", "call  run.prepare(model, optimizer, loader)")
        return self._modules[0] if len(self._modules) == 1 else nn.ModuleList(self._modules)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        if self._optimizer is None:
            raise script_error(
                "E120", "no optimizer was prepared", "call  run.prepare(model, optimizer, loader)"
            )
        return self._optimizer

    def _added(self, item: object, wrap: WrapLoader) -> object:
        match item:
            case nn.Module():
                self._add_module(item)
            case torch.optim.Optimizer():
                self._add_optimizer(item)
            case ReduceLROnPlateau():
                raise script_error(
                    "E126",
                    "ReduceLROnPlateau needs a number on which all workers agree",
                    "use a schedule by steps or epochs, such as CosineAnnealingLR",
                )
            case LRScheduler():
                self._add_scheduler(item)
            case DataLoader():
                self._add_loader(item)
                return wrap(item)
            case _:
                raise script_error(
                    "E120",
                    f"run.prepare got a {type(item).__name__}, which it cannot prepare",
                    "it takes modules, one torch optimizer, schedulers and one DataLoader; for mixed "
                    "precision use bf16, which needs no GradScaler",
                )
        return item

    def _add_module(self, module: nn.Module) -> None:
        for name, parameter in module.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise script_error(
                    "E128",
                    f"{name} of {type(module).__name__} has no shape yet (a lazy module)",
                    "call the model once with a batch before run.prepare",
                )
        for name, layer in module.named_modules():
            if getattr(layer, "sparse", False) is True:
                raise script_error(
                    "E127",
                    f"{name} of {type(module).__name__} makes sparse gradients",
                    "create it with sparse=False",
                )
        self._modules.append(module)

    def _add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise script_error(
                "E123",
                "LBFGS evaluates the loss inside of step()",
                "use an optimizer that makes one update per gradient, such as SGD or AdamW",
            )
        if self._optimizer is not None:
            raise script_error(
                "E121",
                "2 optimizers step in turn, and a run makes one update per batch",
                "give both groups of parameters to one optimizer: torch.optim.AdamW([{…}, {…}])",
            )
        self._optimizer = optimizer

    def _add_scheduler(self, scheduler: LRScheduler) -> None:
        if self.scheduler is not None:
            raise script_error(
                "E126",
                "run.prepare got 2 schedulers of the learning rate",
                "combine them in one: SequentialLR, or ChainedScheduler",
            )
        self.scheduler = scheduler

    def _add_loader(self, loader: "DataLoader[Any]") -> None:  # Any: batches
        if self.loader is not None:
            raise script_error(
                "E131",
                "run.prepare got a second DataLoader",
                "prepare the loader of the training data only; a validation loader needs no preparation",
            )
        check_loader(loader)
        self.loader = loader

    def _check_parameters(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        known = {id(parameter) for parameter in module.parameters()}
        foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
        if foreign:
            raise script_error(
                "E120",
                f"{len(foreign)} parameters of {type(optimizer).__name__} are in no prepared module",
                "prepare every module that the optimizer trains",
            )

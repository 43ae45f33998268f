"""What a script prepared: modules, optimizers, schedulers and a loader, each checked when it is given."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from paceline.core.errors import script_error
from paceline.tasks.port import Samples
from paceline.worker.script.data import (
    NoSamples,
    batch_size_of,
    check_loader,
    is_stream,
    samples_of_loader,
    used_samples,
)
from paceline.worker.script.facts import ScriptFacts

WrapLoader = Callable[["DataLoader[Any]"], object]  # Any: batches


class Prepared:
    def __init__(self) -> None:
        self._modules: list[nn.Module] = []
        self._model = ""  # fingerprint of the modules before anything trained them
        self.turns: list[list[torch.optim.Optimizer]] = []  # those of a turn step together
        self.schedulers: dict[int, LRScheduler] = {}  # by the identity of their optimizer
        self.scaler: torch.amp.GradScaler | None = None
        self.after_update: list[Callable[[], object]] = []
        self.loader: DataLoader[Any] | None = None  # Any: batches
        self.epoch_samples = 0  # of the loader, after drop_last; 0: there is no loader
        self._batch_size = 1
        self.accumulate = 1
        self._per_worker = False

    def add(
        self,
        objects: Iterable[object],
        *,
        accumulate: int,
        batch: str,
        wrap: WrapLoader,
        after_update: Callable[[], object] | None = None,
    ) -> tuple[object, ...]:
        """The same objects; `wrap` makes what stands for the loader."""
        if accumulate < 1 or batch not in ("global", "per-worker"):
            message = f"run.prepare got accumulate={accumulate}, batch={batch!r}"
            hint = 'use accumulate=1 or more, and batch="global" or "per-worker"'
            raise script_error("E120", message, hint)
        self.accumulate = max(self.accumulate, accumulate)
        self._per_worker = self._per_worker or batch == "per-worker"
        if after_update is not None:
            self.after_update.append(after_update)
        return tuple([self._added(item, wrap) for item in objects])

    def facts(self, length: dict[str, int], schedule: str) -> ScriptFacts:
        return ScriptFacts(
            num_samples=self.epoch_samples,
            batch_size=self._batch_size,
            accumulate=self.accumulate,
            per_worker=self._per_worker,
            epochs=length.get("epochs", 0),
            steps=length.get("steps", 0),
            schedule=schedule,
            turns=len(self.turns),
            has_plateau=any(isinstance(each, ReduceLROnPlateau) for each in self.schedulers.values()),
            has_stream=self.loader is not None and is_stream(self.loader),
            has_scaler=self.scaler is not None,
            has_after_update=bool(self.after_update),
            model=self._model,
            optimizer=", ".join("+".join(type(each).__name__ for each in turn) for turn in self.turns),
        )

    def close(self) -> nn.Module:
        """Nothing is prepared any more: the module, and its fingerprint for the facts."""
        module = self._module()
        self._check_parameters(module)
        self._model = fingerprint(module)
        return module

    def samples(self, seed: int) -> Samples:
        """Those of the loader, by position."""
        if self.loader is None:
            return NoSamples()
        return samples_of_loader(self.loader, self.epoch_samples, seed)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        return tuple(self._modules)

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """All of them; an error without one."""
        if not self.turns:
            raise script_error(
                "E120", "no optimizer was prepared", "call  run.prepare(model, optimizer, loader)"
            )
        return tuple(optimizer for turn in self.turns for optimizer in turn)

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """That the optimizers train."""
        return tuple(p for optimizer in self.optimizers for p in parameters_of(optimizer))

    def modules_of(self, turn: Sequence[torch.optim.Optimizer]) -> nn.Module:
        """Those that the optimizers of a turn train; an error if another turn trains a part of them."""
        own = {id(p) for optimizer in turn for p in parameters_of(optimizer)}
        others = {id(p) for p in self.parameters} - own
        chosen = [module for module in self._modules if own & _ids(module)]
        for module in chosen:
            if others & _ids(module):
                raise script_error(
                    "E121",
                    f"two optimizers that step in turn train parameters of the same {type(module).__name__}",
                    "prepare its parts as modules of their own, or prepare both optimizers as a list if "
                    "they step "
                    "together:  run.prepare(model, [first, second], loader)",
                )
        return nn.ModuleList(chosen)

    def _module(self) -> nn.Module:
        if not self._modules:
            raise script_error("E120", "no model was prepared", "call  run.prepare(model, optimizer, loader)")
        return self._modules[0] if len(self._modules) == 1 else nn.ModuleList(self._modules)

    def _added(self, item: object, wrap: WrapLoader) -> object:
        match item:
            case nn.Module():
                self._add_module(item)
            case torch.optim.Optimizer():
                self._add_turn([item])
            case list() | tuple() if item and all(isinstance(each, torch.optim.Optimizer) for each in item):
                self._add_turn(list(item))
            case LRScheduler():
                self._add_scheduler(item)
            case torch.amp.GradScaler():
                self.scaler = item if item.is_enabled() else None
            case DataLoader():
                self._add_loader(item)
                return wrap(item)
            case _:
                raise script_error(
                    "E120",
                    f"run.prepare got a {type(item).__name__}, which it cannot prepare",
                    "it takes modules, optimizers of torch, their schedulers, a GradScaler and one "
                    "DataLoader",
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

    def _add_turn(self, turn: list[torch.optim.Optimizer]) -> None:
        if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in turn):
            raise script_error(
                "E123",
                "LBFGS evaluates the loss inside of step()",
                "use an optimizer that makes one update per gradient, such as SGD or AdamW",
            )
        self.turns.append(turn)

    def _add_scheduler(self, scheduler: LRScheduler) -> None:
        if id(scheduler.optimizer) in self.schedulers:
            raise script_error(
                "E126",
                "run.prepare got 2 schedulers of the same optimizer",
                "combine them in one: SequentialLR, or ChainedScheduler",
            )
        self.schedulers[id(scheduler.optimizer)] = scheduler

    def _add_loader(self, loader: "DataLoader[Any]") -> None:  # Any: batches
        if self.loader is not None:
            raise script_error(
                "E131",
                "run.prepare got a second DataLoader",
                "prepare the loader of the training data only; a validation loader needs no preparation",
            )
        check_loader(loader)
        self.loader = loader
        self.epoch_samples = used_samples(loader)
        self._batch_size = batch_size_of(loader)

    def _check_parameters(self, module: nn.Module) -> None:
        known = _ids(module)
        owned: set[int] = set()
        for optimizer in self.optimizers:
            own = {id(parameter) for parameter in parameters_of(optimizer)}
            name = type(optimizer).__name__
            if own - known:
                raise script_error(
                    "E120",
                    f"{len(own - known)} parameters of {name} are in no prepared module",
                    "prepare every module that the optimizer trains",
                )
            if own & owned:
                raise script_error(
                    "E121",
                    f"{len(own & owned)} parameters of {name} are those of another prepared optimizer, too",
                    "give each parameter to one optimizer",
                )
            owned |= own
        for owner, scheduler in self.schedulers.items():
            if owner not in map(id, self.optimizers):
                message = f"the optimizer of {type(scheduler).__name__} was not prepared"
                raise script_error(
                    "E120", message, "prepare it, too:  run.prepare(model, optimizer, scheduler)"
                )
        unowned = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in owned]
        if unowned:
            raise script_error(
                "E137",
                f"{len(unowned)} trainable parameters of the prepared modules are in no prepared optimizer: "
                f"first {unowned[0]}",
                "prepare the optimizer that trains them, too; or freeze them:  module.requires_grad_(False)",
            )


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _ids(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()}


def fingerprint(module: nn.Module) -> str:
    """Names, shapes and values of the model's tensors, before anything trained it."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(plain.numpy().tobytes())
    return digest.hexdigest()[:16]

"""Checks of a script's first steps, for what is right in one process only.

They look at the first steps, so they cost a run nothing, and so that what is wrong is refused before it has
trained anything: by the probe of `paceline run`, or by a worker.
"""

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline.core.errors import PacelineError, script_error

CHECKED_STEPS = 3
PREPARED = "_is_of_a_paceline_run"  # attribute of a prepared optimizer


class StepChecks:
    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._known = {id(parameter) for parameter in self._parameters}
        self.kept = ""  # fingerprint of the kept state at the end of the last step; empty: not to be checked
        self._versions: dict[nn.Parameter, int] = {}  # of each gradient after backward
        self._values: list[Tensor] = []  # of the parameters after the last update
        self.changes_parameters = False  # the script changed parameters outside of the update
        self.changes_state = False  # the body of the loop changed what the script keeps
        self.steps = 0

    @property
    def are_on(self) -> bool:
        return self.steps < CHECKED_STEPS

    def watch(self, *, is_on: bool) -> None:
        """Refuse steps of optimizers that were not prepared, in this thread and until it is switched off."""
        _WATCHED.is_on = is_on

    def before_backward(self, loss: Tensor) -> None:
        """Refuse a loss that trains parameters which were not prepared."""
        if self.are_on:
            foreign = [leaf for leaf in _leaves(loss) if id(leaf) not in self._known]
            if foreign:
                raise refuse_unprepared(foreign)

    def after_backward(self) -> None:
        if self.are_on:
            self._versions = {p: p.grad._version for p in self._parameters if p.grad is not None}

    def changed_gradients(self, of: Iterable[nn.Parameter]) -> int:
        """How many gradients the script changed since backward."""
        own = {id(parameter) for parameter in of}
        watched = [(p, version) for p, version in self._versions.items() if id(p) in own]
        return sum(p.grad is None or p.grad._version != version for p, version in watched)

    def forget_gradients(self) -> None:
        self._versions = {}

    def after_step(self) -> None:
        self.steps += 1
        if self.are_on:
            self._values = [parameter.detach().clone() for parameter in self._parameters]

    def before_step(self) -> None:
        """Note whether the parameters are those of the last update."""
        for parameter, value in zip(self._parameters, self._values, strict=False):
            if not torch.equal(parameter.detach(), value):
                self.changes_parameters = True
        self._values = []


def refuse_unprepared(leaves: list[nn.Parameter]) -> PacelineError:
    return script_error(
        "E137",
        f"the loss trains {len(leaves)} parameters of modules that were not prepared: first one of shape "
        f"{list(leaves[0].shape)}",
        "prepare the module and the optimizer that trains it; or freeze it:  module.requires_grad_(False)",
    )


def _leaves(loss: Tensor) -> list[nn.Parameter]:
    """The parameters that a backward of this loss gives a gradient."""
    found: dict[int, nn.Parameter] = {}
    seen: set[object] = set()
    left: list[Any] = [loss.grad_fn]  # Any: nodes of autograd's graph
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            found[id(leaf)] = leaf
        left.extend(after for after, _ in node.next_functions)
    return list(found.values())


class _Watched(threading.local):
    is_on = False  # this thread runs the training loop of a script


_WATCHED = _Watched()


def _require_prepared(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if _WATCHED.is_on and not hasattr(optimizer, PREPARED):
        raise script_error(
            "E137",
            "an optimizer that was not prepared makes a step in the training loop: "
            f"{type(optimizer).__name__}",
            "prepare it with the module that it trains:  run.prepare(G, D, opt_g, opt_d, loader)",
        )


register_optimizer_step_pre_hook(_require_prepared)

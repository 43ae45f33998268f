"""Checks of a config: every problem, each with its hint and its place.

First each key alone, against the row of its key; then the keys together. A key
that is already known to be wrong takes no part in the second round, so that
one mistake is reported once.
"""

import dataclasses
import re
from collections.abc import Iterable

from paceline.config.environment import Facts
from paceline.config.key import Key
from paceline.config.keys import KEYS
from paceline.config.train_config import TrainConfig
from paceline.config.values import show_value
from paceline.core.errors import Mistake, Problem, with_code
from paceline.core.humanize import did_you_mean
from paceline.plan import decide
from paceline.plan.catalog import AGGREGATES, MODE_ALIASES, MODES, TASKS, Channel
from paceline.plan.check_gradients import (
    check_aggregate,
    check_byzantine,
    check_compression,
    check_stragglers,
)
from paceline.plan.check_task import check_data, check_evaluation, check_exports, check_metrics, check_model
from paceline.plan.check_workers import check_elastic, check_ray, check_torchrun
from paceline.plan.plan import Device, GossipVariant, Launcher, StrategyOptions
from paceline.plan.urls import check_checkpoints
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.topology import Topology

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class _Check:
    """The problems found so far, and the keys that they spoil."""

    def __init__(self, config: TrainConfig, facts: Facts) -> None:
        self.config = config
        self.facts = facts
        self.problems: list[Problem] = []
        self.spoiled = {key for key in KEYS if config.is_unreadable(key)}

    def add(self, key: str, message: str, hint: str) -> None:
        self.problems.append(Problem(message, hint, self.config.origin(key)))
        self.spoiled.add(key)

    def are_sound(self, *keys: str) -> bool:
        return self.spoiled.isdisjoint(keys)


def check(config: TrainConfig, facts: Facts) -> list[Problem]:
    checked = _Check(config, facts)
    _check_named(checked, "task", TASKS)
    _check_named(checked, "mode", [*MODES, *MODE_ALIASES])
    _check_named(checked, "aggregate", AGGREGATES, own="function")
    for key in KEYS.values():
        _check_alone(checked, key)
    if config.name is not None and not _NAME.fullmatch(config.name):
        hint = "use letters, digits, dots, dashes and underscores, such as my-run"
        checked.add(
            "name", f"name is {show_value(config.name)}, but it must be usable as a folder name", hint
        )
    checked.problems = with_code(checked.problems, Mistake.VALUE)
    _check_device(checked)
    if checked.are_sound("mode"):
        _check_mode_options(checked)
        _check_single(checked)
        _check_only_optimizers(checked)
        _check_delay(checked)
        _check_virtual(checked)
        _check_lower_bound(checked)
        _check_elasticity(checked)
        _check_neighbours(checked)
        _check_peers(checked)
        _check_backup(checked)
    _check_batch_count(checked)
    _check_optimizer(checked)
    _check_rate(checked)
    _check_transport(checked)
    checked.problems += check_checkpoints(config)
    checked.problems += check_data(config, checked.are_sound)
    checked.problems += check_model(config, checked.are_sound)
    checked.problems += check_compression(config, facts, checked.are_sound)
    checked.problems += check_exports(config, facts)
    checked.problems += check_metrics(config)
    checked.problems += check_elastic(config, checked.are_sound)
    checked.problems += check_evaluation(config, checked.are_sound)
    checked.problems += check_torchrun(config, facts, checked.are_sound)
    checked.problems += check_ray(config, checked.are_sound)
    num_workers = decide.num_workers_of(config) if checked.are_sound("num_workers", "mode") else None
    checked.problems += check_stragglers(config, num_workers)
    checked.problems += check_byzantine(config, num_workers)
    if checked.are_sound("mode", "num_workers", "batch_size", "aggregate", "byzantine_tolerance"):
        checked.problems += check_aggregate(config)
    return with_code(checked.problems, Mistake.CLASH)


def _check_named(checked: _Check, key: str, names: Iterable[str], *, own: str = "Class") -> None:
    """A task or mode is in the catalog, or is `module:Class` whose module exists."""
    written: str | None = getattr(checked.config, key)
    if written is None or written.lower() in names:
        return
    module, colon, class_name = written.partition(":")
    if not colon:
        known = f"{key}s are {', '.join(names)}, or module:{own} of your own"
        hint = did_you_mean(written, names, otherwise=known)
        checked.add(key, f"there is no {key} {show_value(written)}", hint)
    elif not class_name.isidentifier():
        hint = f"write for example --{key} my_code:{'MyClass' if own == 'Class' else 'my_' + own}"
        checked.add(key, f"{key} is {show_value(written)}, but it must be module:{own}", hint)
    elif module not in checked.facts.modules:
        hint = "modules are imported from the current folder and the installed packages; check the name"
        checked.add(key, f"{key} is {show_value(written)}, but there is no module {show_value(module)}", hint)


def _check_alone(checked: _Check, key: Key) -> None:
    value = getattr(checked.config, key.name)
    hint = f"set {key.name} to {key.example}, for example"
    if key.choices:
        if value is not None and value not in key.choices:
            hint = did_you_mean(value, key.choices, otherwise=hint)
            checked.add(key.name, f"{key.name} is {show_value(value)}, but it must be {key.allowed}", hint)
        return
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int | float) and not isinstance(number, bool) and not key.contains(number):
            checked.add(key.name, f"{key.name} is {number}, but it must be {key.allowed or 'finite'}", hint)
            return


def _check_device(checked: _Check) -> None:
    if checked.config.launcher in (Launcher.RAY, Launcher.AGENTS):
        return  # the GPUs are those of other machines
    if checked.config.device == Device.CUDA and checked.facts.cuda_devices == 0:
        hint = "set device to cpu or auto, or install a torch that is built for CUDA"
        checked.add("device", "device is cuda, but torch has no GPU to use on this machine", hint)


def _check_mode_options(checked: _Check) -> None:
    mode = decide.mode_of(checked.config)
    if mode is None or mode.options is None:
        return  # it may read any key
    for field in dataclasses.fields(StrategyOptions):
        if getattr(checked.config, field.name) is None or field.name in mode.options:
            continue
        readers = ", ".join(m.name for m in MODES.values() if m.reads(field.name))
        hint = f"leave {field.name} out, or use a mode that reads it: {readers}"
        checked.add(field.name, f"mode {mode.name} does not read {field.name}", hint)


def _check_delay(checked: _Check) -> None:
    """A delayed update must be applied before the next sync of its fragment begins."""
    delay = checked.config.sync_delay
    if delay is None or not checked.are_sound("mode", "sync_delay", "sync_every"):
        return
    every = decide.strategy_options_of(checked.config).sync_every
    if delay >= every:
        hint = f"set sync_delay to {every - 1} or less, or sync_every to {delay + 1} or more"
        checked.add(
            "sync_delay", f"sync_delay is {delay}, but it must be less than sync_every, {every}", hint
        )


def _check_virtual(checked: _Check) -> None:
    config = checked.config
    if config.vmap is not None and not decide.is_virtual(config):
        hint = "add --launcher virtual, or leave vmap out: worker processes compute separately"
        checked.add("vmap", "vmap is set, but the launcher is not virtual", hint)
    if decide.is_virtual(config) and decide.averages_unweighted(decide.mode_of(config)):
        hint = "use --mode ssgd, which computes the same, or --launcher local"
        mode = decide.mode_name_of(config)
        message = f"mode {mode} needs torch's process group, so it cannot run in one process"
        checked.add("launcher", message, hint)


def _check_lower_bound(checked: _Check) -> None:
    if decide.mode_name_of(checked.config) == "dssp" and checked.config.staleness == "inf":
        hint = "set staleness to the lowest bound, such as 3, or use --mode asgd, which has none"
        checked.add("staleness", "staleness is inf, but dssp needs a bound to start from", hint)


def _check_elasticity(checked: _Check) -> None:
    """Beyond alpha = 1 an exchange would throw worker and centre past each other."""
    elasticity = checked.config.elasticity
    if elasticity is None or not checked.are_sound("elasticity", "num_workers"):
        return
    num_workers = decide.num_workers_of(checked.config)
    if elasticity > num_workers:
        hint = f"set elasticity to {num_workers} or less; 0.9 is the default"
        message = (
            f"elasticity is {elasticity:g}, but it must not be more than the number of workers, {num_workers}"
        )
        checked.add("elasticity", message, hint)


def _check_neighbours(checked: _Check) -> None:
    """A directed graph is for push-sum alone."""
    config = checked.config
    if decide.mode_of(config) is None or not checked.are_sound("topology", "gossip"):
        return
    if config.topology == Topology.EXPONENTIAL and config.gossip != GossipVariant.PUSH_SUM:
        hint = "use --mode gossip --gossip push-sum, or an undirected topology, such as hypercube"
        checked.add("topology", "topology exponential is directed, and only push-sum can use it", hint)


def _check_peers(checked: _Check) -> None:
    """Workers that never meet share memory, and have no common point to save at."""
    config = checked.config
    mode = decide.mode_of(checked.config)
    if mode is None or mode.channel is not Channel.PEERS:
        return
    if config.device == Device.CUDA and decide.needs_shm(config) and checked.are_sound("device"):
        hint = "leave device out, or use --mode gossip, which also works on GPUs"
        checked.add("device", "device is cuda, but adpsgd keeps all parameters in shared memory", hint)
    if config.checkpoint_every and checked.are_sound("checkpoint_every"):
        hint = "leave checkpoint_every out; a checkpoint is written at the end, and on Ctrl-C"
        message = f"checkpoint_every is {config.checkpoint_every}, but between its start and its end"
        checked.add("checkpoint_every", f"{message} adpsgd has no common point to save", hint)


def _check_backup(checked: _Check) -> None:
    """At least one gradient must count, or there is nothing to update with."""
    backup = checked.config.backup_workers
    num_workers = decide.processes_of(checked.config)
    if backup is None or not checked.are_sound("num_workers", "backup_workers") or backup < num_workers:
        return
    message = f"backup_workers is {backup}, but it must be less than num_workers, {num_workers}"
    default = decide.default_backup_workers(num_workers)
    checked.add("backup_workers", message, f"set backup_workers to {default}, or leave it out")


def _check_single(checked: _Check) -> None:
    num_workers = checked.config.num_workers
    if num_workers is not None and num_workers > 1 and decide.is_alone(decide.mode_of(checked.config)):
        hint = "leave num_workers out, or use a mode for several workers, such as ssgd"
        checked.add("num_workers", f"mode single is one worker, but num_workers is {num_workers}", hint)


def _check_batch_count(checked: _Check) -> None:
    sizes = checked.config.batch_size
    if not isinstance(sizes, tuple) or not checked.are_sound("mode", "num_workers", "batch_size"):
        return
    num_workers = decide.num_workers_of(checked.config)
    if len(sizes) != num_workers:
        hint = f"give one number for all workers, or {num_workers} numbers"
        message = f"batch_size lists {len(sizes)} numbers, but there are {num_workers} workers"
        checked.add("batch_size", message, hint)
    elif len(set(sizes)) > 1 and checked.config.adaptive == Allowed.LOCAL_STEPS:
        hint = "give every worker the same batch size: a slow one gets fewer steps; or use --adaptive batch"
        message = f"adaptive local steps need equal batch sizes, but they are {sizes}"
        checked.add("batch_size", message, hint)
    elif len(set(sizes)) > 1 and decide.averages_unweighted(decide.mode_of(checked.config)):
        hint = "give every worker the same batch size, or use --mode ssgd, which weights them"
        mode = decide.mode_name_of(checked.config)
        message = f"{mode} averages gradients unweighted, but the batch sizes differ: {sizes}"
        checked.add("batch_size", message, hint)


def _check_optimizer(checked: _Check) -> None:
    config = checked.config
    if config.weight_decay is not None and config.optimizer is None and checked.are_sound("optimizer"):
        hint = "name the optimizer too, such as --optimizer sgd; a task's own optimizer keeps its own decay"
        checked.add("weight_decay", "weight_decay is set, but no optimizer is named", hint)


def _check_rate(checked: _Check) -> None:
    """A learning rate that never reaches its full value is likely a mistake."""
    warmup = checked.config.lr_warmup
    steps = decide.steps_of(checked.config)
    if checked.config.epochs is not None:
        return  # how many steps they are is not known yet
    if warmup is not None and checked.are_sound("lr_warmup", "steps") and warmup > steps:
        hint = f"set lr_warmup to {max(1, steps // 20)}, for example, or steps to more than {warmup}"
        checked.add("lr_warmup", f"lr_warmup is {warmup}, but the run has only {steps} steps", hint)


def _check_only_optimizers(checked: _Check) -> None:
    """Some modes are made for one optimizer; the built-in tasks bring plain SGD."""
    config = checked.config
    mode = decide.mode_of(checked.config)
    if mode is None or not mode.optimizers or not checked.are_sound("optimizer", "task"):
        return
    hint = f"use {' or '.join(f'--optimizer {name}' for name in sorted(mode.optimizers))}"
    unsaid = config.optimizer is None and decide.task_of(config).lower() in TASKS
    if unsaid or (config.optimizer is not None and config.optimizer not in mode.optimizers):
        has = "the task's own is sgd" if unsaid else f"optimizer is {config.optimizer}"
        checked.add("optimizer", f"mode {mode.name} is made for Adam, but {has}", hint)
    if config.clip_norm is not None:
        message = f"mode {mode.name} averages momentum, so the mean of the gradients cannot be clipped"
        checked.add("clip_norm", message, "leave clip_norm out, or use --mode ssgd")


def _check_transport(checked: _Check) -> None:
    config = checked.config
    if config.transport in (None, "auto"):
        return
    if not checked.are_sound("mode", "num_workers", "device", "transport"):
        return
    usable = decide.usable_transports(config, checked.facts)
    if config.transport in usable:
        return
    device = decide.device_of(config, checked.facts)
    num_workers = decide.num_workers_of(config)
    message = (
        f"transport {config.transport} does not work for mode {decide.mode_name_of(config)}"
        f" with {num_workers} {'worker' if num_workers == 1 else 'workers'} on {device.value}"
    )
    checked.add("transport", message, f"leave it at auto, or use {' or '.join(t.value for t in usable)}")

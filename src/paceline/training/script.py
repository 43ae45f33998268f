"""Request for a run of a training script: the settings of the command, and what the script prepared.

The script is started once in a process of its own, which makes one step alone and reports its facts: samples,
batch, length, schedule. The plan is complete before the first worker starts.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from paceline.config.environment import Facts, World, apply_world, probe_machine
from paceline.config.load import from_set_flags, load
from paceline.config.train_config import TrainConfig
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError, Mistake, Problem
from paceline.launchers.local import ScriptStart
from paceline.monitoring.metrics.server_process import metrics_endpoint
from paceline.plan import decide
from paceline.plan.catalog import MODES, SCRIPT_TASK, Channel, Mode
from paceline.plan.check import check
from paceline.plan.codec import Json
from paceline.plan.plan import Dtype, Launcher, OnSlow, Option, Plan
from paceline.plan.resolve import resolve
from paceline.training.request import Request, choose_run_dir, run_dir_problems
from paceline.training.script_sources import read_sources
from paceline.training.session import Session
from paceline.worker.script.facts import ScriptFacts
from paceline.worker.script.suited import (
    refuse_changed_parameters,
    refuse_changed_state,
    refuse_rates,
    unsuited,
)

# Settings that a script makes itself, in Python.
OWN_SETTINGS = (
    "task",
    "task_options",
    "data",
    "data_cache",
    "data_cache_mb",
    "shuffle_block",
    "steps",
    "epochs",
    "evaluate_every",
    "early_stop_patience",
    "early_stop_metric",
    "batch_size",
    "optimizer",
    "lr",
    "lr_schedule",
    "lr_warmup",
    "scale_lr",
    "weight_decay",
    "clip_norm",
    "model",
    "seq_len",
    "tokenizer",
    "activation_checkpointing",
    "compile",
    "grad_accumulation",
)
# Settings of launchers that start no scripts yet.
LAUNCHER_SETTINGS = ("vmap",)
LAUNCHERS = ("local", "agents", "torchrun", "ray")
LEFT_OUT = (*OWN_SETTINGS, *LAUNCHER_SETTINGS)


class ScriptProber(Protocol):
    def probe_script(self, start: ScriptStart) -> dict[str, Json]:
        """Run the script until its second batch; `options` of its task, and what it does."""
        ...


def read_script_request(
    session: Session,
    flags: Sequence[RawSetting],
    script: Path,
    arguments: Sequence[str],
    prober: ScriptProber,
    *,
    world: World | None = None,
    may_hold_run: bool = False,
) -> Request:
    """Resolve settings and the script's facts into a plan and a run folder.

    `world` is given when torchrun started the workers; `may_hold_run` when an existing run may be resumed.
    Raises ConfigError with every problem of the settings, or with the first one of the script.
    """
    sets = from_set_flags(session.common.sets)
    loaded = load(flags=[*flags, *sets.entries], variables=session.variables, file=session.common.config)
    config = loaded.config if world is None else apply_world(loaded.config, world)
    is_one = config.num_workers is None or (world is not None and world.size == 1)
    if config.mode is None and is_one:
        config = replace(config, mode="single")
    facts = replace(probe_machine(config), world=world)
    file = session.folder / script
    problems = [
        *sets.problems,
        *loaded.problems,
        *unread_problems(config),
        *file_problems(file),
        *mode_problems(config),
        *([] if may_hold_run else run_dir_problems(config, session.folder)),
        *check(config, facts),
    ]
    if problems:
        raise ConfigError(problems)
    probed = probe(config, file, arguments, session.folder, prober)
    plan = plan_of_script(config, facts, probed, script)
    is_named = config.run_dir is not None
    first_dir = session.folder / (config.run_dir or Path(config.save_dir or "runs") / plan.run)
    run_dir = first_dir if is_named else choose_run_dir(first_dir)
    return Request(
        plan=plan,
        run_dir=run_dir,
        first_dir=first_dir,
        facts=facts,
        is_named=is_named,
        metrics=metrics_endpoint(config, session.folder),
    )


def probe(
    config: TrainConfig,
    file: Path,
    arguments: Sequence[str],
    folder: Path,
    prober: ScriptProber,
    *,
    has_trials: bool = False,
) -> dict[str, Json]:
    """What the script prepares and does in its first step."""
    start = ScriptStart(
        file=str(file.absolute()),  # not resolved: in a pod it is a link to a folder of that pod
        arguments=tuple(arguments),
        folder=str(folder.absolute()),
        seed=config.seed or 0,
        dtype=config.dtype or Dtype.FLOAT32,
        num_workers=decide.num_workers_of(config),
        has_trials=has_trials,
    )
    return prober.probe_script(start)


def plan_of_script(config: TrainConfig, facts: Facts, probed: dict[str, Json], script: Path) -> Plan:
    """The plan of a run of the script. Raises ConfigError if the mode cannot compute what it computes."""
    _require_suited(config, probed)
    config = config_of_script(config, probed, script)
    if config.launcher == Launcher.RAY:  # its nodes may not have the file
        config = replace(config, task_options={**(config.task_options or {}), "sources": _sources(config)})
    return resolve(config, replace(facts, modules=facts.modules | {SCRIPT_TASK.partition(":")[0]}))


def _sources(config: TrainConfig) -> str:
    """The script and the modules beside it, as an option of the plan's task."""
    assert config.task_options is not None, "the facts of the script"
    return json.dumps(read_sources(Path(str(config.task_options["file"]))).texts)


def unread_problems(config: TrainConfig) -> list[Problem]:
    """Settings from a variable or a file that a run of a script does not read."""
    problems = []
    for name in LEFT_OUT:
        if getattr(config, name) is not None:
            what = "that is in the script" if name in OWN_SETTINGS else "which a script does not support yet"
            message = f"{name} is set, but `paceline run` runs a script, and {what}"
            problems.append(Problem(message, f"leave {name} out", config.origin(name), Mistake.CLASH))
    if config.launcher not in (None, *LAUNCHERS):
        message = f"launcher is {config.launcher}, which starts no scripts"
        hint = f"use {' or '.join(LAUNCHERS)}"
        problems.append(Problem(message, hint, config.origin("launcher"), Mistake.CLASH))
    return problems


def file_problems(file: Path) -> list[Problem]:
    if file.is_file():
        return []
    hint = "name the file of a training script, such as  paceline run train.py"
    return [Problem(f"there is no file {file}", hint, "SCRIPT", "E120")]


def mode_problems(config: TrainConfig) -> list[Problem]:
    mode = decide.mode_of(config)
    reason = None if mode is None else unoffered_reason(mode)
    if reason is None:
        return []
    offered = ", ".join(name for name, other in MODES.items() if unoffered_reason(other) is None)
    return [Problem(reason, f"use one of {offered}", config.origin("mode"), "E124")]


def unoffered_reason(mode: Mode) -> str | None:
    """Why a script cannot be run in this mode; None: it can."""
    if mode.optimizers:
        return f"{mode.name} freezes Adam's second moment, and an optimizer of torch does not let it"
    if mode.channel is Channel.TORCH:
        return f"{mode.name} wraps the module for torch.distributed, and a script calls its own module"
    return None


def _require_suited(config: TrainConfig, probed: dict[str, Json]) -> None:
    """Refuse what the script does in its first step, where the run has several workers or a server."""
    options = options_of(probed)
    mode = decide.mode_of(config)
    is_elastic = bool(config.elastic)
    problems = [] if mode is None else unsuited(ScriptFacts.read(options), mode, is_elastic=is_elastic)
    is_served = mode is not None and mode.channel is Channel.STORE
    if probed["changes_parameters"] and (is_elastic or is_served):
        problems += refuse_changed_parameters(decide.mode_name_of(config)).problems
    if probed["changes_state"] and is_elastic:
        problems += refuse_changed_state().problems
    if probed["changes_gradients"] and decide.num_workers_of(config) > 1:
        message = "the script changes gradients after backward (clip_grad_norm_?): each worker its own"
        hint = "use run.clip_grad_norm_, which acts on the gradient on which the workers agree"
        problems.append(Problem(message, hint, code="E122"))
    if mode is not None and mode.channel is Channel.STORE:
        if options["clips_some"]:
            message = f"the script clips some of the parameters, and the server of {mode.name} clips all"
            problems.append(Problem(message, "clip model.parameters(), or use --mode ssgd", code="E134"))
        if probed["sets_rates"]:
            problems += refuse_rates(mode.name).problems
    if config.on_slow == OnSlow.REBALANCE and probed["sets_rates"]:
        message = "the script sets the learning rate by hand, and a worker may have no share of a step"
        hint = "use a scheduler of torch and prepare it: LambdaLR(optimizer, fn); or leave --on-slow out"
        problems.append(Problem(message, hint, code="E134"))
    if problems:
        raise ConfigError(problems)


def config_of_script(config: TrainConfig, probed: dict[str, Json], script: Path) -> TrainConfig:
    sizes = probed["batch_sizes"]
    assert isinstance(sizes, list), "one batch size per worker"
    name = f"{script.stem}-{decide.mode_name_of(config).partition(':')[2] or decide.mode_name_of(config)}"
    options = options_of(probed)
    return replace(
        config,
        name=config.name or re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:100] or "script",
        task=SCRIPT_TASK,
        task_options=options,
        steps=int(str(probed["steps"])),
        batch_size=tuple(int(str(size)) for size in sizes),
        grad_accumulation=int(options["accumulate"]) if options["num_samples"] else None,
    )


def options_of(probed: dict[str, Json]) -> dict[str, Option]:
    options = probed["options"]
    assert isinstance(options, dict), "the probe reports options by name"
    return {name: value for name, value in options.items() if isinstance(value, bool | int | float | str)}

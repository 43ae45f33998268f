"""The command of a job: exactly the settings that make its plan, and none that are default.

A setting is left out when the plan is the same without it. So the
manifest shows what is special about the run; and a test reads the command back
by paceline's loader, to the same plan.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from paceline.config.environment import Facts, World, apply_world
from paceline.config.fault_rules import attack_text, straggler_text
from paceline.config.key import Key, Kind
from paceline.config.keys import KEYS
from paceline.config.load import load
from paceline.config.train_config import TrainConfig
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError, ManifestError
from paceline.core.humanize import did_you_mean
from paceline.k8s.validate.schema import Finding, Path
from paceline.plan.plan import Launcher, Plan
from paceline.plan.resolve import resolve

# How many samples a task has is known where it runs. Epochs are checked as if there were plenty, so that
# nothing is refused here which works there; the steps that follow from it are not written anywhere.
SAMPLES_ELSEWHERE = 1 << 30
# Not part of a plan.
_OUTSIDE = ("origins", "run_dir", "save_dir", "metrics_port", "metrics_token_file")
_OF_SCRIPTS = ("mode", "num_workers")
_FIRST = ("launcher", "address", "task", "mode", "num_workers")  # the usual order of flags


def facts_in_pods(config: TrainConfig) -> Facts:
    """Facts of the pods, not of this machine: modules that the settings name are in the image."""
    named = (config.task, config.mode, config.aggregate)
    return Facts(
        modules=frozenset(n.partition(":")[0] for n in named if n is not None and ":" in n),
        packages=frozenset(name for target in config.export or () for name in target.packages),
    )


def plan_of(config: TrainConfig, facts: Facts) -> Plan:
    if facts.world is not None:
        config = apply_world(config, facts.world)
    return resolve(config, facts, count=lambda _: SAMPLES_ELSEWHERE)


def train_command(config: TrainConfig, facts: Facts) -> tuple[str, ...]:
    """The words of the command line; raises ConfigError as `train` would."""
    return ("paceline", "train", *flags_of(_without_defaults(config, facts)))


def run_command(config: TrainConfig, facts: Facts) -> tuple[str, ...]:
    """The words before a script. Its defaults are others, so the mode and the workers are always written."""
    return ("paceline", "run", *flags_of(_without_defaults(config, facts, kept=_OF_SCRIPTS)))


def worker_command(config: TrainConfig, facts: Facts, *, has_script: bool = False) -> tuple[str, ...]:
    """The same for processes that torchrun starts, behind torchrun's own words."""
    kept = _OF_SCRIPTS if has_script else ()
    return ("-m", "paceline.worker", *flags_of(_without_defaults(config, facts, kept=kept)))


def flags_of(config: TrainConfig) -> list[str]:
    """All given settings as flags."""
    argv: list[str] = []
    for name in (*_FIRST, *(key for key in KEYS if key not in _FIRST)):
        value = getattr(config, name)
        if value is not None:
            argv += flag_argv(name, value)
    return argv


def _without_defaults(config: TrainConfig, facts: Facts, *, kept: Sequence[str] = ()) -> TrainConfig:
    plan = plan_of(config, facts)
    for setting in fields(config):
        if setting.name in (*_OUTSIDE, *kept) or getattr(config, setting.name) is None:
            continue
        shorter = replace(config, **{setting.name: None})  # type: ignore[arg-type]  # None: not said
        try:
            same = plan_of(shorter, facts) == plan
        except ConfigError:
            continue  # without it, the others are invalid
        if same:
            config = shorter
    return config


def flag_argv(name: str, value: object) -> list[str]:
    """The flags that set this value of a key."""
    key = KEYS[name]
    match key.kind:
        case Kind.YES_NO:
            return [key.flag if value else f"--no-{key.flag.removeprefix('--')}"]
        case Kind.OPTIONS:
            assert isinstance(value, Mapping), "options are a mapping"
            return [word for k, v in value.items() for word in (key.flag, f"{k}={_option(v)}")]
        case Kind.STRAGGLERS:
            assert isinstance(value, tuple), "rules are a tuple"
            return [word for rule in value for word in (key.flag, straggler_text(rule))]
        case Kind.BYZANTINE:
            assert isinstance(value, tuple), "rules are a tuple"
            return [word for rule in value for word in (key.flag, attack_text(rule))]
        case Kind.EXPORTS:
            assert isinstance(value, tuple), "exports are a tuple"
            return [word for target in value for word in (key.flag, target.text)]
        case Kind.DURATION:
            return [key.flag, f"{value!r}s"]
        case _:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            return [key.flag, text]


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_FLAGS = {flag: key for key in KEYS.values() for flag in (key.flag, key.also) if flag}
_NO_FLAGS = {f"--no-{key.flag.removeprefix('--')}": key for key in KEYS.values() if key.kind is Kind.YES_NO}
_SWITCHES = ("--json", "--quiet", "--verbose", "-q", "-v", "--dry-run", "-n")
# Settings from elsewhere, which are not here to be checked.
_ELSEWHERE = ("--config", "-c", "--set", "--color", "--resume")


def find_in_command(argv: Sequence[str], path: Path) -> Iterator[Finding]:
    """Findings in a `paceline train` or `paceline run` command; other programs are not checked."""
    if list(argv[:2]) not in (["paceline", "train"], ["paceline", "run"]):
        return
    written, problems = read_flags(_up_to_script(argv[2:]))
    for message, hint in problems:
        yield Finding(path, message, hint)
    if problems or any(word in _ELSEWHERE for word in argv):
        return
    try:
        plan = plan_from(written)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding(path, problem.what, problem.hint)
        return
    if plan.launcher is not Launcher.RAY:
        message = f"the launcher is {plan.launcher.value}, so the head would train alone"
        yield Finding(path, message, "add --launcher ray --address auto")
    elif plan.ray is not None and plan.ray.address == "local":
        message = "the address is local, so a second Ray would be started inside the head"
        yield Finding(path, message, "add --address auto")


def _up_to_script(argv: Sequence[str]) -> Sequence[str]:
    """The words before a training script: its own arguments follow it."""
    position = 0
    while position < len(argv):
        flag, equals, _ = argv[position].partition("=")
        if not flag.startswith("-"):
            return argv[:position]
        is_switch = flag in _SWITCHES or flag in _NO_FLAGS
        is_switch = is_switch or (flag in _FLAGS and _FLAGS[flag].kind is Kind.YES_NO)
        position += 1 if equals or is_switch else 2
    return argv


def plan_from(written: Sequence[RawSetting]) -> Plan:
    loaded = load(flags=written)
    if loaded.problems:
        raise ManifestError(loaded.problems)
    return plan_of(loaded.config, facts_in_pods(loaded.config))


def read_flags(argv: Sequence[str]) -> tuple[list[RawSetting], list[tuple[str, str]]]:
    """Settings of the flags, and the flags that cannot be read."""
    written: list[RawSetting] = []
    problems: list[tuple[str, str]] = []
    todo = list(argv)
    while todo:
        flag, equals, value = todo.pop(0).partition("=")
        if flag in _SWITCHES:
            continue
        if flag in _NO_FLAGS:
            written.append(RawSetting(key=_NO_FLAGS[flag].name, raw=False, where=flag))
        elif flag in _FLAGS and _FLAGS[flag].kind is Kind.YES_NO:
            written.append(RawSetting(key=_FLAGS[flag].name, raw=True, where=flag))
        elif flag not in _FLAGS and flag not in _ELSEWHERE:
            hint = did_you_mean(flag, _FLAGS, otherwise="see `paceline train --help`")
            problems.append((f"`paceline train` has no flag {flag}", hint))
        elif not equals and not todo:
            problems.append((f"{flag} has no value", f"write a value after {flag}"))
        else:
            value = value if equals else todo.pop(0)
            if flag in _FLAGS:
                written.append(_written(_FLAGS[flag], value))
    return written, problems


def _written(key: Key, value: str) -> RawSetting:
    if key.kind is Kind.OPTIONS and "=" in value:
        name, _, option = value.partition("=")
        return RawSetting(key=key.name, raw={name.strip(): option}, where=key.flag)
    return RawSetting(key=key.name, raw=value, where=key.flag)


# Only commands that begin with torchrun (or HyperPod's hyperpodrun) and start
# `paceline.worker` are checked.

_PROGRAMS = ("torchrun", "hyperpodrun")
_WORKER = "paceline.worker"
# Of torchrun: flags with a value, and switches. It treats dashes and underscores alike.
# fmt: off
_VALUES = frozenset((
    "nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts",
    "monitor_interval", "start_method", "event_log_handler", "role", "log_dir", "redirects", "tee",
    "local_ranks_filter", "node_rank", "master_addr", "master_port", "local_addr", "logs_specs",
    "numa_binding", "signals_to_handle", "duplicate_stdout_filters", "duplicate_stderr_filters",
    "shutdown_timeout",
    # and of hyperpodrun
    "pre_train_script", "pre_train_args", "post_train_script", "post_train_args", "inprocess_restart",
    "server_host", "server_port", "server_log_level", "server_shutdown_timeout",
))
# fmt: on
_TORCHRUN_SWITCHES = frozenset(("standalone", "no_python", "run_path", "module", "virtual_local_rank"))
_SHORT = {"-t": "--tee", "-r": "--redirects"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunCommand:
    """Flags of torchrun, and the program that it starts."""

    flags: dict[str, str] = field(default_factory=dict)
    worker: tuple[str, ...] | None = None  # flags of our worker; None: another program
    problems: tuple[tuple[str, str], ...] = ()


def read_torchrun(argv: Sequence[str]) -> TorchrunCommand | None:
    """None: this is not torchrun."""
    if not argv or argv[0].rpartition("/")[2] not in _PROGRAMS:
        return None
    flags: dict[str, str] = {}
    problems: list[tuple[str, str]] = []
    todo = list(argv[1:])
    while todo:
        word = todo.pop(0)
        if word in ("-m", "--module"):
            module = todo.pop(0) if todo else ""
            worker = tuple(todo) if module == _WORKER else None
            return TorchrunCommand(flags=flags, worker=worker, problems=tuple(problems))
        word = _SHORT.get(word, word)
        if not word.startswith("--"):
            break  # another script
        name, equals, value = word.removeprefix("--").replace("-", "_").partition("=")
        if not any(known.startswith(name) for known in _VALUES | _TORCHRUN_SWITCHES):
            hint = did_you_mean(
                f"--{name}", [f"--{known}" for known in _VALUES], otherwise="see torchrun --help"
            )
            problems.append((f"torchrun has no flag --{name}", hint))
        elif name not in _TORCHRUN_SWITCHES and not equals and todo:
            value = todo.pop(0)
        flags[name] = value
    return TorchrunCommand(flags=flags, problems=tuple(problems))


def find_in_torchrun(
    argv: Sequence[str], path: Path, nodes: int | None, procs: str | None = None
) -> Iterator[Finding]:
    """`nodes`: how many pods the object makes, if that is fixed. `procs`: as set by the object."""
    read = read_torchrun(argv)
    if read is None:
        return
    for message, hint in read.problems:
        yield Finding(path, message, hint)
    nodes_flag = read.flags.get("nnodes")
    if nodes_flag is not None and nodes is not None and nodes_flag.isdigit() and int(nodes_flag) != nodes:
        message = f"torchrun waits for {nodes_flag} nodes, but there are {nodes} pods"
        yield Finding(path, message, f"write --nnodes={nodes}, or change the number of pods")
    procs_flag = read.flags.get("nproc_per_node")
    if procs_flag is not None and procs is not None and procs_flag != procs:
        message = f"torchrun starts {procs_flag} processes on a node, but the object has {procs}"
        yield Finding(path, message, "write the same number in both", is_advice=True)
    if read.worker is not None:
        size = (int(nodes_flag) if nodes_flag is not None and nodes_flag.isdigit() else nodes) or 1
        each = procs_flag if procs_flag is not None else procs
        yield from _find_in_worker(read.worker, path, size, int(each) if each and each.isdigit() else 1)


def _find_in_worker(argv: Sequence[str], path: Path, nodes: int, procs: int) -> Iterator[Finding]:
    written, problems = read_flags(_up_to_script(argv))
    for message, hint in problems:
        yield Finding(path, message.replace("`paceline train`", _WORKER), hint)
    if problems or any(word in ("--config", "-c", "--set") for word in argv):
        return  # the rest of the settings is elsewhere
    try:
        worker_plan(written, nodes, procs)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding(path, problem.what, problem.hint)


def worker_plan(written: Sequence[RawSetting], nodes: int, procs: int) -> object:
    """As rank 0 would resolve it, on a node that has a GPU for every process if GPUs are requested."""
    loaded = load(flags=written)
    if loaded.problems:
        raise ManifestError(loaded.problems)
    world = World(size=nodes * procs, local_size=procs, host="node-0", port=1, has_agent=True)
    alone = replace(world, host=None) if nodes * procs == 1 else world
    gpus = procs if loaded.config.device == "cuda" else 0
    return plan_of(loaded.config, replace(facts_in_pods(loaded.config), world=alone, cuda_devices=gpus))

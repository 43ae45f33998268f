"""Would torchrun, and the worker that it starts, understand the command of a pod? Read as both would.

Other programs are nobody's business here: only what begins with torchrun (or
HyperPod's hyperpodrun) and starts `paceline.worker` is looked into.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from paceline.config.load import load
from paceline.config.nearest import did_you_mean
from paceline.config.world import World
from paceline.config.written import Written
from paceline.errors import ConfigError, ManifestError
from paceline.kube.command import facts_in_pods, plan_of
from paceline.kube.entrypoint import read_flags
from paceline.kube.schema import Finding, Path

_PROGRAMS = ("torchrun", "hyperpodrun")
_WORKER = "paceline.worker"
# Of torchrun: flags with a value, and switches. A dash and an underscore are the same to it.
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
_SWITCHES = frozenset(("standalone", "no_python", "run_path", "module", "virtual_local_rank"))
_SHORT = {"-t": "--tee", "-r": "--redirects"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What torchrun was told, and what it is to start."""

    flags: dict[str, str] = field(default_factory=dict)
    worker: tuple[str, ...] | None = None  # flags of our worker; None: another program
    problems: tuple[tuple[str, str], ...] = ()


def read_torchrun(words: Sequence[str]) -> Read | None:
    """None: this is not torchrun."""
    if not words or words[0].rpartition("/")[2] not in _PROGRAMS:
        return None
    flags: dict[str, str] = {}
    problems: list[tuple[str, str]] = []
    todo = list(words[1:])
    while todo:
        word = todo.pop(0)
        if word in ("-m", "--module"):
            module = todo.pop(0) if todo else ""
            worker = tuple(todo) if module == _WORKER else None
            return Read(flags=flags, worker=worker, problems=tuple(problems))
        word = _SHORT.get(word, word)
        if not word.startswith("--"):
            break  # a script of somebody's
        name, equals, value = word.removeprefix("--").replace("-", "_").partition("=")
        if not any(known.startswith(name) for known in _VALUES | _SWITCHES):
            hint = did_you_mean(
                f"--{name}", [f"--{known}" for known in _VALUES], otherwise="see torchrun --help"
            )
            problems.append((f"torchrun has no flag --{name}", hint))
        elif name not in _SWITCHES and not equals and todo:
            value = todo.pop(0)
        flags[name] = value
    return Read(flags=flags, problems=tuple(problems))


def find_in_torchrun(
    words: Sequence[str], path: Path, nodes: int | None, procs: str | None = None
) -> Iterator[Finding]:
    """`nodes`: how many pods the object makes, if that is fixed. `procs`: as the object says."""
    read = read_torchrun(words)
    if read is None:
        return
    for what, hint in read.problems:
        yield Finding(path, what, hint)
    said = read.flags.get("nnodes")
    if said is not None and nodes is not None and said.isdigit() and int(said) != nodes:
        what = f"torchrun waits for {said} nodes, but there are {nodes} pods"
        yield Finding(path, what, f"write --nnodes={nodes}, or change the number of pods")
    asked = read.flags.get("nproc_per_node")
    if asked is not None and procs is not None and asked != procs:
        what = f"torchrun starts {asked} processes on a node, but the object says {procs}"
        yield Finding(path, what, "write the same number at both places", is_advice=True)
    if read.worker is not None:
        size = (int(said) if said is not None and said.isdigit() else nodes) or 1
        each = asked if asked is not None else procs
        yield from _find_in_worker(read.worker, path, size, int(each) if each and each.isdigit() else 1)


def _find_in_worker(words: Sequence[str], path: Path, nodes: int, procs: int) -> Iterator[Finding]:
    written, problems = read_flags(words)
    for what, hint in problems:
        yield Finding(path, what.replace("`paceline train`", _WORKER), hint)
    if problems or any(word in ("--config", "-c", "--set") for word in words):
        return  # the rest of the settings is elsewhere
    try:
        worker_plan(written, nodes, procs)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding(path, problem.what, problem.hint)


def worker_plan(written: Sequence[Written], nodes: int, procs: int) -> object:
    """As rank 0 would resolve it, on a node that has a GPU for every process if they are asked for."""
    loaded = load(flags=written)
    if loaded.problems:
        raise ManifestError(loaded.problems)
    world = World(size=nodes * procs, local_size=procs, host="node-0", port=1, has_agent=True)
    alone = replace(world, host=None) if nodes * procs == 1 else world
    gpus = procs if loaded.config.device == "cuda" else 0
    return plan_of(loaded.config, replace(facts_in_pods(loaded.config), world=alone, cuda_devices=gpus))

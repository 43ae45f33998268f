"""The command of a job's pods in words: each flag of torchrun, and the value that a pod sees.

Read from the finished manifests, so that patches are in it. Flags that an operator passes in PET_* variables
are written as the flags that they stand for. `on_node_0` is the complete command of the first pod.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.k8s.objects import mapping, mappings, texts
from paceline.k8s.render.patch import job_among
from paceline.k8s.render.pod import Object, rendezvous_id, require_torch
from paceline.k8s.spec.job import ON_RAY, PORT, JobSpec, Rendezvous, Target

_OPERATOR_PORT = 23456  # of training-operator; Trainer and torchrun have PORT
_MEANINGS = {
    "nnodes": "number of nodes, which are pods (--nodes)",
    "nproc_per_node": "processes per node (--procs-per-node, --gpus-per-node)",
    "node_rank": "number of this node",
    "master_addr": "host of node 0 (--master-addr)",
    "master_port": "port of node 0 (--master-port)",
    "rdzv_backend": "how the nodes meet (--rdzv)",
    "rdzv_endpoint": "where the nodes meet (--rdzv-endpoint)",
    "rdzv_id": "name of the rendezvous (--rdzv-id)",
    "max_restarts": "restarts of the processes by torchrun (--max-restarts)",
    "tee": "logs to files and to the pod's log",
    "log_dir": "folder of the logs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedFlag:
    flag: str  # as written, or as it stands in a variable
    meaning: str
    node_0: str  # its value on the first node


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCommand:
    """`program` is started in every pod of the job, with these flags, and then `words`."""

    job: str
    where: str
    program: tuple[str, ...]
    flags: tuple[ExplainedFlag, ...]
    words: tuple[str, ...]

    @property
    def on_node_0(self) -> tuple[str, ...]:
        return (*self.program, *(f"--{flag.node_0}" for flag in self.flags), *self.words)

    def lines(self) -> list[str]:
        width = max((len(flag.flag) for flag in self.flags), default=0)
        rows = [f"  {flag.flag:<{width}}  {flag.meaning}" for flag in self.flags]
        words = [f"  {shlex.join(self.words)}"] if self.words else []
        head = [f"job      {self.job}", f"in       {self.where}", f"command  {shlex.join(self.program)}"]
        return [*head, *rows, *words, f"node 0   {shlex.join(self.on_node_0)}"]


def explain_command(intent: JobSpec, target: Target, objects: Sequence[Object]) -> ExplainedCommand:
    job = job_among(objects)
    name = f"{job['kind']}/{intent.name}"
    if target in ON_RAY or intent.agents is not None:
        where = "the head of the Ray cluster" if target in ON_RAY else "the pod of the command"
        return ExplainedCommand(job=name, where=where, program=intent.command, flags=(), words=())
    torch = require_torch(intent)
    command = _command(job)
    where = f"every pod: {intent.pods.wanted} with {torch.procs} processes each"
    if torch.is_raw:
        return ExplainedCommand(
            job=name, where=f"every of {intent.pods.wanted} pods", program=tuple(command), flags=(), words=()
        )
    written, words = _split(command[1:])
    flags = {**_by_operator(intent, target), **written}
    values = _node_0(intent, target)
    explained = tuple(
        ExplainedFlag(
            flag=f"--{flag}={value}",
            meaning=_MEANINGS.get(flag, "torchrun's"),
            node_0=f"{flag}={_filled(value, values)}",
        )
        for flag, value in flags.items()
    )
    return ExplainedCommand(job=name, where=where, program=(command[0],), flags=explained, words=tuple(words))


def _command(job: Object) -> list[str]:
    """The words of the container that trains; all of a job's pods have the same."""
    trainer = mapping(job, "spec", "trainer")
    container = trainer or _first_container(job)
    return [*texts(container, "command"), *texts(container, "args")]


def _first_container(value: object) -> Mapping[str, object]:
    if isinstance(value, dict):
        containers = mappings(value, "containers")
        named = [one for one in containers if one.get("name") == "pytorch"]
        if containers:
            return (named or containers)[0]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            if found := _first_container(inner):
                return found
    return {}


def _split(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """torchrun's own flags, which are written --name=value, and what it starts."""
    flags: dict[str, str] = {}
    for number, word in enumerate(argv):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not equals:
            return flags, list(argv[number:])
        flags[name] = value
    return flags, []


def _by_operator(intent: JobSpec, target: Target) -> dict[str, str]:
    """Flags that a pod has in variables that its operator sets."""
    torch = require_torch(intent)
    sizes = {"nnodes": str(intent.pods.wanted), "nproc_per_node": str(torch.procs)}
    if target is Target.TRAINJOB:
        at = {"node_rank": "$PET_NODE_RANK", "master_addr": "$PET_MASTER_ADDR"}
        return {**sizes, **at, "master_port": "$PET_MASTER_PORT"}
    if target is Target.PYTORCHJOB and torch.rendezvous is Rendezvous.C10D:
        pods = intent.pods
        nodes = f"{pods.least}:{pods.most}"
        flags = intent.rendezvous
        restarts = intent.limits.retries if flags.max_restarts is None else flags.max_restarts
        endpoint = flags.rdzv_endpoint or "$PET_RDZV_ENDPOINT"
        at = {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "rdzv_id": rendezvous_id(intent)}
        return {**sizes, "nnodes": nodes, **at, "max_restarts": str(restarts)}
    return {}


def _node_0(intent: JobSpec, target: Target) -> dict[str, str]:
    """Variables of the first pod that its operator, or the controller of Jobs, sets."""
    name = intent.name
    match target:
        case Target.PYTORCHJOB:
            host = f"{name}-master-0"
            at = {"RANK": "0", "MASTER_ADDR": host, "MASTER_PORT": str(_OPERATOR_PORT)}
            return {**at, "PET_RDZV_ENDPOINT": f"{name}-worker-0:{_OPERATOR_PORT}"}
        case Target.TRAINJOB:
            host = f"{name}-node-0-0.{name}"
            port = str(PORT)
            return {"PET_NODE_RANK": "0", "PET_MASTER_ADDR": host, "PET_MASTER_PORT": port}
        case Target.JOB:
            return {"JOB_COMPLETION_INDEX": "0", "MASTER_PORT": str(PORT)}
        case _:
            return {}


def _filled(value: str, values: Mapping[str, str]) -> str:
    """As the kubelet expands $(NAME); $NAME is our own notation for a variable that torchrun reads."""
    for name, known in values.items():
        value = value.replace(f"$({name})", known)
        value = known if value == f"${name}" else value
    return value

"""Readers of the options that are texts of several parts, such as CLAIM:PATH[:ro].

Each gives what it understood, and a problem for what it did not.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from paceline.config.train_config import TrainConfig
from paceline.config.values import read_option
from paceline.core.errors import Problem
from paceline.k8s.objects import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    IMAGE,
    LABEL_KEY,
    LABEL_VALUE,
    MAX_LABEL_LENGTH,
    NAME,
    VARIABLE,
    read_quantity,
)
from paceline.k8s.spec.job import (
    CACHE,
    CONFIG,
    METRICS,
    PORT,
    RESULTS,
    SHM,
    Claim,
    JobOptions,
    MetricsSpec,
    Profile,
    SecretVariable,
    Volume,
)

Item = TypeVar("Item")
Parsed = tuple[tuple[Item, ...], list[Problem]]
_PATH = re.compile(r"/[A-Za-z0-9._/-]*[A-Za-z0-9._-]")
_TAKEN = re.compile(r"PET_.*|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|JOB_NAME")
_OURS = (SHM, CONFIG, CACHE, RESULTS, METRICS)


def read_volumes(texts: Sequence[str], flag: str) -> Parsed[Volume]:
    """CLAIM:PATH[:ro]"""
    volumes: list[Volume] = []
    problems: list[Problem] = []
    for text in texts:
        claim, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if DNS_LABEL.fullmatch(claim) and len(claim) <= 63 and _PATH.fullmatch(path) and mode in ("", "ro"):
            volumes.append(Volume(claim=claim, path=path, is_read_only=mode == "ro"))
        else:
            message = f"{flag.removeprefix('--')} is {text!r}, but it must be CLAIM:PATH, or CLAIM:PATH:ro"
            problems.append(Problem(message, f"write {flag} data:/data:ro, for example", flag))
    return tuple(volumes), problems


def find_mount_conflicts(volumes: Sequence[Volume]) -> list[Problem]:
    """Two volumes at one place, one claim twice, or one where something else is."""
    problems: list[Problem] = []
    paths = [volume.path.rstrip("/") for volume in volumes]
    for path in sorted({path for path in paths if paths.count(path) > 1 or path in _OURS}):
        message = f"{path} is already a mount path"
        problems.append(Problem(message, "choose another path, such as /data", "--volume"))
    claims = [volume.claim for volume in volumes]
    for claim in sorted({claim for claim in claims if claims.count(claim) > 1}):
        problems.append(Problem(f"claim {claim} is mounted twice", "mount it once", "--volume"))
    for claim in sorted({"shm", "config", "cache", "results", "metrics"}.intersection(claims)):
        message = f"claim {claim} has the name of a built-in volume"
        problems.append(Problem(message, "give the claim another name", "--volume"))
    return problems


def read_claims(texts: Sequence[str], volumes: Sequence[Volume], nodes: int) -> Parsed[Claim]:
    """CLAIM=SIZE[/STORAGECLASS]; several nodes need a volume that can be shared."""
    claims: list[Claim] = []
    problems: list[Problem] = []
    mounted = {volume.claim for volume in volumes}
    for text in texts:
        name, _, rest = text.partition("=")
        size, _, storage = rest.partition("/")
        amount = read_quantity(size)
        if amount is None or amount < 1 or (storage and not DNS_SUBDOMAIN.fullmatch(storage)):
            message = f"create_volume is {text!r}, but it must be CLAIM=SIZE, or CLAIM=SIZE/STORAGECLASS"
            problems.append(
                Problem(message, "write --create-volume data=10Gi, for example", "--create-volume")
            )
        elif name not in mounted:
            message = f"create_volume names {name!r}, which no pod mounts"
            hint = "mount it with --volume or --checkpoint-volume, or leave it out"
            problems.append(Problem(message, hint, "--create-volume"))
        else:
            # Also for read-only use: it must be filled first, few drivers take two modes, or ReadOnlyMany.
            mode = "ReadWriteMany" if nodes > 1 else "ReadWriteOnce"
            claims.append(Claim(name=name, size=size, storage_class=storage or None, modes=(mode,)))
    return tuple(claims), problems


def read_variables(texts: Sequence[str]) -> Parsed[tuple[str, str]]:
    """NAME=VALUE. Secrets in values are searched for in the finished manifest."""
    variables: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            # The input may contain a secret, so only the name is shown.
            message = f"env for {name[:40]!r} is not NAME=VALUE"
            problems.append(Problem(message, "write --env OMP_NUM_THREADS=4, for example", "--env"))
        elif taken := find_reserved([name], "--env"):
            problems += taken
        else:
            variables.append((name, value))
    return tuple(variables), problems


def find_reserved(names: Iterable[str], flag: str) -> list[Problem]:
    hint = "leave it out: it is set for every pod"
    key = flag.removeprefix("--").replace("-", "_")
    return [
        Problem(f"{key} sets {name}, which the job sets itself", hint, flag)
        for name in names
        if _TAKEN.fullmatch(name)
    ]


def read_labels(texts: Sequence[str], flag: str) -> Parsed[tuple[str, str]]:
    """KEY=VALUE of nodes."""
    labels: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if equals and LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value) and len(value) <= 63:
            labels.append((key, value))
        else:
            message = f"{flag.removeprefix('--').replace('-', '_')} is {text!r}, but it must be KEY=VALUE"
            problems.append(Problem(message, f"write {flag} disktype=ssd, for example", flag))
    return tuple(labels), problems


def secret_of(text: str) -> str:
    """SECRET[/KEY] as VARIABLE=SECRET/KEY, which is read, and complained about, in one place."""
    secret, _, key = text.partition("/")
    return f"HF_TOKEN={secret}/{key or 'token'}"


_RANGE = re.compile(r"([0-9]{1,5}):([0-9]{1,5})")


def read_range(
    flag: str, text: str, count: int, need: str, by: str
) -> tuple[tuple[int, int] | None, list[Problem]]:
    """Parse MIN:MAX, which must include the requested number."""
    match = _RANGE.fullmatch(text)
    minimum, most = (int(match[1]), int(match[2])) if match else (1, 0)
    if minimum > most or most == 0:
        message = f"{flag} is {text!r}, but it must be MIN:MAX"
        return None, [Problem(message, f"write --{flag} 1:3, for example", f"--{flag}")]
    if not minimum <= count <= most:
        message = f"{flag} is {text}, but {need.format(count)}"
        hint = f"write --{flag} {min(minimum, count)}:{max(most, count)}, or change {by}"
        return None, [Problem(message, hint, f"--{flag}")]
    return (minimum, most), []


def read_secrets(texts: Sequence[str]) -> tuple[tuple[SecretVariable, ...], list[Problem]]:
    secrets: list[SecretVariable] = []
    problems: list[Problem] = []
    for text in texts:
        name, _, reference = text.partition("=")
        secret, _, key = reference.partition("/")
        if (
            VARIABLE.fullmatch(name)
            and DNS_SUBDOMAIN.fullmatch(secret)
            and re.fullmatch(r"[-._A-Za-z0-9]+", key)
        ):
            secrets.append(SecretVariable(name=name, secret=secret, key=key))
            continue
        # The input may be the secret itself, so only the variable's name is shown.
        message = f"secret_env for {name[:40]!r} is not VARIABLE=SECRET/KEY"
        hint = "name a Secret of the cluster and a key in it, such as HF_TOKEN=hf-token/token, not the value"
        problems.append(Problem(message, hint, "--secret-env"))
    return tuple(secrets), problems


_LEAST_PORT = 1024  # the lowest for a process without privileges
_PORTS_IN_USE = (PORT, 6379, 8080, 8265, 10001)  # of torchrun, HyperPod's agent and Ray


def read_metrics(config: TrainConfig, options: JobOptions) -> tuple[MetricsSpec | None, list[Problem]]:
    """Of --metrics-port, --metrics-secret SECRET[/KEY] and --pod-monitor."""
    port = config.metrics_port
    if port is None and options.pod_monitor:
        message = "pod_monitor is set, but the job serves no metrics"
        return None, [Problem(message, "add --metrics-port 9464", "--pod-monitor")]
    if port is None:
        return None, []
    problems: list[Problem] = []
    if port < _LEAST_PORT or port in _PORTS_IN_USE:
        message = f"metrics_port is {port}, which a pod of the job cannot listen on"
        problems.append(Problem(message, "write --metrics-port 9464", config.origin("metrics_port")))
    if config.metrics_token_file is not None:
        message = f"metrics_token_file is {config.metrics_token_file}, a file that pods do not have"
        hint = "leave it out: --metrics-secret names the Secret with the token"
        problems.append(Problem(message, hint, config.origin("metrics_token_file")))
    secret, _, key = options.metrics_secret.partition("/")
    key = key or "token"
    if not DNS_SUBDOMAIN.fullmatch(secret) or not re.fullmatch(r"[-._A-Za-z0-9]+", key):
        # The input may be the token itself, so it is not shown.
        hint = "name a Secret of the cluster and a key in it, such as paceline-metrics/token"
        problems.append(Problem("metrics_secret is not SECRET or SECRET/KEY", hint, "--metrics-secret"))
    return MetricsSpec(port=port, secret=secret, key=key, has_monitor=options.pod_monitor), problems


def check_names(run: str, options: JobOptions, max_length: int) -> list[Problem]:
    """Problems of invalid names of objects, namespaces, Secrets and images."""
    problems: list[Problem] = []
    if not NAME.fullmatch(run) or len(run) > max_length:
        message = (
            f"name is {run!r}, but Kubernetes requires a lower-case letter, then letters, digits and dashes"
        )
        message += f", {max_length} at most"
        problems.append(Problem(message, "write --name demo, for example", "--name"))
    space = options.namespace
    if space is not None and (not DNS_LABEL.fullmatch(space) or len(space) > MAX_LABEL_LENGTH):
        message = f"namespace is {space!r}, which is not a valid namespace name"
        problems.append(Problem(message, "write --namespace ml-training, for example", "--namespace"))
    if options.pull_secret is not None and not DNS_SUBDOMAIN.fullmatch(options.pull_secret):
        message = f"pull_secret is {options.pull_secret!r}, which is not a valid Secret name"
        problems.append(Problem(message, "name a Secret of type dockerconfigjson", "--pull-secret"))
    return [*problems, *_image(options)]


def _image(options: JobOptions) -> list[Problem]:
    match = IMAGE.fullmatch(options.image)
    if match is None:
        message = f"image is {options.image!r}, which is not a valid image name"
        hint = "write registry/name:tag"
    elif match["digest"] is None and match["tag"] in (None, "latest") and options.profile == Profile.STRICT:
        message = f"image is {options.image}, whose content may change between attempts"
        hint = "use a fixed tag, such as :1, or a digest; or use --profile compat"
    else:
        return []
    return [Problem(message, hint, "--image")]


def find_inexpressible_settings(config: TrainConfig) -> list[Problem]:
    """Settings that a command line in a pod cannot express."""
    problems: list[Problem] = []
    if any(rule.steps is not None for rule in config.straggler or ()):
        message = "a straggler trace is a local file, which pods do not have"
        hint = "use rules, such as worker=1,factor=3"
        problems.append(Problem(message, hint, config.origin("straggler")))
    for name, value in (config.task_options or {}).items():
        if isinstance(value, str) and read_option(value) != value:
            message = f"task option {name} is the text {value!r}, which a command line would read as a number"
            where = config.origin(f"task_options.{name}")
            problems.append(Problem(message, "let the task accept a number, or use another value", where))
    return problems

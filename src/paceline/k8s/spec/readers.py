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
    RESULTS,
    SHM,
    Claim,
    JobOptions,
    Profile,
    SecretVariable,
    Volume,
)

Item = TypeVar("Item")
Parsed = tuple[tuple[Item, ...], list[Problem]]
_PATH = re.compile(r"/[A-Za-z0-9._/-]*[A-Za-z0-9._-]")
_TAKEN = re.compile(r"PET_.*|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|JOB_NAME")
_OURS = (SHM, CONFIG, CACHE, RESULTS)


def read_volumes(texts: Sequence[str], flag: str) -> Parsed[Volume]:
    """CLAIM:PATH[:ro]"""
    found: list[Volume] = []
    problems: list[Problem] = []
    for text in texts:
        claim, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if DNS_LABEL.fullmatch(claim) and len(claim) <= 63 and _PATH.fullmatch(path) and mode in ("", "ro"):
            found.append(Volume(claim=claim, path=path, is_read_only=mode == "ro"))
        else:
            what = f"{flag.removeprefix('--')} is {text!r}, but it must be CLAIM:PATH, or CLAIM:PATH:ro"
            problems.append(Problem(what, f"write {flag} data:/data:ro, for example", flag))
    return tuple(found), problems


def find_mount_conflicts(volumes: Sequence[Volume]) -> list[Problem]:
    """Two volumes at one place, one claim twice, or one where something else is."""
    problems: list[Problem] = []
    paths = [volume.path.rstrip("/") for volume in volumes]
    for path in sorted({path for path in paths if paths.count(path) > 1 or path in _OURS}):
        what = f"{path} is where something else is mounted already"
        problems.append(Problem(what, "choose another path, such as /data", "--volume"))
    claims = [volume.claim for volume in volumes]
    for claim in sorted({claim for claim in claims if claims.count(claim) > 1}):
        problems.append(Problem(f"claim {claim} is mounted twice", "mount it once", "--volume"))
    for claim in sorted({"shm", "config", "cache", "results"}.intersection(claims)):
        what = f"claim {claim} has the name of a volume that every pod has"
        problems.append(Problem(what, "give the claim another name", "--volume"))
    return problems


def read_claims(texts: Sequence[str], volumes: Sequence[Volume], nodes: int) -> Parsed[Claim]:
    """CLAIM=SIZE[/STORAGECLASS]; the number of nodes says who must be able to reach it."""
    found: list[Claim] = []
    problems: list[Problem] = []
    mounted = {volume.claim for volume in volumes}
    for text in texts:
        name, _, rest = text.partition("=")
        size, _, storage = rest.partition("/")
        amount = read_quantity(size)
        if amount is None or amount < 1 or (storage and not DNS_SUBDOMAIN.fullmatch(storage)):
            what = f"create_volume is {text!r}, but it must be CLAIM=SIZE, or CLAIM=SIZE/STORAGECLASS"
            problems.append(Problem(what, "write --create-volume data=10Gi, for example", "--create-volume"))
        elif name not in mounted:
            what = f"create_volume names {name!r}, which no pod mounts"
            hint = "mount it by --volume or --checkpoint-volume, or leave it out"
            problems.append(Problem(what, hint, "--create-volume"))
        else:
            # Also for reading only: it must be filled first, and few drivers take two modes, or ReadOnlyMany.
            mode = "ReadWriteMany" if nodes > 1 else "ReadWriteOnce"
            found.append(Claim(name=name, size=size, storage_class=storage or None, modes=(mode,)))
    return tuple(found), problems


def read_variables(texts: Sequence[str]) -> Parsed[tuple[str, str]]:
    """NAME=VALUE. Whether a value is a secret is asked of the finished manifest."""
    found: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            # What was typed may be a secret, so only the name is shown.
            what = f"env for {name[:40]!r} is not NAME=VALUE"
            problems.append(Problem(what, "write --env OMP_NUM_THREADS=4, for example", "--env"))
        elif taken := find_reserved([name], "--env"):
            problems += taken
        else:
            found.append((name, value))
    return tuple(found), problems


def find_reserved(names: Iterable[str], flag: str) -> list[Problem]:
    hint, said = "leave it out: it is set for every pod", flag.removeprefix("--").replace("-", "_")
    return [
        Problem(f"{said} sets {name}, which says who is who in a job", hint, flag)
        for name in names
        if _TAKEN.fullmatch(name)
    ]


def read_labels(texts: Sequence[str], flag: str) -> Parsed[tuple[str, str]]:
    """KEY=VALUE of nodes."""
    found: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if equals and LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value) and len(value) <= 63:
            found.append((key, value))
        else:
            what = f"{flag.removeprefix('--').replace('-', '_')} is {text!r}, but it must be KEY=VALUE"
            problems.append(Problem(what, f"write {flag} disktype=ssd, for example", flag))
    return tuple(found), problems


def secret_of(text: str) -> str:
    """SECRET[/KEY] as VARIABLE=SECRET/KEY, which is read, and complained about, in one place."""
    secret, _, key = text.partition("/")
    return f"HF_TOKEN={secret}/{key or 'token'}"


_RANGE = re.compile(r"([0-9]{1,5}):([0-9]{1,5})")


def read_range(
    flag: str, text: str, wanted: int, need: str, by: str
) -> tuple[tuple[int, int] | None, list[Problem]]:
    """MIN:MAX around what is wanted."""
    match = _RANGE.fullmatch(text)
    least, most = (int(match[1]), int(match[2])) if match else (1, 0)
    if least > most or most == 0:
        what = f"{flag} is {text!r}, but it must be MIN:MAX"
        return None, [Problem(what, f"write --{flag} 1:3, for example", f"--{flag}")]
    if not least <= wanted <= most:
        what = f"{flag} is {text}, but {need.format(wanted)}"
        hint = f"write --{flag} {min(least, wanted)}:{max(most, wanted)}, or change {by}"
        return None, [Problem(what, hint, f"--{flag}")]
    return (least, most), []


def read_secrets(texts: Sequence[str]) -> tuple[tuple[SecretVariable, ...], list[Problem]]:
    found: list[SecretVariable] = []
    problems: list[Problem] = []
    for text in texts:
        name, _, reference = text.partition("=")
        secret, _, key = reference.partition("/")
        if (
            VARIABLE.fullmatch(name)
            and DNS_SUBDOMAIN.fullmatch(secret)
            and re.fullmatch(r"[-._A-Za-z0-9]+", key)
        ):
            found.append(SecretVariable(name=name, secret=secret, key=key))
            continue
        # What was typed may be the secret itself, so only the variable's name is shown.
        what = f"secret_env for {name[:40]!r} is not VARIABLE=SECRET/KEY"
        hint = (
            "name a Secret of the cluster and a key in it, such as HF_TOKEN=hf-token/token; never the value"
        )
        problems.append(Problem(what, hint, "--secret-env"))
    return tuple(found), problems


def check_names(run: str, wishes: JobOptions, longest: int) -> list[Problem]:
    """What no object, namespace, Secret or image can be called."""
    problems: list[Problem] = []
    if not NAME.fullmatch(run) or len(run) > longest:
        what = f"name is {run!r}, but Kubernetes wants a small letter, then letters, digits and dashes"
        what += f", {longest} at most"
        problems.append(Problem(what, "write --name demo, for example", "--name"))
    space = wishes.namespace
    if space is not None and (not DNS_LABEL.fullmatch(space) or len(space) > MAX_LABEL_LENGTH):
        what = f"namespace is {space!r}, which no namespace can be called"
        problems.append(Problem(what, "write --namespace ml-training, for example", "--namespace"))
    if wishes.pull_secret is not None and not DNS_SUBDOMAIN.fullmatch(wishes.pull_secret):
        what = f"pull_secret is {wishes.pull_secret!r}, which no Secret can be called"
        problems.append(Problem(what, "name a Secret of type dockerconfigjson", "--pull-secret"))
    return [*problems, *_image(wishes)]


def _image(wishes: JobOptions) -> list[Problem]:
    match = IMAGE.fullmatch(wishes.image)
    if match is None:
        what, hint = f"image is {wishes.image!r}, which no image can be called", "write registry/name:tag"
    elif match["digest"] is None and match["tag"] in (None, "latest") and wishes.profile == Profile.STRICT:
        what = f"image is {wishes.image}, which may be another one at the next attempt"
        hint = "name a tag that stays, such as :1, or a digest; or use --profile compat"
    else:
        return []
    return [Problem(what, hint, "--image")]


def find_inexpressible_settings(config: TrainConfig) -> list[Problem]:
    """What a command line in a pod cannot say."""
    problems: list[Problem] = []
    if any(rule.steps is not None for rule in config.straggler or ()):
        what, hint = "a trace of stragglers is a file of this machine", "use rules, such as worker=1,factor=3"
        problems.append(Problem(what, hint, config.origin("straggler")))
    for name, value in (config.task_options or {}).items():
        if isinstance(value, str) and read_option(value) != value:
            what = f"task option {name} is the text {value!r}, which a command line would read as a number"
            where = config.origin(f"task_options.{name}")
            problems.append(Problem(what, "let the task read it as a number, or another word", where))
    return problems

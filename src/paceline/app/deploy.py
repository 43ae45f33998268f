"""How do our own services come to a cluster? Rendered, checked by our own rules, tried by the server, made.

What is there and agrees is not written again; what differs is changed, after the server has tried all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import ConfigError, NotReadyError, Problem
from paceline.kube.deploy import coordinator
from paceline.kube.deploy.agree import agrees, difference
from paceline.kube.deploy.coordinator import Coordinator
from paceline.kube.fixes.action import called
from paceline.kube.intent import Profile
from paceline.kube.parts import Object
from paceline.kube.reading import mapping
from paceline.kube.render import to_yaml
from paceline.kube.validate import findings
from paceline.kube.words import DNS_LABEL, IMAGE, LONGEST_LABEL, NAME, read_quantity

if TYPE_CHECKING:
    from paceline.cluster.kubernetes_door import KubernetesApi

_LONGEST = 40  # pods, claims and labels add to it


@dataclass(frozen=True, slots=True)
class Applied:
    object: str
    state: str  # there, created, changed; with a dry run would create, would change


def files_of(asked: Coordinator) -> dict[str, str]:
    """The folder for kustomize, by file. Raises ConfigError."""
    _check(asked)
    objects = coordinator.render(asked)
    wrong = [finding for one in objects.values() for finding in findings(one, Profile.STRICT)]
    if wrong:
        raise ConfigError([Problem(one.what, one.hint, ".".join(map(str, one.path))) for one in wrong])
    texts = {name: to_yaml([one]) for name, one in objects.items()}
    return {"kustomization.yaml": to_yaml([coordinator.kustomization(asked)]), **texts}


def write_files(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "name a folder where this user may write"
        raise NotReadyError(f"cannot write to {folder}: {error.strerror}", hint) from error


def apply_coordinator(api: "KubernetesApi", asked: Coordinator, *, dry_run: bool) -> list[Applied]:
    """Raises ApiError, ConfigError, NotReadyError; before the first write, if it can be known then."""
    files_of(asked)
    _needs_keys(api, asked)
    objects = list(coordinator.render(asked).values())
    states = [_write(api, one, dry_run=True) for one in objects]
    if not dry_run:
        states = [
            state if state == "there" else _write(api, one, dry_run=False)
            for one, state in zip(objects, states, strict=True)
        ]
    would = "would be " if dry_run else ""
    return [
        Applied(called(one), state if state == "there" else f"{would}{state}")
        for one, state in zip(objects, states, strict=True)
    ]


def _write(api: "KubernetesApi", wanted: Object, *, dry_run: bool) -> str:
    from paceline.cluster.fixing import found
    from paceline.cluster.kinds import kind_of

    there = found(api, wanted)
    if there is None:
        api.create(wanted, dry_run=dry_run)
        return "created"
    if agrees(wanted, there):
        return "there"
    _same_nodes(wanted, there)
    change = difference(wanted, there)
    about = mapping(wanted, "metadata")
    api.patch(kind_of(dict(wanted)), str(about["name"]), str(about["namespace"]), change, dry_run=dry_run)
    return "changed"


def _same_nodes(wanted: Object, there: Object) -> None:
    """Who takes part is decided by the nodes: a new one without --join would begin a log of its own."""
    now, then = mapping(wanted, "spec").get("replicas"), mapping(there, "spec").get("replicas")
    if now != then:
        hint = f"say --replicas {then}; `paceline coordinator add` and `remove` change who takes part"
        raise ConfigError([Problem(f"there are {then} nodes, and {now} are asked for", hint, "--replicas")])


def _needs_keys(api: "KubernetesApi", asked: Coordinator) -> None:
    from paceline.cluster.kinds import NAMESPACE, SECRET
    from paceline.cluster.port import ForbiddenError, NotThereError

    hint = "make it: " + " && ".join(coordinator.secret_commands(asked))
    try:
        api.get(NAMESPACE, asked.namespace)
    except NotThereError as error:
        fix = f"paceline cluster fix -n {asked.namespace} --only namespace"
        raise NotReadyError(f"there is no namespace {asked.namespace}", f"make it: {fix}") from error
    except ForbiddenError:
        pass  # whoever may not look at namespaces may still write into one
    try:
        held = mapping(api.get(SECRET, asked.tls_secret, asked.namespace), "data")
    except NotThereError as error:
        raise NotReadyError(f"there is no Secret {asked.tls_secret} with certificates", hint) from error
    except ForbiddenError:
        return  # nor has everybody to be able to read keys
    missing = [name for name in coordinator.secret_keys(asked) if name not in held]
    if missing:
        raise NotReadyError(f"Secret {asked.tls_secret} lacks {', '.join(missing)}", hint)


def _check(asked: Coordinator) -> None:
    problems: list[Problem] = []
    for flag, text, shape, most in (
        ("--name", asked.name, NAME, _LONGEST),
        ("--namespace", asked.namespace, DNS_LABEL, LONGEST_LABEL),
    ):
        if not shape.fullmatch(text) or len(text) > most:
            hint = f"begin with a letter; use small letters, digits and -, {most} at most"
            problems.append(Problem(f"{text!r} cannot be a name here", hint, flag))
    if not IMAGE.fullmatch(asked.image):
        problems.append(Problem(f"{asked.image!r} is no image", "write NAME:TAG", "--image"))
    if asked.replicas % 2 == 0:
        what = f"{asked.replicas} nodes survive no more losses than {asked.replicas - 1}"
        problems.append(Problem(what, "take 3, or 5", "--replicas"))
    problems += _amounts(asked, ("storage", "cpu", "memory"))
    if problems:
        raise ConfigError(problems)


def _amounts(asked: Coordinator, names: Sequence[str]) -> list[Problem]:
    return [
        Problem(f"{getattr(asked, name)!r} is no amount", "write 1Gi or 500m, for example", f"--{name}")
        for name in names
        if not read_quantity(getattr(asked, name))
    ]

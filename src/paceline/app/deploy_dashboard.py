"""How does a dashboard come to a cluster? As the coordinator does: checked, tried by the server, made."""

from typing import TYPE_CHECKING

from paceline.app.deploy import (
    Applied,
    amounts_of,
    apply_objects,
    needs_namespace,
    needs_secret,
    problems_of,
    texts_of,
    unnamed,
)
from paceline.errors import ManifestError, NotReadyError, Problem
from paceline.kube.deploy import dashboard
from paceline.kube.deploy.dashboard import Dashboard
from paceline.kube.words import DNS_LABEL, DNS_SUBDOMAIN

if TYPE_CHECKING:
    from paceline.cluster.kubernetes_door import KubernetesApi


def files_of(asked: Dashboard) -> dict[str, str]:
    """The folder for kustomize, by file. Raises ConfigError."""
    problems = problems_of(asked.name, asked.namespace, asked.image) + amounts_of(asked, ("cpu", "memory"))
    if asked.path.startswith("/") or ".." in asked.path.split("/"):
        what = f"{asked.path!r} is no folder on the claim"
        problems.append(Problem(what, "write it without / before it, and without ..", "--path"))
    said = {"claim": asked.claim, "token-secret": asked.token_secret, "pull-secret": asked.pull_secret}
    problems += unnamed(said)
    for flag, shape, names in (
        ("--host-name", DNS_SUBDOMAIN, asked.hosts),
        ("--from-namespace", DNS_LABEL, asked.from_namespaces),
    ):
        wrong = [name for name in names if not shape.fullmatch(name)]
        problems += [Problem(f"{name!r} cannot be a name here", "use a-z, 0-9 and -", flag) for name in wrong]
    if problems:
        raise ManifestError(problems)
    return texts_of(dashboard.kustomization(asked), dashboard.render(asked))


def apply_dashboard(api: "KubernetesApi", asked: Dashboard, *, dry_run: bool) -> list[Applied]:
    """Raises ApiError, ConfigError, NotReadyError; before the first write, if it can be known then."""
    files_of(asked)
    needs_namespace(api, asked.namespace)
    hint = "make it: " + " && ".join(dashboard.secret_commands(asked))
    needs_secret(api, asked.namespace, asked.token_secret, [dashboard.KEY], hint, "the token")
    _needs_claim(api, asked)
    return apply_objects(api, list(dashboard.render(asked).values()), dry_run=dry_run)


def _needs_claim(api: "KubernetesApi", asked: Dashboard) -> None:
    from paceline.cluster.kinds import CLAIM
    from paceline.cluster.port import ForbiddenError, NotThereError

    try:
        api.get(CLAIM, asked.claim, asked.namespace)
    except NotThereError as error:
        hint = f"name the one that jobs write to, or make one: paceline cluster fix -n {asked.namespace}"
        hint += f" --claim {asked.claim}=10Gi:rwx"
        raise NotReadyError(f"there is no claim {asked.claim} with runs", hint) from error
    except ForbiddenError:
        return  # the server will say

"""Where are a job's results, and how do they come here? Its claim is found, and its folder fetched."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline.app.cluster_reach import Place, reached
from paceline.app.upload import read_folder, see_amount
from paceline.clock import SystemClock
from paceline.cluster.fetch import Fetched, fetch, listed
from paceline.cluster.helper_pod import again, helper_on
from paceline.cluster.kinds import (
    HYPERPOD_JOB,
    JOB,
    PYTORCH_JOB,
    RAY_CLUSTER,
    RAY_JOB,
    TRAIN_JOB,
    TRAINING_RUNTIME,
)
from paceline.cluster.port import Api, ForbiddenError, NotThereError
from paceline.errors import ConfigError, NotReadyError, PacelineError, Problem
from paceline.kube.checks.finding import counted
from paceline.kube.transfer.helper import VOLUME, Wanted
from paceline.kube.transfer.results import written_claims

OnBytes = Callable[[int, int | None], None]
Say = Callable[[str], None]
_KINDS = (PYTORCH_JOB, TRAIN_JOB, TRAINING_RUNTIME, JOB, HYPERPOD_JOB, RAY_JOB, RAY_CLUSTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    name: str  # of the job
    out: Path
    claim: str | None = None  # None: the job says
    path: str | None = None  # on the volume. None: the folder that is called like the job
    image: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    claim: str
    path: str
    fetched: Fetched


def fetch_results(asked: Asked, place: Place, say: Say, on_bytes: OnBytes) -> Results:
    """Raises ApiError, NotReadyError, ConfigError, PacelineError."""
    path = read_folder(asked.name if asked.path is None else asked.path, "--path")
    if asked.out.exists() and not asked.out.is_dir():
        raise ConfigError([Problem(f"{asked.out} is no folder", "name one, or a new one", "--out")])
    with reached(place) as cluster:
        api, namespace = cluster.api, cluster.namespace
        claim = asked.claim or claim_of(api, asked.name, namespace, say)
        wanted = Wanted(namespace=namespace, claim=claim, image=asked.image, reads_only=True)
        with helper_on(api, wanted, SystemClock(), say) as helper:
            folder, shown = f"{VOLUME}/{path}".rstrip("/"), path or "."
            files = listed(helper, folder, shown)
            total = sum(one.bytes for one in files)
            say(f"{counted(len(files), 'file')}, {total:,} bytes, from {shown} on claim {claim}")
            if not files:
                raise NotReadyError(f"folder {shown} on claim {claim} is empty", "has the job begun?")
            see_amount(total, "name a smaller folder by --path", force=asked.force)
            return Results(claim=claim, path=shown, fetched=fetch(helper, folder, shown, asked.out, on_bytes))


def claim_of(api: Api, name: str, namespace: str, say: Say) -> str:
    """Raises NotReadyError when no job of this name is there, PacelineError when it does not say."""
    found: list[str] = []
    kinds: list[str] = []
    for kind in _KINDS:
        try:
            job = again(partial(api.get, kind, name, namespace), SystemClock(), say)
        except (NotThereError, ForbiddenError):
            continue  # of another kind, then, or one that this cluster does not have
        kinds.append(kind.name)
        found += [claim for claim in written_claims(job) if claim not in found]
    if not kinds:
        what = f"there is no job {name} in namespace {namespace} (an ended one is removed after a while)"
        raise NotReadyError(what, "name the claim that it wrote to: --pvc")
    if not found:
        what = f"{kinds[0]} {name} writes to no claim, so its results went with its pods"
        raise PacelineError(what, "render it with --checkpoint-volume CLAIM:/output")
    if len(found) > 1:
        what = f"{kinds[0]} {name} may write to several claims: {', '.join(found)}"
        raise PacelineError(what, "name one of them: --pvc")
    return found[0]

"""Attempts that are decided and not yet made: a ConfigMap, which only one watcher may carry out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from paceline.k8s.client.api import (
    Api,
    ApiError,
    ConflictError,
    ForbiddenError,
    Manifest,
    NotThereError,
    UnreachableError,
)
from paceline.k8s.diagnose.snapshot import Object
from paceline.k8s.kinds import CONFIG_MAP, Kind, kind_of
from paceline.k8s.objects import mapping
from paceline.k8s.submit.attempts import SELECTOR, PendingAttempt, pending_name, read_pending
from paceline.k8s.submit.job_objects import recreate
from paceline.k8s.submit.job_state import WatchLease, lease_patch, read_lease


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    pending: PendingAttempt
    watch: WatchLease
    version: str

    @property
    def kind(self) -> Kind:
        return kind_of(dict(self.pending.manifest))


def find_pending(api: Api, job: str, namespace: str) -> StoredAttempt | None:
    """Who may not see ConfigMaps sees none."""
    try:
        return _found(api.get(CONFIG_MAP, pending_name(job), namespace))
    except (NotThereError, ForbiddenError):
        return None


def all_pending(api: Api, namespace: str | None) -> list[tuple[str, StoredAttempt]]:
    """With their namespaces; without one, of the whole cluster."""
    try:
        listed = api.find(CONFIG_MAP, namespace, labels=SELECTOR).items
    except (NotThereError, ForbiddenError):
        return []
    read = [(str(mapping(one, "metadata").get("namespace", "")), _found(one)) for one in listed]
    return [(where, found) for where, found in read if found is not None]


def _found(one: Object) -> StoredAttempt | None:
    pending = read_pending(one)
    version = str(mapping(one, "metadata").get("resourceVersion", ""))
    return None if pending is None else StoredAttempt(pending, read_lease(one), version)


def save_pending(api: Api, config_map: Manifest) -> bool:
    """One from an attempt before is replaced. False where it may not be written."""
    about = mapping(config_map, "metadata")
    try:
        try:
            api.create(config_map)
        except ConflictError:
            api.delete(CONFIG_MAP, str(about["name"]), str(about["namespace"]))
            api.create(config_map)
    except ForbiddenError:
        return False
    return True


def take_over(api: Api, found: StoredAttempt, namespace: str, mine: WatchLease, now_s: float) -> bool:
    """True when it is ours to make. Of several who ask, one gets it."""
    if found.watch.is_on(now_s) and found.watch.watcher != mine.watcher:
        return False
    name = pending_name(found.pending.job)
    try:
        api.patch(CONFIG_MAP, name, namespace, lease_patch(mine, found.version))
    except (ConflictError, NotThereError, ForbiddenError):
        return False
    return True


def renew_lease(api: Api, job: str, namespace: str, mine: WatchLease) -> None:
    """A server that does not answer, or an intent that somebody has removed, is seen elsewhere."""
    try:
        api.patch(CONFIG_MAP, pending_name(job), namespace, lease_patch(mine))
    except ApiError:
        return


def delete_pending(api: Api, job: str, namespace: str) -> None:
    """What may not be removed, or cannot be just now, is known by its number and tidied away later."""
    try:
        api.delete(CONFIG_MAP, pending_name(job), namespace)
    except (ForbiddenError, UnreachableError):
        return


def cancel_pending(api: Api, found: StoredAttempt | None, namespace: str) -> None:
    """The attempt is not wanted any more. Raises ApiError: a job that comes back was not stopped."""
    if found is not None:
        api.delete(CONFIG_MAP, pending_name(found.pending.job), namespace)


def make(
    api: Api,
    pending: PendingAttempt,
    namespace: str,
    *,
    is_written: bool,
    wait: Callable[[], None],
    free: Callable[[Manifest], None],
) -> bool:
    """Carries it out, for a job that is deleted. False when the decision was taken back meanwhile: `job stop`
    does that."""
    manifest = cast("Manifest", dict(pending.manifest))

    def is_wanted() -> bool:
        return not is_written or find_pending(api, pending.job, namespace) is not None

    made = recreate(
        *(api, kind_of(dict(manifest)), pending.job, namespace, manifest),
        pods=pending.pods,
        wait=wait,
        free=free,
        is_wanted=is_wanted,
    )
    delete_pending(api, pending.job, namespace)
    return made

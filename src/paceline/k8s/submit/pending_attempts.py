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
    """The stored attempt; None also without the right to read ConfigMaps."""
    try:
        return _read_stored(api.get(CONFIG_MAP, pending_name(job), namespace))
    except (NotThereError, ForbiddenError):
        return None


def all_pending(api: Api, namespace: str | None) -> list[tuple[str, StoredAttempt]]:
    """Stored attempts with their namespaces; without a namespace, of the whole cluster."""
    try:
        listed = api.find(CONFIG_MAP, namespace, labels=SELECTOR).items
    except (NotThereError, ForbiddenError):
        return []
    read = [
        (str(mapping(config_map, "metadata").get("namespace", "")), _read_stored(config_map))
        for config_map in listed
    ]
    return [(where, stored) for where, stored in read if stored is not None]


def _read_stored(config_map: Object) -> StoredAttempt | None:
    pending = read_pending(config_map)
    version = str(mapping(config_map, "metadata").get("resourceVersion", ""))
    return None if pending is None else StoredAttempt(pending, read_lease(config_map), version)


def save_pending(api: Api, config_map: Manifest) -> bool:
    """One from an attempt before is replaced. False where it may not be written."""
    metadata = mapping(config_map, "metadata")
    try:
        try:
            api.create(config_map)
        except ConflictError:
            api.delete(CONFIG_MAP, str(metadata["name"]), str(metadata["namespace"]))
            api.create(config_map)
    except ForbiddenError:
        return False
    return True


def take_over(api: Api, stored: StoredAttempt, namespace: str, lease: WatchLease, now_s: float) -> bool:
    """True if this watcher got the lease. Of several concurrent requests one succeeds."""
    if stored.watch.is_on(now_s) and stored.watch.watcher != lease.watcher:
        return False
    name = pending_name(stored.pending.job)
    try:
        api.patch(CONFIG_MAP, name, namespace, lease_patch(lease, stored.version))
    except (ConflictError, NotThereError, ForbiddenError):
        return False
    return True


def renew_lease(api: Api, job: str, namespace: str, lease: WatchLease) -> None:
    """An unreachable server or a removed ConfigMap is ignored here: the caller's next request reports it."""
    try:
        api.patch(CONFIG_MAP, pending_name(job), namespace, lease_patch(lease))
    except ApiError:
        return


def delete_pending(api: Api, job: str, namespace: str) -> None:
    """Delete the stored attempt. One that cannot be deleted now is recognized by its number later."""
    try:
        api.delete(CONFIG_MAP, pending_name(job), namespace)
    except (ForbiddenError, UnreachableError):
        return


def cancel_pending(api: Api, stored: StoredAttempt | None, namespace: str) -> None:
    """Cancel the attempt. Raises ApiError: a job that is created again was not stopped."""
    if stored is not None:
        api.delete(CONFIG_MAP, pending_name(stored.pending.job), namespace)


def make(
    api: Api,
    pending: PendingAttempt,
    namespace: str,
    *,
    is_written: bool,
    wait: Callable[[], None],
    free: Callable[[Manifest], None],
) -> bool:
    """Start the next attempt of a deleted job. False if it was cancelled meanwhile, by `job stop`."""
    manifest = cast("Manifest", dict(pending.manifest))

    def is_pending() -> bool:
        return not is_written or find_pending(api, pending.job, namespace) is not None

    created = recreate(
        *(api, kind_of(dict(manifest)), pending.job, namespace, manifest),
        pods=pending.pods,
        wait=wait,
        free=free,
        is_wanted=is_pending,
    )
    delete_pending(api, pending.job, namespace)
    return created

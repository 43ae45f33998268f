"""The helper pod of a transfer: created, awaited, retried after a lost connection, removed.

The pod is removed in every case (also on Ctrl-C). After a power loss it ends after its time limit, and the
next helper in the namespace removes it.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from paceline.core.clock import Clock
from paceline.core.errors import NotReadyError, PacelineError
from paceline.k8s.client.api import (
    Api,
    ApiError,
    ConflictError,
    ExecResult,
    ForbiddenError,
    Manifest,
    NotThereError,
    RefusedError,
    UnreachableError,
)
from paceline.k8s.kinds import CLAIM, EVENT, POD
from paceline.k8s.objects import mapping
from paceline.k8s.transfer.pod_manifest import (
    CONTAINER,
    IMAGE,
    SELECTOR,
    HelperRequest,
    has_ended,
    helper_pod,
    is_running,
    why_not_running,
)
from paceline.k8s.transfer.scripts import DAMAGED, PROBE, TOOLS, command

Answer = TypeVar("Answer")
Notify = Callable[[str], None]

MAX_TRIES = 8  # consecutive tries: with the pauses, more than a minute
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_START_S = 300.0
_LOOK_S = 1.0


class Helper:
    """A pod that runs, with the volume inside."""

    def __init__(self, api: Api, pod: str, request: HelperRequest, clock: Clock, notify: Notify) -> None:
        self._api = api
        self._request = request
        self._clock = clock
        self._notify = notify
        self.pod = pod

    def run(self, script: str, *argv: str, stdin: bytes = b"") -> ExecResult:
        """Run a script, with retries until it ended and got all its input; every script is idempotent."""
        arguments = (*argv, str(len(stdin))) if stdin else argv

        def once() -> ExecResult:
            result = self._api.run(
                self.pod, self._request.namespace, CONTAINER, command(script, *arguments), stdin=stdin
            )
            if result.code == DAMAGED:
                raise UnreachableError("the transfer to the pod was truncated", "run it again: it resumes")
            return result

        try:
            return retry_request(once, self._clock, self._notify)
        except (NotThereError, RefusedError) as error:
            message = f"pod {self.pod} no longer exists: {error.what}"
            raise NotReadyError(message, "run the same command again: it resumes") from error

    def must(self, doing: str, script: str, *argv: str, stdin: bytes = b"") -> bytes:
        """Output of the script. Raises PacelineError if it fails."""
        result = self.run(script, *argv, stdin=stdin)
        if result.code != 0:
            stderr = result.stderr.decode("utf-8", "replace").strip() or f"exit code {result.code}"
            hint = (
                f"check the volume of claim {self._request.claim}: free space, permissions (user 1000), names"
            )
            raise PacelineError(f"{doing} failed in pod {self.pod}: {stderr}", hint)
        return result.stdout


def retry_request(ask: Callable[[], Answer], clock: Clock, notify: Notify) -> Answer:
    """Retry until a response, with growing pauses. Raises the last UnreachableError."""
    pause_s = _FIRST_PAUSE_S
    for number in range(1, MAX_TRIES + 1):
        try:
            return ask()
        except UnreachableError as error:
            if number == MAX_TRIES:
                raise
            notify(f"{error.what}; retry in {pause_s:g} s ({number} of {MAX_TRIES})")
            clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError("the last try returns or raises")


@contextmanager
def open_helper(api: Api, request: HelperRequest, clock: Clock, notify: Notify) -> Iterator[Helper]:
    """Raises NotReadyError when there is no such claim, or the pod does not start."""
    _require_claim(api, request, clock, notify)
    _sweep(api, request, clock, notify)
    name = f"paceline-files-{secrets.token_hex(4)}"
    is_refused = False
    try:
        notify(f"pod {name} ({request.image}) transfers the files, and is removed afterwards")
        try:
            _create(api, helper_pod(name, request), clock, notify)
        except (ForbiddenError, RefusedError):
            is_refused = True
            raise
        _wait(api, name, request, clock, notify)
        helper = Helper(api, name, request, clock, notify)
        _require_tools(helper, request)
        yield helper
    finally:
        if not is_refused:  # then there is none to remove
            _remove(api, name, request, clock, notify)


def _require_claim(api: Api, request: HelperRequest, clock: Clock, notify: Notify) -> None:
    space = request.namespace
    try:
        claim = retry_request(lambda: api.get(CLAIM, request.claim, space), clock, notify)
    except NotThereError as error:
        try:
            claims = retry_request(lambda: api.find(CLAIM, space), clock, notify).items
        except ForbiddenError:
            claims = ()
        names = ", ".join(str(mapping(existing, "metadata").get("name")) for existing in claims) or "none"
        message = f"there is no claim {request.claim} in namespace {space}; claims there: {names}"
        hint = "name another --pvc or --namespace, or create it: `paceline job render … --create-volume`"
        raise NotReadyError(message, hint) from error
    if mapping(claim, "status").get("phase") == "Lost":
        message = f"claim {request.claim} has lost its volume"
        raise NotReadyError(message, f"kubectl describe pvc {request.claim} --namespace {space}")


def _sweep(api: Api, request: HelperRequest, clock: Clock, notify: Notify) -> None:
    """Removes helpers that ended without being removed."""
    try:
        old = retry_request(lambda: api.find(POD, request.namespace, labels=SELECTOR), clock, notify).items
        for pod in old:
            if has_ended(pod):
                api.delete(POD, str(mapping(pod, "metadata").get("name")), request.namespace)
    except ForbiddenError:
        return  # the right to list pods is not needed to create one


def _create(api: Api, pod: Manifest, clock: Clock, notify: Notify) -> None:
    tries = 0

    def once() -> None:
        nonlocal tries
        tries += 1
        try:
            api.create(pod)
        except ConflictError:
            if tries == 1:
                raise
            # An earlier request succeeded and its answer was lost: the name is unique.

    retry_request(once, clock, notify)


def _wait(api: Api, name: str, request: HelperRequest, clock: Clock, notify: Notify) -> None:
    """Wait until the pod runs; transient reasons do not fail it."""
    began_ns = clock.now_ns()
    reported = ""
    while True:
        pod = retry_request(lambda: api.get(POD, name, request.namespace), clock, notify)
        if is_running(pod):
            return
        stuck = why_not_running(pod, _events(api, name, request, clock, notify))
        waited_s = (clock.now_ns() - began_ns) / 1e9
        if stuck.is_final or waited_s > _START_S:
            message = f"pod {name} does not start: {stuck.why}"
            raise NotReadyError(message, _hint(stuck.why, request))
        if stuck.why != reported:
            reported = stuck.why
            notify(f"waiting for pod {name}: {reported}")
        clock.sleep(_LOOK_S)


def _events(api: Api, name: str, request: HelperRequest, clock: Clock, notify: Notify) -> list[Manifest]:
    try:
        selector = f"involvedObject.name={name}"
        return list(
            retry_request(lambda: api.find(EVENT, request.namespace, fields=selector), clock, notify).items
        )
    except ForbiddenError:
        return []  # then only the pod's status is used


def _hint(why: str, request: HelperRequest) -> str:
    if "image" in why.lower():
        return "use an image that the cluster can pull, with sh, tar and sha256sum: --image"
    if "Multi-Attach" in why or "volume node affinity" in why:
        return f"claim {request.claim} is held by another node: wait until its pods end, or use ReadWriteMany"
    return f"kubectl get pvc,events --namespace {request.namespace}"


def _require_tools(helper: Helper, request: HelperRequest) -> None:
    hint = f"use another --image, such as {IMAGE}"
    try:
        result = helper.run(PROBE, *TOOLS)
    except UnreachableError as error:
        if error.status < 500:
            raise
        raise NotReadyError(f"no command can be run in image {request.image}: {error.what}", hint) from error
    lacking = result.stdout.decode("utf-8", "replace").split()
    if result.code != 0 or lacking:
        reason = ", ".join(lacking) or result.stderr.decode("utf-8", "replace").strip() or "a shell (sh)"
        raise NotReadyError(f"image {request.image} lacks {reason}", hint)


def _remove(api: Api, name: str, request: HelperRequest, clock: Clock, notify: Notify) -> None:
    try:
        retry_request(lambda: api.delete(POD, name, request.namespace), clock, notify)
    except ApiError as error:
        # The transfer is complete: a failed removal must not hide its result.
        notify(f"pod {name} could not be removed; it ends on its own: {error.what}")
        notify(f"kubectl delete pod {name} --namespace {request.namespace}")

"""The helper pod that carries files: created, waited for, asked again after a lost connection, removed.

However the work ends (Ctrl-C too), the pod goes. Whoever loses power leaves one that ends by itself; the
next helper in the namespace takes away what has ended.
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

MAX_TRIES = 8  # in a row: with the pauses between them, a minute and more
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_START_S = 300.0
_LOOK_S = 1.0


class Helper:
    """A pod that runs, with the volume inside."""

    def __init__(self, api: Api, pod: str, wanted: HelperRequest, clock: Clock, say: Notify) -> None:
        self._api, self._wanted, self._clock, self._say = api, wanted, clock, say
        self.pod = pod

    def run(self, script: str, *words: str, stdin: bytes = b"") -> ExecResult:
        """Until it was run to its end and what it got was whole; every script may be run twice."""
        said = (*words, str(len(stdin))) if stdin else words

        def once() -> ExecResult:
            ran = self._api.run(
                self.pod, self._wanted.namespace, CONTAINER, command(script, *said), stdin=stdin
            )
            if ran.code == DAMAGED:
                raise UnreachableError("bytes were lost on the way to the pod", "run it again: it goes on")
            return ran

        try:
            return retry_request(once, self._clock, self._say)
        except (NotThereError, RefusedError) as error:
            what = f"pod {self.pod} is not there any more: {error.what}"
            raise NotReadyError(what, "run the same command again: it goes on where it was") from error

    def must(self, doing: str, script: str, *words: str, stdin: bytes = b"") -> bytes:
        """What it prints. Raises PacelineError when the script fails."""
        ran = self.run(script, *words, stdin=stdin)
        if ran.code != 0:
            told = ran.stderr.decode("utf-8", "replace").strip() or f"exit code {ran.code}"
            hint = f"look at the volume of claim {self._wanted.claim}: room, rights (user 1000), names"
            raise PacelineError(f"{doing} failed in pod {self.pod}: {told}", hint)
        return ran.stdout


def retry_request(ask: Callable[[], Answer], clock: Clock, say: Notify) -> Answer:
    """Ask until there is an answer, with pauses that grow. Raises the last UnreachableError."""
    pause_s = _FIRST_PAUSE_S
    for number in range(1, MAX_TRIES + 1):
        try:
            return ask()
        except UnreachableError as error:
            if number == MAX_TRIES:
                raise
            say(f"{error.what}; again in {pause_s:g} s ({number} of {MAX_TRIES})")
            clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError("the last try returns or raises")


@contextmanager
def open_helper(api: Api, wanted: HelperRequest, clock: Clock, say: Notify) -> Iterator[Helper]:
    """Raises NotReadyError when there is no such claim, or the pod does not start."""
    _see_claim(api, wanted, clock, say)
    _sweep(api, wanted, clock, say)
    name = f"paceline-files-{secrets.token_hex(4)}"
    is_refused = False
    try:
        say(f"pod {name} ({wanted.image}) carries the files, and is removed afterwards")
        try:
            _create(api, helper_pod(name, wanted), clock, say)
        except (ForbiddenError, RefusedError):
            is_refused = True
            raise
        _wait(api, name, wanted, clock, say)
        helper = Helper(api, name, wanted, clock, say)
        _see_tools(helper, wanted)
        yield helper
    finally:
        if not is_refused:  # then there is none to remove
            _remove(api, name, wanted, clock, say)


def _see_claim(api: Api, wanted: HelperRequest, clock: Clock, say: Notify) -> None:
    space = wanted.namespace
    try:
        claim = retry_request(lambda: api.get(CLAIM, wanted.claim, space), clock, say)
    except NotThereError as error:
        try:
            found = retry_request(lambda: api.find(CLAIM, space), clock, say).items
        except ForbiddenError:
            found = ()
        names = ", ".join(str(mapping(one, "metadata").get("name")) for one in found) or "none"
        what = f"there is no claim {wanted.claim} in namespace {space}; claims there: {names}"
        hint = "name another --pvc or --namespace, or have it made: `paceline job render … --create-volume`"
        raise NotReadyError(what, hint) from error
    if mapping(claim, "status").get("phase") == "Lost":
        what = f"claim {wanted.claim} has lost its volume"
        raise NotReadyError(what, f"kubectl describe pvc {wanted.claim} --namespace {space}")


def _sweep(api: Api, wanted: HelperRequest, clock: Clock, say: Notify) -> None:
    """Helpers that ended without anybody there to remove them."""
    try:
        old = retry_request(lambda: api.find(POD, wanted.namespace, labels=SELECTOR), clock, say).items
        for one in old:
            if has_ended(one):
                api.delete(POD, str(mapping(one, "metadata").get("name")), wanted.namespace)
    except ForbiddenError:
        return  # who may not list pods can still make one


def _create(api: Api, pod: Manifest, clock: Clock, say: Notify) -> None:
    tries = 0

    def once() -> None:
        nonlocal tries
        tries += 1
        try:
            api.create(pod)
        except ConflictError:
            if tries == 1:
                raise
            # An earlier try got through, and only its answer was lost: the name is ours alone.

    retry_request(once, clock, say)


def _wait(api: Api, name: str, wanted: HelperRequest, clock: Clock, say: Notify) -> None:
    """Until it runs; a reason that may go away is waited out."""
    began_ns, told = clock.now_ns(), ""
    while True:
        pod = retry_request(lambda: api.get(POD, name, wanted.namespace), clock, say)
        if is_running(pod):
            return
        stuck = why_not_running(pod, _events(api, name, wanted, clock, say))
        waited_s = (clock.now_ns() - began_ns) / 1e9
        if stuck.is_final or waited_s > _START_S:
            what = f"pod {name} does not start: {stuck.why}"
            raise NotReadyError(what, _hint(stuck.why, wanted))
        if stuck.why != told:
            told = stuck.why
            say(f"waiting for pod {name}: {told}")
        clock.sleep(_LOOK_S)


def _events(api: Api, name: str, wanted: HelperRequest, clock: Clock, say: Notify) -> list[Manifest]:
    try:
        asked = f"involvedObject.name={name}"
        return list(retry_request(lambda: api.find(EVENT, wanted.namespace, fields=asked), clock, say).items)
    except ForbiddenError:
        return []  # then only the pod itself tells


def _hint(why: str, wanted: HelperRequest) -> str:
    if "image" in why.lower():
        return "name an image that the cluster has, with sh, tar and sha256sum: --image"
    if "Multi-Attach" in why or "volume node affinity" in why:
        return f"claim {wanted.claim} is held by another node: wait until its pods end, or use ReadWriteMany"
    return f"kubectl get pvc,events --namespace {wanted.namespace}"


def _see_tools(helper: Helper, wanted: HelperRequest) -> None:
    hint = f"use another --image, such as {IMAGE}"
    try:
        ran = helper.run(PROBE, *TOOLS)
    except UnreachableError as error:
        if error.status < 500:
            raise
        raise NotReadyError(f"nothing can be run in image {wanted.image}: {error.what}", hint) from error
    lacking = ran.stdout.decode("utf-8", "replace").split()
    if ran.code != 0 or lacking:
        told = ", ".join(lacking) or ran.stderr.decode("utf-8", "replace").strip() or "a shell (sh)"
        raise NotReadyError(f"image {wanted.image} lacks {told}", hint)


def _remove(api: Api, name: str, wanted: HelperRequest, clock: Clock, say: Notify) -> None:
    try:
        retry_request(lambda: api.delete(POD, name, wanted.namespace), clock, say)
    except ApiError as error:
        # What was done is done: this must not hide how it ended.
        say(f"pod {name} could not be removed, and ends by itself: {error.what}")
        say(f"kubectl delete pod {name} --namespace {wanted.namespace}")

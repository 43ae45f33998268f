"""How does Paceline use Ray? Through this file: nobody else imports it, but for jobs (ray_jobs_door.py).

What goes through is text and bytes; what Ray raises becomes a PacelineError, or `ActorLost` with the
reason in plain words. Signals stay ours: Ray installs handlers of its own, which are put back.
"""

import importlib.metadata
import logging
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NewType

from paceline.core import environ
from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import ExitCode, MissingPackageError, NotReadyError, PacelineError, TrainingError
from paceline.launchers.local import Message
from paceline.launchers.ray.resources import Bundle, Node, capacity_table, fits, placement_of
from paceline.plan.plan import Plan

MIN_VERSION = (2, 60)
REACHABLE_TIMEOUT_S = 3.0
NODE_LOST = "its node was lost"
INSTALL = "pip install 'paceline[ray]'"
Handle = NewType("Handle", object)  # an actor
Pending = NewType("Pending", object)  # an answer that is on its way


class RayUnreachableError(PacelineError):
    """There is no Ray where the user said."""

    exit_code = ExitCode.UNREACHABLE
    code = "E601"


class RayStartError(NotReadyError):
    """A Ray that is started here did not come up."""

    code = "E210"


class ActorLost(Exception):  # noqa: N818  # a piece of news, caught by whoever asked
    def __init__(self, why: str, *, is_start: bool = False) -> None:
        super().__init__(why)
        self.why, self.is_start = why, is_start


def check_version(version_of: Callable[[str], str] = importlib.metadata.version) -> str:
    """NotReadyError unless a Ray that we know is installed. Nothing is imported."""
    try:
        found = version_of("ray")
    except importlib.metadata.PackageNotFoundError:
        raise MissingPackageError("launcher ray needs Ray, which is not installed", INSTALL) from None
    if tuple(int(n) for n in re.findall(r"\d+", found)[:2]) < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise NotReadyError(f"Ray {found} is installed, but {least} or later is needed", INSTALL)
    return found


def check_reachable(address: str, *, what: str = "Ray") -> None:
    """RayUnreachableError unless somebody listens there; within seconds, where Ray would try for long."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHABLE_TIMEOUT_S).close()
    except OSError as error:
        raise RayUnreachableError(
            f"no {what} at {address}: {error.strerror or error}",
            "check the address and the firewall; `ray start --head` prints the one of a cluster, and"
            " `paceline ray up` makes a small one here",
        ) from error


def _check_is_ray(address: str) -> None:
    """Whoever listens there must understand a question of Ray's; Ray itself would try for long."""
    if environ.ray_uses_tls():
        return  # then only Ray knows how to ask
    import grpc

    method = "/ray.rpc.NodeInfoGcsService/CheckAlive"
    if address.startswith("ray://"):
        method = "/ray.rpc.RayletDriver/ClusterInfo"
    with grpc.insecure_channel(address.removeprefix("ray://")) as channel:
        ask = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        try:
            ask(b"", timeout=REACHABLE_TIMEOUT_S)
        except grpc.RpcError as error:
            # Any other answer, such as that it wants a token, is one of Ray's.
            if error.code().name in ("UNIMPLEMENTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"):
                what = f"somebody listens at {address}, but it is no Ray: {error.details()}"
                hint = (
                    "`ray start --head` prints the address of a cluster; ray:// has a port of its own, 10001"
                )
                raise RayUnreachableError(what, hint) from error


def connect(address: str, *, num_cpus: int) -> "RayClient":
    """To a cluster, or (`local`) to a Ray that is started here with so many CPUs."""
    check_version()
    environ.prepare_ray()
    said = environ.ray_address() if address == "auto" else address
    if said not in (None, "local", "auto"):
        check_reachable(said.removeprefix("ray://"))
        _check_is_ray(said)
    with _own_signals():
        import ray

        # What it notices about nodes it prints on stdout, which is ours; what matters of it we say ourselves.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
        if ray.is_initialized():
            return RayClient(is_ours=False)
        logging.getLogger("ray").setLevel(logging.ERROR)
        usual: dict[str, Any] = {"log_to_driver": False}
        if not address.startswith("ray://"):
            usual |= {"logging_level": logging.ERROR}
        if address == "local":
            usual |= {"num_cpus": num_cpus, "include_dashboard": False}
        try:
            start_with_retries(
                lambda: ray.init(address=address, **usual),
                ray.shutdown,
                limit_s=environ.ray_start_s(),
            )
        except ray.exceptions.AuthenticationError as error:
            hint = "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that holds it"
            raise NotReadyError(f"the Ray at {address} asks for a token, and not for ours", hint) from error
        except ConnectionError as error:
            hint = "start one with `ray start --head` or `paceline ray up`, or use --address local"
            if address.startswith("ray://"):
                hint = "try again: on a busy head the client's server may come too late; or use HOST:PORT"
            raise RayUnreachableError(f"no Ray at {address}: {_first_line(error)}", hint) from error
        except (RuntimeError, ValueError) as error:
            hint = "the same versions of Ray and Python are needed here and on every node"
            raise NotReadyError(f"Ray at {address} does not take us: {_first_line(error)}", hint) from error
    return RayClient(is_ours=True)


def start_with_retries(
    begin: Callable[[], object],
    undo: Callable[[], object],
    *,
    limit_s: float,
    now_s: Callable[[], float] = monotonic_s,
) -> None:
    """Start Ray, and again while it only came too late: it waits for its own processes for 30 s."""
    started_s = now_s()
    while True:
        try:
            begin()
            return
        except Exception as error:
            if not is_timeout(error):
                raise
            undo()
            waited_s = now_s() - started_s
            if waited_s >= limit_s:
                raise _not_started(error, waited_s) from error


def is_timeout(error: Exception) -> bool:
    """Ray says so by a plain Exception, or by a TimeoutError."""
    return type(error) is Exception or isinstance(error, TimeoutError)


def _not_started(error: Exception, waited_s: float) -> RayStartError:
    return RayStartError(
        f"Ray did not start within {waited_s:.0f} s: {_first_line(error)}",
        f"try again when the machine is less busy, or wait longer: {environ.RAY_START}=600;"
        " what its processes said is in /tmp/ray/session_latest/logs",
    )


@contextmanager
def _own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


class RayClient:
    """A connection to a cluster; one for a process."""

    def __init__(self, *, is_ours: bool) -> None:
        self._is_ours = is_ours

    def nodes(self) -> list[Node]:
        """Those that are alive, with all they have."""
        import ray

        found = []
        for node in ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                cpus, gpus = float(has.get("CPU", 0)), float(has.get("GPU", 0))
                found.append(Node(name=str(node["NodeManagerAddress"]), cpus=cpus, gpus=gpus))
        return found

    def reserve(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> "Reservation":
        from ray.util.placement_group import placement_group

        return Reservation(placement_group([dict(b) for b in bundles], strategy=strategy))

    def start(
        self, kind: type, args: Sequence[object], place: "Reservation", index: int, *, calls_at_once: int
    ) -> Handle:
        """An actor of this class on one bundle; it is there when it answers."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        has = place.group.bundle_specs[index]
        strategy = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=index)
        made = ray.remote(kind).options(
            num_cpus=has["CPU"],
            num_gpus=has.get("GPU", 0),
            max_concurrency=calls_at_once,
            max_restarts=0,
            scheduling_strategy=strategy,
        )
        return Handle(made.remote(*args))

    def call(self, actor: Handle, method: str, *args: object) -> Pending:
        """Ask, and do not wait."""
        return Pending(getattr(actor, method).remote(*args))

    def wait(self, pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
        """Those that are answered, or never will be; after `timeout_s` perhaps none."""
        import ray

        done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
        if not done:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=timeout_s)
        return [Pending(one) for one in done]

    def take(self, answered: Pending) -> Any:  # Any: what the method answers
        """ActorLost when there is nobody any more who could have answered."""
        import ray
        from ray import exceptions

        try:
            return ray.get(answered)
        except (exceptions.ActorDiedError, exceptions.ActorUnavailableError) as error:
            raise ActorLost(
                describe_actor_death(str(error)), is_start="creation task" in str(error)
            ) from error
        except exceptions.RayTaskError as error:
            raise ActorLost(_first_line(error.cause), is_start=True) from error
        except exceptions.RayError as error:
            raise ActorLost(_first_line(error)) from error

    def kill(self, actor: Handle) -> None:
        import ray

        ray.kill(actor, no_restart=True)

    def release(self, place: "Reservation") -> None:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(place.group)

    def close(self) -> None:
        """What we started ends; a cluster of others stays."""
        if self._is_ours:
            import ray

            ray.shutdown()


class Reservation:
    """Room for some actors."""

    def __init__(self, group: Any) -> None:  # Any: Ray's own
        self.group = group

    def is_there(self) -> bool:
        """Now; after a node was lost it is not, until Ray has found other room for that part."""
        from ray.util.placement_group import placement_group_table

        return bool(placement_group_table(self.group)["state"] == "CREATED")


def own_address() -> str:
    """Of this node, as the others reach it; only inside an actor."""
    import ray

    return str(ray.util.get_node_ip_address())


def describe_actor_death(text: str) -> str:
    """What Ray says of a dead actor, in one sentence."""
    if "its node has died" in text or "node was terminated" in text or "node failure" in text:
        return NODE_LOST
    if "creation task" in text:
        last = [line.strip() for line in text.splitlines() if line.strip()][-1]
        return f"it could not be started: {last}"
    detail = re.search(r"Worker exit type: (\w+) Worker exit detail: ([^.\n]*)", text)
    if detail is not None and "OOM" in detail[1]:
        return "its process was ended by Ray because the node ran out of memory"
    if detail is not None:
        return f"its process died ({detail[2].strip().rstrip('.')})"
    if "unavailable" in text:
        return "its process cannot be reached any more"
    return "its process died"


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


POLL_S = 0.25
START_TIMEOUT_S = 120.0  # for a process to start on a node, and to import torch
_MIN_POLL_S = 0.005  # between two looks, at first: on a cluster with room it is a matter of milliseconds
NOTICE_AFTER_S = 2.0  # before it is said that one waits


@dataclass(slots=True)
class StopRequest:
    """What a signal asks for; the launcher looks when it may act."""

    stop: bool = False


def reserve(
    plan: Plan,
    ray: RayClient,
    bundles: Sequence[Bundle],
    wishes: StopRequest,
    tell: Callable[[Message], None],
) -> Reservation:
    """Once it is free. What others use is waited for; what is not there any more, only for a while."""
    nodes = ray.nodes()
    placement = placement_of(plan, nodes)
    place = ray.reserve([bundle.as_ray() for bundle in bundles], placement.value.upper())
    began_s, fitted_s, is_said, pause_s = monotonic_s(), monotonic_s(), False, _MIN_POLL_S
    while not place.is_there():
        SystemClock().sleep(pause_s)
        pause_s = min(POLL_S, 2 * pause_s)
        if wishes.stop:
            ray.release(place)
            raise KeyboardInterrupt
        nodes = ray.nodes()
        if fits(bundles, nodes, placement):
            fitted_s = monotonic_s()
        elif monotonic_s() - fitted_s > plan.timeout_s:
            ray.release(place)
            raise TrainingError(
                "what is left of the Ray cluster is too small\n" + capacity_table(bundles, nodes, placement),
                "add nodes, then go on with  paceline train --resume RUN",
            )
        if not is_said and monotonic_s() - began_s > NOTICE_AFTER_S:
            is_said = True
            tell({"ev": "note", "text": "waiting for room on the Ray cluster: others use it now"})
    return place

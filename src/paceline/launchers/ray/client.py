"""Ray client: the only module that imports Ray, except for jobs (jobs.py).

Only text and bytes pass through. An exception of Ray's becomes a PacelineError, or `ActorLost` with the
reason in plain words. Ray installs its own signal handlers; the previous ones are restored.
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
GCS_TIMEOUT_S = 10
NODE_LOST = "its node was lost"
INSTALL = "pip install 'paceline[ray]'"
Handle = NewType("Handle", object)  # an actor
Pending = NewType("Pending", object)  # an answer that is on its way


class RayUnreachableError(PacelineError):
    """There is no Ray at the given address."""

    exit_code = ExitCode.UNREACHABLE
    code = "E601"


class RayStartError(NotReadyError):
    """A Ray cluster that is started here did not become ready."""

    code = "E210"


class ActorLost(Exception):  # noqa: N818  # an expected event, caught by the caller
    def __init__(self, why: str, *, is_start: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_start = is_start


def check_version(version_of: Callable[[str], str] = importlib.metadata.version) -> str:
    """NotReadyError unless a supported Ray is installed. Nothing is imported."""
    try:
        version = version_of("ray")
    except importlib.metadata.PackageNotFoundError:
        raise MissingPackageError("launcher ray needs Ray, which is not installed", INSTALL) from None
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < MIN_VERSION:
        minimum = ".".join(map(str, MIN_VERSION))
        raise NotReadyError(f"Ray {version} is installed, but {minimum} or later is needed", INSTALL)
    return version


def check_reachable(address: str, *, service: str = "Ray") -> None:
    """RayUnreachableError unless a server listens there; within seconds, where Ray would retry for long."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHABLE_TIMEOUT_S).close()
    except OSError as error:
        raise RayUnreachableError(
            f"no {service} at {address}: {error.strerror or error}",
            "check the address and the firewall; `ray start --head` prints a cluster's address, and "
            "`paceline ray up` starts a local cluster",
        ) from error


def _check_is_ray(address: str) -> None:
    """The server there must answer a request of Ray's protocol; Ray itself would retry for long."""
    if environ.ray_uses_tls():
        return  # then only Ray can send the request
    import grpc

    method = "/ray.rpc.NodeInfoGcsService/CheckAlive"
    if address.startswith("ray://"):
        method = "/ray.rpc.RayletDriver/ClusterInfo"
    with grpc.insecure_channel(address.removeprefix("ray://")) as channel:
        ask = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        try:
            ask(b"", timeout=REACHABLE_TIMEOUT_S)
        except grpc.RpcError as error:
            # Any other response, such as that a token is required, is from a Ray server.
            if error.code().name in ("UNIMPLEMENTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"):
                message = f"the server at {address} is not Ray: {error.details()}"
                hint = (
                    "`ray start --head` prints the address of a cluster; ray:// has a port of its own, 10001"
                )
                raise RayUnreachableError(message, hint) from error


def connect(address: str, *, num_cpus: int) -> "RayClient":
    """Connect to a cluster, or (`local`) to a Ray that is started here with `num_cpus` CPUs."""
    check_version()
    environ.prepare_ray()
    target_address = environ.ray_address() if address == "auto" else address
    if target_address not in (None, "local", "auto"):
        check_reachable(target_address.removeprefix("ray://"))
        _check_is_ray(target_address)
    with _own_signals():
        import ray

        # Ray prints node events on stdout, which is reserved for data; the launcher reports relevant ones.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
        if ray.is_initialized():
            return RayClient(is_ours=False)
        logging.getLogger("ray").setLevel(logging.ERROR)
        options: dict[str, Any] = {"log_to_driver": False}
        if not address.startswith("ray://"):
            options |= {"logging_level": logging.ERROR}
        if address == "local":
            options |= {"num_cpus": num_cpus, "include_dashboard": False}
        try:
            start_with_retries(
                lambda: ray.init(address=address, **options),
                ray.shutdown,
                limit_s=environ.ray_start_s(),
            )
        except ray.exceptions.AuthenticationError as error:
            hint = "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that holds it"
            raise NotReadyError(f"the Ray at {address} requires another token", hint) from error
        except ConnectionError as error:
            hint = "start one with `ray start --head` or `paceline ray up`, or use --address local"
            if address.startswith("ray://"):
                hint = "try again: on a busy head node the client server may start late; or use HOST:PORT"
            raise RayUnreachableError(f"no Ray at {address}: {_first_line(error)}", hint) from error
        except (RuntimeError, ValueError) as error:
            hint = "the same versions of Ray and Python are needed here and on every node"
            raise NotReadyError(
                f"Ray at {address} refused the connection: {_first_line(error)}", hint
            ) from error
    return RayClient(is_ours=True)


def start_with_retries(
    begin: Callable[[], object],
    undo: Callable[[], object],
    *,
    limit_s: float,
    now_s: Callable[[], float] = monotonic_s,
) -> None:
    """Start Ray, and retry after a timeout: Ray waits for its own processes for 30 s."""
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
    """Ray raises a plain Exception, or a TimeoutError."""
    return type(error) is Exception or isinstance(error, TimeoutError)


def _not_started(error: Exception, waited_s: float) -> RayStartError:
    return RayStartError(
        f"Ray did not start within {waited_s:.0f} s: {_first_line(error)}",
        f"try again when the machine is less busy, or wait longer: {environ.RAY_START}=600; its logs are in "
        "/tmp/ray/session_latest/logs",
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

        nodes = []
        for node in ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                cpus = float(has.get("CPU", 0))
                gpus = float(has.get("GPU", 0))
                name = str(node["NodeManagerAddress"])
                nodes.append(Node(name=name, cpus=cpus, gpus=gpus, id=str(node["NodeID"])))
        return nodes

    def reserve(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> "Reservation":
        from ray.util.placement_group import placement_group

        return Reservation(placement_group([dict(b) for b in bundles], strategy=strategy))

    def start(
        self, kind: type, args: Sequence[object], place: "Reservation", index: int, *, calls_at_once: int
    ) -> Handle:
        """An actor of this class on one bundle; it is ready once it responds."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        has = place.group.bundle_specs[index]
        strategy = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=index)
        actor_class = ray.remote(kind).options(
            num_cpus=has["CPU"],
            num_gpus=has.get("GPU", 0),
            max_concurrency=calls_at_once,
            max_restarts=0,
            scheduling_strategy=strategy,
        )
        return Handle(actor_class.remote(*args))

    def start_anywhere(self, kind: type, args: Sequence[object], *, cpus: int, is_spread: bool) -> Handle:
        """An actor of this class on any node with room; it waits for one."""
        import ray

        actor_class = ray.remote(kind).options(
            num_cpus=cpus,
            max_restarts=0,
            scheduling_strategy="SPREAD" if is_spread else "DEFAULT",
        )
        return Handle(actor_class.remote(*args))

    def call(self, actor: Handle, method: str, *args: object) -> Pending:
        """Call, and do not wait."""
        return Pending(getattr(actor, method).remote(*args))

    def wait(self, pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
        """Those that are answered, or never will be; after `timeout_s` perhaps none."""
        import ray

        done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
        if not done:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=timeout_s)
        return [Pending(reference) for reference in done]

    def take(self, answered: Pending) -> Any:  # Any: what the method answers
        """Result of the method; ActorLost if the actor is lost."""
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
        """End a Ray started here; an existing cluster keeps running."""
        if self._is_ours:
            import ray

            ray.shutdown()


class Reservation:
    """A placement group: resources for some actors."""

    def __init__(self, group: Any) -> None:  # Any: Ray's own
        self.group = group

    def is_there(self) -> bool:
        """Whether it is placed now; after the loss of a node it is not, until Ray has moved that bundle."""
        from ray.util.placement_group import placement_group_table

        return bool(placement_group_table(self.group)["state"] == "CREATED")


def own_address() -> str:
    """Address of this node for other nodes; only inside an actor."""
    import ray

    return str(ray.util.get_node_ip_address())


def is_node_draining() -> bool:
    """Whether Ray drains this node, before it is preempted or removed; only inside an actor."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    gcs = ray._private.worker.global_worker.gcs_client  # Ray has no public call for it
    try:
        return here in gcs.get_draining_nodes(timeout=GCS_TIMEOUT_S)
    except Exception:  # the head is busy or gone: what it says counts once it answers
        return False


def describe_actor_death(text: str) -> str:
    """Ray's reason for the death of an actor, in one sentence."""
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
        return "its process is unreachable"
    return "its process died"


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


POLL_S = 0.25
START_TIMEOUT_S = 120.0  # timeout for a process to start on a node and import torch
_MIN_POLL_S = 0.005  # between two checks, at first: on an idle cluster it is a matter of milliseconds
NOTICE_AFTER_S = 2.0  # delay before a message about waiting


@dataclass(slots=True)
class StopRequest:
    """Request set by a signal handler; the launcher reads it between two polls."""

    stop: bool = False


def reserve(
    plan: Plan,
    ray: RayClient,
    bundles: Sequence[Bundle],
    stop_request: StopRequest,
    notify: Callable[[Message], None],
) -> Reservation:
    """Once it is free. What others use is waited for; what is not there any more, only for a while."""
    nodes = ray.nodes()
    placement = placement_of(plan, nodes)
    place = ray.reserve([bundle.as_ray() for bundle in bundles], placement.value.upper())
    began_s = monotonic_s()
    fitted_s = monotonic_s()
    is_said = False
    pause_s = _MIN_POLL_S
    while not place.is_there():
        SystemClock().sleep(pause_s)
        pause_s = min(POLL_S, 2 * pause_s)
        if stop_request.stop:
            ray.release(place)
            raise KeyboardInterrupt
        nodes = ray.nodes()
        if fits(bundles, nodes, placement):
            fitted_s = monotonic_s()
        elif monotonic_s() - fitted_s > plan.timeout_s:
            ray.release(place)
            raise TrainingError(
                "the remaining Ray cluster is too small\n" + capacity_table(bundles, nodes, placement),
                "add nodes, then resume:  paceline train --resume RUN",
            )
        if not is_said and monotonic_s() - began_s > NOTICE_AFTER_S:
            is_said = True
            notify({"ev": "note", "text": "waiting for free resources of the Ray cluster"})
    return place

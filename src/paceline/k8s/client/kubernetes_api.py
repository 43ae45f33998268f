"""Adapter of the API port: the official client, for its configuration, credentials and sockets.

The only file that imports it. Paths are made here and answers stay plain dicts: the client's own models
change from one release to the next, and forget fields that they do not know.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import websocket
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.stream import stream, ws_client

from paceline.core.clock import monotonic_s
from paceline.core.errors import NotReadyError
from paceline.core.redaction import redact
from paceline.k8s.client.api import (
    RETRY_HINT,
    ApiError,
    Change,
    ExecResult,
    GoneError,
    Listing,
    Manifest,
    NotThereError,
    UnreachableError,
    error_from_status,
)
from paceline.k8s.kinds import ACCESS_REVIEW, POD, Kind, kind_of
from paceline.k8s.objects import mapping, mappings
from paceline.plan.codec import Json

_ANSWER_S = 30.0  # timeout of requests that are not streams
_QUIET_S = 120.0  # timeout for the next bytes of a stream; a watch ends before that
_POLL_S = 1.0  # how often a silent command is polled
# The connection ended before the command.
_CONNECTION_ERRORS = (OSError, ValueError, websocket.WebSocketException)
_PAGE = 500
# All kinds in one answer: the stable form, that of 1.27 to 1.29, and what older servers have.
_LISTED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_ALL_KINDS = f"{_LISTED.format('v2')},{_LISTED.format('v2beta1')},application/json"


class _PatientSocket(websocket.WebSocket):
    """The client opens sockets without a timeout, and has no setting for one."""

    def connect(self, url: str, **options: Any) -> None:
        super().connect(url, timeout=_ANSWER_S, **options)  # type: ignore[no-untyped-call]


ws_client.WebSocket = _PatientSocket


def connect(kubeconfig: Path | None = None, context: str | None = None) -> "KubernetesApi":
    """The cluster of a kubeconfig file, or the one that this process runs in. Raises NotReadyError."""
    configuration = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(
                str(kubeconfig), context=context, client_configuration=configuration, persist_config=False
            )
    except (ConfigException, OSError) as error:
        where = "the environment of this process" if kubeconfig is None else str(kubeconfig)
        hint = "set KUBECONFIG, or create one: `aws eks update-kubeconfig --name CLUSTER`, `minikube start`"
        raise NotReadyError(f"no cluster is configured in {where}: {error}", hint) from error
    return KubernetesApi(client.ApiClient(configuration))


class KubernetesApi:
    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._url = str(api.configuration.host)
        self.server = redact(self._url)  # it may contain a password

    def close(self) -> None:
        self._api.close()
        self._api.rest_client.pool_manager.clear()

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        return self._ask("GET", kind.path(namespace, name))

    def about(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        return self._ask("GET", kind.path(namespace, name), accept=_METADATA)

    def find(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        chosen = _query(limit=str(_PAGE), labelSelector=labels, fieldSelector=fields)
        items: list[Manifest] = []
        going_on = ""
        while True:
            page = self._ask("GET", kind.path(namespace), {**chosen, **_query(**{"continue": going_on})})
            metadata = page["metadata"]
            objects = page["items"]
            assert isinstance(metadata, dict), "a list has metadata"
            assert isinstance(objects, list), "a list has items"
            items += [{"apiVersion": kind.api_version, "kind": kind.name, **_dict(item)} for item in objects]
            going_on = str(metadata.get("continue") or "")
            if not going_on:
                return Listing(tuple(items), str(metadata.get("resourceVersion", "")))

    def watch(
        self, kind: Kind, namespace: str | None, *, since: str, seconds: float = 300
    ) -> Iterator[Change]:
        until = str(int(min(seconds, _QUIET_S / 2)))
        chosen = _query(watch="1", resourceVersion=since, timeoutSeconds=until)
        for line in self._stream(kind.path(namespace), {**chosen, "allowWatchBookmarks": "true"}):
            try:
                event = json.loads(line)
            except ValueError as error:  # an orderly end in the middle of a word
                raise self._unreachable(f"watching {kind.plural}", error) from error
            if event["type"] == "ERROR":
                status = _dict(event["object"])
                if status.get("code") == 410:
                    raise GoneError("the server no longer has later changes", "list again", status=410)
                raise error_from_status(
                    int(str(status.get("code", 500))), status, f"watching {kind.plural}", self.server
                )
            version = str(event["object"]["metadata"]["resourceVersion"])
            if event["type"] != "BOOKMARK":
                yield Change(event["type"], _dict(event["object"]), version)

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        kind = kind_of(dict(manifest))
        metadata = _dict(manifest["metadata"])
        namespace = str(metadata.get("namespace", "default")) if kind.is_namespaced else None
        chosen = _query(fieldValidation="Strict", dryRun="All" if dry_run else "")
        return self._ask("POST", kind.path(namespace), chosen, manifest)

    def patch(
        self, kind: Kind, name: str, namespace: str | None, change: Manifest, *, dry_run: bool = False
    ) -> Manifest:
        chosen = _query(fieldValidation="Strict", dryRun="All" if dry_run else "")
        return self._ask("PATCH", kind.path(namespace, name), chosen, change)

    def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
    ) -> None:
        chosen = {"propagationPolicy": "Background"}
        if grace_s is not None:
            chosen["gracePeriodSeconds"] = str(grace_s)
        body: Manifest | None = None
        if uid or version:  # a server reads options from the body, or from the query: not from both
            expected: Manifest = {"uid": uid} if uid else {}
            if version:
                expected["resourceVersion"] = version
            body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": expected, **chosen}
            if grace_s is not None:
                body["gracePeriodSeconds"] = grace_s
            chosen = {}
        try:
            self._ask("DELETE", kind.path(namespace, name), chosen, body)
        except NotThereError:
            return

    def logs(
        self,
        pod: str,
        namespace: str,
        container: str,
        *,
        since: str = "",
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
    ) -> Iterator[str]:
        chosen = _query(
            container=container,
            timestamps="true",
            sinceTime=since,
            follow="true" if follow else "",
            tailLines="" if tail is None else str(tail),
            previous="true" if previous else "",
        )
        for line in self._stream(f"{POD.path(namespace, pod)}/log", chosen):
            yield line.decode("utf-8", "replace")

    def run(
        self, pod: str, namespace: str, container: str, command: list[str], *, stdin: bytes = b""
    ) -> ExecResult:
        message = f"running {command[0]} in pod {pod}"
        try:
            socket = stream(
                client.CoreV1Api(self._api).connect_get_namespaced_pod_exec,
                *(pod, namespace),
                command=command,
                container=container,
                tty=False,
                binary=True,
                stdin=bool(stdin),
                stdout=True,
                stderr=True,
                _preload_content=False,
            )
        except ApiException as error:
            body = error.body if isinstance(error.body, bytes) else str(error.body or error.reason).encode()
            raise self._refusal(int(error.status or 0), body, message) from error
        with closing(socket):
            try:
                return _exec_over_websocket(socket, pod, stdin)
            except _CONNECTION_ERRORS as error:
                raise self._unreachable(message, error) from error
            finally:
                socket.sock.shutdown()  # `close` leaves the socket open once the other side has closed

    def may(self, verb: str, kind: Kind, namespace: str | None = None) -> bool:
        resource, _, part = kind.plural.partition("/")  # such as pods/log
        attributes: dict[str, Json] = {"verb": verb, "group": kind.group, "resource": resource}
        if part:
            attributes["subresource"] = part
        if namespace is not None and kind.is_namespaced:
            attributes["namespace"] = namespace
        review: Manifest = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.name,
            "metadata": {},
            "spec": {"resourceAttributes": attributes},
        }
        return bool(_dict(self.create(review).get("status") or {}).get("allowed"))

    def serves(self, kind: Kind) -> bool:
        root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        try:
            resources = self._ask("GET", root).get("resources")
        except NotThereError:
            return False
        assert isinstance(resources, list), "discovery lists resources"
        return kind.plural in [_dict(resource)["name"] for resource in resources]

    def version(self) -> str:
        """Version of Kubernetes, such as v1.35.0."""
        return str(self._ask("GET", "/version").get("gitVersion", ""))

    def served(self) -> dict[str, tuple[str, ...]]:
        """Versions of all served kinds but the core's, by `plural.group`; needs no right."""
        answer = self._ask("GET", "/apis", accept=_ALL_KINDS)
        if answer.get("kind") != "APIGroupDiscoveryList":
            hint = "upgrade the cluster: 1.27 is the oldest version with aggregated discovery"
            raise NotThereError(f"{self.server} does not list its kinds", hint, status=406)
        served: dict[str, tuple[str, ...]] = {}
        for group in mappings(answer, "items"):
            for version in mappings(group, "versions"):
                for resource in mappings(version, "resources"):
                    name = f"{resource.get('resource')}.{mapping(group, 'metadata').get('name')}"
                    served[name] = (*served.get(name, ()), str(version.get("version")))
        return served

    def _ask(
        self,
        method: str,
        path: str,
        chosen: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        *,
        accept: str = "application/json",
    ) -> Manifest:
        """One question, one answer."""
        message = f"{method} {path}"
        opened = self._open(method, path, chosen or {}, body, (_ANSWER_S, _ANSWER_S), accept=accept)
        with closing(opened) as answer:
            try:
                parsed = json.loads(answer.read())
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                raise self._unreachable(message, error) from error
        return _dict(parsed)

    def _stream(self, path: str, chosen: Mapping[str, str]) -> Iterator[bytes]:
        """Stream of lines; a line cut by a lost connection is dropped."""
        with closing(self._open("GET", path, chosen, None, (_ANSWER_S, _QUIET_S))) as answer:
            rest = b""
            try:
                for chunk in answer.stream(amt=1 << 16, decode_content=True):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from lines
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise self._unreachable(f"GET {path}", error) from error
            if rest:  # the end was an orderly one: a program may print no last newline
                yield rest

    def _open(
        self,
        method: str,
        path: str,
        chosen: Mapping[str, str],
        body: Manifest | None,
        timeout: tuple[float, float],
        *,
        accept: str = "application/json",
    ) -> urllib3.response.BaseHTTPResponse:
        """An answer that is a yes; its body is still to be read."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": accept, "Content-Type": kind}
        self._api.update_params_for_auth(headers, [], ["BearerToken"])
        try:
            answer: urllib3.response.BaseHTTPResponse = self._api.rest_client.pool_manager.request(
                method,
                f"{self._url}{path}?{urlencode(chosen)}",
                body=None if body is None else json.dumps(body),
                headers=headers,
                preload_content=False,
                retries=False,  # the caller decides about retries
                timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
            )
            if 200 <= answer.status <= 299:
                return answer
            with closing(answer):
                raise self._refusal(answer.status, answer.read(), f"{method} {path}")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(f"{method} {path}", error) from error

    def _refusal(self, status: int, body: bytes, request: str) -> ApiError:
        text = body.decode("utf-8", "replace")
        try:
            answer = _dict(json.loads(text))
        except ValueError:  # response of a proxy, not a Kubernetes Status
            answer = {"message": text.strip()[:500]}
        return error_from_status(status, answer, request, self.server)

    def _unreachable(self, request: str, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"{self.server} did not respond to {request}: {redact(str(error))}", RETRY_HINT
        )


def _query(**parameters: str) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if value}


def _dict(value: object) -> Manifest:
    assert isinstance(value, dict), f"an object of Kubernetes is a mapping, and not {value!r}"
    return value


def _exec_over_websocket(
    socket: Any, pod: str, stdin: bytes
) -> ExecResult:  # Any: the official client has no types
    """Run to the command's end. The remote command gets no EOF on `stdin`, so it must be given the number of
    bytes to read. Raises one of _CONNECTION_ERRORS, or UnreachableError."""
    stdout = bytearray()
    stderr = bytearray()
    socket.sock.settimeout(_QUIET_S)
    for start in range(0, len(stdin), 1 << 16):
        socket.write_stdin(stdin[start : start + (1 << 16)])
    heard_s = monotonic_s()
    while socket.is_open():
        socket.update(timeout=_POLL_S)
        output, complained = (bytes(socket.read_channel(channel) or b"") for channel in (1, 2))
        stdout += output
        stderr += complained
        if output or complained:
            heard_s = monotonic_s()
        elif monotonic_s() - heard_s > _QUIET_S:
            raise TimeoutError(f"nothing was received for {_QUIET_S:.0f} s")
    return ExecResult(_exit_code(bytes(socket.read_channel(3) or b""), pod), bytes(stdout), bytes(stderr))


def _exit_code(raw: bytes, pod: str) -> int:
    """Exit code from the last message on the error channel."""
    try:
        status = json.loads(raw)
    except ValueError as error:
        raise UnreachableError(
            f"the connection to pod {pod} was cut before the command ended", RETRY_HINT
        ) from error
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or []
    codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
    return codes[0] if codes else 1

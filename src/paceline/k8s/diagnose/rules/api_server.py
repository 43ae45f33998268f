"""Requests to the API server: manifests, rights, webhooks, admission, operators. Rows 1-5, 48-50, 66-70."""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.k8s.diagnose.findings import Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.pods import conditions
from paceline.k8s.diagnose.snapshot import Answer, Snapshot, name_of, subject_of
from paceline.k8s.objects import mapping, mappings, read_time

BAD_SPEC = Failure(
    number=1,
    name="bad-spec",
    what="the manifest is rejected",
    kind=FailureClass.CONFIG,
    cause="the cluster rejects the manifest: {detail}",
    why="the API server or an operator validates every object on creation; the same manifest is rejected "
    "again",
    command="kubectl get events -n {namespace} --sort-by=.lastTimestamp",
    remedy=Remedy.STOP,
)
CRD_MISSING = Failure(
    number=2,
    name="crd-missing",
    what="the kind does not exist on this cluster",
    kind=FailureClass.CONFIG,
    cause="the cluster does not serve {resource}",
    why="its operator is not installed, or serves another version of it",
    command="kubectl api-resources --api-group {group}",
    remedy=Remedy.STOP,
)
UNAUTHORIZED = Failure(
    number=3,
    name="unauthorized",
    what="authentication failed (401)",
    kind=FailureClass.CONFIG,
    cause="the cluster does not accept the credentials{client}",
    why="the login has expired, or the kubeconfig belongs to another cluster",
    command="kubectl auth whoami",
    remedy=Remedy.STOP,
)
FORBIDDEN = Failure(
    number=4,
    name="forbidden",
    what="the user lacks a permission (403)",
    kind=FailureClass.CONFIG,
    cause="{user} may not {verb} {resource} in namespace {where}",
    why="no Role bound to this user grants the permission; a retry does not change that",
    command="kubectl create role paceline-{verb}-{plural} --verb={verb} --resource={resource} -n {where} && "
    "kubectl create rolebinding paceline-{verb}-{plural} --role=paceline-{verb}-{plural} {subject} "
    "-n {where}",
    remedy=Remedy.STOP,
)
WEBHOOK_DOWN = Failure(
    number=5,
    name="webhook-down",
    what="an operator's webhook does not respond",
    kind=FailureClass.INFRA,
    cause="the webhook {webhook}, which must admit every object, does not respond",
    why="its operator is restarting, or its certificate does not match the API server's configuration",
    command="kubectl get pods -A | grep -E 'operator|kueue|controller-manager'",
    remedy=Remedy.REPEAT,
    most=5,
)
WEBHOOK_WRONG = replace(
    WEBHOOK_DOWN,
    name="webhook-wrong",
    what="an operator's webhook is registered with an address that does not exist",
    kind=FailureClass.CONFIG,
    cause="the webhook {webhook} is registered with an address that does not exist: {detail}",
    why="the webhook configuration names a service, port or path that the installed operator does not have; "
    "install both from the same release",
    command="kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
    remedy=Remedy.STOP,
    most=None,
)
LOG_DROPPED = Failure(
    number=48,
    name="log-dropped",
    what="a log stream was interrupted",
    kind=FailureClass.NONE,
    cause="the log stream was interrupted ({detail}); the job continues",
    why="the API server closes long streams; the job is not affected",
    command="kubectl logs {pod} -n {namespace} --timestamps --since=1m -f",
    remedy=Remedy.RECONNECT,
    weight=Weight.NOTE,
)
DELETED_OUTSIDE = Failure(
    number=49,
    name="deleted-outside",
    what="the job was deleted externally",
    kind=FailureClass.CONFIG,
    cause="{subject} was deleted by another client; it was last written by {manager}",
    why="another user or a TTL of the cluster deleted it; it is not recreated",
    command="kubectl get events -n {namespace} --sort-by=.lastTimestamp | tail",
    remedy=Remedy.STOP,
)
API_THROTTLED = Failure(
    number=50,
    name="api-throttled",
    what="the API server throttles requests (429)",
    kind=FailureClass.INFRA,
    cause="the API server requests a retry{later}",
    why="it limits the request rate; the job is not affected",
    command="kubectl get --raw '/readyz?verbose'",
    remedy=Remedy.REPEAT,
    weight=Weight.NOTE,
    counted=False,
)
POD_SECURITY = Failure(
    number=66,
    name="pod-security",
    what="a policy of the namespace rejects the pods",
    kind=FailureClass.CONFIG,
    cause="a policy rejects the job's pods: {detail}",
    why="Pod Security, a LimitRange or a policy webhook checks every pod when its controller creates it; "
    "the same pod is rejected again",
    command="kubectl get namespace {namespace} --show-labels",
    remedy=Remedy.STOP,
)
MISSING_ACCOUNT = Failure(
    number=67,
    name="missing-object",
    what="a service account, priority class or runtime class is missing",
    kind=FailureClass.CONFIG,
    cause="pods are not created, because they refer to an object that does not exist: {detail}",
    why="the API server looks up service account, priority class and runtime class when a pod is created",
    command="kubectl get serviceaccounts,priorityclasses,runtimeclasses -n {namespace}",
    remedy=Remedy.STOP,
    patience_s=30.0,  # it may be created a moment after the job
)
OPERATOR_ABSENT = Failure(
    number=68,
    name="operator-absent",
    what="no operator acts on the job",
    kind=FailureClass.WAIT,
    cause="{kind} {job} has no status, no pods and no events after {waited} s: no operator acts on it",
    why="its operator is not installed, scaled to zero, restarting, or does not watch this namespace",
    command="kubectl get deployments -A | grep -iE 'operator|jobset|trainer|kuberay|controller'",
    remedy=Remedy.WAIT,
    weight=Weight.WAITING,
    patience_s=None,
)
NAME_TAKEN = Failure(
    number=69,
    name="name-taken",
    what="pods of an earlier job of this name are still terminating",
    kind=FailureClass.WAIT,
    cause="pods cannot be created yet, because those of an earlier job still have their names: {detail}",
    why="the controller creates them as soon as the old ones have terminated",
    command="kubectl get pods -n {namespace}",
    remedy=Remedy.WAIT,
    weight=Weight.WAITING,
    patience_s=None,
)
API_DOWN = Failure(
    number=70,
    name="api-unreachable",
    what="the API server does not respond",
    kind=FailureClass.INFRA,
    cause="the API server does not respond: {detail}",
    why="the control plane restarts, or the network to it is interrupted; pods that run are not affected",
    command="kubectl get --raw '/readyz?verbose'",
    remedy=Remedy.REPEAT,
    weight=Weight.NOTE,
    counted=False,
)
ROWS = (
    BAD_SPEC,
    CRD_MISSING,
    UNAUTHORIZED,
    FORBIDDEN,
    WEBHOOK_DOWN,
    WEBHOOK_WRONG,
    LOG_DROPPED,
    DELETED_OUTSIDE,
    API_THROTTLED,
    POD_SECURITY,
    MISSING_ACCOUNT,
    OPERATOR_ABSENT,
    NAME_TAKEN,
    API_DOWN,
)

_SOURCES = (Source.API, Source.CLUSTER)
_CANNOT = (
    r'(?P<user>User "[^"]*") cannot (?P<verb>\w+) (?:resource )?"?(?P<plural>[^"\s]+)"?'
    r'(?: in API group "(?P<group>[^"]*)")?(?: in the namespace "(?P<where>[^"]*)")?'
)
_ANONYMOUS = (
    r'User "system:anonymous"'  # the user name of requests without credentials, which are refused (403)
)
TEXTS = (
    text(API_THROTTLED, r"\(TooManyRequests\)|server has received too many requests", *_SOURCES),
    text(API_THROTTLED, r"client rate limiter Wait returned an error", *_SOURCES),
    text(
        WEBHOOK_WRONG,
        r'failed (?:calling|to call) webhook(?: "(?P<webhook>[^"]+)")?[^\n]*'
        r'(?P<detail>no service port \S+ found for service[^\n]*|service "[^"]*" not found[^\n]*'
        r"|could not find the requested resource[^\n]*|: 404\b[^\n]*"
        r"|\bx509: certificate is (?:not )?valid for[^\n]*"
        r"|server gave HTTP response to HTTPS client[^\n]*|unsupported protocol scheme[^\n]*)",
        *_SOURCES,
    ),
    text(WEBHOOK_DOWN, r'failed (?:calling|to call) webhook(?: "(?P<webhook>[^"]+)")?', *_SOURCES),
    text(WEBHOOK_DOWN, r'no endpoints available for service "(?P<webhook>[^"]*)"', *_SOURCES),
    text(
        MISSING_ACCOUNT,
        r"(?P<detail>error looking up service account[^\n]*|serviceaccount \S+ not found[^\n]*"
        r"|service account \S+ was not found[^\n]*|no API token found for service account[^\n]*)",
        *_SOURCES,
    ),
    text(
        MISSING_ACCOUNT,
        r"(?P<detail>no PriorityClass with name \S+ was found[^\n]*|priorityclass\S* \S+ not found[^\n]*)",
        *_SOURCES,
    ),
    text(
        MISSING_ACCOUNT,
        r"(?P<detail>RuntimeClass \S+ not found[^\n]*|runtimeclass\.node\.k8s\.io \S+ not found[^\n]*"
        r"|failed to get RuntimeClass[^\n]*|namespaces? \S+ not found[^\n]*)",
        *_SOURCES,
    ),
    text(
        POD_SECURITY,
        r"(?P<detail>violates PodSecurity[^\n]*|would violate PodSecurity[^\n]*"
        r"|unable to validate against any security "
        r"context constraint[^\n]*|(?:max|min)imum (?:cpu|memory|\S+) usage per (?:Container|Pod)[^\n]*"
        r"|(?:cpu|memory|\S+) max limit to request ratio[^\n]*"
        r"|unable to validate against any pod security policy[^\n]*)",
        *_SOURCES,
    ),
    text(
        POD_SECURITY,
        r"(?P<detail>container has runAsNonRoot and image [^\n]*|runAsNonRoot[^\n]*(?:non-numeric user"
        r"|run as root)[^\n]*)",
        *_SOURCES,
    ),
    text(
        POD_SECURITY,
        r"(?P<detail>admission webhook \S*(?:kyverno|gatekeeper|policy|polic|psp|opa"
        r"|vap)\S* denied the request[^\n]*)"
        r"(?=[\s\S]*pods?\b)",
        Source.CLUSTER,
    ),
    text(NAME_TAKEN, r"(?P<detail>object is being deleted: [^\n]*already exists[^\n]*)", *_SOURCES),
    text(
        API_DOWN,
        r"(?P<detail>etcdserver: (?:request timed out|leader changed|no leader)[^\n]*"
        r"|server is currently unable to handle the "
        r"request[^\n]*|server was unable to return a response in the time allotted[^\n]*"
        r"|Error from server \((?:Timeout|ServiceUnavailable)\)[^\n]*"
        r"|(?:dial tcp|Get|Post|Put|Patch|Delete|List|Watch)[^\n]{0,200}:6443\b[^\n]*(?:connection refused"
        r"|i/o timeout|TLS handshake timeout|no route to host|connection reset by peer|\bEOF\b)[^\n]*"
        r"|http2: server sent GOAWAY[^\n]*|error retrieving resource lock[^\n]*"
        r"|connection to the server \S+ was refused[^\n]*"
        r"|Unable to connect to the server[^\n]*|http2: client "
        r"connection lost[^\n]*|apiserver[^\n]*(?:shutting down|not ready)[^\n]*)",
        *_SOURCES,
    ),
)
# After quotas and images, which also are "forbidden" and "not found".
LATE_TEXTS = (
    text(BAD_SPEC, r"(?P<detail>admission webhook .{0,80}denied the request.*)", *_SOURCES),
    text(
        BAD_SPEC,
        r"(?P<detail>strict decoding error.*|error validating data.*|ValidatingAdmissionPolicy.*)",
        *_SOURCES,
    ),
    text(
        BAD_SPEC,
        r"(?P<detail>is invalid: .*|\b[\w.\[\]]+: (?:Invalid|Required|Unsupported|Duplicate) value\b.*)",
        *_SOURCES,
    ),
    text(BAD_SPEC, r"(?P<detail>failed rule: .*|\bValidationFailed\b.*)", *_SOURCES),
    text(
        CRD_MISSING,
        r'(?:no matches for kind|unable to recognize).*?"?(?P<resource>[A-Z]\w+)"? in version '
        r'"(?P<group>[^"/]+)[^"]*"',
        *_SOURCES,
    ),
    text(
        CRD_MISSING,
        r"could not find the requested resource(?: \(\w+ (?P<resource>\w+)\.(?P<group>[\w.]+)\))?",
        *_SOURCES,
    ),
    text(CRD_MISSING, r"ensure CRDs are installed first|no kind .* is registered", *_SOURCES),
    text(UNAUTHORIZED, _ANONYMOUS, *_SOURCES),
    text(FORBIDDEN, _CANNOT, *_SOURCES),
    text(FORBIDDEN, r"\(403\)\s*Reason: Forbidden|attempt to grant extra privileges", *_SOURCES),
    text(UNAUTHORIZED, r"\(Unauthorized\)|\(401\)\s*Reason: Unauthorized", *_SOURCES),
    text(
        UNAUTHORIZED,
        r"must be logged in to the server|the server has asked for the client to provide cred",
        *_SOURCES,
    ),
)
_OPERATOR_S = 60.0  # operators that are at work write a status within seconds
_BROKEN_CLIENTS = re.compile(r"32\.0\.0|36\.0\.[0-2]")
_CUT = re.compile(
    r"EOF|too old resource version|read timeout|timed out|connection reset|chunked", re.IGNORECASE
)


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    yield from _answers(snapshot)
    yield from _reviews(snapshot)
    yield from _removals(snapshot)
    yield from _without_operator(snapshot)
    for job in snapshot.jobs:
        status = mapping(job, "status")
        if (
            status.get("jobDeploymentStatus") == "ValidationFailed"
            or status.get("reason") == "ValidationFailed"
        ):
            message = str(status.get("message", "ValidationFailed"))
            yield Sign(
                BAD_SPEC, (f"{job.get('kind')}/{name_of(job)}: {message}",), values={"detail": message}
            )
        for condition in conditions(job):
            if condition.get("reason") == "ValidationFailed" and condition.get("status") == "True":
                message = str(condition.get("message", ""))
                yield Sign(
                    BAD_SPEC, (f"{job.get('kind')}/{name_of(job)}: {message}",), values={"detail": message}
                )


def _without_operator(snapshot: Snapshot) -> Iterator[Sign]:
    """Jobs that nothing acts on: no status, no pods, no events, although they are not suspended."""
    if snapshot.pods or any(condition_of for job in snapshot.jobs for condition_of in conditions(job)):
        return
    for job in snapshot.jobs:
        born = read_time(mapping(job, "metadata").get("creationTimestamp"))
        spec = mapping(job, "spec")
        suspended = spec.get("suspend") is True or mapping(spec, "runPolicy").get("suspend") is True
        if born is None or suspended or snapshot.at_s - born < _OPERATOR_S or mapping(job, "status"):
            continue
        kind = str(job.get("kind", ""))
        name = name_of(job)
        if any(subject_of(event).get("name") == name for event in snapshot.events):
            continue
        waited = f"{snapshot.at_s - born:.0f}"
        line = f"{kind}/{name} was created {waited} s ago and has no status, no pods and no events"
        yield Sign(OPERATOR_ABSENT, (line,), born, values={"kind": kind, "job": name, "waited": waited})


def _answers(snapshot: Snapshot) -> Iterator[Sign]:
    for answer in snapshot.answers:
        line = f"{answer.verb} {answer.path} returned {answer.code}: {answer.message}".replace("  ", " ")
        if answer.verb == "log" or (answer.verb == "watch" and answer.code in (0, 410)):
            if answer.code in (0, 410) or _CUT.search(answer.message):
                values = {"detail": answer.message or str(answer.code)}
                yield Sign(LOG_DROPPED, (line,), at_s=answer.at_s, values=values)
        elif (sign := _judged(answer, line, snapshot)) is not None:
            yield sign


def _judged(answer: Answer, line: str, snapshot: Snapshot) -> Sign | None:
    """Classified by its HTTP code, if the message adds nothing; messages are classified elsewhere."""
    match answer.code:
        case 429:
            after_s = answer.retry_after_s
            values = {} if after_s is None else {"later": f" in {after_s:g} s", "after_s": f"{after_s:g}"}
            return Sign(API_THROTTLED, (line,), at_s=answer.at_s, values=values)
        case 401 | 403 if answer.code == 401 or re.search(_ANONYMOUS, answer.message):
            client = snapshot.client
            known = f"; version {client} of the kubernetes client loses them: install another"
            values = {"client": known} if _BROKEN_CLIENTS.fullmatch(client) else {}
            return Sign(UNAUTHORIZED, (line,), at_s=answer.at_s, values=values)
        case 404 if answer.verb in ("create", "discover"):
            parts = answer.path.strip("/").split("/")
            group = parts[1] if len(parts) > 2 and parts[0] == "apis" else "…"
            values = {"group": group, "resource": f"{parts[-1]}.{group}"}
            return Sign(CRD_MISSING, (line,), at_s=answer.at_s, values=values)
        case 403:
            # Quotas and webhooks also respond with 403; their messages match more specific rules.
            return Sign(FORBIDDEN, (line,), at_s=answer.at_s, weight=Weight.MASK)
        case 400 | 422:
            return Sign(BAD_SPEC, (line,), at_s=answer.at_s, values={"detail": answer.message})
        case _:
            return None


def _reviews(snapshot: Snapshot) -> Iterator[Sign]:
    for review in snapshot.of("SelfSubjectAccessReview"):
        attributes = mapping(review, "spec", "resourceAttributes")
        if mapping(review, "status").get("allowed") is False:
            group = str(attributes.get("group", ""))
            plural = str(attributes.get("resource", ""))
            values = {"verb": str(attributes.get("verb", "")), "plural": plural, "group": group}
            values["where"] = str(attributes.get("namespace", ""))
            line = f"SelfSubjectAccessReview: {values['verb']} {plural} in {values['where']} is not allowed"
            yield Sign(FORBIDDEN, (line,), values=values)


def _removals(snapshot: Snapshot) -> Iterator[Sign]:
    for removal in snapshot.removals:
        if removal.ours:
            continue
        written = mappings(removal.subject, "metadata", "managedFields")
        last = max(written, key=lambda entry: read_time(entry.get("time")) or 0.0, default={})
        manager = str(last.get("manager", "an unknown manager"))
        subject = f"{removal.subject.get('kind')}/{name_of(removal.subject)}"
        line = f"the watch reported DELETED for {subject}"
        yield Sign(
            DELETED_OUTSIDE, (line,), at_s=removal.at_s, values={"subject": subject, "manager": manager}
        )

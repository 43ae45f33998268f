"""AWS identities, downloads, Trainium and HyperPod: the platform around a cluster. Rows 56 to 61.

Missing rights, missing routes and missing devices are configuration. Throttling and server errors pass.
A deep health check ends by itself.
"""

from collections.abc import Iterator
from dataclasses import replace

from paceline.k8s.diagnose.findings import Doubt, Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.pods import condition, phase
from paceline.k8s.diagnose.snapshot import Object, Snapshot, labels_of, name_of
from paceline.k8s.objects import HYPERPOD_HEALTH, read_time

IAM = Failure(
    number=56,
    name="iam",
    what="the pod's AWS identity lacks a permission",
    kind=FailureClass.CONFIG,
    cause="AWS denies the request of the pod: {detail}",
    why="the service account has no role (IRSA, Pod Identity), its trust policy names another account, or "
    "the role lacks the permission",
    command="kubectl get serviceaccounts -n {namespace} -o yaml | grep -E 'name:|role-arn'",
    remedy=Remedy.STOP,
    doubt=Doubt.AFTER_PROGRESS,
)
SERVICE_REFUSES = replace(
    IAM,
    what="a service rejects the pod's credentials",
    cause="a service rejects the credentials of the pod: {detail}",
    why="it received no credentials, wrong ones, or ones without this permission; the next attempt sends "
    "the same",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.serviceAccountName}}'",
)
HUB_OFFLINE = Failure(
    number=57,
    name="hub-offline",
    what="a model hub or package index is not reachable from the cluster",
    kind=FailureClass.CONFIG,
    cause="a download failed, because the pod has no route or is in offline mode: {detail}",
    why="the namespace has no egress, a proxy is missing, or HF_HUB_OFFLINE is set while the files are not "
    "in the cache",
    command="kubectl exec {pod} -n {namespace} -- env | grep -iE 'proxy|offline|HF_'",
    remedy=Remedy.STOP,
    doubt=Doubt.AFTER_PROGRESS,
)
DOWNLOAD = Failure(
    number=58,
    name="download",
    what="a download or object store failed temporarily",
    kind=FailureClass.INFRA,
    cause="a download or object store failed temporarily: {detail}",
    why="the server throttles, is overloaded or closed the connection",
    command="kubectl logs {pod} -n {namespace} --timestamps --tail=50",
    remedy=Remedy.RESUBMIT,
)
NEURON_SETUP = Failure(
    number=59,
    name="neuron-setup",
    what="the Neuron devices cannot be used as they are set up",
    kind=FailureClass.CONFIG,
    cause="the Neuron runtime cannot start on node {node}: {detail}",
    why="the pod did not request aws.amazon.com/neuron, requests more cores than it has, or its runtime, "
    "driver and "
    "compiled model do not match",
    command="kubectl exec {pod} -n {namespace} -- neuron-ls",
    remedy=Remedy.STOP,
    doubt=Doubt.AFTER_PROGRESS,
)
NEURON_HARDWARE = Failure(
    number=60,
    name="neuron-hardware",
    what="a Neuron device is broken",
    kind=FailureClass.INFRA,
    cause="a Neuron device of node {node} is broken: {detail}",
    why="the runtime reports a hardware error; the next attempt stays away from the node",
    command="kubectl cordon {node}",
    remedy=Remedy.RESUBMIT,
    excludes_node=True,
)
NEURON_BUSY = replace(
    NEURON_HARDWARE,
    name="neuron-busy",
    what="the NeuronCores of the pod are still in use by another process",
    cause="the NeuronCores on node {node} are still in use by another process: {detail}",
    why="a process of an earlier pod has not ended, or several processes of this pod use the same cores "
    "(NEURON_RT_VISIBLE_CORES); another node is tried once",
    command="kubectl exec {pod} -n {namespace} -- neuron-ls",
    most=1,
)
HEALTH_CHECK = Failure(
    number=61,
    name="health-check",
    what="HyperPod checks or repairs the nodes",
    kind=FailureClass.WAIT,
    cause="nodes are unavailable while HyperPod checks or replaces them: {detail}",
    why="deep health checks take up to two hours, and a replacement some minutes; then the node is "
    "schedulable again",
    command="kubectl get nodes -L sagemaker.amazonaws.com/node-health-status,"
    "sagemaker.amazonaws.com/deep-health-check-status",
    remedy=Remedy.WAIT,
    weight=Weight.MASK,
    patience_s=None,
)
ROWS = (IAM, SERVICE_REFUSES, HUB_OFFLINE, DOWNLOAD, NEURON_SETUP, NEURON_HARDWARE, NEURON_BUSY, HEALTH_CHECK)

_LOG = (Source.LOG, Source.CLUSTER)
_HOST = (
    r"(?:huggingface\.co|\bhf\.co|hub-ci|hf-mirror|pypi\.org|pythonhosted|download\.pytorch\.org"
    r"|github(?:usercontent)?"
    r"\.com|storage\.googleapis|conda\.anaconda|openaipublic|amazonaws\.com|api\.wandb\.ai|kaggle\.com"
    r"|ngc\.nvidia)"
)
_NO_ROUTE = (
    r"(?:Name or service not known|name resolution|NameResolutionError|Failed to resolve|getaddrinfo failed"
    r"|nodename nor servname|No address associated|Network is unreachable|No route to host|Errno 101"
    r"|Errno 113"
    r"|ProxyError|Tunnel connection failed|CERTIFICATE_VERIFY_FAILED|Could not resolve host)"
)
_PASSING = (
    r"(?:\b(?:429|500|502|503|504)\b|Too Many Requests|SlowDown|Slow Down|Throttl\w+|RequestLimitExceeded"
    r"|Reduce your "
    r"request rate|InternalError|ServiceUnavailable|Bad Gateway|Gateway Time-?out|Read(?: ?)timed? ?out"
    r"|ReadTimeout"
    r"|Connection (?:reset|aborted|broken)|IncompleteRead|ChunkedEncodingError|RemoteDisconnected"
    r"|RequestTimeout"
    r"|ConnectTimeout|Connect timeout|connection was closed|Broken pipe)"
)
EARLY_TEXTS = (
    text(
        HEALTH_CHECK,
        r"(?P<detail>sagemaker\.amazonaws\.com/(?:node-health-status|deep-health-check)[^\n]*"
        r"|deep[- ]health[- ]checks?"
        r"[^\n]*(?:in ?progress|running|started|pending)[^\n]*|Unschedulable(?:PendingReboot"
        r"|PendingReplacement)[^\n]*)",
        Source.CLUSTER,
    ),
)
TEXTS = (
    text(
        IAM,
        r"(?P<detail>(?:WebIdentityErr|InvalidIdentityToken|AssumeRoleWithWebIdentity)[^\n]*"
        r"|not authorized to perform:? ?[\w-]+:\w+[^\n]*|No OpenIDConnect provider found[^\n]*)",
    ),
    text(
        IAM,
        r"(?P<detail>An error occurred \((?:AccessDenied\w*|403|Unauthorized\w*|Expired\w*|InvalidAccessKeyId"
        r"|InvalidClientTokenId|UnrecognizedClientException|SignatureDoesNotMatch|InvalidToken|AuthFailure"
        r"|InvalidSignatureException|NotAuthorized\w*|OptInRequired)\)[^\n]*)",
    ),
    text(
        IAM,
        r"(?P<detail>Unable to locate credentials[^\n]*|NoCredentials(?:Error)?\b[^\n]*"
        r"|PartialCredentialsError[^\n]*"
        r"|CredentialRetrievalError[^\n]*|Error when retrieving (?:credentials|token) from[^\n]*"
        r"|NoCredentialProviders"
        r"[^\n]*|ExpiredToken\w*[^\n]*|token (?:included in the request )?is expired[^\n]*"
        r"|failed to refresh cached "
        r"credentials[^\n]*|no EC2 IMDS role found[^\n]*|StorageAccessDenied[^\n]*"
        r"|UnauthorizedOperation[^\n]*)",
    ),
    text(
        IAM,
        r"(?P<detail>(?:\bs3\b|S3File|s3fs|boto\w*|fsspec|aws)[^\n]*(?:Access ?Denied|403 Forbidden"
        r"|Forbidden)[^\n]*"
        r"|(?:AccessDenied\w*|Forbidden)[^\n]*\b(?:s3|kms|ecr|sts|secretsmanager|fsx|dynamodb)\b[^\n]*)",
        *_LOG,
    ),
    text(
        HUB_OFFLINE,
        r"(?P<detail>LocalEntryNotFoundError[^\n]*|cannot find the requested files in the (?:disk"
        r"|local) cache[^\n]*"
        r"|(?:outgoing|internet) (?:traffic|access) (?:has been|is) (?:disabled|not available)[^\n]*)",
        *_LOG,
    ),
    text(
        HUB_OFFLINE,
        r"(?P<detail>OfflineModeIsEnabled[^\n]*|[Oo]ffline mode is enabled[^\n]*"
        r"|outgoing traffic has been disabled[^\n]*"
        r"|(?:HF_HUB|TRANSFORMERS|HF_DATASETS)_OFFLINE[^\n]*|local_files_only=True[^\n]*)",
        *_LOG,
    ),
    # The resolver reports "Temporary" both for a server that does not respond and for a forbidden one.
    text(
        HUB_OFFLINE,
        rf"(?P<detail>{_HOST}[\s\S]{{0,400}}?Temporary failure in name resolution[^\n]*)",
        *_LOG,
        soft=True,
        doubt=Doubt.ALWAYS,
    ),
    text(HUB_OFFLINE, rf"(?P<detail>{_HOST}[\s\S]{{0,400}}?{_NO_ROUTE}[^\n]*)", *_LOG, soft=True),
    text(HUB_OFFLINE, rf"(?P<detail>{_NO_ROUTE}[^\n]{{0,200}}{_HOST}[^\n]*)", *_LOG, soft=True),
    text(
        HUB_OFFLINE,
        r"(?P<detail>(?:Could|Couldn't|Can't|We couldn't|Cannot) (?:not )?(?:connect|reach"
        r"|load)[^\n]*(?:hugging ?face|the Hub"
        r"|hf\.co)[^\n]*|Could not connect to the endpoint URL[^\n]*|EndpointConnectionError[^\n]*)",
        *_LOG,
        soft=True,
        doubt=Doubt.ALWAYS,
    ),
    text(
        DOWNLOAD,
        rf"(?P<detail>(?:An error occurred \(|\bs3\b|boto\w*|fsspec|urllib3|requests\.exceptions|aiohttp"
        rf"|httpx|ClientError"
        rf"|HTTPSConnectionPool|HTTPError|{_HOST})[^\n]*{_PASSING}[^\n]*)",
        *_LOG,
        soft=True,
    ),
    text(
        DOWNLOAD,
        r"(?P<detail>(?:ReadTimeoutError|ConnectTimeoutError|ConnectionClosedError|ResponseStreamingError"
        r"|IncompleteReadError"
        r"|ChunkedEncodingError|IncompleteRead|RemoteDisconnected|ServerDisconnectedError)\b[^\n]*)",
        *_LOG,
        soft=True,
    ),
    text(
        NEURON_HARDWARE,
        r"(?P<detail>NRT_(?:EXEC_)?HW_ERR\w*[^\n]*|NRT_HW_ERROR[^\n]*|(?:neuron|nrt"
        r"|NEURON_HW)[^\n]*(?:uncorrect\w+"
        r"|hardware error|ECC error|(?:HBM|SRAM|DMA) (?:error|abort|uncorr\w*)|NC_UNCORRECTABLE"
        r"|DMA_ERROR)[^\n]*"
        r"|NeuronHas(?:Error|\w*Hardware\w*)[^\n]*|Neuron(?:DMA|HBM|NC|SRAM)\w*Error[^\n]*)",
    ),
    # The device exists, but none of its cores is free.
    text(
        NEURON_BUSY,
        r"(?P<detail>Neuron ?Core\(s\) not available[^\n]*Available: ?0\b[^\n]*"
        r"|(?:neuron|nrt|nrtd|TDRV)[^\n]*(?:device or resource busy|already in use|is in use by)[^\n]*)",
    ),
    text(
        NEURON_SETUP,
        r"(?P<detail>(?:Logical )?Neuron ?Core\(s\) not available[^\n]*|No neuron device[^\n]*"
        r"|/dev/neuron\d*[^\n]*(?:not found"
        r"|No such|cannot open|failed)[^\n]*|neuron driver[^\n]*(?:not|mismatch|too old|older)[^\n]*"
        r"|nrt_init[^\n]*(?:fail"
        r"|error|status)[^\n]*|NRT(?::nrt_\w+)?[^\n]*(?:Failed to initialize|Unable to|not supported)[^\n]*"
        r"|NRT_(?:UNSUPPORTED_NEFF_VERSION|INVALID\w*|RESOURCE\w*|UNINITIALIZED|FAILURE"
        r"|LOAD_NOT_ENOUGH_NC)[^\n]*"
        r"|NERR_(?:RESOURCE|INVALID|FAIL)\w*[^\n]*|(?:Could not open the device index|No devices specified"
        r"|Failed to "
        r"initialize devices)[^\n]*|NEURON_RT_(?:VISIBLE_CORES|NUM_CORES)[^\n]*(?:invalid|exceed|fail"
        r"|error)[^\n]*"
        r"|nrt_load[^\n]*status=\d+[^\n]*|TDRV:[^\n]*(?:fail|not initialized|could not)[^\n]*)",
    ),
    text(
        NEURON_SETUP,
        r"(?P<detail>(?:neuronx-cc|neuron-cc|NEURONX?_?CC|hlo2neuron|libneuronxla)[^\n]*(?:fail|error|abort"
        r"|terminated)[^\n]*"
        r"|Compil\w+ (?:failure|failed|error)[^\n]*(?:neuron|neff|hlo)[^\n]*|\[ERROR\][^\n]*(?:NCC_"
        r"|neff)[^\n]*|NCC_[A-Z]\w+\d+"
        r"[^\n]*)",
        *_LOG,
    ),
    # A connection that is dropped on the way, where only the frames of the traceback name the client.
    text(
        DOWNLOAD,
        r"/(?:urllib3|botocore|aiobotocore|s3fs|fsspec|requests|httpx|httpcore|aiohttp|gcsfs|adlfs)/"
        r"[^\n]*line \d+"
        r"(?:(?!Traceback \(most recent)[\s\S])*?\n(?P<detail>(?:[\w.]+\.)?"
        r"(?:ConnectionResetError|ConnectionAbortedError|BrokenPipeError|TimeoutError|ReadTimeoutError"
        r"|IncompleteRead|ProtocolError|ReadTimeout|ServerDisconnectedError)\b[^\n]*)",
        *_LOG,
        doubt=Doubt.UNTIL_PROGRESS,
    ),
)


def _status(codes: str) -> str:
    """Words for a status of HTTP, as clients print it."""
    before = r"(?:HTTP(?:/[\d.]+)?|HTTP ?Error|status(?:[ _]?code)?|response(?: code)?|too many)"
    behind = r"(?:(?:Client|Server) Error\b|(?:GET|POST|PUT|PATCH|DELETE|HEAD) https?:)"
    return rf"(?:\b{before}[ :=('\"\[]{{1,4}}(?:{codes})\b|\b(?:{codes}) {behind})"


# The meaning of an HTTP status or of an error code of gRPC or a cloud library is the same for all services.
LATE_TEXTS = (
    text(
        SERVICE_REFUSES,
        rf"(?P<detail>{_status('401|403|407')}[^\n]*"
        r"|google\.(?:api_core|auth)\.exceptions\.(?:Forbidden|PermissionDenied|Unauthori[sz]ed|Unauthenticated"
        r"|DefaultCredentialsError|RefreshError)[^\n]*|default credentials were not found[^\n]*"
        r"|does not have (?:storage|serviceusage|artifactregistry)\.\S+ access[^\n]*"
        r"|(?:StatusCode\.|code = |: )"
        r"(?-i:PERMISSION_DENIED|UNAUTHENTICATED|PermissionDenied|Unauthenticated)\b[^\n]*"
        r"|(?:ClientAuthenticationError|AuthorizationPermissionMismatch|AuthorizationFailure"
        r"|AuthenticationFailed|InvalidAuthenticationInfo)\b[^\n]*)",
        *_LOG,
        soft=True,
    ),
    text(
        DOWNLOAD,
        rf"(?P<detail>{_status('408|429|502|503|504')}[^\n]*"
        r"|google\.api_core\.exceptions\.(?:ServiceUnavailable|TooManyRequests|GatewayTimeout|BadGateway"
        r"|DeadlineExceeded|RetryError|ResourceExhausted)[^\n]*|(?:ServerBusy|OperationTimedOut)\b[^\n]*)",
        *_LOG,
        soft=True,
    ),
    # A connection that is dropped on the way: a firewall from the start, or the network later.
    text(
        DOWNLOAD,
        r"(?P<detail>(?:HTTPS?Connection|urllib3|aiohttp|httpx|azure\.|google\.|gcsfs|adlfs|ServiceRequestError)"
        r"[^\n]*(?:\[Errno (?:32|104|110)\]|timed out|reset by peer|aborted)[^\n]*)",
        *_LOG,
        soft=True,
        doubt=Doubt.UNTIL_PROGRESS,
    ),
)
_CHECKED = "sagemaker.amazonaws.com/deep-health-check-status"


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    """A pod that waits while HyperPod keeps nodes out of use for a check."""
    waiting = [pod for pod in snapshot.pods if phase(pod) == "Pending"]
    checked = [node for node in snapshot.nodes if _is_checked(node)]
    if not (waiting and checked):
        return
    pod = waiting[0]
    states = ", ".join(f"{name_of(node)} {_state(node)}" for node in checked[:4])
    at_s = read_time(condition(pod, "PodScheduled").get("lastTransitionTime"))
    lines = tuple(f"node/{name_of(node)} has {_state(node)}" for node in checked)
    yield Sign(HEALTH_CHECK, lines, at_s, pod, {"detail": states})


def _is_checked(node: Object) -> bool:
    labels = labels_of(node)
    return labels.get(_CHECKED) == "InProgress" or labels.get(HYPERPOD_HEALTH, "Schedulable") != "Schedulable"


def _state(node: Object) -> str:
    labels = labels_of(node)
    return f"{labels.get(HYPERPOD_HEALTH, 'Schedulable')}/{labels.get(_CHECKED, 'not checked')}"

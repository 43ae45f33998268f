"""The program's own failures, its models from the hub, its checkpoint. Rows 39 to 43, 47, 71 and 72."""

from collections.abc import Iterator
from dataclasses import replace

from paceline.k8s.diagnose.findings import Doubt, Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.pods import ended, exit_text, waiting
from paceline.k8s.diagnose.snapshot import Snapshot, name_of

HUB_ACCESS = Failure(
    number=39,
    name="hub-access",
    what="Hugging Face denies the download",
    kind=FailureClass.CONFIG,
    cause="Hugging Face denies this token access to {repository}",
    why="the model's terms were not accepted, or the Secret has no token or another user's",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].env}}'",
    remedy=Remedy.STOP,
    doubt=Doubt.AFTER_PROGRESS,
)
HUB_SLOW = Failure(
    number=40,
    name="hub-slow",
    what="Hugging Face is slow or limits downloads",
    kind=FailureClass.INFRA,
    cause="a download from Hugging Face failed: {detail}",
    why="many ranks download at once, or the hub is overloaded; stage the files once on a volume",
    command="kubectl logs {pod} -n {namespace} --timestamps --tail=50",
    remedy=Remedy.RESUBMIT,
)
USER_EXCEPTION = Failure(
    number=41,
    name="user-exception",
    what="the program failed",
    kind=FailureClass.APP,
    cause="the program of rank {rank} failed: {detail}{at}",
    why="the exception was raised by the program; the same code on the same data fails again",
    command="kubectl logs {pod} -n {namespace} --timestamps | tail -50",
    remedy=Remedy.RESUBMIT,
)
LISTED_EXIT_CODE = Failure(
    number=42,
    name="listed-exit-code",
    what="the program ended with an exit code that requests a restart",
    kind=FailureClass.APP,
    cause="pod {pod} ended with exit code {code}, which requests a restart",
    why="the job lists this exit code as recoverable",
    command="kubectl logs {pod} -n {namespace} --tail=50",
    remedy=Remedy.RESUBMIT,
    counted=False,
)
CRASH_LOOP = Failure(
    number=43,
    name="crash-loop",
    what="the container crashes repeatedly",
    kind=FailureClass.APP,
    cause="container {container} of pod {pod} crashes repeatedly, with {code}",
    why="CrashLoopBackOff is only the restart delay; the cause is in the log of the previous container",
    command="kubectl logs {pod} -c {container} -n {namespace} --previous",
    remedy=Remedy.RESUBMIT,
    weight=Weight.MASK,
)
CHECKPOINT = Failure(
    number=47,
    name="checkpoint-unusable",
    what="a checkpoint cannot be read or written",
    kind=FailureClass.CONFIG,
    cause="a checkpoint cannot be used: {detail}",
    why="it was truncated while being written, or its volume was full; move it away, and the next attempt "
    "resumes from the previous one",
    command="kubectl logs {pod} -n {namespace} --timestamps | grep -iE 'checkpoint|ckpt'",
    remedy=Remedy.STOP,
)
CHECKPOINT_OTHER = replace(
    CHECKPOINT,
    cause="a checkpoint does not belong to this model: {detail}",
    why="its parameters have other names or shapes; earlier checkpoints of the same run have the same "
    "problem",
)
PACKAGES = Failure(
    number=71,
    name="packages",
    what="a package that the program needs cannot be installed",
    kind=FailureClass.CONFIG,
    cause="a package cannot be installed: {detail}",
    why="no release fits this Python and platform, or two requirements exclude each other; build it into "
    "the image",
    command="kubectl logs {pod} -n {namespace} --timestamps | grep -iE 'error|requirement'",
    remedy=Remedy.STOP,
)
PROBE = Failure(
    number=72,
    name="liveness-probe",
    what="the kubelet restarts a container whose probe fails",
    kind=FailureClass.CONFIG,
    cause="container {container} of pod {pod} is restarted, because its liveness or startup probe fails: "
    "{detail}",
    why="the probe allows less time than the program needs to respond, or the program does not listen",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.containers[*].livenessProbe}}'",
    remedy=Remedy.STOP,
    weight=Weight.WAITING,
    patience_s=600.0,
)
ROWS = (
    HUB_ACCESS,
    HUB_SLOW,
    USER_EXCEPTION,
    LISTED_EXIT_CODE,
    CRASH_LOOP,
    CHECKPOINT,
    CHECKPOINT_OTHER,
    PACKAGES,
    PROBE,
)

_LOG = (Source.LOG, Source.CLUSTER)
_REPOSITORY = r"https://(?:huggingface\.co|hf\.co)/(?:api/models/|datasets/)?[\w.-]+/[\w.-]+"
_HUB = r"(?:huggingface\.co|hf\.co|cdn-lfs\S*)"
TEXTS = (
    text(HUB_ACCESS, rf"(?:40[13] Client Error|gated repo)[^\n]*(?P<repository>{_REPOSITORY})", *_LOG),
    text(
        HUB_ACCESS, r"Access to model (?P<repository>\S+) is restricted|RepositoryNotFoundError: 401", *_LOG
    ),
    text(HUB_ACCESS, r"GatedRepoError|Cannot access gated repo", *_LOG),
    text(HUB_ACCESS, r"(?:'(?P<repository>[^'\s]+)'|) is not a local folder and is not a valid model", *_LOG),
    text(HUB_ACCESS, rf"Repository Not Found for url: (?P<repository>{_REPOSITORY})", *_LOG),
    text(HUB_ACCESS, r"Invalid user token|Token is required .*but no token found", *_LOG),
    text(
        HUB_ACCESS,
        rf"\b40[13] (?:Client Error|Forbidden|Unauthorized)[^\n]*{_HUB}"
        rf"|Invalid (?:credentials in Authorization|username or "
        r"password)|(?:Access to|access) (?:model|dataset|this repo)[^\n]*(?:restricted|gated"
        r"|must (?:be authenticated|have access))"
        r"|You need to (?:share contact information|agree)[^\n]*|(?:is|access) a gated (?:repo|dataset|model)"
        r"|LocalTokenNotFoundError"
        r"|Repository Not Found for url|Revision Not Found for url|DatasetNotFoundError",
        *_LOG,
    ),
    # "Max retries exceeded" alone gives no cause: no route, no name and no response all end in it.
    text(
        HUB_SLOW,
        rf"(?P<detail>{_HUB}(?![^\n]*(?:unreachable|name resolution|Failed to resolve|Name or service))"
        r"[^\n]*(?:Read timed out|Connect ?timeout|timed out|Connection (?:reset|aborted|broken))[^\n]*)",
        *_LOG,
        soft=True,
    ),
    text(
        HUB_SLOW, rf"(?P<detail>(?:429|50[0-9]) (?:Client|Server) Error[^\n]*{_HUB}[^\n]*)", *_LOG, soft=True
    ),
    text(
        HUB_SLOW,
        rf"(?P<detail>429 Too Many Requests[^\n]*{_HUB}[^\n]*)",
        *_LOG,
        soft=True,
    ),
    text(CHECKPOINT, r"(?P<detail>EOFError: Ran out of input|BadZipFile[^\n]*)", *_LOG),
    text(CHECKPOINT, r"(?P<detail>PytorchStreamReader failed[^\n]*)", *_LOG),
    text(
        CHECKPOINT,
        r"(?P<detail>SafetensorError[^\n]*|invalid header or archive is corrupted|CheckpointException[^\n]*)",
        *_LOG,
    ),
    text(
        CHECKPOINT,
        r"(?P<detail>unexpected EOF, expected \d+ more bytes[^\n]*|storage has wrong byte size[^\n]*)",
        *_LOG,
    ),
    text(CHECKPOINT_OTHER, r"(?P<detail>Error\(s\) in loading state_dict[^\n]*)", *_LOG),
    text(
        CHECKPOINT,
        r"(?P<detail>(?:checkpoint|ckpt)[^\n]*(?:size 0|is empty|corrupt)[^\n]*)",
        *_LOG,
    ),
    # These are mistakes of the program, with messages like those of NCCL or CUDA.
    text(
        USER_EXCEPTION,
        r"(?P<detail>ncclInvalid(?:Usage|Argument)[\s\S]*)",
        *_LOG,
        weight=Weight.MASK,
    ),
    text(
        USER_EXCEPTION,
        r"(?P<detail>(?:CUDA error: )?(?:device-side assert triggered"
        r"|an illegal memory access was encountered|misaligned address"
        r"|an illegal instruction was encountered|invalid configuration argument)[^\n]*"
        r"|Detected mismatch between collectives"
        r"[^\n]*|Cannot re-initialize CUDA in forked subprocess[^\n]*)",
        *_LOG,
    ),
    # An index that cannot be reached has no versions, either.
    text(
        PACKAGES,
        r"(?P<detail>Could not find a version[^\n]*\(from versions: none\))",
        *_LOG,
        doubt=Doubt.ALWAYS,
    ),
    text(
        PACKAGES,
        r"(?P<detail>No matching distribution found[^\n]*|Could not find a version that satisfies[^\n]*"
        r"|ResolutionImpossible[^\n]*"
        r"|Failed building wheel for[^\n]*|PackagesNotFoundError[^\n]*|No solution found when resolving[^\n]*"
        r"|subprocess-exited-with-error[^\n]*|E: Unable to locate package[^\n]*)",
        *_LOG,
    ),
    text(
        PROBE,
        r"(?P<detail>failed (?:liveness|startup) probe, will be restarted[^\n]*|(?:Liveness"
        r"|Startup) probe failed[^\n]*)",
        Source.CLUSTER,
    ),
)
# Any line that ends like a Python exception and matches no better rule.
LATE_TEXTS = (
    # The product's own line: the participant, then its exception or what became of it.
    text(
        USER_EXCEPTION,
        r"error\[E\d+\]: (?:the run failed: )?(?:worker-(?P<rank>\d+): )?(?P<detail>[^\n]*)",
        *_LOG,
    ),
    # Errors of a device or a runtime below the program: its own mistake, a driver's or the hardware's.
    text(
        USER_EXCEPTION,
        r"(?P<detail>(?:CUDA|HIP|NCCL|CUDNN|cuDNN|CUBLAS|XPU) (?:driver |runtime )?(?:error|failure)\b"
        r"(?![^\n]*(?:invalid|not supported|not permitted|peer access))[^\n]*"
        r"|(?:CUBLAS|CUDNN|CUSOLVER|CUFFT)_STATUS_(?!INVALID|NOT_SUPPORTED|BAD_PARAM|ARCH|LICENSE)\w+[^\n]*"
        r"|(?:XlaRuntimeError|JaxRuntimeError|InternalError|AbortedError|UnknownError): "
        r"(?:INTERNAL|UNKNOWN|ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|CANCELLED)\b[^\n]*"
        r"|INTERNAL ASSERT FAILED[^\n]*)",
        *_LOG,
        doubt=Doubt.ALWAYS,
    ),
    text(
        USER_EXCEPTION,
        r"^(?P<detail>(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Iteration)(?:\(\w+\))?"
        r"(?:: [^\n]*)?)$",
        *_LOG,
    ),
    # The watchdog of NCCL ends a process like this, after it has reported why.
    text(
        USER_EXCEPTION,
        r"(?P<detail>terminate called after throwing[^\n]*|Fatal Python error: Aborted[^\n]*)",
        *_LOG,
        weight=Weight.CONSEQUENCE,
        doubt=Doubt.ALWAYS,
    ),
    # A crash in native code: the program's, a driver's or the memory's.
    text(
        USER_EXCEPTION,
        r"(?P<detail>Fatal Python error: [^\n]*|Segmentation fault[^\n]*|Signal 11 \(SIGSEGV\)[^\n]*"
        r"|(?:exit ?code|return ?code) ?[:=]? ?(?:-11|139)\b[^\n]*)",
        *_LOG,
        doubt=Doubt.ALWAYS,
    ),
    text(
        USER_EXCEPTION,
        r"(?P<detail>\w*: error while loading shared libraries: [^\n]*|panic: [^\n]*"
        r"|An error occurred \((?:NoSuch\w+|404|\w*NotFound\w*|Invalid\w+|ValidationException)\)[^\n]*)",
        *_LOG,
    ),
    text(
        USER_EXCEPTION,
        r"(?P<detail>\w+\.py: error: [^\n]*|error: (?:unrecognized arguments"
        r"|the following arguments are required|argument )"
        r"[^\n]*|Error: (?:No such option|Invalid value|Missing option)[^\n]*)",
        *_LOG,
    ),
)


_SEGMENTATION_FAULT = 139


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    ends = ended(snapshot)
    for end in ends:
        line = f"pod/{name_of(end.pod)} container {end.container}: {exit_text(end.exit_code)} {end.reason}"
        if end.exit_code in snapshot.listed_exit_codes:
            yield Sign(LISTED_EXIT_CODE, (line,), end.at_s, end.pod, {"code": str(end.exit_code)})
        elif end.exit_code == _SEGMENTATION_FAULT:
            message = f"it crashed in native code with {exit_text(end.exit_code)}"
            yield Sign(
                USER_EXCEPTION,
                (line,),
                end.at_s,
                end.pod,
                {"detail": message},
                weight=Weight.CONSEQUENCE,
                is_doubtful=True,
            )
    for container in waiting(snapshot):
        if container.reason == "CrashLoopBackOff":
            before = next((end for end in ends if end.pod is container.pod), None)
            code = "an unknown exit code" if before is None else exit_text(before.exit_code)
            line = (
                f"pod/{name_of(container.pod)} container {container.container} waits: "
                f"{container.reason}: {container.message}"
            )
            values = {"container": container.container, "code": code}
            at_s = None if before is None else before.at_s
            yield Sign(CRASH_LOOP, (line,), at_s, container.pod, values, is_doubtful=True)

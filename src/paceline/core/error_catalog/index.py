"""Catalog of error codes and exit codes. A code is never reused for another kind of error."""

from paceline.core.error_catalog.platforms import CLUSTER_ERRORS, DATA_ERRORS, IMAGE_ERRORS
from paceline.core.error_catalog.runs import COORDINATOR_ERRORS, RUN_ERRORS, TRAINING_ERRORS
from paceline.core.error_catalog.scripts import SCRIPT_ERRORS
from paceline.core.error_catalog.usage import MACHINE_ERRORS, SETTINGS_ERRORS
from paceline.core.errors import ErrorEntry, ExitCode

# In this order in docs/reference/errors.md.
_ENTRIES = (
    *SETTINGS_ERRORS,
    *SCRIPT_ERRORS,
    *MACHINE_ERRORS,
    *RUN_ERRORS,
    *TRAINING_ERRORS,
    *COORDINATOR_ERRORS,
    *CLUSTER_ERRORS,
    *IMAGE_ERRORS,
    *DATA_ERRORS,
)
ERROR_CATALOG: dict[str, ErrorEntry] = {entry.code: entry for entry in _ENTRIES}

EXIT_CODE_MEANINGS = {
    ExitCode.OK: "success",
    ExitCode.INTERNAL: "internal error: a bug in paceline; the message names the crash report",
    ExitCode.USAGE: "invalid command line: an unknown command or option, or a missing argument",
    ExitCode.BAD_CONFIG: "invalid configuration; every problem is listed with its location and a fix",
    ExitCode.NOT_READY: "a prerequisite is missing on this machine or in the cluster; run `paceline doctor`",
    ExitCode.TRAINING_FAILED: "the command or the run failed, or its input was not found",
    ExitCode.DEGRADED: "the coordinator has no leader, a voter is down, or its state forbids the request",
    ExitCode.UNREACHABLE: "a service is unreachable: a coordinator, Ray, a Kubernetes cluster or a store",
    ExitCode.GATE_FAILED: "a check failed: a law is violated, a replay diverges from its run, a log or a "
    "download is corrupted, or an image has a conflict or does not work",
    ExitCode.NO_LOGIN: "`image push`: no credentials for the registry, or they have expired",
    ExitCode.FORBIDDEN: "`image push`: the registry denied the push to this user",
    ExitCode.TAG_TAKEN: "`image push`: the tag exists already, and the repository's tags are immutable",
    ExitCode.WRONG_ACCOUNT: "`image push`: the credentials belong to another AWS account",
    ExitCode.NO_REPOSITORY: "`image push`: the repository does not exist, and creating it was not allowed",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C; `train` saves a checkpoint to resume from",
    ExitCode.TERMINATED: "terminated by SIGTERM or SIGHUP; `train` saves a checkpoint to resume from",
}

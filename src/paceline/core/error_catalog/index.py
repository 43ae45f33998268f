"""Catalog of error codes and exit codes. A code is never reused for another kind of error."""

from paceline.core.error_catalog.platforms import CLUSTER_ERRORS, DATA_ERRORS, IMAGE_ERRORS
from paceline.core.error_catalog.runs import COORDINATOR_ERRORS, RUN_ERRORS, TRAINING_ERRORS
from paceline.core.error_catalog.usage import MACHINE_ERRORS, SETTINGS_ERRORS
from paceline.core.errors import ErrorEntry, ExitCode

# In this order in docs/reference/errors.md.
_ENTRIES = (
    *SETTINGS_ERRORS,
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
    ExitCode.OK: "it did what was asked",
    ExitCode.INTERNAL: "a bug in paceline; a report was written, and the message names the file",
    ExitCode.USAGE: "the command line cannot be read: an unknown command or flag",
    ExitCode.BAD_CONFIG: "a setting is wrong; every problem is listed with its place and a fix",
    ExitCode.NOT_READY: "this machine lacks something the command needs; `paceline doctor` looks for it",
    ExitCode.TRAINING_FAILED: "a run started and could not finish, or there is nothing to work on",
    ExitCode.DEGRADED: "the coordinator has no leader, lacks a voter, or cannot do it as it is now",
    ExitCode.UNREACHABLE: "whoever was asked does not answer: a coordinator, Ray, a cluster, a store",
    ExitCode.GATE_FAILED: "what was to be proved does not hold: a law is broken, a replay parts from its "
    "run, a node's log is damaged, an image has a conflict or does not work",
    ExitCode.NO_LOGIN: "`image push`: there is no login for the registry, or it has expired",
    ExitCode.FORBIDDEN: "`image push`: the registry knows who asks, and refuses",
    ExitCode.TAG_TAKEN: "`image push`: another image has this tag, and tags of this repository do not move",
    ExitCode.WRONG_ACCOUNT: "`image push`: the credentials are of another AWS account",
    ExitCode.NO_REPOSITORY: "`image push`: there is no such repository, and none was to be made",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C; `train` leaves a checkpoint to resume from",
    ExitCode.TERMINATED: "stopped by SIGTERM or SIGHUP; `train` leaves a checkpoint to resume from",
}

"""Reference page of known job failures, from the table of rules."""

from docs.tables import code, table
from paceline.k8s.diagnose.classify import FAILURES, UNKNOWN
from paceline.k8s.diagnose.findings import Failure, Remedy

_REMEDIES = {
    Remedy.STOP: "remove the job",
    Remedy.RESUBMIT: "restart the whole job",
    Remedy.FIX: "retry with a change",
    Remedy.WAIT: "wait",
    Remedy.REPEAT: "retry the call",
    Remedy.RECONNECT: "reconnect",
    Remedy.NOTHING: "nothing",
}


def failures_page() -> list[str]:
    return [
        "# Failures",
        "",
        "The failures that `paceline job explain` recognizes; how to use it:",
        "[find out why a job is stuck](../guides/jobs.md#find-out-why-a-job-is-stuck).",
        "`{…}` is replaced by a detail of the job.",
        "",
        *table(
            ("#", "name", "class", "cause", "explanation", "action", "next command"),
            (_row(failure) for failure in (*FAILURES, UNKNOWN)),
        ),
    ]


def _row(failure: Failure) -> tuple[str, ...]:
    return (
        str(failure.number or "–"),
        code(failure.name),
        failure.kind.value,
        failure.cause,
        failure.why,
        _done(failure),
        code(failure.command.replace("{{", "{").replace("}}", "}")),
    )


def _done(failure: Failure) -> str:
    done = _REMEDIES[failure.remedy]
    if failure.change:
        done += f" ({failure.change})"
    if failure.patience_s is None:
        done += ", without a limit"
    elif failure.patience_s:
        done += f", {'for' if failure.remedy is Remedy.WAIT else 'after'} {failure.patience_s:g} s"
    if failure.most is not None:
        done += ", once" if failure.most == 1 else f", at most {failure.most} times"
    if failure.excludes_node:
        done += ", without the node"
    return done if failure.counted else f"{done}; does not use the budget"

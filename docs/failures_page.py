"""Which failures of jobs on a cluster are known? The rows of the table, as a page."""

from docs.tables import code, table
from paceline.k8s.diagnose.classify import FAILURES, UNKNOWN
from paceline.k8s.diagnose.findings import Failure, Remedy

_REMEDIES = {
    Remedy.STOP: "remove the job",
    Remedy.RESUBMIT: "the whole gang again",
    Remedy.FIX: "again, with a change",
    Remedy.WAIT: "wait",
    Remedy.REPEAT: "the same call again",
    Remedy.RECONNECT: "reconnect",
    Remedy.NOTHING: "nothing",
}


def failures_page() -> list[str]:
    return [
        "# Failures",
        "",
        "What `paceline job explain` knows; see [why is my job stuck?](../guides/explain.md).",
        "`{…}` stands for what is found out about the job at hand.",
        "",
        *table(
            ("#", "name", "class", "cause", "why", "what is done", "next command"),
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
        done += ", for as long as it takes"
    elif failure.patience_s:
        done += f", {'for' if failure.remedy is Remedy.WAIT else 'after'} {failure.patience_s:g} s"
    if failure.most is not None:
        done += ", once" if failure.most == 1 else f", at most {failure.most} times"
    if failure.excludes_node:
        done += ", without the node"
    return done if failure.counted else f"{done}; costs nothing"

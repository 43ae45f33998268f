"""Retry decision for a whole job: whether, when, where, from which budget, by current and earlier failures.

- The cluster's failures and the program's own have separate budgets; wrong settings have none.
- The same failure of the same rank at about the same step twice is not transient: stop.
- Another attempt is announced with the checkpoint that it continues from.

Pure: a decision carries the action and its reason. See docs/guides/jobs.md.
"""

from dataclasses import dataclass, field, replace

from paceline.core.errors import ExitCode
from paceline.k8s.diagnose.findings import FailureClass, Finding, Remedy
from paceline.plan.codec import Json

# Changes that the next attempt can make in its manifest.
CHANGES = {
    "memory": "1.5 times the memory",
    "shared-memory": "twice the size of /dev/shm",
    "mesh": "the service mesh disabled for its pods",
}
# Changes that need no permission: they cost nothing that the user did not order.
_FREE_CHANGES = frozenset({"shared-memory", "mesh"})
ALLOWABLE = tuple(sorted(set(CHANGES) - _FREE_CHANGES))  # values of `job submit --allow`


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    infra: int = 3
    app: int = 0
    first_delay_s: float = 15.0
    longest_delay_s: float = 300.0
    pending_s: float | None = None  # patience with full nodes; None: from the table
    allowed_changes: frozenset[str] = frozenset()  # beyond those that are free


@dataclass(frozen=True, slots=True)
class Fingerprint:
    failure: str
    rank: int | None
    step: int | None

    def is_like(self, other: "Fingerprint") -> bool:
        if (self.failure, self.rank) != (other.failure, other.rank):
            return False
        if self.step is None or other.step is None:
            return self.step is other.step
        return abs(self.step - other.step) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Attempts so far."""

    number: int = 1
    infra_used: int = 0
    app_used: int = 0
    failures: tuple[Fingerprint, ...] = ()
    excluded: tuple[str, ...] = ()  # nodes
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resubmit:
    """Save the logs of every pod, delete the whole gang, create it again."""

    attempt: int
    not_before_s: float
    budget: str  # the budget that the attempt counts against: infra, app, or neither
    says: str
    excluded: tuple[str, ...] = ()
    change: str = ""
    action: str = field(default="resubmit", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Save the logs of every pod, delete the job."""

    says: str
    exit_code: ExitCode
    remove: bool = True
    action: str = field(default="stop", init=False)


def decide(
    finding: Finding, past: Attempts, policy: RetryPolicy, checkpoint: int | None, now_s: float, jitter: float
) -> tuple[Resubmit | Stop, Attempts]:
    """`checkpoint`: the step of the newest one, if any. `jitter`: from 0 to 1, spreads the delays."""
    fingerprint = Fingerprint(finding.failure.name, finding.rank, finding.step)
    reason = _reason_to_stop(finding, fingerprint, past, policy)
    if reason:
        return _stop(finding, reason), past
    budget = _budget(finding)
    change = finding.failure.change if finding.failure.remedy is Remedy.FIX else ""
    excluded = past.excluded
    if _leaves_node(finding, past) and finding.node and finding.node not in excluded:
        excluded = (*excluded, finding.node)
    after = replace(
        past,
        number=past.number + 1,
        infra_used=past.infra_used + (budget == "infra"),
        app_used=past.app_used + (budget == "app"),
        failures=(*past.failures, fingerprint),
        excluded=excluded,
        changes=(*past.changes, change) if change else past.changes,
    )
    delay_s = _delay_s(past.number, policy, jitter)
    announcement = _announced(after, budget, policy, delay_s, change, excluded, checkpoint)
    decision = Resubmit(
        attempt=after.number,
        not_before_s=now_s + delay_s,
        budget=budget,
        says=announcement,
        excluded=excluded,
        change=change,
    )
    return decision, after


def _reason_to_stop(finding: Finding, current: Fingerprint, past: Attempts, policy: RetryPolicy) -> str:
    failure = finding.failure
    if failure.remedy not in (Remedy.RESUBMIT, Remedy.FIX):
        return "a retry cannot help"
    if failure.remedy is Remedy.FIX and failure.change not in _FREE_CHANGES | policy.allowed_changes:
        if failure.change not in CHANGES:
            return "a retry cannot help until it exists: create it with the `next` command"
        change = CHANGES[failure.change]
        return f"it may work with {change}: `paceline job submit --allow {failure.change}` allows that"
    before = [fingerprint for fingerprint in past.failures if fingerprint.failure == current.failure]
    # Preemption twice at one step is a coincidence, not a repeated failure.
    if (failure.counted or failure.kind is FailureClass.APP) and any(
        fingerprint.is_like(current) for fingerprint in before
    ):
        at = "" if current.step is None else f" at step {current.step}"
        return f"the same failure{at} for the second time: it is not transient"
    if failure.most is not None and len(before) >= failure.most:
        return f"{failure.what}again: {failure.most} restarts did not help"
    match _budget(finding):
        case "infra" if past.infra_used >= policy.infra:
            return f"all {policy.infra} restarts for infrastructure failures are used"
        case "app" if past.app_used >= policy.app:
            return "failures of the program are not retried" if not policy.app else f"all {policy.app} used"
        case _:
            return ""


def _budget(finding: Finding) -> str:
    """A change that helps is paid like a failure of the cluster; an uncounted failure uses no budget."""
    if not finding.failure.counted:
        return "none"
    is_ordered = finding.kind in (FailureClass.APP, FailureClass.UNKNOWN) or finding.is_doubtful
    return "app" if is_ordered else "infra"


def _leaves_node(finding: Finding, past: Attempts) -> bool:
    """A timeout is tried once where it was, and then without the rank that was slowest."""
    again = finding.failure.name in ("nccl-timeout", "nccl-error") and any(
        fingerprint.failure == finding.failure.name for fingerprint in past.failures
    )
    return finding.failure.excludes_node or again


def _delay_s(attempt: int, policy: RetryPolicy, jitter: float) -> float:
    whole = min(policy.first_delay_s * 2.0 ** (attempt - 1), policy.longest_delay_s)
    return whole * (0.75 + 0.25 * jitter)


def _announced(
    after: Attempts,
    budget: str,
    policy: RetryPolicy,
    delay_s: float,
    change: str,
    excluded: tuple[str, ...],
    checkpoint: int | None,
) -> str:
    # The volume is not read, and only the ends of some logs are: the program itself finds its checkpoints.
    match checkpoint:
        case None:
            start = "from step 0 unless it finds a checkpoint (no log mentions one)"
        case 0:
            start = "from step 0"
        case _:
            start = f"from step {checkpoint}, the last checkpoint in its logs"
    spent = {"infra": f"{after.infra_used} of {policy.infra} for infrastructure failures"}
    spent["app"] = f"{after.app_used} of {policy.app} for program failures"
    text = f"attempt {after.number} of the whole gang in {delay_s:.0f} s, {start}"
    text += f"; with {CHANGES[change]}" if change else ""
    text += f"; not on {', '.join(excluded)}" if excluded else ""
    return f"{text}; {spent.get(budget, 'not counted')}"


def _stop(finding: Finding, reason: str) -> Stop:
    wrong = finding.kind in (FailureClass.CONFIG, FailureClass.WAIT)
    code = ExitCode.BAD_CONFIG if wrong else ExitCode.TRAINING_FAILED
    return Stop(says=f"remove the job: {reason}", exit_code=code)


def stopped(finding: Finding, reason: str) -> Stop:
    return _stop(finding, reason)


def decision_to_dict(decision: Resubmit | Stop) -> dict[str, Json]:
    if isinstance(decision, Stop):
        return {"action": "stop", "says": decision.says, "exit_code": int(decision.exit_code)}
    return {
        "action": "resubmit",
        "says": decision.says,
        "attempt": decision.attempt,
        "budget": decision.budget,
        "excluded_nodes": list(decision.excluded),
        "change": decision.change,
    }

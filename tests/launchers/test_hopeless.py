"""An elastic run ends when a replacement would meet the same error."""

from tests.fixtures.wording import Wording

from paceline.core.errors import ExitCode
from paceline.launchers.elastic import ElasticSupervisor
from paceline.launchers.supervision import Ledger, RestartPolicy
from paceline.plan.plan import Elastic


class LossRecorder:
    """Whom the coordinator was told about."""

    def __init__(self) -> None:
        self.lost_workers: list[str] = []

    def lost(self, who: str, pid: int, reason: str) -> None:
        self.lost_workers.append(who)

    def give_up(self) -> None: ...


def supervisor(lines: list[str]) -> ElasticSupervisor:
    elastic = Elastic(workers=3, min_workers=1, max_workers=3)
    made = ElasticSupervisor({}, LossRecorder(), RestartPolicy(20, 1), lines.append, elastic, shards=3)
    for number in range(3):
        made.started(f"worker-{number}", 100 + number)
    return made


def test_a_hopeless_error_ends_the_run_once_and_names_the_cause(wording: Wording) -> None:
    messages: list[str] = []
    ledger, watching = Ledger(), supervisor(messages)
    for number in range(3):  # all meet the same
        watching.failed(
            f"worker-{number}", "step 7 is not finite", "look at it", is_hopeless=True, code="E403"
        )
    watching.exited("worker-1", int(ExitCode.TRAINING_FAILED), ledger)
    assert watching.orders() == [{"op": "kill"}]
    watching.exited("worker-0", int(ExitCode.TRAINING_FAILED), ledger)
    watching.exited("worker-2", -9, ledger)
    assert watching.orders() == [{"op": "end"}]
    assert [(failure.what, failure.code) for failure in ledger.failures] == [("step 7 is not finite", "E403")]
    wording(messages[0])


def test_another_error_is_answered_with_a_replacement() -> None:
    messages: list[str] = []
    ledger, watching = Ledger(), supervisor(messages)
    watching.failed("worker-1", "it stumbled", "look at it")
    watching.exited("worker-1", int(ExitCode.TRAINING_FAILED), ledger)
    assert ledger.failures == []
    assert watching.wait_s() is not None

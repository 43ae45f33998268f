"""The reported cause of a failed run is the one that matters to the user."""

from tests.fixtures.wording import Wording

from paceline.launchers.supervision import Failure, Ledger


def ended(*facts: tuple[str, ...]) -> Ledger:
    """`("error", who, what)`, `("lost", who, what)`, `("exit", who, code)` or `("ended", who, code)`."""
    ledger = Ledger()
    for kind, who, text in facts:
        log = f"logs/{who}.log"
        if kind == "ended":
            ledger.end(who, log=log)
        if kind in ("exit", "ended"):
            ledger.exit(who, int(text), last_step=17, log=log)
        else:
            ledger.error(Failure(who, text, "a hint", is_consequence=kind == "lost"))
    return ledger


def test_a_run_whose_participants_all_ended_well_has_no_cause() -> None:
    assert ended(("exit", "worker-0", "0"), ("exit", "server-0", "0")).cause() is None


def test_the_first_failure_that_is_no_consequence_is_the_cause() -> None:
    cause = ended(
        ("lost", "worker-0", "waited for others"),
        ("error", "worker-1", "ZeroDivisionError: no"),
        ("error", "worker-2", "KeyError: later"),
    ).cause()
    assert cause is not None
    assert (cause.who, cause.what) == ("worker-1", "ZeroDivisionError: no")


def test_a_signal_is_named_with_the_worker_and_how_far_it_came(wording: Wording) -> None:
    cause = ended(("lost", "worker-0", "waited"), ("exit", "worker-1", "-9")).cause()
    assert cause is not None
    assert cause.who == "worker-1"
    wording(f"{cause.what}\n{cause.hint}")


def test_an_exit_without_a_message_names_the_log(wording: Wording) -> None:
    cause = ended(("exit", "server-0", "3")).cause()
    assert cause is not None
    assert cause.who == "server-0"
    wording(f"{cause.what}\n{cause.hint}")


def test_the_message_of_a_participant_takes_precedence_over_its_exit_code() -> None:
    cause = ended(("error", "worker-1", "ValueError: bad"), ("exit", "worker-1", "5")).cause()
    assert cause is not None
    assert cause.what == "ValueError: bad"
    assert len(ended(("error", "worker-1", "x"), ("exit", "worker-1", "5")).failures) == 1


def test_when_all_only_lost_each_other_the_first_loss_is_reported() -> None:
    cause = ended(("lost", "worker-1", "waited 5 s"), ("lost", "worker-0", "waited too")).cause()
    assert cause is not None
    assert (cause.who, cause.is_consequence) == ("worker-1", True)


def test_a_participant_that_we_had_to_end_is_not_the_cause() -> None:
    cause = ended(("lost", "worker-0", "waited 1 s"), ("ended", "worker-1", "-9")).cause()
    assert cause is not None
    assert cause.what == "waited 1 s"


def test_a_kill_is_the_cause_even_if_another_worker_reported_its_own_trouble_first() -> None:
    cause = ended(("error", "worker-0", "RuntimeError: gloo"), ("exit", "worker-1", "-9")).cause()
    assert cause is not None
    assert cause.who == "worker-1"
    assert "signal 9" in cause.what

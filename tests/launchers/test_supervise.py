"""The reported cause of a failed run is the one that matters to the user."""

from paceline.launchers.supervision import Failure, Ledger


def ended(*facts: tuple[str, ...]) -> Ledger:
    """`("error", who, what)`, `("lost", who, what)`, `("exit", who, code)` or `("ended", who, code)`."""
    ledger = Ledger()
    for kind, who, said in facts:
        log = f"logs/{who}.log"
        if kind == "ended":
            ledger.end(who, log=log)
        if kind in ("exit", "ended"):
            ledger.exit(who, int(said), last_step=17, log=log)
        else:
            ledger.error(Failure(who, said, "a hint", is_consequence=kind == "lost"))
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


def test_a_signal_is_named_with_the_worker_and_how_far_it_came() -> None:
    cause = ended(("lost", "worker-0", "waited"), ("exit", "worker-1", "-9")).cause()
    assert cause is not None
    assert cause.what == "worker-1 was killed by signal 9 after 17 steps"
    assert "out of memory" in cause.hint


def test_an_exit_without_a_word_names_the_log() -> None:
    cause = ended(("exit", "server-0", "3")).cause()
    assert cause is not None
    assert cause.what.startswith("server-0 ended with exit code 3")
    assert cause.hint == "its log is logs/server-0.log"


def test_what_a_participant_said_is_better_than_how_it_exited() -> None:
    cause = ended(("error", "worker-1", "ValueError: bad"), ("exit", "worker-1", "5")).cause()
    assert cause is not None
    assert cause.what == "ValueError: bad"
    assert len(ended(("error", "worker-1", "x"), ("exit", "worker-1", "5")).failures) == 1


def test_when_all_only_lost_each_other_the_first_loss_is_told() -> None:
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
    assert cause.what.startswith("worker-1 was killed by signal 9")

"""The laws detect published mistakes, and accept the corrected form.

Each row: what is on trial, the mode whose laws it is tried by, the laws that
must find it, and laws that it must still obey, so that a law that fails for
any reason would not do.
"""

import pytest
from tests.fixtures.strategies import published

from paceline.laws.lab import Harness, Lab
from paceline.laws.runner import LawResult, cases, check

STRATEGIES = [
    # torchft: a tensor that does not fit into a bucket is never averaged.
    ("SkippingBuckets", "diloco", {"D6.tensors", "D3"}, {"U3.diloco", "U5.diloco", "D2"}),
    # torchft: only the last bucket is unpacked.
    ("LastBucketOnly", "diloco", {"D6.tensors", "D3"}, {"U3.diloco", "U5.diloco", "D2"}),
    # EXO Gym: the optimizer that was asked for is not the one that runs.
    ("SwallowedOptimizer", "localsgd", {"U3.localsgd", "L1.sgd", "L1.momentum"}, {"U4.localsgd", "L4", "L5"}),
    # EXO Gym: the first step is never averaged.
    ("FirstNeverAveraged", "localsgd", {"L4", "L1.sgd", "L6"}, {"U3.localsgd", "U4.localsgd", "L7.localsgd"}),
    # showcase: bound 0 blocks for ever, bound 1 is a barrier.
    ("BoundOneTooStrict", "ssp", {"P1.reached", "P1", "P3"}, {"P4", "U2.ssp", "U3.ssp", "P7"}),
    # showcase: Adam at the server.
    ("MomentsOfSingleGradients", "ps", {"S6.adam"}, {"S6", "U2.ps", "U3.ps", "U4.ps"}),
    # showcase: polling.
    ("Polling", "ssp", {"H5.ssp", "M3.ssp"}, {"H1.ssp", "H2.ssp", "H3.ssp", "U2.ssp", "U3.ssp"}),
    # MXNet: one copy of the weights for all workers.
    ("OneCopyForAll", "asgd", {"Z1", "Z3"}, {"Z2", "Z3.zero", "Z4", "A1", "A4"}),
    # GRACE: clipping by the result of all_reduce, which is None.
    ("ClippedByNone", "ssgd", {"S1", "U2.ssgd", "U3.ssgd"}, {"S3", "S5"}),
    # Ray's documentation: sum, not mean.
    ("SumsGradients", "ps", {"U2.ps", "S2.ps", "S6"}, {"U3.ps", "U4.ps", "U5.ps"}),
    # Ray's documentation: every worker shuffles all of the data.
    ("NoShards", "ssgd", {"U2.ssgd", "H1.ssgd", "S1"}, {"U1.ssgd", "U4.ssgd", "U6.ssgd", "H2.ssgd"}),
]
# The correct form of what no mode of ours does just so; for the others it is the mode itself.
CORRECT = {"SkippingBuckets": "Buckets", "LastBucketOnly": "Buckets", "ClippedByNone": "Clipped"}

HARNESSES: list[tuple[Harness, str, set[str], set[str]]] = [
    (published.staleness_is_the_version, "asgd", {"H4"}, {"H1.asgd", "H2.asgd", "H3.asgd", "H5.asgd"}),
    (published.straggler_never_fires, "ssgd", {"H3.ssgd"}, {"H1.ssgd", "H2.ssgd"}),
    (published.straggler_never_fires, "asgd", set(), {"H3.asgd"}),  # there it does
    (published.updates_are_rounds_or_gradients, "asgd", {"H1.asgd"}, {"H2.asgd", "H3.asgd"}),
    (published.updates_are_rounds_or_gradients, "ssgd", set(), {"H1.ssgd"}),  # N times the work of asgd
    (published.bytes_of_pushes_only, "ssp", {"H2.ssp"}, {"H1.ssp", "H3.ssp"}),
    (published.bytes_of_pushes_only, "ssgd", set(), {"H2.ssgd"}),  # there both ways count
]


@pytest.mark.parametrize(
    ("subject", "mode", "found_by", "obeyed"), STRATEGIES, ids=[r[0] for r in STRATEGIES]
)
def test_a_published_mistake_is_found_by_its_laws(
    subject: str, mode: str, found_by: set[str], obeyed: set[str]
) -> None:
    results = _try(Lab(mode, f"tests.fixtures.strategies.published:{subject}"), found_by | obeyed)
    assert _broken(results) == found_by, {law: result.measured for law, result in results.items()}


@pytest.mark.parametrize(
    ("subject", "mode", "found_by", "obeyed"), STRATEGIES, ids=[r[0] for r in STRATEGIES]
)
def test_the_correct_form_satisfies_the_same_laws(
    subject: str, mode: str, found_by: set[str], obeyed: set[str]
) -> None:
    correct = f"tests.fixtures.strategies.published:{CORRECT[subject]}" if subject in CORRECT else None
    results = _try(Lab(mode, correct), found_by | obeyed)
    assert not _broken(results), {law: result.measured for law, result in results.items()}


@pytest.mark.parametrize(
    ("harness", "mode", "found_by", "obeyed"),
    HARNESSES,
    ids=[f"{row[0].__name__}-{row[1]}" for row in HARNESSES],
)
def test_a_program_that_compares_unfairly_is_found(
    harness: Harness, mode: str, found_by: set[str], obeyed: set[str]
) -> None:
    results = _try(Lab(mode, harness=harness), found_by | obeyed)
    assert _broken(results) == found_by, {law: result.measured for law, result in results.items()}
    assert not _broken(_try(Lab(mode), found_by | obeyed))


def _try(lab: Lab, laws: set[str]) -> dict[str, LawResult]:
    results = {case.id: check(case, lab) for case in cases(lab.mode) if case.id in laws}
    assert set(results) == laws, "every law that is named exists for this mode"
    return results


def _broken(results: dict[str, LawResult]) -> set[str]:
    return {law for law, result in results.items() if not result.ok}

"""The verdict names the mode to use, and it is the right one."""

from dataclasses import replace

from tests.comparison.made import MACHINE, comparison, default_runs, runs
from tests.fixtures.wording import Wording

from paceline.comparison.assess import INCONCLUSIVE
from paceline.comparison.report.formatting import between


def test_the_fastest_mode_that_lost_nothing_is_named_with_its_numbers(wording: Wording) -> None:
    verdict = comparison(default_runs()).verdict
    assert verdict.use == "asgd-4"
    assert "2.50 s" in verdict.headline
    assert "8.00 s" in verdict.headline
    text = "\n".join(verdict.reasons)
    assert "80 %" in text
    assert "50 %" in text
    assert "2.44" in verdict.others["ssgd-4"]
    wording(verdict.headline)
    wording(text)
    wording(verdict.others["ssgd-4"])


def test_a_faster_mode_that_lost_accuracy_is_not_recommended(wording: Wording) -> None:
    runs_by_name = default_runs()
    runs_by_name["asgd-4"] = runs("asgd", 4, (2.5, 2.6, 2.4), (0.90, 0.91, 0.89), histogram={"3": 5})
    compared = comparison(runs_by_name)
    assert compared.verdict.use == "ssgd-4"
    (warning,) = (text for text in compared.warnings if text.startswith("asgd-4 "))
    assert "−5.0" in warning
    wording(warning)
    wording(compared.verdict.others["asgd-4"])


def test_among_equals_the_simplest_is_chosen_and_the_tie_is_reported(wording: Wording) -> None:
    runs_by_name = default_runs()
    runs_by_name["ssgd-4"] = runs("ssgd", 4, (2.55, 2.5, 2.45), (0.95, 0.96, 0.94))
    verdict = comparison(runs_by_name).verdict
    assert verdict.use == "ssgd-4"
    wording("\n".join(verdict.reasons))
    wording(verdict.others["asgd-4"])


def test_what_is_not_faster_than_one_worker_is_not_to_be_distributed(wording: Wording) -> None:
    results = {
        "single": runs("single", 1, (2.0, 2.1, 1.9), (0.95, 0.95, 0.95)),
        "ssgd-2": runs("ssgd", 2, (2.4, 2.5, 2.3), (0.95, 0.95, 0.95)),
    }
    verdict = comparison(results).verdict
    assert verdict.use == "single"
    wording(verdict.headline)


def test_when_only_lossy_modes_are_faster_that_is_reported(wording: Wording) -> None:
    results = {
        "single": runs("single", 1, (8.0, 8.1, 7.9), (0.95, 0.95, 0.95)),
        "asgd-2": runs("asgd", 2, (4.0, 4.1, 3.9), (0.5, 0.5, 0.5), histogram={"1": 9}),
    }
    wording(comparison(results).verdict.headline)


def test_fewer_workers_are_taken_when_more_bring_nothing() -> None:
    result = default_runs() | {
        "asgd-2": runs("asgd", 2, (2.45, 2.65, 2.4), (0.95, 0.96, 0.94), histogram={"1": 9})
    }
    compared = comparison(result)
    assert compared.verdict.use == "asgd-2"
    assert "asgd with 2 workers" in compared.verdict.headline


def test_a_much_faster_mode_is_not_passed_over_because_its_times_vary(wording: Wording) -> None:
    result = default_runs() | {
        "asgd-2": runs("asgd", 2, (4.1, 4.0, 3.9), (0.95, 0.96, 0.94), histogram={"1": 9})
    }
    result["asgd-4"] = runs("asgd", 4, (2.5, 4.2, 2.4), (0.95, 0.96, 0.94), histogram={"3": 5})
    verdict = comparison(result).verdict
    assert verdict.use == "asgd-4"
    wording(verdict.others["asgd-2"])


def test_what_is_not_surely_faster_than_one_worker_is_not_recommended() -> None:
    results = {
        "single": runs("single", 1, (8.0, 8.1, 7.9), (0.95, 0.95, 0.95)),
        "ssgd-4": runs("ssgd", 4, (3.0, 12.0, 2.5), (0.95, 0.95, 0.95)),
    }
    assert comparison(results).verdict.use == "single"


def test_readers_are_warned_of_few_repeats_a_busy_machine_and_data_that_is_not_real(wording: Wording) -> None:
    results = {
        "single": runs("single", 1, (8.0,), (0.9,), data="synthetic"),
        "ssgd-4": runs("ssgd", 4, (3.0,), (0.9,), data="synthetic"),
    }
    text = "\n".join(comparison(results, machine=replace(MACHINE, load=3.9)).warnings)
    assert " 3.9" in text
    assert "(synthetic)" in text
    assert "--pace" in text
    wording(text)


def test_a_quiet_comparison_with_small_spread_warns_of_its_pace_alone(wording: Wording) -> None:
    runs_by_name = default_runs()
    del runs_by_name["localsgd-4"]
    (warning,) = comparison(runs_by_name).warnings
    wording(warning)


def test_repeats_that_differ_widely_are_named() -> None:
    runs_by_name = default_runs()
    runs_by_name["ssgd-4"] = runs("ssgd", 4, (6.0, 9.0, 6.1), (0.95, 0.96, 0.94))
    assert any("ssgd-4 6.00 to 9.00 s" in text for text in comparison(runs_by_name).warnings)


def test_a_mode_that_learned_far_more_is_not_passed_over_for_one_worker(wording: Wording) -> None:
    results = {
        "single": runs("single", 1, (4.0, 4.1, 3.9), (0.179, 0.181, 0.178)),
        "asgd-4": runs("asgd", 4, (4.2, 4.3, 4.1), (0.889, 0.891, 0.888), histogram={"3": 5}),
        "ssgd-4": runs("ssgd", 4, (2.0, 2.1, 1.9), (0.18, 0.181, 0.179)),
    }
    verdict = comparison(results).verdict
    assert verdict.use == "asgd-4"
    assert "88.9 %" in verdict.headline
    assert "17.9 %" in verdict.headline
    wording(verdict.headline)
    wording(verdict.others["ssgd-4"])
    wording(verdict.others["single"])


def test_with_one_repeat_a_large_gain_in_accuracy_counts_too() -> None:
    results = {
        "single": runs("single", 1, (4.0,), (0.179,)),
        "asgd-4": runs("asgd", 4, (4.2,), (0.889,), histogram={"3": 5}),
    }
    assert comparison(results).verdict.use == "asgd-4"


def test_a_large_difference_that_may_be_chance_is_called_inconclusive() -> None:
    runs_by_name = default_runs()
    runs_by_name["ssgd-4"] = runs("ssgd", 4, (6.1, 6.2, 6.0), (0.95, 0.96, 0.619))
    cell = comparison(runs_by_name).cells["ssgd-4"]
    assert cell.quality_difference is not None
    assert cell.quality_difference.value < -0.1
    assert cell.quality_in_words == INCONCLUSIVE


def test_a_speedup_that_may_be_chance_is_inconclusive_and_has_no_absurd_interval() -> None:
    runs_by_name = default_runs()
    runs_by_name["ssgd-4"] = runs("ssgd", 4, (0.5, 60.0, 2.0), (0.95, 0.96, 0.94))
    cell = comparison(runs_by_name).cells["ssgd-4"]
    assert cell.speed_in_words == INCONCLUSIVE
    assert between(cell.speedup) == "inconclusive"


def test_two_repeats_have_no_interval(wording: Wording) -> None:
    results = {label: mine[:2] for label, mine in default_runs().items()}
    compared = comparison(results)
    assert all(cell.speedup.low is None for cell in compared.cells.values())
    wording("\n".join(compared.warnings))

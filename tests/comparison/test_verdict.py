"""Can a person say from the verdict which mode to use, and is it the right one?"""

from dataclasses import replace

from tests.comparison.made import MACHINE, comparison, runs, usual

from paceline.comparison.assess import INCONCLUSIVE
from paceline.comparison.report.formatting import between


def test_the_fastest_mode_that_lost_nothing_is_named_with_its_numbers() -> None:
    verdict = comparison(usual()).verdict
    assert verdict.use == "asgd-4"
    assert verdict.headline.startswith("Use asgd with 4 workers: the same work in 2.50 s instead of 8.00 s")
    said = " ".join(verdict.reasons)
    assert "80 % of what 4 workers could give" in said
    assert "no significant difference" in said
    assert "those of ssgd 50 %" in said
    assert "updates old" in said
    assert verdict.others["ssgd-4"].startswith("It took 2.44 times as long as asgd")


def test_a_faster_mode_that_lost_accuracy_is_not_recommended() -> None:
    found = usual()
    found["asgd-4"] = runs("asgd", 4, (2.5, 2.6, 2.4), (0.90, 0.91, 0.89), histogram={"3": 5})
    compared = comparison(found)
    assert compared.verdict.use == "ssgd-4"
    assert "lost too much" in compared.verdict.others["asgd-4"]
    assert any(text.startswith("asgd-4 lost test accuracy: −5.0 points") for text in compared.warnings)


def test_among_equals_the_simplest_is_taken_and_the_tie_is_said() -> None:
    found = usual()
    found["ssgd-4"] = runs("ssgd", 4, (2.55, 2.5, 2.45), (0.95, 0.96, 0.94))
    verdict = comparison(found).verdict
    assert verdict.use == "ssgd-4"
    assert any(text.startswith("No significant difference in time to asgd:") for text in verdict.reasons)
    assert verdict.others["asgd-4"] == "No significant difference in time to ssgd, which is simpler."


def test_what_is_not_faster_than_one_worker_is_not_to_be_distributed() -> None:
    found = {
        "single": runs("single", 1, (2.0, 2.1, 1.9), (0.95, 0.95, 0.95)),
        "ssgd-2": runs("ssgd", 2, (2.4, 2.5, 2.3), (0.95, 0.95, 0.95)),
    }
    verdict = comparison(found).verdict
    assert verdict.use == "single"
    assert verdict.headline.startswith("Do not distribute this: no mode was significantly faster")


def test_where_only_lossy_modes_are_faster_that_is_said() -> None:
    found = {
        "single": runs("single", 1, (8.0, 8.1, 7.9), (0.95, 0.95, 0.95)),
        "asgd-2": runs("asgd", 2, (4.0, 4.1, 3.9), (0.5, 0.5, 0.5), histogram={"1": 9}),
    }
    assert "lost too much quality" in comparison(found).verdict.headline


def test_fewer_workers_are_taken_when_more_bring_nothing() -> None:
    found = usual() | {"asgd-2": runs("asgd", 2, (2.45, 2.65, 2.4), (0.95, 0.96, 0.94), histogram={"1": 9})}
    compared = comparison(found)
    assert compared.verdict.use == "asgd-2"
    assert compared.verdict.headline.startswith("Use asgd with 2 workers")


def test_a_much_faster_mode_is_not_passed_over_because_its_times_vary() -> None:
    found = usual() | {"asgd-2": runs("asgd", 2, (4.1, 4.0, 3.9), (0.95, 0.96, 0.94), histogram={"1": 9})}
    found["asgd-4"] = runs("asgd", 4, (2.5, 4.2, 2.4), (0.95, 0.96, 0.94), histogram={"3": 5})
    verdict = comparison(found).verdict
    assert verdict.use == "asgd-4"
    assert "may be chance" in verdict.others["asgd-2"]


def test_what_is_not_surely_faster_than_one_worker_is_not_recommended() -> None:
    found = {
        "single": runs("single", 1, (8.0, 8.1, 7.9), (0.95, 0.95, 0.95)),
        "ssgd-4": runs("ssgd", 4, (3.0, 12.0, 2.5), (0.95, 0.95, 0.95)),
    }
    assert comparison(found).verdict.use == "single"


def test_readers_are_warned_of_few_repeats_a_busy_machine_and_data_that_is_not_real() -> None:
    found = {
        "single": runs("single", 1, (8.0,), (0.9,), data="synthetic"),
        "ssgd-4": runs("ssgd", 4, (3.0,), (0.9,), data="synthetic"),
    }
    said = " ".join(comparison(found, machine=replace(MACHINE, load=3.9)).warnings)
    assert "One repeat has no spread" in said
    assert "busy before the first run: 3.9" in said
    assert "not real (synthetic)" in said
    assert "--pace" in said


def test_a_quiet_comparison_with_small_spread_warns_of_its_pace_alone() -> None:
    found = usual()
    del found["localsgd-4"]
    assert [text[:6] for text in comparison(found).warnings] == ["A step"]


def test_repeats_that_differ_widely_are_named() -> None:
    found = usual()
    found["ssgd-4"] = runs("ssgd", 4, (6.0, 9.0, 6.1), (0.95, 0.96, 0.94))
    assert any("ssgd-4 6.00 to 9.00 s" in text for text in comparison(found).warnings)


def test_a_mode_that_learned_far_more_is_not_passed_over_for_one_worker() -> None:
    found = {
        "single": runs("single", 1, (4.0, 4.1, 3.9), (0.179, 0.181, 0.178)),
        "asgd-4": runs("asgd", 4, (4.2, 4.3, 4.1), (0.889, 0.891, 0.888), histogram={"3": 5}),
        "ssgd-4": runs("ssgd", 4, (2.0, 2.1, 1.9), (0.18, 0.181, 0.179)),
    }
    verdict = comparison(found).verdict
    assert verdict.use == "asgd-4"
    assert "88.9 % test accuracy instead of 17.9 % alone" in verdict.headline
    assert "learned less" in verdict.others["ssgd-4"]
    assert "learned less" in verdict.others["single"]


def test_with_one_repeat_a_large_gain_in_accuracy_counts_too() -> None:
    found = {
        "single": runs("single", 1, (4.0,), (0.179,)),
        "asgd-4": runs("asgd", 4, (4.2,), (0.889,), histogram={"3": 5}),
    }
    assert comparison(found).verdict.use == "asgd-4"


def test_a_large_difference_that_may_be_chance_is_called_inconclusive() -> None:
    found = usual()
    found["ssgd-4"] = runs("ssgd", 4, (6.1, 6.2, 6.0), (0.95, 0.96, 0.619))
    cell = comparison(found).cells["ssgd-4"]
    assert cell.quality_difference is not None
    assert cell.quality_difference.value < -0.1
    assert cell.quality_in_words == INCONCLUSIVE


def test_a_speedup_that_may_be_chance_is_inconclusive_and_has_no_absurd_interval() -> None:
    found = usual()
    found["ssgd-4"] = runs("ssgd", 4, (0.5, 60.0, 2.0), (0.95, 0.96, 0.94))
    cell = comparison(found).cells["ssgd-4"]
    assert cell.speed_in_words == INCONCLUSIVE
    assert between(cell.speedup) == "inconclusive"


def test_two_repeats_have_no_interval() -> None:
    found = {label: mine[:2] for label, mine in usual().items()}
    compared = comparison(found)
    assert all(cell.speedup.low is None for cell in compared.cells.values())
    assert any("Two repeats" in text for text in compared.warnings)

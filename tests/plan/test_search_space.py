"""Parser of search spaces; everything else is one clear error."""

import pytest
from tests.fixtures.wording import Wording

from paceline.tune.search_space import Listed, Range, Search, read_searches


def read_one(text: str) -> Search:
    result, problems = read_searches([text])
    assert not problems
    return result[0]


@pytest.mark.parametrize(
    ("text", "name", "domain"),
    [
        ("lr=log:1e-3..1.0", "lr", Range(0.001, 1.0, is_log=True)),
        ("weight_decay=0.0..0.1", "weight_decay", Range(0.0, 0.1)),
        ("batch_size=8..64", "batch_size", Range(8, 64, is_whole=True)),
        ("num-workers=1..4", "num_workers", Range(1, 4, is_whole=True)),
        ("staleness=log:1..8", "staleness", Range(1, 8, is_log=True, is_whole=True)),
        ("pace=1ms..5ms", "pace", Range(0.001, 0.005, unit="s")),
        ("batch_size=8,16,32", "batch_size", Listed(("8", "16", "32"))),
        ("batch_size=8,8|16,16", "batch_size", Listed(("8,8", "16,16"))),
        ("mode=ssgd, localsgd", "mode", Listed(("ssgd", "localsgd"))),
        ("lr=0.1", "lr", Listed(("0.1",))),
        ("data=../a,../b", "data", Listed(("../a", "../b"))),
        ("task_option.hidden=4..64", "task_option.hidden", Range(4, 64, is_whole=True)),
        ("task_options.noise=0..0.5", "task_option.noise", Range(0.0, 0.5)),
        ("straggler=worker=0,factor=2|worker=0,factor=4", "straggler",
         Listed(("worker=0,factor=2", "worker=0,factor=4"))),
    ],
)  # fmt: skip
def test_what_was_written_is_what_is_searched(text: str, name: str, domain: Listed | Range) -> None:
    search = read_one(text)
    assert (search.name, search.domain) == (name, domain)


@pytest.mark.parametrize(
    "text",
    [
        "lr",
        "=3",
        "learning_rate=0.1",
        "momentum=0..0.9",
        "train.lr=0.1",
        "task_option=3",
        "run_dir=a,b",
        "launcher=local,ray",
        "lr=1..0.1",
        "lr=log:0..1",
        "lr=log:0.1",
        "batch_size=8..9.5",
        "lr=0.1,,0.2",
        "lr=0.1,0.1",
        "lr=1e999..2",
    ],
)
def test_what_cannot_be_searched_is_one_clear_error(text: str, wording: Wording) -> None:
    _, problems = read_searches([text])
    assert len(problems) == 1
    assert problems[0].where == f"--search {text}"
    wording(f"{problems[0].what}\n{problems[0].hint}")


def test_the_same_setting_twice_is_refused(wording: Wording) -> None:
    _, problems = read_searches(["lr=0.1,0.2", "lr=0.3..0.4"])
    (problem,) = problems
    wording(problem.what)


def test_a_drawn_number_reads_as_a_person_would_write_it() -> None:
    assert Range(0.0, 1.0).text(1 / 3) == "0.333333"
    assert Range(0.0, 1 / 3).text(1 / 3) == "0.333333"
    assert Range(1 / 3, 1.0).text(1 / 3) == repr(1 / 3), "rounding never leaves the range"
    assert Range(0.001, 0.005, unit="s").text(0.0042) == "0.0042s"
    assert Range(1, 9, is_whole=True).text(4.0) == "4"
    assert read_one("task_option.hidden=8,16").setting("8").raw == {"hidden": "8"}

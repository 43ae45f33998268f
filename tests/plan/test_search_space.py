"""Does a search mean what was written, and is everything else one clear error?"""

import pytest

from paceline.tune.search_space import Listed, Range, Search, read_searches


def read_one(text: str) -> Search:
    found, problems = read_searches([text])
    assert not problems
    return found[0]


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
    ("text", "words"),
    [
        ("lr", "not KEY=VALUES"),
        ("=3", "not KEY=VALUES"),
        ("learning_rate=0.1", "there is no setting learning_rate"),
        ("momentum=0..0.9", "did you mean outer_momentum?"),
        ("train.lr=0.1", "there is no setting train.lr"),
        ("task_option=3", "no option of the task is named"),
        ("run_dir=a,b", "run_dir is not searched"),
        ("launcher=local,ray", "launcher is not searched"),
        ("lr=1..0.1", "does not rise"),
        ("lr=log:0..1", "begins above 0"),
        ("lr=log:0.1", "no range of numbers"),
        ("batch_size=8..9.5", "it must be an integer"),
        ("lr=0.1,,0.2", "a value that is empty"),
        ("lr=0.1,0.1", "a value twice"),
        ("lr=1e999..2", "a finite number"),
    ],
)
def test_what_cannot_be_searched_is_one_clear_error(text: str, words: str) -> None:
    _, problems = read_searches([text])
    assert len(problems) == 1
    assert words in f"{problems[0].what}: {problems[0].hint}"
    assert problems[0].where == f"--search {text}"


def test_the_same_setting_twice_is_refused() -> None:
    _, problems = read_searches(["lr=0.1,0.2", "lr=0.3..0.4"])
    assert [problem.what for problem in problems] == ["lr is searched twice"]


def test_a_drawn_number_reads_as_a_person_would_write_it() -> None:
    assert Range(0.0, 1.0).text(1 / 3) == "0.333333"
    assert Range(0.0, 1 / 3).text(1 / 3) == "0.333333"
    assert Range(1 / 3, 1.0).text(1 / 3) == repr(1 / 3), "rounding never leaves the range"
    assert Range(0.001, 0.005, unit="s").text(0.0042) == "0.0042s"
    assert Range(1, 9, is_whole=True).text(4.0) == "4"
    assert read_one("task_option.hidden=8,16").setting("8").raw == {"hidden": "8"}

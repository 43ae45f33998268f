"""Parser of straggler entries."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.config.fault_rules import parse_trace, read_straggler, straggler_text
from paceline.config.values import Raw
from paceline.core.errors import ConfigError
from paceline.sync.fault_rules import StragglerRule


def read(raw: Raw) -> tuple[StragglerRule, ...]:
    return read_straggler(raw, where="--straggler", folder=Path())


def test_a_lasting_straggler() -> None:
    assert read("worker=1,factor=3") == (StragglerRule(worker=1, factor=3.0),)


def test_anyone_now_and_then() -> None:
    assert read("p=0.05,factor=10") == (StragglerRule(probability=0.05, factor=10.0),)


def test_a_delay_for_some_steps() -> None:
    expected = StragglerRule(worker=0, delay_s=0.05, first_step=100, end_step=200)
    assert read("worker=0,delay=50ms,from=100,to=200") == (expected,)


def test_a_slow_down_little_by_little() -> None:
    expected = StragglerRule(worker=2, factor=10.0, first_step=50, ramp=100)
    assert read("worker=2,factor=10,from=50,over=100") == (expected,)


def test_a_file_may_write_a_rule_as_a_mapping() -> None:
    assert read({"worker": 1, "factor": "3"}) == (StragglerRule(worker=1, factor=3.0),)


def test_all_problems_of_an_entry_are_reported_at_once(wording: Wording) -> None:
    with pytest.raises(ConfigError) as caught:
        read("wroker=1,p=often")
    assert len(caught.value.problems) == 3
    assert " worker?" in caught.value.problems[0].hint
    wording("\n".join(problem.what for problem in caught.value.problems))
    assert all(p.where == "--straggler" for p in caught.value.problems)


@pytest.mark.parametrize(
    "text", ["", "worker", "=3", ",", "trace=", "trace=x.csv,factor=2", "trace=/no/such.csv"]
)
def test_what_is_not_a_rule(text: str) -> None:
    with pytest.raises(ConfigError):
        read(text)


_rules = st.builds(
    StragglerRule,
    worker=st.none() | st.integers(0, 100),
    factor=st.floats(1, 1e6),
    delay_s=st.floats(0, 1e3),
    probability=st.floats(0.001, 1),
    first_step=st.integers(0, 1000),
    end_step=st.none() | st.integers(1001, 2000),
    ramp=st.integers(0, 500),
)


@given(rule=_rules)
def test_a_rule_reads_back_from_its_text(rule: StragglerRule) -> None:
    assert read(straggler_text(rule)) == (rule,)


_near_miss = st.lists(
    st.tuples(st.sampled_from(["worker", "factor", "delay", "p", "from", "to", "x"]), st.text(max_size=6)),
    max_size=5,
).map(lambda pairs: ",".join(f"{name}={value}" for name, value in pairs))


@given(text=st.text() | _near_miss)
def test_any_text_is_a_rule_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert all(isinstance(rule, StragglerRule) for rule in read(text))


def test_a_trace_becomes_one_rule_per_worker_and_slowness(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("worker,step,factor,delay_s\n1,7,3,0\n1,2,3,0\n0,5,1,0.1\n")
    rules = read_straggler("trace=trace.csv", where=None, folder=tmp_path)
    assert rules == (
        StragglerRule(worker=0, delay_s=0.1, steps=(5,)),
        StragglerRule(worker=1, factor=3.0, steps=(2, 7)),
    )


def test_problems_of_a_trace_name_their_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trace("worker,step,factor\n0,1,2\n0,x,2\n0,1\n-1,3,2\n", name="t.csv")
    assert [p.where for p in caught.value.problems] == ["t.csv:3", "t.csv:4", "t.csv:5"]


def test_a_trace_needs_its_header() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trace("0,1,2\n", name="t.csv")
    assert caught.value.problems[0].where == "t.csv:1"


def test_a_trace_names_a_worker_and_step_once(wording: Wording) -> None:
    with wording.raises(ConfigError):
        parse_trace("worker,step,factor\n0,1,2\n0,1,3\n", name="t.csv")


def test_a_wholly_wrong_trace_does_not_complain_a_thousand_times() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trace("worker,step,factor\n" + "a,b,c\n" * 1000, name="t.csv")
    assert len(caught.value.problems) == 21
    assert "980 more" in caught.value.problems[-1].what


@given(text=st.text(), header=st.booleans())
def test_any_text_is_a_trace_or_a_config_error(text: str, header: bool) -> None:
    with contextlib.suppress(ConfigError):
        parse_trace("worker,step,factor\n" + text if header else text, name="t.csv")

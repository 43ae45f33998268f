"""Parser of Byzantine entries."""

import contextlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.config.fault_rules import attack_text, read_byzantine
from paceline.config.load import load
from paceline.config.values import Raw
from paceline.core.errors import ConfigError
from paceline.sync.fault_rules import Attack, ByzantineRule


def read(raw: Raw) -> tuple[ByzantineRule, ...]:
    return read_byzantine(raw, where="--byzantine", folder=Path())


def test_a_worker_that_sends_garbage() -> None:
    assert read("worker=3,attack=garbage") == (ByzantineRule(worker=3, attack=Attack.GARBAGE),)


def test_all_parts() -> None:
    rule = ByzantineRule(
        worker=1, attack=Attack.SCALE, scale=-5.0, probability=0.5, first_step=100, end_step=200
    )
    assert read("worker=1,attack=Scale,scale=-5,p=0.5,from=100,to=200") == (rule,)
    assert read({"worker": 1, "attack": "scale", "scale": -5, "p": 0.5, "from": 100, "to": 200}) == (rule,)


def test_all_problems_of_an_entry_are_reported_at_once(wording: Wording) -> None:
    with wording.raises(ConfigError) as caught:
        read("wroker=1,attack=lies,p=often")
    assert len(caught.value.problems) == 3
    with wording.raises(ConfigError):
        read("worker=1")


_rules = st.builds(
    ByzantineRule,
    attack=st.sampled_from(Attack),
    worker=st.none() | st.integers(0, 100),
    scale=st.none() | st.floats(-1e6, 1e6),
    probability=st.floats(0.001, 1),
    first_step=st.integers(0, 1000),
    end_step=st.none() | st.integers(1001, 2000),
)


@given(rule=_rules)
def test_a_rule_reads_back_from_its_text(rule: ByzantineRule) -> None:
    assert read(attack_text(rule)) == (rule,)


@given(text=st.text())
def test_any_text_is_a_rule_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert all(isinstance(rule, ByzantineRule) for rule in read(text))


def test_one_variable_holds_several_rules_and_a_file_a_list(tmp_path: Path) -> None:
    expected = (
        ByzantineRule(worker=0, attack=Attack.ZERO),
        ByzantineRule(attack=Attack.NAN, probability=0.5),
    )
    loaded_config = load(variables={"byzantine": "worker=0,attack=zero; attack=nan,p=0.5"})
    assert (loaded_config.config.byzantine, loaded_config.problems) == (expected, ())
    (tmp_path / "t.yaml").write_text("byzantine:\n  - worker=0,attack=zero\n  - attack=nan,p=0.5\n")
    filed = load(file=tmp_path / "t.yaml")
    assert (filed.config.byzantine, filed.problems) == (expected, ())
    assert filed.config.origin("byzantine[1]") == f"{tmp_path / 't.yaml'}:3"

"""YAML documents name the line of their values, of repeated keys and of syntax errors."""

import pytest

from paceline.core.errors import ConfigError
from paceline.core.yaml_lines import YamlDocument, YamlSyntaxError, compose

TEXT = """\
rules:
  - name: a
    above: 1
    name: b
  - [1, 2]
"""


def test_mappings_lists_and_keys_have_their_lines() -> None:
    document = YamlDocument(TEXT, "r.yaml")
    assert isinstance(document.value, dict)
    first, second = document.value["rules"]
    assert document.at(first) == "r.yaml:2"
    assert document.at(first, "above") == "r.yaml:3"
    assert document.at(first, "unknown") == "r.yaml:2"
    assert document.at(second) == "r.yaml:5"
    assert document.at("elsewhere") == "r.yaml"


def test_a_repeated_key_is_a_problem_with_its_second_line() -> None:
    (problem,) = YamlDocument(TEXT, "r.yaml").problems
    assert problem.where == "r.yaml:4"


@pytest.mark.parametrize(
    ("text", "where"), [("a: b\nc: [", "r.yaml:2"), ("a: \0", "r.yaml"), ("{" * 5000, "r.yaml")]
)
def test_what_is_no_yaml_is_a_problem_with_its_line_where_there_is_one(text: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        YamlDocument(text, "r.yaml")
    (problem,) = caught.value.problems
    assert problem.where == where


def test_composing_raises_the_reason_and_the_line() -> None:
    with pytest.raises(YamlSyntaxError) as caught:
        compose("a: b\n\tc: d")
    assert caught.value.line == 2
    assert compose("# nothing") is None

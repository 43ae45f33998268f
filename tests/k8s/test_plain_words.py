"""Text stays text through YAML to Kubernetes, whose reader is Go's and not Python's."""

import pytest
import yaml
from tests.fixtures.wording import Wording

from paceline.core.go_yaml import parse_plain_scalar
from paceline.k8s.objects import read_quantity, write_quantity
from paceline.k8s.render.targets import to_yaml
from paceline.k8s.validate.manifest import read_documents
from paceline.k8s.validate.offline import validate

NUMBERS = ["1e-05", "1e5", "1E+3", "1.5e3", "-.5", ".5e3", "0o17", "0X1F", "1_0e2", "+1", "007", "3.", "0b1"]
WORDS = ["y", "Y", "n", "N"]
TEXTS = [
    "1e",
    "e5",
    "1e5x",
    "0x",
    "yes, please",
    "1.2.3",
    "sha256:1e5",
    "--lr",
    "-",
    ".",
    "1e999",
    "ny",
    "1-2",
]


@pytest.mark.parametrize("text", [*NUMBERS, *WORDS])
def test_what_go_takes_for_no_text_is_quoted(text: str) -> None:
    written = to_yaml([{"args": [text]}])
    assert f"'{text}'" in written
    assert yaml.safe_load(written) == {"args": [text]}


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_text_to_both_is_left_as_it_is(text: str) -> None:
    assert parse_plain_scalar(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-05", 1e-05),
        ("1e1", 10),
        ("y", True),
        ("'1e1'", "1e1"),
        ('"y"', "y"),
        ("0o17", 15),
        ("1e999", "1e999"),
    ],
)
def test_a_file_is_read_as_kubernetes_reads_it(text: str, value: object) -> None:
    ((document,), problems) = read_documents(f"a: {text}\n", "x.yaml")
    assert (document.value, problems) == ({"a": value}, [])
    assert isinstance(document.value, dict)
    assert type(document.value["a"]) is type(value)


def test_a_number_where_text_must_stand_is_a_problem(wording: Wording) -> None:
    settings = {"name": "LR", "value": "1e-05"}
    container = {"name": "a", "image": "example.com/x:1", "env": [settings]}
    pod = {"restartPolicy": "Never", "containers": [container]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "demo"},
        "spec": {"template": {"spec": pod}},
    }
    text = to_yaml([job])  # type: ignore[list-item]  # JSON
    assert not any("1e-05" in problem.what for problem in validate(text, "x.yaml").problems)
    (problem,) = validate(text.replace("'1e-05'", "1e-05"), "x.yaml").problems
    wording(problem.what)


@pytest.mark.parametrize(
    ("amount", "resource", "written"),
    [
        ("512Mi", "memory", "512Mi"),
        ("1536Mi", "requests.memory", "1536Mi"),
        ("536870912", "limits.memory", "512Mi"),
        ("0.25Gi", "memory", "256Mi"),
        ("2Ti", "requests.storage", "2Ti"),
        ("65832456Ki", "memory", "62.78Gi"),
        ("100", "memory", "100"),
        ("250m", "cpu", "250m"),
        ("1.5", "requests.cpu", "1500m"),
        ("16", "cpu", "16"),
        ("1e9", "nvidia.com/gpu", "1000000000"),
        ("12345", "pods", "12345"),
        ("0", "pods", "0"),
    ],
)
def test_amounts_are_written_as_people_write_them(amount: str, resource: str, written: str) -> None:
    read = read_quantity(amount)
    assert read is not None
    assert write_quantity(read, resource) == written

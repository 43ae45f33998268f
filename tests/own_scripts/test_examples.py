"""Scripts of examples/: at most six changed lines, and what the plain script computes."""

import difflib

import pytest
from docs.pages import ROOT

EXAMPLES = {"cnn": 6, "gpt": 6, "gan": 6, "hf": 2, "lightning": 2}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_differs_from_its_plain_script_in_so_many_lines(name: str) -> None:
    folder = ROOT / "examples" / name
    plain, joined = (
        (folder / file).read_text(encoding="utf-8").splitlines() for file in ("plain.py", "train.py")
    )
    diff = list(difflib.ndiff(plain, joined))
    added = sum(line.startswith("+ ") and line.strip() != "+" for line in diff)
    removed = sum(line.startswith("- ") for line in diff)
    assert max(added, removed) <= EXAMPLES[name] <= 6
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert f"({name})" in listed
    assert f"| {EXAMPLES[name]} |" in next(line for line in listed.splitlines() if f"| [{name}](" in line)

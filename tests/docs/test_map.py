"""The map of the code: its tour against a traced run, its tree against the folders and layers."""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from itertools import pairwise

import pytest
from docs.pages import ROOT

SOURCE = ROOT / "src" / "paceline"
TEXT = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
COMMAND = ("train", "--mode", "ssgd", "--num-workers", "2", "--steps", "2")
ROW = re.compile(r"^\| (\d+) \| \[[^]]+\]\(\.\./src/paceline/([^)]+)\) \| `([\w.]+)` \| ", re.M)
LINK = re.compile(r"\]\(\.\./src/paceline/([^)]+)\)")


@dataclass(frozen=True, slots=True)
class Stop:
    number: int
    file: str
    function: str


@dataclass(frozen=True, slots=True)
class Call:
    file: str
    function: str
    stack: frozenset[str]


TOUR = [Stop(int(number), file, function) for number, file, function in ROW.findall(TEXT)]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """First calls of functions in the command, its helper and its workers, in order of time."""
    folder = tmp_path_factory.mktemp("traced")
    trace = folder / "calls.tsv"
    hook = ROOT / "tests" / "fixtures" / "call_trace"
    path = [str(hook), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {
        "PYTHONPATH": os.pathsep.join(path),
        "CALL_TRACE": str(trace),
        "CALL_TRACE_ROOT": str(SOURCE),
        "CALL_TRACE_END": "GradientSource.compute",
    }
    result = subprocess.run(
        [sys.executable, "-m", "paceline", *COMMAND],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    rows = sorted((line.split("\t") for line in trace.read_text().splitlines()), key=lambda row: int(row[0]))
    return [Call(row[2], row[3], frozenset(row[4:])) for row in rows]


def test_the_functions_of_the_tour_are_first_called_in_its_order(calls: list[Call]) -> None:
    first = [_first(calls, stop) for stop in TOUR]
    assert len(first) > 10
    assert [(TOUR[a], TOUR[a + 1]) for a, (item, next_) in enumerate(pairwise(first)) if item >= next_] == []


def test_the_tour_and_the_entry_of_every_command_are_all_files_on_the_call_stacks(calls: list[Call]) -> None:
    on_stacks = frozenset[str]().union(*(calls[_first(calls, stop)].stack for stop in TOUR))
    introduction = TEXT.split("## From")[1].split("\n| #")[0]
    assert on_stacks == {stop.file for stop in TOUR} | set(LINK.findall(introduction))


def test_the_files_of_the_tour_are_numbered_as_they_are_met_and_counted() -> None:
    numbers: dict[str, int] = {}
    for stop in TOUR:
        assert numbers.setdefault(stop.file, len(numbers) + 1) == stop.number
    assert f"\n{len(numbers)} files lie on the main line" in TEXT


def test_the_number_of_executed_files_is_about_that_of_the_map(calls: list[Call]) -> None:
    until = next(index for index, call in enumerate(calls) if call.file == "return")
    executed = {call.file for call in calls[:until]}
    claim = re.search(r"about\s(\d+)\sfiles are\sexecuted", TEXT)
    assert claim is not None
    assert abs(len(executed) - int(claim[1])) <= 8, f"executed: {len(executed)}"


def test_the_tree_has_every_package_in_the_order_of_the_layers() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    blocks = [re.findall(r"^(\w+)/", block, re.M) for block in _tree().split("\n\n")]
    packages = [[name for name in layer.split(" | ") if (SOURCE / name).is_dir()] for layer in layers]
    assert blocks == packages


def test_the_tree_lists_every_folder_of_modules_and_only_what_exists() -> None:
    listed = _listed(_tree())
    assert [path for path in listed if not (SOURCE / path).exists()] == []
    modules = (path for path in SOURCE.rglob("*.py") if path.name != "__init__.py" and path.parent != SOURCE)
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in modules}
    assert sorted(folders - set(listed)) == []


def _first(calls: list[Call], stop: Stop) -> int:
    results = [i for i, call in enumerate(calls) if (call.file, call.function) == (stop.file, stop.function)]
    assert results, f"{stop.file}: {stop.function} is not called before the first gradient"
    return results[0]


def _tree() -> str:
    return TEXT.split("## The tree")[1].split("```text\n")[1].split("\n```")[0]


def _listed(tree: str) -> list[str]:
    """Paths of the tree: a name's parent is the nearest folder above with less indentation."""
    paths: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in filter(None, tree.splitlines()):
        indentation = len(line) - len(line.lstrip())
        parents = [(depth, path) for depth, path in parents if depth < indentation]
        above = f"{parents[-1][1]}/" if parents else ""
        names = re.match(r" *([\w.]+/?(?:  [\w.]+/?)*)(?:   |$)", line)
        assert names is not None, line
        results = [above + name.rstrip("/") for name in names[1].split()]
        paths += results
        if names[1].split()[0].endswith("/"):
            parents.append((indentation, results[0]))
    return paths

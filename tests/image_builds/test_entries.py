"""Models of foreign images: an own function or script, tested in the image; nothing of ours is in it.

Most tests run the probe's own functions by this Python; one runs them in podman, where torch is mounted from
this machine.
"""

import json
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.fixtures.containers.engine import BASE, EngineHere
from tests.fixtures.processes.command import ROOT, paceline
from tests.fixtures.wording import Wording
from tests.image_builds.test_pure import FACTS

from paceline.images.build.engine import Engine, EngineKind
from paceline.images.probe.checks import Expected, Verdict, check_facts, no_model_check
from paceline.images.probe.container import ImageTestResult, smoke_test

SCHEMA = ROOT / "src" / "paceline" / "images" / "schemas" / "image-test.json"
MODEL = """
import os
import torch

def build(hidden=4):
    return torch.nn.Sequential(torch.nn.Linear(3, hidden), torch.nn.Linear(hidden, 2))

def with_inputs():
    return build(), (torch.ones(5, 3),)

class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = build()
    def forward(self, ids, scale):
        return {"logits": self.body(torch.nn.functional.one_hot(ids, 3).float()) * scale}

def with_names():
    return Named(), {"ids": torch.zeros(4, dtype=torch.int64), "scale": 2.0}

def frozen():
    return build().requires_grad_(False), torch.ones(1, 3)

def plain():
    return lambda x: {"sum": sum(x)}, ([1, 2],)

def infinite():
    return build(), torch.full((1, 3), float("inf"))

def no_model():
    return 7

def crashing():
    os.abort()
"""
SCRIPT = """
import os, sys
assert sys.argv[1:] == ["--max_steps=1"], "no steps"
assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")
print("loss 1.0")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("app")
    (made / "model.py").write_text(MODEL)
    (made / "train.py").write_text(SCRIPT)
    return made


PASSED = ["configuration", "instantiation", "forward", "backward"]
# Of each: the entry, the parts that it has, and whether the last of them fails.
CASES: list[tuple[dict[str, Any], list[str], bool]] = [
    (
        {"function": "build", "options": {"hidden": 8}, "inputs": [{"shape": [4, 3], "dtype": "float32"}]},
        PASSED,
        False,
    ),
    ({"function": "with_inputs"}, PASSED, False),
    ({"function": "with_names"}, PASSED, False),
    ({"place": "./model.py", "function": "with_names"}, PASSED, False),
    # What cannot be trained has no backward pass.
    ({"function": "frozen"}, PASSED[:3], False),
    ({"function": "plain"}, PASSED[:3], False),
    ({"function": "absent"}, PASSED[:1], True),
    ({"function": "build", "options": {"width": 1}}, PASSED[:1], True),
    ({"function": "no_model"}, PASSED[:2], True),
    ({"function": "build"}, PASSED[:3], True),
    ({"function": "build", "inputs": [{"shape": [4, 7], "dtype": "float32"}]}, PASSED[:3], True),
    ({"function": "infinite"}, PASSED[:3], True),
    ({"function": "crashing"}, ["configuration", "process"], True),
    ({"place": "train.py", "function": None, "arguments": ["--max_steps=1"]}, ["script"], False),
    ({"place": "train.py", "function": None}, ["script"], True),
    ({"place": "/nowhere/run.sh", "function": None}, ["script"], True),
]
# torch is imported once, and each entry is run in a fork, as the probe does it.
PROGRAM = """
import json, sys, torch
from paceline.images.probe.model_script import model_rows
sys.path.insert(0, "")
entries = json.load(sys.stdin)
print(json.dumps([model_rows({"task": None, "entry": entry}, whole=True) for entry in entries]))
"""


@pytest.fixture(scope="module")
def answers(folder: Path) -> list[list[dict[str, Any]]]:
    usual = {"place": "model", "options": {}, "inputs": [], "arguments": []}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        input=json.dumps([{**usual, **entry} for entry, _, _ in CASES]),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    rows: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return rows


@pytest.mark.parametrize("number", range(len(CASES)))
def test_an_entry_is_run_part_by_part_up_to_the_first_that_fails(
    number: int, answers: list[list[dict[str, Any]]]
) -> None:
    _, parts, fails = CASES[number]
    rows = answers[number]
    assert [row["part"] for row in rows] == parts, rows
    assert [row["error"] is not None for row in rows] == [False] * (len(parts) - 1) + [fails], rows


def test_a_failed_script_shows_the_end_of_its_output(answers: list[list[dict[str, Any]]]) -> None:
    error = answers[-2][0]["error"]
    assert error.startswith("exit code 1: ")
    assert error.endswith("AssertionError: no steps")


def result_of(*parts: str, error: str | None) -> ImageTestResult:
    model = [{"part": part, "detail": "x", "error": error, "seconds": 0.1} for part in parts]
    facts = {**FACTS, "model": model}
    checks = check_facts(facts, Expected())
    return ImageTestResult(
        image="x:1",
        level="standard",
        engine=Engine(kind=EngineKind.PODMAN, path="podman", version="4"),
        seconds=1.0,
        checks=(*checks, *(() if parts else (no_model_check(),))),
        facts=facts,
        ended_at_s=0.0,
    )


def test_an_image_works_only_if_a_model_of_it_did(wording: Wording) -> None:
    assert result_of("configuration", "instantiation", error=None).headline == "x:1 works"
    without = result_of(error=None)
    assert without.ok
    assert not without.was_model_tested
    assert "works" not in without.headline
    wording(without.headline)
    assert not result_of("configuration", error="ValueError").ok


@pytest.mark.parametrize(
    "words",
    [
        ["--entry", "model"],
        ["--entry", "model:1x"],
        ["--entry", "model:build", "--level", "quick"],
        ["--entry", "model:build", "--task", "xor"],
        ["--entry", "model:build", "--", "--max_steps=1"],
        ["--entry", "train.py", "--entry-option", "a=1"],
        ["--entry", "model:build", "--input", "3by3"],
        ["--input", "3x3"],
        ["--", "--max_steps=1"],
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(words: list[str]) -> None:
    assert paceline("image", "test", "x:1", *words).code == 3


def told(*words: str, code: int = 0) -> dict[str, Any]:
    verb, *rest = words
    done = paceline("image", verb, "--engine", "podman", "--json", *rest)
    assert done.code == code, done.out + done.err
    data = json.loads(done.out)["data"]
    assert isinstance(data, dict)
    return data


def test_a_foreign_image_is_tested_by_its_own_function_and_its_own_script(
    here: EngineHere, folder: Path, tmp_path: Path
) -> None:
    image = "localhost/foreign:1"
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nWORKDIR /app\nCOPY model.py train.py ./\nUSER 1000\n")
    here.podman("build", "--quiet", "--tag", image, str(folder))
    (packages,) = (path for path in site.getsitepackages() if Path(path, "torch").is_dir())
    common = ["--volume", f"{packages}:/site:ro", "--env", "PYTHONPATH=/site", "--level", "full"]
    listed = tmp_path / "requirements.txt"
    listed.write_text("torch\n")
    common += ["--requirements", str(listed)]

    data = told("test", image, *common, "--entry", "model:build", "--input", "4x3")
    jsonschema.validate(data, json.loads(SCHEMA.read_text()))
    model = [check for check in data["checks"] if check["group"] == "model"]
    assert [(check["name"], check["verdict"]) for check in model] == [(name, "passed") for name in PASSED]
    assert data["model_tested"] is True
    image_id, digest = here.podman(
        "image", "inspect", "--format", "{{.Id}} {{.Digest}}", image
    ).stdout.split()
    assert data["image_id"] == image_id
    assert [name.rpartition("@")[2] for name in data["local_digests"]] == [digest]

    data = told("test", image, "--entry", "/app/train.py", "--", "--max_steps=1")
    assert data["model_tested"] is True
    data = told("test", image, "--entry", "/app/train.py", code=8)
    (failed,) = [check for check in data["checks"] if check["verdict"] == "failed"]
    assert failed["name"] == "script"
    assert failed["advice"]

    data = told("test", image, "--level", "standard")
    assert (data["ok"], data["model_tested"]) == (True, False)


def test_a_smoke_test_follows_a_build(here: EngineHere, project: Path) -> None:
    breaks = 'import pathlib, requests; pathlib.Path(requests.__file__).write_text("raise ImportError")'
    dockerfile = f"FROM {BASE}\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\n"
    (project / "requirements.txt").write_text("requests==2.32.3\n")
    (project / "Dockerfile").write_text(f"{dockerfile}USER 1000\n")
    data = told("build", str(project), "--tag", "localhost/smoke:1")
    assert data["smoke_test"]["ok"] is True
    assert [check["name"] for check in data["smoke_test"]["checks"]] == ["requests", "python"]

    (project / "Dockerfile").write_text(f"{dockerfile}RUN python -c '{breaks}'\nUSER 1000\n")
    data = told("build", str(project), "--tag", "localhost/smoke:2", code=8)
    assert (data["ok"], data["smoke_test"]["ok"]) == (True, False)
    assert data["smoke_test"]["checks"][0]["advice"]
    data = told("build", str(project), "--tag", "localhost/smoke:2", "--no-smoke-test")
    assert data["smoke_test"]["skipped"] == "--no-smoke-test"

    (project / "Dockerfile").write_text("FROM scratch\nCOPY requirements.txt /\n")
    here.podman("build", "--quiet", "--tag", "localhost/smoke:3", str(project))
    engine = Engine(kind=EngineKind.PODMAN, path="podman", version="4")
    without_python = smoke_test(engine, "localhost/smoke:3", ())
    assert (without_python.checks, bool(without_python.skipped)) == ((), True)


def test_a_library_of_the_driver_is_no_fault_of_the_image() -> None:
    error = "ImportError: libcuda.so.1: cannot open shared object file"
    row = {"name": "flash-attn", "module": "flash_attn", "error": error, "seconds": 0.1}
    verdicts = {check.name: check.verdict for check in check_facts({**FACTS, "imports": [row]}, Expected())}
    assert verdicts["flash-attn (flash_attn)"] is Verdict.WARNING

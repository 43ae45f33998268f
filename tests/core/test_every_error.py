"""Every error of the catalog is provoked and explained; a code without a provocation fails here."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core import by_machine, by_others, by_runs, by_scripts, by_settings, by_training
from tests.core.provoked import Provocation

import paceline
from paceline.cli.main import run
from paceline.core.error_catalog.index import ERROR_CATALOG
from paceline.core.errors import ErrorEntry
from paceline.training.session import Session

_HAS_ERRORS = re.compile(r"^class \w+\((\w*Error|Exception)\)", re.MULTILINE)
# Only what is below it says what happened.
NEVER_RAISED = {"paceline.k8s.client.api:ApiError"}
ROOT = Path(__file__).parents[2]
HERE: dict[str, Provocation] = {
    **by_settings.PROVOCATIONS,
    **by_machine.PROVOCATIONS,
    **by_runs.PROVOCATIONS,
    **by_training.PROVOCATIONS,
    **by_scripts.PROVOCATIONS,
    **by_others.PROVOCATIONS,
}
# These need a cluster, a store or a run, which other tests have: file, test, and what it expects there.
ELSEWHERE: dict[str, tuple[str, str, str]] = {
    **{
        code: ("own_scripts/test_run_script.py", "test_what_cannot_be_right_is_refused", code)
        for code in ("E122", "E124", "E129", "E133", "E134", "E135", "E136")
    },
    "E309": ("checkpoints/test_export.py", "test_a_state_that_cannot_be_exported_is_an_error", "E309"),
    "E324": (
        "e2e/test_workers_command.py",
        "test_too_many_too_few_and_strangers_are_refused_with_the_reason",
        "E324",
    ),
    "E326": ("dashboard/test_hostile.py", "test_too_many_requests_at_once_are_refused", "BusyError"),
    "E406": (
        "worker/test_server_pair.py",
        "test_a_partitioned_primary_answers_no_worker_once_its_backup_was_promoted",
        "fenced",
    ),
    "E210": (
        "launchers/test_ray_door.py",
        "test_a_ray_that_never_starts_has_its_own_error_and_is_not_a_bug",
        "RayStartError",
    ),
    "E211": ("hosts/test_network.py", "test_another_user_than_root_is_told_the_reason", "NoHostsError"),
    "E212": (
        "training/test_command_lease.py",
        "test_a_second_command_is_refused_and_a_standby_ends_with_the_run",
        "RunHeldError",
    ),
    "E507": ("cli/test_coordinator_commands.py", "test_when_all_nodes_have_ended_it_is_an_error", "E507"),
    "E509": ("coordinator/test_embedded.py", "test_a_folder_is_used_by_one_node_at_a_time", "StorageError"),
    "E602": ("k8s_client/test_job_submit.py", "test_a_quota_that_is_too_small_is_seen_before", "NoRoomError"),
    "E603": (
        "k8s_client/test_job_submit.py",
        "test_an_operator_that_is_not_installed_is_named",
        "RightsError",
    ),
    "E714": (
        "image_builds/test_ecr.py",
        "test_an_image_goes_to_two_regions_with_one_digest_and_every_refusal_has_its_own_error",
        "WrongAccountError",
    ),
    "E803": ("datasets/test_writing.py", "test_another_data_set_is_never_overwritten", "OtherDataError"),
    "E804": (
        "datasets/test_s3.py",
        "test_a_refusal_of_the_store_is_reported_with_the_reason_and_never_a_secret",
        "UnreachableStoreError",
    ),
    "E805": (
        "datasets/test_s3.py",
        "test_a_refusal_of_the_store_is_reported_with_the_reason_and_never_a_secret",
        "RefusedByStoreError",
    ),
    "E809": (
        "checkpoints/test_object_store.py",
        "test_a_store_that_does_not_answer_is_reported_once",
        "StoreError",
    ),
    "E810": (
        "training/test_run_copy.py",
        "test_a_command_that_was_replaced_is_stopped_and_what_it_writes_is_never_read",
        "FencedError",
    ),
}


def test_every_code_is_provoked_by_one_test() -> None:
    assert not HERE.keys() & ELSEWHERE.keys()
    assert HERE.keys() | ELSEWHERE.keys() == ERROR_CATALOG.keys()


@pytest.mark.parametrize("code", HERE)
def test_it_is_provoked(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the report of a bug
    assert HERE[code](tmp_path) == {code}


@pytest.mark.parametrize("code", ELSEWHERE)
def test_it_is_provoked_elsewhere(code: str) -> None:
    file, name, word = ELSEWHERE[code]
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    results = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    assert results, f"{file} has no {name}"
    first = min(node.lineno for node in (results[0], *results[0].decorator_list))  # with its parameters
    assert word in "\n".join(text.splitlines()[first - 1 : results[0].end_lineno])


@pytest.mark.parametrize("row", ERROR_CATALOG.values(), ids=list(ERROR_CATALOG))
def test_it_is_explained(row: ErrorEntry, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", row.code], Session()) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{row.code}: {row.why}\n")
    assert all(text in out for text in (*row.causes, *row.do, row.example))
    assert f"exit code: {int(row.exit_code)}, " in out


def test_every_kind_of_error_has_a_code_and_every_code_of_a_kind_is_its_own() -> None:
    written = {kind: code for kind, code in _kinds() if kind not in NEVER_RAISED}
    catalogued = {row.kind: row.code for row in ERROR_CATALOG.values() if row.kind}
    assert written == catalogued


@pytest.mark.parametrize("row", [row for row in ERROR_CATALOG.values() if row.kind], ids=lambda row: row.code)
def test_the_exit_code_is_that_of_its_kind(row: ErrorEntry) -> None:
    module, _, name = row.kind.partition(":")
    kind = getattr(importlib.import_module(module), name)
    assert (kind.code, kind.exit_code) == (row.code, row.exit_code)


def _kinds() -> Iterator[tuple[str, str]]:
    """module:Class and the code in its body, of every class that is a PacelineError by its bases' names."""
    root = Path(paceline.__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    classes = [
        (path.relative_to(root.parent).with_suffix("").as_posix().replace("/", "."), node)
        for path, text in texts.items()
        if _HAS_ERRORS.search(text)  # to parse all the others takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    ]
    family = {"PacelineError"}
    while more := {
        node.name
        for _, node in classes
        if node.name not in family and any(isinstance(b, ast.Name) and b.id in family for b in node.bases)
    }:
        family |= more
    for module, node in classes:
        if node.name in family and (node.name == "PacelineError" or _is_of(node, family)):
            yield f"{module}:{node.name}", _code(node)


def _is_of(node: ast.ClassDef, family: set[str]) -> bool:
    return any(isinstance(base, ast.Name) and base.id in family for base in node.bases)


def _code(node: ast.ClassDef) -> str:
    for line in node.body:
        if not isinstance(line, ast.Assign | ast.AnnAssign) or not isinstance(line.value, ast.Constant):
            continue
        target = line.targets[0] if isinstance(line, ast.Assign) else line.target
        if isinstance(target, ast.Name) and target.id == "code":
            return str(line.value.value)
    return "none of its own"

"""Chunks hold every byte once, only missing ones are sent, and the helper pod has no privileges."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.k8s.transfer.chunks import (
    Bundle,
    File,
    is_whole,
    matching_parts,
    missing,
    parent_folders,
    query_batches,
    read_checked,
    sum_list,
    why_not_sent,
)
from paceline.k8s.transfer.pod_manifest import (
    HelperRequest,
    helper_pod,
    is_running,
    why_not_running,
    written_claims,
)
from paceline.k8s.validate.offline import find_privileges

CHUNK = 10_000
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def file(path: str, size: int) -> File:
    count = -(-size // CHUNK) if size > CHUNK else 0
    return File(path=path, bytes=size, sha256=f"{size:064x}", parts=tuple(f"{n:064x}" for n in range(count)))


@given(st.lists(st.integers(0, 5 * CHUNK), max_size=60))
def test_every_byte_is_in_exactly_one_chunk_and_no_chunk_is_large(sizes: list[int]) -> None:
    files = [file(f"f{number}", size) for number, size in enumerate(sizes)]
    held = {entry.path: 0 for entry in files}
    seen: list[str] = []
    for chunk in missing(files, chunk_bytes=CHUNK):
        assert chunk.bytes <= CHUNK
        for item in chunk.files if isinstance(chunk, Bundle) else ():
            held[item.path] += item.bytes
            seen.append(item.path)
        if not isinstance(chunk, Bundle):
            held[chunk.file.path] += chunk.bytes
    assert held == {entry.path: entry.bytes for entry in files}
    assert sorted(seen) == sorted(entry.path for entry in files if entry.bytes <= CHUNK)


@given(st.lists(st.integers(0, 5 * CHUNK), max_size=30), st.sets(st.integers(0, 30)))
def test_what_is_there_is_not_sent(sizes: list[int], there: set[int]) -> None:
    files = [file(f"f{number}", size) for number, size in enumerate(sizes)]
    right = {f"f{number}" for number in there}
    parts = {("f0", 0), ("f1", 1)}
    for chunk in missing(files, right, parts, chunk_bytes=CHUNK):
        names = [item.path for item in chunk.files] if isinstance(chunk, Bundle) else [chunk.file.path]
        assert not right.intersection(names)
        assert isinstance(chunk, Bundle) or (chunk.file.path, chunk.index) not in parts


def test_many_files_are_requested_in_groups() -> None:
    files = [File(path=f"f{n}", bytes=1) for n in range(2500)]
    groups = query_batches(files)
    assert [len(group) for group in groups] == [1000, 1000, 500]
    assert [item for group in groups for item in group] == files


def test_a_large_file_that_is_too_long_over_there_needs_its_last_part_again() -> None:
    large = file("large", 3 * CHUNK)
    assert is_whole(large, matching_parts(large, 3 * CHUNK, large.parts))
    assert matching_parts(large, 4 * CHUNK, [*large.parts, "more"]) == {("large", 0), ("large", 1)}
    assert matching_parts(large, CHUNK + 1, [large.parts[0], "half"]) == {("large", 0)}


def test_a_list_of_sums_is_read_by_its_ok() -> None:
    assert sum_list([File(path="a b", bytes=1, sha256="ab" * 32)]) == "ab" * 32 + "  a b\n"
    assert read_checked("a b: OK\nc: FAILED\nd: FAILED open or read\ne: OK: OK\n") == {"a b", "e: OK"}
    assert parent_folders([file("x", 1), file("a/b/c", 1), file("a/b/d", 1)]) == [".", "a/b"]


@pytest.mark.parametrize("path", ["a\nb", "a\\b", "a" * 2000, "\udcff"])
def test_names_that_a_list_cannot_hold_are_refused(path: str) -> None:
    assert why_not_sent(path)
    assert why_not_sent("Größe/with space 'and' \"quotes\" $HOME") is None


@pytest.mark.parametrize("reads_only", [False, True])
def test_the_helper_pod_is_restricted_and_ends_by_itself(reads_only: bool) -> None:
    pod = helper_pod("helper", HelperRequest(namespace="train", claim="data", reads_only=reads_only))
    spec = pod["spec"]
    assert isinstance(spec, dict)
    assert list(find_privileges(spec, ("spec",))) == []
    assert spec["activeDeadlineSeconds"] == 6 * 3600
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert ("readOnly" in str(spec["volumes"])) == reads_only


@pytest.mark.parametrize(
    ("status", "is_final"),
    [
        ({}, False),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: taints"}]},
            False,
        ),
        (
            {
                "containerStatuses": [
                    {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such tag"}}}
                ]
            },
            True,
        ),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, True),
    ],
)
def test_the_reason_why_a_pod_does_not_run_is_reported(
    status: dict[str, object], is_final: bool, wording: Wording
) -> None:
    stuck = why_not_running({"status": status}, [])
    assert stuck.is_final == is_final
    wording(stuck.why)


def test_the_last_warning_adds_what_the_pod_itself_lacks() -> None:
    events = [
        {"type": "Warning", "reason": "FailedMount", "message": "old"},
        {"type": "Warning", "reason": "FailedAttachVolume", "message": "Multi-Attach error"},
        {"type": "Normal", "reason": "Pulled", "message": "fine"},
    ]
    assert why_not_running({}, events).why == "FailedAttachVolume: Multi-Attach error"


def test_a_pod_that_is_going_does_not_run() -> None:
    status: dict[str, object] = {"containerStatuses": [{"state": {"running": {}}}]}
    assert is_running({"status": status})
    assert not is_running({"status": status, "metadata": {"deletionTimestamp": "2026-11-15T12:00:00Z"}})
    assert not is_running({"status": {"containerStatuses": []}})


@pytest.mark.parametrize(
    ("example", "claims"),
    [("kubeflow/pytorchjob-sp500.yaml", ["sp500-output"]), ("kubeflow/pytorchjob.yaml", [])],
)
def test_the_claim_of_the_results_is_the_one_that_is_written_to(example: str, claims: list[str]) -> None:
    objects = list(yaml.safe_load_all((EXAMPLES / example).read_text()))
    assert written_claims(objects[-1]) == claims


def test_a_claim_that_is_mounted_to_be_read_and_to_be_written_is_written() -> None:
    mounts = [
        {"name": "all", "mountPath": "/data", "readOnly": True, "subPath": "data"},
        {"name": "all", "mountPath": "/output", "subPath": "output"},
        {"name": "input", "mountPath": "/input", "readOnly": True},
    ]
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("all", "input")]
    pod = {"containers": [{"name": "main", "volumeMounts": mounts}], "volumes": volumes}
    assert written_claims({"kind": "Job", "spec": {"template": {"spec": pod}}}) == ["all"]

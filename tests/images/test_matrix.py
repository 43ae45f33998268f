"""The tables are made from what the configured index lists: here a small one on loopback."""

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from packaging.version import Version
from tests.fixtures.servers.http_server import answering

from paceline.images.lint.external_tools import find_program
from paceline.images.lint.matrix import (
    IndexFile,
    Matrix,
    TorchRow,
    Wheels,
    from_json,
    matrix,
    releases_of,
    to_json,
    wheels,
    wheels_from_json,
    wheels_to_json,
)
from paceline.images.lint.matrix_refresh import refresh, refresh_wheels, write_matrix, write_wheels

PLATFORM = "manylinux_2_28_x86_64"
# Releases that no real index has: name, version, tags of Python, requirements.
RELEASES = [
    (
        "torch",
        "7.1.0",
        ("cp311-cp311", "cp312-cp312"),
        ["nvidia-cuda-runtime-cu12==12.9.1", "nvidia-nccl-cu12==2.3"],
    ),
    (
        "torch",
        "7.2.0",
        ("cp312-cp312", "cp313-cp313"),
        ["nvidia-cuda-runtime==14.0.5", "nvidia-cudnn-cu14==11.2"],
    ),
    ("torch", "7.3.0rc1", ("cp312-cp312",), []),
    ("torchvision", "0.51.0", ("cp311-cp311", "cp312-cp312"), ["torch==7.1.0"]),
    ("torchvision", "0.52.0", ("cp312-cp312", "cp313-cp313"), ["torch==7.2.0"]),
    ("torchaudio", "7.1.0", ("cp311-cp311", "cp312-cp312", "cp313-cp313"), ["torch==7.1.0"]),
    ("nvidia-cuda-runtime-cu12", "12.9.1", ("py3-none",), []),
    ("nvidia-nccl-cu12", "2.3", ("py3-none",), []),
    ("nvidia-cuda-runtime", "14.0.5", ("py3-none",), []),
    ("nvidia-cudnn-cu14", "11.2", ("py3-none",), []),
    (
        "transformers",
        "9.0.1",
        ("py3-none-any",),
        ["tokenizers<2,>=1.5", "huggingface-hub>=3", "torch; extra=='t'"],
    ),
    ("transformers", "9.0.0", ("py3-none-any",), ["tokenizers<2,>=1.4"]),
]


def wheel(name: str, version: str, needs: list[str]) -> bytes:
    file = io.BytesIO()
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {n}" for n in needs),
    ]
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{folder}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(
            f"{folder}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{folder}/RECORD", "")
    return file.getvalue()


@contextmanager
def index(folder: Path) -> Iterator[str]:
    for name, version, tags, needs in RELEASES:
        shelf = folder / "simple" / name
        shelf.mkdir(parents=True, exist_ok=True)
        for tag in tags:
            full = tag if tag.endswith("any") else f"{tag}-{PLATFORM}"
            (shelf / f"{name.replace('-', '_')}-{version}-{full}.whl").write_bytes(
                wheel(name, version, needs)
            )
    (folder / "simple" / "cuda" / "torch").mkdir(parents=True)
    (folder / "simple" / "cuda" / "torch" / "index.html").write_text(
        '<a href="/whl/torch-7.2.0%2Bcu140-cp312-cp312-linux_x86_64.whl">torch</a>'
    )
    for shelf in (folder / "simple").iterdir():
        links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in sorted(shelf.glob("*.whl")))
        (shelf / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *spec: object) -> None:
            super().__init__(*spec, directory=str(folder))  # type: ignore[arg-type]  # as the server calls it

    with answering(Handler) as port:
        yield f"http://127.0.0.1:{port}/simple"


def test_the_matrix_is_built_from_the_configured_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_program("uv") is None:
        pytest.skip("the matrix was NOT REFRESHED: no uv here; pip install uv")
    with index(tmp_path / "served") as address:
        settings = {"PIP_INDEX_URL": address, "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_CACHE_DIR": "1"}
        for name, value in {**settings, "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_NO_CONFIG": "1"}.items():
            monkeypatch.setenv(name, value)
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        reported: list[str] = []
        # A row that is known is not asked for again.
        known = TorchRow(torch=Version("7.1.0"), pythons=("3.1",))
        before = Matrix(dated=date(2020, 1, 1), torch=(known,))
        made = refresh(date(2027, 1, 2), before, only_new=True, notify=reported.append)
    file = tmp_path / "matrix.json"
    write_matrix(made, file)
    row = made.torch[1]
    assert made.torch[0] == known
    assert (str(row.torch), row.pythons, str(row.cuda)) == ("7.2.0", ("3.12", "3.13"), "14.0.5")
    assert (str(row.torchvision), row.torchaudio, str(row.cudnn)) == ("0.52.0", None, "11.2")
    assert [(str(stack.transformers), dict(stack.needs)) for stack in made.stacks] == [
        ("9.0.1", {"tokenizers": "<2,>=1.5", "huggingface-hub": ">=3"})
    ]
    assert from_json(json.loads(file.read_text())) == made
    assert made.dated == date(2027, 1, 2)
    assert any("torch 7.2.0: CUDA 14.0.5" in line for line in reported)


def test_the_table_of_wheels_is_made_from_the_files_that_the_configured_index_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = {Version("7.0.0"): "3.6"}
    known = Wheels(
        dated=date(2020, 1, 1),
        packages={"torch": stale, "transformers": stale},
        bound_to_torch={},
        triton_of_torch={Version("7.2.0"): Version("9.0")},
        older_sisters={},
        cuda_builds={"7.1": ("129",)},
        image_cudas={},
    )
    reported: list[str] = []
    with index(tmp_path / "served") as address:
        monkeypatch.setenv("PIP_INDEX_URL", address)
        empty = Matrix(dated=date(2027, 1, 2), torch=())
        made = refresh_wheels(
            date(2027, 1, 2), known, empty, torch_index=f"{address}/cuda", notify=reported.append
        )
    write_wheels(made, tmp_path / "wheels.json")
    assert made.dated == date(2027, 1, 2)
    assert made.packages["torch"] == {Version("7.1.0"): "3.11-3.12", Version("7.2.0"): "3.12-3.13"}
    assert made.packages["transformers"][Version("9.0.1")] == "pure:3.6+"
    assert made.cuda_builds == {"7.1": ("129",), "7.2": ("140",)}
    assert wheels_from_json(json.loads((tmp_path / "wheels.json").read_text())) == made
    assert any("torch: 2 releases" in line for line in reported)


def test_the_tags_of_a_release_state_its_pythons_and_systems() -> None:
    names = [
        ("a-1.0-cp39-cp39-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", ">=3.8"),
        ("a-1.0-cp310-cp310-manylinux_2_17_x86_64.whl", ">=3.8"),
        ("a-1.0-cp310-cp310-musllinux_1_1_x86_64.whl", ">=3.8"),
        ("a-1.0-cp312-cp312-win_amd64.whl", ">=3.8"),
        ("a-1.0.tar.gz", ">=3.8"),
        ("a-2.0-cp38-abi3-manylinux2014_x86_64.whl", ""),
        ("a-3.0-py3-none-any.whl", ">=3.9,<3.13"),
        ("a-4.0-cp312-cp312-macosx_11_0_arm64.whl", ""),
        ("a-5.0rc1-py3-none-any.whl", ""),
    ]
    made = releases_of(IndexFile(name, requires) for name, requires in names)
    assert made == {
        Version("1.0"): "3.9-3.10 musl:3.10 source:3.8+",
        Version("2.0"): "3.8+",
        Version("3.0"): "pure:3.9-3.12",
        Version("4.0"): "none",
    }


def test_the_packaged_wheels_read_back_and_distinguish_glibc_from_musl() -> None:
    known = wheels()
    assert wheels_from_json(wheels_to_json(known)) == known
    assert known.has_wheel("numpy", Version("1.26.4"), "3.11", libc="musl")
    assert not known.has_wheel("torch", Version("2.6.0"), "3.11", libc="musl")
    assert known.has_nothing_for_musl("torch")
    assert not known.has_source("transformers", Version("5.22.2"), "3.9")


def test_the_packaged_matrix_reads_back_and_has_its_newest_version() -> None:
    known = matrix()
    assert from_json(to_json(known)) == known
    assert known.newest.torch >= Version("2.15.0")
    assert all(row.pythons and row.cuda is not None for row in known.torch)
    assert known.row(Version("2.6.0+cu118")) == known.row(Version("2.6.0"))
    assert known.row(Version("99.0")) is None

"""Is the matrix what the configured index says? A small index on loopback says something of its own."""

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
from tests.fixtures.http_server import answering

from paceline.app.image_matrix import refresh, write_matrix
from paceline.app.image_tools import tool
from paceline.images.matrix import Matrix, TorchRow, from_json, matrix, to_json

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
    for shelf in (folder / "simple").iterdir():
        links = "".join(f'<a href="{one.name}">{one.name}</a>\n' for one in sorted(shelf.glob("*.whl")))
        (shelf / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *asked: object) -> None:
            super().__init__(*asked, directory=str(folder))  # type: ignore[arg-type]  # as the server calls it

    with answering(Handler) as port:
        yield f"http://127.0.0.1:{port}/simple"


def test_the_matrix_is_made_from_what_the_configured_index_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool("uv") is None:
        pytest.skip("the matrix was NOT MADE ANEW: no uv here; pip install uv")
    with index(tmp_path / "served") as address:
        settings = {"PIP_INDEX_URL": address, "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_CACHE_DIR": "1"}
        for name, value in {**settings, "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_NO_CONFIG": "1"}.items():
            monkeypatch.setenv(name, value)
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        told: list[str] = []
        # A row that is known is not asked for again.
        known = TorchRow(torch=Version("7.1.0"), pythons=("3.1",))
        before = Matrix(dated=date(2020, 1, 1), torch=(known,))
        made = refresh(date(2027, 1, 2), before, only_new=True, tell=told.append)
    file = tmp_path / "matrix.json"
    write_matrix(made, file)
    row = made.torch[1]
    assert made.torch[0] == known
    assert (str(row.torch), row.pythons, str(row.cuda)) == ("7.2.0", ("3.12", "3.13"), "14.0.5")
    assert (str(row.torchvision), row.torchaudio, str(row.cudnn)) == ("0.52.0", None, "11.2")
    assert [(str(one.transformers), dict(one.needs)) for one in made.stacks] == [
        ("9.0.1", {"tokenizers": "<2,>=1.5", "huggingface-hub": ">=3"})
    ]
    assert from_json(json.loads(file.read_text())) == made
    assert made.dated == date(2027, 1, 2)
    assert any("torch 7.2.0: CUDA 14.0.5" in line for line in told)


def test_the_matrix_of_the_package_reads_back_and_knows_its_newest() -> None:
    known = matrix()
    assert from_json(to_json(known)) == known
    assert known.newest.torch >= Version("2.15.0")
    assert all(row.pythons and row.cuda is not None for row in known.torch)
    assert known.row(Version("2.6.0+cu118")) == known.row(Version("2.6.0"))
    assert known.row(Version("99.0")) is None

"""The generated Python of our protos is up to date."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src"
FOLDER = Path("paceline") / "coordinator" / "proto"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proto")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(SOURCE)]
    command += [f"--python_out={folder}", f"--pyi_out={folder}"]
    command += [str(path) for path in sorted((SOURCE / FOLDER).glob("*.proto"))]
    subprocess.run(command, check=True)
    return folder


@pytest.mark.parametrize("name", ["cluster_pb2.py", "cluster_pb2.pyi", "torchft_pb2.py", "torchft_pb2.pyi"])
def test_the_generated_code_is_up_to_date(name: str, made: Path) -> None:
    fresh, kept = ((folder / FOLDER / name).read_text() for folder in (made, SOURCE))
    assert fresh == kept, "a proto has changed: run `make proto`"

"""The broken images really fail and the fixed ones do not, by pip, uv, torch and the kernel.

Containers are built in tests/image_builds; tests that need the package index are skipped, with a reason,
where none can be reached.
"""

import ensurepip
import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.images.cases import TODAY, Case, case, project_of

from paceline.core import environ
from paceline.images.lint.check import apply_fixes, findings_from_log
from paceline.images.lint.external_tools import find_program, resolve, uv_environment
from paceline.images.lint.project import Finding, Project, Target
from paceline.images.lint.view import stage_views

TARGET = Target(today=TODAY)


@pytest.fixture(scope="module")
def index() -> None:
    """The package index that pip and uv are configured for answers."""
    uv = find_program("uv")
    if uv is None:
        pytest.skip("versions were NOT RESOLVED: no uv here; pip install uv")
    command = [uv, "pip", "compile", "-", "--no-deps", "--quiet", "--no-header"]
    spec = subprocess.run(
        command, input="six", capture_output=True, text=True, timeout=60, check=False, env=uv_environment()
    )
    if spec.returncode != 0:
        pytest.skip(f"versions were NOT RESOLVED: no package index answers: {spec.stderr.strip()[-200:]}")


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("name", ["torch-trio", "python-without-wheel", "hugging-face-skew", "old-libc"])
def test_uv_finds_no_solution_before_and_one_after(name: str) -> None:
    broken = case(name)
    before = _resolved(broken.project)
    assert re.search(broken.said["signature"], "".join(finding.evidence for finding in before))
    assert _resolved(_fixed(broken)) == ()


@pytest.mark.usefixtures("index")
def test_a_build_of_torch_without_its_index_is_not_found() -> None:
    broken = case("build-without-index")
    findings = _resolved(broken.project)
    assert re.search(broken.said["signature"], "".join(finding.evidence for finding in findings))
    # With the index named, whether it can be reached from here or not, this is no longer what is missing.
    indexes = [
        view.indexes(installed) for view in stage_views(_fixed(broken), TARGET) for installed in view.own
    ]
    assert all(any(address.endswith("/cu118") for address in result) for result in indexes)


@pytest.mark.usefixtures("index")
def test_the_wheel_brings_the_cuda_that_the_fixed_base_has() -> None:
    command = [
        find_program("uv") or "uv",
        "pip",
        "compile",
        "-",
        "--quiet",
        "--no-header",
        "--python-version",
        "3.10",
    ]
    command += ["--python-platform", "x86_64-manylinux_2_28"]
    completed = _uv(command, "torch==2.6.0")
    match = re.search(r"nvidia-cuda-runtime-cu(\d+)==", completed.stdout)
    assert match is not None
    broken = case("cuda-major")
    bases = [
        view.base.cuda
        for project in (broken.project, _fixed(broken))
        for view in stage_views(project, TARGET)
    ]
    assert [base is not None and base.major == int(match[1]) for base in bases] == [False, True]


@pytest.mark.usefixtures("index")
def test_a_module_of_numpy_1_fails_beside_numpy_2_and_works_beside_numpy_1(tmp_path: Path) -> None:
    """torch itself is a gigabyte; a small extension compiled against NumPy 1 breaks in the same way."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("NumPy 1 beside NumPy 2 was NOT TRIED: the small extension has wheels for Python 3.11")
    uv = find_program("uv") or "uv"
    seen = []
    for numpy in ("numpy==2.4.6", "numpy<2"):
        folder = tmp_path / numpy[-1]
        install = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--target",
            str(folder),
            "--no-deps",
            "--only-binary",
            ":all:",
        ]
        _uv([*install, "bottleneck==1.3.7", numpy])
        seen.append(_python("import bottleneck", PYTHONPATH=str(folder)))
    assert seen[0].returncode != 0
    assert re.search(case("numpy-abi").said["signature"], seen[0].stderr)
    assert seen[1].returncode == 0, seen[1].stderr
    findings = findings_from_log(seen[0].stderr, case("numpy-abi").project, TARGET)
    assert [finding.id for finding in findings] == ["numpy-abi"]


def _uv(command: list[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    """An index that answered a moment ago may be gone now: that is no failure of ours."""
    result = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=uv_environment(),
        cwd="/",
    )
    if result.returncode != 0:
        pytest.skip(f"versions were NOT RESOLVED: {result.stderr.strip()[-200:]}")
    return result


def _resolved(project: Project) -> tuple[Finding, ...]:
    resolved = resolve(project, TARGET)
    if resolved.notes:
        pytest.skip(f"versions were NOT RESOLVED: {resolved.notes[0]}")
    return resolved.findings


def _fixed(broken: Case) -> Project:
    return apply_fixes(broken.project, broken.target).project


def _python(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return _run(["-c", code], variables)


def _pip(arguments: list[str], **variables: str) -> "subprocess.CompletedProcess[str]":
    """pip without any index: what it needs beside this Python comes from Python's own bundle."""
    return _run(["-m", "pip", *arguments, "--no-index", "--no-deps", "--isolated"], variables)


def _run(words: list[str], variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environ.for_child(**variables),
    )


def _package(folder: Path, setup: str) -> Path:
    folder.mkdir()
    (folder / "setup.py").write_text(setup)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    )
    return folder


def test_a_package_that_imports_torch_is_not_built_in_isolation_and_is_without(tmp_path: Path) -> None:
    bundle = Path(ensurepip.__file__).parent / "_bundled"
    if not list(bundle.glob("setuptools-*.whl")):
        pytest.skip("building in isolation was NOT TRIED: this Python bundles no setuptools")
    # `find_spec`, as importing torch takes seconds; what is missing in isolation is missing either way.
    setup = (
        "import importlib.util\n"
        "if importlib.util.find_spec('torch') is None:\n"
        "    raise ModuleNotFoundError(\"No module named 'torch'\")\n"
        "from setuptools import setup\nsetup(name='flash-attn', version='2.5.8', py_modules=[])\n"
    )
    package = _package(tmp_path / "flash", setup)
    out = ["wheel", "--wheel-dir", str(tmp_path / "out"), "--find-links", str(bundle)]
    alone = _pip([*out, str(package)])
    assert alone.returncode != 0
    log = f"Collecting flash-attn==2.5.8\n{alone.stdout}{alone.stderr}"
    assert "ModuleNotFoundError" in log
    broken = case("build-isolation")
    assert "build-isolation" in [finding.id for finding in findings_from_log(log, broken.project, TARGET)]
    assert "--no-build-isolation" in _fixed(broken).text("Dockerfile")
    beside = _pip([*out, "--no-build-isolation", str(package)])
    assert beside.returncode == 0, beside.stderr


def test_pip_fails_without_git_and_without_a_compiler(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    cloned = _pip(["wheel", "--wheel-dir", str(tmp_path / "a"), f"git+file://{tmp_path}"], PATH=str(bare))
    assert cloned.returncode != 0
    broken = case("no-build-tools")
    assert [o.id for o in findings_from_log(cloned.stdout + cloned.stderr, broken.project, TARGET)] == [
        "no-build-tools"
    ]

    code = (
        "from setuptools import Extension, setup\n"
        "setup(name='crcmod', version='1', ext_modules=[Extension('c', ['c.c'])])\n"
    )
    package = _package(tmp_path / "crc", code)
    (package / "c.c").write_text(
        "#include <Python.h>\nPyObject *PyInit_c(void) { return PyLong_FromLong(1); }\n"
    )
    build = ["wheel", "--no-build-isolation", "--wheel-dir", str(tmp_path / "b"), str(package)]
    failed = _pip(build, PATH=str(bare))
    assert failed.returncode != 0
    text = case("no-compiler")
    assert "no-build-tools" in [
        o.id for o in findings_from_log(failed.stdout + failed.stderr, text.project, TARGET)
    ]
    if shutil.which("gcc") is None:
        pytest.skip("that a compiler fixes it was NOT TRIED: there is no gcc here")
    completed = _pip(build)
    assert completed.returncode == 0, completed.stderr


def test_a_program_for_another_processor_is_refused_by_the_kernel(tmp_path: Path) -> None:
    """The first bytes of a program are enough; no processor exists that these name."""
    program = tmp_path / "sh"
    program.write_bytes(
        bytes.fromhex("7f454c4602010100000000000000000002003412010000000000400000000000") + bytes(64)
    )
    program.chmod(0o755)
    with pytest.raises(OSError, match=os.strerror(errno.ENOEXEC)) as refused:
        subprocess.run([str(program)], check=False)
    findings = findings_from_log(
        f"exec {program}: {refused.value.strerror}", case("wrong-platform").project, TARGET
    )
    assert [finding.id for finding in findings] == ["wrong-platform"]


def test_this_torch_reproduces_the_errors_of_a_build_without_cuda_and_without_nvcc() -> None:
    """torch's own helper for extensions refuses where no CUDA compiler is; a cpu build has no CUDA."""
    code = (
        "import torch\nprint(torch.version.cuda)\n"
        "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('x', ['x.cu'])\n"
    )
    completed = _python(code, CUDA_HOME="", PATH="/nonexistent")
    if "None" not in completed.stdout:
        pytest.skip("a torch without CUDA was NOT TRIED: the one installed here has CUDA")
    assert completed.returncode != 0
    assert [o.id for o in findings_from_log(completed.stderr, case("needs-nvcc").project, TARGET)] == [
        "needs-nvcc"
    ]


def test_an_alpine_base_with_its_own_packages_is_left_to_a_person() -> None:
    docker = "FROM python:3.11-alpine\nRUN apk add --no-cache gcc\nRUN pip install torch==2.6.0\n"
    fix_result = apply_fixes(project_of(docker), TARGET)
    assert fix_result.applied == ()
    assert "old-libc" in [finding.id for finding in fix_result.left]

"""Which manifests lie under examples/ray? What `paceline job render` prints, and nothing written by hand.

`python -m docs.manifests` (or `make examples`) writes them anew; a test compares them byte by byte.
"""

import contextlib
import io
import shlex
import sys
from pathlib import Path

from paceline.cli.main import run
from paceline.cli.session import Session
from paceline.errors import ExitCode

FOLDER = Path(__file__).parent.parent / "examples" / "ray"
_IMAGE = "--image example.com/paceline-ray:1"
_CLUSTER = f"--target raycluster --name paceline {_IMAGE}"
_GPU = "--gpus-per-worker 1 --worker-cpus 4 --worker-memory 16Gi"
_STRAGGLER = "--steps 200 --pace 10ms --straggler worker=1,factor=3"


def _job(name: str, settings: str) -> str:
    return f"--target rayjob --name {name} {_IMAGE} --task xor --num-workers 2 {settings}"


COMMANDS = {
    "raycluster.yaml": f"{_CLUSTER} --resizable 1:3 --node-port",
    "raycluster-autoscaling.yaml": f"{_CLUSTER} --autoscale 1:3 --node-port",
    "raycluster-gpu.yaml": f"{_CLUSTER} {_GPU} --resizable 1:3 --node-port",
    "rayjob-ssgd.yaml": _job("xor-ssgd", f"--mode ssgd {_STRAGGLER}"),
    "rayjob-asgd.yaml": _job("xor-asgd", f"--mode asgd {_STRAGGLER}"),
    "rayjob-ssp.yaml": _job("xor-ssp", f"--mode ssp --staleness 3 {_STRAGGLER}"),
    "rayjob-localsgd.yaml": _job("xor-localsgd", f"--mode localsgd --sync-every 8 {_STRAGGLER}"),
    "rayjob-localsgd-gpu.yaml": _job("xor-localsgd-gpu", f"--mode localsgd {_STRAGGLER} {_GPU}"),
}


def manifests() -> dict[str, str]:
    """The files by name."""
    return {name: _header(command) + _rendered(command) for name, command in COMMANDS.items()}


def _header(command: str) -> str:
    return f"# Written by `make examples`, from:\n#   paceline job render {command}\n"


def _rendered(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(["job", "render", "--quiet", *shlex.split(command)], Session())
    assert code == ExitCode.OK, f"paceline job render {command}"
    return out.getvalue()


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = manifests()
    for path in FOLDER.glob("*.yaml"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(made)} files to {FOLDER}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Example manifests: the output of `paceline job render` and `paceline cluster deploy render`.

`python -m docs.manifests` (or `make examples`) writes them; a test compares them byte by byte.
"""

import contextlib
import io
import json
import shlex
import sys
from pathlib import Path

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.session import Session

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
FOLDER = EXAMPLES / "ray"
_IMAGE = "--image example.com/paceline-ray:1"
_CLUSTER = f"--target raycluster --name paceline {_IMAGE}"
_GPU = "--gpus-per-worker 1 --worker-cpus 4 --worker-memory 16Gi"
_STRAGGLER = "--steps 200 --pace 10ms --straggler worker=1,factor=3"


def _job(name: str, settings: str) -> str:
    return f"--target rayjob --name {name} {_IMAGE} --task xor --num-workers 2 {settings}"


def _comparison(name: str, modes: str) -> str:
    """Of one experiment: its modes on equal work, with one slow worker. The report is kept on a claim."""
    return (
        f"--target rayjob --name compare-{name} {_IMAGE} --volume comparisons:/out"
        f" --create-volume comparisons=1Gi -- compare --task xor --modes {modes} --num-workers 4"
        f" --out /out/{name} {_STRAGGLER}"
    )


COMMANDS = {
    "raycluster.yaml": f"{_CLUSTER} --resizable 1:3 --node-port",
    "raycluster-autoscaling.yaml": f"{_CLUSTER} --autoscale 1:3 --node-port",
    "raycluster-access.yaml": f"{_CLUSTER} --autoscale 1:3 --rbac --network-policy --namespace ml-training",
    "raycluster-gpu.yaml": f"{_CLUSTER} {_GPU} --resizable 1:3 --node-port",
    "rayjob-ssgd.yaml": _job("xor-ssgd", f"--mode ssgd {_STRAGGLER}"),
    "rayjob-asgd.yaml": _job("xor-asgd", f"--mode asgd {_STRAGGLER}"),
    "rayjob-ssp.yaml": _job("xor-ssp", f"--mode ssp --staleness 3 {_STRAGGLER}"),
    "rayjob-localsgd.yaml": _job("xor-localsgd", f"--mode localsgd --sync-every 8 {_STRAGGLER}"),
    "rayjob-access.yaml": _job("xor-access", "--mode ssgd --rbac --network-policy --namespace ml-training"),
    "rayjob-script.yaml": (
        f"--target rayjob {_IMAGE} --num-workers 2 --mode ssgd -- examples/cnn/train.py --epochs 5"
    ),
    "rayjob-localsgd-gpu.yaml": _job("xor-localsgd-gpu", f"--mode localsgd {_STRAGGLER} {_GPU}"),
    "rayjob-plain-script.yaml": (
        "--target rayjob --image rayproject/ray:2.60.0 --nodes 2 --queue ray-queue --node-selector pool=cpu"
        " -- /app/train.py --epochs 5"
    ),
    "rayjob-compare-localsgd.yaml": _comparison("localsgd", "ssgd,localsgd --sync-every 8"),
    "rayjob-compare-asgd.yaml": _comparison("asgd", "ssgd,asgd,ssp --staleness 3"),
    "rayjob-compare-adaptive.yaml": _comparison("adaptive", "ssgd,localsgd,adaptive"),
    "rayjob-compare-diloco.yaml": _comparison("diloco", "ssgd,fedavg,diloco"),
}


_TORCH = "--image example.com/paceline:1 --task xor --mode ddp"
_TWO = f"{_TORCH} --nodes 2"
_HOSTS = (
    "--image example.com/paceline:1 --task xor --mode ssgd --elastic --nodes 2:4"
    " --coordinator paceline-coordinator --checkpoint-volume runs --retries 3"
)
_EIGHT = "--nodes 2 --gpus-per-node 8 --worker-cpus 90 --worker-memory 900Gi --shm 64Gi"
_KEPT = "--checkpoint-volume checkpoints --checkpoint-every 100 --retries 3"
_SP500 = (
    "--config examples/sp500.yaml --config-map --mode ddp --checkpoint-every 50"
    " --task-option npz_path=/data/sp500_classification.npz"
    " --nodes 4 --gpus-per-node 1 --worker-cpus 4 --worker-memory 8Gi --retries 3"
    " --volume sp500-data:/data:ro --checkpoint-volume sp500-output:/output"
    " --create-volume sp500-data=1Gi --create-volume sp500-output=10Gi"
    " --image example.com/paceline:1 --torchrun torchrun --namespace ml-training"
)
# Of jobs that torchrun starts, by folder and name.
TORCH = {
    "kubeflow/pytorchjob.yaml": f"--target pytorchjob --name xor-ddp {_TWO}",
    "kubeflow/pytorchjob-c10d.yaml": f"--target pytorchjob --name xor-c10d {_TWO} --rdzv c10d {_KEPT}",
    "kubeflow/pytorchjob-elastic.yaml": f"--target pytorchjob --name xor-elastic {_TWO} --elastic-nodes 1:4",
    "kubeflow/pytorchjob-efa.yaml": (
        f"--target pytorchjob --name xor-efa {_TORCH} {_EIGHT} --efa 32 --instance-type p5.48xlarge"
        f" --hf-secret hf-token --torch-debug {_KEPT}"
    ),
    "kubeflow/pytorchjob-sp500.yaml": f"--target pytorchjob --name sp500 {_SP500}",
    "kubeflow/pytorchjob-script.yaml": (
        "--target pytorchjob --image example.com/paceline:1 --nodes 2 --mode localsgd"
        " -- examples/cnn/train.py --epochs 5"
    ),
    "kubeflow/trainjob.yaml": f"--target trainjob --name xor-ddp {_TWO}",
    "kubeflow/trainjob-runtime.yaml": (
        f"--target trainjob --runtime torch-distributed --name xor-gpu {_TORCH} {_EIGHT} --queue gpu-queue"
    ),
    "kubeflow/pytorchjob-hosts.yaml": f"--target pytorchjob --name xor-hosts {_HOSTS}",
    "kubeflow/trainjob-hosts.yaml": f"--target trainjob --name xor-hosts {_HOSTS}",
    "kubernetes/job-hosts.yaml": f"--target job --name xor-hosts {_HOSTS}",
    "kubernetes/job-metrics.yaml": (
        f"--target job --name xor-metrics {_TWO} --namespace ml-training --metrics-port 9464 --pod-monitor"
    ),
    "kubernetes/job.yaml": f"--target job --name xor-ddp {_TWO} --network-policy",
    "kubernetes/job-script.yaml": (
        "--target job --image example.com/mine:1 --nodes 2 --mode ssgd -- /app/train.py --epochs 5"
    ),
    "kubeflow/pytorchjob-plain-script.yaml": (
        "--target pytorchjob --image example.com/fsdp:1 --nodes 2 --gpus-per-node 8 --worker-cpus 90"
        " --worker-memory 900Gi --shm 64Gi --checkpoint-volume checkpoints --hf-secret hf-token"
        " --toleration dedicated=training:NoSchedule --priority-class training --running-s 172800"
        " -- /fsdp/train.py --model_type=llama_v3 --max_steps=100 --checkpoint_dir=/checkpoints"
    ),
    "kubeflow/trainjob-plain-script.yaml": (
        "--target trainjob --image example.com/fsdp:1 --nodes 2 -- /fsdp/train.py --max_steps=100"
    ),
    "kubernetes/job-command.yaml": (
        "--target job --image example.com/mine:1 --nodes 2 --name mine --command"
        " -- accelerate launch --num_machines=2 /app/train.py"
    ),
    "kubernetes/job-patched.yaml": (
        "--target job --image example.com/mine:1 --nodes 2 --patch examples/patches/sidecar.yaml"
        " --patch examples/patches/suspend.json -- /app/train.py --epochs 5"
    ),
    "kubernetes/job-gpu.yaml": (
        f"--target job --name xor-gpu {_TORCH} {_EIGHT} --rbac --namespace ml-training {_KEPT}"
    ),
    "hyperpod/hyperpodpytorchjob-plain-script.yaml": (
        "--target hyperpod --image example.com/fsdp:1 --nodes 2 --gpus-per-node 8 --worker-cpus 90"
        " --worker-memory 900Gi --shm 64Gi --instance-type ml.p5.48xlarge --namespace hyperpod-ns-team1"
        " -- /fsdp/train.py --model_type=llama_v3 --max_steps=100"
    ),
    "hyperpod/hyperpodpytorchjob.yaml": (
        f"--target hyperpod --name xor-hyperpod {_TORCH} {_EIGHT} --efa 32 --instance-type ml.p5.48xlarge"
        f" --queue hyperpod-ns-team1-localqueue --namespace hyperpod-ns-team1 {_KEPT}"
    ),
}


def manifests() -> dict[str, str]:
    """Those of Ray, by name."""
    return {name: _header(command) + _rendered(command) for name, command in COMMANDS.items()}


def torch_manifests() -> dict[str, str]:
    """Those of torchrun, by folder and name."""
    return {name: _header(command) + _rendered(command) for name, command in TORCH.items()}


_DEPLOYED = {
    "coordinator": "coordinator --namespace train --image example.com/paceline:1",
    "dashboard": "dashboard --namespace ml-training --claim output --image example.com/paceline:1",
    "monitoring": (
        "monitoring --namespace ml-training --prometheus-image example.com/prometheus:1"
        " --grafana-image example.com/grafana:1"
    ),
}


def deploy_manifests() -> dict[str, str]:
    """The folders for kustomize, by folder and name."""
    made: dict[str, str] = {}
    for folder, command in _DEPLOYED.items():
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = run(["deploy", "render", *shlex.split(command), "--quiet", "--json"], Session())
        assert code == ExitCode.OK, f"paceline cluster deploy render {command}"
        head = (
            f"# Written by `make examples`, from:\n#   paceline cluster deploy render {command} --out DIR\n"
        )
        files = json.loads(out.getvalue())["data"]["files"]
        made |= {f"deploy/{folder}/{name}": head + text for name, text in files.items()}
    return made


def _header(command: str) -> str:
    return f"# Written by `make examples`, from:\n#   paceline job render {command}\n"


def _rendered(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        words = [_located(word) for word in shlex.split(command)]
        code = run(["job", "render", "--quiet", *words], Session(folder=ROOT))
    assert code == ExitCode.OK, f"paceline job render {command}"
    return out.getvalue()


def _located(word: str) -> str:
    """A settings file by its full path; a script and a patch by their relative ones."""
    is_settings = word.startswith("examples/") and word.endswith(".yaml") and "patches" not in word
    return str(ROOT / word) if is_settings else word


def main() -> None:
    made = {**{f"ray/{name}": text for name, text in manifests().items()}, **torch_manifests()}
    made |= deploy_manifests()
    for path in [*EXAMPLES.glob("*/*.yaml"), *EXAMPLES.glob("deploy/*/*.yaml")]:
        if path.relative_to(EXAMPLES).as_posix() not in made and path.parent.name != "patches":
            path.unlink()
    for name, text in made.items():
        (EXAMPLES / name).parent.mkdir(parents=True, exist_ok=True)
        (EXAMPLES / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(made)} files to {EXAMPLES}", file=sys.stderr)


if __name__ == "__main__":
    main()

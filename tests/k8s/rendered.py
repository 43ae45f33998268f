"""Manifests rendered by the same path as `paceline job render`."""

import copy
import functools
from typing import Any

from paceline.config.load import load
from paceline.config.values import RawSetting
from paceline.k8s.spec.job import JobOptions, NodeRange, Profile, Target, TorchrunOptions
from paceline.k8s.submit.manifests import RenderedJob, render_job

VARIANTS: dict[str, tuple[Target, dict[str, str], dict[str, Any]]] = {
    "job": (Target.RAYJOB, {"mode": "localsgd", "steps": "20"}, {}),
    "gpu": (Target.RAYJOB, {"mode": "ssgd", "num_workers": "4"}, {"gpus_per_worker": 2}),
    "server": (Target.RAYJOB, {"mode": "asgd"}, {"secret_env": ("HF_TOKEN=hf-token/token",)}),
    "cluster": (Target.RAYCLUSTER, {}, {"node_port": True, "resizable": "1:3"}),
    "autoscaled": (Target.RAYCLUSTER, {}, {"autoscale": "1:3", "namespace": "ml", "pull_secret": "ecr"}),
    "access": (
        Target.RAYJOB,
        {},
        {"namespace": "ml", "torch": TorchrunOptions(rbac=True, network_policy=True)},
    ),
    "access-autoscaled": (
        Target.RAYCLUSTER,
        {},
        {
            "namespace": "ml",
            "autoscale": "1:3",
            "node_port": True,
            "torch": TorchrunOptions(rbac=True, network_policy=True),
        },
    ),
    "kept": (
        Target.RAYJOB,
        {"save_dir": "/out"},
        {"torch": TorchrunOptions(volumes=("data:/data:ro", "out:/out"), create_volumes=("out=10Gi/efs",))},
    ),
    "hosts": (Target.RAYJOB, {"elastic": "yes"}, {"torch": TorchrunOptions(nodes=NodeRange(2, 4))}),
    "compat": (Target.RAYJOB, {"mode": "ssp"}, {"profile": "compat"}),
}


def settings(**options: str) -> Any:  # Any: TrainConfig, which tests take apart
    loaded = load(flags=[RawSetting(key=key, raw=value, where=key) for key, value in options.items()])
    assert not loaded.problems, loaded.problems
    return loaded.config


def objects(name: str) -> tuple[list[dict[str, Any]], Profile]:
    """The manifests of a variant, free to be changed, and the profile they were made for."""
    rendered_job = _rendered(name)
    return copy.deepcopy(rendered_job.objects), rendered_job.intent.profile


@functools.cache
def _rendered(name: str) -> RenderedJob:
    target, text, options = VARIANTS[name]
    return render_job(settings(name="demo", **text), JobOptions(image="example.com/x:1", **options), target)

"""Runs jobs of every kind on the cluster of KUBECONFIG; skips, and says so, without one."""

import argparse
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.live_cluster.scenarios import SORTS, Trial

from paceline.core.errors import PacelineError
from paceline.k8s.client.kubernetes_api import KubernetesApi, connect
from paceline.k8s.kinds import NAMESPACE, RAY_JOB

Say = Callable[[str], None]


def main() -> int:
    words = argparse.ArgumentParser(prog="make test-cluster", description=__doc__)
    words.add_argument("--image", default="busybox:1.37", help="with sh, for Job, PyTorchJob and TrainJob")
    words.add_argument("--ray-image", default="rayproject/ray:2.60.0", help="for RayJob")
    options = words.parse_args()
    named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(":") if part]
    if not named:
        print("SKIPPED: KUBECONFIG is not set, so there is no cluster to try anything on.")
        print("hint: KUBECONFIG=~/.kube/config make test-cluster")
        return 0
    return try_all(named[0].expanduser(), options.image, options.ray_image, print)


def try_all(kubeconfig: Path, image: str, ray_image: str, say: Say) -> int:
    """0 when every kind that the cluster has works."""
    failed: list[str] = []
    api = connect(kubeconfig)
    try:
        with tempfile.TemporaryDirectory() as folder, _namespace(api, say) as namespace:
            for sort in SORTS:
                missing = sort.missing(api)
                if missing:
                    say(f"SKIPPED {sort.kind.name}: {missing}")
                    continue
                its = ray_image if sort.kind is RAY_JOB else image
                trial = Trial(api, kubeconfig, namespace, Path(folder), its, sort, say)
                try:
                    trial.go()
                except (AssertionError, PacelineError) as error:
                    failed.append(sort.kind.name)
                    say(f"FAILED  {sort.kind.name}: {error}")
    finally:
        api.close()
    say(f"failed: {', '.join(failed)}" if failed else "all kinds that this cluster has work")
    return 1 if failed else 0


@contextmanager
def _namespace(api: KubernetesApi, say: Say) -> Iterator[str]:
    """A new one, which goes with everything in it, however it ends."""
    name = f"paceline-test-{secrets.token_hex(3)}"
    labels = {"app.kubernetes.io/managed-by": "paceline"}
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**labels}}})
    say(f"namespace {name} of {api.server}")
    try:
        yield name
    finally:
        api.delete(NAMESPACE, name)
        say(f"namespace {name} is removed")


if __name__ == "__main__":
    sys.exit(main())

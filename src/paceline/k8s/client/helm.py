"""Helm client: runs the user's own `helm` as a process."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core import environ
from paceline.core.errors import NotReadyError
from paceline.core.redaction import redact
from paceline.k8s.charts import Chart

_LAST_LINES = 5
_MOST_S = 1200  # twice what a chart is given to get ready


class HelmError(NotReadyError):
    """Helm ended with another code than 0."""

    code = "E620"


@dataclass(frozen=True, slots=True)
class Release:
    chart: str  # NAME-VERSION
    revision: int
    status: str

    def is_of(self, chart: Chart) -> bool:
        return self.status == "deployed" and self.chart.replace("-v", "-") == chart.deployed


class Helm:
    """One cluster, as a kubeconfig names it; `kubeconfig` may be several files with colons between."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._more = {} if kubeconfig is None else {"KUBECONFIG": kubeconfig}
        self._context = [] if context is None else ["--kube-context", context]

    def release(self, name: str, namespace: str) -> Release | None:
        argv = ["list", "--namespace", namespace, "--filter", f"^{name}$"]
        # Also unfinished releases, which an interrupted process leaves.
        argv += ["--deployed", "--failed", "--pending", "--uninstalling"]
        answer = self._run([*argv, "--output", "json"])
        try:
            releases = json.loads(answer or "[]")
            return (
                Release(releases[0]["chart"], int(releases[0]["revision"]), releases[0]["status"])
                if releases
                else None
            )
        except (ValueError, LookupError, TypeError) as error:
            hint = "use Helm 3.8 or newer: helm version"
            raise HelmError(
                f"the output of helm list is not a list of releases: {answer[:200]!r}", hint
            ) from error

    def upgrade(self, chart: Chart, *, dry_run: bool = False) -> None:
        self._run(chart.upgrade(dry_run=dry_run))

    def take_back(self, release: str, namespace: str, revision: int | None, created: int | None) -> str:
        """Roll back to a revision (None: uninstall); returns why not, or "". `created`: its revision."""
        current = self.release(release, namespace)
        if current is None:
            return ""  # it was never created, or is removed already
        if created is not None and current.revision != created:
            return (
                f"release {release} is at revision {current.revision}, not {created}, which this fix created"
            )
        if revision is None:
            self._run(["uninstall", release, "--namespace", namespace, "--wait"])
        else:
            self._run(["rollback", release, str(revision), "--namespace", namespace, "--wait"])
        return ""

    def _run(self, argv: Sequence[str]) -> str:
        path = shutil.which("helm")
        if path is None:
            raise HelmError("there is no helm on the path", "install it: https://helm.sh/docs/intro/install/")
        try:
            done = subprocess.run(
                [path, *argv, *self._context],
                env=environ.for_child(**self._more),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_MOST_S,
            )
        except subprocess.TimeoutExpired as error:
            hint = f"see: helm {argv[0]} --help, kubectl get pods -A"
            raise HelmError(
                f"helm {argv[0]} did not finish within {_MOST_S} s, and was stopped", hint
            ) from error
        if done.returncode != 0:
            stderr = redact("; ".join(done.stderr.strip().splitlines()[-_LAST_LINES:]))
            hint = "helm rolled back what did not become ready; run the command to see its output"
            raise HelmError(f"helm {argv[0]} ended with code {done.returncode}: {stderr}", hint)
        return done.stdout

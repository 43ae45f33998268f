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
        words = ["list", "--namespace", namespace, "--filter", f"^{name}$"]
        # Also one that was begun and never finished: whoever is killed in between leaves it so.
        words += ["--deployed", "--failed", "--pending", "--uninstalling"]
        answer = self._run([*words, "--output", "json"])
        try:
            found = json.loads(answer or "[]")
            return (
                Release(found[0]["chart"], int(found[0]["revision"]), found[0]["status"]) if found else None
            )
        except (ValueError, LookupError, TypeError) as error:
            hint = "use Helm 3.8 or newer: helm version"
            raise HelmError(
                f"helm list answered what is no list of releases: {answer[:200]!r}", hint
            ) from error

    def upgrade(self, chart: Chart, *, dry_run: bool = False) -> None:
        self._run(chart.upgrade(dry_run=dry_run))

    def take_back(self, release: str, namespace: str, revision: int | None, made: int | None) -> str:
        """To this revision; None: it was not there before. Why not; empty: it is. `made`: ours, if known."""
        found = self.release(release, namespace)
        if found is None:
            return ""  # it never came to be, or somebody was quicker
        if made is not None and found.revision != made:
            return f"release {release} is at revision {found.revision}, and this fix made {made}"
        if revision is None:
            self._run(["uninstall", release, "--namespace", namespace, "--wait"])
        else:
            self._run(["rollback", release, str(revision), "--namespace", namespace, "--wait"])
        return ""

    def _run(self, words: Sequence[str]) -> str:
        path = shutil.which("helm")
        if path is None:
            raise HelmError("there is no helm on the path", "install it: https://helm.sh/docs/intro/install/")
        try:
            done = subprocess.run(
                [path, *words, *self._context],
                env=environ.for_child(**self._more),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_MOST_S,
            )
        except subprocess.TimeoutExpired as error:
            hint = f"look at it: helm {words[0]} --help, kubectl get pods -A"
            raise HelmError(f"helm {words[0]} has not ended in {_MOST_S} s, and was stopped", hint) from error
        if done.returncode != 0:
            said = redact("; ".join(done.stderr.strip().splitlines()[-_LAST_LINES:]))
            hint = "what did not get ready was taken back by helm itself; type the command to see all it says"
            raise HelmError(f"helm {words[0]} ended with code {done.returncode}: {said}", hint)
        return done.stdout

"""Client of HyperPod's `hyp`: a process in a folder of its own, with only verbs on its command line."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from paceline.core import environ
from paceline.core.errors import NotReadyError
from paceline.core.redaction import redact
from paceline.k8s.client.api import Manifest
from paceline.k8s.client.connection import ClusterTarget, kubeconfig_files
from paceline.k8s.diagnose.snapshot import JOB_KINDS
from paceline.k8s.render.hyp import INSTALL, KIND, MIN_VERSION, folder, read_version, to_hyp_job

_LAST_LINES = 5
_MOST_S = 300


class HypError(NotReadyError):
    """There is no hyp, it is too old, or it ended with another code than 0."""

    code = "E621"


class Hyp:
    """`files` are kubeconfigs; hyp has no other way to select a cluster."""

    def __init__(self, files: Sequence[Path], context: str | None) -> None:
        self._files = list(files)
        self._context = context

    def check(self) -> str:
        """Its version. Raises HypError before anything is sent."""
        if not self._files:
            hint = (
                "create a kubeconfig: hyp set-cluster-context --cluster-name CLUSTER, or submit without hyp"
            )
            raise HypError("hyp needs a kubeconfig, and there is none", hint)
        with tempfile.TemporaryDirectory(prefix="paceline-hyp-") as empty:
            output = self._run(["--version"], Path(empty))
        version = read_version(output)
        if version is None:
            message = f"the output of hyp --version has no version: {output.strip()[:80]!r}"
            raise HypError(message, INSTALL)
        text = ".".join(map(str, version))
        if version < MIN_VERSION:
            oldest = ".".join(map(str, MIN_VERSION))
            raise HypError(f"hyp is {text}, but complete manifests need {oldest} or newer", INSTALL)
        return text

    def create(self, job: Mapping[str, object]) -> None:
        """Create the job from a temporary folder that only this user can read."""
        with tempfile.TemporaryDirectory(prefix="paceline-hyp-") as temp_dir:
            for name, text in folder(job).items():
                (Path(temp_dir) / name).write_text(text, encoding="utf-8")
            self._run(["create"], Path(temp_dir))

    def _run(self, argv: Sequence[str], place: Path) -> str:
        path = shutil.which("hyp")
        if path is None:
            error_text = "there is no hyp on the path, which --through hyp uses"
            raise HypError(error_text, INSTALL)
        try:
            done = subprocess.run(
                [path, *argv],
                cwd=place,
                env=environ.for_child(KUBECONFIG=self._kubeconfig(place)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # hyp writes errors to either
                text=True,
                errors="replace",
                check=False,
                timeout=_MOST_S,
            )
        except subprocess.TimeoutExpired as error:
            error_text = f"hyp {argv[0]} did not finish within {_MOST_S} s, and was stopped"
            raise HypError(error_text, "run it manually: hyp list hyp-pytorch-job") from error
        if done.returncode != 0:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            message = redact("; ".join(lines[-_LAST_LINES:]))
            hint = "submit without --through hyp: the same manifest goes to the API server"
            raise HypError(f"hyp {argv[0]} ended with code {done.returncode}: {message}", hint)
        return done.stdout

    def _kubeconfig(self, place: Path) -> str:
        """hyp has no flag for a context; of several files, Python's client takes the last one's."""
        files = [str(path.absolute()) for path in self._files]
        if self._context is not None:
            import yaml

            chosen = place / ".context"
            chosen.write_text(yaml.safe_dump({"current-context": self._context}), encoding="utf-8")
            files.append(str(chosen))
        return ":".join(files)


class HypSubmitter:
    """Submits by `hyp`. Checks at once that `hyp` exists, before anything is created. Raises HypError."""

    def __init__(self, place: ClusterTarget) -> None:
        self._hyp = Hyp(kubeconfig_files(place.kubeconfig), place.context)
        self.notes: list[str] = [f"submitted by hyp {self._hyp.check()}"]

    def prepared(self, manifests: Sequence[Mapping[str, object]]) -> list[Manifest]:
        """Manifests with the job as hyp supports it; other parts are in `notes`, or raise ConfigError."""
        prepared: list[Manifest] = []
        for manifest in manifests:
            if manifest.get("kind") not in JOB_KINDS:
                prepared.append(cast("Manifest", manifest))  # a companion of the job, created by Paceline
                continue
            done = to_hyp_job(manifest)
            self.notes += done.notes
            prepared.append(cast("Manifest", done.job))
        return prepared

    def create(self, job: Mapping[str, object]) -> None:
        assert job.get("kind") == KIND, "prepared before it is sent"
        self._hyp.create(job)

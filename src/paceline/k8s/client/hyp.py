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
    """`files` are kubeconfigs; hyp knows no other way to a cluster."""

    def __init__(self, files: Sequence[Path], context: str | None) -> None:
        self._files, self._context = list(files), context

    def check(self) -> str:
        """Its version. Raises HypError before anything is sent."""
        if not self._files:
            hint = "make a kubeconfig: hyp set-cluster-context --cluster-name CLUSTER, or send it without hyp"
            raise HypError("hyp finds a cluster by a kubeconfig, and there is none", hint)
        with tempfile.TemporaryDirectory(prefix="paceline-hyp-") as empty:
            said = self._run(["--version"], Path(empty))
        version = read_version(said)
        if version is None:
            what = f"hyp --version does not say which version it is: {said.strip()[:80]!r}"
            raise HypError(what, INSTALL)
        text = ".".join(map(str, version))
        if version < MIN_VERSION:
            oldest = ".".join(map(str, MIN_VERSION))
            raise HypError(f"hyp is {text}, and manifests are taken as they are from {oldest} on", INSTALL)
        return text

    def create(self, job: Mapping[str, object]) -> None:
        """Nobody else can read the folder, and it is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="paceline-hyp-") as made:
            for name, text in folder(job).items():
                (Path(made) / name).write_text(text, encoding="utf-8")
            self._run(["create"], Path(made))

    def _run(self, words: Sequence[str], place: Path) -> str:
        path = shutil.which("hyp")
        if path is None:
            what = "there is no hyp on the path: --through hyp sends jobs by HyperPod's own command"
            raise HypError(what, INSTALL)
        try:
            done = subprocess.run(
                [path, *words],
                cwd=place,
                env=environ.for_child(KUBECONFIG=self._kubeconfig(place)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # hyp says what is wrong on either
                text=True,
                errors="replace",
                check=False,
                timeout=_MOST_S,
            )
        except subprocess.TimeoutExpired as error:
            what = f"hyp {words[0]} has not ended in {_MOST_S} s, and was stopped"
            raise HypError(what, "try it by hand: hyp list hyp-pytorch-job") from error
        if done.returncode != 0:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            said = redact("; ".join(lines[-_LAST_LINES:]))
            hint = "send it without --through hyp: the same manifest goes to the API server itself"
            raise HypError(f"hyp {words[0]} ended with code {done.returncode}: {said}", hint)
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
    """Looks for `hyp` at once, so that nothing is made where it is missing. Raises HypError."""

    def __init__(self, place: ClusterTarget) -> None:
        self._hyp = Hyp(kubeconfig_files(place.kubeconfig), place.context)
        self.notes: list[str] = [f"sent by hyp {self._hyp.check()}"]

    def prepared(self, manifests: Sequence[Mapping[str, object]]) -> list[Manifest]:
        """With the job as hyp can carry it; what it cannot is in `notes`, or raises ConfigError."""
        made: list[Manifest] = []
        for one in manifests:
            if one.get("kind") not in JOB_KINDS:
                made.append(cast("Manifest", one))  # beside the job, and made by us
                continue
            done = to_hyp_job(one)
            self.notes += done.notes
            made.append(cast("Manifest", done.job))
        return made

    def create(self, job: Mapping[str, object]) -> None:
        assert job.get("kind") == KIND, "prepared before it is sent"
        self._hyp.create(job)

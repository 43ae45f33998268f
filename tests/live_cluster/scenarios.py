"""Scenarios for one kind of job on a cluster: submit, follow, remove; then with a wrong image."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from tests.fixtures.waiting import until

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.k8s.client.kubernetes_api import KubernetesApi
from paceline.k8s.kinds import JOB, JOB_SET, POD, PYTORCH_JOB, RAY_CLUSTER, RAY_JOB, TRAIN_JOB, Kind
from paceline.training.session import Session

Object = dict[str, Any]
WRONG_TAG = "no-such-tag-of-paceline"
# Long enough to be observed while it runs, and no more.
_SCRIPT = "echo step 1; sleep 5; echo step 2"
_START_S = 900.0  # images of Ray are large


@dataclass(frozen=True)
class Sort:
    kind: Kind
    flags: tuple[str, ...]
    needs: tuple[Kind, ...] = ()  # beside its own

    def missing(self, api: KubernetesApi) -> str:
        """Why it cannot be tried here; empty if it can."""
        lacking = [kind for kind in (self.kind, *self.needs) if not api.serves(kind)]
        return "" if not lacking else f"the cluster has no {lacking[0].name} ({lacking[0].api_version})"


_TORCH = ("--task", "xor", "--mode", "ssgd", "--nodes", "2", "--worker-cpus", "1", "--worker-memory", "512Mi")
_RAY = (
    "--task",
    "xor",
    "--mode",
    "ssgd",
    "--num-workers",
    "2",
    "--worker-cpus",
    "1",
    "--worker-memory",
    "2Gi",
)
SORTS = (
    Sort(JOB, ("--target", "job", *_TORCH, "--shm", "64Mi")),
    Sort(PYTORCH_JOB, ("--target", "pytorchjob", *_TORCH, "--shm", "64Mi")),
    Sort(TRAIN_JOB, ("--target", "trainjob", *_TORCH, "--shm", "64Mi"), (JOB_SET,)),
    Sort(RAY_JOB, ("--target", "rayjob", *_RAY, "--head-cpus", "1", "--head-memory", "2Gi"), (RAY_CLUSTER,)),
)


@dataclass(frozen=True)
class Trial:
    """One kind on one cluster, in a namespace of its own."""

    api: KubernetesApi
    kubeconfig: Path
    namespace: str
    folder: Path
    image: str
    sort: Sort
    say: Callable[[str], None]

    def go(self) -> None:
        """Raises AssertionError, with what was printed."""
        for name, scenario in (
            ("submit, logs, status, list, stop", self._good),
            ("explain, stop: a wrong image tag", self._explained),
            ("submit: a wrong image tag is told, and the job removed", self._wrong),
        ):
            scenario()
            self.say(f"ok    {self.sort.kind.name:<12} {name}")

    def _good(self) -> None:
        code, out, err = self._job(
            "submit", self._file("good", self.image), "--for", "0", "--infra-retries", "0"
        )
        assert code == ExitCode.OK, f"exit code {code}\n{out}\n{err}"
        assert f" {self.namespace}" in err
        assert "step 1" in out, f"no line of the job was shown:\n{out}\n{err}"
        assert "step 2" in out, f"not all lines of the job were shown:\n{out}\n{err}"
        now = self._asked("status", "good")
        assert now["phase"] == "succeeded", now
        assert now["finding"] is None, now
        assert any("step 2" in line["text"] for line in self._asked("logs", "good")["lines"])
        assert "good" in [row["name"] for row in self._asked("list")["jobs"]]
        self._stopped("good")

    def _explained(self) -> None:
        """Created without paceline's labels: only this test removes it."""
        for manifest in yaml.safe_load_all(self._file("stuck", self._wrong_image()).read_text()):
            self.api.create({**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}})

        def is_seen() -> bool:
            finding = self._asked("explain", "stuck")["finding"]
            return finding is not None and WRONG_TAG in json.dumps(finding)

        until(is_seen, "job explain names the image", within_s=_START_S)
        self._stopped("stuck")

    def _wrong(self) -> None:
        code, out, err = self._job("submit", self._file("wrong", self._wrong_image()), "--for", "0")
        assert code == ExitCode.BAD_CONFIG, f"exit code {code}\n{out}\n{err}"
        assert WRONG_TAG in err, err
        assert self._job("status", "wrong")[0] == ExitCode.NOT_READY  # it is not there any more

    def _wrong_image(self) -> str:
        return f"{self.image.rpartition(':')[0] or self.image}:{WRONG_TAG}"

    def _stopped(self, name: str) -> None:
        assert self._asked("stop", name)["removed"][0] == f"{self.sort.kind.name}/{name}"
        until(lambda: not self._pods(name), f"the pods of {name} are gone", within_s=_START_S)

    def _pods(self, name: str) -> list[str]:
        results = (str(item["metadata"]["name"]) for item in self.api.find(POD, self.namespace).items)  # type: ignore[index,call-overload] # a pod has metadata
        return [pod for pod in results if pod.startswith(f"{name}-")]

    def _file(self, name: str, image: str) -> Path:
        code, out, err = self._run("job", "render", *self.sort.flags, "--name", name, "--image", image)
        assert code == ExitCode.OK, err
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all([harmless(manifest) for manifest in yaml.safe_load_all(out)]))
        return path

    def _asked(self, *words: str) -> Any:  # Any: what a command answers
        code, out, err = self._job(*words, "--json")
        assert code == ExitCode.OK, f"paceline job {' '.join(words)}: exit code {code}\n{out}\n{err}"
        return json.loads(out)["data"]

    def _job(self, *words: object) -> tuple[int, str, str]:
        placed = ("--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace)
        return self._run("job", *map(str, words), *placed)

    def _run(self, *words: str) -> tuple[int, str, str]:
        """As if it was typed."""
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            code = run(words, Session(folder=self.folder))
        return code, out.getvalue(), err.getvalue()


def harmless(manifest: Object) -> Object:
    """The same job, but its program only says two lines: it needs no image of ours."""
    made = copy.deepcopy(manifest)
    spec = made.get("spec", {})
    if made["kind"] == "RayJob":
        spec["entrypoint"] = f"sh -c '{_SCRIPT}'"
    elif made["kind"] == "TrainJob":
        spec["trainer"] |= {"command": ["sh"], "args": ["-c", _SCRIPT]}
    else:
        for container in _containers(spec):
            if "command" in container:
                container |= {"command": ["sh"], "args": ["-c", _SCRIPT]}
    return made


def _containers(value: object) -> Iterator[Object]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "containers":
                yield from inner
            else:
                yield from _containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _containers(inner)

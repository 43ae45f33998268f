"""What does Kubernetes refuse about a Job whose fields are all right one by one? In its own words."""

from collections.abc import Iterator, Mapping

from paceline.kube.admission_pod import find_in_pod
from paceline.kube.reading import mapping, mappings, texts
from paceline.kube.schema import Finding, Path
from paceline.kube.torchrun_words import find_in_torchrun, read_torchrun

Spec = Mapping[str, object]
_MOST_INDEXED = 100_000


def pods_of_template(spec: Spec, path: Path) -> Iterator[tuple[Spec, Path]]:
    yield mapping(spec, "template", "spec"), (*path, "template", "spec")


def find_in_job(spec: Spec, path: Path) -> Iterator[Finding]:
    yield from find_in_job_spec(spec, path)
    nodes = spec.get("parallelism", 1)
    pod = mapping(spec, "template", "spec")
    if spec.get("completionMode") == "Indexed" and spec.get("completions") != nodes:
        what = f"{nodes} pods run at a time, but {spec.get('completions')} are to be completed"
        if any(True for _ in _torchruns(pod)):
            yield Finding(
                (*path, "parallelism"), what, "write the same number twice: torchrun needs all at once"
            )
    yield from find_in_commands(pod, (*path, "template", "spec"), nodes if isinstance(nodes, int) else None)


def find_in_job_spec(spec: Spec, path: Path, usual: str | None = None) -> Iterator[Finding]:
    """The rules of `batch/v1`. `usual`: the restart policy, where an operator fills it in."""
    pod, where = mapping(spec, "template", "spec"), (*path, "template", "spec")
    yield from find_in_pod(pod, where, is_core=usual is None)
    if pod.get("restartPolicy", usual) not in ("OnFailure", "Never"):
        what = 'Required value: valid values: "OnFailure", "Never"'
        yield Finding((*where, "restartPolicy"), what, "write restartPolicy: Never")
    is_indexed = spec.get("completionMode") == "Indexed"
    if is_indexed and "completions" not in spec:
        yield Finding(
            (*path, "completions"), "Required value: when completion mode is Indexed", "add completions"
        )
    if is_indexed and _number(spec.get("parallelism")) > _MOST_INDEXED:
        what = f"must be less than or equal to {_MOST_INDEXED} when completion mode is Indexed"
        yield Finding((*path, "parallelism"), what, "use fewer pods")
    for name in ("backoffLimitPerIndex", "successPolicy"):
        if name in spec and not is_indexed:
            yield Finding((*path, name), "requires indexed completion mode", "add completionMode: Indexed")
    if "podFailurePolicy" in spec and pod.get("restartPolicy") != "Never":
        what = 'only "Never" is supported when podFailurePolicy is specified'
        yield Finding((*where, "restartPolicy"), what, "write restartPolicy: Never")
    if "selector" in spec and not spec.get("manualSelector"):
        yield Finding((*path, "selector"), "`selector` not auto-generated", "leave it out")


def find_in_commands(pod: Spec, path: Path, nodes: int | None, procs: str | None = None) -> Iterator[Finding]:
    for number, words in _torchruns(pod):
        yield from find_in_torchrun(words, (*path, "containers", number, "args"), nodes, procs)


def _torchruns(pod: Spec) -> Iterator[tuple[int, list[str]]]:
    for number, container in enumerate(mappings(pod, "containers")):
        words = [*texts(container, "command"), *texts(container, "args")]
        if read_torchrun(words) is not None:
            yield number, words


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0

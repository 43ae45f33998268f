"""Elastic jobs: pods that each run an agent as one host, and a pod with the command of the run.

A pod is lost when it is deleted or evicted, when its node fails, or when its process is killed. The operator
makes it again, and its agent joins the run. The job ends with the command. What each kind can do:
docs/decisions/0064-elastic-kubernetes.md.
"""

import shlex
from collections.abc import Iterable
from dataclasses import replace

from paceline.k8s.objects import COMMAND_RESTARTS, DRAINED
from paceline.k8s.render.metrics import serving
from paceline.k8s.render.pod import (
    Object,
    deadline,
    job_metadata,
    labels,
    metadata,
    mounts,
    require_torch,
    spread_over_nodes,
    template,
    torchrun_container,
    variables,
    volumes,
)
from paceline.k8s.render.trainjob import GROUP, NAMESPACED, NODE, trainer_step
from paceline.k8s.spec.job import NAMESPACE_VARIABLE, AgentsSpec, JobSpec, Profile, Target
from paceline.plan.codec import Json

CREDENTIALS = "/coordinator"  # mount path of the certificates
COMMAND = "command"
_CONTAINER = "pytorch"
_KILLED = 137  # SIGKILL, also for too much memory
_TERMINATED = 143  # of a command that SIGTERM stopped, with a checkpoint
_LOST_HOSTS = 6  # failures of one host that are not evictions, until the job fails
# Keys of the Secret. A host can join and read offers; only the command can offer a run.
_HOST_KEYS = ("ca.crt", "worker.crt", "worker.key")
_COMMAND_KEYS = ("ca.crt", "admin.crt", "admin.key", "worker.crt", "worker.key")


def require_agents(intent: JobSpec) -> AgentsSpec:
    assert intent.agents is not None, "a spec for this kind has agents"
    return intent.agents


def render_elastic_pytorchjob(intent: JobSpec) -> list[Object]:
    limits = intent.limits
    policy: Object = {
        "cleanPodPolicy": "Running",  # agents end with the job; the command's pod stays, with its log
        "ttlSecondsAfterFinished": limits.kept_s,
        **deadline(intent),
        "suspend": False,
        # Without backoffLimit: the operator would count restarts of hosts, and let the job fail.
    }
    master: Object = {
        "replicas": 1,
        # Exit codes from 128 on are signals: the pod was deleted, evicted or killed, and is made again.
        "restartPolicy": "ExitCode" if limits.retries else "Never",
        "template": _command_template(intent, _CONTAINER),
    }
    worker: Object = {
        "replicas": intent.pods.most,
        "restartPolicy": "OnFailure",
        "template": _host_template(intent, _CONTAINER),
    }
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": _job_metadata(intent, is_replaced=bool(limits.retries)),
            "spec": {"runPolicy": policy, "pytorchReplicaSpecs": {"Master": master, "Worker": worker}},
        }
    ]


def _job_metadata(intent: JobSpec, *, is_replaced: bool) -> Object:
    about = job_metadata(intent)
    if is_replaced:
        notes = about["annotations"]
        assert isinstance(notes, dict), "an elastic job has an annotation"
        about["annotations"] = {**notes, COMMAND_RESTARTS: "yes"}
    return about


# An Indexed Job has one template: pod 0 is the command, and the others are hosts. Each sees the certificates
# of its role only, by its number.


def render_elastic_job(intent: JobSpec) -> list[Object]:
    limits = intent.limits
    pods = intent.pods.most + 1
    spec: Object = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "backoffLimitPerIndex": limits.retries or _LOST_HOSTS,
        "maxFailedIndexes": 0,
        "podFailurePolicy": _failure_policy(is_final=not limits.retries),
        "podReplacementPolicy": "Failed",
        **deadline(intent),
        "ttlSecondsAfterFinished": limits.kept_s,
        "template": _indexed_template(intent, pods),
    }
    about = _job_metadata(intent, is_replaced=True)
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}]


def _indexed_template(intent: JobSpec, pods: int) -> Object:
    script = f'if [ "$JOB_COMPLETION_INDEX" = 0 ]; then exec {shlex.join(intent.command)}; fi; '
    script += f"exec {shlex.join(require_agents(intent).agent)}"
    container = torchrun_container(
        intent,
        _CONTAINER,
        command=["sh", "-c", script],
        env=[*variables(intent), *_coordinator_variables(intent), _host_timeout(intent)],
    )
    items: list[Object] = [
        {"key": key, "path": f"{number}/{key}"}
        for number in range(pods)
        for key in (_HOST_KEYS if number else _COMMAND_KEYS)
    ]
    made = serving(intent, _template(intent, container, items, subPathExpr="$(JOB_COMPLETION_INDEX)"))
    return _with_spec(_never_restarted(made), **spread_over_nodes(labels(intent)))


def _failure_policy(*, is_final: bool) -> Object:
    """Evictions, lost nodes and drained agents do not count. `is_final`: other exit codes end the job."""
    disrupted: Object = {"type": "DisruptionTarget", "status": "True"}
    evicted: Object = {"action": "Ignore", "onPodConditions": [disrupted]}
    drained: Object = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [DRAINED]}}
    lasting: list[Json] = [DRAINED, _KILLED, _TERMINATED]
    failed: Object = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": lasting}}
    return {"rules": [evicted, drained, *([failed] if is_final else [])]}


def render_elastic_trainjob(intent: JobSpec) -> list[Object]:
    """The TrainJob's trainer is a host; the command is another job of its runtime."""
    spec: Object = {
        "runtimeRef": {"name": intent.name, "kind": NAMESPACED, "apiGroup": GROUP},
        **deadline(intent),
        "trainer": {"image": intent.image, "numNodes": intent.pods.most},
    }
    train_job: Object = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainJob",
        "metadata": _job_metadata(intent, is_replaced=bool(intent.limits.retries)),
        "spec": spec,
    }
    return [_runtime(intent), train_job]


def _runtime(intent: JobSpec) -> Object:
    limits = intent.limits
    command: Object = {"backoffLimit": limits.retries}
    if limits.retries:
        command["podFailurePolicy"] = _failure_policy(is_final=False)
    command["template"] = _never_restarted(_command_template(intent, COMMAND))
    hosts: Object = {
        "backoffLimit": _LOST_HOSTS * intent.pods.most,
        "podFailurePolicy": _failure_policy(is_final=True),
        "podReplacementPolicy": "Failed",
        "template": _never_restarted(_host_template(intent, NODE)),
    }
    jobs: Object = {
        # The command's end is that of the JobSet, which then deletes the hosts.
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [COMMAND]},
        "replicatedJobs": [
            {"name": COMMAND, "template": {"spec": command}},
            {"name": NODE, "template": {"metadata": trainer_step(), "spec": hosts}},
        ],
    }
    where = metadata(intent, intent.name)
    where["labels"] = {**labels(intent), "trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": NAMESPACED,
        "metadata": where,
        "spec": {"mlPolicy": {"numNodes": intent.pods.most}, "template": {"spec": jobs}},
    }


def _never_restarted(made: Object) -> Object:
    return _with_spec(made, restartPolicy="Never")


def describe_command(intent: JobSpec, target: Target) -> list[str]:
    """Where the command runs, what its loss means, and what the namespace must have."""
    if intent.agents is None:
        return ["the head runs the command of the run; if its pod is lost, the job fails"]
    pod = {Target.PYTORCHJOB: f"{intent.name}-master-0", Target.JOB: f"{intent.name}-0"}.get(
        target, f"{intent.name}-{COMMAND}-0-0"
    )
    is_replaced = intent.limits.retries or target is Target.JOB
    resumes = "resumes" if require_torch(intent).options.checkpoint_volume else "begins at step 0"
    loss = f"if it is lost, it is made again and {resumes}" if is_replaced else "if it is lost, the job fails"
    notes = [
        f"coordinator {intent.agents.coordinator} and Secret {intent.agents.secret} must be in its namespace",
        f"pod {pod} runs the command of the run, and the other pods are hosts; {loss}",
    ]
    if target is Target.JOB:
        notes.append(f"pod {pod} has the size of a host, because all pods of a Job are equal")
    return notes


# Pods of one role.


def _host_template(intent: JobSpec, name: str) -> Object:
    torch = require_torch(intent)
    # The run folder is written by the command alone, so that its volume needs one writer.
    kept = tuple(volume for volume in torch.volumes if volume.path != torch.results)
    intent = replace(intent, torch=replace(torch, volumes=kept, results=""))
    container = torchrun_container(
        intent,
        name,
        command=["paceline"],
        args=list(require_agents(intent).agent[1:]),
        env=[*variables(intent), *_coordinator_variables(intent)],
    )
    return _with_spec(_template(intent, container, _items(_HOST_KEYS)), **spread_over_nodes(labels(intent)))


def _command_template(intent: JobSpec, name: str) -> Object:
    container = torchrun_container(
        intent,
        name,
        command=["paceline"],
        args=list(intent.command[1:]),
        env=[*variables(intent), *_coordinator_variables(intent), _host_timeout(intent)],
    )
    size = intent.head
    container["resources"] = {
        "requests": {"cpu": str(size.cpus), "memory": size.memory},
        "limits": {"memory": size.memory},
    }
    return serving(intent, _template(intent, container, _items(_COMMAND_KEYS)))


def _items(keys: Iterable[str]) -> list[Object]:
    return [{"key": key, "path": key} for key in keys]


def _template(intent: JobSpec, container: Object, items: list[Object], **mounted: Json) -> Object:
    """A pod with the certificates of its role. `mounted`: more fields of their mount."""
    mount: Object = {"name": "coordinator", "mountPath": CREDENTIALS, "readOnly": True, **mounted}
    # Files of root: a pod of another user reads them by its group, and root needs none. Others read nothing.
    mode = 0o440 if intent.profile is Profile.STRICT else 0o400
    secret: Object = {"secretName": require_agents(intent).secret, "defaultMode": mode, "items": list(items)}
    container["volumeMounts"] = [*mounts(intent), mount]
    made = template(intent, container)
    return _with_spec(made, volumes=[*volumes(intent), {"name": "coordinator", "secret": secret}])


def _with_spec(made: Object, **more: Json) -> Object:
    spec = made["spec"]
    assert isinstance(spec, dict), "a template has a spec"
    return {**made, "spec": {**spec, **more}}


def _coordinator_variables(intent: JobSpec) -> list[Json]:
    namespace: Object = {"fieldRef": {"fieldPath": "metadata.namespace"}}
    return [
        {"name": NAMESPACE_VARIABLE, "valueFrom": namespace},
        {"name": "PACELINE_COORDINATOR", "value": require_agents(intent).addresses},
        {"name": "PACELINE_TLS_DIR", "value": CREDENTIALS},
    ]


def _host_timeout(intent: JobSpec) -> Object:
    """Hosts may still be placed, or pull their image, when the command begins."""
    return {"name": "PACELINE_HOST_TIMEOUT", "value": str(intent.limits.pending_s)}

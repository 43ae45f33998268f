"""An elastic PyTorchJob from submission to its end: pods are lost and made again, and the run goes on."""

import json
from pathlib import Path

import pytest
from tests.fixtures.coordinator.node_processes import NodeProcesses, make_pki
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.operators import IMAGE, Gang
from tests.fixtures.kubernetes.pod_processes import PodProcesses
from tests.fixtures.processes.command import assert_nothing_was_lost
from tests.fixtures.waiting import kill, until
from tests.k8s.rendered import settings
from tests.k8s_client.watched import Following, follow

from paceline.coordinator.admin.launch import free_ports
from paceline.core.errors import ExitCode
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.kinds import POD, PYTORCH_JOB
from paceline.k8s.spec.job import JobOptions, Limits, NodeRange, Profile, Size, Target, TorchrunOptions
from paceline.k8s.submit.job_state import Phase
from paceline.k8s.submit.jobs import explain_live, job_status
from paceline.k8s.submit.manifests import render_job
from paceline.k8s.submit.submission import submit

CLIENTS = "coordinator-clients"


def send(cluster: ClusterConnection, server: ApiServer, nodes: NodeRange, **text: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CLIENTS, "namespace": "train"}}
    server.put(secret)
    options = JobOptions(
        image=IMAGE,
        profile=Profile.COMPAT,  # keys that the user of the test owns, as root does in a pod of root
        worker=Size(cpus=1, memory="2Gi"),
        limits=Limits(pending_s=120),
        torch=TorchrunOptions(nodes=nodes, coordinator="coordinator:1"),
    )
    config = settings(name="demo", elastic="yes", **text)
    made = render_job(config, options, Target.PYTORCHJOB).objects
    submit(cluster, json.loads(json.dumps(made)), RetryPolicy(first_delay_s=0.1))


def lost_hosts(follower: Following) -> list[str]:
    """Those that were announced, oldest first."""
    said = [text.split() for text in follower.screen.said]
    return [words[1] for words in said if words[0] == "host"]


def test_a_deleted_host_is_replaced_and_the_job_ends_with_its_command(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    send(cluster, server, NodeRange(1, 1))
    gang = Gang(server, PYTORCH_JOB)
    follower = follow(cluster)
    gang.run()
    until(lambda: any(text.endswith("running") for text in follower.screen.said), "the job runs")
    host = gang.pods[1]
    server.lingering.add(host.name)
    cluster.api.delete(POD, host.name, "train")
    until(lambda: lost_hosts(follower) == [host.name], "the loss is announced")
    assert explain_live(cluster, "demo").finding is None
    assert job_status(cluster, "demo").phase is Phase.RUNNING
    server.remove(POD, host.name, "train")
    gang.show(host, {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}, "Pending")
    gang.run()
    gang.succeed()
    result = follower.end()
    assert result.end is not None
    assert result.end.code is ExitCode.OK
    assert follower.screen.told == []
    assert lost_hosts(follower) == [host.name]


@pytest.mark.soak
def test_pods_that_are_processes_train_on_when_hosts_are_deleted_and_killed(
    cluster: ClusterConnection, server: ApiServer, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    nodes = NodeProcesses(tmp_path, {1: f"127.0.0.1:{port}"}, tls_dir=make_pki(tmp_path / "pki"))
    service = "coordinator-1.coordinator.train.svc:7400"
    pods = PodProcesses(server, tmp_path, {CLIENTS: tmp_path / "pki"}, {service: nodes.addresses[1]})
    try:
        nodes.start(1)
        send(cluster, server, NodeRange(2, 2), task="xor", mode="ssgd", steps="1000", pace="20ms")
        with pods.reconciling():
            until(lambda: bool(pods.made), "the operator has seen the job")
            follower = follow(cluster)
            until(lambda: "runs on demo-worker-" in _log(server), "a worker runs")
            first = pods.process("demo-worker-0")
            cluster.api.delete(POD, "demo-worker-0", "train")
            until(lambda: pods.process("demo-worker-0") is not first, "the deleted pod is made again")
            assert first.process.wait() == 75  # drained: its workers have left
            second = pods.process("demo-worker-1")
            kill(second.process.pid)
            until(lambda: pods.process("demo-worker-1") is not second, "the killed pod is made again")
            result = follower.end()
        assert result.end is not None, follower.screen.said
        assert result.end.code is ExitCode.OK, (follower.screen.said, _log(server))
    finally:
        nodes.kill_all()
    (results,) = tmp_path.glob("demo-master-0-*/results")
    assert_nothing_was_lost(results / "demo")
    # The killed pod may be replaced between two looks of the follower.
    assert lost_hosts(follower)[0] == "demo-worker-0"
    assert follower.screen.told == []
    assert "BEGIN" not in _log(server)  # of a key


def _log(server: ApiServer) -> str:
    return "\n".join(text for _, text in server.log("train", "demo-master-0", "pytorch").lines)

"""A job without Paceline in its image is submitted, followed and removed, in every kind."""

import json

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.operators import IMAGE, PLAYED, Gang
from tests.fixtures.waiting import until
from tests.k8s.rendered import settings
from tests.k8s_client.test_job_kinds import TARGETS, left
from tests.k8s_client.watched import follow

from paceline.core.errors import ExitCode
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.kinds import Kind
from paceline.k8s.render.patch import read_patches
from paceline.k8s.spec.job import JobOptions, Limits, Size, TorchrunOptions
from paceline.k8s.spec.options import PodOptions
from paceline.k8s.spec.plain import PlainProgram
from paceline.k8s.submit.jobs import stop_job
from paceline.k8s.submit.manifests import render_job
from paceline.k8s.submit.submission import submit

PATCH = "{kind: Pod, metadata: {labels: {patched: 'yes'}}}"
PROGRAMS = {
    "script": PlainProgram(words=("/fsdp/train.py", "--max_steps=100")),
    "command": PlainProgram(words=("accelerate", "launch", "/fsdp/train.py"), is_raw=True),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", PLAYED, ids=[kind.name for kind in PLAYED])
def test_it_is_followed_to_its_end_and_removed(
    cluster: ClusterConnection, server: ApiServer, kind: Kind, program: str
) -> None:
    options = JobOptions(
        image=IMAGE,
        worker=Size(cpus=1, memory="2Gi"),
        limits=Limits(running_s=None),
        torch=TorchrunOptions(nodes=2),
        pod=PodOptions(tolerations=("dedicated=ml",), annotations=("owner=a person",)),
    )
    patches = read_patches(PATCH, "patch.yaml")
    made = render_job(
        settings(name="demo"), options, TARGETS[kind], (), None, PROGRAMS[program], patches
    ).objects
    sent = submit(cluster, [*json.loads(json.dumps(made))], RetryPolicy(first_delay_s=0.1))
    assert sent.kind == kind.name
    (job,) = server.of(kind)
    assert job["metadata"]["annotations"]["owner"] == "a person"
    assert "activeDeadlineSeconds" not in json.dumps(job)
    gang = Gang(server, kind)
    follower = follow(cluster)
    gang.run()
    gang.say("step 1")
    until(lambda: len(follower.screen.lines) >= len(gang.pods), "a line of every pod is shown")
    gang.succeed()
    result = follower.end()
    assert result.end is not None
    assert result.end.code is ExitCode.OK
    assert stop_job(cluster, "demo")[0] == f"{kind.name}/demo"
    assert left(server) == []

"""A reader that has only SKILL.md comes to the end of every skill: real commands, in an empty folder.

Images are built and pushed by podman, jobs and clusters by the tests' API server.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fixtures.containers.engine import WHY_NOT, EngineHere, engine_in
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.operators import Gang
from tests.skills.reader import SKILLS, follow, page, steps, variables_with_paceline

from paceline.core.errors import ExitCode
from paceline.k8s.kinds import JOB, NAMESPACE

DOCKERFILE = """FROM python:3.11-slim-bookworm
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
"""
NEEDS = {
    "nothing",
    "a container engine",
    "a cluster",
    "AWS credentials",
    "a login to the registry",
    "a registry without TLS",
}


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHere]:
    if WHY_NOT is not None:
        pytest.skip(WHY_NOT)
    with engine_in(tmp_path_factory.mktemp("engine")) as here:
        yield here


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().running() as running:
        running.put_node(cpu="16", memory="64Gi")
        running.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}})
        yield running


@contextmanager
def jobs_run(server: ApiServer) -> Iterator[None]:
    """Every job gets its pods, which print two lines and end."""
    over, known = threading.Event(), set[str]()

    def operate() -> None:
        while not over.wait(0.02):
            for job in server.of(JOB):
                about = job["metadata"]
                if about["uid"] in known:
                    continue
                known.add(about["uid"])
                gang = Gang(server, JOB, about["name"], about["namespace"])
                gang.run()
                gang.say("step 1")
                gang.say("step 2", 5)
                gang.succeed()

    operator = threading.Thread(target=operate)
    operator.start()
    try:
        yield
    finally:
        over.set()
        operator.join()


@pytest.mark.parametrize("skill", SKILLS)
def test_every_step_says_what_it_needs_and_explains_exit_codes(skill: str) -> None:
    for step in steps(page(skill)):
        assert step.needs in NEEDS
        assert not step.shell or 0 in step.exit_codes


def test_a_dockerfile_is_checked_without_an_engine(empty: Path) -> None:
    (empty / "Dockerfile").write_text(DOCKERFILE)
    (empty / "requirements.txt").write_text("torch==2.6.0\ntorchvision==0.20.1\n")
    done = follow("image-builder", ["nothing"], empty, variables_with_paceline(empty.parent))
    assert done[1].code == ExitCode.GATE_FAILED
    assert done[2].code == ExitCode.GATE_FAILED
    assert "+torchvision==0.21.0" in (empty / "fixes.patch").read_text()


def test_an_image_is_built_tested_and_pushed(engine: EngineHere, empty: Path) -> None:
    (empty / "Dockerfile").write_text(DOCKERFILE)
    (empty / "requirements.txt").write_text("torch==2.6.0\ntorchvision==0.20.1\n")
    variables = variables_with_paceline(empty.parent, **engine.variables)
    image = "localhost/skilled:1"

    built = follow("image-builder", ["nothing", "a container engine"], empty, variables, IMAGE=image)
    assert built[3].answer["data"]["ok"] is True
    assert [fix["id"] for fix in built[3].answer["data"]["fixes"]] == ["torch-trio"]
    assert "torchvision==0.20.1" in (empty / "requirements.txt").read_text(), "the user's file stays"
    assert (empty / "reports" / "build.html").exists()

    tested = follow("image-tester", ["a container engine"], empty, variables, IMAGE=image, LEVEL="quick")
    assert (empty / "reports" / "test.html").exists()
    assert {check["verdict"] for check in tested[1].answer["data"]["checks"]} <= {
        "passed",
        "warning",
        "failed",
    }

    pushed = follow(
        "registry-pusher", ["a registry without TLS"], empty, variables, IMAGE=image, HOST=engine.registry
    )
    assert pushed[3].answer["data"]["sent"][0]["name"].startswith(f"{engine.registry}/train:1")
    assert pushed[3].answer["data"]["digest"].startswith("sha256:")


def test_a_cluster_is_checked_and_fixed(server: ApiServer, empty: Path) -> None:
    kubeconfig = server.kubeconfig(empty.parent / "kubeconfig")
    variables = variables_with_paceline(empty.parent, KUBECONFIG=str(kubeconfig))
    done = follow("cluster-manager", ["nothing", "a cluster"], empty, variables)
    assert [context["current"] for context in done[1].answer["data"]["contexts"]] == [True]
    assert list(done) == [1, 2, 3, 4, 5]
    assert done[5].answer["data"]["server"]


def test_a_missing_namespace_is_planned_then_created(server: ApiServer, empty: Path) -> None:
    kubeconfig = server.kubeconfig(empty.parent / "kubeconfig")
    variables = variables_with_paceline(empty.parent, KUBECONFIG=str(kubeconfig))
    done = follow("cluster-manager", ["a cluster"], empty, variables, NAMESPACE="fresh")
    assert "namespace" in {fix["name"] for fix in done[3].answer["data"]["fixes"]}
    assert done[4].answer["data"]["id"]
    assert "fresh" in {item["metadata"]["name"] for item in server.of(NAMESPACE)}


def test_a_job_is_rendered_submitted_followed_and_explained(server: ApiServer, empty: Path) -> None:
    kubeconfig = server.kubeconfig(empty.parent / "kubeconfig")
    variables = variables_with_paceline(empty.parent, KUBECONFIG=str(kubeconfig))
    with jobs_run(server):
        done = follow("job-deployer", ["nothing", "a cluster"], empty, variables, NODES="2", SECONDS="60")
    assert list(done) == [1, 2, 3, 4, 5, 6]
    assert done[2].answer["data"]["objects"]
    assert done[3].answer["data"]["ended"] is True
    assert done[4].answer["data"]["phase"] == "succeeded"
    assert done[5].answer["data"]["finding"] is None
    assert any("step 2" in line["text"] for line in done[6].answer["data"]["lines"])


def test_without_a_cluster_a_job_is_rendered_and_validated(empty: Path) -> None:
    done = follow(
        "job-deployer",
        ["nothing"],
        empty,
        variables_with_paceline(empty.parent),
        KIND="pytorchjob",
        NODES="4",
    )
    assert done[2].answer["data"]["objects"] == ["PyTorchJob/demo"]

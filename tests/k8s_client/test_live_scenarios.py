"""The scenarios of `make test-cluster` run, here against the tests' server with simulated operators."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.operators import Gang
from tests.live_cluster.__main__ import try_all
from tests.live_cluster.scenarios import SORTS, WRONG_TAG

from paceline.k8s.kinds import NAMESPACE, POD

ROOT = Path(__file__).parents[2]


@contextmanager
def played(server: ApiServer) -> Iterator[None]:
    """Every job that comes gets its pods: with a wrong image it is stuck, others say two lines and end."""
    over, known = threading.Event(), set[str]()

    def play() -> None:
        while not over.wait(0.02):
            for kind in [sort.kind for sort in SORTS]:
                for job in server.of(kind):
                    about = job["metadata"]
                    if about["uid"] in known or "ownerReferences" in about:
                        continue
                    known.add(about["uid"])
                    is_wrong = WRONG_TAG in json.dumps(job)
                    image = f"busybox:{WRONG_TAG}" if is_wrong else "busybox:1.37"
                    gang = Gang(server, kind, about["name"], about["namespace"], image)
                    if is_wrong:
                        gang.wrong_image()
                        continue
                    gang.run()
                    gang.say("step 1")
                    gang.say("step 2", 5)
                    gang.succeed()

    player = threading.Thread(target=play)
    player.start()
    try:
        yield
    finally:
        over.set()
        player.join()


def test_every_kind_that_is_there_is_tried_and_nothing_is_left(server: ApiServer, tmp_path: Path) -> None:
    messages: list[str] = []
    with played(server):
        code = try_all(
            server.kubeconfig(tmp_path / "kubeconfig"),
            "busybox:1.37",
            "rayproject/ray:2.60.0",
            messages.append,
        )
    assert code == 0, "\n".join(messages)
    assert sum(line.startswith("ok ") for line in messages) == 4 * 3
    assert server.of(NAMESPACE) == server.of(POD) == []


def test_what_a_cluster_does_not_have_is_skipped_with_the_reason(server: ApiServer, tmp_path: Path) -> None:
    server.served -= {sort.kind for sort in SORTS}
    messages: list[str] = []
    assert try_all(server.kubeconfig(tmp_path / "kubeconfig"), "busybox:1.37", "ray:1", messages.append) == 0
    assert any(
        line.startswith("SKIPPED TrainJob: ") and "trainer.kubeflow.org/v1alpha1" in line for line in messages
    )
    assert sum(line.startswith("SKIPPED") for line in messages) == 4


def test_without_a_kubeconfig_it_skips_with_a_reason() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.live_cluster"],
        cwd=ROOT,
        env={**variables, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("SKIPPED: KUBECONFIG is not set")

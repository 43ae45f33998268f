"""torchrun on two hosts that share nothing but their link: the run of one machine, bit by bit."""

import json
import sys
from pathlib import Path

from tests.fixtures.hosts import hosts
from tests.fixtures.processes.command import paceline
from tests.fixtures.processes.warm_helpers import THREADS

PORT = 29500
RUN = ("--mode", "ssgd", "--steps", "20", "--seed", "3", "--timeout", "60s", "--run-dir", "run")


def test_ranks_on_two_hosts_train_what_one_machine_trains(tmp_path: Path) -> None:
    with hosts(2, tmp_path / "hosts") as network:
        launch = [sys.executable, "-m", "torch.distributed.run"]
        flags = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=host-1", f"--master_port={PORT}"]
        ranks = [
            host.start(
                [*launch, f"--node_rank={host.number - 1}", *flags, "-m", "paceline.worker", *RUN],
                log=tmp_path / f"{host.name}.txt",
                env=THREADS,
            )
            for host in network
        ]
        codes = [rank.wait(240) for rank in ranks]
        assert codes == [0, 0], [path.read_text() for path in sorted(tmp_path.glob("*.txt"))]
        assert not (network.host(2).folder / "run").exists()
        here = network.host(1).folder / "run"
    assert paceline("verify", str(here)).code == 0
    alone = tmp_path / "alone"
    done = paceline("train", "--num-workers", "2", "--transport", "gloo", *RUN[:-1], str(alone))
    assert done.code == 0, done.err
    digests = [json.loads((run / "result.json").read_text())["state_sha256"] for run in (here, alone)]
    assert digests[0] == digests[1]

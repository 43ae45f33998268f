"""The peer torchft: survivors continue in a new quorum. One process for each replica, as in its examples.

Run as `python -m benchmarks.recovery_torchft FOLDER REPLICA TIMEOUT_S`; TORCHFT_LIGHTHOUSE is the address.
"""

import sys
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not say that it exports it
from torchft import Manager, ProcessGroupGloo

from benchmarks.recovery_model import Trainee


def main() -> None:
    trainee, replica, timeout_s = Trainee(Path(sys.argv[1])), sys.argv[2], float(sys.argv[3])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=timeout_s)),
        load_state_dict=trainee.model.load_state_dict,
        state_dict=trainee.model.state_dict,
        min_replica_size=1,
        timeout=timedelta(seconds=timeout_s),
        replica_id=f"replica-{replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
    )
    while True:
        manager.start_quorum()
        for gradient in trainee.gradients():
            manager.allreduce(gradient).wait()
        if manager.should_commit():
            trainee.commit(manager.current_step())


if __name__ == "__main__":
    main()

"""torch.distributed's PeriodicModelAverager, called after every optimizer step as its manual shows."""

import warnings

from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from paceline.ids import Step
from paceline.laws.peers.adapter import PeerStrategy, local_update


class PeriodicAverager(PeerStrategy):
    def start(self, model: nn.Module) -> None:
        self._model = model
        with warnings.catch_warnings():
            # It advises against a period of 1, which a law asks for on purpose.
            warnings.simplefilter("ignore", UserWarning)
            self._averager = PeriodicModelAverager(
                period=self._plan.strategy.sync_every, process_group=self._group
            )

    def update(self, step: Step) -> int:
        apply_ns = local_update(self._replica)
        self._averager.average_parameters(self._model.parameters())
        return apply_ns

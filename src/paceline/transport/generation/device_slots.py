"""Slots of shards on a GPU, beside a world whose vectors are in the memory of the host.

A worker computes into vectors on its device. Before a mean its own slots are copied to the host, after it
the mean is copied back; both copies have finished when the call returns, so no peer reads or overwrites a
vector that is still being copied. The sum is the host's, in the order of shards.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import overload

import torch
from torch import Tensor

from paceline.transport.ports import Rounds, Shards, Traffic


class _DeviceSlots(Sequence[Tensor]):
    """A vector on the device for each shard that this worker computes, made when it is first used."""

    def __init__(self, like: Sequence[Tensor], device: torch.device) -> None:
        self._like = like
        self._device = device
        self._made: dict[int, Tensor] = {}

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        if isinstance(index, slice):
            return [self[shard] for shard in range(*index.indices(len(self)))]
        if index not in self._made:
            self._made[index] = torch.zeros_like(self._like[index], device=self._device)
        return self._made[index]

    def __len__(self) -> int:
        return len(self._like)


class DeviceShards:
    """`Shards` for a worker whose gradients are on a device."""

    def __init__(self, inner: Shards, device: torch.device) -> None:
        self.shards = inner.shards
        self._inner = inner
        self._device = device
        self._host_slots: Sequence[Tensor] = ()
        self._host_mean = self._mean = torch.empty(0)
        self._slots = _DeviceSlots((), device)

    @property
    def checks_finite(self) -> bool:
        return self._inner.checks_finite

    @checks_finite.setter
    def checks_finite(self, checks: bool) -> None:
        self._inner.checks_finite = checks

    def allocate(self, numel: int, dtype: torch.dtype) -> tuple[Sequence[Tensor], Tensor]:
        if not len(self._slots):
            self._host_slots, self._host_mean = self._inner.allocate(numel, dtype)
            self._slots = _DeviceSlots(self._host_slots, self._device)
            self._mean = torch.zeros_like(self._host_mean, device=self._device)
        return self._slots, self._mean

    def check(self) -> None:
        self._inner.check()

    def mean(self, own: Collection[int]) -> Traffic:
        self._to_host(own)
        traffic = self._inner.mean(own)
        self._mean.copy_(self._host_mean)
        return traffic

    def is_finite(self) -> bool:
        return self._inner.is_finite()

    def non_finite(self, own: Collection[int]) -> list[int]:
        return self._inner.non_finite(own)

    def settle(self) -> None:
        self._inner.settle()

    def close(self) -> None:
        self._slots = _DeviceSlots((), self._device)
        self._host_slots = ()
        self._host_mean = torch.empty(0)
        self._inner.close()

    def _to_host(self, own: Collection[int]) -> None:
        for shard in own:
            self._host_slots[shard].copy_(self._slots[shard])


class DeviceRounds(DeviceShards):
    """`Rounds` for a worker whose parameters are on a device."""

    def __init__(self, inner: Rounds, device: torch.device) -> None:
        super().__init__(inner, device)
        self.memories = inner.memories
        self._rounds = inner

    def commit(self, own: Mapping[int, bytes]) -> tuple[Traffic, list[Tensor]]:
        self._to_host(own)
        traffic, kept = self._rounds.commit(own)
        self._mean.copy_(self._host_mean)
        return traffic, kept

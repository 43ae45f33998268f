"""GPU probe: NVML by way of nvidia-ml-py; no rows without a driver.

The only module that imports it (extra `gpu`). A driver may lack any single value: each is queried
alone, and is None if the query fails.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paceline.events.schema import GpuRow

try:
    import pynvml
except ModuleNotFoundError:
    pynvml = None


class GpuProbe:
    def __init__(self, node: str, nvml: Any = pynvml) -> None:  # Any: a C library behind generated names
        self._node = node
        self._nvml = nvml
        self._handles: list[Any] = []  # Any: the library's own
        if nvml is not None:
            with suppress(nvml.NVMLError):  # no driver: no GPUs
                nvml.nvmlInit()
                self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def sample(self, at_ns: int) -> list[GpuRow]:
        return [self._row(at_ns, number, handle) for number, handle in enumerate(self._handles)]

    def close(self) -> None:
        if self._handles:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._handles = []

    def _row(self, at_ns: int, number: int, handle: Any) -> GpuRow:  # Any: the library's own
        nvml = self._nvml
        query = self._query
        memory = query(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        utilization = query(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        reasons = query(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        power_mw = query(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit_mw = query(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        energy_mj = query(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return GpuRow(
            at_ns,
            self._node,
            number,
            str(query(lambda: nvml.nvmlDeviceGetUUID(handle)) or ""),
            str(query(lambda: nvml.nvmlDeviceGetName(handle)) or ""),
            None if utilization is None else utilization / 100,
            None if memory is None else int(memory.used),
            None if memory is None else int(memory.total),
            query(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            None if power_mw is None else power_mw / 1000,
            None if limit_mw is None else limit_mw / 1000,
            None if energy_mj is None else energy_mj / 1000,
            None if reasons is None else bool(reasons & _throttle_mask(nvml)),
            query(
                lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            ),
        )

    def _query(self, call: Callable[[], Any]) -> Any:  # Any: the value of the library
        try:
            return call()
        except self._nvml.NVMLError:
            return None


def _throttle_mask(nvml: Any) -> int:  # Any: a C library behind generated names
    """Throttling by power and heat; not an idle clock or one that was set."""
    return int(
        nvml.nvmlClocksThrottleReasonSwPowerCap
        | nvml.nvmlClocksThrottleReasonHwSlowdown
        | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
        | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    )

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
        self._node, self._nvml = node, nvml
        self._handles: list[Any] = []  # Any: the library's own
        if nvml is not None:
            with suppress(nvml.NVMLError):  # no driver: no GPUs
                nvml.nvmlInit()
                self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def look(self, at_ns: int) -> list[GpuRow]:
        return [self._row(at_ns, number, handle) for number, handle in enumerate(self._handles)]

    def close(self) -> None:
        if self._handles:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._handles = []

    def _row(self, at_ns: int, number: int, handle: Any) -> GpuRow:  # Any: the library's own
        nvml = self._nvml
        ask = self._ask
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        utilization = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        power_mw = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit_mw = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        energy_mj = ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return GpuRow(
            at_ns,
            self._node,
            number,
            str(ask(lambda: nvml.nvmlDeviceGetUUID(handle)) or ""),
            str(ask(lambda: nvml.nvmlDeviceGetName(handle)) or ""),
            None if utilization is None else utilization / 100,
            None if memory is None else int(memory.used),
            None if memory is None else int(memory.total),
            ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            None if power_mw is None else power_mw / 1000,
            None if limit_mw is None else limit_mw / 1000,
            None if energy_mj is None else energy_mj / 1000,
            None if reasons is None else bool(reasons & _held_down(nvml)),
            ask(
                lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            ),
        )

    def _ask(self, question: Callable[[], Any]) -> Any:  # Any: whatever the library answers
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def _held_down(nvml: Any) -> int:  # Any: a C library behind generated names
    """The reasons that are no choice of ours: power and heat; not an idle clock or one that was set."""
    return int(
        nvml.nvmlClocksThrottleReasonSwPowerCap
        | nvml.nvmlClocksThrottleReasonHwSlowdown
        | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
        | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    )

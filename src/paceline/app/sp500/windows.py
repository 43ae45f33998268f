"""What is known on a day, and what is asked about it? Windows of features, and up or down tomorrow.

Features of day t look at the closes t-LOOKBACK … t and at nothing later; the
label of day t says whether close t+1 is higher than close t. So a sample never
contains what it is asked. tests/app/test_sp500_leaks.py proves it.
"""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

LOOKBACK = 20  # closes before its own that a day's features look at
FEATURES = ("log_return", "return_5", "return_20", "volatility_20", "above_mean_20", "rsi_14")

Floats = NDArray[np.float64]


class Samples(NamedTuple):
    """In the order of time. `days[i]` is the last day of window i, as an index of the closes."""

    x: NDArray[np.float32]  # samples, days of the window, features
    y: NDArray[np.int64]  # 1: the next close is higher; 0: it is lower or equal
    days: NDArray[np.int64]


def samples_of(closes: Floats, *, window: int) -> Samples:
    """All samples that the closes have; none if there are fewer than `fewest_closes(window)`."""
    if len(closes) < fewest_closes(window):
        return Samples(
            np.empty((0, window, len(FEATURES)), np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
        )
    windows = sliding_window_view(features_of(closes), window, axis=0).swapaxes(1, 2)
    days = np.arange(LOOKBACK + window - 1, len(closes) - 1)  # the last day has no tomorrow
    rises = closes[days + 1] > closes[days]
    return Samples(np.ascontiguousarray(windows[: len(days)], np.float32), rises.astype(np.int64), days)


def fewest_closes(window: int) -> int:
    """For one sample."""
    return LOOKBACK + window + 1


def features_of(closes: Floats) -> Floats:
    """Row i is about day LOOKBACK + i; columns as in FEATURES."""
    logs = np.log(closes)
    returns = np.diff(logs)  # returns[i] is that of day i + 1
    means = sliding_window_view(closes, 20)[1:].mean(axis=1)
    columns = (
        returns[LOOKBACK - 1 :],
        logs[LOOKBACK:] - logs[LOOKBACK - 5 : -5],
        logs[LOOKBACK:] - logs[:-20],
        sliding_window_view(returns, 20).std(axis=1),
        logs[LOOKBACK:] - np.log(means),
        _strength(sliding_window_view(returns, 14)[LOOKBACK - 14 :]),
    )
    return np.stack(columns, axis=1)


def _strength(returns: Floats) -> Floats:
    """Which part of all movement was upwards (RSI with plain means, from 0 to 1); a half if nothing moved."""
    upwards, moved = np.maximum(returns, 0.0).sum(axis=1), np.abs(returns).sum(axis=1)
    strength: Floats = np.divide(upwards, moved, out=np.full_like(moved, 0.5), where=moved > 0)
    return strength

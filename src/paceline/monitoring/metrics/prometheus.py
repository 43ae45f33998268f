"""Prometheus exposition: every metric of a run's view, in the text format.

The only module that imports prometheus_client (extra `watch`).
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.core.clock import monotonic_s
from paceline.monitoring.metrics.catalog import BY_NAME, FAMILIES, Family, MetricKind, Sample, labels_of
from paceline.monitoring.view.run_view import RunView

TOOK = "paceline_scrape_collect_duration_seconds"  # the only one that is not from the view
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(view: RunView, now_ns: int | None = None) -> bytes:
    """The body of `/metrics`."""
    registry = CollectorRegistry()
    registry.register(_RunCollector(view, now_ns))
    return generate_latest(registry)


class _RunCollector(Collector):
    def __init__(self, view: RunView, now_ns: int | None) -> None:
        self._view = view
        self._now_ns = now_ns

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        began_s = monotonic_s()
        by_name: dict[str, list[Sample]] = {}
        for sample in self._view.samples(self._now_ns):
            by_name.setdefault(sample.name, []).append(sample)
        unknown = by_name.keys() - BY_NAME.keys()
        assert not unknown, f"every metric is in the catalogue, but {sorted(unknown)} are not"
        for family in FAMILIES:
            if family.name in by_name:
                yield _family(family, by_name[family.name])
        yield from self._histograms()
        took = Sample(TOOK, labels_of({"run": self._view.track.run}), monotonic_s() - began_s)
        yield _family(BY_NAME[TOOK], [took])

    def _histograms(self) -> Iterator[Metric]:
        families: dict[str, HistogramMetricFamily] = {}
        for name, labels, histogram in self._view.metrics(self._now_ns).histograms():
            family = BY_NAME[name]
            if name not in families:
                families[name] = HistogramMetricFamily(name, family.help, labels=family.labels)
            values = [labels.get(label, "") for label in family.labels]
            families[name].add_metric(values, histogram.buckets(), histogram.total)
        yield from families.values()


def _family(family: Family, samples: list[Sample]) -> Metric:
    kind = CounterMetricFamily if family.kind is MetricKind.COUNTER else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for sample in samples:
        labels = dict(sample.labels)
        metric.add_metric([labels.get(label, "") for label in family.labels], sample.value)
    return metric

"""Which metrics are exported? The catalogue, as a page."""

from docs.tables import code, table
from paceline.monitoring.metrics.catalog import FAMILIES


def metrics_page() -> list[str]:
    lines = [
        "# Metrics",
        "",
        "What `/metrics` answers with (`paceline metrics serve`, and the dashboard); how to use it:",
        "[metrics and Grafana](../guides/metrics.md). A family is there only where its number is",
        "known: without a GPU there are none of GPUs. Above 64 workers, histograms are summed over",
        "workers (`worker` is then empty).",
        "[Decision 0057](../decisions/0057-metrics-are-named-after-what-they-count.md) says why some have",
        "other names than elsewhere: `coordinator_` for Raft's, `eval_metric` for what a task evaluates.",
        "The dashboard's page has four more, of itself: `paceline_dashboard_viewers`, `_frames_total`,",
        "`_frames_dropped_total` and the histogram `_event_delay_seconds`.",
    ]
    for group in dict.fromkeys(family.group for family in FAMILIES):
        rows = (
            (code(f.name), f.kind.value, f.unit, ", ".join(map(code, f.labels)), f.help)
            for f in FAMILIES
            if f.group == group
        )
        lines += ["", f"## {group}", "", *table(("name", "kind", "unit", "labels", "meaning"), rows)]
    return lines

"""Reference page of the exported metrics, from the catalog."""

from docs.tables import code, table
from paceline.monitoring.metrics.catalog import FAMILIES


def metrics_page() -> list[str]:
    lines = [
        "# Metrics",
        "",
        "The metrics of `/metrics` (`paceline metrics serve`, and the dashboard); how to use them:",
        "[monitoring](../guides/monitoring.md). A family is exported only where its value is",
        "known: without a GPU there are no GPU metrics. Above 64 workers, histograms are summed over",
        "workers (`worker` is then empty).",
        "[Decision 0057](../decisions/0057-metric-names.md) explains names that",
        "differ from the usual ones: `coordinator_` for Raft's, `eval_metric` for a task's metrics.",
        "The dashboard exports four more about itself: `paceline_dashboard_viewers`, `_frames_total`,",
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

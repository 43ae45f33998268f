"""The reference lists every metric, alert, route, failure and check, and the map's paths exist.

That its pages match the code is in `test_reference.py`.
"""

from docs.pages import ROOT


def test_every_metric_is_listed_with_its_labels() -> None:
    from paceline.monitoring.metrics.catalog import FAMILIES

    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        assert f"| `{family.name}` | {family.kind.value} | {family.unit} | {labels} |" in _page("metrics")


def test_every_alert_is_listed_with_its_runbook() -> None:
    """That the runbooks themselves are up to date is seen where the rules are."""
    from paceline.monitoring.alerts.rule_file import default_rules

    for rule in default_rules().rules:
        assert f"[`{rule.name}`](../runbooks/{rule.name}.md)" in _page("alerts")


def test_every_route_of_the_dashboard_is_listed() -> None:
    from paceline.dashboard.routes import ROUTES
    from paceline.dashboard.stream import Kind

    for road in ROUTES:
        assert f"| `{road.method} {road.path}` | " in _page("http")
        assert road.what
    for kind in Kind:
        assert f"| `{kind.value}` | " in _page("http")


def test_every_failure_on_a_cluster_and_every_check_of_images_is_listed() -> None:
    from paceline.images.lint.rules import PATTERNS
    from paceline.k8s.diagnose.classify import FAILURES

    for failure in FAILURES:
        assert f"| `{failure.name}` | " in _page("failures")
    for pattern in PATTERNS:
        assert f"`{pattern.id}`" in _page("image-checks")


def _page(name: str) -> str:
    return (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")

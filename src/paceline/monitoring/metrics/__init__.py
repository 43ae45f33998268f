"""Metrics of a run: catalogue, samples, series, Prometheus and Grafana."""

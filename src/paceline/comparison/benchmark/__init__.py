"""Benchmarks of Paceline and other frameworks: one model, the same work, the same measurement."""

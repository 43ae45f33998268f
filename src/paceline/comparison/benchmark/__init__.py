"""Benchmarks of other frameworks beside ours: one model, the same work, measured alike."""

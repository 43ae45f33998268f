"""Tests of the benchmarks against other systems: paceline benchmark torch, keras and ray."""

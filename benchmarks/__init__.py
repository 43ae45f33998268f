"""Measurements, as ratios to a peer in the same run: interleaved, repeated, JSON out."""

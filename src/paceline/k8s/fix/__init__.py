"""Fixes of a cluster. Pure: findings in, actions out."""

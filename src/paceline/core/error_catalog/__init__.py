"""Catalog of error codes: meaning and remedy of each, for `paceline explain` and the reference."""

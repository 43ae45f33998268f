"""Reports: from hand-made runs to a page in a real browser."""

"""One function per use case; the first composition root."""

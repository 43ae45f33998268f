"""Data sets in shards: what is in them, where their bytes are, and how these come here and are kept."""

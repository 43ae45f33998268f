"""Is this machine ready? Facts are gathered within a time limit, and judged apart from that."""

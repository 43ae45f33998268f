"""Which logical shards does a worker do, if any number of workers may be there?

The work of a step is V shards, whoever lives; worker r of W does a run of
neighbouring ones, as equal as can be. A shard's samples, dice and place in the
sum belong to the shard, so the number of workers changes who does it and when,
never what comes out.
"""


def shards_of(rank: int, *, workers: int, shards: int) -> range:
    assert 0 <= rank < workers <= shards, f"worker {rank} of {workers} has no share of {shards} shards"
    return range(rank * shards // workers, (rank + 1) * shards // workers)

"""shards_of: equal parts, each shard exactly once."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.shard_balancing import shards_of


@given(shards=st.integers(1, 40), data=st.data())
def test_every_shard_is_done_by_exactly_one_worker_and_no_one_does_two_more_than_another(
    shards: int, data: st.DataObject
) -> None:
    workers = data.draw(st.integers(1, shards))
    parts = [shards_of(rank, workers=workers, shards=shards) for rank in range(workers)]
    assert [shard for part in parts for shard in part] == list(range(shards))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1

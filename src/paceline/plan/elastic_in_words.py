"""What should a user know about a run whose workers come and go?"""

from collections.abc import Iterator

from paceline.plan.catalog import server_names
from paceline.plan.plan import Elastic, OnGiveUp, OnSlow, Plan
from paceline.plan.rounds import draws_of

_FINE = 4  # shards for each worker: dealing by speed is then within a quarter of the best


def crew_in_words(plan: Plan, elastic: Elastic) -> str:
    return (
        f"they share {plan.num_workers} shards, and may become {elastic.min_workers} to {elastic.max_workers}"
    )


def about_elastic(plan: Plan) -> Iterator[str]:
    elastic = plan.elastic
    if elastic is None or server_names(plan):
        return
    shards, workers = plan.num_workers, elastic.workers
    if elastic.max_workers == workers:
        cause = f"{shards} shards" if shards == workers else f"max_workers {workers}"
        yield f"the run cannot grow beyond its {workers} workers: {cause}; --shards with more lets it"
    if plan.mode == "fedavg" and draws_of(plan).count < workers:
        drawn = draws_of(plan).count
        yield (
            f"{drawn} clients are drawn for a round, so of {workers} workers some only wait, and are there if"
            " others are lost"
        )
    if plan.mode == "adaptive":
        yield (
            "whole shards are dealt out by speed, which changes no bit; when local steps begin and end does,"
            " and is recorded with its reason"
        )
    deals_by_speed = elastic.on_slow is OnSlow.REBALANCE or plan.mode == "adaptive"
    if deals_by_speed and shards == workers:
        yield (
            f"with as many shards as workers ({shards}) only whole workers' shares can be moved: rebalancing"
            f" helps against a worker that is more than twice as slow; --shards {_FINE * workers} would let"
            " the shares follow the speeds"
        )
    elif deals_by_speed and shards < _FINE * workers:
        yield (
            f"{shards} shards among {workers} workers can be dealt out by speed only coarsely;"
            f" --shards {_FINE * workers} follows the speeds more closely"
        )
    if elastic.on_give_up is OnGiveUp.PAUSE:
        yield (
            f"with fewer than {elastic.min_workers} workers, and none that may be replaced, the run waits for"
            " `paceline workers add`"
        )

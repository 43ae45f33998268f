"""What does a participant of an elastic run do, by its name and its plan?"""

from collections.abc import Callable
from functools import partial

from paceline.plan.catalog import is_split, server_names
from paceline.plan.plan import Plan
from paceline.worker.own_look import while_looking
from paceline.worker.seat import Seat
from paceline.worker.telling import Report

Body = Callable[[Seat, Callable[[Report], None]], None]


def elastic_body(plan: Plan, who: str) -> Body:
    # Imported when it is asked for: in the process that forks, once, and not for runs without a coordinator.
    if who.startswith("server-"):
        from paceline.worker.served_participants import serve_elastic

        return partial(serve_elastic, who)
    index = int(who.removeprefix("worker-"))
    if server_names(plan):
        from paceline.worker.served_worker import work_with_servers

        return while_looking(who, partial(work_with_servers, index))
    if is_split(plan.mode):
        from paceline.worker.split_participant import work_split

        return while_looking(who, partial(work_split, index))
    from paceline.worker.elastic_participant import work_elastic

    return while_looking(who, partial(work_elastic, index))

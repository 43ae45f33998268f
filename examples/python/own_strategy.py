"""Your own synchronization strategy: signSGD, in which workers average the signs of their gradients.

A strategy is a class with six methods, called by the training loop of every worker. This one
extends the built-in synchronous SGD by one line. Check it against the laws of synchronous SGD:

    paceline laws --mode own_strategy:SignSgd --like ssgd

Laws that state "this is plain SGD" break, as they should; that all replicas stay equal still holds.
docs/guides/your-own-strategy.md has a strategy that is written from scratch.
"""

import paceline
from paceline.core.ids import Clock, Step
from paceline.strategies.port import Outcome, Replica
from paceline.strategies.ssgd import Ssgd


class SignSgd(Ssgd):
    """signSGD (Bernstein 2018), with the mean of the signs in place of a majority vote."""

    def prepare(self, replica: Replica, clock: Clock) -> None:
        super().prepare(replica, clock)
        self.arena = replica.arena  # parameters and gradients as flat vectors

    def finish_step(self, step: Step, *, wants_stop: bool) -> Outcome:
        self.arena.gradient_part.sign_()
        return super().finish_step(step, wants_stop=wants_stop)  # all-reduce, then update


if __name__ == "__main__":
    result = paceline.train("digits", mode="own_strategy:SignSgd", workers=2, steps=60, lr=0.01)
    print(result.mode, result.metrics)

"""Byzantine rules: reproducible attacks, at the configured steps."""

from paceline.sync.fault_rules import Attack, Byzantine, ByzantineRule, bad_workers


def test_a_rule_concerns_its_worker_and_its_steps() -> None:
    attacks = Byzantine((ByzantineRule(worker=1, attack=Attack.ZERO, first_step=3, end_step=5),), seed=0)
    struck = [(w, s) for w in range(3) for s in range(8) if attacks.at(w, s)]
    assert struck == [(1, 3), (1, 4)]


def test_the_same_seed_gives_the_same_attacks_and_another_seed_others() -> None:
    rules = (ByzantineRule(attack=Attack.GARBAGE, probability=0.5),)
    drawn = [
        [Byzantine(rules, seed=seed).at(w, s) for w in range(4) for s in range(50)] for seed in (7, 7, 8)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 70 < sum(bool(struck) for struck in drawn[0]) < 130


def test_every_worker_and_step_draws_its_own_noise() -> None:
    attacks = Byzantine((ByzantineRule(attack=Attack.GARBAGE),), seed=0)
    seeds = {attacks.at(w, s)[0].seed for w in range(5) for s in range(20)}
    assert len(seeds) == 100


def test_an_attack_has_a_default_strength() -> None:
    assert ByzantineRule(attack=Attack.GARBAGE).strength == 100
    assert ByzantineRule(attack=Attack.SIGN_FLIP).strength == 1
    assert ByzantineRule(attack=Attack.GARBAGE, scale=0.0).strength == 0


def test_a_byzantine_worker_is_counted_once() -> None:
    rules = (ByzantineRule(worker=2, attack=Attack.NAN), ByzantineRule(worker=2, attack=Attack.ZERO))
    assert bad_workers(rules, 4) == (2,)
    assert bad_workers((ByzantineRule(attack=Attack.NAN),), 3) == (0, 1, 2)
    assert bad_workers((), 3) == ()

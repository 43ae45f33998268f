"""When actors communicate over loopback."""

from paceline.launchers.ray.actor import network_id
from paceline.launchers.ray.group import are_on_one_host


def test_pods_of_one_host_share_a_kernel_but_no_loopback() -> None:
    mine = {"boot": "a", "net": network_id()}
    assert network_id() == network_id() != ""
    assert are_on_one_host([mine, dict(mine)])
    assert not are_on_one_host([mine, {**mine, "net": "net:[1]"}])
    assert not are_on_one_host([mine, {**mine, "boot": "b"}])

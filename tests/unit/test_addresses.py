"""Needs nothing: which addresses may be connected to."""

import pytest

from policies.addresses import may_connect, networks

REFUSED = {
    "loopback": "127.0.0.1 127.1.2.3 ::1",
    "unspecified": "0.0.0.0 0.1.2.3 ::",
    "private": "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 fc00::1 fd12:3456::1",
    "link-local and metadata": "169.254.169.254 169.254.0.1 fe80::1 fe80::1%eth0 fd00:ec2::254",
    "carrier-grade NAT": "100.64.0.1 100.127.255.255 100.100.100.200",
    "multicast and broadcast": "224.0.0.1 239.255.255.255 ff02::1 ff0e::1 255.255.255.255",
    "reserved": "240.0.0.1 198.18.0.1 192.0.0.1",
    "documentation": "192.0.2.1 198.51.100.1 203.0.113.9 2001:db8::1",
    "IPv4-mapped": "::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:a9fe:a9fe",
    "IPv4-compatible and translated": "::127.0.0.1 ::a9fe:a9fe ::8.8.8.8 ::ffff:0:127.0.0.1 ::ffff:0:8.8.8.8",
    "NAT64": "64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::808:808",
    "6to4": "2002:7f00:1:: 2002:a9fe:a9fe::1 2002:808:808::1 192.88.99.1",
    "Teredo": "2001:0:808:808::1 2001::1",
    "ISATAP": "2a00:1450::5efe:7f00:1 2a00:1450::200:5efe:a00:1",
    "site-local": "fec0::1",
    "no address at all": "127.1 0x7f.1 2130706433 017700000001 localhost 1.2.3.4.5 127.0.0.1:80",
}
TAKEN = "8.8.8.8 1.1.1.1 93.184.216.34 2606:4700:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808"


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_public_is_refused(kind: str) -> None:
    """No address of a kind that is not globally routable may be connected to."""
    assert [text for text in REFUSED[kind].split() if may_connect(text)] == []


def test_what_is_public_is_taken() -> None:
    """Public addresses may be connected to, also as IPv4 inside IPv6 by mapping and NAT64."""
    assert [text for text in TAKEN.split() if not may_connect(text)] == []


def test_an_operator_may_allow_a_network() -> None:
    """An allowed network opens that network, in every spelling that ends there, and no other."""
    allowed = networks(["10.1.0.0/16", "fd00::/8"])
    assert all(may_connect(text, allowed) for text in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1", "8.8.8.8"))
    assert not any(may_connect(text, allowed) for text in ("10.2.0.1", "127.0.0.1", "fc00::1", "::1"))

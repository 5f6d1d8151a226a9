"""Which addresses a fetch on behalf of a stranger may connect to: globally routable ones, and nothing else.

Python's ``is_global`` is the base. What it leaves open is closed here: addresses that carry an IPv4 address
inside (mapped, NAT64, 6to4, Teredo, ISATAP), multicast, site-local and scoped ones.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")
_NEVER = tuple(
    ip_network(text)
    for text in (
        "192.88.99.0/24",  # 6to4 relays
        "::/96",  # IPv4-compatible, with :: and ::1
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b:1::/48",  # NAT64 of a private network
        "2001::/32",  # Teredo
        "2002::/16",  # 6to4
        "5f00::/16",  # segment routing
        "fec0::/10",  # site-local, which Python takes for global
    )
)


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse a list of networks, such as ``10.1.0.0/16``. Raises ValueError that names the wrong one."""
    return tuple(ip_network(text) for text in texts)


def may_connect(text: str, allowed: Iterable[Network] = ()) -> bool:
    """Whether a resolved address is one that may be connected to.

    Args:
        text: the address as the resolver gives it.
        allowed: networks that an operator allows though they are not globally routable.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    end = _inner_ipv4(address) or address
    return _is_in(end, allowed) or (_is_public(end) and not _is_in(end, _NEVER))


def _is_in(address: Address, nets: Iterable[Network]) -> bool:
    return any(address.version == net.version and address in net for net in nets)


def _inner_ipv4(address: Address) -> IPv4Address | None:
    """The IPv4 address that a connection to this IPv6 address would end at, for the forms that are in use."""
    if not isinstance(address, IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


def _is_isatap(address: Address) -> bool:
    return address.version == 6 and (int(address) >> 32) & 0xFCFF_FFFF == 0x0000_5EFE


def _is_public(address: Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not _is_isatap(address)
    )

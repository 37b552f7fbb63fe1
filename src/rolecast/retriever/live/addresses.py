"""Which addresses a page may be fetched from: those of the public internet, however they are spelled.

A name is resolved once, all that it resolves to is checked, and the connection goes to an address that was: what the name resolves to a
moment later matters to nobody (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from rolecast.errors import InputError, RolecastError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
PORTS: Final = {"http": 80, "https": 443}
SAFE: Final = "%/:@!$&'()*+,;=~?"  # what stands in a path or query as it is
LONGEST: Final = 2048  # characters of an address
# Azure's is a public address; the others are named for whoever reads a refusal.
METADATA: Final = frozenset(
    ipaddress.ip_address(text) for text in ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
)
GLOBAL: Final = ipaddress.ip_network("2000::/3")  # all of IPv6 that is handed out
NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
TUNNELS: Final = tuple(
    ipaddress.ip_network(text) for text in ("2002::/16", "2001::/32")
)  # 6to4, Teredo: an IPv4 address that another end picks


class Refused(InputError):
    """A page is not fetched: where it lies, or what it is, is not for us."""


class Unread(RolecastError):
    """A page could not be had: its server is away or too slow, or says no."""


def parsed(url: str) -> SplitResult:
    """An address that is well formed, with its host in ASCII. `Refused` for anything that is no ordinary address of the web."""
    if len(url) > LONGEST or any(character.isspace() or not character.isprintable() for character in url):
        raise Refused("the address is too long, or has characters that no address has")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise Refused("the address is malformed") from None
    if parts.scheme not in PORTS or not host:
        raise Refused("only http and https addresses are fetched")
    if "@" in parts.netloc or "\\" in url:
        raise Refused("an address with a user, or a backslash, is not fetched")
    if port not in (None, *PORTS.values()):
        raise Refused(f"port {port} is not fetched from")
    host = _ascii(host)
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    return SplitResult(parts.scheme, netloc, quote(parts.path, SAFE), quote(parts.query, SAFE), "")


def _ascii(host: str) -> str:
    """Full-width digits and ideographic dots become what they stand for, before anything is checked."""
    if ":" in host:
        try:
            if "%" in host:
                raise ValueError
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise Refused("the address is malformed") from None
    try:
        name = host.encode("idna").decode().rstrip(".").lower()
    except UnicodeError:
        raise Refused("the address is malformed") from None
    if not re.fullmatch(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?", name):
        raise Refused("the address is malformed")
    if re.fullmatch(r"(0x[0-9a-f]*|[0-9]+)", name.rpartition(".")[2]):  # what ends in a number is read as an IPv4 address
        try:
            ipaddress.IPv4Address(name)
        except ValueError:
            raise Refused("a number, or an IPv4 address in another spelling than a.b.c.d, is not fetched from") from None
    return name


def why_not(address: Address) -> str:
    """Why nothing is fetched from an address; "" for one of the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in METADATA:
            return "a metadata service"
        if (mapped := address.ipv4_mapped) is not None:
            return why_not(mapped)
        if address in NAT64:
            return why_not(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in GLOBAL or any(address in network for network in TUNNELS):
            return _kind(address) or "no address of the public internet"
    if address in METADATA:
        return "a metadata service"
    return _kind(address)


def _kind(address: Address) -> str:
    if address.is_loopback or address.is_unspecified:
        return "this machine"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast or address.is_reserved:
        return "no address of a host"
    return "" if address.is_global else "a private address"


async def checked(host: str, port: int, resolve: Resolve) -> list[str]:
    """Addresses of a host that may be connected to. `Refused` if one of them is none of the public internet: who mixes them is up to
    something. None for a name server that is away."""
    try:
        found = [ipaddress.ip_address(text.partition("%")[0]) for text in await resolve(host, port)]
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            return []
        raise Unread(f"no host is named {host}") from None
    for address in found:
        if why := why_not(address):
            raise Refused(f"{host} is {why}")
    return list(dict.fromkeys(map(str, found)))


async def resolved(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]

"""Which addresses pages are fetched from: nothing but the public internet, in whatever spelling somebody writes something else."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import pytest

from rolecast.retriever.live.addresses import Refused, Unread, checked, parsed, why_not

PRIVATE = [
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "169.254.1.1",
    "169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1", "febf::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "100::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "::ffff:0:127.0.0.1", "5f00::1",
]  # fmt: skip
PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_the_public_internet_is_refused(address: str) -> None:
    assert why_not(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_is_not(address: str) -> None:
    assert why_not(ipaddress.ip_address(address)) == ""


@pytest.mark.parametrize(
    "host",
    [
        "2130706433", "0x7f000001", "017700000001", "0177.0.0.1", "0x7f.0.0.1", "127.1", "127.0.1", "0", "127.0.0.1.", "2852039166",
        "0xa9.0xfe.0xa9.0xfe", "134744072", "1.2.3.4.5", "１２７.１", "127。0。1", "⑧.8", "1.0x", "999.1.1.1", "08.8.8.8",
    ],
)  # fmt: skip
def test_numbers_in_other_spellings_are_refused_or_are_what_they_mean(host: str) -> None:
    """Before anything is resolved; what is left is dotted, and its address is looked at."""
    try:
        name = parsed(f"http://{host}/").hostname
    except Refused:
        return
    assert name == "127.0.0.1"
    assert why_not(ipaddress.ip_address(name))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://site.test/", "file:///etc/passwd", "gopher://site.test/", "javascript:alert(1)", "//site.test/", "http:///x", "http://",
        "http://user@site.test/", "http://user:pw@127.0.0.1/", "http://good.test\\@127.0.0.1/", "http://site.test:22/", "http://site.test:6379/",
        "http://site.test:99999/", "http://[::1", "http://[fe80::1%25eth0]/", "http://a b.test/", "http://site.test/\r\nHost: x", "http://site.test/\0",
        "http://-.test/", "http://" + "a" * 2100 + ".test/", "http://si..te.test/",
    ],
)  # fmt: skip
def test_what_is_no_ordinary_address_is_refused(url: str) -> None:
    with pytest.raises(Refused):
        parsed(url)


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("HTTP://Site.TEST/a?b=c#d", "http://site.test/a?b=c"),
        ("https://bücher.test/ä b".replace(" ", "%20"), "https://xn--bcher-kva.test/%C3%A4%20b"),
        ("http://site.test:80/", "http://site.test:80/"),
        ("http://[2606:2800:220:1::0001]/", "http://[2606:2800:220:1::1]/"),
        ("http://93.184.216.34/x", "http://93.184.216.34/x"),
        ("http://site.test./", "http://site.test/"),
    ],
)
def test_an_ordinary_address_is_taken(url: str, plain: str) -> None:
    assert parsed(url).geturl() == plain


def look_up(*addresses: str) -> list[str]:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return asyncio.run(checked("site.test", 80, resolve))


def test_one_private_address_among_public_ones_refuses_the_host() -> None:
    assert look_up("93.184.216.34", "8.8.8.8", "8.8.8.8") == ["93.184.216.34", "8.8.8.8"]
    with pytest.raises(Refused, match=r"site\.test is a private address"):
        look_up("93.184.216.34", "10.0.0.1")


@pytest.mark.parametrize(("errno", "passes"), [(socket.EAI_AGAIN, True), (socket.EAI_NONAME, False)])
def test_a_name_server_that_is_away_is_asked_again_and_an_unknown_name_is_not(errno: int, passes: bool) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(errno, "x")

    if passes:
        assert asyncio.run(checked("site.test", 80, resolve)) == []
    else:
        with pytest.raises(Unread, match=r"no host is named site\.test"):
            asyncio.run(checked("site.test", 80, resolve))

"""Pages are fetched from a server on this machine that plays every address of the web, so that an attack that gets through is answered."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
import zlib

import pytest

from rolecast.retriever.live.addresses import Refused, Unread
from rolecast.retriever.live.reading import title_and_text
from tests.web import PUBLIC, Web, page, redirect

HELLO = page("<title>A  page</title><p>Hello, <b>world</b>!</p><p>More.</p>")


def test_a_page_is_its_title_and_text() -> None:
    web = Web(a=HELLO)
    found = web.fetch("http://site.test/a?q=1#part")
    assert (found.id, found.title, found.text) == ("http://site.test/a?q=1#part", "A page", "Hello, world!\nMore.")
    assert web.dialled == [PUBLIC]
    assert "GET /a?q=1 HTTP/1.1\r\nhost: site.test\r\n" in web.asked[0].replace("Host", "host")
    assert not any(line.lower().startswith(("cookie", "authorization", "referer")) for line in web.asked[0].splitlines())


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "192.168.0.1", "169.254.169.254", "::1", "fe80::1", "fd00:ec2::254", "::ffff:127.0.0.1", "0.0.0.0"]
)
def test_a_name_of_something_private_is_not_connected_to(address: str) -> None:
    web = Web(a=HELLO)
    web.names["site.test"] = [[address]]
    with pytest.raises(Refused):
        web.fetch()
    assert web.dialled == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a", "http://[::1]/a", "http://[::ffff:7f00:1]/a", "http://[::ffff:169.254.169.254]/a", "http://2130706433/a",
        "http://0x7f.1/a", "http://0177.0.0.1/a", "http://169.254.169.254/latest/meta-data/", "http://site.test:22/a", "file:///etc/passwd",
        "http://１２７.0.0.1/a",
    ],
)  # fmt: skip
def test_a_private_address_is_not_connected_to_nor_is_a_redirect_to_it_followed(url: str) -> None:
    web = Web(a=HELLO)
    with pytest.raises(Refused):
        web.fetch(url)
    assert web.dialled == []
    web = Web(a=redirect(url.encode().decode("latin-1") if url.isascii() else "http://0x7f.1/a"), latest=HELLO)
    with pytest.raises(Refused):
        web.fetch()
    assert web.dialled == [PUBLIC]


def test_a_redirect_to_a_name_of_something_private_is_not_followed() -> None:
    web = Web(a=redirect("http://inside.test/b"), b=HELLO)
    web.names["inside.test"] = [["10.1.2.3"]]
    with pytest.raises(Refused, match=r"inside\.test is a private address"):
        web.fetch()
    assert web.dialled == [PUBLIC]


def test_a_name_that_is_bound_anew_is_connected_to_where_it_was_checked() -> None:
    """DNS rebinding: public when it is checked, this machine a moment later."""
    web = Web(a=HELLO)
    web.names["site.test"] = [[PUBLIC], ["127.0.0.1"]]
    assert web.fetch().title == "A page"
    assert web.resolved["site.test"] == 1
    assert web.dialled == [PUBLIC]


def test_a_name_that_is_bound_anew_between_a_redirect_and_its_target_is_refused() -> None:
    web = Web(a=redirect("/b"), b=HELLO)
    web.names["site.test"] = [[PUBLIC], ["127.0.0.1"]]
    with pytest.raises(Refused, match="this machine"):
        web.fetch()
    assert web.dialled == [PUBLIC]


def test_redirects_are_followed_but_not_for_ever() -> None:
    web = Web(a=redirect("b", "301 Moved"), b=redirect("//other.test/c", "308 Permanent Redirect"), c=HELLO)
    web.names["other.test"] = [["8.8.8.8"]]
    assert web.fetch().title == "A page"
    assert web.dialled == [PUBLIC, PUBLIC, "8.8.8.8"]
    web = Web(a=redirect("/a"))
    with pytest.raises(Refused, match="redirects more than 5 times"):
        web.fetch()
    assert len(web.dialled) == 6


def test_what_is_too_large_is_dropped_when_it_says_so_when_it_comes_and_when_it_is_unpacked() -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        while sent < 50 * 2**20:
            writer.write(b"x" * 65_536)
            sent += 65_536
            await writer.drain()

    bomb = gzip.compress(b"\0" * 50 * 2**20)
    assert len(bomb) < 60_000
    for answer in (page("x" * 5000, "text/plain"), endless, page(bomb, "text/plain", content_encoding="gzip")):
        with pytest.raises(Refused, match="larger than 4096 bytes" if answer is not bomb else "larger"):
            Web(a=answer).fetch(most=4096)
    assert sent < 25 * 2**20
    with pytest.raises(Refused, match="larger than 100000 bytes"):
        Web(a=page(bomb, "text/plain", content_encoding="gzip")).fetch(most=100_000)
    assert Web(a=page("x" * 4096, "text/plain")).fetch(most=4096).text == "x" * 4096


def test_a_length_that_is_too_large_is_enough() -> None:
    async def promise(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 9999999\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(1.5)

    with pytest.raises(Refused, match="larger than"):
        Web(a=promise).fetch(seconds=1.0)


def test_a_packed_page_is_unpacked_and_one_packed_otherwise_is_refused() -> None:
    assert Web(a=page(gzip.compress(b"hello"), "text/plain", content_encoding="gzip")).fetch().text == "hello"
    for body, encoding in ((zlib.compress(b"hello"), "gzip"), (b"hello", "br"), (gzip.compress(gzip.compress(b"x")), "gzip, gzip")):
        with pytest.raises(Refused):
            Web(a=page(body, "text/plain", content_encoding=encoding)).fetch()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/pdf", b"%PDF-1.7"), ("image/png", b"\x89PNG"), ("image/svg+xml", b"<svg/>"), ("application/octet-stream", b"text"),
        ("text/javascript", b"alert(1)"), ("text/css", b"a{}"), ("", b"text"), ("text/html", b"PK\x03\x04\0\0\0\0"),
        ("text/plain", bytes(range(128, 256)) * 20), ("text/plain; charset=zip", b"x\x9c\x03\0\xff\xfe\xfd\0\0\0\0\x01"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused_whatever_its_type_says(kind: str, body: bytes) -> None:
    with pytest.raises(Refused):
        Web(a=page(body, kind)).fetch()


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("text/plain; charset=latin-1", "Grüße".encode("latin-1"), "Grüße"),
        ("text/html", '<meta charset="windows-1252"><p>Grüße'.encode("cp1252"), "Grüße"),
        ("text/plain; charset=utf-16", "Grüße".encode("utf-16"), "Grüße"),
        ("text/plain; charset=nonsense", "Grüße".encode(), "Grüße"),
        ("application/json", b'{"a": "b"}', '{"a": "b"}'),
    ],
)
def test_text_is_read_in_its_own_spelling(kind: str, body: bytes, text: str) -> None:
    assert Web(a=page(body, kind)).fetch().text == text


HOSTILE = """<html><head><title>T<script>steal()</script></title><style>p{}</style><script src=x>run()</script></head><body onload="run()">
<p>Seen <a href="javascript:run()">link</a></p><!-- hidden comment --><noscript>no script</noscript><iframe src="http://10.0.0.1/">frame</iframe>
<object data=x>object <b>deep</b></object><svg><text>drawn</text><script>run()</script></svg><template>template</template>
<div style="display: none">invisible <div>deeper</div> still</div><p hidden>hidden</p><span aria-hidden="true">aria</span>
<form><input value="typed"><textarea>area</textarea></form><SCRIPT>upper()</SCRIPT ><p>zero\u200bwidth \u202etext\u202c &#x200b;&amp;lt;</p>
<p>End<script>never closed"""


def test_what_a_browser_would_run_load_or_hide_is_left_out() -> None:
    title, text = title_and_text(HOSTILE, "text/html")
    assert text.split("\n") == ["Seen link", "zerowidth text &lt;", "End"]
    assert title.startswith("T")


@pytest.mark.parametrize(
    "start", ["<", "<a ", "<!--", "<!", "<![", "<div>", "&#", "</", "<a b='", "<script>", "<svg>", "<?", '<a b="c" ', "<!DOCTYPE "]
)
def test_a_page_that_is_made_to_be_slow_is_not(start: str) -> None:
    begun = time.process_time()
    with contextlib.suppress(Refused):
        title_and_text(start * (2**18 // len(start)), "text/html")
    assert time.process_time() - begun < 5


def test_a_server_that_drips_is_left_when_its_time_is_over() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        for _ in range(200):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    begun = time.monotonic()
    with pytest.raises(Unread, match=r"longer than 0\.2 s"):
        Web(a=drip).fetch(seconds=0.2)
    assert time.monotonic() - begun < 2


def test_what_may_pass_is_tried_again_and_what_is_not_for_us_is_not() -> None:
    async def hang_up(writer: asyncio.StreamWriter) -> None:
        pass

    web = Web(a=[page("busy", status="503 Busy", retry_after="2"), hang_up, page("slow down", status="429 Too Many"), HELLO])
    assert web.fetch(seconds=60.0).title == "A page"
    assert len(web.slept) == 3
    assert web.slept[0] >= 2
    cut = page(gzip.compress(b"hello" * 100)[:-20], "text/plain", content_encoding="gzip")
    assert Web(a=[cut, HELLO]).fetch().title == "A page"
    for status in ("404 Not Found", "403 Forbidden", "204 No Content"):
        web = Web(a=page("", status=status))
        with pytest.raises(Unread, match=status[:3]):
            web.fetch()
        assert len(web.dialled) == 1


def test_one_address_of_several_is_enough() -> None:
    web = Web(a=HELLO)
    web.names["site.test"] = [["8.8.4.4", PUBLIC]]
    connect = web.connect_tcp

    async def picky(host: str, *args: object, **kwargs: object) -> object:
        if host == "8.8.4.4":
            import httpcore

            web.dialled.append(host)
            raise httpcore.ConnectError("away")
        return await connect(host, *args, **kwargs)  # type: ignore[arg-type]

    web.connect_tcp = picky  # type: ignore[method-assign,assignment]
    assert web.fetch().title == "A page"
    assert web.dialled == ["8.8.4.4", PUBLIC]


def test_a_long_text_is_cut() -> None:
    assert Web(a=page("word " * 100, "text/plain")).fetch(characters=20).text == "word word word word "

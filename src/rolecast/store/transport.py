"""The HTTP client under the store: proxies and certificate authorities as the environment names them."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from urllib3 import PoolManager, ProxyManager, Timeout
from urllib3.util import make_headers

from rolecast.errors import InputError

CA_BUNDLE = "AWS_CA_BUNDLE"


def pool_for(url: str, environ: Mapping[str, str], size: int) -> PoolManager:
    """Retries are the caller's: urllib3 would log the address of a presigned request, which is a credential for minutes."""
    proxy = proxy_for(url, environ)
    options: dict[str, Any] = {
        "timeout": Timeout(connect=5.0, read=60.0),
        "maxsize": size,
        "retries": False,
        "ssl_context": _trusting(environ),
    }
    if proxy is None:
        return PoolManager(**options)
    at = urlsplit(proxy)
    if at.scheme not in ("http", "https") or not at.hostname:
        raise InputError("the proxy for S3 has no address like http://host:port; mend HTTPS_PROXY or HTTP_PROXY")  # it may hold a password
    address = (
        f"{at.scheme}://{at.hostname if ':' not in at.hostname else f'[{at.hostname}]'}:{at.port or (443 if at.scheme == 'https' else 80)}"
    )
    user = f"{unquote(at.username)}:{unquote(at.password or '')}" if at.username else None
    return ProxyManager(address, proxy_headers=make_headers(proxy_basic_auth=user) if user else None, **options)


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names, unless NO_PROXY excepts the host: by name, suffix, address or network."""

    def setting(name: str) -> str:
        return environ.get(name.lower()) or environ.get(name) or ""

    at = urlsplit(url)
    proxy = setting(f"{at.scheme.upper()}_PROXY") or setting("ALL_PROXY")
    if not proxy or _excepted(at.hostname or "", at.netloc.rpartition("@")[2], setting("NO_PROXY")):
        return None
    return proxy


def _excepted(host: str, netloc: str, exceptions: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    return any(_excepts(entry.strip().lower(), host.lower(), netloc.lower(), address) for entry in exceptions.split(","))


def _excepts(entry: str, host: str, netloc: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    if address is not None and "/" in entry:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name = entry.removeprefix(".")
    return entry == "*" or (bool(name) and (name in (host, netloc) or host.endswith(f".{name}")))


def _trusting(environ: Mapping[str, str]) -> ssl.SSLContext:
    """The system's authorities, and those of a bundle beside them: a private store may stand beside a public STS."""
    context = ssl.create_default_context()
    bundle = environ.get(CA_BUNDLE)
    if bundle:
        try:
            context.load_verify_locations(cafile=bundle)
        except (OSError, ssl.SSLError) as error:
            reason = "holds no certificates" if isinstance(error, ssl.SSLError) else f"cannot be read ({error.strerror})"
            raise InputError(f"{CA_BUNDLE} names {bundle}, which {reason}; name a file of certificates in PEM") from None
    return context

"""Who may use the service: the host it is called by, the origin of the page that calls it, and the token."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit


class Refusal(NamedTuple):
    status: int  # of HTTP
    reason: str  # for metrics
    text: str


@dataclass(frozen=True)
class Access:
    """`hosts`: names by which the service may be called, besides localhost and IP addresses. `origins`: of pages that
    may use it, besides pages of its own host. `token`: what a client must present; None: it needs none."""

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    token: str | None = None

    def refusal(self, headers: Mapping[str, str], public: bool = False) -> Refusal | None:
        """Why a request with these headers is refused; None: it is not. `public`: it needs no token."""
        host = headers.get("host", "")
        if not self._is_known(host):
            return Refusal(421, "host", f"the service does not answer to the host {host!r}: see --allow-host")
        origin = headers.get("origin")
        foreign = origin is not None and origin not in self.origins and urlsplit(origin).netloc != host
        if foreign or (origin is None and headers.get("sec-fetch-site") == "cross-site"):
            return Refusal(403, "origin", f"pages of {origin or 'another site'} may not use the service")
        if self.token is not None and not public:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
                return Refusal(401, "token", "a valid token is needed, as Authorization: Bearer TOKEN")
        return None

    def _is_known(self, host: str) -> bool:
        """Whether a Host header is a name that the service was given, or an IP address. The name of another site can
        be made to point here, and its pages would then be of the same origin (DNS rebinding)."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in self.hosts or name == "localhost":
                return True
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return False

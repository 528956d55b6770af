"""What a browser said while a test drove it: errors on the console, and the hosts that it asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request

OWN = ("127.0.0.1", "")
"""Hosts that may be asked: this machine; blob: and data: addresses have none."""


@dataclass
class Watch:
    """Everything that pages of some contexts said.

    Attributes:
        errors: console errors and uncaught exceptions, with the page's address.
        warnings: console warnings.
        hosts: that were asked, each with one address.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)

    def over(self, context: BrowserContext) -> None:
        """Listen to all pages of a context, also those that it opens later."""
        context.on("request", self._asked)
        context.on("page", self._page)

    def assert_clean(self) -> None:
        """No error, and nobody else asked."""
        assert not self.errors, "\n".join(self.errors)
        strangers = {host: url for host, url in self.hosts.items() if host not in OWN}
        assert not strangers, strangers

    def _page(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))

    def _said(self, message: ConsoleMessage) -> None:
        text = f"{message.location.get('url')}: {message.text}"
        if message.type == "error":
            self.errors.append(text)
        elif message.type == "warning":
            self.warnings.append(text)

    def _asked(self, request: Request) -> None:
        self.hosts.setdefault(urlsplit(request.url).hostname or "", request.url)

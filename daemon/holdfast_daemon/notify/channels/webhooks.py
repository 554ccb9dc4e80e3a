"""Channels that POST JSON: the generic webhook, Slack and Discord."""

import json
from dataclasses import dataclass
from pathlib import Path

from holdfast_daemon.notify.channels.chat_payloads import discord_payload, slack_payload
from holdfast_daemon.notify.channels.sending import post_checked, secret_of, secret_url
from holdfast_daemon.notify.message import Message, as_json

_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Webhook:
    """POSTs :func:`as_json` to a URL."""

    url: str
    """Empty: ``url_file`` holds it."""
    url_file: Path | None
    token_file: Path | None

    def send(self, message: Message) -> None:
        """Send a message. Raises DeliveryRefusedError or DeliveryDelayedError."""
        headers = dict(_JSON)
        if self.token_file is not None:
            headers["Authorization"] = f"Bearer {secret_of(self.token_file)}"
        url = secret_url(self.url_file) if self.url_file is not None else self.url
        post_checked(url, json.dumps(as_json(message)).encode(), headers)


@dataclass(frozen=True)
class Slack:
    """POSTs to an incoming webhook of Slack."""

    url_file: Path

    def send(self, message: Message) -> None:
        """Send a message. Raises DeliveryRefusedError or DeliveryDelayedError."""
        post_checked(secret_url(self.url_file), json.dumps(slack_payload(message)).encode(), _JSON)


@dataclass(frozen=True)
class Discord:
    """POSTs to a webhook of a Discord channel."""

    url_file: Path

    def send(self, message: Message) -> None:
        """Send a message. Raises DeliveryRefusedError or DeliveryDelayedError."""
        post_checked(secret_url(self.url_file), json.dumps(discord_payload(message)).encode(), _JSON)

"""Messages as Slack and Discord take them. What a rank said is shown as it is: no mention, link, emoji or format.

The forms and limits are those of the services' public documentation:
https://docs.slack.dev/reference/block-kit/composition-objects/text-object (``plain_text``: no formatting),
https://docs.slack.dev/reference/block-kit/blocks/header-block (150 characters),
https://docs.slack.dev/reference/block-kit/blocks/section-block (3000 characters),
https://docs.slack.dev/reference/methods/chat.postMessage (``mrkdwn`` of the top-level text),
https://docs.slack.dev/messaging/formatting-message-text (escaping of ``&``, ``<`` and ``>`` in all text objects),
https://docs.discord.com/developers/resources/webhook#execute-webhook (2000 characters of content, 10 embeds) and
https://docs.discord.com/developers/resources/message#embed-object-embed-limits (256 of a title, 4096 of a description,
6000 of all embeds together).
"""

import re
from collections.abc import Iterable
from typing import Any

from holdfast_daemon.notify.message import Message, Notice, culprits_text

_SHOWN = 8
"""Most notices that a chat message shows: the newest."""
_SLACK_HEADER = 150
_SLACK_WHAT = 1500
_DISCORD_CONTENT = 2000
_DISCORD_TITLE = 256
_DISCORD_DESCRIPTION = 600
"""Of each of eight embeds: together with their titles less than the limit of 6000."""
_DISCORD_SHOWN = 6
_COLOURS = {"open": 0xD32F2F, "failed": 0xD32F2F, "noted": 0xF9A825, "resolved": 0x2E7D32, "finished": 0x2E7D32}
_GREY = 0x607D8B
_MARKDOWN = re.compile(r"([\\`*_~|>#\[\]()<:@-])")


def slack_payload(message: Message) -> dict[str, Any]:
    """Return the JSON for an incoming webhook of Slack.

    All texts are ``plain_text``, because mrkdwn has no escape for ``*``, ``_``, ``~`` and backticks. Only our own link
    is mrkdwn.
    """
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _slack_plain(_cut_slack(message.title, _SLACK_HEADER))}]
    for notice in message.in_reading_order(_SHOWN):
        body = f"{_cut_slack(notice.what, _SLACK_WHAT)}\nNext: {_cut_slack(notice.next, 500)}"
        blocks.append({"type": "section", "text": _slack_plain(body)})
        elements = [_slack_plain(_cut_slack(_place(message, notice), 1000))]
        if notice.link:
            link = f"<{_slack(notice.link)}|Open in the console>"
            elements.append({"type": "mrkdwn", "text": link, "verbatim": True})
        else:
            elements.append(_slack_plain(_cut_slack(notice.see, 500)))
        blocks.append({"type": "context", "elements": elements})
    hidden = message.left_out + max(0, len(message.notices) - _SHOWN)
    if hidden:
        blocks.append({"type": "section", "text": _slack_plain(f"{hidden} older notices are not shown.")})
    return {
        "text": _cut_slack(message.title, 1000),
        "mrkdwn": False,
        "blocks": blocks,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _slack_plain(escaped: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": escaped, "emoji": False}


def _slack(text: str) -> str:
    """Escape the three characters that Slack decodes in every text object."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut_slack(text: str, most: int) -> str:
    return _cut(map(_slack, text), most)


def _cut(pieces: Iterable[str], most: int) -> str:
    """Join pieces for a place of ``most`` characters, and cut between two of them if they are more.

    A character that UTF-16 needs two units for counts twice: services differ in what they count.
    """
    kept: list[str] = []
    length, fitting = 0, 0
    for piece in pieces:
        length += sum(1 + (ord(char) > 0xFFFF) for char in piece)
        if length > most:
            return "".join(kept[:fitting]) + "…"
        kept.append(piece)
        fitting += length < most
    return "".join(kept)


def discord_payload(message: Message) -> dict[str, Any]:
    """Return the JSON for a webhook of Discord."""
    shown = message.in_reading_order(_DISCORD_SHOWN)
    hidden = message.left_out + len(message.notices) - len(shown)
    content = _cut_discord(message.title, _DISCORD_CONTENT - 100)
    if hidden:
        content += f"\n{hidden} older notices are not shown."
    return {
        "content": content,
        "allowed_mentions": {"parse": []},
        "embeds": [_embed(message, notice) for notice in shown],
    }


def _embed(message: Message, notice: Notice) -> dict[str, Any]:
    where = "" if notice.link else f"\n{_cut_discord(notice.see, 200)}"
    body = f"{_cut_discord(notice.what, 350)}\nNext: {_cut_discord(notice.next, 250)}{where}"
    embed: dict[str, Any] = {
        "title": _cut_discord(_place(message, notice), _DISCORD_TITLE),
        "description": body,
        "color": _COLOURS.get(notice.status, _GREY),
    }
    return {**embed, "url": notice.link} if notice.link else embed


def _cut_discord(text: str, most: int) -> str:
    """Escape the characters of Discord's Markdown and mentions, for a place of ``most`` characters."""
    return _cut((_MARKDOWN.sub(r"\\\1", char) for char in text), most)


def _place(message: Message, notice: Notice) -> str:
    parts = (
        notice.status,
        f"run {message.run}",
        culprits_text(notice.culprits),
        f"step {notice.step}" if notice.step >= 0 else "",
        f"reported by {message.host}",
    )
    return " · ".join(filter(None, parts))

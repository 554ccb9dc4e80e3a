"""The payloads for Slack and Discord fit schemas that were written from the services' public documentation.

https://docs.slack.dev/reference/block-kit and https://docs.discord.com/developers/resources/webhook. No real service
was asked.
"""

from dataclasses import replace
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from holdfast_daemon.notify.channels.chat_payloads import discord_payload, slack_payload
from holdfast_daemon.notify.message import MOST_NOTICES, Culprit, Message, Notice, shortened


def closed(*optional: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others. All but the optional ones are required."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def text(most: int, least: int = 1) -> dict[str, Any]:
    return {"type": "string", "minLength": least, "maxLength": most}


def items(most: int, of: dict[str, Any], least: int = 1) -> dict[str, Any]:
    return {"type": "array", "minItems": least, "maxItems": most, "items": of}


def plain(most: int) -> dict[str, Any]:
    return closed(type={"const": "plain_text"}, text=text(most), emoji={"const": False})


MRKDWN = closed(type={"const": "mrkdwn"}, text=text(3000), verbatim={"const": True})
BLOCKS = [
    closed(type={"const": "header"}, text=plain(150)),
    closed(type={"const": "section"}, text=plain(3000)),
    closed(type={"const": "context"}, elements=items(10, {"oneOf": [plain(3000), MRKDWN]})),
]
SLACK = closed(
    "unfurl_links",
    "unfurl_media",
    text=text(40000),
    mrkdwn={"const": False},
    unfurl_links={"type": "boolean"},
    unfurl_media={"type": "boolean"},
    blocks=items(50, {"oneOf": BLOCKS}),
)
EMBED = closed(
    *("title", "description", "url", "color"),
    title=text(256, least=0),
    description=text(4096, least=0),
    url={"type": "string", "pattern": "^https?://"},
    color={"type": "integer", "minimum": 0, "maximum": 0xFFFFFF},
)
DISCORD = closed(
    "embeds", content=text(2000), allowed_mentions=closed(parse=items(0, {}, least=0)), embeds=items(10, EMBED, least=0)
)
PLAIN = Notice(
    event="incident",
    status="open",
    key="run/i/0001-dead-rank",
    kind="dead_rank",
    what="rank 3 was killed by SIGKILL at step 7",
    next="Nothing now.",
    culprits=(Culprit(3, "node-2", 4711),),
    step=7,
    unix_s=1.0,
    see="holdfast incidents show 0001-dead-rank --run run",
)
PLACE = "rank 3 (node-2, pid 4711)"
HOSTILE = "@everyone <!channel> <@U123> <https://evil.example|click> [click](https://evil.example) `*_~ <@&9> &amp; \\"


def message(*notices: Notice, title: str = "a title", left_out: int = 0) -> Message:
    return Message(run="run", host="host", title=title, sent_unix_s=1.0, notices=notices or (PLAIN,), left_out=left_out)


MESSAGES = [
    message(),
    message(replace(PLAIN, link="https://console.example/#/runs/run/incidents/1")),
    message(replace(PLAIN, what=HOSTILE, next=HOSTILE), title=HOSTILE),
    message(*[replace(PLAIN, what="<" * 1000, next="&" * 1000)] * MOST_NOTICES, title=">" * 1100, left_out=7),
    message(*[replace(PLAIN, what="*" * 1000, next="_" * 1000)] * MOST_NOTICES, title="`" * 1100, left_out=7),
    message(replace(PLAIN, what="😀" * 1000, culprits=tuple(map(Culprit, range(10_000)))), title="😀" * 1100),
]


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@pytest.mark.parametrize("sent", MESSAGES)
def test_payloads_keep_to_the_documented_form_and_limits(sent: Message) -> None:
    jsonschema.validate(slack_payload(sent), SLACK)
    payload = discord_payload(sent)
    jsonschema.validate(payload, DISCORD)
    assert utf16(payload["content"]) <= 2000
    assert sum(utf16(one["title"]) + utf16(one["description"]) for one in payload["embeds"]) <= 6000


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts(one)]
    return [value] if isinstance(value, str) else []


def test_what_a_rank_said_mentions_nobody_and_makes_no_link_in_slack() -> None:
    hostile = message(replace(PLAIN, what=HOSTILE, next=HOSTILE), title=HOSTILE)
    assert not {"<", ">"} & set("".join(texts(slack_payload(hostile))))
    linked = message(replace(PLAIN, what=HOSTILE, link="https://console.example/#/runs/run"))
    shown = [text for text in texts(slack_payload(linked)) if "<" in text]
    assert shown == ["<https://console.example/#/runs/run|Open in the console>"]


def formatted(value: Any) -> list[str]:
    """Return the texts of a payload for Slack that Slack formats."""
    if isinstance(value, dict):
        own = [value["text"]] if value.get("type") == "mrkdwn" else []
        return own + [text for one in value.values() for text in formatted(one)]
    return [text for one in value for text in formatted(one)] if isinstance(value, list) else []


def test_slack_formats_nothing_that_a_rank_said() -> None:
    what = "*bold* _slanted_ ~struck~ `code` ```block``` :fire:"
    payload = slack_payload(message(replace(PLAIN, what=what, next=what, link="https://c.example"), title=what))
    assert formatted(payload) == ["<https://c.example|Open in the console>"]
    assert payload["mrkdwn"] is False
    assert payload["text"] == what
    assert [block["text"]["text"] for block in payload["blocks"] if "text" in block] == [what, f"{what}\nNext: {what}"]


def test_a_late_message_shows_the_newest_first() -> None:
    notices = [replace(PLAIN, what=f"what {number}", key=f"run/i/{number}") for number in range(20)]
    late = replace(message(*notices), late_s=600.0)
    slack = [block["text"]["text"].partition("\n")[0] for block in slack_payload(late)["blocks"][1:-1:2]]
    assert slack == [f"what {number}" for number in range(19, 11, -1)]
    discord = [embed["description"].partition("\n")[0] for embed in discord_payload(late)["embeds"]]
    assert discord == [f"what {number}" for number in range(19, 13, -1)]
    assert late.text.index("what 19") < late.text.index("what 0\n")


def test_what_a_rank_said_mentions_nobody_and_makes_no_link_in_discord() -> None:
    payload = discord_payload(message(replace(PLAIN, what=HOSTILE, next=HOSTILE), title=HOSTILE))
    assert payload["allowed_mentions"] == {"parse": []}
    for said in [payload["content"], payload["embeds"][0]["description"]]:
        for escaped in ("\\@everyone", "\\[click\\]\\(", "\\<\\@"):
            assert escaped in said


def test_an_escape_is_not_cut_in_two() -> None:
    assert slack_payload(message(title="&" * 1100))["text"].rstrip("…").replace("&amp;", "") == ""
    content = discord_payload(message(title="*" * 1899 + "*" * 100))["content"]
    assert content.rstrip("…").replace("\\*", "") == ""


def test_all_that_a_person_needs_is_shown() -> None:
    for payload in (slack_payload(message()), discord_payload(message())):
        shown = "\n".join(texts(payload)).replace("\\", "")
        for part in (PLAIN.what, PLAIN.next, PLAIN.see, PLACE, "run run", "step 7", "reported by host"):
            assert part in shown


def test_a_text_becomes_one_printable_line() -> None:
    assert shortened("a\r\nb\x1b[31m\u202ec\0") == "a b [31m c"
    assert shortened("x" * 2000) == "x" * 999 + "…"

"""Reads server-sent events as a browser does."""

import json
from http.client import HTTPResponse
from typing import Any


class EventStream:
    """The events of one stream, in their order."""

    def __init__(self, answer: HTTPResponse) -> None:
        self._answer = answer
        assert answer.headers["content-type"].startswith("text/event-stream")

    def __enter__(self) -> "EventStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()

    def next(self) -> tuple[str, Any]:
        """Return name and data of the next event. Raises EOFError after the last one."""
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if not line.strip():
                if "event" in fields:
                    return fields["event"], json.loads(fields["data"])
            elif name:
                fields[name] = value
        raise EOFError

    def until(self, name: str) -> Any:
        """Return the data of the next event of this name; others are passed over."""
        while True:
            found, data = self.next()
            if found == name:
                return data

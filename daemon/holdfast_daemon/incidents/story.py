"""An incident as JSON: the text of ``incident.json``, and of a line in the incident log."""

import json

from google.protobuf.json_format import ParseError

from holdfast_base.text import reason_of
from holdfast_proto.message_json import from_json, to_json
from holdfast_proto.v1.store_pb2 import Incident

STORY = "incident.json"
"""Name of the file in an incident's folder."""


class StoryError(ValueError):
    """A text is not the JSON of an incident; the message says why in one line."""


def story_text(incident: Incident, *, indent: int | None = 1) -> str:
    """Return the JSON of an incident: indented for its folder; on one line, for the log, without ``indent``."""
    return json.dumps(to_json(incident), indent=indent) + "\n"


def parse_story(text: str | bytes) -> Incident:
    """Return the incident of a story, whichever version has written it. Raises StoryError."""
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise StoryError("it is no JSON object")
        return from_json(fields, Incident())
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoryError(reason_of(error)) from None

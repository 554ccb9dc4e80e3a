"""An incident as JSON: the text of ``incident.json``, and of a line in the incident log."""

import json
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from holdfast_proto.v1.store_pb2 import Incident


class StoryError(ValueError):
    """A text is not the JSON of an incident; the message says why in one line."""


def story_text(incident: Incident, *, indent: int | None = 1) -> str:
    """Return the JSON of an incident: indented for its folder; on one line, for the log, without ``indent``."""
    return json.dumps(MessageToDict(incident, preserving_proto_field_name=True), indent=indent) + "\n"


def parse_story(text: str | bytes) -> Incident:
    """Return the incident of a story, whichever version has written it. Raises StoryError.

    Enums may have their full names (``VERDICT_KIND_HUNG_COLLECTIVE``) or the short spelling that people and metrics
    use (``hung_collective``). Fields and enum values that this version does not know are left out.
    """
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise StoryError("it is no JSON object")
        named = _with_full_names(fields, cast(Descriptor, Incident.DESCRIPTOR))
        return ParseDict(named, Incident(), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoryError(" ".join(str(error).split())) from None


def _with_full_names(fields: dict[str, Any], message: Descriptor) -> dict[str, Any]:
    """Return the JSON of a message with the full name of every enum value."""
    known = {**message.fields_by_camelcase_name, **message.fields_by_name}
    return {name: _full(value, known[name]) if name in known else value for name, value in fields.items()}


def _full(value: Any, field: FieldDescriptor) -> Any:
    if isinstance(value, list):
        return [_full(item, field) for item in value]
    if field.enum_type is not None and isinstance(value, str):
        return _full_name(value, field.enum_type)
    if field.message_type is not None and isinstance(value, dict):
        return _with_full_names(value, field.message_type)
    return value


def _full_name(name: str, enum: EnumDescriptor) -> str:
    # Every enum of ours begins with PREFIX_UNSPECIFIED, which gives the prefix away.
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    full = f"{prefix}{name.upper()}"
    return full if full in enum.values_by_name else name

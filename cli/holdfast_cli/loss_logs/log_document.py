"""Reads a log that is one JSON document: an array of objects, or an object that holds one.

Hugging Face's Trainer writes the second form, ``trainer_state.json``, with the array ``log_history``:
https://huggingface.co/docs/transformers/main_classes/callback#transformers.TrainerState
"""

import json
import re

from holdfast_cli.errors import SettingsError
from holdfast_cli.loss_logs.log_lines import LogLines

MOST_DOCUMENT_CHARACTERS = 64 << 20
"""A document is read as a whole, and needs several times its size in memory."""

_ENTRIES = "log_history"
_FORMS = f"give an array of objects, an object with one in {_ENTRIES}, or one object in each line"


_ARRAY = re.compile(r"\[\s*([\[{\]]|$)")
"""Begins a document, and not `[rank0]:` or the time in a line of text."""
_OBJECT = re.compile(r'\{\s*("|\}|$)')
"""Begins a document, and not a dict as Python prints it."""


def begins_document(line: str) -> bool:
    """Whether the first line of a log begins one JSON document, and is no row itself."""
    text = line.strip()
    if not _OBJECT.match(text):
        return _ARRAY.match(text) is not None
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return not text.endswith("}")  # the object continues in the next line, or is too long for a row
    return _ENTRIES in entry


def read_document(lines: LogLines, path: str) -> list[dict[str, object]]:
    """Return the objects of the document that ``lines`` have begun. Raises SettingsError."""
    text = lines.whole(MOST_DOCUMENT_CHARACTERS)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path}: line {error.lineno}: not valid JSON: {_FORMS}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or arrays in arrays in arrays
        raise SettingsError(f"{path}: this JSON cannot be read: {_FORMS}") from None
    entries = document.get(_ENTRIES) if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise SettingsError(f"{path}: JSON without an array of objects: {_FORMS}")
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise SettingsError(f"{path}: row {number}: not a JSON object: {_FORMS}")
    if not entries:
        raise SettingsError(f"{path}: the array is empty: the run has logged nothing yet")
    return entries

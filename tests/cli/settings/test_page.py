"""The table of keys in docs/configuration.md equals that of the schema.

After a change of the schema, write the table anew: HOLDFAST_REWRITE_KEYS=1 pytest tests/cli/settings
"""

import os
import re
from pathlib import Path

from holdfast_cli.settings.channels import channel_schema
from holdfast_cli.settings.file import parse_file
from holdfast_cli.settings.schema import schema

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
BEGIN, END = "<!-- keys -->\n", "<!-- end of keys -->"
REWRITE = "HOLDFAST_REWRITE_KEYS"


def table() -> str:
    lines = ["| key | value | default | flag | meaning | used by |", "|---|---|---|---|---|---|"]
    channels = [setting for keys in channel_schema().values() for setting in keys.values()]
    for setting in [*schema().values(), *channels]:
        if setting.key:
            without = ["the words after `--`"] if setting.key == "run.command" else ["none"]
            flags = [setting.flag, setting.publish_flag] if setting.flag else without
            shown = ", ".join(f"`{flag}`" if flag.startswith("--") else flag for flag in flags if flag)
            default = setting.default_text if setting.default is not False else "false"
            default = {"()": ""}.get(default, default)
            cells = (f"`{setting.key}`", setting.allowed, default, shown, setting.help, ", ".join(setting.commands))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_the_page_lists_every_key_as_the_schema_has_it() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    on_page, _, after = rest.partition(END)
    if os.environ.get(REWRITE):
        PAGE.write_text(before + BEGIN + table() + END + after)
        on_page = table()
    assert on_page == table(), f"{REWRITE}=1 writes the table again"


def test_the_example_on_the_page_is_a_valid_file() -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    assert parse_file(example[1], Path("holdfast.toml")).values["ranks"] == 8

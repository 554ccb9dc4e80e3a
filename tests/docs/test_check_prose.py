"""The checker of the pages finds forbidden prose, and complains about nothing that is allowed."""

from pathlib import Path

import pytest

from docs import check_prose

SHORT = "The agent writes the shard. The daemon reads it.\n"


def found(text: str) -> list[str]:
    return list(check_prose.complaints("page.md", text))


def test_short_sentences_are_fine() -> None:
    assert found("# Title\n\n" + SHORT * 20) == []


def test_one_long_sentence_is_named_with_its_beginning() -> None:
    long = "This sentence " + "goes on and " * 10 + "then it finally ends with many words.\n"
    complaint, _width = found(SHORT * 40 + "\n" + long)
    assert complaint.startswith("page.md: 39 words in one sentence, 30 allowed: This sentence goes on and")


def test_a_sentence_is_counted_across_lines_and_list_items_are_not_joined() -> None:
    lines = "\n".join(["seven words are in each such line"] * 5)
    assert "35 words in one sentence" in found(SHORT * 40 + "\n" + lines + ".\n")[0]
    items = "\n".join(["* seven words are in each such line"] * 5)
    assert found(items) == []


def test_the_average_leaves_the_cells_of_tables_out() -> None:
    medium = "This is one sentence of exactly sixteen words, which is a little more than is wanted here.\n"
    cells = "| a short cell | another short cell |\n" * 100
    assert found(medium + "\n" + cells) == ["page.md: 17.0 words a sentence on average, 14 allowed"]


def test_a_long_sentence_in_a_cell_is_found() -> None:
    assert "31 words in one sentence" in found("| one | " + "word " * 31 + "|\n")[0]


@pytest.mark.parametrize("block", ["```\n{}\n```\n", "# {}\n"])
def test_code_and_headings_are_not_prose(block: str) -> None:
    assert found(block.format("word " * 20)) == []


def test_wide_lines_are_found_unless_they_are_tables_or_links() -> None:
    wide = "Short words. " * 12
    assert [complaint.partition(" ")[0] for complaint in found(f"{SHORT}{wide}\n")] == ["page.md:2:"]
    assert found(f"| {wide} |\n") == []
    assert found(f"[A link.](https://example.org/{'x' * 120})\n") == []


def test_a_command_in_code_is_one_word() -> None:
    command = "`holdfast run " + "--flag value " * 20 + "`"
    assert found(f"Run {command} now and wait.\n".replace("\n", " ")) != ["too long"]
    assert not any("words" in complaint for complaint in found(f"Run {command} now.\n"))


def test_the_exit_code_says_whether_something_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(SHORT)
    assert check_prose.main([str(page)]) == 0
    page.write_text("word " * 40 + ".\n")
    assert check_prose.main([str(page)]) == 1
    assert "40 words in one sentence" in capsys.readouterr().out

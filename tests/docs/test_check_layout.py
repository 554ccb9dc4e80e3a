"""The checks of the layout find what breaks a rule, and leave alone what does not."""

from pathlib import Path

import pytest

from docs import check_layout
from docs.check_layout import broken_rules, circles, read_file


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> dict[str, list[str]]:
    """Return what breaks a rule in a package ``a`` of these files."""
    monkeypatch.setattr(check_layout, "ROOT", folder)
    (folder / "top" / "a").mkdir(parents=True)
    paths = [folder / "top" / "a" / f"{name}.py" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return broken_rules([read_file(path) for path in paths])


LONG = "VALUE = 1\n" * 50


def test_a_short_file_belongs_into_its_only_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    using = "from a.{} import VALUE\n" + LONG
    texts = {"one": "VALUE = 1\n", "two": "VALUE = 2\n"}
    users = {"first": using.format("one") + using.format("two"), "second": using.format("two")}
    assert measured(tmp_path, monkeypatch, **texts, **users)["short_files"] == ["top/a/one.py: 1"]


def test_imports_in_a_circle_are_found_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = "def f() -> None:\n    from a import one\n"
    found = measured(tmp_path, monkeypatch, one="from a.two import f\n" + LONG, two=later + LONG, three=LONG)
    assert found["circles"] == ["a.one - a.two"]


def test_a_class_of_one_name_is_found_and_a_private_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class Thing: ...\nclass _Own: ...\n" + LONG
    found = measured(tmp_path, monkeypatch, one=text, two=text)
    assert found["classes_of_one_name"] == ["Thing: top/a/one.py, top/a/two.py"]


def test_code_and_comments_are_told_from_docstrings_and_blank_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_layout, "ROOT", tmp_path)
    path = tmp_path / "a.py"
    path.write_text('"""Text\nof two lines."""\n\n# why\nX = (\n    1,  # how\n)\n"""Of X."""\n')
    file = read_file(path)
    assert (file.lines, file.code, file.comments) == (8, 3, 2)


def test_circles_are_the_largest_ones() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(circles(graph)) == [["a", "b", "c"], ["d", "e"]]

"""The libraries in the console's folder are those that the script fetches, byte for byte."""

import hashlib
import re

import pytest

from console_assets import LIBRARIES, VENDOR, FetchError, Library, prepared, version_file

STATIC = VENDOR.parent
IMPORTED = re.compile(r"""(?:import|export)\b[^;"'`]*?\bfrom\s*["']([^"']+)["']""")


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_folder_holds_the_recorded_files_and_no_others(library: Library) -> None:
    folder = VENDOR / library.name
    contents = {name: (folder / name).read_bytes() for name in library.files.values()}
    assert (folder / "VERSION").read_text() == version_file(library, contents)
    assert {path.name for path in folder.iterdir()} == {*library.files.values(), "VERSION"}
    assert b"Copyright" in contents["LICENSE"]


def test_a_changed_byte_changes_the_version_file() -> None:
    library = LIBRARIES[0]
    before, after = (version_file(library, {"preact.js": content}) for content in (b"a", b"b"))
    assert hashlib.sha256(b"a").hexdigest() in before
    assert before != after


def test_the_vendor_folder_holds_these_libraries_alone() -> None:
    assert {path.name for path in VENDOR.iterdir()} == {library.name for library in LIBRARIES}


def test_every_import_is_a_path() -> None:
    imported = [name for path in STATIC.rglob("*.js") for name in IMPORTED.findall(path.read_text())]
    assert "./preact.js" in imported
    assert [name for name in imported if not name.startswith(("./", "../"))] == []


def test_an_edit_that_no_longer_applies_is_an_error() -> None:
    with pytest.raises(FetchError, match=r"hooks\.js has 0 times .*: update its edit"):
        prepared(LIBRARIES[0], "hooks.js", b"import x from 'elsewhere'")

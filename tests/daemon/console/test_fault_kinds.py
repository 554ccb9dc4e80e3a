"""The page offers only faults that ranks know."""

import re

from holdfast_daemon.console.console_app import STATIC
from holdfast_hooks.faults.catalogue import CATALOGUE


def test_every_kind_that_the_page_offers_exists() -> None:
    script = (STATIC / "js" / "parts" / "actions.js").read_text()
    listed = re.search(r"const KINDS = \[(.*?)\];", script, re.DOTALL)
    assert listed is not None
    offered = re.findall(r'"([^"]+)"', listed[1])
    assert len(offered) >= 10
    assert set(offered) <= set(CATALOGUE)

"""The page of the checkpoints and the dialog of a release in a real browser."""

import pytest
from playwright.sync_api import Page, expect

from holdfast_checkpoint.format import keeping
from holdfast_checkpoint.format.shard_index import shard_path, step_directory
from tests.daemon.console.test_checkpoint_list import note
from tests.support.console_browser import PHONE, keep_screenshot
from tests.support.console_server import SimulatedConsole

pytestmark = pytest.mark.system

RUN = "#/runs/llama-7b"
REASON = "loss spike at step 12: 9.1, 40 deviations above the mean"


@pytest.mark.gate
def test_a_released_checkpoint_is_gone_from_the_dialog(page: Page, console: SimulatedConsole) -> None:
    for step in (10, 20):
        keeping.keep(step_directory(console.directory / "checkpoints", step), f"{REASON} ({step})")
    page.goto(f"{console.origin}/{RUN}")
    opener = page.get_by_role("button", name="Release a checkpoint")
    dialog = page.get_by_role("dialog", name="Release a checkpoint: llama-7b")
    opener.click()
    choice = dialog.get_by_label("Checkpoint of step")
    expect(choice.get_by_role("option")).to_have_text(["10", "20"])
    choice.select_option("20")
    expect(dialog).to_contain_text(f"It is kept for: {REASON} (20)")
    keep_screenshot(page, "release")
    dialog.get_by_role("button", name="Release it").click()
    expect(page.locator(".done")).to_have_text(f"step 20 is released; it was kept for: {REASON} (20)")
    opener.click()
    expect(choice.get_by_role("option")).to_have_text(["10"])
    dialog.get_by_role("button", name="Release it").click()
    expect(page.locator(".done")).to_contain_text("step 10 is released")
    opener.click()
    expect(dialog).to_contain_text("No checkpoint is kept because of an incident.")
    expect(choice).to_have_count(0)
    dialog.get_by_role("button", name="Release it").click()
    expect(dialog.get_by_role("alert")).to_have_text("No checkpoint is kept because of an incident.")


def test_where_the_files_are_elsewhere_the_dialog_names_the_command(page: Page, console: SimulatedConsole) -> None:
    (console.directory / "checkpoints").rename(console.directory / "elsewhere")
    page.goto(f"{console.origin}/{RUN}")
    page.get_by_role("button", name="Release a checkpoint").click()
    dialog = page.get_by_role("dialog", name="Release a checkpoint: llama-7b")
    expect(dialog).to_contain_text("this machine does not see the folder")
    expect(dialog).to_contain_text("Use holdfast checkpoint release STEP")


def test_the_page_says_why_one_is_kept_and_what_verify_has_found(page: Page, console: SimulatedConsole) -> None:
    folder = console.directory / "checkpoints"
    keeping.keep(step_directory(folder, 10), REASON)
    note(folder, 10)
    page.goto(f"{console.origin}/{RUN}/checkpoints")
    expect(page.get_by_role("heading", name="History 1")).to_have_text("History 1, from the beginning")
    newest, oldest = page.get_by_role("row").nth(1), page.get_by_role("row").nth(2)
    expect(oldest.locator(".line", has_text="for:")).to_have_text(f"for: {REASON}")
    expect(oldest.get_by_role("cell").last).to_contain_text("verified")
    expect(newest.get_by_role("cell").last).to_have_text("read back when written")
    keep_screenshot(page, "checkpoints-verified")
    note(folder, 20, "step-00000020/rank-00000.shard is damaged: tensor model.weight")
    shard_path(step_directory(folder, 10), 1).unlink()
    page.reload()
    expect(newest.get_by_role("cell").last).to_contain_text("damaged")
    expect(oldest.get_by_role("cell").last).to_have_text("unusable")
    wrong = page.get_by_role("list", name="What is wrong").get_by_role("listitem")
    expect(wrong).to_have_count(2)
    expect(wrong.nth(0)).to_contain_text("Step 20: step-00000020/rank-00000.shard is damaged: tensor model.weight")
    expect(wrong.nth(1)).to_contain_text("rank-00001.shard")
    keep_screenshot(page, "checkpoints-damaged")
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    keep_screenshot(page, "checkpoints-phone")

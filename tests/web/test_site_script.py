"""The script of the documentation site, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.docs.pages import ROOT
from tools.site.stage import recording

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first one may install the browser
TERMINAL = (
    "<pre><code><span>$ </span>reltask runs app:app\nhello  succeeded\n<span>$ </span>reltask status</code></pre>"
)


def test_copy_takes_commands_and_play_hides_what_is_to_come(browser: Browser) -> None:
    """Without prompts and output, so that a paste runs; of a program all. Lines of the demo come one by one."""
    page = browser.new_page()
    page.set_content(f"{TERMINAL}<pre><code>price = 3</code></pre>{recording()}")
    page.add_script_tag(path=ROOT / "tools" / "site" / "site.js")
    copied = page.evaluate("[...document.querySelectorAll('code')].map((code) => code.dataset.copy)")
    assert copied == ["reltask runs app:app\nreltask status", None, "reltask demo"]
    hidden = "[...document.querySelectorAll('[data-at]')].filter((line) => line.style.visibility == 'hidden').length"
    assert page.evaluate(hidden) == 0
    page.click("text=Play")
    assert page.evaluate(hidden) > 0
    page.close()

"""A page of the site in Chromium, from the disk."""

import json
import os
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest


_CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
needs_chromium = pytest.mark.skipif(
    _CHROMIUM is None, reason="needs chromium or google-chrome on the path"
)

_PROBE = """<script>
addEventListener("load", async () => {
  const found = document.createElement("pre");
  found.textContent = JSON.stringify(await (async () => {%s})());
  found.id = "found";
  document.body.append(found);
});
</script></body>"""


def in_chromium(page: pathlib.Path, script: str, profile: pathlib.Path) -> Any:
    """What a script returns on a page, on a screen of 400 pixels."""
    # The tests of all pages do not look at `.htm`; other tests have their own.
    probe = page.with_suffix(f".{os.getpid()}.htm")
    probe.write_text(page.read_text().replace("</body>", _PROBE % script))
    try:
        done = subprocess.run(
            [
                *(_CHROMIUM or "", "--headless", "--no-sandbox", "--disable-gpu"),
                *("--window-size=400,800", f"--user-data-dir={profile}"),
                *("--virtual-time-budget=30000", "--dump-dom", probe.as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        probe.unlink()
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert found is not None, done.stderr[-2000:]
    return json.loads(found[1])

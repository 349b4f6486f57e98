"""Pages in a real browser: they draw, report no error, ask the network for nothing, and fit narrow screens.

Pictures lie in the folder that ``PAGES`` names, else in pytest's.
"""

import os
import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

from helpers.pages import KINDS, TIMELINE, pages, thousand
from pipeplan.report.page.pages import plans_page

pytestmark = pytest.mark.slow
pytest.importorskip("plotly")
BROWSER = next(filter(None, map(which, ("chromium-headless-shell", "chromium", "google-chrome", "chrome"))), None)
VIEWS = {"light": (1200, 1), "dark": (1200, 0), "narrow": (390, 1)}
"""Width in pixels, and the number of the colour scheme in Chromium's settings."""
PROBE = "<script>onload = () => { document.body.dataset.width = document.documentElement.scrollWidth }</script></body>"


def _open(page: str, folder: Path, name: str, view: str) -> tuple[str, str, list[str]]:
    """Open a page, and return what the browser made of it, its console, and the addresses that it asked for."""
    if BROWSER is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    width, scheme = VIEWS[view]
    file, log = folder / f"{name}.html", folder / "net.json"
    file.write_text(page.replace("</body>", PROBE))
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
        "--disable-background-networking", "--disable-component-update", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", f"--window-size={width},3200",
        f"--blink-settings=preferredColorScheme={scheme}", f"--log-net-log={log}",
        f"--screenshot={folder / f'{name}-{view}.png'}", "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run(
        [BROWSER, *options, file.as_uri()], capture_output=True, text=True, timeout=300, check=True, errors="replace"
    )
    console = "\n".join(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
    asked = re.findall(r'"url":\s*"((?:https?|wss?|ftp):[^"]*)"', log.read_text())
    return done.stdout, console, asked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where pictures are left."""
    kept = Path(os.environ.get("PAGES", tmp_path))
    kept.mkdir(parents=True, exist_ok=True)
    return kept


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", [*KINDS, "thousand"])
def test_a_page_opens_without_an_error(kind: str, view: str, folder: Path) -> None:
    """Every chart is drawn, the console is empty, the network is asked for nothing, the page as wide as the screen."""
    page = plans_page({"big.json": thousand()}) if kind == "thousand" else pages()[kind]
    charts = page.as_html().count('class="chart"')
    dom, console, asked = _open(page.as_html(), folder, kind.replace(" ", "-"), view)
    assert not console and not asked
    assert charts and len(re.findall(r'class="plotly-graph-div js-plotly-plot"', dom)) == charts
    width = re.search(r'data-width="(\d+)"', dom)
    assert width is not None and int(width[1]) <= VIEWS[view][0]


DRAG = """<script>addEventListener("load", () => {
  const chart = document.getElementById("time-line-0"), pane = chart.querySelector(".nsewdrag")
  const box = pane.getBoundingClientRect(), y = box.top + box.height / 2
  const at = (kind, target, x) => target.dispatchEvent(new MouseEvent(kind, {
    bubbles: true, clientX: box.left + x * box.width, clientY: y, buttons: kind == "mouseup" ? 0 : 1, view: window}))
  at("mousemove", pane, 0.25); at("mousedown", pane, 0.25)
  const leave = () => { at("mousemove", document, 0.4); at("mousemove", document, 0.5); at("mouseup", document, 0.5) }
  setTimeout(leave, 200)
  setTimeout(() => { document.body.dataset.shown = JSON.stringify(chart._fullLayout.xaxis.range) }, 900)
})</script></body>"""


def test_a_drag_zooms_the_time_line(folder: Path) -> None:
    """A drag over the second quarter of the time line shows this quarter, in full width."""
    page = pages()["report"].as_html().replace("</body>", DRAG)
    dom, console, _ = _open(page, folder, "zoomed", "light")
    shown = re.search(r'data-shown="\[([^,]*),([^]]*)\]"', dom)
    assert not console and shown is not None
    assert [float(end) / TIMELINE.makespan for end in shown.groups()] == pytest.approx([0.25, 0.5], abs=0.01)


def test_errors_and_requests_would_be_noticed(folder: Path) -> None:
    """A page that fails or loads something is told apart by the means of this test."""
    bad = "<body><script>undefined.x</script><img src='http://127.0.0.1:9/x.png'></body>"
    _, console, asked = _open(bad, folder, "bad", "light")
    assert "TypeError" in console and set(asked) == {"http://127.0.0.1:9/x.png"}
    page = pages()["report"].as_html().replace("<main>", "<main><img src='http://127.0.0.1:9/x.png'>")
    _, console, asked = _open(page, folder, "refused", "light")
    assert "Content Security Policy" in console and not asked

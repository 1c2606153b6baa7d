# SPDX-License-Identifier: MIT
"""The monitor's page in a real browser, under load: it shows what is, says nothing on the console, and asks nobody but its own
millrace. With MILLRACE_SHOTS=FOLDER it leaves pictures of itself there, for eyes."""
import json
import os
import re
import shutil
import socket
import urllib.parse

import pytest
from conftest import BUILD
from conftest import wait_for as wait_for_ten_seconds
from test_55_monitor import HTTP, address, ask, monitor_pid

webdriver = pytest.importorskip("selenium.webdriver", reason="needs python3-selenium")
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402

pytestmark = pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")


def wait_for(condition, what, timeout=40):
    """A browser beside other tests on two CPUs may need its time."""
    return wait_for_ten_seconds(condition, what, timeout)


@pytest.fixture
def browser(tmp_path):
    options = Options()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 "--disable-background-networking", f"--user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    try:
        yield driver
    finally:
        driver.quit()


def size(browser, width, height, scheme="light"):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


def picture(browser, name):
    folder = os.environ.get("MILLRACE_SHOTS")
    if folder:
        browser.save_screenshot(os.path.join(folder, f"{name}.png"))


def text(browser, selector):
    return browser.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def number(browser, selector):
    return float(text(browser, selector).replace(",", ""))


def answers(browser):
    return int(browser.execute_script("return document.documentElement.dataset.answers || 0"))


def column(browser, sheet, title):
    """The cells of a column that can be seen."""
    return browser.execute_script("""
        const table = document.querySelector('#' + arguments[0] + ' table');
        const i = [...table.querySelectorAll('th')].findIndex(th => th.textContent === arguments[1]);
        return [...table.tBodies[0].rows].map(tr => tr.cells[i]).filter(td => td.offsetWidth).map(td => td.textContent);
        """, sheet, title)


def requests(browser):
    """Every address that the browser asked for on behalf of the page, since the last call."""
    found = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
    return found


def assert_clean(browser, where):
    errors = [e for e in browser.get_log("browser") if e["level"] != "INFO"]
    assert not errors, errors
    urls = requests(browser)
    assert any(u.startswith(f"http://{where}/api/page") for u in urls)
    # chrome:// is the browser's own first tab
    strangers = [u for u in urls if not u.startswith(("data:", "chrome:")) and urllib.parse.urlsplit(u).netloc != where]
    assert not strangers, strangers


def test_under_load(bench, browser):
    sink = bench.sink(ports=3)
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)
    size(browser, 1280, 1000)
    load = bench.run(BUILD / "millrace-replay", "-q", "--pps", 2000, "--time", "60s", "--sources", 8, f"127.0.0.1:{bench.port}")
    browser.get(f"http://{where}/")
    wait_for(lambda: number(browser, "#tile-datagrams .now") > 500, "the rate of the load on the page")
    wait_for(lambda: sum(float(x.replace(",", "") or 0) for x in column(browser, "workers", "datagrams/s")) > 500,
             "the rates of the workers")
    assert column(browser, "workers", "state") == ["ready", "ready"]
    assert sorted(column(browser, "backends", "backend")) == sorted(sink.addresses)
    assert column(browser, "backends", "state") == ["up"] * 3
    assert text(browser, "#verdict") == "0 lost" and text(browser, "#ready") == "ready"
    wait_for(lambda: browser.execute_script(
        "return document.querySelector('#tile-lines .line').getAttribute('d').split('L').length") >= 3, "a line to be drawn")
    picture(browser, "wide")
    size(browser, 1280, 1000, "dark")
    picture(browser, "dark")
    # a telephone: nothing is wider than the screen, and the columns that matter are there
    size(browser, 390, 844)
    wait_for(lambda: browser.execute_script("return innerWidth") == 390, "the small window")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert column(browser, "workers", "lost") == ["0", "0"] and column(browser, "workers", "pid") == []
    picture(browser, "small")
    load.kill()
    seen = answers(browser)
    wait_for(lambda: answers(browser) >= seen + 2, "two more answers")
    assert_clean(browser, where)


def test_losing(bench, browser):
    """A loss is seen at once, with its place and what to do; then it is past."""
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses, listen=("udp",))
    where = address(millrace)
    size(browser, 390, 844)
    browser.get(f"http://{where}/")
    wait_for(lambda: answers(browser) >= 2, "two answers")
    assert text(browser, "#verdict") == "0 lost"
    assert browser.execute_script("return document.querySelector('#losses').hidden")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for i in range(70):
            s.sendto(b"this is no line of statsd\n" * 10, ("127.0.0.1", bench.port))
    wait_for(lambda: text(browser, "#tile-lost .peak").startswith("at most ") and
             not text(browser, "#tile-lost .peak").startswith("at most 0 "), "the loss in its tile")
    wait_for(lambda: column(browser, "losses", "what") == ["invalid_lines"], "the row of the loss")
    assert column(browser, "losses", "lost") == ["700"]
    wait_for(lambda: text(browser, "#advice") != "", "advice")
    assert re.match(r"losing .* a second|700 lost, some of it in the last ten minutes", text(browser, "#verdict"))
    wait_for(lambda: text(browser, "#verdict") == "700 lost, some of it in the last ten minutes", "the end of the loss")
    picture(browser, "losing")
    assert_clean(browser, where)


def test_monitor_restarts(bench, browser):
    """The page of a monitor that dies says so, and goes on with the next one."""
    sink = bench.sink()
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)
    browser.get(f"http://{where}/")
    wait_for(lambda: answers(browser) >= 1, "an answer")
    os.kill(monitor_pid(millrace), 9)
    millrace.wait_line("monitor .* killed")
    seen = answers(browser)
    wait_for(lambda: answers(browser) >= seen + 2, "answers of the next monitor")
    assert not browser.execute_script("return document.documentElement.classList.contains('stale')")
    assert text(browser, "#ready") == "ready"


def test_without_javascript(bench, browser):
    """The tables come from the server; the columns that only a script can fill are not there."""
    sink = bench.sink(ports=2)
    millrace = bench.millrace(*HTTP, backends=sink.addresses)
    where = address(millrace)
    bench.replay("--lines", 4000)
    sink.wait_lines(4000)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    size(browser, 1280, 1000)

    def shown():
        browser.get(f"http://{where}/")
        return [c.text for c in browser.find_elements("css selector", "#inputs tbody td.count")]
    wait_for(lambda: "4,000" in shown(), "4,000 lines in the table")
    assert [c.text for c in browser.find_elements("css selector", "#backends tbody td.state")] == ["up", "up"]
    assert not any(c.is_displayed() for c in browser.find_elements("css selector", "td.rate"))
    assert browser.find_element("css selector", "#verdict").text == "0 lost"
    assert browser.find_element("css selector", "noscript meta[http-equiv=refresh]") is not None
    picture(browser, "plain")
    page = ask(where, "/")[2]
    assert re.search(r'(?:src|href)="(?:https?:)?//', page) is None, "nothing from elsewhere"

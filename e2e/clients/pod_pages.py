"""Opens pages of pods in a real Chromium: from a job's page, with WebSockets, and as a hostile page of a pod.

usage: pod_pages.py URL PASSWORD PORT OTHER_PORT SITE [OTHER_URL]

SITE is the domain that the hosts of pages and Muster share; every name below it leads to this machine.
"""
import json
import sys
import tempfile

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WAIT = 90  # seconds; the machine may be busy


def browser(profile, site):
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "ignore-certificate-errors", f"host-resolver-rules=MAP *.{site} 127.0.0.1",
        "disable-dev-shm-usage", f"user-data-dir={profile}", "window-size=1280,1100",
    ):
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def main(url, password, port, other_port, site, *others):
    url = url.rstrip("/")
    with tempfile.TemporaryDirectory() as profile:
        driver = browser(profile, site)
        try:
            walk(driver, url, password, port, other_port, site, others)
        finally:
            driver.quit()


def until(driver, what, look):
    between = (NoSuchElementException, StaleElementReferenceException)
    try:
        return WebDriverWait(driver, WAIT, 0.2, ignored_exceptions=between).until(lambda _: look(), message=what)
    except Exception:
        print(f"{what}: not so at {driver.current_url}:\n{driver.page_source[:2000]}", file=sys.stderr)
        raise


def find(driver, selector):
    return driver.find_element(By.CSS_SELECTOR, selector)


def walk(driver, url, password, port, other_port, site, others):
    scheme = url.split("//")[0] + "//"
    # Without a sign-in the address leads to the form, and from there to the page.
    driver.get(f"{url}/proxy/default/pods/web/{port}/deep/path?x=1")
    assert "/ui/sign-in?next=" in driver.current_url, driver.current_url
    find(driver, "input[name=user]").send_keys("admin")
    find(driver, "input[name=password]").send_keys(password, Keys.ENTER)
    until(driver, "the script of the pod's page ran", lambda: find(driver, "#h").text == "the script ran")
    host = driver.current_url.split("/")[2]
    assert host.startswith("web-") and host.split(":")[0].endswith("." + site), host
    assert driver.current_url.endswith("/deep/path?x=1"), driver.current_url
    assert driver.execute_script("return document.cookie") == "", "a script sees the cookie"

    # Its own requests and WebSockets.
    told = driver.execute_async_script(
        "fetch('/headers', {method: 'GET'}).then((a) => a.json()).then(arguments[0])")
    headers = dict(told["headers"])
    assert headers["host"] == f"localhost:{port}", headers
    assert "cookie" not in headers, headers
    echo = driver.execute_async_script("""
        const done = arguments[0], socket = new WebSocket(location.origin.replace('http', 'ws') + '/ws');
        socket.onopen = () => socket.send('hello'); socket.onmessage = (m) => done(m.data);
        socket.onerror = () => done('refused');""")
    assert echo == "echo hello", echo

    # From the job's page, in one click.
    driver.get(f"{url}/ui/jobs/default/pods/web")
    until(driver, "the link", lambda: find(driver, "[aria-labelledby=pages] a"))
    link = find(driver, "[aria-labelledby=pages] a")
    assert link.text == f"Port {port} (http)", link.text
    driver.get(link.get_attribute("href"))
    until(driver, "the page", lambda: find(driver, "#h").text == "the script ran")
    assert driver.current_url.split("/")[2] == host

    # Another pod's page has another origin.
    driver.get(f"{url}/proxy/default/pods/other/{other_port}/")
    until(driver, "the other page", lambda: find(driver, "#h").text == "the script ran")
    other = scheme + driver.current_url.split("/")[2]
    assert other != scheme + host

    # What a hostile page tries below works from Muster's own page.
    driver.get(url + "/ui/")
    opened = driver.execute_async_script("""
        const done = arguments[0], url = location.origin.replace('http', 'ws') +
          '/api/v1/namespaces/default/pods/other/exec?command=id&stdout=true';
        const socket = new WebSocket(url, ['v4.channel.k8s.io']);
        socket.onopen = () => done('open'); socket.onerror = () => done('refused');""")
    assert opened == "open", opened

    # A hostile page gets nothing of either, also with Muster at another name.
    for another in others:
        driver.get(another + "/ui/sign-in")
        find(driver, "input[name=user]").send_keys("admin")
        find(driver, "input[name=password]").send_keys(password, Keys.ENTER)
        until(driver, "signed in", lambda: driver.current_url.endswith("/ui/"))
    for muster in (url, *others):
        driver.get(f"{scheme}{host}/evil?muster={muster}&other={other}&domain={site}")
        until(driver, "all attempts", lambda: find(driver, "#out").text)
        out = json.loads(find(driver, "#out").text)
        print(muster, out)
        assert out["own"].startswith("200"), out
        for name in ("whoami", "write", "other"):
            assert out[name].startswith("refused"), (name, out)
        for name in ("exec", "otherSocket"):
            assert out[name] == "refused", (name, out)
        for name in ("page", "otherFrame"):
            assert out[name].startswith("refused") or out[name] == "read: ", (name, out)
        assert "evil" not in out["cookie"], out

    # What it set reaches neither Muster nor the other page.
    for muster in (url, *others):
        driver.get(muster + "/ui/")
        assert "/ui/sign-in" not in driver.current_url, driver.current_url
    driver.get(other + "/headers")
    assert "tossed" not in driver.page_source, driver.page_source

    # A link of another origin's page opens nothing by itself.
    driver.get(f"{scheme}{host}/")
    driver.execute_script("location.href = arguments[0]", f"{url}/proxy/default/pods/other/{other_port}/")
    until(driver, "a question", lambda: "Open a page of pod other" in driver.page_source)
    driver.find_element(By.LINK_TEXT, "Open it").click()
    until(driver, "the other page", lambda: find(driver, "#h").text == "the script ran")

    # Signing out of Muster ends the pages.
    driver.get(url + "/ui/")
    driver.find_element(By.XPATH, "//button[contains(., 'Sign out')]").click()
    until(driver, "signed out", lambda: "/ui/sign-in" in driver.current_url)
    driver.get(f"{scheme}{host}/")
    until(driver, "the sign-in form", lambda: "/ui/sign-in?next=" in driver.current_url)


if __name__ == "__main__":
    main(*sys.argv[1:])
    print("pod pages done")

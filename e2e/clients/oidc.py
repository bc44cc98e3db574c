"""Signs in to the web UI by OpenID Connect in a real Chromium, whose rules on cookies of other sites apply.

usage: oidc.py URL USER PASSWORD
"""
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


def main(url, user, password):
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    with tempfile.TemporaryDirectory() as profile:
        for flag in (
            "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
            "disable-background-networking", "disable-component-update", "disable-sync",
            "ignore-certificate-errors", "host-resolver-rules=MAP *.site.example 127.0.0.1",
            "disable-dev-shm-usage", f"user-data-dir={profile}", "window-size=1280,1100",
        ):
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            walk(driver, url, user, password)
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


def walk(driver, url, user, password):
    driver.get(url + "/ui/jobs")
    find(driver, "form[action='/ui/oidc/start'] button").click()
    until(driver, "the provider's form", lambda: find(driver, "input[name=username]"))
    assert not driver.current_url.startswith(url), driver.current_url
    find(driver, "input[name=username]").send_keys(user)
    find(driver, "input[name=password]").send_keys(password, Keys.ENTER)
    until(driver, "signed in, and led back", lambda: driver.current_url == url + "/ui/jobs")
    names = {cookie["name"]: cookie for cookie in driver.get_cookies()}
    session = names["__Host-muster_session"]
    assert session["secure"] and session["httpOnly"] and session["sameSite"] == "Strict", session
    assert "__Host-muster_oidc" not in names, names
    driver.get(url + "/ui/account")
    until(driver, "the account", lambda: find(driver, "h1").text == user)
    assert not driver.find_elements(By.CSS_SELECTOR, "form[action='/ui/account/password']")


if __name__ == "__main__":
    main(*sys.argv[1:])

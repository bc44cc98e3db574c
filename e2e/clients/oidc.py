"""Signs in to the web UI by OpenID Connect in a real Chromium, whose rules on cookies of other sites apply.

usage: oidc.py URL USER PASSWORD
"""
import sys
import tempfile

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pod_pages import browser, find, until


def main(url, user, password):
    with tempfile.TemporaryDirectory() as profile:
        driver = browser(profile, "site.example")
        try:
            walk(driver, url, user, password)
        finally:
            driver.quit()


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

"""Opens Ray's dashboard through the server in a real Chromium: its scripts run, and they ask the head.

usage: ray_dashboard.py URL PASSWORD SITE ADDRESS
"""
import sys
import tempfile

from selenium.webdriver.common.keys import Keys

from pod_pages import browser, find, until


def main(url, password, site, address):
    with tempfile.TemporaryDirectory() as profile:
        driver = browser(profile, site)
        try:
            driver.get(address)
            assert driver.current_url.startswith(url), driver.current_url
            find(driver, "input[name=user]").send_keys("admin")
            find(driver, "input[name=password]").send_keys(password, Keys.ENTER)
            until(driver, "the dashboard's overview", lambda: "No jobs yet" in find(driver, "body").text)
            assert driver.title == "Overview | Ray Dashboard", driver.title
            driver.execute_script("location.hash = '#/cluster'")
            until(driver, "the head is alive", lambda: "ALIVE" in find(driver, "table").text)
        finally:
            driver.quit()


main(*sys.argv[1:])
print("Ray's dashboard done")

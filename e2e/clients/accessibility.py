"""Checks every page of the web UI with axe-core in a real Chromium, as each reader, in both themes and two widths.

usage: accessibility.py PLAN

PLAN is a JSON file: `url`; `axe`, the path of axe-core's script; `screens`, a directory; `open`, the pages that are read
signed out; `pages`, those that are read signed in; `readers`, each with `user`, `password` and `rounds`: [theme, width];
`factor`, a reader who sets up a second factor and signs in with it.
"""
import base64
import collections
import hashlib
import hmac
import json
import os
import struct
import sys
import tempfile
import time

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pod_pages import browser, find, until

# Beside axe-core's own choice, which is WCAG 2.0 to 2.1, levels A and AA, and its best practices: WCAG 2.2's size of
# targets, which it leaves out unless it is named.
OPTIONS = {"rules": {"target-size": {"enabled": True}}}

RUN = """
const done = arguments[1];
for (const part of document.querySelectorAll("details")) part.open = true;
axe.run(document, arguments[0]).then((found) => done({
  passes: found.passes.length,
  elements: found.passes.reduce((sum, rule) => sum + rule.nodes.length, 0),
  violations: found.violations.map((rule) => [rule.id, rule.help, rule.nodes.map((node) => node.html.slice(0, 160) + " :: " + node.failureSummary)]),
  unsure: found.incomplete.map((rule) => [rule.id, rule.nodes.map((node) => node.html.slice(0, 120) + " :: " + node.any.concat(node.all, node.none).map((one) => one.message).join("; "))]),
}), (error) => done({error: String(error)}));
"""


class Checker:
    def __init__(self, driver, plan):
        self.driver, self.plan, self.url = driver, plan, plan["url"].rstrip("/")
        self.violations, self.checked, self.elements = [], 0, 0
        self.unsure = collections.Counter()
        self.unsure_where = {}

    def look(self, theme, width):
        driver = self.driver
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": theme}, {"name": "prefers-reduced-motion", "value": "reduce"}]})
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                               {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600})

    def check(self, where, name):
        found = self.driver.execute_async_script(RUN, OPTIONS)
        assert "error" not in found, (where, found)
        self.checked += 1
        self.elements += found["elements"]
        for rule, words, elements in found["violations"]:
            self.violations.append(f"{where}: {rule}: {words}\n    " + "\n    ".join(elements[:3]))
            print(self.violations[-1], flush=True)
        for rule, elements in found["unsure"]:
            self.unsure[rule] += len(elements)
            self.unsure_where.setdefault(rule, f"{where}: {elements[0]}")
        wide = self.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        if wide > 0:
            self.violations.append(f"{where}: it is {wide} px wider than the window")
        self.driver.save_screenshot(os.path.join(self.plan["screens"], name + ".png"))

    def pages(self, who, theme, width, pages):
        self.look(theme, width)
        for path in pages:
            self.driver.get(self.url + path)
            until(self.driver, path + " is there", lambda: find(self.driver, "h1").text)
            name = f"{who}-{path.strip('/').replace('/', '.').replace('?', '.') or 'none'}-{theme}-{width}"
            self.check(f"{who} {path} {theme} {width}", name)

    def dialogs(self, who, theme, width):
        """The search over a page, with and without rows, and the list of keys."""
        self.driver.get(self.url + "/ui/jobs")
        until(self.driver, "the page", lambda: find(self.driver, "h1").text)
        self.send(Keys.CONTROL, "k")
        rows = lambda: len(self.driver.find_elements(By.CSS_SELECTOR, "#palette [role=option]"))
        until(self.driver, "the pages are offered", lambda: rows() > 3)
        self.check(f"{who} search {theme} {width}", f"{who}-search-{theme}-{width}")
        find(self.driver, "#palette-field").send_keys("train")
        until(self.driver, "jobs are offered", lambda: "train" in find(self.driver, "#palette [role=option]").text)
        self.check(f"{who} search for train {theme} {width}", f"{who}-search-train-{theme}-{width}")
        find(self.driver, "#palette-field").send_keys("no such thing")
        until(self.driver, "nothing matches", lambda: "Nothing" in find(self.driver, "#palette-told").text)
        self.check(f"{who} search without a row {theme} {width}", f"{who}-search-none-{theme}-{width}")
        self.send(Keys.ESCAPE)
        # Until then the key is typed into the field.
        until(self.driver, "the search is closed", lambda: not find(self.driver, "#palette").is_displayed())
        self.send("?")
        until(self.driver, "the keys", lambda: find(self.driver, "#keys").is_displayed())
        self.check(f"{who} keys {theme} {width}", f"{who}-keys-{theme}-{width}")

    def answers(self, who, theme, width):
        """Pages that only a form leads to: what was refused, and what was done."""
        driver = self.driver
        driver.get(self.url + "/ui/submit")
        find(driver, "textarea[name=yaml]").send_keys("kind: Nonsense")
        self.click("button[value=check]")
        until(driver, "it is refused", lambda: "Required value" in find(driver, "[role=alert]").text)
        self.check(f"{who} refused manifests {theme} {width}", f"{who}-refused-{theme}-{width}")
        driver.get(self.url + "/ui/jobs?q=train")
        self.click("[data-all]")
        until(driver, "all are marked", lambda: find(driver, "tbody input[name=job]").is_selected())
        self.click("button[value=resume]")
        until(driver, "a question", lambda: driver.switch_to.alert.text)
        driver.switch_to.alert.accept()
        until(driver, "each has its outcome", lambda: find(driver, ".outcomes li"))
        self.check(f"{who} outcomes {theme} {width}", f"{who}-outcomes-{theme}-{width}")
        driver.get(self.url + "/ui/jobs?state=Failed")
        self.click(".views summary")
        until(driver, "the field", lambda: find(driver, ".views details input[name=name]").is_displayed())
        find(driver, ".views details input[name=name]").send_keys("what failed", Keys.ENTER)
        until(driver, "the view", lambda: "what failed" in find(driver, ".views nav").text)
        self.check(f"{who} saved view {theme} {width}", f"{who}-view-{theme}-{width}")
        driver.get(self.url + "/ui/jobs?flash=cancelled")
        until(driver, "a message", lambda: find(driver, ".flash"))
        self.check(f"{who} message {theme} {width}", f"{who}-message-{theme}-{width}")

    def step(self, name, rounds):
        """A page that only a form leads to, and that is not opened again."""
        for theme, width in rounds:
            self.look(theme, width)
            self.check(f"{name} {theme} {width}", f"{name.replace(' ', '-')}-{theme}-{width}")

    def second_factor(self, reader):
        """Its set-up on the account's page, and the second step of signing in."""
        driver, rounds = self.driver, reader["rounds"]
        refused = lambda: find(driver, "[role=alert]").text
        sign_in(driver, self.url, reader)
        until(driver, "signed in", lambda: "/ui/sign-in" not in driver.current_url)
        driver.get(self.url + "/ui/account")
        password = "form[action='/ui/account/second-factor'] input[name=password]"
        until(driver, "the form", lambda: find(driver, password)).send_keys(reader["password"], Keys.ENTER)
        secret = until(driver, "the secret", lambda: find(driver, "#totp-secret").text)
        self.step("second factor set-up", rounds)
        code = "form[action='/ui/account/second-factor/confirm'] input[name=code]"
        find(driver, code).send_keys("none", Keys.ENTER)
        until(driver, "the code is refused", refused)
        self.step("second factor refused", rounds)
        find(driver, code).send_keys(totp(secret), Keys.ENTER)
        until(driver, "the recovery codes", lambda: find(driver, "#recovery-codes").text)
        self.step("recovery codes", rounds)
        driver.get(self.url + "/ui/account")
        remove = "button[formaction='/ui/account/second-factor/remove']"
        until(driver, "the factor", lambda: find(driver, remove).is_displayed())
        self.step("account with a second factor", rounds)
        sign_in(driver, self.url, reader)
        code = "form[action='/ui/sign-in/code'] input[name=code]"
        until(driver, "the second step", lambda: find(driver, code).is_displayed())
        self.step("second step", rounds)
        find(driver, code).send_keys("none", Keys.ENTER)
        until(driver, "the code is refused", refused)
        self.step("second step refused", rounds)

    def click(self, selector):
        # The bar at the bottom of a phone may be over what Selenium scrolls to.
        self.driver.execute_script("const e = document.querySelector(arguments[0]); setTimeout(() => e.click())", selector)

    def send(self, *keys):
        chain = ActionChains(self.driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in keys[:-1]:
            chain.key_up(key)
        chain.perform()


def main(plan):
    with tempfile.TemporaryDirectory() as profile, open(plan["axe"]) as axe:
        driver = browser(profile, "site.example")
        try:
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": axe.read()})
            checker = Checker(driver, plan)
            for theme, width in (one for reader in plan["readers"] for one in reader["rounds"]):
                checker.pages("nobody", theme, width, plan["open"])
            for reader in plan["readers"]:
                walk(checker, reader)
            checker.second_factor(plan["factor"])
        finally:
            driver.quit()
    report(checker)


def sign_in(driver, url, reader):
    driver.delete_all_cookies()
    driver.get(url + "/ui/sign-in")
    find(driver, "input[name=user]").send_keys(reader["user"])
    find(driver, "input[name=password]").send_keys(reader["password"], Keys.ENTER)


def totp(secret):
    """The code that an authenticator app shows now (RFC 6238)."""
    key = base64.b32decode(secret.replace(" ", ""))
    tag = hmac.new(key, struct.pack(">Q", int(time.time()) // 30), hashlib.sha1).digest()
    at = tag[19] & 15
    return f"{(struct.unpack('>I', tag[at:at + 4])[0] & 0x7fffffff) % 1_000_000:06}"


def walk(checker, reader):
    driver = checker.driver
    begin = time.monotonic()
    sign_in(driver, checker.url, reader)
    until(driver, "signed in", lambda: "/ui/sign-in" not in driver.current_url)
    for theme, width in reader["rounds"]:
        checker.pages(reader["user"], theme, width, checker.plan["pages"])
        checker.dialogs(reader["user"], theme, width)
        checker.answers(reader["user"], theme, width)
    print(f"{reader['user']}: {len(checker.plan['pages'])} pages in {len(reader['rounds'])} rounds, "
          f"{time.monotonic() - begin:.0f} s", flush=True)


def report(checker):
    print(f"axe-core: {checker.checked} states of pages, {checker.elements} elements passed, "
          f"{len(checker.violations)} violations, {sum(checker.unsure.values())} elements it can't judge")
    for rule, count in checker.unsure.most_common():
        print(f"  can't judge: {rule}: {count}, such as {checker.unsure_where[rule]}")
    assert not checker.violations, f"{len(checker.violations)} violations, as above"
    print("accessibility walk done")


with open(sys.argv[1]) as file:
    main(json.load(file))

"""Works in the web UI with the keyboard alone, in a real Chromium: a member submits a job, reads its log and cancels it;
an administrator drains a node. Each element that takes the focus shows it, and no element holds it.

usage: keyboard.py URL MEMBER MEMBER_PASSWORD ADMIN_PASSWORD NODE
"""
import sys
import tempfile

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pod_pages import browser, find, until

# More stops than any page has on the way.
STOPS_MAX = 120

FOCUS = """
const e = document.activeElement;
if (!e || e === document.body) return null;
const style = getComputedStyle(e), box = e.getBoundingClientRect();
const shown = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
const x = Math.min(Math.max(box.left + box.width / 2, 1), innerWidth - 1);
const y = Math.min(Math.max(box.top + box.height / 2, 1), innerHeight - 1);
const top = document.elementFromPoint(x, y);
window.seen ??= new Map();
window.seen.set(e, (window.seen.get(e) ?? 0) + 1);
return {
  what: e.outerHTML.slice(0, 120), words: (e.innerText || e.getAttribute("aria-label") || e.name || "").trim(),
  shown, inside: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
  free: !!top && (e.contains(top) || top.contains(e) || !!top.closest("label")?.contains(e)),
  gpu: e.classList.contains("gpu"), times: window.seen.get(e),
};
"""


class Reader:
    def __init__(self, driver, url):
        self.driver, self.url, self.stops = driver, url.rstrip("/"), 0

    def press(self, *keys):
        """Keys that are held down, and the last of them pressed."""
        chain = ActionChains(self.driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in reversed(keys[:-1]):
            chain.key_up(key)
        chain.perform()

    def type(self, text):
        ActionChains(self.driver).send_keys(text).perform()

    def until(self, what, look):
        until(self.driver, what, look)

    def text(self, selector):
        return self.driver.execute_script(
            "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", selector)

    def focus(self):
        return self.driver.execute_script(FOCUS)

    def stop(self, key=Keys.TAB):
        """The next stop: it shows that it has the focus, is in sight, and is no GPU of a map."""
        self.press(key) if key == Keys.TAB else self.press(Keys.SHIFT, Keys.TAB)
        focus = self.focus()
        if focus is None:
            return None
        self.stops += 1
        assert focus["shown"], f"no outline: {focus} at {self.driver.current_url}"
        assert focus["inside"] and focus["free"], f"out of sight: {focus} at {self.driver.current_url}"
        assert not focus["gpu"], f"a GPU is a stop: {focus}"
        return focus

    def go_to(self, selector):
        """Goes on with Tab until an element that matches has the focus."""
        matches = "return document.activeElement.matches(arguments[0])"
        for _ in range(STOPS_MAX):
            if self.driver.execute_script(matches, selector):
                return
            focus = self.stop()
            assert focus is None or focus["times"] <= 2, f"the focus goes round without {selector}: {focus}"
        raise AssertionError(f"{STOPS_MAX} stops without {selector} at {self.driver.current_url}")

    def skip(self):
        """The first stop of a page skips to its content."""
        self.driver.execute_script("document.activeElement.blur()")
        focus = self.stop()
        assert focus and focus["words"] == "Skip to the content", focus
        self.press(Keys.ENTER)
        self.until("at the content", lambda: self.driver.execute_script("return document.activeElement.id") == "content")

    def find_page(self, words, row, address):
        """Opens a page by the search over any page."""
        self.press(Keys.CONTROL, "k")
        self.until("the search", lambda: find(self.driver, "#palette").is_displayed())
        self.until("its field has the focus",
                   lambda: self.driver.execute_script("return document.activeElement.id") == "palette-field")
        self.type(words)
        chosen = "#palette [aria-selected=true]"
        for _ in range(20):
            self.until("a row is chosen", lambda: self.text(chosen))
            if self.text(chosen).startswith(row):
                break
            self.press(Keys.ARROW_DOWN)
        self.until(f"{row} is chosen", lambda: self.text(chosen).startswith(row))
        named = self.driver.execute_script(
            "return document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).ariaSelected")
        assert named == "true", "the field names another row"
        self.press(Keys.ENTER)
        self.until(f"at {address}", lambda: self.driver.current_url.split("?")[0].endswith(address))

    def agree(self):
        """Enter in the browser's own question."""
        self.press(Keys.ENTER)
        self.until("a question", lambda: self.driver.switch_to.alert.text)
        self.driver.switch_to.alert.accept()

    def sign_in(self, user, password):
        self.driver.get(self.url + "/ui/sign-in")
        self.until("the field has the focus",
                   lambda: self.driver.execute_script("return document.activeElement.name") == "user")
        self.type(user)
        self.stop()
        self.type(password)
        self.press(Keys.ENTER)
        self.until("signed in", lambda: self.driver.current_url.endswith("/ui/"))

    def whole_page(self, path):
        """Tab leads through a whole page and back out of it: nothing holds the focus."""
        self.driver.get(self.url + path)
        self.until(path, lambda: self.text("h1"))
        self.driver.execute_script("window.seen = new Map(); document.activeElement.blur()")
        count = 0
        for _ in range(STOPS_MAX * 2):
            focus = self.stop()
            # The browser's own parts come after the last stop, or the first stop comes again.
            if focus is None or focus["times"] > 1:
                return count
            count += 1
        raise AssertionError(f"{path} has more than {STOPS_MAX * 2} stops")


def search(reader):
    """The search opens and closes by keys, goes round by arrows, and ? shows the keys unless somebody types."""
    driver = reader.driver
    reader.press(Keys.CONTROL, "k")
    reader.until("the pages", lambda: len(driver.find_elements(By.CSS_SELECTOR, "#palette [role=option]")) > 3)
    rows = [row.text for row in driver.find_elements(By.CSS_SELECTOR, "#palette [role=option]")]
    assert any(row.startswith("Submit") for row in rows) and not any(row.startswith("Users") for row in rows), rows
    chosen = lambda: reader.text("#palette [aria-selected=true]")
    assert chosen().startswith("Overview"), chosen()
    reader.press(Keys.ARROW_UP)
    assert chosen().startswith("Design"), chosen()
    reader.press(Keys.ARROW_DOWN)
    assert chosen().startswith("Overview"), chosen()
    reader.type("?")
    assert not find(driver, "#keys").is_displayed(), "a typed ? shows the keys"
    reader.press(Keys.ESCAPE)
    reader.until("closed", lambda: not find(driver, "#palette").is_displayed())
    reader.type("?")
    reader.until("the keys", lambda: find(driver, "#keys").is_displayed())
    reader.press(Keys.ESCAPE)
    reader.until("closed", lambda: not find(driver, "#keys").is_displayed())
    # Faster than the answer: Enter leads to the page with the same search.
    reader.press(Keys.CONTROL, "k")
    reader.until("open", lambda: find(driver, "#palette").is_displayed())
    reader.type("queues" + Keys.ENTER)
    reader.until("the page of the search", lambda: driver.current_url.endswith("/ui/find?q=queues"))
    assert "Queues" in reader.text("main"), reader.text("main")


def works(reader):
    """A member submits a job, reads its log and cancels it."""
    driver = reader.driver
    reader.find_page("submit", "Submit a job", "/ui/submit")
    reader.skip()
    for selector, text in (("input[name=name]", "by-keys"), ("form[action$=form] input[name=namespace]", "vision"),
                           ("textarea[name=command]", "for i in 1 2 3; do echo line $i; done; sleep 600")):
        reader.go_to(selector)
        reader.press(Keys.CONTROL, "a")
        reader.type(text)
    for selector, text in (("input[name=cpus]", "50m"), ("input[name=memory]", "32Mi")):
        reader.go_to(selector)
        reader.press(Keys.CONTROL, "a")
        reader.type(text)
    reader.go_to("select[name=queue]")
    reader.type("vision")
    reader.go_to("form[action$=form] button")
    reader.press(Keys.ENTER)
    reader.until("the editor has the job and the focus", lambda: "kind: PyTorchJob" in driver.execute_script(
        "return document.activeElement.name === 'yaml' ? document.activeElement.value : ''"))
    reader.go_to("button[value=submit]")
    reader.press(Keys.ENTER)
    reader.until("on the job's page", lambda: "/pytorchjobs/by-keys" in driver.current_url)
    reader.until("it runs", lambda: reader.text("h1 .state") == "Running")
    reader.skip()
    reader.go_to(".tabs a[href$='tab=logs']")
    reader.press(Keys.ENTER)
    reader.until("its log", lambda: "line 3" in reader.text("#log-text"))
    reader.skip()
    reader.go_to("#log-text")
    reader.find_page("by-keys vision", "by-keys", "/pytorchjobs/by-keys")
    reader.skip()
    reader.go_to("form[action$='/cancel'] button")
    reader.agree()
    reader.until("it is told", lambda: "is cancelled" in reader.text(".flash"))
    reader.until("it is cancelled", lambda: reader.text("h1 .state") == "Cancelled")


def drains(reader, node):
    """An administrator drains a node."""
    reader.find_page(node, node, "/ui/nodes/" + node)
    reader.skip()
    reader.go_to("a[href$='/drain']")
    reader.press(Keys.ENTER)
    reader.until("the preview", lambda: reader.text("h1").startswith("Drain"))
    reader.skip()
    reader.go_to("input[name=force]")
    reader.press(Keys.SPACE)
    reader.go_to("form[action$='/drain'] button.danger")
    reader.agree()
    reader.until("it is told", lambda: "takes no new work" in reader.text(".page"))
    reader.driver.get(reader.url + "/ui/nodes/" + node)
    reader.until("its state", lambda: "takes no new work" in reader.text("h1 .state"))


def main(url, member, member_password, admin_password, node):
    with tempfile.TemporaryDirectory() as profile:
        driver = browser(profile, "site.example")
        try:
            reader = Reader(driver, url)
            reader.sign_in(member, member_password)
            search(reader)
            works(reader)
            print(f"a member worked by keys: {reader.stops} stops")
            driver.delete_all_cookies()
            reader.sign_in("admin", admin_password)
            for path in ("/ui/", "/ui/jobs", "/ui/nodes", "/ui/nodes/" + node, "/ui/teams/vision", "/ui/queues/vision"):
                print(f"{path}: {reader.whole_page(path)} stops")
            drains(reader, node)
        finally:
            driver.quit()


main(*sys.argv[1:])
print("keyboard walk done")

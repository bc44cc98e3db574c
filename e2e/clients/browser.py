"""Drives the web UI in a real Chromium: sign in, submit, watch to success, read a log,
cancel another; then looks at every page in both themes and at a phone's width.

usage: browser.py URL PASSWORD SCREENSHOT_DIRECTORY
"""
import os
import sys
import tempfile
import time

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, TimeoutException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

BEGIN = time.monotonic()


def say(what):
    print(f"{time.monotonic() - BEGIN:6.1f} s  {what}", flush=True)


WAIT = 90  # seconds; the machine may be busy


def browser(profile):
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "disable-dev-shm-usage", f"user-data-dir={profile}", "window-size=1280,1100",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


class Walk:
    def __init__(self, driver, url, shots):
        self.driver, self.url, self.shots = driver, url.rstrip("/"), shots

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def until(self, what, look):
        # Between two pages an element of the old one may be asked: that is "not yet".
        between = (NoSuchElementException, StaleElementReferenceException)
        wait = WebDriverWait(self.driver, WAIT, 0.2, ignored_exceptions=between)
        try:
            return wait.until(lambda _: look(), message=what)
        except TimeoutException:
            state = self.text("#live-state")
            print(f"{what}: not so at {self.driver.current_url} ({state}), which says:", self.text(), sep="\n",
                  file=sys.stderr)
            raise

    def text(self, selector="main"):
        # The page is replaced piece by piece while it is read.
        return self.driver.execute_script(
            "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", selector)

    def shot(self, name):
        self.driver.save_screenshot(os.path.join(self.shots, name + ".png"))

    def sign_in(self, password):
        self.driver.get(self.url + "/ui/jobs")
        assert "/ui/sign-in?next=" in self.driver.current_url, self.driver.current_url
        self.find("input[name=user]").send_keys("admin")
        self.find("input[name=password]").send_keys("wrong password", Keys.ENTER)
        self.until("a wrong password is refused", lambda: "wrong" in self.text("[role=alert]"))
        self.find("input[name=password]").send_keys(password, Keys.ENTER)
        self.until("signed in, and led back", lambda: self.driver.current_url.endswith("/ui/jobs"))

    def write_job(self, name, command, replicas, gpus=0):
        self.driver.get(self.url + "/ui/submit")
        self.find("input[name=name]").send_keys(name)
        self.find("textarea[name=command]").send_keys(command)
        count = self.find("input[name=replicas]")
        count.clear()
        count.send_keys(str(replicas))
        each = self.find("input[name=gpus]")
        each.clear()
        each.send_keys(str(gpus))
        cpus = self.find("input[name=cpus]")
        cpus.clear()
        cpus.send_keys("100m")
        memory = self.find("input[name=memory]")
        memory.clear()
        memory.send_keys("64Mi")
        self.find("form[action='/ui/submit/form'] button").click()
        self.until("the form wrote YAML",
                   lambda: "kind: PyTorchJob" in self.find("textarea[name=yaml]").get_attribute("value"))

    def submit(self, name):
        self.find("button[value=submit]").click()
        self.until("on the job's page", lambda: self.driver.current_url.endswith("/pytorchjobs/" + name))
        assert "are submitted" in self.text(".flash"), self.text("body")

    def tab(self, name):
        link = next(a for a in self.driver.find_elements(By.CSS_SELECTOR, ".tabs a") if a.text.startswith(name))
        self.driver.get(link.get_attribute("href"))

    def submit_yaml(self, yaml):
        self.driver.get(self.url + "/ui/submit")
        self.driver.execute_script("document.querySelector('textarea[name=yaml]').value = arguments[0]", yaml)
        self.find("button[value=submit]").click()
        self.until("submitted", lambda: "/ui/submit" not in self.driver.current_url)

    def state(self):
        return self.text("h1 .state")

    def errors(self):
        # The browser logs as errors: a refused sign-in (401), and a log asked for before
        # its container has started (400), which is asked for again.
        def expected(message):
            return ("401" in message or ("/api/v1/logs/" in message and "400" in message)
                or ("/ui/no-such-page" in message and "404" in message))
        return [entry for entry in self.driver.get_log("browser")
                if entry["level"] == "SEVERE" and not expected(entry["message"])]


FAILS = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: fails, namespace: default}
spec:
  runPolicy: {backoffLimit: 2}
  pytorchReplicaSpecs:
    Master: {restartPolicy: OnFailure, template: {spec: {containers: [
      {name: pytorch, command: [sleep, "600"], resources: {requests: {cpu: 100m, memory: 64Mi}}}]}}}
    Worker: {restartPolicy: OnFailure, template: {spec: {containers: [
      {name: pytorch, resources: {requests: {cpu: 100m, memory: 64Mi}},
       command: [/bin/sh, -c, "printf '10%%\\\\r20%%\\\\r\\\\033[31mValueError: <b>bad shard 17</b>\\\\033[0m\\\\n'; exit 3"]}]}}}
"""


def fails(walk):
    """A failed job whose pods are gone says which rank failed and how, with its last lines and its node."""
    walk.submit_yaml(FAILS)
    walk.until("it fails", lambda: walk.state() == "Failed")
    sentence = "Rank 1 (fails-worker-0) exited with code 3 after 2 attempts: ValueError: <b>bad shard 17</b>"
    walk.until("the verdict", lambda: sentence == walk.text(".verdict .sentence"))
    assert "ValueError: <b>bad shard 17</b>" in walk.text(".log") and "10%" not in walk.text(".log"), walk.text(".log")
    assert walk.text(".log .fg1") == "ValueError: <b>bad shard 17</b>", "no colour in " + walk.text(".log")
    walk.tab("Replicas")
    assert "fails-worker-0" in walk.text("tr.failed"), walk.text()
    walk.tab("Logs")
    assert "Rank 1" in walk.text(".pane.failed h2") and "bad shard" in walk.text("#log-text"), walk.text()
    walk.driver.get(walk.driver.current_url + "&q=no+such+text")
    walk.until("a search", lambda: "No line." in walk.text())
    walk.tab("Summary")
    walk.driver.find_element(By.LINK_TEXT, "Run again with changes").click()
    walk.until("its manifest under a new name",
               lambda: "name: fails-2" in walk.find("textarea[name=yaml]").get_attribute("value"))


RESTARTS = """
apiVersion: v1
kind: Pod
metadata: {name: restarts, namespace: default}
spec:
  containers: [{name: main, command: [/bin/sh, -c, "echo it runs; sleep 2; exit 1"],
    resources: {requests: {cpu: 100m, memory: 64Mi}}}]
"""


def restarts(walk):
    """The log of a pod that starts again and again is followed from one run to the next."""
    walk.submit_yaml(RESTARTS)
    walk.driver.get(walk.url + "/ui/jobs/default/pods/restarts?tab=logs")
    walk.until("the first run", lambda: "it runs" in walk.text("#log-text"))
    walk.until("the next run", lambda: walk.text("#log-text").count("it runs") > 1
               and "started again" in walk.text("#log-text .restart"))


# Ray's programs start slowly: these listen where workers wait for the head, and are ready at once.
RAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: rays, namespace: default, annotations: {ray.io/overwrite-container-cmd: "true"}}
spec:
  headGroupSpec: {rayStartParams: {port: "15379", node-manager-port: "15380"}, template: {spec: {containers: [
    {name: head, command: [python3, -c, "import socket, time; s = [socket.create_server(('', p)) for p in (15379, 15380)]; time.sleep(600)"],
     readinessProbe: {exec: {command: ["true"]}}, resources: {requests: {cpu: 100m, memory: 64Mi}}}]}}}
  workerGroupSpecs:
  - {groupName: small, replicas: 2, minReplicas: 1, maxReplicas: 3, rayStartParams: {}, template: {spec: {containers: [
      {name: worker, command: [sleep, "600"], readinessProbe: {exec: {command: ["true"]}}, resources: {requests: {cpu: 100m, memory: 64Mi}}}]}}}
"""

VOLCANO = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: tasks, namespace: default}
spec:
  minAvailable: 2
  tasks:
  - {name: first, replicas: 2, template: {spec: {restartPolicy: Never, containers: [
      {name: main, command: [sh, -c, "echo of volcano"], resources: {requests: {cpu: 100m, memory: 64Mi}}}]}}}
"""


def other_kinds(walk):
    """A RayCluster and a Volcano Job have pages with their parts, and are in the list."""
    walk.submit_yaml(RAY)
    walk.until("on its page", lambda: walk.driver.current_url.split("?")[0].endswith("/rayclusters/rays"))
    walk.until("it runs", lambda: walk.state() == "Running")
    for word in ("Head and groups", "rays-head-svc", "small", "1 to 3", "have been ready"):
        assert word in walk.text(), (word, walk.text())
    walk.tab("Replicas")
    walk.until("its head is first", lambda: "rays-head" in walk.text("tbody tr:first-child")
               and "rays-small-worker-1" in walk.text("tbody tr:last-child"))
    walk.submit_yaml(VOLCANO)
    walk.until("on its page", lambda: walk.driver.current_url.split("?")[0].endswith("/vcjobs/tasks"))
    walk.until("it ends", lambda: walk.state() == "Succeeded")
    assert "Tasks" in walk.text() and "first" in walk.text("table"), walk.text()
    walk.driver.get(walk.url + "/ui/jobs?kind=RayCluster")
    assert "rays" in walk.text("table") and "3 of 3" in walk.text("table"), walk.text()
    walk.driver.get(walk.url + "/ui/jobs?kind=Volcano+Job")
    assert "tasks" in walk.text("table"), walk.text()


def administration(walk):
    """A team is made and changed by forms, which show their commands; a queue is changed; a drain is previewed."""
    driver = walk.driver
    driver.get(walk.url + "/ui/teams")
    assert "There is no team yet" in walk.text(), walk.text()
    walk.find("input[name=name]").send_keys("vision")
    walk.find("input[name=gpus]").send_keys("2")
    walk.find("input[name=members]").send_keys("admin, it's")
    command = "muster team create vision --quota nvidia.com/gpu=2 --members 'admin,it'\\''s'"
    assert walk.text("form.card code") == command, walk.text("form.card code")
    walk.find("form[action='/ui/teams'] button").click()
    walk.until("the team's page", lambda: "The team is made" in walk.text(".flash"))
    assert driver.current_url.endswith("/ui/teams/vision"), driver.current_url
    for word in ("requests.nvidia.com/gpu", "admin", "it's"):
        assert word in walk.text(), (word, walk.text())
    walk.find("form[action$='/add-member'] input[name=user]").send_keys("admin")
    Select(walk.find("select[name=role]")).select_by_visible_text("lead")
    shown = walk.text("form[action$='/add-member']")
    assert "muster team add-member vision admin --role " in shown, shown
    walk.find("form[action$='/add-member'] button").click()
    walk.until("it is told", lambda: "is a member of the team" in walk.text(".flash"))
    walk.until("the role", lambda: "lead" in walk.text("[aria-labelledby=members] table"))
    walk.find("[aria-label=\"Remove it's\"]").click()
    driver.switch_to.alert.accept()
    walk.until("it is told", lambda: "no member of the team any more" in walk.text(".flash"))
    assert "it's" not in walk.text("[aria-labelledby=members] table"), walk.text()
    driver.get(walk.url + "/ui/queues/vision")
    weight = walk.find("input[name=weight]")
    weight.clear()
    weight.send_keys("3", Keys.ENTER)
    walk.until("it is told", lambda: "The queue is changed" in walk.text(".flash"))
    walk.until("its weight", lambda: "3\nweight" in walk.text(".figures"))
    driver.get(walk.url + "/ui/nodes")
    driver.find_element(By.CSS_SELECTOR, "tbody a").click()
    walk.until("the node's page", lambda: "Remove the node" in walk.text())
    driver.find_element(By.PARTIAL_LINK_TEXT, "Drain").click()
    walk.until("what a drain costs", lambda: "has-all-master-0" in walk.text("table"))
    assert "of work; " in walk.text("table") and "cannot move" in walk.text("table"), walk.text()
    walk.find("input[name=force]").click()
    assert walk.text("form.card code").endswith(" --force"), walk.text("form.card code")


def cordon(walk):
    """A node is taken out of use with a reason, which its page names, and back by the message's button."""
    driver = walk.driver
    driver.find_element(By.CSS_SELECTOR, ".heat a").click()
    walk.until("the node's page", lambda: walk.find("input[name=reason]"))
    walk.find("input[name=reason]").send_keys("a fan <b>is</b> replaced", Keys.ENTER)
    walk.until("it is told", lambda: "takes no new work" in walk.text(".flash"))
    walk.until("the reason is named", lambda: "a fan <b>is</b> replaced (admin)" in walk.text(".notice"))
    walk.find(".flash button").click()
    walk.until("it takes work again", lambda: "takes new work again" in walk.text(".flash"))
    walk.until("its state", lambda: walk.state() == "Ready")


def bulk(walk):
    """Two marked jobs, of which one has ended: each has its outcome, and the filter stays."""
    driver = walk.driver
    driver.get(walk.url + "/ui/jobs?whose=mine&sort=name")
    assert "restarts" in walk.text("table"), "a pod without a job is listed: " + walk.text()
    for name in ("waits", "from-browser"):
        walk.find(f"input[value='default/pytorchjobs/{name}']").click()
    walk.find("button[value=cancel]").click()
    driver.switch_to.alert.accept()
    walk.until("the outcome of each", lambda: "default/pytorchjobs/waits: cancelled" in walk.text(".outcomes"))
    assert "from-browser: job \"from-browser\" has ended" in walk.text(".outcomes"), walk.text(".outcomes")
    assert "whose=mine&sort=name" in driver.current_url, driver.current_url
    state = "return [...document.querySelectorAll('tbody tr')].find((r) => r.innerText.includes('waits')).innerText"
    walk.until("it is cancelled", lambda: "Cancelled" in driver.execute_script(state))
    text = driver.execute_async_script(
        "fetch('/ui/jobs?kind=PyTorchJob&format=csv').then((a) => a.text()).then(arguments[0])")
    assert "default,PyTorchJob,waits,Cancelled,default,admin" in text and ",Pod," not in text, text


def main(url, password, shots):
    with tempfile.TemporaryDirectory() as profile:
        driver = browser(profile)
        try:
            walk = Walk(driver, url, shots)
            walk.sign_in(password)
            say("signed in")

            walk.write_job("from-browser", "for i in 1 2 3; do echo step $i; sleep 1; done", 2)
            walk.find("button[value=check]").click()
            walk.until("the check says where it would go", lambda: "would start now" in walk.text())
            assert "from-browser-worker-0 on " in walk.text(), walk.text()
            walk.shot("submit")
            walk.submit("from-browser")
            say("submitted")
            driver.execute_script("window.sameDocument = true")
            walk.until("it runs", lambda: walk.state() in ("Running", "Succeeded"))
            walk.shot("job-running")
            walk.tab("Logs")
            driver.execute_script("window.sameDocument = true")
            walk.until("its log is live", lambda: "step 2" in walk.text("#log-text"))
            walk.until("it succeeds", lambda: walk.state() == "Succeeded")
            assert driver.execute_script("return window.sameDocument === true"), "the page was reloaded"
            walk.until("the whole log is there", lambda: "step 3" in walk.text("#log-text"))
            say("succeeded")
            walk.tab("Events")
            walk.until("events are shown", lambda: "Scheduled" in walk.text())
            walk.tab("Summary")
            walk.until("the time of each rank", lambda: "from-browser-worker-0" in walk.text(".lanes"))
            walk.shot("job-succeeded")
            walk.tab("Replicas")
            driver.find_element(By.PARTIAL_LINK_TEXT, "rank 1").click()
            walk.until("another rank's log", lambda: "step 3" in walk.text("#log-text") and "rank=1" in driver.current_url)

            say("logs read")
            fails(walk)
            say("saw why one failed")
            restarts(walk)
            say("followed a log over a restart")

            walk.write_job("to-cancel", "sleep 600", 1)
            walk.submit("to-cancel")
            walk.until("it runs", lambda: walk.state() == "Running")
            walk.find("form[action$='/cancel'] button").click()
            driver.switch_to.alert.accept()
            walk.until("it is told", lambda: "is cancelled" in walk.text(".flash"))
            walk.until("it keeps its record", lambda: walk.state() == "Cancelled")
            walk.tab("Summary")
            driver.find_element(By.PARTIAL_LINK_TEXT, "Delete").click()
            walk.until("a deletion is confirmed by the name", lambda: "it cannot be looked up" in walk.text())
            walk.find("input[name=confirm]").send_keys("to-cancel", Keys.ENTER)
            walk.until("back at the list", lambda: driver.current_url.endswith("/ui/jobs"))
            walk.until("it is gone from the list", lambda: "to-cancel" not in walk.text("table"))
            assert "from-browser" in walk.text("table")

            say("cancelled another")
            walk.write_job("has-all", "sleep 600", 1, gpus=4)
            walk.submit("has-all")
            walk.until("it runs", lambda: walk.state() == "Running")
            walk.write_job("waits", "sleep 600", 1, gpus=2)
            walk.submit("waits")
            walk.until("why it waits", lambda: "needs 2 GPUs at once, 0 of 4 are free" in walk.text(".why"))
            for word in ("What would fit", "Evictions", "can be scheduled", "Since"):
                assert word in walk.text(), (word, walk.text())
            walk.until("the decision is kept", lambda: "pending" in walk.text())
            driver.get(url.rstrip("/") + "/ui/queues")
            driver.find_element(By.LINK_TEXT, "default").click()
            walk.until("the queue's page", lambda: driver.current_url.endswith("/ui/queues/default"))
            for word in ("nvidia.com/gpu", "Deserves", "Borrowed", "Guaranteed", "default/waits"):
                assert word in walk.text(), (word, walk.text())
            walk.driver.get(walk.url + "/ui/")
            walk.until("the overview names what waits", lambda: "waits" in walk.text("[aria-labelledby=waiting]"))
            walk.until("a pod that fails again and again", lambda: "restarts" in walk.text(".attention"))
            assert driver.find_elements(By.CSS_SELECTOR, ".heat .gpu.own0"), "no GPU has its owner's colour"
            cordon(walk)
            say("took a node out of use and back")
            driver.get(url.rstrip("/") + "/ui/nodes")
            walk.until("the GPUs' load", lambda: "45 °C" in walk.text())
            say("saw why one waits, its queue, and what GPUs do")
            bulk(walk)
            say("cancelled two at once")
            other_kinds(walk)
            say("saw a RayCluster and a Volcano Job")
            administration(walk)
            say("made a team, changed a queue, saw what a drain costs")
            driver.get(url.rstrip("/") + "/ui/jobs")
            Select(walk.find("select[name=state]")).select_by_visible_text("Succeeded")
            walk.find(".filters button").click()
            walk.until("filtered", lambda: "state=Succeeded" in driver.current_url)
            assert "from-browser" in walk.text("table")

            walk.driver.get(url.rstrip("/") + "/ui/submit")
            walk.find("textarea[name=yaml]").send_keys("kind: Nonsense")
            walk.find("button[value=check]").click()
            walk.until("bad input is named", lambda: "apiVersion: Required value" in walk.text("[role=alert]"))

            say("filtered, and bad input refused")
            look(walk)
            say("looked at every page")
            errors = walk.errors()
            assert not errors, errors
        finally:
            driver.quit()


PAGES = {
    "overview": "/ui/", "overview-load": "/ui/?map=load", "design": "/ui/design", "node": "/ui/nodes/NODE", "jobs": "/ui/jobs", "job": "/ui/jobs/default/pytorchjobs/from-browser",
    "job-failed": "/ui/jobs/default/pytorchjobs/fails", "job-logs": "/ui/jobs/default/pytorchjobs/fails?tab=logs&rank=all",
    "job-replicas": "/ui/jobs/default/pytorchjobs/fails?tab=replicas", "pod": "/ui/jobs/default/pods/restarts",
    "job-events": "/ui/jobs/default/pytorchjobs/fails?tab=events", "missing": "/ui/no-such-page",
    "job-manifest": "/ui/jobs/default/pytorchjobs/fails?tab=manifest", "delete": "/ui/jobs/default/pytorchjobs/fails?tab=delete",
    "submit-page": "/ui/submit", "nodes": "/ui/nodes", "queues": "/ui/queues",
    "ray": "/ui/jobs/default/rayclusters/rays", "volcano": "/ui/jobs/default/vcjobs/tasks",
    "teams": "/ui/teams", "team": "/ui/teams/vision", "drain": "/ui/nodes/NODE/drain",
    "users": "/ui/users", "account": "/ui/account", "alerts": "/ui/alerts", "find": "/ui/find?q=f", "idle": "/ui/idle?team=vision",
    "queue": "/ui/queues/vision", "job-waiting": "/ui/jobs/default/pytorchjobs/waits",
}


def look(walk):
    """Every page in both themes and two widths: nothing overflows, all is reachable by keyboard."""
    driver = walk.driver
    driver.get(walk.url + "/ui/")
    node = walk.text(".heat a").strip()
    for theme in ("light", "dark"):
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                               {"features": [{"name": "prefers-color-scheme", "value": theme}]})
        for width, size in (("desktop", 1400), ("phone", 390)):
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                   {"width": size, "height": 900, "deviceScaleFactor": 1, "mobile": size < 600})
            for name, path in PAGES.items():
                driver.get(walk.url + path.replace("NODE", node))
                walk.until(name + " is there", lambda: walk.text("h1"))
                wide = driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
                assert wide <= 0, f"{name} at {width} is {wide} px too wide"
                walk.shot(f"{name}-{theme}-{width}")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.get(walk.url + "/ui/")
    seen = set()
    for _ in range(40):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        seen.add(driver.switch_to.active_element.text.strip())
    for word in ("Overview", "Jobs", "Nodes", "Queues", "Teams", "Submit", "Sign out"):
        assert word in seen, f"{word} can't be reached with the keyboard: {seen}"


main(*sys.argv[1:])
print("browser walk done")

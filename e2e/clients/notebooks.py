"""Opens JupyterLab and TensorBoard through the server in a real Chromium: a cell runs in a kernel, a curve is shown.

usage: notebooks.py URL PASSWORD JUPYTERLAB TOKEN TENSORBOARD
"""
import sys
import tempfile

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from pod_pages import browser, find, until


def main(url, password, lab, token, board):
    with tempfile.TemporaryDirectory() as profile:
        driver = browser(profile, "localhost")
        try:
            driver.get(lab)
            assert driver.current_url.startswith(url), driver.current_url
            find(driver, "input[name=user]").send_keys("admin")
            find(driver, "input[name=password]").send_keys(password, Keys.ENTER)
            # JupyterLab asks for its own token: other programs on the node reach its port, too.
            until(driver, "JupyterLab asks for its token", lambda: find(driver, "#password_input"))
            find(driver, "#password_input").send_keys(token, Keys.ENTER)
            card = ".jp-LauncherCard[data-category=Notebook]"
            until(driver, "the launcher", lambda: find(driver, card).is_displayed())
            find(driver, card).click()
            # The status bar, unlike the notebook's toolbar, says "Idle" only once the kernel is connected.
            until(driver, "the kernel is idle", lambda: "| Idle" in find(driver, "#jp-main-statusbar").text)
            cell = ".jp-Notebook .jp-Cell .cm-content"
            find(driver, cell).click()
            until(driver, "the cell is edited", lambda: find(driver, ".jp-Notebook.jp-mod-editMode"))
            ActionChains(driver).send_keys("print(6*7)").perform()
            until(driver, "the cell has the line", lambda: find(driver, cell).text == "print(6*7)")
            ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
            until(driver, "the kernel answered", lambda: find(driver, ".jp-OutputArea-output").text.strip() == "42")
            driver.get(board)
            until(driver, "the curve", lambda: "training_loss" in find(driver, "body").text)
            assert driver.title == "TensorBoard", driver.title
        finally:
            driver.quit()


main(*sys.argv[1:])
print("notebooks done")

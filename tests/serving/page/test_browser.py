"""The page in a real browser: what it shows, what it never runs, keys, and a phone's width."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from snapexport.vault import make_prompt
from tests.patience import PATIENCE
from tests.serving.openai.conftest import Served, soon
from tests.serving.openai.scripted import script
from tests.serving.process import serve

pytestmark = pytest.mark.slow
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSERS = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
EVIL = (
    "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script> & `</pre>`"
)
KEY = "sk-of-the-test"
WIDTHS = 1280, 420
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    with api.sync_playwright() as playwright:
        if not (found or Path(playwright.chromium.executable_path).exists()):
            pytest.skip("no Chromium is installed")
        # Without a sandbox, since containers run as root; the page is this repository's.
        options = {"executable_path": found, "args": ["--no-sandbox"]}
        running = playwright.chromium.launch(**options)
        yield running
        running.close()


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page in a context of its own, which must log no error, such as of its policy."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE * 1000)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(url)
    yield page
    # A refused request is a line of the browser's own.
    assert [text for text in said if "status of 40" not in text] == []
    context.close()


def ask(page: Any, question: str) -> None:
    page.fill("#question", question)
    page.press("#question", "Enter")


def shows(page: Any, selector: str, pattern: str) -> None:
    """Wait until an element's text matches."""
    api.expect(page.locator(selector)).to_have_text(re.compile(pattern), timeout=PATIENCE * 1000)


def is_connected(page: Any) -> None:
    shows(page, "#limit", r"reads up to [\d,]+ tokens")


def is_idle(page: Any) -> None:
    page.wait_for_selector("#send", state="visible")


def test_what_a_model_writes_is_text(
    browser: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, EVIL)
    with opened(browser, served.url) as page:
        is_connected(page)
        ask(page, EVIL)
        page.wait_for_selector(".answer .line")
        assert page.inner_text(".answer > .body:nth-child(2)") == EVIL
        assert page.inner_text(".asked .body") == EVIL
        assert page.locator("main img, main script").count() == 0
        assert page.title() == "model"


def test_progress_of_a_long_prompt_is_shown_and_esc_ends_it(
    browser: Any, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a" * 90)
    served.llm.seconds = 0.4
    with opened(browser, served.url) as page:
        page.set_input_files("#file", str(tmp_path / "a.txt"))
        page.wait_for_selector("#files li")
        ask(page, "b")
        shows(page, "#done", r"read [1-9]\d* of 1\d\d tokens")
        page.keyboard.press("Escape")
        is_idle(page)
        assert soon(lambda: served.llm.slots_used == 0)
        # Nothing was answered: the question and its file are there to be sent again.
        assert page.input_value("#question") == "b" and page.locator("#files li").count() == 1
        assert page.locator("article").count() == 0
        served.llm.seconds = 0
        page.press("#question", "Enter")
        page.wait_for_selector(".answer")
        is_idle(page)
        assert page.locator("#files li").count() == 0


def test_errors_of_the_server_are_shown(browser: Any, served: Served) -> None:
    with opened(browser, served.url) as page:
        is_connected(page)
        page.evaluate("model = 'other'")
        page.fill("#question", "a")
        with page.expect_response("**/v1/chat/completions") as given:
            page.click("#send")
        assert given.value.status == 404
        shows(page, "#trouble", "the model 'other' is not served here")


def test_files_that_no_prompt_can_have_are_refused(
    browser: Any, served: Served, tmp_path: Path
) -> None:
    for name, content in (("a.bin", b"\xff\x00"), ("b.txt", b" \n"), ("c.txt", b"c" * 300)):
        (tmp_path / name).write_bytes(content)
    told = {"a.bin": "is not text in UTF-8", "b.txt": "has no text", "c.txt": "has 30. tokens; "}
    with opened(browser, served.url) as page:
        is_connected(page)
        for name, says in told.items():
            page.set_input_files("#file", str(tmp_path / name))
            shows(page, "#trouble", f"{name}: {says}")
        assert page.locator("#files li").count() == 0


@pytest.fixture(scope="module")
def keyed(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the bundled checkpoint that wants a key."""
    directory = tmp_path_factory.mktemp("paged")
    shutil.copytree(build, directory, dirs_exist_ok=True)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    flags = ["--api-key", KEY, "--temperature", "0", "--max-tokens", "12"]
    with serve(directory, tmp_path_factory.mktemp("scratch"), *flags) as running:
        assert running.addresses["page"] == f"{running.url}/"
        yield running.addresses["page"]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_file_is_asked_about_with_a_key(
    browser: Any, keyed: str, width: int, tmp_path: Path
) -> None:
    """By keys alone; the answer is right, and the parts that were kept join to the file."""
    prompt = make_prompt(7, 1500)
    document, _, question = prompt.text.rstrip("\n").rpartition("\n")
    (tmp_path / "register.txt").write_text(document)
    scheme = "dark" if width < 800 else "light"
    viewport = {"width": width, "height": 800}
    with opened(browser, keyed, viewport=viewport, color_scheme=scheme) as page:
        page.wait_for_selector("#access", state="visible")
        for key, status in (("wrong", 401), (KEY, 200)):
            page.fill("#key", key)
            with page.expect_response("**/v1/models") as given:
                page.press("#key", "Enter")
            assert given.value.status == status
        page.wait_for_selector("#access", state="hidden")
        page.reload()  # the tab knows the key
        is_connected(page)
        assert page.evaluate("localStorage.length") == 0
        page.set_input_files("#file", str(tmp_path / "register.txt"))
        page.wait_for_selector("#files li")
        page.focus("#kept")
        page.keyboard.press("Space")
        ask(page, question)
        page.wait_for_selector("details")
        is_idle(page)
        assert page.inner_text(".answer > .body:nth-child(2)").strip() == prompt.answer.strip()
        assert page.text_content(".prompt") == f"<s>{document}\n\n{question}"
        assert page.locator(".prompt span").count() > 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        colour = "getComputedStyle(document.documentElement).backgroundColor"
        assert (page.evaluate(colour) == "rgb(255, 255, 255)") == (scheme == "light")

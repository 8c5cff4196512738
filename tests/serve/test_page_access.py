"""The page for everyone: screen readers, keyboards, phones, light and dark; it is there at once, and nothing moves."""

from browser import visit
from page_answers import SPEECH, choose, shown, sound, stored

from rankcode.serve.static_page import FOLDER


def faults(page):
    """What axe finds, and whether the page is wider than the window: light on a desktop, dark on a phone."""
    from axe_playwright_python.sync_playwright import Axe

    found = []
    for width, scheme in ((1440, "light"), (360, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for each in Axe().run(page).response["violations"]:
            found.append(f"{width} {scheme} {each['id']}: {each['nodes'][0]['html']}")
        if (more := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
            found.append(f"{more} pixels wider than {width}")
    return found


def test_every_tab_is_accessible(browser, url, tmp_path):
    with visit(browser, url, reduced_motion="reduce") as page:
        assert faults(page) == []
        choose(page, stored(tmp_path / "sound.wav", sound()))
        shown(page)
        assert faults(page) == []
        page.get_by_role("tab", name="Tasks").click()
        page.wait_for_selector("[data-part=conventional]:not([data-steps=''])")
        page.get_by_text("The numbers").click()
        assert faults(page) == []
        page.locator("input[value=digits]").evaluate("choice => choice.click()")
        page.wait_for_selector("[data-part=conventional][data-label='3']")
        assert faults(page) == []
        page.get_by_role("tab", name="Your network").click()
        assert faults(page) == []
        page.set_input_files("[data-part=model-file]", FOLDER / "models" / "spotting-rank-coded.onnx")
        page.get_by_text("is open.").wait_for()
        assert faults(page) == []


def test_the_keyboard_suffices(browser, url):
    with visit(browser, url, reduced_motion="reduce") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Tab")
        for key, tab in (("ArrowRight", "tasks"), ("ArrowRight", "own"), ("ArrowRight", "speech"), ("End", "own")):
            page.keyboard.press(key)
            assert page.evaluate("document.activeElement.id") == f"tab-{tab}"
            assert page.locator(f"#panel-{tab}").is_visible() and page.url.endswith(f"#{tab}")
        assert page.locator("[role=tabpanel]:visible").count() == 1
        page.keyboard.press("Home")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.dataset.part") == "speak"


def test_the_first_view_waits_for_nothing_and_nothing_moves(browser, url, tmp_path):
    with visit(browser, url) as page:
        page.evaluate(
            """() => {
                window.shifts = [];
                const observer = new PerformanceObserver((list) => window.shifts.push(...list.getEntries()));
                observer.observe({ type: "layout-shift", buffered: true });
            }"""
        )
        choose(page, stored(tmp_path / "sound.wav", sound()))
        shown(page)
        painted, loaded = page.evaluate(
            """() => [
                performance.getEntriesByName("first-contentful-paint")[0].startTime,
                performance.getEntriesByType("resource").find((each) => each.name.endsWith(".wasm")).startTime,
            ]"""
        )
        assert painted < loaded  # the runtime is fetched after the first view
        assert page.evaluate("shifts.reduce((sum, each) => sum + each.value, 0)") < 0.01
        assert page.inner_text(f"{SPEECH} [data-part=status]").startswith(("“", "Never sure enough"))

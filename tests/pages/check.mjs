// Open pages in Chromium, wide and narrow, light and dark, use their controls, and print as JSON what is wrong with them.
// node check.mjs MODULES CHROMIUM PAGE...
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, executablePath, ...pages] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf-8");
const WIDTHS = [1440, 390];
const SCHEMES = ["light", "dark"];
const MOST_STOPS = 200;
const CONTROLS = "summary, button, [role=button], [role=combobox], [role=tab]";
const MOST_CONTROLS = 30;

// Ends once nothing has changed for a while: what a page draws by script is drawn.
function settled() {
  return new Promise((resolve) => {
    const observer = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(finish, 300); });
    const finish = () => { observer.disconnect(); resolve(); };
    let timer = setTimeout(finish, 300);
    observer.observe(document, { subtree: true, childList: true, attributes: true });
    setTimeout(finish, 10_000);
  });
}

// Mark the next control of a sort that has not been used yet; false when there is none.
function next(controls) {
  const used = (document.usedControls ??= new Set());
  for (const e of document.querySelectorAll(controls)) {
    const sort = `${e.tagName} ${e.getAttribute("aria-label")} ${e.getAttribute("role")}`;
    if (used.has(sort) || e.disabled || !e.getClientRects().length) continue;
    e.dataset.control = used.size;
    used.add(sort);
    return true;
  }
  return false;
}

// Elements that stand out of the window to the right, without those inside a container that scrolls.
function overflow() {
  const root = document.scrollingElement;
  if (root.scrollWidth <= root.clientWidth) return [];
  const scrolls = (e) => e && e !== root && e !== document.body &&
    (["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const wide = [...document.querySelectorAll("body *")].filter(
    (e) => e.getBoundingClientRect().right > root.clientWidth + 0.5 && !scrolls(e.parentElement));
  const named = wide.slice(0, 5).map((e) => `${e.tagName.toLowerCase()}.${e.getAttribute("class") ?? ""}`);
  return [`${root.scrollWidth} px wide in a window of ${root.clientWidth}: ${named.join(", ")}`];
}

// What has the keyboard's focus; whether that can be seen; null once the focus has left the page.
function focused() {
  const e = document.activeElement;
  if (!e || e === document.body || e === document.documentElement) return null;
  const style = getComputedStyle(e);
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const first = !e.dataset.focused;
  e.dataset.focused = "1";
  return { name: e.outerHTML.slice(0, 90), seen: outlined || style.boxShadow !== "none", first };
}

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const found = [];
for (const page of pages)
  for (const width of WIDTHS)
    for (const colorScheme of SCHEMES) {
      const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
      const tab = await context.newPage();
      const say = (kind, text) => found.push({ page, width, scheme: colorScheme, kind, text });
      tab.on("pageerror", (error) => say("script", String(error)));
      await tab.goto(pathToFileURL(page).href, { waitUntil: "load" });
      await tab.addStyleTag({ content: "* { transition: none !important }" }); // an outline that grows is seen at once
      await tab.evaluate(settled);
      await tab.evaluate(axe);
      const look = async () => {
        for (const text of await tab.evaluate(overflow)) say("overflow", text);
        const { violations } = await tab.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
        for (const one of violations)
          say("axe", `${one.id} (${one.impact}): ${one.help}; ` +
            one.nodes.slice(0, 3).map((node) => `${node.target.join(" ")} ${node.failureSummary ?? ""}`).join(" | "));
      };
      let stops = 0;
      for (; stops < MOST_STOPS; stops++) {
        await tab.keyboard.press("Tab");
        const stop = await tab.evaluate(focused);
        if (stop === null || !stop.first) break;
        if (!stop.seen) say("focus", stop.name);
      }
      await look();
      let controls = 0;
      for (; controls < MOST_CONTROLS && (await tab.evaluate(next, CONTROLS)); controls++) {
        const one = tab.locator(`[data-control="${controls}"]`);
        await one.click({ timeout: 5_000 }).catch((error) => say("script", `a control cannot be used: ${error}`));
        await tab.evaluate(settled);
        await look();
        await tab.keyboard.press("Escape");
        await tab.evaluate(settled);
      }
      found.push({ page, width, scheme: colorScheme, kind: "visited", text: `${stops} ${controls}` });
      await context.close();
    }
await browser.close();
process.stdout.write(JSON.stringify(found));

// Open pages in Chromium, wide and narrow, light and dark, and print as JSON what is wrong with them.
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
      await tab.waitForTimeout(300);
      for (const text of await tab.evaluate(overflow)) say("overflow", text);
      let stops = 0;
      for (; stops < MOST_STOPS; stops++) {
        await tab.keyboard.press("Tab");
        const stop = await tab.evaluate(focused);
        if (stop === null || !stop.first) break;
        if (!stop.seen) say("focus", stop.name);
      }
      await tab.evaluate(axe);
      const { violations } = await tab.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
      for (const one of violations)
        say("axe", `${one.id} (${one.impact}): ${one.help}; ` +
          one.nodes.slice(0, 3).map((node) => `${node.target.join(" ")} ${node.failureSummary ?? ""}`).join(" | "));
      found.push({ page, width, scheme: colorScheme, kind: "visited", text: String(stops) });
      await context.close();
    }
await browser.close();
process.stdout.write(JSON.stringify(found));

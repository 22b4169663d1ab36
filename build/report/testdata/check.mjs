// Drives a real Chromium over the pages of builds: node check.mjs FILES SERVER CHROMIUM OUT MODULES
// FILES has plan.html and building.html; SERVER has a build at work, and /fail and /rest move it on.
// Prints one JSON object with what was found; screenshots go to OUT.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { join } from "node:path";

const [files, server, executablePath, out, modules] = process.argv.slice(2);
const require = createRequire(join(modules, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const problems = [];
const check = (ok, text) => { if (!ok) problems.push(text); };
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"] });

async function open(name, url, options) {
  const page = await (await browser.newContext(options)).newPage();
  page.on("console", (m) => { if (["error", "warning"].includes(m.type()) && !/404/.test(m.text())) problems.push(`${name}: console: ${m.text()}`); });
  page.on("pageerror", (e) => problems.push(`${name}: script: ${e.message}`));
  page.on("dialog", (d) => { problems.push(`${name}: a dialog opened: ${d.message()}`); d.dismiss(); });
  page.on("request", (r) => { if (!r.url().startsWith(server) && !(r.url() === url)) problems.push(`${name}: asks for ${r.url()}`); });
  await page.goto(url);
  return page;
}

try {
  const pages = { plan: "file://" + join(files, "plan.html"), building: "file://" + join(files, "building.html"), served: server + "/builds/" };
  for (const colorScheme of ["light", "dark"]) {
    for (const [size, viewport] of Object.entries({ wide: { width: 1280, height: 900 }, narrow: { width: 390, height: 800 } })) {
      for (const [name, url] of Object.entries(pages)) {
        const label = `builds-${name}-${colorScheme}-${size}`;
        const page = await open(label, url, { colorScheme, viewport, bypassCSP: true });
        if ((colorScheme === "light") === (size === "wide")) { // both colors and both sizes, once
          await page.evaluate(axe);
          const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
          for (const v of violations) problems.push(`${label}: axe ${v.id} (${v.impact}): ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.target.join(" ") + " " + (n.any[0]?.message ?? "")).join("; ")}`);
        }
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        check(overflow <= 0, `${label}: the page is ${overflow} pixels wider than the window`);
        await page.screenshot({ path: join(out, label + ".png") });
        await page.context().close();
      }
    }
  }

  // The picture has every row, each with its text, and leads to its line; the policy is on.
  let page = await open("building", pages.building, { viewport: { width: 1280, height: 900 } });
  check(await page.locator(".matrix a.cell").count() === 98, `the matrix has ${await page.locator(".matrix a.cell").count()} marks, not 88 rows and 10 that were left out`);
  const failed = page.locator(".matrix a.failed");
  check((await failed.getAttribute("title")).includes("killed for memory"), "the reason is not shown on hover");
  check((await failed.textContent()).includes("killed for memory"), "the reason is not in the text");
  for (let i = 0; i < 200 && !(await failed.evaluate((e) => e === document.activeElement)); i++) await page.keyboard.press("Tab");
  check(await failed.evaluate((e) => e === document.activeElement && getComputedStyle(e).outlineStyle !== "none"), "Tab does not reach the failed row visibly");
  await page.keyboard.press("Enter");
  check((await page.locator("tr:target").textContent()).includes("failed"), "Enter does not lead to the line of the row");
  const headers = await page.locator(".matrix th:not([scope]), .rows th:not([scope])").count();
  check(headers === 0, `${headers} headers of tables have no scope`);
  await page.context().close();

  // Without script the last state is there.
  page = await open("quiet", pages.served, { javaScriptEnabled: false });
  check(await page.locator(".matrix a.running").count() === 2, "without script the page has no state");
  await page.context().close();

  // With it the page follows the build; the focus stays where it is.
  page = await open("live", pages.served, { viewport: { width: 1280, height: 900 } });
  check(await page.locator(".matrix a.running").count() === 2, "two rows should run");
  const spent = await page.locator("[data-since]").first().textContent();
  await page.locator(".matrix a.running").first().focus();
  await page.evaluate(() => { window.same = true; });
  await (await fetch(server + "/fail")).text();
  await page.locator(".matrix a.failed").waitFor({ timeout: 15000 });
  check(await page.evaluate(() => document.activeElement.classList.contains("failed")), "the focus was lost");
  check(await page.locator("[data-since]").first().textContent() !== spent, "the time does not go on");
  check((await page.locator("#summary").textContent()).startsWith("At work: 2 of 3 rows ended, 1 failed"), "the summary: " + (await page.locator("#summary").textContent()));
  await (await fetch(server + "/rest")).text();
  await page.locator("#summary", { hasText: "Finished" }).waitFor({ timeout: 15000 });
  check(await page.locator(".matrix a.done").count() === 2, "two rows should be done");
  check(await page.evaluate(() => window.same), "the page was loaded again");
  await page.screenshot({ path: join(out, "builds-live.png"), fullPage: true });
} catch (error) {
  problems.push(String(error.stack || error));
} finally {
  await browser.close();
}
console.log(JSON.stringify({ problems }));

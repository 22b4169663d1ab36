// Drives a real Chromium over the pages: node check.mjs BASE STATIC CHROMIUM OUT
// BASE is a served index, STATIC the same pages from a file server below a folder. Prints one
// JSON object with what was found; screenshots go to OUT.
import { createRequire } from "node:module";
import { readFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [base, fixed, executablePath, out, modules] = process.argv.slice(2);
const require = createRequire(join(modules, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const file = "project/flash-attn/flash_attn-2.8.3%2Bcu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl/";
const pages = { home: "", pick: "pick/", project: "project/flash-attn/", file, archived: "project/old-kernels/", search: "?q=cuda+13", missing: "project/none/" };
const problems = [];
const check = (ok, text) => { if (!ok) problems.push(text); };

const profile = mkdtempSync(join(tmpdir(), "kiln-chromium-"));
const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const launch = (options) => chromium.launchPersistentContext(join(profile, String(Math.random())), { executablePath, headless: true, args, ...options });

async function newPage(context, name) {
  const page = await context.newPage();
  page.on("console", (m) => { if (["error", "warning"].includes(m.type()) && !/404/.test(m.text())) problems.push(`${name}: console: ${m.text()}`); });
  page.on("pageerror", (e) => problems.push(`${name}: script: ${e.message}`));
  page.on("request", (r) => { if (!r.url().startsWith(new URL(base).origin) && !r.url().startsWith(new URL(fixed).origin)) problems.push(`${name}: asks another host: ${r.url()}`); });
  page.on("dialog", (d) => { problems.push(`${name}: a dialog opened: ${d.message()}`); d.dismiss(); });
  return page;
}

try {
  // axe and pictures of every page, light and dark, wide and narrow.
  for (const colorScheme of ["light", "dark"]) {
    for (const [size, viewport] of Object.entries({ wide: { width: 1280, height: 900 }, narrow: { width: 390, height: 800 } })) {
      const context = await launch({ colorScheme, viewport, bypassCSP: true });
      for (const [name, path] of Object.entries(pages)) {
        const label = `${name}-${colorScheme}-${size}`;
        const page = await newPage(context, label);
        await page.goto(base + path, { waitUntil: "load" });
        if ((colorScheme === "light") === (size === "wide")) { // both colors and both sizes, once
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
        for (const v of violations) problems.push(`${label}: axe ${v.id} (${v.impact}): ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.target.join(" ") + " " + (n.any[0]?.message ?? "")).join("; ")}`);
        }
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        check(overflow <= 0, `${label}: the page is ${overflow} pixels wider than the window`);
        await page.screenshot({ path: join(out, label + ".png"), fullPage: size === "wide" && name !== "project" });
        await page.close();
      }
      await context.close();
    }
  }

  // The policy of the served pages stays on from here.
  const context = await launch({ viewport: { width: 1280, height: 900 } });
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: new URL(base).origin });
  let page = await newPage(context, "use");
  const text = (selector) => page.locator(selector).textContent();

  // Search filters as one types.
  await page.goto(base);
  await page.locator("#q").fill("mamba");
  check(await page.locator("#packages > li:visible").count() === 1, "search: mamba does not leave one package");
  check((await text("[data-count]")).includes("1 package"), "search: the count is not said");
  await page.locator("#q").fill("no such thing");
  check((await text("[data-count]")).includes("Nothing found"), "search: that nothing was found is not said");

  // The picker with the keyboard alone: to the first group of radio buttons and through it.
  await page.goto(base + "project/flash-attn/");
  for (let i = 0; i < 30 && (await page.evaluate(() => document.activeElement?.name)) !== "os"; i++) await page.keyboard.press("Tab");
  check((await page.evaluate(() => document.activeElement?.value)) === "Linux x86_64", "picker: Tab does not reach the system");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  check((await page.evaluate(() => document.activeElement?.value)) === "Windows x64", "picker: arrows do not move to Windows: " + (await page.evaluate(() => document.activeElement?.value)));
  check((await text("[data-file]")).includes("win_amd64"), "picker: the file is not the one for Windows");
  const focused = await page.evaluate(() => getComputedStyle(document.activeElement.nextElementSibling).outlineStyle);
  check(focused !== "none", "picker: the focus is not visible");

  // Every combination: what the script says is what the server says without script.
  let compared = 0;
  for (const version of ["2.8.3", "2.9.0rc1", "2.8.2"]) {
    await page.goto(base + "project/flash-attn/");
    await page.locator("#g-version").selectOption(version);
    for (const os of await page.locator("input[name=os]:enabled").evaluateAll((all) => all.map((i) => i.value))) {
      await page.locator(`input[name=os][value="${os}"]`).check();
      for (const toolkit of await page.locator("input[name=toolkit]:enabled").evaluateAll((all) => all.map((i) => i.value))) {
        await page.locator(`input[name=toolkit][value="${toolkit}"]`).check();
        const state = await page.evaluate(() => Object.fromEntries(new FormData(document.querySelector("[data-picker]"))));
        const shown = await page.evaluate(() => ({
          lines: [...document.querySelectorAll("#install [data-line]")].map((e) => e.textContent),
          file: document.querySelector("[data-file]").textContent,
          link: document.querySelector("[data-file]").href,
          torch: document.querySelector("[data-torch] code").textContent,
          options: [...document.querySelectorAll("[data-picker] input")].map((i) => [i.name, i.value, i.checked, i.disabled, i.nextElementSibling.textContent]),
        }));
        const html = await (await context.request.get(base + "project/flash-attn/?" + new URLSearchParams(state))).text();
        const served = await page.evaluate(([html, here]) => {
          const doc = new DOMParser().parseFromString(html, "text/html");
          return {
            lines: [...doc.querySelectorAll("#install [data-line]")].map((e) => e.textContent),
            file: doc.querySelector("[data-file]").textContent,
            link: here + doc.querySelector("[data-file]").getAttribute("href"),
            torch: doc.querySelector("[data-torch] code").textContent,
            options: [...doc.querySelectorAll("[data-picker] input")].map((i) => [i.name, i.value, i.checked, i.disabled, i.nextElementSibling.textContent]),
          };
        }, [html, base + "project/flash-attn/"]);
        const a = JSON.stringify(shown), b = JSON.stringify(served);
        check(a === b, `picker ${JSON.stringify(state)}:\n  script ${a}\n  server ${b}`);
        compared++;
      }
    }
  }
  check(compared >= 20, `picker: only ${compared} combinations`);
  const plain = await launch({ javaScriptEnabled: false });
  const quiet = await plain.newPage();
  await quiet.goto(base + "project/flash-attn/");
  check(await quiet.locator("button:visible").first().textContent() === "Show the command", "without script the picker has no button");
  await quiet.screenshot({ path: join(out, "project-without-script.png") });
  await plain.close();

  // Tabs and copying.
  await page.goto(base + "project/flash-attn/");
  await page.getByRole("tab", { name: "pip" }).focus();
  await page.keyboard.press("ArrowRight");
  check(await page.getByRole("tabpanel", { name: "uv" }).isVisible(), "tabs: the arrow does not show uv");
  await page.keyboard.press("End");
  check(await page.getByRole("tabpanel", { name: "requirements.txt" }).isVisible(), "tabs: End does not show the last");
  await page.screenshot({ path: join(out, "project-requirements.png") });
  await page.getByRole("tab", { name: "pip" }).click();
  await page.locator("pre:visible .copy").first().click();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  check(copied.startsWith("pip install flash-attn=="), `copy: ${copied}`);

  // From the matrix to the file and back.
  await page.locator(".matrix a.yes").first().click();
  check((await page.locator("h1").textContent()).endsWith(".whl"), "matrix: a cell does not lead to its file");
  await page.getByRole("link", { name: "flash-attn", exact: true }).click();
  check(page.url().endsWith("project/flash-attn/"), "file: the way back is wrong");

  // The page that picks a package.
  await page.goto(base + "pick/");
  await page.locator("#package").selectOption("xformers");
  await page.getByRole("button", { name: "Continue" }).click();
  await page.waitForURL("**/project/xformers/#install");

  // The same pages from a plain file server, below a folder, knowing no address.
  page = await newPage(context, "static");
  for (const path of ["", "pick/", "project/flash-attn/", file]) {
    const answer = await page.goto(fixed + path);
    check(answer.status() === 200, `static ${path}: ${answer.status()}`);
    const body = await page.locator("main").innerText();
    check(!body.includes("https://HOST/"), `static ${path}: the address is not filled in`);
  }
  await page.goto(fixed + "project/flash-attn/");
  await page.locator('input[name=toolkit][value="cu128"]').check();
  check((await text("[data-line=pip]")).endsWith(`${fixed}cu128/torch2.10/simple/`), "static: wrong URL in the command: " + (await text("[data-line=pip]")));
  await page.goto(fixed + "?q=mamba");
  check(await page.locator("#packages > li:visible").count() === 1, "static: a search in the address is not applied");
  await context.close();
} catch (error) {
  problems.push(String(error.stack || error));
} finally {
  rmSync(profile, { recursive: true, force: true });
}
console.log(JSON.stringify({ problems }));

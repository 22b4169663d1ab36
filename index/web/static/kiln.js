// What makes the pages quicker to use: filtering the list, choosing a build without a
// round trip, tabs and copy buttons. Everything on the pages works without it.
"use strict";
(() => {
  const body = document.body;

  // A page that does not know its own address takes it from the browser.
  let base = body.dataset.base;
  if ("guess" in body.dataset) {
    const here = new URL(body.dataset.root || "./", location.href).href;
    const walk = document.createTreeWalker(document.getElementById("main"), NodeFilter.SHOW_TEXT);
    for (let node; (node = walk.nextNode());) {
      if (node.data.includes(base) && !node.parentElement.closest("script")) node.data = node.data.replaceAll(base, here);
    }
    base = here;
  }

  // Filter of the list of packages.
  const filter = document.querySelector("[data-filter]");
  if (filter) {
    const cards = [...document.querySelectorAll("#" + filter.dataset.filter + " > [data-text]")];
    const count = document.querySelector("[data-count]");
    const served = count.innerHTML;
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const card of cards) {
        const text = card.dataset.text.toLowerCase();
        card.hidden = !words.every((w) => text.includes(w));
        if (!card.hidden) shown++;
      }
      if (words.length === 0) count.innerHTML = served;
      else count.textContent = shown === 0 ? "Nothing found." : shown === 1 ? "1 package" : shown + " packages";
    });
    const asked = new URLSearchParams(location.search).get("q");
    if (asked && !filter.value) { // a static page did not filter
      filter.value = asked;
      filter.dispatchEvent(new Event("input"));
    }
  }

  // The page that chooses a package leads to its page.
  const goto = document.querySelector("[data-goto]");
  if (goto) {
    goto.addEventListener("submit", (event) => {
      event.preventDefault();
      location.href = goto.dataset.goto + goto.elements.package.value + "/#install";
    });
  }

  // Copy buttons.
  for (const block of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) break;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }

  // Sections become tabs: arrow keys move, only the chosen one is in the tab order.
  document.querySelectorAll("[data-tabs]").forEach((box, n) => {
    const panels = [...box.querySelectorAll(":scope > [data-tab]")];
    const list = document.createElement("div");
    list.className = "tabs";
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", "Installer");
    const tabs = panels.map((panel, i) => {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.id = `tab-${n}-${i}`;
      tab.textContent = panel.dataset.tab;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", panel.id = `panel-${n}-${i}`);
      panel.setAttribute("role", "tabpanel");
      panel.removeAttribute("aria-label");
      panel.setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => show(i));
      list.append(tab);
      return tab;
    });
    const show = (chosen) => {
      tabs.forEach((tab, i) => {
        tab.setAttribute("aria-selected", String(i === chosen));
        tab.tabIndex = i === chosen ? 0 : -1;
        panels[i].hidden = i !== chosen;
      });
    };
    list.addEventListener("keydown", (event) => {
      const at = tabs.indexOf(document.activeElement);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = (to + tabs.length) % tabs.length;
      tabs[next].focus();
      show(next);
    });
    box.prepend(list);
    box.classList.add("tabbed");
    show(0);
  });

  // The picker. Builds are rows of indexes into tables of values; a choice limits the groups
  // after it, and a group whose choice became impossible falls back to its first possible value.
  const form = document.querySelector("[data-picker]");
  if (form) {
    const data = JSON.parse(document.querySelector("[data-builds]").textContent);
    const groups = ["version", "os", "python", "toolkit", "torch"];
    const names = new Map();
    for (const input of form.querySelectorAll("input[type=radio]")) names.set(input.name + " " + input.value, input.nextElementSibling.textContent);
    const value = (row, g) => data.tables[g][row[g]];
    const numbers = (s) => (s.match(/\d+/g) || []).map(Number);
    const byNumbers = (a, b) => {
      const x = numbers(a), y = numbers(b);
      for (let i = 0; i < Math.max(x.length, y.length); i++) {
        if ((x[i] ?? -1) !== (y[i] ?? -1)) return (y[i] ?? -1) - (x[i] ?? -1);
      }
      return a < b ? 1 : a > b ? -1 : 0;
    };
    const label = (g, v) => {
      const m = g === 3 && /^cu(\d\d)(\d+)$/.exec(v);
      return names.get(groups[g] + " " + v) || (m ? `CUDA ${m[1]}.${m[2]}` : v.replace(/^rocm/, "ROCm ").replace(/^cpu$/, "CPU"));
    };
    const rank = (g, v) => {
      if (g === 1) return ["Linux x86_64", "Linux", "Windows", "macOS", "Any"].findIndex((p) => v.startsWith(p));
      if (g === 3) return v.startsWith("cu") ? 0 : v.startsWith("rocm") ? 1 : v === "any" ? 3 : 2;
      return 0;
    };
    const order = (g, values) => values.sort((a, b) => rank(g, a) - rank(g, b) || (g === 1 ? (a < b ? -1 : 1) : byNumbers(a, b)));

    const update = (changed) => {
      const focused = document.activeElement?.name;
      const version = form.elements.version.value;
      let left = data.rows.filter((row) => value(row, 0) === version);
      const ofVersion = left;
      for (let g = 1; g < groups.length; g++) {
        const name = groups[g];
        const box = form.querySelector(`[data-group=${name}]`);
        const possible = new Set(left.map((row) => value(row, g)));
        const all = order(g, [...new Set(ofVersion.map((row) => value(row, g)))]);
        let chosen = form.querySelector(`input[name=${name}]:checked`)?.value;
        if (!possible.has(chosen)) chosen = all.find((v) => possible.has(v));
        const labels = all.map((v) => {
          const label_ = document.createElement("label");
          const input = document.createElement("input");
          const span = document.createElement("span");
          input.type = "radio";
          input.name = name;
          input.value = v;
          input.checked = v === chosen;
          input.disabled = !possible.has(v);
          if (input.disabled) label_.className = "impossible";
          span.textContent = label(g, v);
          label_.append(input, span);
          return label_;
        });
        box.replaceChildren(...labels);
        if (changed && focused === name) box.querySelector("input:checked").focus();
        left = left.filter((row) => value(row, g) === chosen);
      }
      showBuild(left[0], ofVersion);
    };

    const showBuild = (row, ofVersion) => {
      const [file, , view] = row.slice(5);
      const toolkit = value(row, 3), torch = value(row, 4), project = data.project;
      const version = file.split("-")[1];
      const simple = base + view + "/simple/";
      const pin = `${project}==${version}`;
      const hashes = [...new Set(ofVersion.filter((r) => r[5].split("-")[1] === version && r[3] === row[3]).map((r) => r[6]))].sort();
      let source = "kiln";
      if (toolkit !== "any") source += "-" + toolkit;
      if (torch !== "any") source += "-torch" + torch;
      source = source.replaceAll(".", "");
      const lines = {
        pip: `pip install ${pin} --only-binary ${project} --extra-index-url ${simple}`,
        uv: `uv pip install ${pin} --index ${simple}`,
        uv_project: `[project]\ndependencies = ["${pin}"]\n\n[[tool.uv.index]]\nname = "${source}"\nurl = "${simple}"\nexplicit = true\n\n` +
          `[tool.uv.sources]\n${project} = { index = "${source}" }\n`,
        poetry: `poetry source add --priority=explicit ${source} ${simple}\npoetry add --source ${source} ${pin}`,
        requirements: `--extra-index-url ${simple}\n--only-binary ${project}\n${pin}` + hashes.map((h) => ` \\\n    --hash=sha256:${h}`).join("") + "\n",
      };
      const panel = document.getElementById("install");
      for (const [name, text] of Object.entries(lines)) panel.querySelector(`[data-line=${name}]`).textContent = text;
      const link = panel.querySelector("[data-file]");
      link.textContent = file;
      link.href = encodeURIComponent(file) + "/";
      const need = panel.querySelector("[data-torch]");
      need.hidden = toolkit === "any" || torch === "any";
      need.querySelector("code").textContent = `pip install torch==${torch}.* --index-url https://download.pytorch.org/whl/${toolkit}`;
    };

    form.addEventListener("change", () => update(true));
    form.addEventListener("submit", (event) => event.preventDefault());
  }
})();

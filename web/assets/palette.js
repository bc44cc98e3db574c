// Ctrl K, or Command K, opens the search over any page; ? shows the keys. Without this file the link Search leads to a
// page with the same search.
"use strict";
{
  const palette = document.getElementById("palette");
  const field = document.getElementById("palette-field");
  const list = document.getElementById("palette-list");
  const told = document.getElementById("palette-told");
  const keys = document.getElementById("keys");

  // How long the reader pauses before the server is asked, in milliseconds.
  const PAUSE = 120;
  let pause = 0;
  let asked = new AbortController();

  const options = () => [...list.querySelectorAll("[role=option]")];
  const chosen = () => list.querySelector("[aria-selected=true]");

  // The focus stays in the field, which names the chosen row.
  function choose(option) {
    chosen()?.setAttribute("aria-selected", "false");
    if (!option) {
      field.removeAttribute("aria-activedescendant");
      return;
    }
    option.setAttribute("aria-selected", "true");
    option.scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", option.id);
  }

  function element(name, text, attributes) {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function show(groups) {
    list.replaceChildren();
    let count = 0;
    groups.forEach((group, at) => {
      const part = element("div", "", { role: "group", "aria-labelledby": `palette-group-${at}` });
      const more = group.more > 0 ? `, ${group.more} more` : "";
      part.append(element("div", group.title + more, { id: `palette-group-${at}`, role: "presentation", class: "title" }));
      for (const row of group.rows) {
        const option = element("div", "", { id: `palette-row-${count++}`, role: "option", "aria-selected": "false" });
        option.dataset.href = row.href;
        option.append(element("span", row.name, {}), " ", element("small", row.note, {}));
        part.append(option);
      }
      list.append(part);
    });
    list.hidden = count === 0;
    field.setAttribute("aria-expanded", String(count > 0));
    told.textContent = count === 0 ? "Nothing that you may see matches." : `${count} found`;
    choose(options()[0]);
  }

  async function ask() {
    asked.abort();
    asked = new AbortController();
    const signal = asked.signal;
    try {
      const address = "/ui/find?format=json&q=" + encodeURIComponent(field.value);
      const answer = await fetch(address, { signal });
      if (answer.redirected) { location.reload(); return; } // signed out meanwhile
      if (!answer.ok) throw new Error(String(answer.status));
      const found = await answer.json();
      if (!signal.aborted) show(found.groups);
    } catch {
      if (!signal.aborted) told.textContent = "The server does not answer.";
    }
  }

  function open() {
    if (keys.open) keys.close();
    if (!palette.open) palette.showModal();
    field.select();
    ask();
  }

  field.addEventListener("input", () => {
    // Until the answer is there, no row is chosen: Enter then leads to the page with the answer.
    choose(null);
    clearTimeout(pause);
    pause = setTimeout(ask, PAUSE);
  });

  field.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      const all = options();
      if (all.length === 0) return;
      const at = all.indexOf(chosen());
      choose(all[at < 0 ? (by > 0 ? 0 : all.length - 1) : (at + by + all.length) % all.length]);
    } else if (event.key === "Enter" && chosen()) {
      event.preventDefault();
      location.assign(chosen().dataset.href);
    }
  });

  list.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) location.assign(option.dataset.href);
  });

  palette.addEventListener("close", () => {
    clearTimeout(pause);
    asked.abort();
  });

  for (const dialog of [palette, keys]) {
    // The ground around a dialog belongs to the dialog.
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }

  document.getElementById("find")?.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open();
  });

  addEventListener("keydown", (event) => {
    if (event.altKey) return;
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (palette.open) palette.close(); else open();
    } else if (event.key === "?" && !event.ctrlKey && !event.metaKey) {
      if (event.target.closest("input, textarea, select, dialog")) return;
      event.preventDefault();
      keys.showModal();
    }
  });

  // A page that comes back by the back button has no search over it.
  addEventListener("pagehide", () => palette.close());
}

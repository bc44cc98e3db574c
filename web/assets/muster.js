// Keeps a page current without reloading it. The page works without this file: it is
// then as fresh as when it was asked for.
"use strict";

// The attributes of a wide table that the keyboard moves.
const MOVED = ["data-moved", "tabindex", "role", "aria-label"];

// Brings an element in line with a fresh one, touching only what differs, so that focus,
// selection and scrolling stay. What is marked data-keep belongs to the reader, what is
// marked data-stay is only on the page that an action led to.
function bring(now, fresh) {
  if (now.nodeType !== fresh.nodeType || now.nodeName !== fresh.nodeName) {
    now.replaceWith(fresh.cloneNode(true));
    return;
  }
  if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.nodeValue !== fresh.nodeValue) now.nodeValue = fresh.nodeValue;
    return;
  }
  if (now.hasAttribute("data-keep")) return;
  for (const { name, value } of fresh.attributes) {
    if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  const own = now.nodeName === "DETAILS" ? ["open"] : now.hasAttribute("data-moved") ? MOVED : [];
  for (const { name } of [...now.attributes]) {
    if (!fresh.hasAttribute(name) && !own.includes(name)) now.removeAttribute(name);
  }
  // What an action told stays until the reader goes on.
  const stays = (node) => node.nodeType === Node.ELEMENT_NODE && node.hasAttribute("data-stay");
  const before = [...now.childNodes].filter((node) => !stays(node));
  const after = [...fresh.childNodes];
  after.forEach((child, i) => {
    if (i < before.length) bring(before[i], child);
    else now.append(child.cloneNode(true));
  });
  before.slice(after.length).forEach((child) => child.remove());
}

// Ends with the page: what is left open holds one of the browser's few connections to us,
// even after the reader has gone on to another page.
let leaving = new AbortController();

async function refresh(main) {
  const answer = await fetch(location.href, { headers: { "X-Fragment": "content" }, signal: leaving.signal });
  if (answer.redirected || !answer.ok) {
    await answer.body?.cancel();
    if (answer.status === 404 || answer.redirected) location.reload();
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("main");
  // Marks belong to jobs, not to places in the table.
  const boxes = () => main.querySelectorAll("input[name=job]");
  const marked = new Set([...boxes()].filter((box) => box.checked).map((box) => box.value));
  if (fresh) bring(main, fresh);
  for (const box of boxes()) box.checked = marked.has(box.value);
  times();
  movable();
  followLog();
}

function live() {
  const main = document.querySelector("main[data-live]");
  const state = document.getElementById("live-state");
  if (!main) {
    if (state) state.hidden = true;
    return;
  }
  const source = new EventSource("/ui/live");
  let busy = false;
  let again = false;
  const update = async () => {
    if (busy) { again = true; return; }
    busy = true;
    do { again = false; await refresh(main).catch(() => {}); } while (again);
    busy = false;
  };
  source.addEventListener("changed", update);
  source.onopen = () => { state.textContent = "live"; state.classList.remove("off"); };
  source.onerror = () => { state.textContent = "server away, trying again"; state.classList.add("off"); };
  const ages = setInterval(update, 15000); // ages grow without events
  leaving.signal.addEventListener("abort", () => { source.close(); clearInterval(ages); });
}

// The exact time in the reader's own words and zone, for the pointer.
function times() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!isNaN(at)) time.title = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  }
}

// What is wider or higher than its box is moved by the keyboard: the box takes the focus if nothing in it does.
function movable() {
  for (const box of document.querySelectorAll(".scroll:not([data-moved])")) {
    const large = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (!large || box.hasAttribute("tabindex") || box.querySelector("a[href], button, input:not([type=hidden]), select, textarea")) continue;
    const heading = (box.closest("section") ?? document).querySelector("h1, h2, h3");
    const values = ["", "0", "group", heading?.innerText ?? "Table"];
    MOVED.forEach((name, at) => box.setAttribute(name, values[at]));
  }
}

// A log's line as a terminal shows it: colours as classes, the last form of a line that was
// written again. The appearance lasts beyond the end of a line.
const LINE_MAX = 4000;
function terminal() {
  let on = { fg: null, bg: null, bold: false, faint: false };
  const set = (parameters) => {
    const numbers = parameters.split(/[;:]/).map((n) => Number(n) || 0);
    for (let i = 0; i < numbers.length; i++) {
      const n = numbers[i];
      if (n === 0) on = { fg: null, bg: null, bold: false, faint: false };
      else if (n === 1) on.bold = true;
      else if (n === 2) on.faint = true;
      else if (n === 22) on.bold = on.faint = false;
      else if (n >= 30 && n <= 37) on.fg = n - 30;
      else if (n >= 90 && n <= 97) on.fg = n - 82;
      else if (n >= 40 && n <= 47) on.bg = n - 40;
      else if (n >= 100 && n <= 107) on.bg = n - 92;
      else if (n === 39) on.fg = null;
      else if (n === 49) on.bg = null;
      else if (n === 38 || n === 48) {
        const colour = numbers[i + 1] === 5 && numbers[i + 2] < 16 ? numbers[i + 2] : null;
        if (n === 38) on.fg = colour; else on.bg = colour;
        i += numbers[i + 1] === 2 ? 4 : 2;
      }
    }
  };
  return (line, into) => {
    const stamp = /^(\d{4}-\d\d-\d\dT[0-9:.]+Z) /.exec(into.dataset.times ? line : "");
    if (stamp) {
      const at = document.createElement("span");
      at.className = "at";
      at.textContent = stamp[1] + " ";
      into.append(at);
      line = line.slice(stamp[0].length);
    }
    let done = [];
    for (const [, csi, end, text] of line.matchAll(/\x1b(?:\[([0-?]*[ -\/]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)|([^\x1b]+)/g)) {
      if (end === "m") set(csi);
      if (text === undefined) continue;
      const parts = text.replace(/\r+$/, "").split("\r");
      if (parts.length > 1) done = [];
      const words = parts[parts.length - 1].replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, "");
      if (!words) continue;
      const names = [on.fg !== null ? "fg" + on.fg : "", on.bg !== null ? "bg" + on.bg : "", on.bold ? "bold" : "", on.faint ? "faint" : ""];
      done.push([names.filter(Boolean).join(" "), words]);
    }
    let left = LINE_MAX;
    for (const [names, words] of done) {
      const shown = words.slice(0, left);
      left -= shown.length;
      if (!names) { into.append(shown); continue; }
      const span = document.createElement("span");
      span.className = names;
      span.textContent = shown;
      into.append(span);
    }
    into.append("\n");
  };
}

let following = null;
const SHOWN_NODES = 20000;

// Streams a log into its box, staying at the end while the reader is there. When the
// container starts again, the page names another run, and its log follows below.
async function followLog() {
  const frame = document.getElementById("log");
  const box = document.getElementById("log-text");
  const asked = frame && frame.dataset.log + " " + frame.dataset.run;
  if (!box || !frame) {
    following?.stop.abort(); // the job has ended, and the page has its whole log
    following = null;
    return;
  }
  if (following && following.asked === asked) return;
  const again = following && following.log === frame.dataset.log;
  following?.stop.abort();
  const mine = { asked, log: frame.dataset.log, stop: new AbortController() };
  following = mine;
  const signal = AbortSignal.any([leaving.signal, mine.stop.signal]);
  if (frame.dataset.log.includes("timestamps=true")) box.dataset.times = "on";
  let started = false;
  while (!signal.aborted) {
    try {
      const answer = await fetch(frame.dataset.log + "&follow=true", { signal });
      if (answer.ok) {
        if (again && !started) {
          const line = document.createElement("span");
          line.className = "restart";
          line.textContent = "─── the container started again ───\n";
          box.append(line);
        } else {
          box.textContent = "";
        }
        started = true;
        const write = terminal();
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
          const { value, done } = await reader.read();
          const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
          const lines = (rest + (value ?? "")).split("\n");
          rest = done ? "" : lines.pop();
          if (done && lines[lines.length - 1] === "") lines.pop();
          for (const line of lines) write(line, box);
          while (box.childNodes.length > SHOWN_NODES) box.firstChild.remove();
          if (atEnd) box.scrollTop = box.scrollHeight;
          if (done) return;
        }
      }
      // An answer that is not read to its end would hold one of the browser's few
      // connections to us.
      await answer.body?.cancel();
      if (![400, 404, 409, 503].includes(answer.status)) return;
    } catch { /* the server is away: try again */ }
    await new Promise((wake) => setTimeout(wake, 1500));
  }
}

addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// The command that does what a form does, with what is typed so far. {field} is a field's
// value, {field:words} its words; what is in brackets is left out while its field is empty.
const FIELD = /\{(\w+)(?::(\w+))?\}/g;
function quoted(text) {
  return /^[\w.\/:=,@%+-]*$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'";
}
function spell(code) {
  const fields = code.closest("form").elements;
  const value = (name, how) => {
    const field = fields.namedItem(name);
    if (!field || field.type === "checkbox") return field?.checked ? name : "";
    const words = field.value.split(/[\s,]+/).filter(Boolean);
    return how === "words" ? words.map(quoted).join(" ") : quoted(words.join(","));
  };
  code.textContent = code.dataset.command
    .replace(/\[([^\]]*)\]/g, (_, part) => {
      const all = [...part.matchAll(FIELD)].every(([, name, how]) => value(name, how));
      return all ? part.replace(FIELD, (_, name, how) => value(name, how)) : "";
    })
    .replace(FIELD, (_, name, how) => value(name, how) || name.toUpperCase());
}
for (const kind of ["input", "change"]) {
  addEventListener(kind, (event) => {
    for (const code of event.target.form?.querySelectorAll("[data-command]") ?? []) spell(code);
  });
}

// Marks all rows of a table.
addEventListener("change", (event) => {
  if (!event.target.matches("[data-all]")) return;
  for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) {
    box.checked = event.target.checked;
  }
});

function begin() {
  leaving = new AbortController();
  following = null;
  // The message is for once: a reload does not tell it again.
  const address = new URL(location.href);
  if (address.searchParams.has("flash")) {
    address.searchParams.delete("flash");
    history.replaceState(null, "", address);
  }
  for (const code of document.querySelectorAll("[data-command]")) spell(code);
  times();
  movable();
  live();
  followLog();
}
addEventListener("resize", movable);
addEventListener("pagehide", () => leaving.abort());
// A page that comes back as it was left (by the back button) begins again.
addEventListener("pageshow", (event) => { if (event.persisted) begin(); });
begin();

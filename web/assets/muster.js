// Keeps a page current without reloading it. The page works without this file: it is
// then as fresh as when it was asked for.
"use strict";

// Brings an element in line with a fresh one, touching only what differs, so that focus,
// selection and scrolling stay. What is marked data-keep belongs to the reader.
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
  for (const { name } of [...now.attributes]) {
    if (!fresh.hasAttribute(name) && !(now.nodeName === "DETAILS" && name === "open")) now.removeAttribute(name);
  }
  const before = [...now.childNodes];
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
  if (fresh) bring(main, fresh);
  times();
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
  source.onerror = () => { state.textContent = "reconnecting"; state.classList.add("off"); };
  const ages = setInterval(update, 15000); // ages grow without events
  leaving.signal.addEventListener("abort", () => { source.close(); clearInterval(ages); });
}

// Times in the reader's own words and zone.
function times() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    const words = isNaN(at) ? "" : at.toLocaleTimeString();
    if (words && time.textContent !== words) { time.title = at.toString(); time.textContent = words; }
  }
}

let following = null;

// Streams a log into its box, staying at the end while the reader is there.
async function followLog() {
  const box = document.getElementById("log-text");
  if (!box || following === box.dataset.log) return;
  following = box.dataset.log;
  const { signal } = leaving;
  while (!signal.aborted) {
    try {
      const answer = await fetch(box.dataset.log + "&follow=true", { signal });
      if (answer.ok) {
        box.textContent = "";
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        for (;;) {
          const { value, done } = await reader.read();
          if (done) return;
          const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
          box.append(value);
          if (box.textContent.length > 2000000) box.textContent = box.textContent.slice(-1000000);
          if (atEnd) box.scrollTop = box.scrollHeight;
        }
      }
      // An answer that is not read to its end would hold one of the browser's few
      // connections to us.
      await answer.body?.cancel();
      if (answer.status !== 404 && answer.status !== 400 && answer.status !== 409 && answer.status !== 503) return;
    } catch { /* the server is away: try again */ }
    await new Promise((wake) => setTimeout(wake, 1500));
  }
}

addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

function begin() {
  leaving = new AbortController();
  following = null;
  times();
  live();
  followLog();
}
addEventListener("pagehide", () => leaving.abort());
// A page that comes back as it was left (by the back button) begins again.
addEventListener("pageshow", (event) => { if (event.persisted) begin(); });
begin();

// Keeps a connection to the server (board.py), and gives each group its news.

import { Group } from "./group.js";
import { ago, clocks, duration, now } from "./text.js";

const SILENT = 4000; // ms without a word of the server, which says something every second
const RETRY = 1000; // ms from one attempt to connect to the next

const main = document.querySelector("main");
const live = document.getElementById("live");
const tip = document.getElementById("tip");
const groups = [];
let version = null;
let heard = 0; // when the server has said something last, by this machine's clock

// --- what is under the pointer --------------------------------------------------------------------------------------

let pointer = null;

function showTip() {
  const target = pointer && document.elementFromPoint(...pointer)?.closest("[aria-label]");
  tip.hidden = !target;
  if (!target) return;
  tip.textContent = target.getAttribute("aria-label");
  const [x, y] = pointer,
    { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + height + 26 > innerHeight ? y - height - 12 : y + 18}px`;
}

document.addEventListener("pointermove", (event) => {
  pointer = [event.clientX, event.clientY];
  showTip();
});
document.addEventListener("pointerdown", (event) => {
  pointer = [event.clientX, event.clientY];
  showTip();
});
document.addEventListener("pointerleave", () => {
  pointer = null;
  showTip();
});
document.addEventListener(
  "scroll",
  () => {
    pointer = null;
    showTip();
  },
  { passive: true },
);

// --- the server -----------------------------------------------------------------------------------------------------

let source = null;

function connect() {
  source?.close();
  source = new EventSource("events");
  const mine = source;
  source.onmessage = (event) => {
    if (mine === source) hear(JSON.parse(event.data));
  };
  source.onerror = () => {
    if (mine !== source) return;
    mine.close();
    heard = Math.min(heard, Date.now() - SILENT);
    tick();
    setTimeout(() => {
      if (mine === source) connect();
    }, RETRY);
  };
}

function hear(news) {
  if (version !== null && version !== news.version) location.reload();
  version = news.version;
  if (news.all && groups.map((each) => each.table).join("\n") !== news.groups.map((each) => each.table).join("\n")) {
    groups.splice(0, Infinity, ...news.groups.map((each, at) => new Group(each.table, at)));
    main.replaceChildren(...groups.map((each) => each.root));
    document.querySelector("nav").replaceChildren(...(groups.length > 1 ? groups.map((each) => each.link) : []));
  }
  const again = Date.now() - heard > SILENT;
  heard = Date.now();
  clocks.ahead = news.now - heard;
  news.groups.forEach((each, at) => groups[at].update(each));
  if (again) tick();
  else drawLive();
}

function drawLive() {
  const silent = Date.now() - heard;
  const away = silent >= SILENT;
  document.body.classList.toggle("away", away);
  live.className = away ? "off" : "on";
  live.textContent = !away
    ? "live"
    : !heard || version === null
      ? "not connected, trying again …"
      : `disconnected: what you see is ${duration(now() - newest())} old. Trying again …`;
}

const newest = () => Math.max(0, ...groups.map((each) => each.looked ?? 0)) || heard + clocks.ahead;

let ticks = 0;

function tick() {
  drawLive();
  ticks += 1;
  for (const each of groups) each.tick(ticks % 5 === 0);
  for (const each of document.querySelectorAll("[data-at]")) each.textContent = ago(Number(each.dataset.at));
  showTip();
}

setInterval(() => {
  tick();
  if (source && Date.now() - heard > 2 * SILENT && source.readyState === EventSource.OPEN) connect(); // half of a connection
}, 1000);
connect();

// Elements, numbers and times. All texts are set as text: others have written them.

/** What the server's clock is ahead of this one, in ms. */
export const clocks = { ahead: 0 };

export function el(tag, attributes, ...children) {
  const svg = ["svg", "path"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") made.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return made;
}

export const now = () => Date.now() + clocks.ahead;
export const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
export const percent = (part) => `${(100 * part).toFixed(3)}%`;

export function number(value) {
  if (value === null || value === undefined) return "–";
  return value < 100000 ? whole.format(value) : short.format(value);
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

export function ago(at) {
  const ms = Math.max(0, now() - at);
  return ms < 1500 ? "now" : `${duration(Math.max(1000, Math.floor(ms / 1000) * 1000)).replace(".0", "")} ago`;
}

export const clock = (at) => new Date(at).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** Text that is an age, kept up to date by `tick`. */
export function age(at, tag = "span", attributes = {}) {
  return el(tag, { ...attributes, "data-at": at, "aria-label": clock(at) }, ago(at));
}

export const count = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

/** Partitions as "0–3, 7". */
export function ranges(ids) {
  const parts = [];
  for (const id of ids) {
    const last = parts.at(-1);
    if (last && /^\d+$/.test(id) && Number(id) === Number(last[1]) + 1) last[1] = id;
    else parts.push([id, id]);
  }
  return parts
    .map(([from, to]) => (from === to ? from : Number(to) === Number(from) + 1 ? `${from}, ${to}` : `${from}–${to}`))
    .join(", ");
}

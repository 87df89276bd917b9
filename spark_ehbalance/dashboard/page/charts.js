// Curves of the last hour.

import { clock, el, now, percent } from "./text.js";

export const HOUR = 3600e3;

/** The line and the area of [time, value, …]; where points are missing, there is a gap. */
export function curve(points, step, top) {
  const end = now(),
    x = (at) => (1000 * (at - end + HOUR)) / HOUR,
    y = (value) => 98 - (92 * value) / (top || 1);
  let line = "",
    area = "",
    run = [];
  const close = () => {
    if (run.length) {
      const d = run.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
      line += `M${d}${run.length === 1 ? "h2" : ""}`;
      area += `M${x(run[0][0]).toFixed(1)} 100L${d}V100Z`;
    }
    run = [];
  };
  for (const [at, value] of points) {
    if (value === null || (run.length && at - run.at(-1)[0] > 2.5 * step)) close();
    if (value !== null) run.push([at, value]);
  }
  close();
  return el(
    "svg",
    { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" },
    el("path", { class: "area", d: area }),
    el("path", { class: "line", d: line }),
  );
}

export function chart(points, step, text) {
  const known = points.filter(([, value]) => value !== null);
  const top = Math.max(0, ...known.map(([, value]) => value));
  const first = known.length ? Math.max(0, Math.min(1, 1 - (now() - known[0][0]) / HOUR)) : 1;
  const before = el(
    "span",
    { class: "before" },
    first > 0.25 ? (known.length ? "not measured before" : "not measured yet") : "",
  );
  before.style.width = percent(first);
  const made = el(
    "div",
    { class: "chart" },
    curve(points, step, top),
    known.length && first < 0.7 ? el("span", { class: "most" }, `up to ${text(top)}`) : null,
    before,
  );
  made.addEventListener("pointermove", (event) => {
    const box = made.getBoundingClientRect();
    const at = now() - HOUR * (1 - (event.clientX - box.left) / box.width);
    const nearest = known.reduce(
      (best, each) => (!best || Math.abs(each[0] - at) < Math.abs(best[0] - at) ? each : best),
      null,
    );
    made.setAttribute(
      "aria-label",
      nearest && Math.abs(nearest[0] - at) < 60e3 ? `${text(nearest[1])}\n${clock(nearest[0])}` : "not measured",
    );
  });
  return made;
}

export function axis() {
  return el(
    "div",
    { class: "axis" },
    [60, 45, 30, 15, 0].map((minutes) => {
      const made = el("span", {}, minutes ? `−${minutes} min` : "now");
      made.style.left = percent(1 - minutes / 60);
      return made;
    }),
  );
}

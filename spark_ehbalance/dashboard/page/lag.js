// The lag of a group and of its partitions.

import { axis, chart, curve } from "./charts.js";
import { count, duration, el, now, number } from "./text.js";

/** Partitions whose lag is shown at first, where there are many. */
const few = () => (innerWidth <= 620 ? 12 : 24);

/** For how long the oldest unread event has waited, in ms; null: not known. */
export function wait([events, since]) {
  return events === 0 ? 0 : since === null ? null : Math.max(0, now() - since);
}

export function drawLag(group) {
  const lag = group.lag();
  const figure = (value, text) => el("p", { class: "figure" }, el("b", {}, value), el("span", { class: "note" }, text));
  const points = group.data.lag.points;
  group.parts.lag.hidden = !group.data.group.partitions.length;
  const wait = points.map(([at, , seconds]) => [at, seconds]);
  group.parts.lag.replaceChildren(
    el("h3", {}, "Lag", el("span", { class: "note" }, "in the last hour, while this dashboard ran")),
    figure(lag.known ? number(lag.events) : "not measured", "unread events, the sum of all partitions"),
    chart(points, group.data.lag.step, (value) => count(value, "event")),
    figure(lag.wait === null ? "not measured" : `${lag.more ? "≥ " : ""}${duration(lag.wait)}`, "that the oldest unread event has waited"),
    chart(wait, group.data.lag.step, (value) => duration(1000 * value)),
    axis(),
  );
}

export function drawEach(group) {
  const { partitions } = group.data.group,
    { step, partitions: lines } = group.data.lagMinutes;
  const events = group.unit === "events",
    past = new Map(lines);
  const text = (value) => (value === null ? "–" : events ? number(value) : duration(1000 * value));
  const value = ({ lag }) => (!lag ? null : events ? lag[0] : wait(lag) === null ? null : wait(lag) / 1000);
  const many = partitions.length > 1.5 * few(),
    cut = many && !group.all;
  const most = cut
    ? new Set([...partitions].sort((a, b) => (value(b) ?? -1) - (value(a) ?? -1)).slice(0, few()))
    : null;
  const shown = cut ? partitions.filter((each) => most.has(each)) : partitions;
  const points = shown.map((each) => {
    const line = (past.get(each.id) || []).map((point) => [point[0], point[events ? 1 : 2]]);
    return each.lag ? [...line, [now(), value(each)]] : line;
  });
  const top = Math.max(1, ...points.flat().map(([, y]) => y ?? 0));
  group.each.parts.replaceChildren(
    ...shown.map((each, at) =>
      el(
        "div",
        { class: "part", "aria-label": group.described(each) },
        el("span", {}, group.swatch(each.owner), each.id),
        el("b", {}, text(value(each))),
        el("span", {}, each.owner ?? "nobody"),
        el(
          "span",
          {},
          !each.lag
            ? "not measured"
            : !events
              ? count(each.lag[0], "event")
              : wait(each.lag) === null
                ? "events"
                : duration(wait(each.lag)),
        ),
        curve(points[at], step, top),
      ),
    ),
  );
  group.each.note.textContent = `${cut ? `the ${few()} partitions with most; ` : ""}the last hour by minute, all on one scale, up to ${text(Math.ceil(top))}${events ? " events" : ""}`;
  for (const each of group.switches) each.setAttribute("aria-pressed", String(each.textContent === group.unit));
  group.more.textContent = group.all ? `the ${few()} with most` : `all ${partitions.length}`;
  group.more.hidden = !many;
  group.parts.each.hidden = !points.flat().length; // nothing was measured, as is said beside
}

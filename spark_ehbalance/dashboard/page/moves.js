// Who owned what in the last hour, and why it changed.

import { HOUR, axis } from "./charts.js";
import { age, clock, el, now, percent, ranges } from "./text.js";

export function drawMoves(group) {
  const { lanes, orders } = group.data.moves;
  const end = now(),
    begin = end - HOUR;
  const x = (at) => Math.min(1, Math.max(0, (at - begin) / HOUR));
  const place = (made, from, to) => {
    made.style.left = percent(x(from));
    if (to !== undefined) made.style.width = percent(x(to) - x(from));
    return made;
  };
  const mark = ([at, , text]) => place(el("span", { class: "order", "aria-label": `${text}\n${clock(at)}` }), at);
  const size = lanes.length <= 12 ? "roomy" : lanes.length <= 40 ? "" : lanes.length <= 80 ? "tight" : "dense";
  const named = innerWidth > 620 ? 0.1 : 0.25; // of the width, from which on a name fits in
  const every = size === "dense" ? 8 : 1;
  const current = new Map(group.data.group.partitions.map((each) => [each.id, each.owner]));
  const cells = lanes.flatMap(([id, lane], row) => [
    el("label", {}, row % every ? "" : id),
    el(
      "div",
      { class: "lane" },
      lane
        .filter(([, to]) => to === null || to > begin)
        .map(([from, to, owner]) =>
          place(
            el(
              "span",
              {
                class: `seg ${group.colour(owner)}${from <= begin ? " first" : ""}`,
                "aria-label": `partition ${id}: ${owner}\n${from ? `from ${clock(from)}` : "for longer"}${to === null ? "" : `\nto ${clock(to)}`}`,
              },
              x(to ?? end) - x(from) > named ? owner : "",
            ),
            from,
            to ?? end,
          ),
        ),
      orders.filter(([at, partition]) => partition === id && at > begin).map(mark),
    ),
    el("div", {
      class: `cap ${group.colour(current.get(id) ?? null)}`,
      "aria-label": `partition ${id} now: ${current.get(id) ?? "nobody"}`,
    }),
  ]);
  const whole = orders.filter(([at, partition]) => partition === null && at > begin);
  if (whole.length)
    cells.unshift(
      el("label", {}, "group"),
      el("div", { class: "lane" }, whole.map(mark)),
      el("div", { class: "cap blank" }),
    );
  const owners = [...group.colours.keys()].filter((id) =>
    lanes.some(([, lane]) => lane.some(([, to, owner]) => owner === id && (to === null || to > begin))),
  );
  const had = group.data.decisions.length || !group.data.group.keepsAll;
  group.parts.moves.replaceChildren(
    el(
      "h3",
      {},
      "Owners in the last hour",
      el(
        "span",
        { class: "note" },
        orders.length ? "a diamond: an operator's order" : had ? "" : "no moves are in the history",
      ),
    ),
    el("div", { class: `lanes ${size}` }, cells, el("label", {}), axis()),
    el(
      "div",
      { class: "legend" },
      owners.map((id) => group.who(id)),
    ),
  );
  group.parts.moves.hidden = !lanes.length;
}

export function drawDecisions(group) {
  const rows = group.data.decisions.map((each) => {
    const what = each.partitions.length ? ranges(each.partitions) : "";
    return el("li", {}, age(each.at, "time"), sentence(group, each, what), el("span", { class: "note" }, reason(each)));
  });
  const scrolled = group.parts.decisions.querySelector("ol")?.scrollTop ?? 0;
  group.parts.decisions.replaceChildren(
    el("h3", {}, "Decisions", el("span", { class: "note" }, "newest first, by the group's history")),
    rows.length
      ? el("ol", { class: "feed", tabindex: 0 }, rows)
      : el("p", { class: "empty" }, "Nothing has changed hands in the last hour."),
    el("p", { class: "note" }, "Why a strategy wants a move stands in the queries' logs: lines with “balance:”."),
  );
  group.parts.decisions.hidden = !group.data.group.partitions.length && !rows.length;
  if (rows.length) group.parts.decisions.querySelector("ol").scrollTop = scrolled;
}

function sentence(group, { event, from, to, by }, what) {
  const [before, after, author] = [from, to, by].map((id) =>
    id === null || group.colours.has(id) ? group.who(id) : id,
  );
  if (event === "HandOver") return [before, ` handed ${what} over to `, after];
  if (event === "Release") return [before, ` gave ${what} back`];
  if (event === "Seen")
    return to === null
      ? [before, ` gave ${what} back`]
      : from === null
        ? [after, ` has ${what}`]
        : [what, " moved from ", before, " to ", after];
  if (event === "Steal") return [after, ` took ${what} from `, before];
  if (event === "Claim")
    return from === null || from === to ? [after, ` claimed ${what}`] : [after, ` took ${what} from `, before];
  const orders = {
    PinTo: "pinned",
    Transfer: "transferred",
    Unpin: "unpinned",
    Seek: "moved the position of",
    Drain: "drained",
    Restore: "restored",
  };
  return [author, ` ${orders[event] ?? event} `, event === "Drain" ? before : what];
}

function reason({ event, from, to, why }) {
  if (why) return why;
  if (event === "HandOver") return "a planned move, after its batch";
  if (event === "Release") return "it stops, or has more than it should";
  if (event === "Steal") return "without being asked: a rule of its strategy";
  if (event === "Seen") return "just seen in the lease table";
  if (event !== "Claim") return "an operator's order";
  if (from === null) return "nobody had it";
  return from === to ? "it has started again" : "the lease had expired, or was not handed over in time";
}

// One group, drawn from the sections that the server sends (view.py).

import { HOUR, axis, chart, curve } from "./charts.js";
import { age, ago, clock, count, duration, el, now, number, percent, ranges, whole } from "./text.js";

/** Partitions whose lag is shown at first, where there are many. */
const few = () => (innerWidth <= 620 ? 12 : 24);

export class Group {
  constructor(table, number) {
    this.table = table;
    this.looked = null;
    this.problem = null;
    this.data = {};
    this.owners = new Map(); // as drawn
    this.all = false;
    this.unit = "events";
    this.parts = Object.fromEntries(
      ["problem", "tiles", "owners", "lag", "moves", "decisions", "each", "members"].map((name) => [name, el("section", { class: name })]),
    );
    const { problem, tiles, ...cards } = this.parts;
    for (const each of Object.values(cards)) each.classList.add("card");
    this.switches = ["events", "seconds"].map((unit) => el("button", { on: () => this.change({ unit }) }, unit));
    this.more = el("button", { class: "more", on: () => this.change({ all: !this.all }) });
    this.each = { note: el("span", { class: "note" }), parts: el("div", { class: "parts" }) };
    this.parts.each.append(
      el("h3", {}, "Lag per partition", this.each.note, el("span", { class: "switch" }, this.switches)), this.each.parts, this.more,
    );
    this.title = el("h2", {}, table);
    this.sub = el("p", { class: "sub" });
    this.link = el("a", { href: `#g${number}` }, table);
    this.body = el("div", { hidden: "" }, tiles, el("div", { class: "cards" }, Object.values(cards)));
    this.root = el("article", { class: "group", id: `g${number}` }, this.title, this.sub, problem, this.body);
  }

  update({ looked, problem, sections }) {
    const first = !this.data.group;
    this.looked = looked ?? this.looked; // a server that has just started may not have read it
    this.problem = problem;
    Object.assign(this.data, sections);
    const has = (...names) => first || names.some((name) => name in sections);
    if (this.data.group) {
      if ("colours" in sections) this.colours = new Map(sections.colours);
      if (has("group", "colours", "moves")) this.head(), this.drawOwners(), this.drawMembers();
      if (has("group", "lag")) this.drawLag();
      if (has("group", "lagMinutes", "colours")) this.drawEach();
      if (has("moves", "colours")) this.drawMoves();
      if (has("decisions", "colours", "group")) this.drawDecisions();
      this.body.hidden = false;
    }
    this.drawProblem();
  }

  tick(slow) {
    this.drawProblem();
    if (!this.data.group) return;
    this.drawTiles();
    this.drawLag();
    if (slow) this.drawMoves(), this.drawEach();
  }

  drawProblem() {
    const age = this.looked === null ? null : now() - this.looked;
    const old = age !== null && age > 15000 ? `What is shown is ${duration(age)} old.` : "";
    const text = this.problem
      ? `${this.problem}. ${this.looked === null ? "It is shown here as soon as it can be read." : `What is shown is ${duration(age)} old.`}`
      : this.looked === null ? "Reading the table …" : old;
    this.parts.problem.classList.toggle("problem", Boolean(this.problem || old));
    if (this.parts.problem.textContent !== text) this.parts.problem.textContent = text;
    this.parts.problem.hidden = !text;
  }

  head() {
    const { hub, namespace, consumerGroup, leaseMs, keepsAll } = this.data.group;
    this.title.textContent = hub;
    this.link.textContent = `${hub} / ${consumerGroup}`;
    const lease = leaseMs ? ` · a lease lasts ${duration(leaseMs).replace(".0", "")}` : "";
    const less = keepsAll ? "" : " · a container of the Azure SDKs, which keeps no members, lag and history";
    this.sub.textContent = `consumer group ${consumerGroup} · ${namespace}${lease}${less}`;
    this.sub.setAttribute("aria-label", this.table);
  }

  /** The class of a member's colour. */
  colour(id) {
    const number = id === null ? undefined : this.colours.get(id);
    return number === undefined ? "none" : `c${number % 8}${["", " stripes", " dots"][Math.floor(number / 8) % 3]}`;
  }

  swatch(id) {
    return el("span", { class: `swatch ${this.colour(id)}` });
  }

  who(id) {
    return id === null ? "nobody" : el("span", { class: "who", "aria-label": id }, this.swatch(id), id);
  }

  /** Unread events and the oldest one's wait in ms, of those that are known. */
  lag() {
    const known = this.data.group.partitions.filter((each) => each.lag);
    const waits = known.map((each) => wait(each.lag)).filter((each) => each !== null);
    const events = known.reduce((sum, each) => sum + each.lag[0], 0);
    return { known: known.length, events: known.length ? events : null, wait: waits.length ? Math.max(...waits) : null };
  }

  drawTiles() {
    const { partitions, members } = this.data.group;
    const free = partitions.filter((each) => each.owner === null).length;
    const active = members.filter((each) => each.state === "active").length;
    const pending = partitions.filter((each) => each.next !== null).length;
    const lag = this.lag();
    const rate = members.some((each) => each.rate !== null) ? members.reduce((sum, each) => sum + (each.rate || 0), 0) : null;
    const measured = lag.known === 0 ? "not measured" : lag.known < partitions.length ? `of ${lag.known} measured partitions` : "in all partitions";
    const tile = (name, value, more, warn) => el("dl", { class: `tile${warn ? " warn" : ""}` }, el("dt", {}, name), el("dd", {}, value, el("small", {}, more)));
    this.parts.tiles.replaceChildren(
      tile("Partitions", number(partitions.length), free ? `${free} without an owner` : partitions.length ? "all owned" : "none yet", free),
      tile("Members", number(members.length || new Set(partitions.map((each) => each.owner).filter(Boolean)).size), members.length > active ? `${members.length - active} leaving` : this.data.group.keepsAll ? "all active" : "owners"),
      tile("Moves", number(this.moves()), pending ? `last hour; ${pending} pending` : "in the last hour"),
      tile("Unread", number(lag.events), `events, ${measured}`),
      tile("Longest wait", lag.wait === null ? "–" : duration(lag.wait), lag.known && lag.wait === null ? "not measured" : "of an unread event"),
      tile("Reading", rate === null ? "–" : number(rate), rate === null ? "not measured" : "events/s, all members"),
    );
  }

  moves() {
    const begin = now() - HOUR;
    return this.data.moves.lanes.reduce((sum, [, lane]) => sum + lane.filter(([start, , owner], at) => at && start > begin && owner !== lane[at - 1][2]).length, 0);
  }

  // --- who owns what

  drawOwners() {
    const { partitions, members, keepsAll } = this.data.group;
    const known = new Map(members.map((each) => [each.id, each]));
    const owned = new Map(members.map((each) => [each.id, []]));
    for (const each of partitions) {
      if (!owned.has(each.owner)) owned.set(each.owner, []);
      owned.get(each.owner).push(each);
    }
    const rows = [...owned].map(([owner, theirs]) => {
      const member = known.get(owner);
      const state = owner === null ? "" : member ? (member.state === "active" ? "" : member.state) : keepsAll ? "has left" : "";
      const cells = theirs.map((each) => this.cell(each));
      return el("div", { class: "row" },
        el("div", { class: "name", "aria-label": owner === null ? "partitions without an owner" : owner }, this.swatch(owner), el("b", {}, owner ?? "nobody"), el("i", {}, String(theirs.length)), state ? el("span", { class: "chip warn" }, state) : null),
        el("div", { class: `cells ${partitions.length <= 16 ? "few" : partitions.length > 64 ? "many" : ""}` }, cells.length ? cells : el("span", { class: "empty" }, "nothing")));
    });
    if (!rows.length) rows.push(el("p", { class: "empty" }, "The group has no partitions and no members yet. They are shown here when its first query has started."));
    this.parts.owners.style.setProperty("--n", Math.max(6, ...[...owned.values()].map((theirs) => theirs.length)));
    const noted = partitions.length && partitions.some((each) => each.lag) ? el("span", { class: "note" }, "a line in a cell: unread events, full at a million (logarithmic)") : null;
    this.parts.owners.replaceChildren(el("h3", {}, "Who owns what", noted), ...rows);
    this.owners = new Map(partitions.map((each) => [each.id, each.owner]));
  }

  cell(each) {
    const moved = this.owners.has(each.id) && this.owners.get(each.id) !== each.owner;
    if (moved) (this.movedAt ??= new Map()).set(each.id, Date.now());
    const since = Date.now() - (this.movedAt?.get(each.id) ?? 0);
    const lag = each.lag && each.lag[0] > 0 ? el("u", {}) : null;
    if (lag) lag.style.width = percent(Math.min(1, Math.log10(1 + each.lag[0]) / 6));
    const made = el("div", { class: `cell ${this.colour(each.owner)}${each.pin !== null ? " pinned" : ""}${since < 2500 ? " moved" : ""}`, "aria-label": this.described(each), role: "img" },
      each.id, lag, each.next !== null ? el("s", { class: this.colour(each.next) }) : null);
    if (since < 2500) made.style.animationDelay = `-${since}ms`;
    return made;
  }

  described(each) {
    const lines = [`partition ${each.id}: ${each.owner ?? "nobody"}${each.owner !== null && each.since ? `, for ${duration(now() - each.since)}` : ""}`];
    if (each.next !== null) lines.push(`is being handed over to ${each.next}`);
    if (each.pin !== null) lines.push(`pinned to ${each.pin}`);
    lines.push(each.lag ? `${count(each.lag[0], "unread event")}${each.lag[0] && wait(each.lag) !== null ? `, for ${duration(wait(each.lag))}` : ""}` : "lag not measured");
    if (each.lag) lines.push(`measured ${ago(each.lag[2])}`);
    if (each.readUpTo !== null) lines.push(`read up to ${whole.format(each.readUpTo)}, epoch ${each.epoch}`);
    return lines.join("\n");
  }

  // --- lag

  drawLag() {
    const lag = this.lag();
    const figure = (value, text) => el("p", { class: "figure" }, el("b", {}, value), el("span", { class: "note" }, text));
    const points = this.data.lag.points;
    this.parts.lag.hidden = !this.data.group.partitions.length;
    const wait = points.map(([at, , seconds]) => [at, seconds]);
    this.parts.lag.replaceChildren(
      el("h3", {}, "Lag", el("span", { class: "note" }, "in the last hour, while this dashboard ran")),
      figure(lag.known ? number(lag.events) : "not measured", "unread events, the sum of all partitions"),
      chart(points, this.data.lag.step, (value) => count(value, "event")),
      figure(lag.wait === null ? "not measured" : duration(lag.wait), "that the oldest unread event has waited"),
      chart(wait, this.data.lag.step, (value) => duration(1000 * value)),
      axis(),
    );
  }

  change(settings) {
    Object.assign(this, settings);
    this.drawEach();
  }

  drawEach() {
    const { partitions } = this.data.group, { step, partitions: lines } = this.data.lagMinutes;
    const events = this.unit === "events", past = new Map(lines);
    const text = (value) => (value === null ? "–" : events ? number(value) : duration(1000 * value));
    const value = ({ lag }) => (!lag ? null : events ? lag[0] : wait(lag) === null ? null : wait(lag) / 1000);
    const many = partitions.length > 1.5 * few(), cut = many && !this.all;
    const most = cut ? new Set([...partitions].sort((a, b) => (value(b) ?? -1) - (value(a) ?? -1)).slice(0, few())) : null;
    const shown = cut ? partitions.filter((each) => most.has(each)) : partitions;
    const points = shown.map((each) => {
      const line = (past.get(each.id) || []).map((point) => [point[0], point[events ? 1 : 2]]);
      return each.lag ? [...line, [now(), value(each)]] : line;
    });
    const top = Math.max(1, ...points.flat().map(([, y]) => y ?? 0));
    this.each.parts.replaceChildren(...shown.map((each, at) => el("div", { class: "part", "aria-label": this.described(each) },
      el("span", {}, this.swatch(each.owner), each.id),
      el("b", {}, text(value(each))),
      el("span", {}, each.owner ?? "nobody"),
      el("span", {}, !each.lag ? "not measured" : !events ? count(each.lag[0], "event") : wait(each.lag) === null ? "events" : duration(wait(each.lag))),
      curve(points[at], step, top))));
    this.each.note.textContent = `${cut ? `the ${few()} partitions with most; ` : ""}the last hour by minute, all on one scale, up to ${text(Math.ceil(top))}${events ? " events" : ""}`;
    for (const each of this.switches) each.setAttribute("aria-pressed", String(each.textContent === this.unit));
    this.more.textContent = this.all ? `the ${few()} with most` : `all ${partitions.length}`;
    this.more.hidden = !many;
    this.parts.each.hidden = !partitions.length;
  }

  // --- moves, decisions, members

  drawMoves() {
    const { lanes, orders } = this.data.moves;
    const end = now(), begin = end - HOUR;
    const x = (at) => Math.min(1, Math.max(0, (at - begin) / HOUR));
    const place = (made, from, to) => { made.style.left = percent(x(from)); if (to !== undefined) made.style.width = percent(x(to) - x(from)); return made; };
    const mark = ([at, , text]) => place(el("span", { class: "order", "aria-label": `${text}\n${clock(at)}` }), at);
    const size = lanes.length <= 40 ? "" : lanes.length <= 80 ? "tight" : "dense";
    const named = innerWidth > 620 ? 0.1 : 0.25; // of the width, from which on a name fits in
    const every = size === "dense" ? 8 : 1;
    const current = new Map(this.data.group.partitions.map((each) => [each.id, each.owner]));
    const cells = lanes.flatMap(([id, lane], row) => [
      el("label", {}, row % every ? "" : id),
      el("div", { class: "lane" },
        lane.filter(([, to]) => to === null || to > begin).map(([from, to, owner]) =>
          place(el("span", { class: `seg ${this.colour(owner)}${from <= begin ? " first" : ""}`, "aria-label": `partition ${id}: ${owner}\n${from ? `from ${clock(from)}` : "for longer"}${to === null ? "" : `\nto ${clock(to)}`}` }, x(to ?? end) - x(from) > named ? owner : ""), from, to ?? end)),
        orders.filter(([at, partition]) => partition === id && at > begin).map(mark)),
      el("div", { class: `cap ${this.colour(current.get(id) ?? null)}`, "aria-label": `partition ${id} now: ${current.get(id) ?? "nobody"}` }),
    ]);
    const whole = orders.filter(([at, partition]) => partition === null && at > begin);
    if (whole.length) cells.unshift(el("label", {}, "group"), el("div", { class: "lane" }, whole.map(mark)), el("div", { class: "cap blank" }));
    const owners = [...this.colours.keys()].filter((id) => lanes.some(([, lane]) => lane.some(([, to, owner]) => owner === id && (to === null || to > begin))));
    const had = this.data.decisions.length || !this.data.group.keepsAll;
    this.parts.moves.replaceChildren(
      el("h3", {}, "Owners in the last hour", el("span", { class: "note" }, orders.length ? "a diamond: an operator's order" : had ? "" : "no moves are in the history")),
      el("div", { class: `lanes ${size}` }, cells, el("label", {}), axis()),
      el("div", { class: "legend" }, owners.map((id) => this.who(id))),
    );
    this.parts.moves.hidden = !lanes.length;
  }

  drawDecisions() {
    const rows = this.data.decisions.map((each) => {
      const what = each.partitions.length ? ranges(each.partitions) : "";
      return el("li", {}, age(each.at, "time"), this.sentence(each, what), el("span", { class: "note" }, reason(each)));
    });
    const scrolled = this.parts.decisions.querySelector("ol")?.scrollTop ?? 0;
    this.parts.decisions.replaceChildren(
      el("h3", {}, "Decisions", el("span", { class: "note" }, "newest first, by the group's history")),
      rows.length ? el("ol", { class: "feed", tabindex: 0 }, rows) : el("p", { class: "empty" }, "Nothing has changed hands in the last hour."),
      el("p", { class: "note" }, "Why a strategy wants a move stands in the queries' logs: lines with “balance:”."),
    );
    this.parts.decisions.hidden = !this.data.group.partitions.length && !rows.length;
    if (rows.length) this.parts.decisions.querySelector("ol").scrollTop = scrolled;
  }

  sentence({ event, from, to, by }, what) {
    const [before, after, author] = [from, to, by].map((id) => (id === null || this.colours.has(id) ? this.who(id) : id));
    if (event === "HandOver") return [before, ` handed ${what} over to `, after];
    if (event === "Release") return [before, ` gave ${what} back`];
    if (event === "Seen") return to === null ? [before, ` gave ${what} back`] : from === null ? [after, ` has ${what}`] : [what, " moved from ", before, " to ", after];
    if (event === "Steal") return [after, ` took ${what} from `, before];
    if (event === "Claim") return from === null || from === to ? [after, ` claimed ${what}`] : [after, ` took ${what} from `, before];
    const orders = { PinTo: "pinned", Transfer: "transferred", Unpin: "unpinned", Seek: "moved the position of", Drain: "drained", Restore: "restored" };
    return [author, ` ${orders[event] ?? event} `, event === "Drain" ? before : what];
  }

  drawMembers() {
    const { members, partitions, leader, leaseMs, keepsAll } = this.data.group;
    const columns = ["member", "host", "state", "strategy", "partitions", "events/s", "backlog", "batch", "host CPU", "last seen"];
    const cell = (at, ...children) => el("td", { class: at >= 4 ? "n" : null, "data-label": columns[at] }, ...children);
    const rows = members.map((each) => {
      const owned = partitions.filter((one) => one.owner === each.id).length;
      const silent = leaseMs && now() - each.seen > leaseMs;
      const values = [
        [this.swatch(each.id), each.id, each.id === leader ? el("span", { class: "chip", "aria-label": "the oldest active member, which tidies the table" }, "leader") : null],
        [each.host || "–"],
        [el("span", { class: each.state === "active" ? null : "warn" }, each.state)],
        [each.strategy || "–"],
        [each.most === null ? String(owned) : `${owned} of at most ${each.most}`],
        [number(each.rate)],
        [number(each.backlog)],
        [each.batch === null ? "–" : duration(1000 * each.batch)],
        [each.cpu === null ? "–" : `${Math.round(100 * each.cpu)} %`],
        [age(each.seen, "span", { class: silent ? "bad" : null })],
      ];
      return el("tr", {}, values.map((value, at) => cell(at, ...value)));
    });
    this.parts.members.replaceChildren(
      el("h3", {}, "Members", rows.length ? el("span", { class: "note" }, `oldest first; started ${ago(members[0].started)}${members.length > 1 ? ` to ${ago(members.at(-1).started)}` : ""}`) : null),
      rows.length ? el("table", {}, el("thead", {}, el("tr", {}, columns.map((name, at) => el("th", { class: at >= 4 ? "n" : null }, name)))), el("tbody", {}, rows)) : el("p", { class: "empty" }, keepsAll ? "Nobody reads this group." : "This store keeps no members."),
    );
  }
}

/** For how long the oldest unread event has waited, in ms; null: not known. */
function wait([events, since]) {
  return events === 0 ? 0 : since === null ? null : Math.max(0, now() - since);
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

// One group, drawn from the sections that the server sends (view.py).

import { HOUR } from "./charts.js";
import { drawEach, drawLag, wait } from "./lag.js";
import { drawDecisions, drawMoves } from "./moves.js";
import { age, ago, count, duration, el, now, number, percent, whole } from "./text.js";

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
      ["problem", "tiles", "owners", "lag", "moves", "decisions", "each", "members"].map((name) => [
        name,
        el("section", { class: name }),
      ]),
    );
    const { problem, tiles, ...cards } = this.parts;
    for (const each of Object.values(cards)) each.classList.add("card");
    this.switches = ["events", "seconds"].map((unit) => el("button", { on: () => this.change({ unit }) }, unit));
    this.more = el("button", { class: "more", on: () => this.change({ all: !this.all }) });
    this.each = { note: el("span", { class: "note" }), parts: el("div", { class: "parts" }) };
    this.parts.each.append(
      el("h3", {}, "Lag per partition", this.each.note, el("span", { class: "switch" }, this.switches)),
      this.each.parts,
      this.more,
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
      if (has("group", "colours", "moves")) (this.head(), this.drawTiles(), this.drawOwners(), this.drawMembers());
      if (has("group", "lag")) drawLag(this);
      if (has("group", "lagMinutes", "colours")) drawEach(this);
      if (has("moves", "colours")) drawMoves(this);
      if (has("decisions", "colours", "group")) drawDecisions(this);
      this.body.hidden = false;
    }
    this.drawProblem();
  }

  tick(slow) {
    this.drawProblem();
    if (!this.data.group) return;
    this.drawTiles();
    drawLag(this);
    if (slow) (drawMoves(this), drawEach(this));
  }

  drawProblem() {
    const age = this.looked === null ? null : now() - this.looked;
    const old = age !== null && age > 15000 ? `What is shown is ${duration(age)} old.` : "";
    const text = this.problem
      ? `${this.problem}. ${this.looked === null ? "It is shown here as soon as it can be read." : `What is shown is ${duration(age)} old.`}`
      : this.looked === null
        ? "Reading the table …"
        : old;
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

  /** Whether no sign of life of the member was seen for the lease duration. */
  silent(member) {
    const { leaseMs } = this.data.group;
    return leaseMs && now() - member.seen > leaseMs;
  }

  /** Unread events and the oldest one's wait in ms, of those that are known; `more`: it may be longer; `old`: when the
   * oldest of this was measured, if that is longer ago than a lease lasts. */
  lag() {
    const known = this.data.group.partitions.filter((each) => each.lag);
    const waits = known.map((each) => wait(each.lag)).filter((each) => each !== null);
    const events = known.reduce((sum, each) => sum + each.lag[0], 0);
    const at = Math.min(...known.map((each) => each.lag[2]));
    return {
      known: known.length,
      events: known.length ? events : null,
      wait: waits.length ? Math.max(...waits) : null,
      more: waits.length < known.length,
      old: now() - at > (this.data.group.leaseMs ?? Infinity) ? at : null,
    };
  }

  drawTiles() {
    const { partitions, members } = this.data.group;
    const free = partitions.filter((each) => each.owner === null).length;
    const active = members.filter((each) => each.state === "active").length;
    const pending = partitions.filter((each) => each.next !== null).length;
    const lag = this.lag();
    const silent = members.filter((each) => this.silent(each)).length;
    const rate = members.some((each) => each.rate !== null)
      ? members.reduce((sum, each) => sum + ((!this.silent(each) && each.rate) || 0), 0)
      : null;
    const measured =
      lag.known === 0
        ? "not measured"
        : lag.old !== null
          ? `measured up to ${ago(lag.old)}`
          : lag.known < partitions.length
            ? `of ${lag.known} measured partitions`
            : "in all partitions";
    const tile = (name, value, more, warn) =>
      el("dl", { class: `tile${warn ? " warn" : ""}` }, el("dt", {}, name), el("dd", {}, value, el("small", {}, more)));
    this.parts.tiles.replaceChildren(
      tile(
        "Partitions",
        number(partitions.length),
        free ? `${free} without an owner` : partitions.length ? "all owned" : "none yet",
        free,
      ),
      tile(
        "Members",
        number(members.length || new Set(partitions.map((each) => each.owner).filter(Boolean)).size),
        silent
          ? `${silent} without a sign of life`
          : members.length > active
            ? `${members.length - active} leaving`
            : this.data.group.keepsAll
              ? "all active"
              : "owners",
        silent,
      ),
      tile("Moves", number(this.moves()), pending ? `last hour; ${pending} pending` : "in the last hour"),
      tile("Unread", number(lag.events), `events, ${measured}`),
      tile(
        "Longest wait",
        lag.wait === null ? "–" : `${lag.more ? "≥ " : ""}${duration(lag.wait)}`,
        lag.known && lag.wait === null ? "not measured" : "of an unread event",
      ),
      tile("Reading", rate === null ? "–" : number(rate), rate === null ? "not measured" : "events/s, all members"),
    );
  }

  moves() {
    const begin = now() - HOUR;
    return this.data.moves.lanes.reduce(
      (sum, [, lane]) =>
        sum + lane.filter(([start, , owner], at) => at && start > begin && owner !== lane[at - 1][2]).length,
      0,
    );
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
      const state =
        owner === null ? "" : member ? (member.state === "active" ? "" : member.state) : keepsAll ? "has left" : "";
      const cells = theirs.map((each) => this.cell(each));
      return el(
        "div",
        { class: "row" },
        el(
          "div",
          { class: "name", "aria-label": owner === null ? "partitions without an owner" : owner },
          this.swatch(owner),
          el("b", {}, owner ?? "nobody"),
          el("i", {}, String(theirs.length)),
          state ? el("span", { class: "chip warn" }, state) : null,
        ),
        el(
          "div",
          { class: `cells ${partitions.length <= 16 ? "few" : partitions.length > 64 ? "many" : ""}` },
          cells.length ? cells : el("span", { class: "empty" }, "nothing"),
        ),
      );
    });
    if (!rows.length)
      rows.push(
        el(
          "p",
          { class: "empty" },
          "The group has no partitions and no members yet. They are shown here when its first query has started.",
        ),
      );
    this.parts.owners.style.setProperty("--n", Math.max(6, ...[...owned.values()].map((theirs) => theirs.length)));
    const noted =
      partitions.length && partitions.some((each) => each.lag)
        ? el("span", { class: "note" }, "a line in a cell: unread events, full at a million (logarithmic)")
        : null;
    this.parts.owners.replaceChildren(el("h3", {}, "Who owns what", noted), ...rows);
    this.owners = new Map(partitions.map((each) => [each.id, each.owner]));
  }

  cell(each) {
    const moved = this.owners.has(each.id) && this.owners.get(each.id) !== each.owner;
    if (moved) (this.movedAt ??= new Map()).set(each.id, Date.now());
    const since = Date.now() - (this.movedAt?.get(each.id) ?? 0);
    const lag = each.lag && each.lag[0] > 0 ? el("u", {}) : null;
    if (lag) lag.style.width = percent(Math.min(1, Math.log10(1 + each.lag[0]) / 6));
    const made = el(
      "div",
      {
        class: `cell ${this.colour(each.owner)}${each.pin !== null ? " pinned" : ""}${since < 2500 ? " moved" : ""}`,
        "aria-label": this.described(each),
        role: "img",
      },
      each.id,
      lag,
      each.next !== null ? el("s", { class: this.colour(each.next) }) : null,
    );
    if (since < 2500) made.style.animationDelay = `-${since}ms`;
    return made;
  }

  described(each) {
    const lines = [
      `partition ${each.id}: ${each.owner ?? "nobody"}${each.owner !== null && each.since ? `, for ${duration(now() - each.since)}` : ""}`,
    ];
    if (each.next !== null) lines.push(`is being handed over to ${each.next}`);
    if (each.pin !== null) lines.push(`pinned to ${each.pin}`);
    lines.push(
      each.lag
        ? `${count(each.lag[0], "unread event")}${each.lag[0] && wait(each.lag) !== null ? `, for ${duration(wait(each.lag))}` : ""}`
        : "lag not measured",
    );
    if (each.lag) lines.push(`measured ${ago(each.lag[2])}`);
    if (each.readUpTo !== null) lines.push(`read up to ${whole.format(each.readUpTo)}, epoch ${each.epoch}`);
    return lines.join("\n");
  }

  // --- lag

  change(settings) {
    Object.assign(this, settings);
    drawEach(this);
  }

  // --- moves, decisions, members

  drawMembers() {
    const { members, partitions, leader, keepsAll } = this.data.group;
    const columns = [
      "member",
      "host",
      "state",
      "strategy",
      "partitions",
      "events/s",
      "backlog",
      "batch",
      "host CPU",
      "last seen",
    ];
    const cell = (at, ...children) => el("td", { class: at >= 4 ? "n" : null, "data-label": columns[at] }, ...children);
    const rows = members.map((each) => {
      const owned = partitions.filter((one) => one.owner === each.id).length;
      const silent = this.silent(each);
      const values = [
        [
          this.swatch(each.id),
          each.id,
          each.id === leader
            ? el("span", { class: "chip", "aria-label": "the oldest active member, which tidies the table" }, "leader")
            : null,
        ],
        [each.host || "–"],
        [el("span", { class: each.state === "active" ? null : "warn" }, each.state)],
        [each.strategy || "–"],
        [each.most === null ? String(owned) : `${owned} of at most ${each.most}`],
        [number(each.rate)],
        [number(each.backlog)],
        [
          each.batch === null ? "–" : duration(1000 * each.batch),
          each.batchSince !== null && !silent ? `, now ${duration(now() - each.batchSince)}` : null,
        ],
        [each.cpu === null ? "–" : `${Math.round(100 * each.cpu)} %`],
        [age(each.seen, "span", { class: silent ? "bad" : null })],
      ];
      return el(
        "tr",
        {},
        values.map((value, at) => cell(at, ...value)),
      );
    });
    this.parts.members.replaceChildren(
      el(
        "h3",
        {},
        "Members",
        rows.length
          ? el(
              "span",
              { class: "note" },
              `oldest first; started ${ago(members[0].started)}${members.length > 1 ? ` to ${ago(members.at(-1).started)}` : ""}`,
            )
          : null,
      ),
      rows.length
        ? el(
            "table",
            {},
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                columns.map((name, at) => el("th", { class: at >= 4 ? "n" : null }, name)),
              ),
            ),
            el("tbody", {}, rows),
          )
        : el("p", { class: "empty" }, keepsAll ? "Nobody reads this group." : "This store keeps no members."),
    );
  }
}

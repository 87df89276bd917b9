// Draws groups from their facts (page.py), embedded in a saved page or fetched every second. Foreign texts are inserted as
// text, never as HTML.

const embedded = JSON.parse(document.getElementById("facts").textContent);
const saved = Array.isArray(embedded);
const live = document.getElementById("live");
const SHOWN = 32; // partitions listed initially

function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") element.addEventListener("click", value);
    else if (value) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, seconds);
  if (s < 120) return `${s < 10 && s % 1 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

class Group {
  constructor() {
    this.root = el("article", {});
    this.all = false;
  }

  draw(facts) {
    this.facts = facts;
    if (facts.problem) {
      this.root.replaceChildren(el("h2", {}, facts.table), el("p", { class: "problem" }, facts.problem));
      return;
    }
    const lease = facts.leaseDuration ? ` · lease duration ${duration(facts.leaseDuration)}` : "";
    this.root.replaceChildren(
      el("h2", {}, facts.eventHub),
      el("p", { class: "sub" }, `consumer group ${facts.consumerGroup} · ${facts.namespace}${lease} · ${facts.table}`),
      this.tiles(),
      this.findings(),
      this.owners(),
      this.partitions(),
      this.members(),
      this.history(),
    );
  }

  ago(at) {
    return at === null || Date.parse(at) <= 0 ? "–" : `${duration(this.seconds(at))} ago`;
  }

  seconds(at) {
    return Math.round((Date.parse(this.facts.at) - Date.parse(at)) / 1000);
  }

  name(id) {
    return id ?? "nobody";
  }

  tiles() {
    const { partitions, members, lag } = this.facts;
    const free = partitions.filter((partition) => partition.owner === null).length;
    const silent = members.filter((member) => !member.live).length;
    const rates = members.filter((member) => member.load && member.live).map((member) => member.load.rate);
    const tile = (name, value, more, warn) =>
      el("dl", { class: `tile${warn ? " warn" : ""}` }, el("dt", {}, name), el("dd", {}, value), el("dd", {}, more));
    return el(
      "div",
      { class: "tiles" },
      tile("Partitions", number(partitions.length), free ? `${free} unowned` : "all owned", free),
      tile("Members", number(members.length), silent ? `${silent} not live` : "all live", silent),
      tile("Unread", lag ? number(lag.events) : "–", lag ? `events in ${lag.partitions} partitions` : "not measured"),
      tile("Longest wait", lag ? duration(lag.seconds) : "–", "of an unread event"),
      tile("Reading", rates.length ? number(rates.reduce((sum, rate) => sum + rate, 0)) : "–", "events/s"),
    );
  }

  card(title, note, ...children) {
    return el("section", { class: "card" }, el("h3", {}, title, el("span", { class: "note" }, note)), ...children);
  }

  findings() {
    const rows = this.facts.findings.map((finding) =>
      el("li", { class: finding.severity }, el("b", {}, finding.text), el("span", { class: "note" }, finding.remedy)),
    );
    return this.card("Findings", rows.length ? "worst first" : "none", el("ul", { class: "findings" }, rows));
  }

  owners() {
    const owned = new Map(this.facts.members.map((member) => [member.member, []]));
    for (const partition of this.facts.partitions)
      owned.set(partition.owner, [...(owned.get(partition.owner) ?? []), partition]);
    const cell = (partition) =>
      el(
        "span",
        {
          class: `cell${partition.owner === null ? " none" : partition.pin ? " pinned" : ""}`,
          title: partition.pin ? `pinned to ${partition.pin.to}` : null,
        },
        partition.partition,
        partition.nextOwner ? el("i", {}, ` → ${partition.nextOwner}`) : null,
      );
    const rows = [...owned].map(([id, partitions]) =>
      el(
        "div",
        { class: "row" },
        el("div", { class: "name" }, this.name(id), el("i", {}, ` ${partitions.length}`)),
        el("div", { class: "cells" }, partitions.map(cell)),
      ),
    );
    return this.card("Owners", "an arrow: a handover is pending; a frame: pinned", rows);
  }

  table(columns, rows) {
    const cell = (value, at) => el("td", { class: columns[at][1] }, value ?? "–");
    return el(
      "table",
      {},
      el("thead", {}, el("tr", {}, columns.map(([name, kind]) => el("th", { class: kind }, name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))),
    );
  }

  partitions() {
    const all = this.facts.partitions;
    const wait = ({ lag }) => (lag && lag.events ? (lag.seconds ?? Infinity) : -1);
    const many = all.length > SHOWN;
    const most = new Set([...all].sort((a, b) => wait(b) - wait(a)).slice(0, SHOWN));
    const rows = (many && !this.all ? all.filter((partition) => most.has(partition)) : all).map((partition) => [
      partition.partition,
      this.name(partition.owner),
      partition.lag && number(partition.lag.events),
      partition.lag && (partition.lag.events ? duration(partition.lag.seconds) : ""),
      partition.lag && this.ago(partition.lag.measuredAt),
      partition.sequenceNumber === null ? null : number(partition.sequenceNumber + 1),
      partition.owner && partition.ownedSince && duration(this.seconds(partition.ownedSince)),
      number(partition.epoch),
    ]);
    const change = () => ((this.all = !this.all), this.draw(this.facts));
    const button = many ? el("button", { on: change }, this.all ? "only the longest waits" : `all ${all.length}`) : null;
    const columns = [["partition"], ["owner"], ["unread", "n"], ["waiting", "n"], ["measured", "n"], ["next", "n"]];
    columns.push(["owned for", "n"], ["epoch", "n"]);
    const note = many && !this.all ? `the ${SHOWN} with the longest waits` : "";
    return this.card("Partitions", note, this.table(columns, rows), button);
  }

  members() {
    const rows = this.facts.members.map((member) => [
      this.name(member.member),
      member.host,
      member.state && (member.live ? member.state : "not live"),
      member.strategy,
      member.maxPartitionsOwned === null
        ? number(member.partitions.length)
        : `${member.partitions.length} of at most ${member.maxPartitionsOwned}`,
      member.load && number(member.load.rate),
      member.load && duration(member.load.batchSeconds),
      member.inBatchSince && member.live ? duration(this.seconds(member.inBatchSince)) : "",
      this.ago(member.renewedAt),
    ]);
    const columns = [["member"], ["host"], ["state"], ["strategy"], ["partitions", "n"], ["events/s", "n"]];
    columns.push(["batch", "n"], ["in batch for", "n"], ["last seen", "n"]);
    return this.card("Members", "oldest first", this.table(columns, rows));
  }

  history() {
    const isSame = (one, other) =>
      one && ["event", "owner_before", "owner", "by", "why"].every((name) => one[name] === other[name]) && one.at_ms - other.at_ms < 1000;
    const changes = [];
    for (const change of this.facts.history) {
      if (isSame(changes.at(-1), change)) changes.at(-1).partition = `${change.partition}, ${changes.at(-1).partition}`;
      else changes.push({ ...change });
    }
    const rows = changes.map((change) => [
      new Date(change.at_ms).toISOString().slice(0, 19).replace("T", " "),
      change.partition ?? "",
      change.event,
      this.name(change.owner_before),
      this.name(change.owner),
      change.by,
      change.why ?? "",
    ]);
    const columns = [["time (UTC)"], ["partition"], ["event"], ["from"], ["to"], ["by"], ["why"]];
    return this.card("History", rows.length ? "last hour, newest first" : "no changes in the last hour", this.table(columns, rows));
  }
}

const groups = Array.from({ length: saved ? embedded.length : embedded }, () => new Group());
document.querySelector("main").append(...groups.map((group) => group.root));

async function follow(group, at) {
  let lastResponse = Date.now();
  for (;;) {
    try {
      const response = await fetch(`facts/${at}`, { signal: AbortSignal.timeout(10000) });
      group.draw(await response.json());
      lastResponse = Date.now();
      group.away = "";
    } catch {
      group.away = `disconnected for ${duration((Date.now() - lastResponse) / 1000)}`;
    }
    const away = groups.map((group) => group.away).find(Boolean);
    live.textContent = away ?? "live";
    live.className = document.body.className = away ? "away" : "on";
    await new Promise((done) => setTimeout(done, 1000));
  }
}

if (saved) {
  embedded.forEach((facts, at) => groups[at].draw(facts));
  live.textContent = `saved ${embedded.length ? embedded[0].at.slice(0, 19).replace("T", " ") : ""} UTC`;
} else groups.forEach(follow);

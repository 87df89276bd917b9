// Draws groups from their facts (page.py): embedded in a saved page, otherwise fetched every second. All texts are set as
// text, because others wrote them.

const given = JSON.parse(document.getElementById("facts").textContent);
const saved = Array.isArray(given);
const live = document.getElementById("live");
const SHOWN = 32; // partitions listed at first

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") made.addEventListener("click", value);
    else if (value) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return made;
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

  who(id) {
    return id ?? "nobody";
  }

  tiles() {
    const { partitions, members, lag } = this.facts;
    const free = partitions.filter((each) => each.owner === null).length;
    const silent = members.filter((each) => !each.live).length;
    const rates = members.filter((each) => each.load && each.live).map((each) => each.load.rate);
    const tile = (name, value, more, warn) =>
      el("dl", { class: `tile${warn ? " warn" : ""}` }, el("dt", {}, name), el("dd", {}, value), el("dd", {}, more));
    return el(
      "div",
      { class: "tiles" },
      tile("Partitions", number(partitions.length), free ? `${free} unowned` : "all owned", free),
      tile("Members", number(members.length), silent ? `${silent} not live` : "all live", silent),
      tile("Unread", lag ? number(lag.events) : "–", lag ? `events in ${lag.partitions} partitions` : "not measured"),
      tile("Longest wait", lag ? duration(lag.seconds) : "–", "of an unread event"),
      tile("Reading", rates.length ? number(rates.reduce((sum, each) => sum + each, 0)) : "–", "events/s"),
    );
  }

  card(title, note, ...children) {
    return el("section", { class: "card" }, el("h3", {}, title, el("span", { class: "note" }, note)), ...children);
  }

  findings() {
    const rows = this.facts.findings.map((each) =>
      el("li", { class: each.severity }, el("b", {}, each.text), el("span", { class: "note" }, each.remedy)),
    );
    return this.card("Findings", rows.length ? "the worst first" : "none", el("ul", { class: "findings" }, rows));
  }

  owners() {
    const owned = new Map(this.facts.members.map((each) => [each.member, []]));
    for (const each of this.facts.partitions) owned.set(each.owner, [...(owned.get(each.owner) ?? []), each]);
    const cell = (each) =>
      el(
        "span",
        {
          class: `cell${each.owner === null ? " none" : each.pin ? " pinned" : ""}`,
          title: each.pin ? `pinned to ${each.pin.to}` : null,
        },
        each.partition,
        each.nextOwner ? el("i", {}, ` → ${each.nextOwner}`) : null,
      );
    const rows = [...owned].map(([id, theirs]) =>
      el(
        "div",
        { class: "row" },
        el("div", { class: "name" }, this.who(id), el("i", {}, ` ${theirs.length}`)),
        el("div", { class: "cells" }, theirs.map(cell)),
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
    const rows = (many && !this.all ? all.filter((each) => most.has(each)) : all).map((each) => [
      each.partition,
      this.who(each.owner),
      each.lag && number(each.lag.events),
      each.lag && (each.lag.events ? duration(each.lag.seconds) : ""),
      each.lag && this.ago(each.lag.measuredAt),
      each.sequenceNumber === null ? null : number(each.sequenceNumber + 1),
      each.owner && each.ownedSince && duration(this.seconds(each.ownedSince)),
      number(each.epoch),
    ]);
    const change = () => ((this.all = !this.all), this.draw(this.facts));
    const button = many ? el("button", { on: change }, this.all ? "only the longest waits" : `all ${all.length}`) : null;
    const columns = [["partition"], ["owner"], ["unread", "n"], ["waiting", "n"], ["measured", "n"], ["next", "n"]];
    columns.push(["owned for", "n"], ["epoch", "n"]);
    const note = many && !this.all ? `the ${SHOWN} with the longest waits` : "";
    return this.card("Partitions", note, this.table(columns, rows), button);
  }

  members() {
    const rows = this.facts.members.map((each) => [
      this.who(each.member),
      each.host,
      each.state && (each.live ? each.state : "not live"),
      each.strategy,
      each.maxPartitionsOwned === null
        ? number(each.partitions.length)
        : `${each.partitions.length} of at most ${each.maxPartitionsOwned}`,
      each.load && number(each.load.rate),
      each.load && duration(each.load.batchSeconds),
      each.inBatchSince && each.live ? duration(this.seconds(each.inBatchSince)) : "",
      each.load && each.load.cpu !== null ? `${Math.round(100 * each.load.cpu)} %` : null,
      this.ago(each.renewedAt),
    ]);
    const columns = [["member"], ["host"], ["state"], ["strategy"], ["partitions", "n"], ["events/s", "n"]];
    columns.push(["batch", "n"], ["in batch for", "n"], ["host CPU", "n"], ["last seen", "n"]);
    return this.card("Members", "oldest first", this.table(columns, rows));
  }

  history() {
    const same = (one, other) =>
      one && ["event", "owner_before", "owner", "by", "why"].every((name) => one[name] === other[name]) && one.at_ms - other.at_ms < 1000;
    const deeds = [];
    for (const each of this.facts.history) {
      if (same(deeds.at(-1), each)) deeds.at(-1).partition = `${each.partition}, ${deeds.at(-1).partition}`;
      else deeds.push({ ...each });
    }
    const rows = deeds.map((each) => [
      new Date(each.at_ms).toISOString().slice(0, 19).replace("T", " "),
      each.partition ?? "",
      each.event,
      this.who(each.owner_before),
      this.who(each.owner),
      each.by,
      each.why ?? "",
    ]);
    const columns = [["time (UTC)"], ["partition"], ["event"], ["from"], ["to"], ["by"], ["why"]];
    return this.card("History", rows.length ? "of the last hour, newest first" : "no changes in the last hour", this.table(columns, rows));
  }
}

const groups = Array.from({ length: saved ? given.length : given }, () => new Group());
document.querySelector("main").append(...groups.map((each) => each.root));

async function follow(group, at) {
  let heard = Date.now();
  for (;;) {
    try {
      const answer = await fetch(`facts/${at}`, { signal: AbortSignal.timeout(10000) });
      group.draw(await answer.json());
      heard = Date.now();
      group.away = "";
    } catch {
      group.away = `disconnected for ${duration((Date.now() - heard) / 1000)}`;
    }
    const away = groups.map((each) => each.away).find(Boolean);
    live.textContent = away ?? "live";
    live.className = document.body.className = away ? "away" : "on";
    await new Promise((done) => setTimeout(done, 1000));
  }
}

if (saved) {
  given.forEach((facts, at) => groups[at].draw(facts));
  live.textContent = `saved ${given.length ? given[0].at.slice(0, 19).replace("T", " ") : ""} UTC`;
} else groups.forEach(follow);

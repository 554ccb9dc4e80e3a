/** Holdfast itself: whether the daemon, its store, its detectors and the agents work. */

import { duration, whole } from "../format.js";
import { html, useEffect } from "../html.js";
import { Badge } from "../parts/badge.js";
import { Empty, Fetched, Time } from "../parts/states.js";
import { runHref } from "../router.js";
import { useJson } from "../use_live.js";

const AGAIN_MS = 5000;

/** Shows the daemon's own state, renewed every few seconds while the page is visible. */
export function HoldfastPage() {
  const answer = useJson("api/holdfast");
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && answer.reload(), AGAIN_MS);
    return () => clearInterval(timer);
  }, [answer.reload]);
  return html`<h1>Holdfast itself</h1>
    <${Fetched} of=${answer} what="the state of the daemon">${(data) => html`<${Parts} data=${data} />`}<//>`;
}

function Parts({ data }) {
  const { store, ticks } = data;
  const times = Object.entries(ticks).filter(([name]) => name.endsWith("_s"));
  return html`
    <div class="columns">
      <section aria-label="Daemon"><h2>Daemon</h2><dl class="numbers">
        <${Row} name="Name" value=${data.daemon} />
        <${Row} name="Version" value=${data.version} />
        <${Row} name="Up for" value=${duration(data.uptime_s)} />
        <${Row} name="Leads" value=${data.leader_of.length ? data.leader_of.map((run, index) => html`${index > 0 && ", "}
          <a key=${run} href=${runHref(run)}>${run}</a>`) : "no run: another daemon does, or there is none"} />
        <${Row} name="Open pages" value=${whole(data.pages_open)} />
      </dl></section>
      <section aria-label="Store and ticks"><h2>Store and ticks</h2><dl class="numbers">
        <${Row} name="Store" value=${html`<${Badge} health=${store.up ? "ok" : "bad"}
          text=${store.up ? "reachable" : "unreachable"} />`} />
        <${Row} name="Calls of the store" value=${`${whole(store.operations)}, ${whole(store.failures)} failed`} />
        <${Row} name="Ticks" value=${`${whole(ticks.count)}, ${whole(ticks.failed)} failed`} />
        ${times.map(([name, seconds]) => html`<${Row} key=${name} name=${`Tick time, ${name.replace(/_s$/, "")}`}
          value=${duration(seconds)} />`)}
      </dl></section>
    </div>
    <div class="columns">
      <section aria-label="Detectors"><h2>Detectors</h2>
        ${data.detectors.length === 0 ? html`<${Empty}>No detector has run yet.<//>` : html`<table class="detectors">
          <caption class="hidden">Detectors</caption>
          <thead><tr><th scope="col">Detector</th><th scope="col" class="num">Time</th>
            <th scope="col" class="num">Failures</th></tr></thead>
          <tbody>${data.detectors.map((item) => html`<tr key=${item.name}><th scope="row">${item.name}</th>
            <td class="num">${duration(item.seconds)}</td>
            <td class=${`num ${item.failures ? "bad-text" : ""}`}>${whole(item.failures)}</td></tr>`)}</tbody></table>`}
      </section>
      <section aria-label="Agents"><h2>Agents</h2>
        ${data.agents.length === 0 ? html`<${Empty}>No agent reports to this daemon.<//>` : html`<table>
          <caption class="hidden">Agents</caption>
          <thead><tr><th scope="col">Node</th><th scope="col">Run</th><th scope="col">Last report</th></tr></thead>
          <tbody>${data.agents.map((item) => html`<tr key=${`${item.node} ${item.run}`}><th scope="row">${item.node}</th>
            <td>${item.run}</td><td><${Time} unixS=${item.reported_unix_s} /></td></tr>`)}</tbody></table>`}
        <h2>Refused messages</h2>
        ${Object.keys(data.refused).length === 0 ? html`<${Empty}>None. The daemon refuses messages that it cannot read.<//>`
          : html`<dl class="numbers">${Object.entries(data.refused).map(([source, count]) => html`<${Row} key=${source}
            name=${source} value=${whole(count)} />`)}</dl>`}
      </section>
    </div>`;
}

function Row({ name, value }) {
  return html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
}

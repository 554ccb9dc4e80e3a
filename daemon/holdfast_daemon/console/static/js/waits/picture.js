/** A hang as a picture: the ranks that hold others up on the left, and who waits for them. */

import { rankRanges, rankWords } from "../format.js";
import { html, useId, useMemo } from "../html.js";
import { callWords, groupWaits } from "./wait_groups.js";

const BOX = { width: 168, height: 44, gapX: 190, gapY: 20 };
const MOST_BOXES = 40;
const MOST_IN_LINE = 22;

/**
 * Draws the waits of an incident, and lists them in a table.
 * @param {{waits: {waiter: number, awaited: number, group: string, seq: number, op: string}[], culprits: number[]}} props
 */
export function WaitPicture({ waits, culprits }) {
  const heading = useId();
  const graph = useMemo(() => groupWaits(waits, culprits), [waits, culprits]);
  const places = useMemo(() => placeNodes(graph.nodes), [graph]);
  const rows = useMemo(() => tableRows(waits), [waits]);
  const roots = graph.nodes.filter((node) => node.root).flatMap((node) => node.ranks);
  const waiters = new Set(waits.map((wait) => wait.waiter)).size;
  const summary = roots.length > 0
    ? `${waiters} ${waiters === 1 ? "rank waits" : "ranks wait"}, in the end for ${rankWords(roots)}`
    : `${waiters} ranks wait for each other in a circle`;
  return html`<figure class="waits">
    <figcaption id=${heading}>${summary}.</figcaption>
    <div class="scroll" tabindex="0" role="region" aria-labelledby=${heading}>
      <svg width=${places.width} height=${places.height} viewBox=${`0 0 ${places.width} ${places.height}`} role="img"
        aria-label=${`${summary}. The table below says the same.`}>
        <defs><marker id=${`${heading}-arrow`} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"
          orient="auto"><path class="arrow" d="M0 0l8 4-8 4z" /></marker></defs>
        ${graph.edges.map((edge) => html`<${Edge} key=${`${edge.from} ${edge.to}`} edge=${edge} at=${places.at}
          marker=${`url(#${heading}-arrow)`} />`)}
        ${graph.nodes.map((node, index) => places.at[index] && html`<${Box} key=${index} node=${node}
          place=${places.at[index]} />`)}
      </svg>
    </div>
    ${places.left > 0 && html`<p class="quiet">${places.left} more groups of ranks are in the table only.</p>`}
    <details><summary>As a table</summary>
      <table><caption class="hidden">${summary}</caption>
        <thead><tr><th scope="col">Waiting</th><th scope="col">For</th><th scope="col">In the call</th></tr></thead>
        <tbody>${rows.map((row) => html`<tr key=${row.call + row.awaited}><th scope="row">${rankWords(row.waiters)}</th>
          <td>${rankWords(row.awaited)}</td><td>${row.call}</td></tr>`)}</tbody></table>
    </details>
  </figure>`;
}

function Box({ node, place }) {
  const ranges = rankRanges(node.ranks);
  const noun = node.ranks.length === 1 ? "rank" : "ranks";
  const words = ranges.length > MOST_IN_LINE ? `${node.ranks.length} ranks` : `${noun} ${ranges}`;
  return html`<g class=${node.root ? "root" : "waiter"} transform=${`translate(${place.x} ${place.y})`}>
    <title>${rankWords(node.ranks)}</title>
    <rect width=${BOX.width} height=${BOX.height} rx="6" />
    <text x=${BOX.width / 2} y="19">${words}</text>
    <text class="small" x=${BOX.width / 2} y="35">${roleWords(node)}</text>
  </g>`;
}

function roleWords({ root, ranks }) {
  const many = ranks.length > 1;
  if (root) return many ? "hold the others up" : "holds the others up";
  return many ? "wait" : "waits";
}

function Edge({ edge, at, marker }) {
  const [from, to] = [at[edge.from], at[edge.to]];
  if (!from || !to || edge.from === edge.to) return null;
  const right = from.x > to.x;
  const start = { x: right ? from.x : from.x + BOX.width / 2, y: right ? from.y + BOX.height / 2 : from.y };
  const end = { x: right ? to.x + BOX.width : to.x + BOX.width / 2, y: right ? to.y + BOX.height / 2 : to.y + BOX.height };
  const middle = (start.x + end.x) / 2;
  const label = edge.label.length > 26 ? `${edge.label.slice(0, 25)}…` : edge.label;
  return html`<g class="edge">
    <title>${edge.label}</title>
    <path d=${right ? `M${start.x} ${start.y}C${middle} ${start.y} ${middle} ${end.y} ${end.x} ${end.y}`
      : `M${start.x} ${start.y}L${end.x} ${end.y}`} marker-end=${marker} />
    ${right && html`<text class="small" x=${start.x - BOX.gapX / 2 + 4} y=${start.y - 6}>${label}</text>`}
  </g>`;
}

function placeNodes(nodes) {
  const order = nodes.map((_, index) => index).sort((a, b) => nodes[a].level - nodes[b].level);
  const rows = [];
  const at = [];
  for (const index of order.slice(0, MOST_BOXES)) {
    const { level } = nodes[index];
    rows[level] = (rows[level] ?? -1) + 1;
    at[index] = { x: 1 + level * (BOX.width + BOX.gapX), y: 10 + rows[level] * (BOX.height + BOX.gapY), level };
  }
  const most = Math.max(...rows.map((count) => count ?? 0), 0) + 1;
  // A short column is centred beside the longest one.
  for (const place of at) {
    if (place) place.y += ((most - 1 - rows[place.level]) * (BOX.height + BOX.gapY)) / 2;
  }
  return { at, left: Math.max(nodes.length - MOST_BOXES, 0), width: rows.length * (BOX.width + BOX.gapX) - BOX.gapX + 2,
    height: most * (BOX.height + BOX.gapY) + 10 };
}

// Waiters of the same ranks in the same call share a row.
function tableRows(waits) {
  const awaitedBy = new Map();
  for (const wait of waits) {
    const key = JSON.stringify([wait.waiter, callWords(wait)]);
    awaitedBy.set(key, [...(awaitedBy.get(key) ?? []), wait.awaited]);
  }
  const rows = new Map();
  for (const [key, awaited] of awaitedBy) {
    const [waiter, call] = JSON.parse(key);
    const sign = JSON.stringify([call, awaited]);
    if (!rows.has(sign)) rows.set(sign, { call, awaited, waiters: [] });
    rows.get(sign).waiters.push(waiter);
  }
  return [...rows.values()];
}

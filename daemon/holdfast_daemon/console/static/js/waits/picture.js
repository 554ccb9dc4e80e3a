/** A hang as a picture: the ranks that hold others up on the left, and who waits for them. */

import { rankRanges, rankWords } from "../format.js";
import { html, useEffect, useId, useMemo, useState } from "../html.js";
import { awaitedCalls, groupWaits } from "./wait_groups.js";

const BOX = { width: 168, height: 44 };
// Levels are columns, and rows on a narrow screen. The gap between levels has room for the name of a call.
const GAP = { level: 190, down: 48, beside: 20 };
const narrow = window.matchMedia("(max-width: 600px)");
const MOST_BOXES = 40;
const MOST_IN_LINE = 22;

/**
 * Draws the waits of an incident, and lists them in a table.
 * @param {{waits: object[], waiting: number, culprits: number[]}} props `waits`: as `groupWaits` takes them. `waiting`:
 *     the number of all ranks that wait.
 */
export function WaitPicture({ waits, waiting, culprits }) {
  const heading = useId();
  const graph = useMemo(() => groupWaits(waits, culprits), [waits, culprits]);
  const down = useNarrow();
  const places = useMemo(() => placeNodes(graph.nodes, down), [graph, down]);
  const rows = useMemo(() => tableRows(waits), [waits]);
  const roots = graph.nodes.filter((node) => node.root).flatMap((node) => node.ranks);
  const summary = roots.length > 0
    ? `${waiting} ${waiting === 1 ? "rank waits" : "ranks wait"}, in the end for ${rankWords(roots)}`
    : `${waiting} ranks wait for each other in a circle`;
  return html`<figure class="waits">
    <figcaption id=${heading}>${summary}.</figcaption>
    <div class="scroll" tabindex="0" role="region" aria-labelledby=${heading}>
      <svg width=${places.width} height=${places.height} viewBox=${`0 0 ${places.width} ${places.height}`} role="img"
        aria-label=${`${summary}. The table below says the same.`}>
        <defs><marker id=${`${heading}-arrow`} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"
          orient="auto"><path class="arrow" d="M0 0l8 4-8 4z" /></marker></defs>
        ${graph.edges.map((edge) => html`<${Edge} key=${`${edge.from} ${edge.to}`} edge=${edge} at=${places.at} down=${down}
          marker=${`url(#${heading}-arrow)`} />`)}
        ${graph.nodes.map((node, index) => places.at[index] && html`<${Box} key=${index} node=${node}
          place=${places.at[index]} />`)}
      </svg>
    </div>
    ${places.left > 0 && html`<p class="quiet">${places.left} more groups of ranks are in the table only.</p>`}
    <details><summary>As a table</summary>
      <table><caption class="hidden">${summary}</caption>
        <thead><tr><th scope="col">Waiting</th><th scope="col">For</th><th scope="col">In the call</th></tr></thead>
        <tbody>${rows.map((row) => html`<tr key=${`${row.call} ${row.waiters} ${row.awaited}`}><th scope="row">${listedWords(row.waiters, row.more)}</th>
          <td>${rankWords(row.awaited)}</td><td>${row.call}</td></tr>`)}</tbody></table>
    </details>
  </figure>`;
}

function Box({ node, place }) {
  const ranges = rankRanges(node.ranks);
  const number = node.ranks.length + node.more;
  const words = node.more > 0 || ranges.length > MOST_IN_LINE ? `${number} ranks`
    : `${number === 1 ? "rank" : "ranks"} ${ranges}`;
  return html`<g class=${node.root ? "root" : "waiter"} transform=${`translate(${place.x} ${place.y})`}>
    <title>${listedWords(node.ranks, node.more)}</title>
    <rect width=${BOX.width} height=${BOX.height} rx="6" />
    <text x=${BOX.width / 2} y="19">${words}</text>
    <text class="small" x=${BOX.width / 2} y="35">${roleWords(node)}</text>
  </g>`;
}

function listedWords(ranks, more) {
  return more > 0 ? `${rankWords(ranks)} and ${more} more` : rankWords(ranks);
}

function roleWords({ root, ranks, more }) {
  const many = ranks.length + more > 1;
  if (root) return many ? "hold the others up" : "holds the others up";
  return many ? "wait" : "waits";
}

function Edge({ edge, at, down, marker }) {
  const [from, to] = [at[edge.from], at[edge.to]];
  if (!from || !to || edge.from === edge.to) return null;
  const ahead = from.level > to.level;
  const [start, end] = ahead && !down
    ? [{ x: from.x, y: from.y + BOX.height / 2 }, { x: to.x + BOX.width, y: to.y + BOX.height / 2 }]
    : [{ x: from.x + BOX.width / 2, y: from.y }, { x: to.x + BOX.width / 2, y: to.y + BOX.height }];
  const middle = (start.x + end.x) / 2;
  const label = edge.label.length > 28 ? `${edge.label.slice(0, 27)}…` : edge.label;
  const path = ahead && !down ? `M${start.x} ${start.y}C${middle} ${start.y} ${middle} ${end.y} ${end.x} ${end.y}`
    : `M${start.x} ${start.y}L${end.x} ${end.y}`;
  return html`<g class="edge">
    <title>${edge.label}</title>
    <path d=${path} marker-end=${marker} />
    ${ahead && !down && html`<text class="small" x=${start.x - GAP.level / 2 + 4} y=${start.y - 6}>${label}</text>`}
    ${ahead && down && html`<text class="small beside" x=${start.x + 8} y=${start.y - GAP.down / 2 + 4}>${label}</text>`}
  </g>`;
}

function useNarrow() {
  const [is, setIs] = useState(narrow.matches);
  useEffect(() => {
    const follow = () => setIs(narrow.matches);
    narrow.addEventListener("change", follow);
    return () => narrow.removeEventListener("change", follow);
  }, []);
  return is;
}

function placeNodes(nodes, down) {
  const order = nodes.map((_, index) => index).sort((a, b) => nodes[a].level - nodes[b].level);
  const along = down ? BOX.height + GAP.down : BOX.width + GAP.level;
  const across = (down ? BOX.width : BOX.height) + GAP.beside;
  const counts = [];
  const at = [];
  for (const index of order.slice(0, MOST_BOXES)) {
    const { level } = nodes[index];
    at[index] = { level, turn: counts[level] ?? 0 };
    counts[level] = at[index].turn + 1;
  }
  const most = Math.max(...counts, 1);
  for (const place of at.filter(Boolean)) {
    // A level with few boxes is centred on the fullest one.
    const aside = (place.turn + (down ? 0 : (most - counts[place.level]) / 2)) * across + 2;
    const ahead = place.level * along + 2;
    [place.x, place.y] = down ? [aside, ahead] : [ahead, aside];
  }
  const length = counts.length * along - (down ? GAP.down : GAP.level) + 4;
  const breadth = most * across - GAP.beside + 4;
  const [width, height] = down ? [Math.max(breadth, 320), length] : [length, breadth];
  return { at, width, height: height + (down ? 0 : 12), left: Math.max(nodes.length - MOST_BOXES, 0) };
}

// Ranks for which the same ones wait in the same call share a row.
function tableRows(waits) {
  const rows = new Map();
  for (const { awaited, call, waiters, number } of awaitedCalls(waits)) {
    const sign = JSON.stringify([call, waiters, number]);
    if (!rows.has(sign)) rows.set(sign, { call, awaited: [], waiters, more: number - waiters.length });
    rows.get(sign).awaited.push(awaited);
  }
  return [...rows.values()];
}

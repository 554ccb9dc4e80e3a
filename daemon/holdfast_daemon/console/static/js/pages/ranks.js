/** All ranks of a run: the map, the odd ones, and one rank in detail. */

import { runPath } from "../api.js";
import { counted, whole } from "../format.js";
import { html, useCallback, useEffect, useRef, useState } from "../html.js";
import { openStream } from "../live.js";
import { Empty, Loading } from "../parts/states.js";
import { Legend } from "../ranks/legend.js";
import { MeshMap } from "../ranks/mesh_map.js";
import { rankWords } from "../ranks/palette.js";
import { RankPanel } from "../ranks/rank_panel.js";
import { runHref } from "../router.js";

const COLOURS = [["health", "Health"], ["phase", "Phase"], ["step_time", "Step time"], ["memory", "Memory"],
  ["utilisation", "Utilisation"]];

/** Shows the ranks and follows them. An address with a rank opens that rank's panel, with the log of a generation. */
export function RanksPage({ run, rank, generation, session }) {
  const [by, setBy] = useState("health");
  const [search, setSearch] = useState("");
  const [page, setPage] = useState(1);
  const { mesh, stale, subscribe } = useMesh(run, by, search, page);
  const find = (text) => {
    setSearch(text);
    setPage(1);
  };
  const map = useRef(null);
  const open = (chosen) => { location.hash = runHref(run, "ranks", String(chosen)); };
  const close = () => {
    location.hash = runHref(run, "ranks");
    map.current?.querySelector(".mesh").focus();
  };
  return html`<div class="bar">
      <label>Colour by <select value=${by} onChange=${(event) => setBy(event.target.value)}>
        ${COLOURS.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}</select></label>
      <${SearchBox} onSearch=${find} />
      ${mesh && html`<${Legend} legend=${mesh.legend} />`}
    </div>
    ${mesh && html`<p class="quiet totals">${totalsText(mesh.totals)}</p>
      <${Pages} mesh=${mesh} search=${search} page=${page} onPage=${setPage} />`}
    <div role="status">${stale && html`<p class="attention-text">${stale}</p>`}</div>
    ${mesh === null && html`<${Loading} what="the ranks" />`}
    ${mesh?.count === 0 && html`<${Empty}>${search ? `No rank matches “${search}”.`
      : "No rank has reported yet. Ranks appear when their agents have started them."}<//>`}
    ${mesh?.count > 0 && html`<div class="ranks">
      <section aria-label="Map of ranks" ref=${map}><${MeshMap} mesh=${mesh} subscribe=${subscribe} onOpen=${open} /></section>
      <section aria-label="Odd ranks" class="odd"><h2>Odd ranks first</h2>
        <${OddList} mesh=${mesh} stale=${stale} chosen=${rank} run=${run} /></section>
    </div>`}
    ${rank !== undefined && html`<${RankPanel} key=${rank} run=${run} rank=${rank} generation=${generation}
      session=${session} onClose=${close} />`}`;
}

function OddList({ mesh, stale, chosen, run }) {
  if (mesh.odd.length === 0) return html`<${Empty}>${stale ? "Unknown." : "No rank stands out."}<//>`;
  return html`<ul>${mesh.odd.map((rank) => html`<li key=${rank}>
    <a href=${runHref(run, "ranks", String(rank))} aria-current=${rank === chosen ? "true" : undefined}>rank ${rank}</a>
    <span>${mesh.odd_elsewhere[rank]?.what ?? rankWords(mesh, rank)}</span>
    <span class="quiet">${mesh.odd_elsewhere[rank]?.node ?? mesh.nodes[mesh.node_of[mesh.ranks.indexOf(rank)]]}</span>
    </li>`)}</ul>
    ${mesh.odd_count > mesh.odd.length && html`<p class="quiet">${counted(mesh.odd_count, "odd rank")} in all: search for a
      state, such as “exited”, to see the others.</p>`}`;
}

/** A box for a rank, a range, or a text. The key / leads to it, Enter searches, and Escape shows all ranks again. */
function SearchBox({ onSearch }) {
  const box = useRef(null);
  useEffect(() => {
    const jump = (event) => {
      const isTyping = event.target.closest?.("input, select, textarea, dialog");
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
      event.preventDefault();
      box.current.focus();
    };
    document.addEventListener("keydown", jump);
    return () => document.removeEventListener("keydown", jump);
  }, []);
  const check = () => {
    const [, first, last] = box.current.value.trim().match(/^(\d+)-(\d+)$/) ?? [];
    box.current.setCustomValidity(Number(first) > Number(last) ? `This range ends before it begins: ${last}-${first}` : "");
    if (box.current.value === "") onSearch("");
  };
  const submit = (event) => {
    event.preventDefault();
    onSearch(box.current.value.trim());
  };
  const leave = (event) => {
    if (event.key !== "Escape") return;
    box.current.value = "";
    check();
  };
  return html`<form role="search" onSubmit=${submit}><label>Search <input type="search" ref=${box} maxlength="100" size="28"
    placeholder="rank, 128-135, node or state" onInput=${check} onKeyDown=${leave} /></label></form>`;
}

/** Which of how many ranks the map has, and the way to the others. */
function Pages({ mesh, search, page, onPage }) {
  const { first, count, matching, page_size: size } = mesh;
  if (matching <= size && !search) return null;
  const which = search ? "that match" : "in all";
  const range = count < matching && count > 0 ? `${whole(first + 1)} to ${whole(first + count)} of ` : "";
  return html`<nav class="bar" aria-label="Pages of ranks">
    <span role="status">${range}${counted(matching, "rank")} ${which}</span>
    ${matching > size && html`<button type="button" disabled=${page === 1}
      onClick=${() => onPage(page - 1)}>Previous page</button>
    <button type="button" disabled=${first + count >= matching} onClick=${() => onPage(page + 1)}>Next page</button>`}
  </nav>`;
}

function totalsText(totals) {
  const numbers = Object.values(totals);
  const all = numbers.reduce((sum, number) => sum + number, 0);
  const kinds = Object.entries(totals).map(([word, number]) => `${whole(number)} ${word}`).join(", ");
  return kinds ? `${counted(all, "rank")}: ${kinds}` : "";
}

function useMesh(run, by, search, page) {
  const [mesh, setMesh] = useState(null);
  const [stale, setStale] = useState("");
  const [, setTurn] = useState(0);
  const listeners = useRef(new Set());
  useEffect(() => {
    setMesh(null);
    setStale("");
    const query = new URLSearchParams({ colour: by, search, page });
    return openStream(`${runPath(run, "ranks", "stream")}?${query}`, {
      frame: (frame) => {
        setMesh(frame);
        setStale(frame.stale);
      },
      change: (change) => {
        listeners.current.forEach((handle) => handle(change));
        // The map draws by itself; list and legend are rendered again.
        if (change.stale !== undefined) setStale(change.stale);
        if (change.odd || change.behind || change.legend || change.totals) setTurn((old) => old + 1);
      },
    });
  }, [run, by, search, page]);
  const subscribe = useCallback((handle) => {
    listeners.current.add(handle);
    return () => listeners.current.delete(handle);
  }, []);
  return { mesh, stale, subscribe };
}

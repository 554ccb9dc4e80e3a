/** All ranks of a run: the map, the odd ones, and one rank in detail. */

import { runPath } from "../api.js";
import { counted } from "../format.js";
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
  const { mesh, stale, subscribe } = useMesh(run, by);
  const map = useRef(null);
  const open = (chosen) => { location.hash = runHref(run, "ranks", String(chosen)); };
  const close = () => {
    location.hash = runHref(run, "ranks");
    map.current?.querySelector(".mesh").focus();
  };
  return html`<div class="bar">
      <label>Colour by <select value=${by} onChange=${(event) => setBy(event.target.value)}>
        ${COLOURS.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}</select></label>
      ${mesh && html`<${Legend} legend=${mesh.legend} /><span class="quiet">${counted(mesh.count, "rank")}</span>`}
    </div>
    <div role="status">${stale && html`<p class="attention-text">${stale}</p>`}</div>
    ${mesh === null && html`<${Loading} what="the ranks" />`}
    ${mesh?.count === 0 && html`<${Empty}>No rank has reported yet. Ranks appear when their agents have started them.<//>`}
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
    <span>${rankWords(mesh, rank)}</span>
    <span class="quiet">${mesh.nodes[mesh.node_of[rank]]}</span></li>`)}</ul>`;
}

function useMesh(run, by) {
  const [mesh, setMesh] = useState(null);
  const [stale, setStale] = useState("");
  const [, setTurn] = useState(0);
  const listeners = useRef(new Set());
  useEffect(() => {
    setMesh(null);
    setStale("");
    return openStream(`${runPath(run, "ranks", "stream")}?colour=${by}`, {
      frame: (frame) => {
        setMesh(frame);
        setStale(frame.stale);
      },
      change: (change) => {
        listeners.current.forEach((handle) => handle(change));
        // The map draws by itself; list and legend are rendered again.
        if (change.stale !== undefined) setStale(change.stale);
        if (change.odd || change.behind || change.legend) setTurn((old) => old + 1);
      },
    });
  }, [run, by]);
  const subscribe = useCallback((handle) => {
    listeners.current.add(handle);
    return () => listeners.current.delete(handle);
  }, []);
  return { mesh, stale, subscribe };
}

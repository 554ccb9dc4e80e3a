/** The map of ranks: a canvas that pointer and keyboard can use. */

import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { THEME_CHANGED } from "../theme.js";
import { neighbour, rankAt } from "./mesh_layout.js";
import { MeshPainter } from "./mesh_painter.js";
import { rankWords } from "./palette.js";

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const MAX_HEIGHT = 620;

/**
 * Shows a cell for each rank.
 * @param {{mesh: object, subscribe: (handle: (change: object) => void) => () => void,
 *     onOpen: (rank: number) => void}} props `mesh` is the whole frame; changes arrive through `subscribe`.
 */
export function MeshMap({ mesh, subscribe, onOpen }) {
  const place = useRef(null);
  const cells = useRef(null);
  const outlines = useRef(null);
  const painter = useRef(null);
  const focused = useRef(-1);
  const hovered = useRef(-1);
  const [said, setSaid] = useState("");
  const [tip, setTip] = useState(null);
  const [words, setWords] = useState("");

  const describe = (cell) => {
    const { mesh: shown } = painter.current;
    const rank = shown.ranks[cell];
    const node = shown.nodes[shown.node_of[cell]] ?? "node unknown";
    return `rank ${rank}, ${node}: ${rankWords(shown, rank)}${shown.odd.includes(rank) ? ", odd" : ""}`;
  };

  useLayoutEffect(() => {
    const created = new MeshPainter(cells.current, outlines.current);
    painter.current = created;
    let width = 0;
    const fit = () => {
      if (place.current.clientWidth === width) return;
      width = place.current.clientWidth;
      created.show(mesh, width, MAX_HEIGHT);
      setWords(created.layout.words);
    };
    fit();
    const watch = new ResizeObserver(fit);
    watch.observe(place.current);
    const recolour = () => created.recolour();
    window.addEventListener(THEME_CHANGED, recolour);
    const forget = subscribe((change) => {
      created.update(change);
      if (focused.current >= 0) setSaid(describe(focused.current));
    });
    return () => {
      forget();
      watch.disconnect();
      window.removeEventListener(THEME_CHANGED, recolour);
      created.close();
    };
  }, [mesh, subscribe]);
  useEffect(() => {
    focused.current = -1;
    hovered.current = -1;
    setTip(null);
  }, [mesh]);

  const outline = () => painter.current.point(focused.current, hovered.current);
  const focusOn = (rank) => {
    focused.current = rank;
    setSaid(describe(rank));
    outline();
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (focused.current >= 0) onOpen(mesh.ranks[focused.current]);
      return;
    }
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    focusOn(focused.current < 0 ? 0 : neighbour(painter.current.layout, focused.current, ...move));
  };
  const at = (event) => {
    const box = outlines.current.getBoundingClientRect();
    return rankAt(painter.current.layout, event.clientX - box.left, event.clientY - box.top);
  };
  const onPointerMove = (event) => {
    const rank = at(event);
    if (rank === hovered.current) return;
    hovered.current = rank;
    const { layout } = painter.current;
    setTip(rank < 0 ? null : { text: describe(rank), x: layout.x[rank], y: layout.y[rank] + layout.size + 6,
      right: layout.x[rank] > layout.width / 2 });
    outline();
  };
  const leave = () => {
    hovered.current = -1;
    setTip(null);
    outline();
  };
  const click = (event) => {
    const rank = at(event);
    if (rank < 0) return;
    focusOn(rank);
    onOpen(mesh.ranks[rank]);
  };
  const tipStyle = tip && (tip.right ? { right: `calc(100% - ${tip.x}px)`, top: `${tip.y}px` }
    : { left: `${tip.x}px`, top: `${tip.y}px` });
  return html`<div class="mesh" ref=${place} tabindex="0" role="application" aria-roledescription="map of ranks"
      aria-label=${`Map of ${mesh.count} ranks. Arrow keys move over the cells, Enter opens a rank.`}
      onKeyDown=${onKeyDown} onFocus=${() => focused.current < 0 && focusOn(Math.max(mesh.ranks.indexOf(mesh.odd[0]), 0))}
      onPointerMove=${onPointerMove} onPointerLeave=${leave} onClick=${click}>
      <canvas ref=${cells} aria-hidden="true"></canvas>
      <canvas ref=${outlines} class="over" aria-hidden="true"></canvas>
      ${tip && html`<div class="tip" aria-hidden="true" style=${tipStyle}>${tip.text}</div>`}
    </div>
    <p class="quiet cell-words"><span>${words} Odd ranks are outlined.</span>
      <span aria-live="polite" class="said">${said}</span></p>`;
}

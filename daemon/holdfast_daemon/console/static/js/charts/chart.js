/** A chart with its title, the value under the cursor, and links to the incidents on it. */

import { counted, figure } from "../format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { THEME_CHANGED } from "../theme.js";
import { ceiling } from "./curve_data.js";
import { columns, createPlot, pointWords } from "./plot.js";

/**
 * Shows one quantity.
 * @param {{title: string, curve: object, isBad: boolean, other: object | null, weight: number, none: string,
 *     log: boolean, isCut: boolean, version: number, low: number, high: number,
 *     onZoom: (range: {min: number, max: number} | null) => void, marks: {step: number, text: string, href: string}[]}} props
 *     `isBad`: the newest value is not finite; `none`: words for a curve without values; `isCut`: a few
 *     values far above all others are cut off; `version` changes when the curve has new points; `low` and `high` are the steps at the ends of the axis.
 */
export function Chart({ title, curve, isBad, other, weight, none, log, isCut, version, low, high, onZoom, marks }) {
  const place = useRef(null);
  const links = useRef(null);
  const readout = useRef(null);
  const plot = useRef(null);
  const newest = useRef({});
  const cutAt = isCut ? ceiling(curve) : null;
  newest.current = { marks, nonfinite: curve.nonfinite, onZoom, cutAt };
  const [theme, setTheme] = useState(0);

  useEffect(() => {
    const follow = () => setTheme((old) => old + 1);
    window.addEventListener(THEME_CHANGED, follow);
    return () => window.removeEventListener(THEME_CHANGED, follow);
  }, []);

  const showPoint = () => {
    const index = plot.current?.cursor.idx ?? null;
    readout.current.textContent = index === null ? "" : pointWords(plot.current.data, index);
  };

  useLayoutEffect(() => {
    const created = createPlot(place.current, {
      log,
      onZoom: (zoom) => newest.current.onZoom(zoom),
      onCursor: showPoint,
      onDraw: (drawn) => placeLinks(drawn, links.current, newest.current.marks),
      marks: () => newest.current.marks,
      nonfinite: () => newest.current.nonfinite,
      ceiling: () => newest.current.cutAt,
    });
    plot.current = created;
    const watch = new ResizeObserver(() => {
      const width = place.current.clientWidth;
      if (width > 0 && width !== created.width) created.setSize({ width, height: created.height });
    });
    watch.observe(place.current);
    return () => {
      watch.disconnect();
      created.destroy();
    };
  }, [log, theme]);

  useLayoutEffect(() => {
    const frame = requestAnimationFrame(() => {
      plot.current.setData(columns(curve, other, { weight, log }), false);
      plot.current.setScale("x", { min: low, max: high > low ? high : low + 1 });
      // The point under the cursor may have other values now. uPlot finds it in a microtask that comes before this one.
      queueMicrotask(() => readout.current && showPoint());
    });
    return () => cancelAnimationFrame(frame);
  }, [curve, other, weight, log, theme, version, low, high, marks]);

  const move = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (!by || plot.current.data[0].length === 0) return;
    event.preventDefault();
    const steps = plot.current.data[0];
    const index = Math.min(Math.max((plot.current.cursor.idx ?? steps.length - by) + by, 0), steps.length - 1);
    plot.current.setCursor({ left: plot.current.valToPos(steps[index], "x"), top: 10 });
  };
  const values = curve.mean.filter((value) => value !== null);
  const newestWords = isBad ? "not finite" : values.length > 0 ? figure(values.at(-1)) : "";
  const summary = newestWords ? `newest ${newestWords} at step ${curve.step.at(-1) ?? "?"}` : none;
  return html`<figure class="chart">
    <figcaption>
      <h3>${title}</h3>
      <span class=${isBad ? "newest bad-text" : "newest"}>${newestWords}</span>
      ${curve.nonfinite.length > 0 && html`<span class="bad-text">
        ${counted(curve.nonfinite.length, "step")} not finite: ${fewSteps(curve.nonfinite)}</span>`}
      ${cutAt !== null && html`<span class="quiet">▲ up to ${figure(Math.max(...curve.high))}</span>`}
      <output class="readout" ref=${readout} aria-live="polite"></output>
    </figcaption>
    <div class="plot-area">
      <div class="plot" ref=${place} tabindex="0" role="application" onKeyDown=${move}
        aria-label=${`${title}: ${summary}. Left and right arrow keys read the values.`}></div>
      <div class="marks" ref=${links}>${marks.map((mark) => html`<a key=${mark.href} href=${mark.href}
        title=${mark.text} aria-label=${`At step ${mark.step}: ${mark.text}`}>!</a>`)}</div>
      ${values.length === 0 && html`<p class="no-values quiet">${none}</p>`}
    </div>
  </figure>`;
}

function fewSteps(steps) {
  return steps.length > 3 ? `${steps.slice(0, 3).join(", ")} …` : steps.join(", ");
}

function placeLinks(plot, holder, marks) {
  const left = plot.over.offsetLeft;
  marks.forEach(({ step }, index) => {
    const link = holder.children[index];
    if (!link) return;
    const x = plot.valToPos(step, "x");
    link.hidden = x < -1 || x > plot.over.clientWidth + 1;
    link.style.left = `${left + x}px`;
  });
}

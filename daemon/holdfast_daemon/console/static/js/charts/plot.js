/** One uPlot chart: series, colours, zoom, and what is drawn over the curves. */

import uPlot from "../../vendor/uplot/uplot.js";
import { figure, short } from "../format.js";
import { colour } from "../theme.js";
import { calmRange, smoothed } from "./curve_data.js";

const SYNC = "holdfast-run";
const HEIGHT = 200;

/**
 * Builds the columns of a chart: step, low, high, raw, smoothed, and the smoothed curve of another run.
 * @param {import("./curve_data.js").Curve} curve
 * @param {import("./curve_data.js").Curve | null} other
 * @param {{weight: number, log: boolean}} view On a log scale, values that have no logarithm are left out.
 */
export function columns(curve, other, { weight, log }) {
  const shown = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
  const own = [curve.step, shown(curve.low), shown(curve.high), shown(curve.mean), shown(smoothed(curve.mean, weight))];
  if (!other || other.step.length === 0) return [...own, curve.step.map(() => null)];
  return uPlot.join([own, [other.step, shown(smoothed(other.mean, weight))]]);
}

/**
 * Creates a chart in an element.
 * @param {HTMLElement} place
 * @param {{log: boolean, onZoom: (range: {min: number, max: number} | null) => void,
 *     onCursor: () => void, onDraw: (plot: uPlot) => void, marks: () => {step: number}[],
 *     nonfinite: () => number[], ceiling: () => number | null}} options `ceiling`: where the axis ends; null: at the
 *     largest value.
 * @returns {uPlot}
 */
export function createPlot(place, options) {
  const ink = colours();
  const axis = { stroke: ink.muted, grid: { stroke: ink.line, width: 1 }, ticks: { stroke: ink.line, width: 1, size: 4 },
    font: "11px system-ui, sans-serif" };
  return new uPlot({
    width: Math.max(place.clientWidth, 200),
    height: HEIGHT,
    padding: [18, 18, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: false },
      y: options.log ? { distr: 3 } : { range: (_, low, high) => calmRange(low, options.ceiling() ?? high) },
    },
    axes: [
      { ...axis, size: 28, values: (_, steps) => steps.map((step) => (Number.isInteger(step) ? short(step) : "")) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) },
    ],
    series: [
      {},
      { stroke: "transparent", width: 0, points: { show: false } },
      { stroke: "transparent", width: 0, points: { show: false } },
      { stroke: ink.raw, width: 1, points: { show: false } },
      { stroke: ink.accent, width: 2, points: { show: (plot) => plot.data[0].length === 1 } },
      { stroke: ink.other, width: 2, dash: [6, 4], points: { show: false } },
    ],
    bands: [{ series: [2, 1], fill: ink.band }],
    cursor: {
      sync: { key: SYNC, scales: ["x", null] },
      drag: { x: true, y: false, setScale: false },
      points: { show: (_, series) => series === 4 },
      y: false,
      bind: { dblclick: () => () => options.onZoom(null) },
    },
    hooks: {
      setSelect: [(plot) => {
        const { left, width } = plot.select;
        if (width < 4) return;
        options.onZoom({ min: plot.posToVal(left, "x"), max: plot.posToVal(left + width, "x") });
        plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
      setCursor: [() => options.onCursor()],
      draw: [(plot) => {
        drawMarks(plot, options.marks(), ink);
        drawNonfinite(plot, options.nonfinite(), ink);
        drawAbove(plot, options.ceiling(), ink);
        options.onDraw(plot);
      }],
    },
  }, [[], [], [], [], [], []], place);
}

/** Returns the words for one point of a chart. */
export function pointWords(data, index) {
  const [steps, low, high, raw, smooth, other] = data.map((column) => column[index]);
  if (steps === undefined) return "";
  const parts = [`step ${steps}: ${figure(raw ?? null)}`];
  if (low !== high && low !== null) parts.push(`${figure(low)} to ${figure(high)}`);
  if (smooth !== raw && smooth !== null) parts.push(`smoothed ${figure(smooth)}`);
  if (other !== null && other !== undefined) parts.push(`other run ${figure(other)}`);
  return parts.join(" · ");
}

function colours() {
  return { muted: colour("--muted"), line: colour("--line"), accent: colour("--accent"), raw: colour("--accent-soft"),
    band: colour("--accent-band"), other: colour("--other-run"), bad: colour("--bad") };
}

function drawMarks(plot, marks, ink) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ink.bad;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const { step } of marks) {
    const x = Math.round(plot.valToPos(step, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function drawNonfinite(plot, steps, ink) {
  const { ctx, bbox } = plot;
  const half = 4 * devicePixelRatio;
  ctx.save();
  ctx.setLineDash([]);
  ctx.strokeStyle = ink.bad;
  ctx.lineWidth = 2 * devicePixelRatio;
  for (const step of steps) {
    const x = plot.valToPos(step, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    const y = bbox.top + bbox.height - 2 * half;
    ctx.beginPath();
    ctx.moveTo(x - half, y - half);
    ctx.lineTo(x + half, y + half);
    ctx.moveTo(x + half, y - half);
    ctx.lineTo(x - half, y + half);
    ctx.stroke();
  }
  ctx.restore();
}

function drawAbove(plot, ceiling, ink) {
  if (ceiling === null) return;
  const { ctx, bbox } = plot;
  const half = 4 * devicePixelRatio;
  ctx.save();
  ctx.fillStyle = ink.accent;
  plot.data[0].forEach((step, index) => {
    const x = plot.valToPos(step, "x", true);
    if (!(plot.data[2][index] > ceiling) || x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x - half, bbox.top + 2 * half);
    ctx.lineTo(x + half, bbox.top + 2 * half);
    ctx.fill();
  });
  ctx.restore();
}

/** Curves of a run: what the history holds, and the steps that arrive while the page is open. */

/** Quantities that the page charts, in its order. */
export const QUANTITIES = ["loss", "grad_norm", "tokens_per_s", "step_s", "validation_loss", "learning_rate"];

/** The memory of the fullest rank: a curve of the history alone, in GiB here. */
export const MEMORY = "memory_bytes";
const GIB = 2 ** 30;

// Columns of the rows of a `steps` event.
const COLUMNS = { loss: 2, grad_norm: 3, tokens_per_s: 4, step_s: 5, learning_rate: 6, validation_loss: 7 };

// A value is far above the others if it exceeds the 95th percentile by this factor.
const FAR = 3;
const USUAL = 0.95;
const FEWEST = 20;

/**
 * One curve. `low` and `high` bound the steps that a point stands for; null is a step without a value.
 * @typedef {{step: number[], mean: (number | null)[], low: (number | null)[], high: (number | null)[],
 *     nonfinite: number[]}} Curve
 */

/** Returns a curve without points. */
export function emptyCurve() {
  return { step: [], mean: [], low: [], high: [], nonfinite: [] };
}

/**
 * Returns the curves of an answer of the API, with an empty one for each name that it lacks.
 * @returns {Record<string, Curve>}
 */
export function readCurves(answer, names = QUANTITIES) {
  return Object.fromEntries(names.map((name) => {
    const { step, mean, low, high, nonfinite } = answer?.curves?.[name] ?? emptyCurve();
    const shown = (values) => (name === MEMORY ? values.map((value) => value === null ? null : value / GIB) : values);
    return [name, { step, mean: shown(mean), low: shown(low), high: shown(high), nonfinite }];
  }));
}

/**
 * Adds new steps to curves in place. Steps that a restart undid are taken out first. A curve has no point at a step that
 * did not report its quantity, and a gap at one where it was not finite.
 * @param {Record<string, Curve>} curves
 * @param {{rows: (number | null)[][], undone_after: number | null, nonfinite?: Record<string, number[]>}} event
 */
export function appendSteps(curves, event) {
  for (const name of QUANTITIES) {
    const curve = curves[name];
    const bad = new Set(event.nonfinite?.[name] ?? []);
    if (event.undone_after !== null && event.undone_after !== undefined) cutAfter(curve, event.undone_after);
    for (const row of event.rows) {
      const value = row[COLUMNS[name]] ?? null;
      if (value === null && !bad.has(row[0])) continue;
      if (curve.step.length > 0 && row[0] <= curve.step.at(-1)) continue;
      if (bad.has(row[0])) curve.nonfinite.push(row[0]);
      curve.step.push(row[0]);
      curve.mean.push(value);
      curve.low.push(value);
      curve.high.push(value);
    }
  }
}

/**
 * Adds to fetched curves what has arrived since they were made, from the curves that were shown until then.
 * @param {Record<string, Curve>} curves
 * @param {Record<string, Curve>} shown
 */
export function carryOver(curves, shown) {
  for (const name of QUANTITIES) {
    const curve = curves[name];
    const old = shown[name];
    const newest = curve.step.at(-1) ?? -1;
    const from = old.step.findIndex((step) => step > newest);
    if (from < 0) continue;
    for (const column of ["step", "mean", "low", "high"]) curve[column].push(...old[column].slice(from));
    curve.nonfinite.push(...old.nonfinite.filter((step) => step > newest));
  }
}

/** Returns whether the newest value is not finite. A step that did not report the quantity has no point. */
export function endsBad(curve) {
  return curve.mean.length > 0 && curve.mean.at(-1) === null;
}

function cutAfter(curve, step) {
  while (curve.step.length > 0 && curve.step.at(-1) > step) {
    for (const column of [curve.step, curve.mean, curve.low, curve.high]) column.pop();
  }
  curve.nonfinite = curve.nonfinite.filter((at) => at <= step);
}

/**
 * Smooths values by an exponential average that is fair to the first points. Gaps stay gaps.
 * @param {(number | null)[]} values
 * @param {number} weight 0 (no smoothing) to less than 1.
 */
export function smoothed(values, weight) {
  if (weight === 0) return values;
  let sum = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

/**
 * Returns where the axis of a curve ends, if a few values far above all others would flatten it; null: nowhere before the
 * largest value. The first step of a run may take a hundred times as long as the others.
 */
export function ceiling(curve) {
  const values = curve.high.filter((value) => value !== null).sort((one, other) => one - other);
  const usual = values[Math.floor(USUAL * (values.length - 1))];
  return values.length >= FEWEST && values.at(-1) > FAR * usual ? FAR / 2 * usual : null;
}

/** Returns the part of a curve between two steps. */
export function between(curve, low, high) {
  const first = curve.step.findIndex((step) => step >= low);
  const after = curve.step.findIndex((step) => step > high);
  const end = after < 0 ? curve.step.length : after;
  const start = first < 0 ? end : first;
  const cut = (column) => column.slice(start, end);
  return { step: cut(curve.step), mean: cut(curve.mean), low: cut(curve.low), high: cut(curve.high),
    nonfinite: curve.nonfinite.filter((step) => step >= low && step <= high) };
}

/**
 * Returns the ends of the axis for values from `low` to `high`. One value needs a scale too, and a curve must not touch
 * the frame. Values that differ by rounding alone count as one: uPlot cannot divide a range that is too small for the
 * size of its numbers.
 */
export function calmRange(low, high) {
  if (low === null) return [0, 1];
  const size = Math.max(Math.abs(low), Math.abs(high));
  const margin = high - low > 1e-9 * size ? 0.06 * (high - low) : 0.05 * size || 1;
  if (!Number.isFinite(high - low + 2 * margin)) return [low, high];
  return [low >= 0 ? Math.max(low - margin, 0) : low - margin, high + margin];
}

/** The one place that binds htm to preact; every other module imports from here. */

import htm from "../vendor/htm/htm.js";
import { h } from "../vendor/preact/preact.js";

export { render } from "../vendor/preact/preact.js";
export {
  useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/preact/hooks.js";

/** Builds elements from a tagged template: html`<p class="note">${text}</p>`. */
export const html = htm.bind(h);

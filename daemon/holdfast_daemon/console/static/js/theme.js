/** Dark and light: as the system says, unless the toggle was used. Canvases read their colours from here. */

const KEY = "holdfast-theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");

/** Name of the event on `window` that says the colours have changed. */
export const THEME_CHANGED = "holdfast-theme-changed";

/** Applies the kept choice, and follows the system. */
export function startTheme() {
  const kept = localStorage.getItem(KEY);
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  dark.addEventListener("change", () => window.dispatchEvent(new Event(THEME_CHANGED)));
}

/** Returns "dark" or "light": what is shown now. */
export function shownTheme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

/** Switches between dark and light. A choice that equals the system's is not kept. */
export function toggleTheme() {
  const next = shownTheme() === "dark" ? "light" : "dark";
  if (next === (dark.matches ? "dark" : "light")) {
    localStorage.removeItem(KEY);
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem(KEY, next);
    document.documentElement.dataset.theme = next;
  }
  window.dispatchEvent(new Event(THEME_CHANGED));
}

/**
 * Returns the colour of a custom property as the browser resolves it now, for a canvas.
 * @param {string} name Such as `--accent`.
 */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

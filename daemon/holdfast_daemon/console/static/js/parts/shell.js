/** The frame of every page: navigation, theme, session. */

import { logout } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { ConnectionBanner } from "./connection_banner.js";
import { runHref } from "../router.js";
import { shownTheme, THEME_CHANGED, toggleTheme } from "../theme.js";

const TITLES = {
  runs: "Runs", run: "Overview", ranks: "Ranks", incidents: "Incidents", incident: "Incident",
  checkpoints: "Checkpoints", holdfast: "Holdfast itself", unknown: "No such page",
};
const TABS = [["run", "Overview", []], ["ranks", "Ranks", ["ranks"]], ["incidents", "Incidents", ["incidents"]],
  ["checkpoints", "Checkpoints", ["checkpoints"]]];

/** Wraps a page. After a change of the page, the focus moves to its heading, and the title names it. */
export function Shell({ route, session, onLogout, children }) {
  const main = useRef(null);
  const first = useRef(true);
  const place = `${route.page} ${route.run} ${route.incident}`;
  useEffect(() => {
    document.title = [TITLES[route.page], route.run, "Holdfast"].filter(Boolean).join(" · ");
    if (!first.current) {
      window.scrollTo(0, 0);
      main.current.focus({ preventScroll: true });
    }
    first.current = false;
  }, [place]);
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  // The link names this page: hashes are pages, and that of an element would be another one.
  return html`
    <header class="top">
      <a class="skip" href=${location.hash || "#/"} onClick=${skip}>Skip to content</a>
      <a class="brand" href="#/"><img src="favicon.svg" alt="" width="20" height="20" />Holdfast</a>
      <nav aria-label="Console">
        <a href="#/" aria-current=${route.page === "runs" ? "page" : undefined}>Runs</a>
        ${!session.ended && html`<a href="#/holdfast"
          aria-current=${route.page === "holdfast" ? "page" : undefined}>Holdfast itself</a>`}
      </nav>
      <span class="session" title=${`${session.ended ? "No daemon" : `Daemon ${session.daemon}`}, Holdfast ${session.version}`}>
        ${session.ended && html`<span class="who">from the files of ended runs</span>`}
        <span class="who">times in ${session.zone.name}</span>
        <span class="who">${session.role}</span>
        <${ThemeToggle} />
        <button type="button" class="plain" onClick=${() => logout().finally(onLogout)}>Log out</button>
      </span>
    </header>
    <main id="main" tabindex="-1" ref=${main}>
      ${route.run && html`<${RunTabs} route=${route} />`}
      <${ConnectionBanner} run=${route.run} />
      ${children}
    </main>`;
}

function RunTabs({ route }) {
  const current = route.page === "incident" ? "incidents" : route.page;
  return html`<div class="run-head">
    <h1>${route.run}${route.page !== "run" && html`<span class="sub"> ${TITLES[route.page].toLowerCase()}</span>`}</h1>
    <nav class="tabs" aria-label="Run">
      ${TABS.map(([page, text, rest]) => html`<a key=${page} href=${runHref(route.run, ...rest)}
        aria-current=${current === page ? "page" : undefined}>${text}</a>`)}
    </nav>
  </div>`;
}

function ThemeToggle() {
  const [theme, setTheme] = useState(shownTheme());
  useEffect(() => {
    const follow = () => setTheme(shownTheme());
    window.addEventListener(THEME_CHANGED, follow);
    return () => window.removeEventListener(THEME_CHANGED, follow);
  }, []);
  const other = theme === "dark" ? "light" : "dark";
  return html`<button type="button" class="plain" onClick=${toggleTheme}
    aria-label=${`Switch to ${other} colours`}>${other === "dark" ? "Dark" : "Light"}</button>`;
}

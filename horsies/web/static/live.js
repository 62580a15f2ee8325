// Live updates: when the server says that data changed, fetch the page again and patch only the differences.
// Rows of lists stay where the reader sees them until the reader acts or asks for the new ones.
import { keepTyped } from "./forms.js";
import { hold } from "./lists.js";
import { morph } from "./morph.js";

const base = document.documentElement.dataset.base;
const PAUSE = 1000, AGAIN = 2500;

export function live() {
  const main = document.getElementById("main"), sign = document.getElementById("live");
  const banner = document.getElementById("banner");
  let loading = false, stale = false, released = false, failed = Boolean(main.querySelector("[data-error]")), last = 0;

  let paused = false;

  function showState(state, text) {
    sign.className = `live ${paused ? "off" : state}`;
    sign.querySelector("span").textContent = paused ? "paused" : text;
  }

  // Let the page stand still until the viewer goes on. The viewer's own actions still show their outcome.
  function pause() {
    paused = !paused;
    sign.setAttribute("aria-pressed", String(paused));
    sign.title = paused ? "Resume the live updates of this page" : "Pause the live updates of this page";
    showState("off", "connecting");
    connect();
    if (!paused) refresh();
  }

  function showBanner(message) {
    banner.textContent = message ?? "";
    banner.hidden = !message;
  }

  async function load() {
    const holds = !released;
    released = false;
    const answer = await fetch(holds ? pinned() : location.href, { headers: { "X-Horsies-Fragment": "1" }, redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 401) return location.reload();
    const html = await answer.text();
    if (answer.status === 503) throw new Error(new DOMParser().parseFromString(html, "text/html").querySelector("h1")?.textContent);
    const fresh = document.createElement("main");
    fresh.innerHTML = html; // rendered and escaped by the server; scripts in it would not run
    if (holds) hold(main, fresh);
    keepTyped(main, fresh);
    morph(main, fresh);
    document.dispatchEvent(new CustomEvent("fresh"));
  }

  // The address of this page, with the first row that the reader sees.
  function pinned() {
    const address = new URL(location.href), pin = main.querySelector("[data-pin]")?.dataset.pin;
    if (pin) address.searchParams.set("pin", pin);
    return address;
  }

  async function refresh({ release = false } = {}) {
    released ||= release;
    if (loading) return void (stale = true);
    loading = true;
    stale = false;
    try {
      await load();
      failed = false;
      showBanner(null);
      showState("on", "live");
    } catch (error) {
      failed = true;
      showState("off", "reconnecting");
      const problem = error instanceof TypeError ? "The dashboard does not answer." : error.message;
      // A page that has shown nothing yet says itself what is wrong.
      if (!main.querySelector("[data-error]")) showBanner(`${problem || "The page could not be updated."} This page shows the state of ${new Date(last || performance.timeOrigin).toISOString().slice(11, 19)} UTC. Trying again…`);
    }
    if (!failed) last = Date.now();
    setTimeout(() => {
      loading = false;
      if (stale || (failed && !paused) || main.querySelector("[data-again]")) refresh();
    }, failed ? AGAIN : PAUSE);
  }

  // A browser opens at most six connections to a server, so a hidden page closes its stream.
  let source = null;
  function connect() {
    source?.close();
    source = null;
    if (document.hidden || paused) return;
    const mine = (source = new EventSource(`${base}/events`));
    mine.addEventListener("open", () => showState("on", "live"));
    mine.addEventListener("changed", () => refresh());
    mine.addEventListener("unavailable", () => refresh());
    // The server ends streams regularly and the browser opens the next one. Only a longer gap is shown.
    mine.addEventListener("error", () => setTimeout(() => source === mine && mine.readyState !== EventSource.OPEN && showState("off", "reconnecting"), AGAIN));
  }
  sign.addEventListener("click", pause);
  document.addEventListener("visibilitychange", connect);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-newer]")) return;
    event.preventDefault();
    refresh({ release: true });
  });
  connect();
  if (failed || main.querySelector("[data-again]")) setTimeout(() => refresh(), failed ? AGAIN : PAUSE);
  return refresh;
}

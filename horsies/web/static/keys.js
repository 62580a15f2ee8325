// Keyboard shortcuts: g and a letter open a page, j and k move in a list, ? lists all shortcuts.

const SEQUENCE_MS = 1200; // between g and the letter
const HELP = [
  ["g o", "overview"], ["g t", "tasks"], ["g e", "failures"], ["g q", "queues"], ["g w", "workers"], ["g f", "workflows"],
  ["g p", "waiting for people"], ["g s", "schedules"], ["g h", "health"], ["g a", "API"], ["/", "find a task"], ["j  k", "down and up in a list"],
  ["Enter", "open the marked row"], ["x", "select the marked row"], ["n", "older page"], ["s", "pause or resume live updates"], ["d", "light or dark"],
  ["?", "keyboard shortcuts"], ["Esc", "close"],
];

// The row that is marked, by its key: rows come and go.
let marked = null;
const rows = () => [...document.querySelectorAll("tr[data-row]")];
const row = () => rows().find((each) => each.dataset.row === marked);

function mark(step) {
  const all = rows();
  if (!all.length) return;
  const before = all.findIndex((each) => each.dataset.row === marked);
  all[before]?.classList.remove("marked");
  all[before]?.removeAttribute("data-mine");
  const now = all[Math.max(0, Math.min(all.length - 1, before + step))];
  marked = now.dataset.row;
  now.classList.add("marked");
  now.dataset.mine = "1";
  now.scrollIntoView({ block: "nearest" });
}

function help() {
  const dialog = document.getElementById("keys");
  const list = document.createElement("dl");
  for (const [key, what] of HELP) {
    const term = document.createElement("dt"), about = document.createElement("dd"), shown = document.createElement("kbd");
    shown.textContent = key;
    term.append(shown);
    about.textContent = what;
    list.append(term, about);
  }
  const title = document.createElement("h2");
  title.textContent = "Keyboard shortcuts";
  title.id = "keys-title";
  dialog.replaceChildren(title, list);
  dialog.showModal();
}

const ACTS = {
  "/": () => document.getElementById("search").focus(),
  "?": help,
  j: () => mark(1),
  k: () => mark(-1),
  x: () => row()?.querySelector(".pick")?.click(),
  n: () => document.getElementById("older")?.click(),
  s: () => document.getElementById("live").click(),
  d: () => document.getElementById("theme").click(),
  Enter: () => {
    const target = row()?.querySelector("a");
    if (target) location.assign(target.href);
  },
};

export function keys() {
  let going = 0;
  document.getElementById("help").addEventListener("click", help);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && event.target.matches("a, button, summary")) return;
    const screen = Date.now() - going < SEQUENCE_MS && document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`);
    going = event.key === "g" ? Date.now() : 0;
    if (screen) return void location.assign(screen.href);
    if (ACTS[event.key]) {
      event.preventDefault();
      ACTS[event.key]();
    }
  });
  document.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a, button, input, summary") && !getSelection().toString()) location.assign(row.dataset.href);
  });
}

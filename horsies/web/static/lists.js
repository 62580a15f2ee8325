// Lists: chosen columns, saved views, menus that close, and rows that stay where the reader sees them.

const base = document.documentElement.dataset.base;
const VIEWS = "horsies-views";

function stored() {
  try {
    const views = JSON.parse(localStorage.getItem(VIEWS) ?? "[]");
    return Array.isArray(views) ? views.filter((view) => typeof view?.title === "string" && typeof view?.query === "string") : [];
  } catch {
    return [];
  }
}

function showViews() {
  const sheet = document.getElementById("views");
  if (!sheet) return;
  for (const each of sheet.querySelectorAll(".own-view")) each.remove();
  for (const { title, query } of stored()) {
    const row = document.createElement("span"), link = document.createElement("a"), drop = document.createElement("button");
    row.className = "own-view";
    link.href = `${base}/tasks${query}`;
    link.textContent = title;
    drop.className = "quiet";
    drop.textContent = "×";
    drop.setAttribute("aria-label", `Remove the view ${title}`);
    drop.addEventListener("click", (event) => {
      event.preventDefault();
      localStorage.setItem(VIEWS, JSON.stringify(stored().filter((view) => view.title !== title)));
      showViews();
    });
    row.append(link, drop);
    sheet.querySelector("form").before(row);
  }
}

export function lists() {
  showViews();
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("[data-save-view]")) return;
    event.preventDefault();
    const title = form.elements.title.value.trim(), query = location.search || "?";
    if (!title) return;
    localStorage.setItem(VIEWS, JSON.stringify([...stored().filter((view) => view.title !== title), { title, query }]));
    form.reset();
    showViews();
  });
  document.addEventListener("change", (event) => {
    const form = event.target.closest("[data-columns]");
    if (!form) return;
    const address = new URL(location.href);
    address.searchParams.set("cols", [...form.querySelectorAll("input:checked")].map((box) => box.value).join(",") || ",");
    location.assign(address);
  });
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && document.querySelector("details.menu[open]");
    if (!menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}

const rowsOf = (list) => [...list.querySelectorAll("tbody > tr[data-row]")];

// Before a list is updated: keep every row that the reader sees in its place, in the fresh list too. A row that is gone from a
// pinned list stays, marked as gone. A link tells how many rows are new or gone, and shows the list as it is.
export function hold(old, fresh) {
  for (const list of old.querySelectorAll("[data-hold]")) {
    const next = list.id && fresh.querySelector(`#${CSS.escape(list.id)}`);
    const seen = rowsOf(list), coming = next ? rowsOf(next) : [];
    if (!seen.length || !next) continue;
    if (list.dataset.hold === "watched" && !list.matches(":hover, :focus-within")) continue;
    const body = coming[0]?.parentElement;
    if (!body) continue;
    const byKey = new Map(coming.map((row) => [row.dataset.row, row])), known = new Set(seen.map((row) => row.dataset.row));
    const isPinned = Boolean(list.dataset.pin);
    const kept = seen.map((row) => byKey.get(row.dataset.row) ?? gone(row, isPinned));
    const added = coming.filter((row) => !known.has(row.dataset.row));
    const inOrder = coming.filter((row) => known.has(row.dataset.row)).map((row) => row.dataset.row).join() === seen.filter((row) => byKey.has(row.dataset.row)).map((row) => row.dataset.row).join();
    const lost = kept.filter((row) => row.classList.contains("gone")).length;
    body.replaceChildren(...kept, ...(isPinned ? added : []));
    if (list.dataset.hold === "watched") continue;
    const count = isPinned ? null : added.length;
    tell(next, count, lost, !isPinned && !inOrder);
  }
}

function gone(row, isPinned) {
  const kept = row.cloneNode(true);
  if (isPinned) {
    kept.classList.add("gone");
    kept.title = "No longer in this list";
    for (const box of kept.querySelectorAll(".pick")) box.disabled = true;
  }
  return kept;
}

function tell(list, added, lost, reordered) {
  let link = list.querySelector("[data-newer]");
  if (!link && !added && !lost && !reordered) return;
  const first = link ? link.textContent.replace(" · show", "") : added ? `${added} new` : "";
  const text = [first, lost ? `${lost} gone` : "", !first && !lost ? "The order has changed" : ""].filter(Boolean).join(", ");
  if (!link) {
    link = document.createElement("a");
    link.className = "newer";
    link.href = location.href;
    link.dataset.newer = "";
    list.querySelector("section")?.before(link);
  }
  link.textContent = `${text} · show`;
}

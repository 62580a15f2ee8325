// Small screens: the rest of the menu, and tables whose rows become cards, with the header of the column in each cell.

function label() {
  for (const table of document.querySelectorAll("table:not(.latencies)")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.querySelector(".unseen") ? "" : head.textContent.trim());
    if (!heads.length) continue;
    table.classList.add("cards");
    table.dataset.own = "class";
    for (const row of table.tBodies[0]?.rows ?? []) {
      [...row.cells].forEach((cell, place) => {
        if (heads[place] && !cell.hasAttribute("colspan") && !cell.dataset.label) cell.dataset.label = heads[place];
        cell.dataset.own = "data-label data-own";
      });
    }
  }
}

export function phone() {
  const more = document.getElementById("more"), menu = more.closest("nav");
  const open = (is) => {
    menu.classList.toggle("open", is);
    more.setAttribute("aria-expanded", String(is));
  };
  more.addEventListener("click", () => open(!menu.classList.contains("open")));
  document.addEventListener("click", (event) => event.target.closest("nav") !== menu && open(false));
  document.addEventListener("keydown", (event) => event.key === "Escape" && open(false));
  document.addEventListener("fresh", label);
  label();
}

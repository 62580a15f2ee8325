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

// Where there is no room for a column of filters, each list of them is a menu.
function menus() {
  const narrow = matchMedia("(max-width: 75rem)");
  const arrange = () => {
    for (const each of document.querySelectorAll("[data-facet]:not([data-own])")) {
      each.dataset.own = "class data-own";
      each.open = !narrow.matches;
      each.classList.toggle("menu", narrow.matches);
    }
  };
  narrow.addEventListener("change", () => {
    for (const each of document.querySelectorAll("[data-facet][data-own]")) delete each.dataset.own;
    arrange();
  });
  document.addEventListener("fresh", arrange);
  arrange();
}

export function phone() {
  menus();
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

// Runs before the first paint, so that the page never appears in the wrong theme.
const chosen = localStorage.getItem("horsies-theme");
if (chosen) document.documentElement.dataset.theme = chosen;

// The search field suggests names of tasks, queues, error codes and arguments. A suggestion leads to the filter of just that.

const base = document.documentElement.dataset.base;
const GROUPS = [["names", "name", "task"], ["queues", "queue", "queue"], ["codes", "code", "error"]];
const MOST = 200;

export function search() {
  const field = document.getElementById("search"), list = document.getElementById("suggestions");
  const filters = new Map();
  let asked = false;
  field.addEventListener("focus", async () => {
    if (asked) return;
    asked = true;
    const answer = await fetch(`${base}/api/tasks/facets`);
    if (!answer.ok) return void (asked = false);
    const found = await answer.json();
    for (const [group, filter, label] of GROUPS) {
      for (const value of Object.keys(found[group]).slice(0, MOST)) {
        if (filters.has(value)) continue;
        filters.set(value, filter);
        list.append(Object.assign(document.createElement("option"), { value, label: `${value} · ${label}` }));
      }
    }
  });
  field.form.addEventListener("submit", (event) => {
    const text = field.value.trim(), filter = filters.get(text);
    if (!filter) return;
    event.preventDefault();
    location.assign(`${base}/tasks?${new URLSearchParams({ [filter]: text })}`);
  });
}

// Schedules: the dialog that creates or edits one.
import { toast } from "./actions.js";
import { compose, element, pretty } from "./task.js";

const base = document.documentElement.dataset.base;

function field(id, label, input) {
  input.id = id;
  return [element("label", { htmlFor: id, textContent: label }), input];
}

function choice(values, chosen) {
  const made = element("select", {}, ...values.map(([value, text]) => element("option", { value, textContent: text })));
  if (chosen !== undefined) made.value = chosen;
  return made;
}

async function open(stored, refresh) {
  const { tasks } = await (await fetch(`${base}/api/definitions`)).json();
  const name = element("input", { value: stored?.name ?? "", required: true, maxLength: 255, readOnly: Boolean(stored), autocomplete: "off" });
  const known = tasks.map((each) => [each.name, each.name]);
  const target = stored?.task_name ?? stored?.definition_key;
  if (target && !known.some(([value]) => value === target)) known.push([target, target]);
  const task = choice(known, target);
  task.disabled = Boolean(stored?.definition_key);
  const when = element("input", { value: stored?.when ?? "every 15 min", required: true, autocomplete: "off", spellcheck: false });
  const zone = element("input", { value: stored?.timezone ?? "UTC", required: true, autocomplete: "off", spellcheck: false });
  const overlap = choice([["allow", "Start the next run all the same"], ["skip", "Skip the next run"]], stored?.overlap);
  compose({
    heading: stored ? `Edit ${stored.name}` : "New schedule",
    prompt: "Arguments as JSON:",
    text: pretty(stored?.kwargs ?? "{}"),
    before: [
      ...(stored ? [] : field("schedule-name", "Name", name)),
      ...field("schedule-task", stored?.definition_key ? "Workflow" : "Task", task),
      ...field("schedule-when", "When: every 15 min, or a cron expression such as 0 8 * * mon", when),
      ...field("schedule-zone", "Time zone", zone),
      ...field("schedule-overlap", "While the previous run has not ended", overlap),
    ],
    path: stored ? "/api/schedules/update" : "/api/schedules/create",
    body: (kwargs) => {
      const which = stored?.definition_key ? { definition_key: target } : { task_name: task.value };
      const given = JSON.stringify({ name: name.value, when: when.value, timezone: zone.value, overlap: overlap.value, ...which });
      return `${given.slice(0, -1)},"kwargs":${kwargs}}`;
    },
    confirm: stored ? "Save" : "Create",
    done: () => {
      toast(`${name.value}: ${stored ? "changed" : "created"}.`);
      refresh({ release: true });
    },
  });
}

export function schedules(refresh) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-schedule]");
    if (button) open(button.dataset.schedule ? JSON.parse(button.dataset.schedule) : null, refresh);
  });
}

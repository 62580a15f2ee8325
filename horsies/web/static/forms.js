// Forms for signals: make JSON of the fields, send it, and keep what was typed if it is refused.
import { post } from "./actions.js";

// The JSON of a field; undefined for an optional one that is empty. Numbers are sent as they were written.
function json(field) {
  const { kind } = field.dataset, text = field.value.trim();
  if (kind === "text") return text || field.required ? JSON.stringify(field.value) : undefined;
  if (!text) return undefined;
  if (kind === "json") {
    JSON.parse(text);
    return text;
  }
  if (kind === "boolean" || kind === "integer" || kind === "number") return text;
  if (kind === "datetime-local") return JSON.stringify(`${text.length === 16 ? `${text}:00` : text}Z`);
  return JSON.stringify(text);
}

function valueOf(form) {
  const fields = [...form.querySelectorAll("[data-field]")];
  if (fields.length === 1 && !fields[0].dataset.field) return json(fields[0]) ?? '""';
  const parts = [];
  for (const field of fields) {
    const text = json(field) ?? (field.dataset.kind === "text" && !field.closest(".field").querySelector("small") ? '""' : undefined);
    if (text !== undefined) parts.push(`${JSON.stringify(field.dataset.field)}:${text}`);
  }
  return `{${parts.join(",")}}`;
}

const isChanged = (field) => field.matches("select") ? ![...field.options].some((each) => each.selected && (each.defaultSelected || each.index === 0)) : field.value !== field.defaultValue;

// Before the page is updated: keep a form in which the viewer has written something, although nobody waits for it any more.
export function keepTyped(old, fresh) {
  for (const form of old.querySelectorAll("form.answer")) {
    const card = form.closest("[data-row]");
    if (fresh.querySelector(`[data-row="${CSS.escape(card.dataset.row)}"]`) || ![...form.querySelectorAll("[data-field]")].some(isChanged)) continue;
    fresh.insertBefore(card.cloneNode(true), fresh.children[[...old.children].indexOf(card)] ?? null);
  }
}

export function forms(refresh, toast) {
  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("form.answer");
    if (!form) return;
    event.preventDefault();
    const refusal = form.querySelector(".refusal"), button = form.querySelector("button");
    refusal.hidden = true;
    button.disabled = true;
    try {
      await post(form.dataset.path, `{"name":${JSON.stringify(form.dataset.signal)},"value":${valueOf(form)}}`);
      form.reset();
      toast(`${form.dataset.signal}: answered.`);
      refresh();
    } catch (error) {
      refusal.textContent = error instanceof SyntaxError ? `This is no JSON: ${error.message}` : error.message;
      refusal.hidden = false;
    } finally {
      button.disabled = false;
    }
  });
}

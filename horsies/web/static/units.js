// Format durations, times and numbers, as horsies/units.py does on the server. A test compares the two.

const NOTHING = "–";
const MINUTE = 60, HOUR = 3600, DAY = 86400;
const LONG_UNITS = [[MINUTE, "min", 1, "s", HOUR], [HOUR, "h", MINUTE, "min", DAY], [DAY, "d", HOUR, "h", Infinity]];

const rounded = (value) => Math.floor(value + 0.5);
const grouped = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

// A number below 10 with one decimal if that is not 0, others without.
function twoDigits(value) {
  const tenths = rounded(value * 10);
  return tenths < 100 ? String(tenths / 10) : grouped(rounded(value), 0);
}

// A duration in the units of its magnitude: 8.6 ms, 1.3 s, 2 min 4 s.
export function span(seconds) {
  if (Number.isNaN(seconds)) return "unknown";
  if (seconds < 0) return `-${span(-seconds)}`;
  if (seconds === Infinity) return "infinity";
  if (seconds === 0) return "0 s";
  if (rounded(seconds * 1000) < 1000) return `${twoDigits(seconds * 1000)} ms`;
  if (rounded(seconds) < MINUTE) return `${twoDigits(seconds)} s`;
  for (const [size, unit, partSize, partUnit, end] of LONG_UNITS) {
    const total = rounded(seconds / partSize) * partSize;
    if (total >= end) continue;
    const whole = Math.floor(total / size), part = Math.floor((total % size) / partSize);
    return `${grouped(whole, 0)} ${unit}${part && whole < 100 ? ` ${part} ${partUnit}` : ""}`;
  }
}

// A duration in one unit, rounded down: for times that go by while one reads.
export function rough(seconds) {
  for (const [size, unit, least] of [[DAY, "d", 2 * DAY], [HOUR, "h", HOUR], [MINUTE, "min", MINUTE]]) {
    if (seconds >= least) return `${grouped(Math.floor(seconds / size), 0)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

// A time so many seconds ago, or to come if negative.
export function ago(seconds) {
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${rough(seconds)} ago` : `in ${rough(-seconds)}`;
}

export function number(value) {
  if (value === null || Number.isNaN(value)) return NOTHING;
  if (!Number.isFinite(value)) return span(value);
  if (Number.isInteger(value)) return grouped(value, 0);
  return Math.abs(value) >= 10 ? grouped(value, 1) : String(Number(value.toPrecision(2)));
}

export function short(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${rounded((value / size) * 10) / 10}${unit}`;
  }
  return number(value);
}

export function megabytes(value) {
  if (value === null || Number.isNaN(value)) return NOTHING;
  if (value > 0 && value < 0.9995) return `${grouped(rounded(value * 1024), 0)} kB`;
  return value >= 1024 ? `${twoDigits(value / 1024)} GB` : `${grouped(rounded(value), 0)} MB`;
}

export const percentage = (value) => (value === null || Number.isNaN(value) ? NOTHING : `${grouped(rounded(value), 0)} %`);

// A rate in the unit of its magnitude: 12.5/s, 6/min, 3.6/h.
export function perSecond(value) {
  if (value === null || Number.isNaN(value)) return NOTHING;
  if (value <= 0 || value >= 1) return `${number(value)}/s`;
  return value * MINUTE >= 1 ? `${twoDigits(value * MINUTE)}/min` : `${twoDigits(value * HOUR)}/h`;
}

export const counted = (count, noun) => `${grouped(count, 0)} ${count === 1 ? noun : /[^aeiou]y$/.test(noun) ? `${noun.slice(0, -1)}ies` : `${noun}s`}`;

// The value of a plot in its unit.
export const inUnit = (value, unit) => (value !== null && unit === "s" ? span(value) : number(value));

// graphile-worker: the same commands as in protocol.py, for Node. It keeps no results.
"use strict";

const fs = require("node:fs");
const { spawn } = require("node:child_process");
const readline = require("node:readline");

const [home, command, ...numbers] = process.argv.slice(2);
const [count, how] = numbers.map(Number);
const { makeWorkerUtils, run } = require(require.resolve("graphile-worker", { paths: [home] }));
const connectionString = process.env.BENCH_URL;
const WARM_UP = -1;

const now = () => Number(process.hrtime.bigint()) / 1e9;

let starts;
function begun(number) {
  starts ??= fs.openSync(process.env.BENCH_STARTS, "a");
  const record = Buffer.alloc(16);
  record.writeBigInt64LE(BigInt(number), 0);
  record.writeDoubleLE(now(), 8);
  fs.writeSync(starts, record);
}

const preset = {
  worker: {
    connectionString,
    concurrentJobs: 24,
    localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
    completeJobBatchDelay: 0,
  },
};

async function work() {
  for (let copy = 1; copy < count; copy++) {
    spawn(process.execPath, [__filename, home, "worker", "1"], { stdio: "ignore" });
  }
  const runner = await run({ preset, taskList: { noop: async (payload) => begun(payload.n) } });
  await runner.promise;
}

async function untilTold(lines) {
  console.log("ready");
  await lines.next();
}

async function send(utils, lines) {
  let next = 0;
  const sender = async () => {
    while (next < count) await utils.addJob("noop", { n: next++ });
  };
  await untilTold(lines);
  await Promise.all(Array.from({ length: how }, sender));
}

async function bulk(utils, lines) {
  await untilTold(lines);
  for (let first = 0; first < count; first += how) {
    const size = Math.min(how, count - first);
    await utils.addJobs(Array.from({ length: size }, (_, i) => ({ identifier: "noop", payload: { n: first + i } })));
  }
}

async function latency(utils, lines) {
  await untilTold(lines);
  for (let number = 0; number < count; number++) {
    await new Promise((resolve) => setTimeout(resolve, 35 + Math.random() * 20));
    const sentAt = now();
    await utils.addJob("noop", { n: number });
    console.log(number, sentAt);
  }
  await new Promise((resolve) => setTimeout(resolve, 100));
}

async function main() {
  if (command === "worker") return work();
  const utils = await makeWorkerUtils({ connectionString });
  if (command === "setup") {
    await utils.migrate();
  } else {
    const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
    await utils.addJob("noop", { n: WARM_UP });
    await { send, bulk, latency }[command](utils, lines);
    console.log("done");
  }
  await utils.release();
  process.exit(0);
}

main();

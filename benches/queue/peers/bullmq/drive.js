// Times BullMQ on empty jobs: `node drive.js PORT JOBS CONCURRENCY`.
//
// One worker at the given concurrency; jobs added in bulk and removed when complete. Every
// completion fetches the next job in the same script, as BullMQ does by itself.
'use strict';

const { Queue, Worker } = require('bullmq');

const PAYLOAD_BYTES = 1024;
const JOBS_A_BULK = 500;
const QUEUE = 'bench';

async function enqueue(queue, jobs) {
  const payload = 'x'.repeat(PAYLOAD_BYTES);
  const job = { name: 'unit', data: { payload }, opts: { removeOnComplete: true } };
  for (let first = 0; first < jobs; first += JOBS_A_BULK) {
    await queue.addBulk(Array(Math.min(JOBS_A_BULK, jobs - first)).fill(job));
  }
}

async function main([port, jobs, concurrency]) {
  const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null };
  const queue = new Queue(QUEUE, { connection });
  await enqueue(queue, jobs);

  const worker = new Worker(QUEUE, async () => {}, { connection, concurrency, autorun: false });
  await worker.waitUntilReady();
  let completed = 0;
  const allCompleted = new Promise((resolve, reject) => {
    // The event is emitted when Redis has answered the completion.
    worker.on('completed', () => ++completed === jobs && resolve());
    worker.on('failed', (job, error) => reject(error));
    worker.on('error', reject);
  });
  const started = process.hrtime.bigint();
  worker.run();
  await allCompleted;
  const seconds = Number(process.hrtime.bigint() - started) / 1e9;

  await worker.close();
  const left = await queue.getJobCounts();
  if (Object.values(left).some((count) => count !== 0)) {
    throw new Error(`jobs left over: ${JSON.stringify(left)}`);
  }
  await queue.close();
  console.log(JSON.stringify({ cyclesPerSecond: jobs / seconds }));
}

main(process.argv.slice(2).map(Number)).catch((error) => {
  console.error(error);
  process.exit(1);
});
